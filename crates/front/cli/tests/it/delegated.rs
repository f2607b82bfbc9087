//! Programs under `keepstone run` that read and write files of a cache in its pool.
//!
//! Needs root and `/dev/fuse`.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::attach::Cached;
use crate::common::served_child_test;

/// A program that executes orders on one file.
struct Actor {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    fn new(file: &Path) -> Self {
        Self::by(Command::new(env!("CARGO_BIN_EXE_keepstone")), file)
    }

    /// Starts an actor. `run` is the command that starts `keepstone run`.
    fn by(run: Command, file: &Path) -> Self {
        Self::start(&mut served_child_test(run, "delegated::actor", file.as_os_str()))
    }

    fn start(run: &mut Command) -> Self {
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, orders, answers: BufReader::new(answers) }
    }

    fn asks(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.answers.read_line(&mut line).unwrap();
            assert!(len > 0, "the actor has ended before it did {order}");
            // The first answer follows output of the test harness.
            if let Some((_, answer)) = line.split_once("# ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Writes to the first bytes often enough that the file is delegated.
    fn works(&mut self, byte: char) {
        assert_eq!(self.asks(&format!("work {byte}")), "done");
    }

    fn writes(&mut self, offset: u64, len: usize, byte: char) {
        assert_eq!(self.asks(&format!("write {offset} {len} {byte}")), "done");
    }

    /// Appends `len` bytes `times` times, each time by one call. Returns the offset after that.
    fn appends(&mut self, times: usize, len: usize, byte: char) -> u64 {
        self.asks(&format!("append {times} {len} {byte}")).parse().unwrap()
    }

    fn reads(&mut self, offset: u64, len: usize) -> String {
        self.asks(&format!("read {offset} {len}"))
    }

    /// Ends the actor. Returns the number of calls made in user space, and by the kernel.
    fn ends(mut self) -> (u64, u64) {
        drop(self.orders);
        let mut rest = String::new();
        self.answers.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        let report: Value = serde_json::from_str(&rest[rest.find("{\n").unwrap()..]).unwrap();
        let calls = |way: &str| report[way]["calls"].as_u64().unwrap();
        (calls("served"), calls("by_mount"))
    }

    /// Ends the actor, and checks that most of its calls were served. On a busy machine some
    /// requests for a delegation fail.
    fn ends_served(self) {
        let (served, by_kernel) = self.ends();
        assert!(served > by_kernel, "{served} calls served, {by_kernel} by the kernel");
    }
}

/// Creates a directory with an empty file, which a pool can cache.
fn with_file() -> (Cached, PathBuf) {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
    (cached, path)
}

/// Creates the same, attaches the cache, and starts a program that has the file open.
fn with_actor() -> (Cached, PathBuf, Actor) {
    let (cached, path) = with_file();
    cached.attach(&[]);
    let actor = Actor::new(&path);
    (cached, path, actor)
}

#[test]
#[ignore = "run by the other tests"]
#[allow(unsafe_code)]
fn actor() {
    let path = std::env::var_os("ARG").unwrap();
    let open = || fs::File::options().read(true).write(true).open(&path).unwrap();
    let open_end = || fs::File::options().append(true).open(&path).unwrap();
    let (mut file, mut end) = (open(), open_end());
    let mut mapped = None;
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let words: Vec<&str> = order.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let byte = |i: usize| words[i].as_bytes()[0];
        let done = |result: std::io::Result<()>| match result {
            Ok(()) => "done".to_owned(),
            Err(err) => format!("error {}", err.raw_os_error().unwrap()),
        };
        let answer = match words[0] {
            "work" => done((0..500).try_for_each(|_| file.write_all_at(&[byte(1); 100], 0))),
            // Writes a byte that extends the file, and reads it through a mapping.
            "mapped" => {
                let at = number(1) as usize;
                assert!(at < MAPPED);
                let start = *mapped.get_or_insert_with(|| map(&file));
                file.write_all_at(&[byte(2)], number(1)).unwrap();
                // SAFETY: the address is within the mapping.
                char::from(unsafe { start.add(at).read_volatile() }).to_string()
            }
            // Creates another file, writes to it nine times and removes it; all this N times.
            "journal" => done((0..number(1)).try_for_each(|_| {
                let beside = Path::new(&path).with_extension("journal");
                let journal = fs::File::create_new(&beside)?;
                (0..9).try_for_each(|i| journal.write_all_at(&[b'j'; 500], 700 * i))?;
                assert_eq!(journal.metadata()?.len(), 8 * 700 + 500);
                drop(journal);
                fs::remove_file(&beside)
            })),
            // Writes another file by one call, and then opens it N times to append to it and to
            // read it.
            "again" => done((0..number(1)).try_for_each(|round| {
                let beside = Path::new(&path).with_extension("again");
                if round == 0 {
                    fs::write(&beside, vec![b'a'; 200_000])?;
                }
                fs::File::options().append(true).open(&beside)?.write_all(&[b'b'; 5000])?;
                let expected = 200_000 + 5000 * (round as usize + 1);
                let read = fs::read(&beside)?;
                assert!(read.len() == expected && read.ends_with(&[b'b'; 5000]));
                Ok(())
            })),
            // Writes by many threads, each at its own place.
            "crowd" => {
                let work = |thread: u64| {
                    let data = [byte(1); 100];
                    (0..500).try_for_each(|_| file.write_all_at(&data, 10_000 * thread))
                };
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || work(i))).collect();
                    done(threads.into_iter().try_for_each(|thread| thread.join().unwrap()))
                })
            }
            "write" => done(file.write_all_at(&vec![byte(3); number(2) as usize], number(1))),
            "append" => {
                let data = vec![byte(3); number(2) as usize];
                (0..number(1)).for_each(|_| assert_eq!(end.write(&data).unwrap(), data.len()));
                end.stream_position().unwrap().to_string()
            }
            // With `O_APPEND`, Linux ignores the offset.
            "append-at" => {
                let before = end.stream_position().unwrap();
                let result = end.write_all_at(&[byte(2)], number(1));
                assert_eq!(end.stream_position().unwrap(), before);
                done(result)
            }
            // Writes several parts by one call: at an offset, or at the end.
            "vector" => vector(file.as_raw_fd(), number(1) as i64, &words[2..]),
            "vector-end" => vector(end.as_raw_fd(), -1, &words[1..]),
            "vector-append" => vector(file.as_raw_fd(), -2, &words[1..]),
            "read-vector" => {
                let mut parts: Vec<Vec<u8>> =
                    words[2..].iter().map(|len| vec![b'?'; len.parse().unwrap()]).collect();
                let list: Vec<_> = parts.iter_mut().map(|part| iovec(part)).collect();
                // SAFETY: the buffers have the given lengths.
                let len = unsafe {
                    let (count, offset) = (list.len() as i32, number(1) as i64);
                    libc::preadv(file.as_raw_fd(), list.as_ptr(), count, offset)
                };
                format!("{len} {}", runs(&parts.concat()))
            }
            // The address of the second part is not mapped.
            "bad-vector" => {
                let mut first = [byte(2); 10];
                let missing = libc::iovec { iov_base: std::ptr::dangling_mut(), iov_len: 20 };
                let list = [iovec(&mut first), missing];
                let (fd, offset) = (file.as_raw_fd(), number(1) as i64);
                // SAFETY: the kernel checks addresses, and fails for an unmapped one.
                let written = unsafe { libc::pwritev(fd, list.as_ptr(), 2, offset) };
                // SAFETY: as above.
                let read = unsafe { libc::preadv(fd, list.as_ptr(), 2, offset) };
                format!("{written} {read}")
            }
            "stream" => stream(&path, words[1], number(2), &vec![byte(4); number(3) as usize]),
            "open" => {
                (file, end) = (open(), open_end());
                "done".to_owned()
            }
            "sync" => done(file.sync_all()),
            "die" => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
                continue;
            }
            "fork" => {
                // SAFETY: the child only makes calls on a descriptor, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let status = i32::from(file.write_all_at(&[byte(2)], number(1)).is_err());
                    // SAFETY: no preconditions.
                    unsafe { libc::_exit(status) };
                }
                let mut status = 0;
                // SAFETY: the status is a valid place.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                if status == 0 { "done".to_owned() } else { "error".to_owned() }
            }
            _ => {
                let mut bytes = vec![0; number(2) as usize];
                match file.read_at(&mut bytes, number(1)) {
                    Ok(len) => runs(&bytes[..len]),
                    Err(err) => done(Err(err)),
                }
            }
        };
        println!("# {answer}");
    }
}

/// Writes `data` `count` times to a stream that is opened with `mode`. Returns its position after
/// that, and the content of the file.
#[allow(unsafe_code)]
fn stream(path: &OsStr, mode: &str, count: u64, data: &[u8]) -> String {
    let name = CString::new(path.as_encoded_bytes()).unwrap();
    let mode = CString::new(mode).unwrap();
    // SAFETY: the strings end with NUL, the stream is open, and the buffers have the given lengths.
    let (read, position) = unsafe {
        let stream = libc::fopen(name.as_ptr(), mode.as_ptr());
        for _ in 0..count {
            assert_eq!(libc::fwrite(data.as_ptr().cast(), data.len(), 1, stream), 1);
            assert_eq!(libc::fflush(stream), 0);
        }
        let position = libc::ftell(stream);
        libc::rewind(stream);
        let mut all = vec![0; 1 << 20];
        let len = libc::fread(all.as_mut_ptr().cast(), 1, all.len(), stream);
        assert_eq!(libc::fclose(stream), 0);
        (runs(&all[..len]), position)
    };
    // After the close, a new descriptor with the stream's number is a different file.
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"beside").unwrap();
    let mut beside = [0; 6];
    reader.read_exact(&mut beside).unwrap();
    assert_eq!(&beside, b"beside");
    format!("{position} {read}")
}

const MAPPED: usize = 1 << 20;

/// Maps the first bytes of a file, even beyond its current end.
#[allow(unsafe_code)]
fn map(file: &fs::File) -> *const u8 {
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // By libc, because the library must see the call. SAFETY: a new mapping, which is never
    // removed.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), MAPPED, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped.cast()
}

fn iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Writes parts, each given by its length and its byte, by one call. Returns the number of bytes
/// written.
#[allow(unsafe_code)]
fn vector(fd: i32, offset: i64, parts: &[&str]) -> String {
    let part = |pair: &[&str]| vec![pair[1].as_bytes()[0]; pair[0].parse().unwrap()];
    let mut parts: Vec<_> = parts.chunks(2).map(part).collect();
    let list: Vec<_> = parts.iter_mut().map(|part| iovec(part)).collect();
    let count = list.len() as i32;
    // SAFETY: the buffers have the given lengths.
    let written = unsafe {
        match offset {
            -1 => libc::writev(fd, list.as_ptr(), count),
            -2 => libc::pwritev2(fd, list.as_ptr(), count, -1, libc::RWF_APPEND),
            _ => libc::pwritev(fd, list.as_ptr(), count, offset),
        }
    };
    written.to_string()
}

/// Formats bytes as run lengths: `3a2b` for `aaabb`, with `-` for zeros.
fn runs(bytes: &[u8]) -> String {
    let run = |run: &[u8]| match run[0] {
        0 => format!("{}-", run.len()),
        byte => format!("{}{}", run.len(), char::from(byte)),
    };
    bytes.chunk_by(|a, b| a == b).map(run).collect()
}

fn delegated(cached: &Cached) -> u64 {
    cached.status()["cache"]["counters"]["delegated"].as_u64().unwrap()
}

/// All processes see data that a program writes without requests, and it sees data that others
/// write: by calls and mappings, at the end of the file and beyond.
#[test]
#[allow(unsafe_code)]
fn programs_and_others_see_the_same() {
    let (cached, path, mut actor) = with_actor();
    let plain = fs::File::options().read(true).write(true).open(&path).unwrap();
    let seen = |offset: u64, len: usize| {
        let mut bytes = vec![0; len];
        let len = plain.read_at(&mut bytes, offset).unwrap();
        runs(&bytes[..len])
    };
    actor.works('a');
    assert!(delegated(&cached) > 0);
    assert_eq!(plain.metadata().unwrap().len(), 100);
    actor.writes(5_000, 10_000, 'b');
    assert_eq!(plain.metadata().unwrap().len(), 15_000, "asked anew each time");
    assert_eq!(seen(0, 20_000), "100a4900-10000b");

    plain.write_all_at(b"cc", 50).unwrap();
    assert_eq!(actor.reads(0, 110), "50a2c48a10-");
    actor.works('d');
    assert_eq!(seen(0, 110), "100d10-");
    // Sizes that the kernel does not know yet.
    actor.works('e');
    actor.writes(20_000, 5, 'f');
    let mut end = fs::File::options().append(true).open(&path).unwrap();
    end.write_all(b"g").unwrap();
    assert_eq!(actor.reads(19_999, 10), "1-5f1g");
    actor.works('e');
    plain.set_len(50).unwrap();
    assert_eq!(actor.reads(0, 200), "50e");
    actor.works('h');
    actor.writes(8_192, 3, 'i');
    assert_eq!(seen(0, 10_000), "100h8092-3i");

    // Pages that a program has mapped. SAFETY: a new mapping that only this test uses.
    let page = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &plain,
            4096,
        )
    };
    let page = page.unwrap().cast::<u8>();
    let load = |at: usize| {
        // SAFETY: the address is within the page.
        unsafe { page.add(at).read_volatile() }
    };
    assert_eq!(load(0), 0);
    actor.works('j');
    actor.writes(4096, 2, 'k');
    assert_eq!((load(0), load(1), load(2)), (b'k', b'k', 0));
    // SAFETY: as above.
    unsafe { page.add(5).write_volatile(b'l') };
    actor.works('m');
    assert_eq!(actor.reads(4096, 8), "2k3-1l2-");
    // SAFETY: mapped above.
    unsafe { rustix::mm::munmap(page.cast(), 4096) }.unwrap();

    // Other operations on the file meanwhile.
    let renamed = cached.data().join("renamed");
    fs::rename(&path, &renamed).unwrap();
    actor.works('n');
    fs::set_permissions(&renamed, fs::Permissions::from_mode(0o600)).unwrap();
    actor.works('o');
    assert_eq!(actor.asks("fork 1 p"), "done");
    assert_eq!(actor.asks("sync"), "done");
    cached.keepstone(&["attach", "flush", renamed.to_str().unwrap()]);
    assert_eq!(seen(0, 100), "1o1p98o");
    actor.works('q');
    assert_eq!(seen(0, 100), "100q");
    actor.works('r');
    fs::remove_file(&renamed).unwrap();
    actor.writes(0, 1, 's');
    assert_eq!(actor.reads(0, 100), "1s99r");
    let (served, by_kernel) = actor.ends();
    assert!(served > 5 * by_kernel, "{served} calls served, {by_kernel} by the kernel");
    drop((plain, end));
    cached.detach();
    assert_eq!(fs::read_dir(cached.data()).unwrap().count(), 0);
}

/// Two programs share a file. If one of them is killed, the other and the cache continue.
#[test]
fn two_programs_and_one_that_is_killed() {
    let (cached, path) = with_file();
    cached.attach(&[]);
    let (mut one, mut two) = (Actor::new(&path), Actor::new(&path));
    one.works('a');
    two.works('b');
    for i in 0..50 {
        one.writes(10_000 + i * 20, 10, 'c');
        two.writes(10_010 + i * 20, 10, 'd');
        assert_eq!(one.reads(10_000 + i * 20, 20), "10c10d");
        assert_eq!(two.reads(10_000 + i * 20, 20), "10c10d");
    }
    one.works('e');
    writeln!(one.orders, "die").unwrap();
    assert!(!one.child.wait().unwrap().success());
    two.works('f');
    assert_eq!(two.reads(0, 100), "100f");
    cached.keepstone(&["attach", "flush", path.to_str().unwrap()]);
    two.ends();
    cached.detach();
    assert_eq!(runs(&fs::read(&path).unwrap()[..120]), "100f20-");
    assert_eq!(fs::metadata(&path).unwrap().len(), 11_000);
}

/// Two served programs and one unserved program append to one file, more than is announced at once,
/// while there are writes to other places. Each append lands behind all earlier ones.
#[test]
fn programs_append_in_turns() {
    const TURNS: u64 = 30;
    let (cached, path) = with_file();
    cached.attach(&[]);
    let (mut one, mut two) = (Actor::new(&path), Actor::new(&path));
    let mut plain = fs::File::options().read(true).append(true).open(&path).unwrap();
    assert_eq!(one.appends(100, 10, 'a'), 1_000);
    assert_eq!(two.appends(100, 10, 'a'), 2_000);
    assert!(delegated(&cached) > 0);
    let mut size = 2_000;
    for turn in 0..TURNS {
        assert_eq!(one.appends(20, 5_000, 'b'), size + 100_000);
        assert_eq!(two.appends(1, 3, 'c'), size + 100_003);
        assert_eq!(one.reads(size + 99_999, 10), "1b3c");
        two.writes(turn, 1, 'd');
        assert_eq!(two.appends(30, 1_000, 'e'), size + 130_003);
        size += 130_003;
        if turn % 10 == 9 {
            plain.write_all(b"ff").unwrap();
            size += 2;
            assert_eq!(two.reads(size - 3, 10), "1e2f");
        }
    }
    assert_eq!(one.asks("append-at 5 g"), "done");
    assert_eq!(two.reads(0, 40), format!("{TURNS}d10a"));
    assert_eq!(two.reads(size - 1, 10), "1f1g");
    assert_eq!(plain.metadata().unwrap().len(), size + 1);
    for actor in [one, two] {
        let (served, by_kernel) = actor.ends();
        assert!(served > 3 * by_kernel, "{served} calls served, {by_kernel} by the kernel");
    }
    drop(plain);
    cached.detach();
    let turn = ["100000b3c30000e"; 9].concat() + "100000b3c30000e2f";
    assert_eq!(runs(&fs::read(&path).unwrap()), format!("{TURNS}d1970a{turn}{turn}{turn}1g"));
}

/// Vectored calls are served up to a length; the kernel makes longer ones. The results are the
/// same.
#[test]
fn vectors_of_programs() {
    let (cached, path, mut actor) = with_actor();
    actor.works('a');
    let mut calls = 0;
    for _ in 0..200 {
        assert_eq!(actor.asks("vector 100 1 b 5000 c 0 - 2 d"), "5003");
        assert_eq!(actor.asks("read-vector 99 2 0 5001 30"), "5004 1a1b5000c2d29?");
        calls += 2;
    }
    assert_eq!(actor.asks("vector 100 0 - 3 e"), "3");
    let mut size = 5_103;
    for len in [10, 5_000, 60_000, 65_530, 65_550, 300_000] {
        let written = 2 * len + 3;
        let order = format!("{len} f 1 g {len} h 2 i");
        assert_eq!(actor.asks(&format!("vector-end {order}")), written.to_string());
        assert_eq!(actor.reads(size - 1, written + 10), format!("1{}{len}f1g{len}h2i", "d"));
        size += written as u64;
        assert_eq!(actor.asks(&format!("vector {size} {order}")), written.to_string());
        let read = actor.asks(&format!("read-vector {size} {len} 1 {len} 10"));
        assert_eq!(read, format!("{written} {len}f1g{len}h2i8?"));
        size += written as u64;
        actor.writes(size, 1, 'd');
        size += 1;
        actor.works('a');
    }
    let many = "1 j ".repeat(17);
    assert_eq!(actor.asks(&format!("vector 0 {}", many.trim_end())), "17");
    actor.works('a');
    let bad = actor.asks("bad-vector 10 k");
    assert_eq!(bad, "10 10");
    assert_eq!(actor.reads(0, 30), "10a10k10a");
    // With an end that the kernel does not know, and with a call that the kernel makes.
    for len in [10, 200_000] {
        actor.works('a');
        assert_eq!(actor.appends(1, 3, 'l'), size + 3);
        let order = format!("vector-append {len} m 2 n");
        assert_eq!(actor.asks(&order), (len + 2).to_string());
        assert_eq!(actor.reads(size, len + 10), format!("3l{len}m2n"));
        size += len as u64 + 5;
    }
    let (served, by_kernel) = actor.ends();
    assert!(served > calls + 3000 && by_kernel < 100, "{served} served, {by_kernel} by the kernel");
    cached.detach();
    assert_eq!(fs::metadata(&path).unwrap().len(), size);
}

/// Streams of libc are served like descriptors.
#[test]
fn streams_of_programs() {
    let (cached, path, mut actor) = with_actor();
    assert_eq!(actor.asks("stream w+ 500 10 a"), "5000 5000a");
    assert_eq!(actor.asks("stream a+ 500 10 b"), "10000 5000a5000b");
    assert_eq!(actor.asks("stream r+ 100 10 c"), "1000 1000c4000a5000b");
    assert_eq!(actor.asks("stream a 500 6000 d"), "3010000");
    assert_eq!(actor.asks("stream w 100 10 e"), "1000");
    assert_eq!(actor.asks("stream w+m 100 20 f"), "2000 2000f");
    assert!(delegated(&cached) > 0);
    assert_eq!(actor.reads(0, 3_000), "2000f");
    let (served, by_kernel) = actor.ends();
    assert!(served > 10 * by_kernel, "{served} calls served, {by_kernel} by the kernel");
    cached.detach();
    assert_eq!(runs(&fs::read(&path).unwrap()), "2000f");
}

/// Programs that already run when a cache is attached are served in files that they open from then
/// on, and so are programs that they start.
#[test]
fn a_cache_that_comes_later() {
    let (cached, path) = with_file();
    let mut actor = Actor::new(&path);
    // Started by a shell that waits.
    let run = served_child_test(
        Command::new(env!("CARGO_BIN_EXE_keepstone")),
        "delegated::actor",
        path.as_os_str(),
    );
    let args: Vec<_> = run.get_args().map(ToOwned::to_owned).collect();
    let program = args.iter().position(|arg| arg == "--").unwrap() + 1;
    let mut shell = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    shell.args(&args[..program]).args(["sh", "-c", "read line; \"$0\" \"$@\""]);
    shell.args(&args[program..]);
    shell.envs(run.get_envs().map(|(name, value)| (name, value.unwrap())));
    let mut later = Actor::start(&mut shell);
    actor.works('a');

    cached.attach(&[]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 100);
    // An open checks for caches once in 0.1 s.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(actor.asks("open"), "done");
    actor.works('b');
    assert!(delegated(&cached) > 0);
    writeln!(later.orders).unwrap();
    later.works('c');
    assert_eq!(actor.reads(0, 101), "100c");
    actor.works('d');
    assert_eq!(later.reads(0, 101), "100d");
    assert_eq!(actor.asks("fork 1 p"), "done");
    assert_eq!(later.reads(0, 101), "1d1p98d");
    for actor in [actor, later] {
        let (served, by_kernel) = actor.ends();
        assert!(served > 3 * by_kernel, "{served} calls served, {by_kernel} by the kernel");
    }
    cached.detach();
}

/// All writes of a program survive the kill of the server, even those after it.
#[test]
fn a_killed_server_loses_nothing_of_programs() {
    let (cached, path, mut actor) = with_actor();
    actor.works('a');
    actor.writes(4_000, 200, 'b');
    cached.kill_server();
    actor.writes(4_100, 10, 'c');
    assert_eq!(actor.reads(4_000, 200), "100b10c90b");
    assert_eq!(actor.asks("sync"), "done");
    rustix::mount::unmount(cached.data(), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(runs(&fs::read(&path).unwrap()), "", "nothing was written back");

    // The next server excludes the program from the pool.
    cached.attach(&[]);
    let not_connected = format!("error {}", libc::ENOTCONN);
    assert_eq!(actor.asks("write 0 1 d"), not_connected);
    assert_eq!(runs(&fs::read(&path).unwrap()), "100a3900-100b10c90b");
    actor.ends();
    cached.detach();
    assert_eq!(runs(&fs::read(&path).unwrap()), "100a3900-100b10c90b");
}

/// A user that may not open the pool uses the same files by requests.
#[test]
fn a_user_who_may_not_open_the_pool() {
    let (cached, path) = with_file();
    for (path, mode) in [(cached.pool(), 0o600), (path.clone(), 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let above = path.ancestors().nth(2).unwrap();
    fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    cached.attach(&[]);
    let mut run = Command::new("setpriv");
    run.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_keepstone")]);
    let mut theirs = Actor::by(run, &path);
    let mut ours = Actor::new(&path);
    for _ in 0..3 {
        theirs.works('a');
        ours.works('b');
        assert_eq!(theirs.reads(0, 100), "100b");
        theirs.writes(50, 10, 'c');
        assert_eq!(ours.reads(0, 100), "50b10c40b");
    }
    let (served, by_kernel) = theirs.ends();
    assert!(by_kernel > served);
    ours.ends();
    cached.detach();
}

/// Data of a program that writes all the time is nevertheless written back in time.
#[test]
fn what_is_written_all_the_time_comes_down() {
    let (cached, path) = with_file();
    let below = fs::File::open(&path).unwrap();
    cached.attach(&["--max-age=1"]);
    let mut actor = Actor::new(&path);
    for (i, byte) in (0..).zip('a'..='d') {
        let mut found = [0];
        while below.read_at(&mut found, 0).unwrap() == 0 || found != [byte as u8] {
            actor.works(byte);
        }
        actor.writes(5_000 + 4096 * i, 100, byte);
    }
    actor.ends();
    cached.detach();
    assert_eq!(runs(&fs::read(&path).unwrap()[5_000..5_100]), "100a");
}

/// Blocks that the server could not announce ahead: two programs, and a child of one of them, mark
/// them themselves.
#[test]
fn blocks_in_no_order_take_few_requests() {
    const BLOCKS: u64 = 500;
    let (cached, path) = with_file();
    let mut expected = vec![b'.'; BLOCKS as usize * 4096];
    fs::write(&path, &expected).unwrap();
    let below = fs::File::open(&path).unwrap();
    cached.attach(&[]);
    let (mut ours, mut theirs) = (Actor::new(&path), Actor::new(&path));
    ours.works('a');
    theirs.works('b');
    let announcements = || cached.status()["requests"]["ioctl"].as_u64().unwrap();
    let before = announcements();
    for i in 1..300 {
        let offset = 4096 * (i * 7919 % BLOCKS) + 10;
        match i % 50 {
            0 => assert_eq!(ours.asks(&format!("fork {offset} f")), "done"),
            odd if odd % 2 == 1 => ours.writes(offset, 1, 'o'),
            _ => theirs.writes(offset, 1, 't'),
        }
        expected[offset as usize] = [b't', b'o'][(i % 2) as usize];
        if i % 50 == 0 {
            expected[offset as usize] = b'f';
        }
    }
    let announced = announcements() - before;
    assert!(announced < 30, "{announced} announcements");
    assert!(cached.status()["cache"]["dirty_bytes"].as_u64().unwrap() >= 299 * 4096);
    cached.keepstone(&["attach", "flush", path.to_str().unwrap()]);
    let mut found = vec![0; expected.len()];
    below.read_exact_at(&mut found, 0).unwrap();
    assert!(found[100..] == expected[100..]);
    ours.ends();
    theirs.ends();
    cached.detach();
}

/// Threads that write to a file at the same time do not keep each other from being delegated it.
#[test]
fn threads_are_delegated_a_file() {
    let (cached, path, mut actor) = with_actor();
    for byte in 'a'..='e' {
        assert_eq!(actor.asks(&format!("crowd {byte}")), "done");
        assert_eq!(fs::read(&path).unwrap()[70_000..], [byte as u8; 100]);
    }
    actor.ends_served();
    cached.detach();
}

/// A few large writes suffice for a delegation.
#[test]
fn few_large_writes_are_served() {
    let (cached, path, mut actor) = with_actor();
    for (byte, round) in ('a'..='j').zip(0..) {
        (0..10).for_each(|_| actor.writes(round, 1 << 20, byte));
        // A use by another process.
        assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 20) + round);
        assert_eq!(fs::read(&path).unwrap().last(), Some(&(byte as u8)));
    }
    actor.ends_served();
    cached.detach();
}

/// A file stays delegated after a close. A program that opens it again needs no requests for its
/// content.
#[test]
fn what_is_opened_again_is_still_delegated() {
    let (cached, path, mut actor) = with_actor();
    assert_eq!(actor.asks("again 30"), "done");
    let status = cached.status();
    let asked = |what: &str| status["requests"][what].as_u64().unwrap_or(0);
    // Without delegation it would be more than a hundred. On a busy machine the delegation comes
    // later.
    assert!(asked("read") + asked("write") < 40, "{status:#}");
    assert!(status["cache"]["counters"]["recalled"].as_u64().unwrap() < 5, "{status:#}");
    // Other processes see all writes, and the program sees their changes.
    let beside = path.with_extension("again");
    assert_eq!(runs(&fs::read(&beside).unwrap()), "200000a150000b");
    fs::write(&beside, [b'c'; 200_000]).unwrap();
    assert_eq!(actor.asks("again 1"), "done");
    actor.ends_served();
    cached.detach();
    assert_eq!(runs(&fs::read(cached.data().join("file.again")).unwrap()), "200000a5000b");
}

/// The library recognises a file that is created again and again by its name: only the first one is
/// written by requests.
#[test]
fn journals_are_served_from_their_first_write() {
    let (cached, _, mut actor) = with_actor();
    assert_eq!(actor.asks("journal 30"), "done");
    let writes = cached.status()["requests"]["write"].as_u64().unwrap();
    assert!(writes < 100, "{writes} writes by requests");
    actor.ends_served();
    cached.detach();
    assert_eq!(fs::read_dir(cached.data()).unwrap().count(), 1);
}

/// If a program extends a delegated file, processes that have mapped it through the kernel see the
/// growth: the program itself, and others.
#[test]
#[allow(unsafe_code)]
fn what_is_mapped_grows() {
    let (cached, path, mut actor) = with_actor();
    actor.works('a');
    assert_eq!(actor.asks("mapped 50000 b"), "b");
    actor.works('a');
    assert_eq!(actor.asks("mapped 150000 c"), "c");
    assert_eq!(actor.asks("mapped 250000 d"), "d");

    let mut other = Actor::new(&path);
    other.works('e');
    let plain = fs::File::open(&path).unwrap();
    let start = map(&plain);
    actor.works('f');
    assert!(delegated(&cached) > 0);
    for (at, byte) in [(350_000, 'g'), (450_000, 'h'), (550_000, 'i')] {
        other.writes(at, 1, byte);
        // SAFETY: the address is within the mapping.
        assert_eq!(unsafe { start.add(at as usize).read_volatile() }, byte as u8);
        actor.works('j');
    }
    assert_eq!(plain.metadata().unwrap().len(), 550_001);
    actor.ends();
    other.ends();
    // SAFETY: mapped above.
    unsafe { rustix::mm::munmap(start.cast_mut().cast(), MAPPED) }.unwrap();
    drop(plain);
    cached.detach();
}
