//! Programs under `keepstone run` that read and write files of a cache in its pool.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::attach::Cached;
use crate::common::served_child_test;

/// A program that does what it is told with one file.
struct Actor {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    fn new(file: &Path) -> Self {
        Self::by(Command::new(env!("CARGO_BIN_EXE_keepstone")), file)
    }

    /// Started by what is to start `keepstone run`.
    fn by(run: Command, file: &Path) -> Self {
        let mut run = served_child_test(run, "delegated::actor", file.as_os_str());
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
            // The first one follows what the test harness says.
            if let Some((_, answer)) = line.split_once("# ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Writes a lot to the first bytes, so that the file is delegated.
    fn works(&mut self, byte: char) {
        assert_eq!(self.asks(&format!("work {byte}")), "done");
    }

    fn writes(&mut self, offset: u64, len: usize, byte: char) {
        assert_eq!(self.asks(&format!("write {offset} {len} {byte}")), "done");
    }

    fn reads(&mut self, offset: u64, len: usize) -> String {
        self.asks(&format!("read {offset} {len}"))
    }

    /// Ends; how many calls were made in user space, and by the kernel.
    fn ends(mut self) -> (u64, u64) {
        drop(self.orders);
        let mut rest = String::new();
        self.answers.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        let report: Value = serde_json::from_str(&rest[rest.find("{\n").unwrap()..]).unwrap();
        let calls = |way: &str| report[way]["calls"].as_u64().unwrap();
        (calls("served"), calls("by_mount"))
    }
}

#[test]
#[ignore = "run by the other tests"]
#[allow(unsafe_code)]
fn actor() {
    let file = fs::File::options().read(true).write(true).open(std::env::var_os("ARG").unwrap());
    let file = file.unwrap();
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
            "write" => done(file.write_all_at(&vec![byte(3); number(2) as usize], number(1))),
            "sync" => done(file.sync_all()),
            "die" => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
                continue;
            }
            "fork" => {
                // SAFETY: the child makes calls on a descriptor, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let status = i32::from(file.write_all_at(&[byte(2)], number(1)).is_err());
                    // SAFETY: no preconditions.
                    unsafe { libc::_exit(status) };
                }
                let mut status = 0;
                // SAFETY: room for the status.
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

/// How often which byte comes: `3a2b` for `aaabb`, with `-` for zeros.
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

/// What the program writes without a request, everybody sees, and it sees what everybody does: by calls, mappings, at the end of
/// the file and beyond.
#[test]
#[allow(unsafe_code)]
fn programs_and_others_see_the_same() {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
    cached.attach(&[]);
    let mut actor = Actor::new(&path);
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
    // Sizes that the kernel has not been told of.
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

    // Pages that a program has mapped.
    // SAFETY: a mapping of the test's own, which nobody else knows.
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
        // SAFETY: within the page.
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

    // What else can become of the file meanwhile.
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

/// Two programs have one file, and neither it nor the cache minds when one of them is killed.
#[test]
fn two_programs_and_one_that_is_killed() {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
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

/// Whatever a program has written is there when the server was killed, also what it has written since.
#[test]
fn a_killed_server_loses_nothing_of_programs() {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
    cached.attach(&[]);
    let mut actor = Actor::new(&path);
    actor.works('a');
    actor.writes(4_000, 200, 'b');
    cached.kill_server();
    actor.writes(4_100, 10, 'c');
    assert_eq!(actor.reads(4_000, 200), "100b10c90b");
    assert_eq!(actor.asks("sync"), "done");
    rustix::mount::unmount(cached.data(), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(runs(&fs::read(&path).unwrap()), "", "nothing was written back");

    // Who serves the pool now has it alone.
    cached.attach(&[]);
    let not_connected = format!("error {}", libc::ENOTCONN);
    assert_eq!(actor.asks("write 0 1 d"), not_connected);
    assert_eq!(runs(&fs::read(&path).unwrap()), "100a3900-100b10c90b");
    actor.ends();
    cached.detach();
    assert_eq!(runs(&fs::read(&path).unwrap()), "100a3900-100b10c90b");
}

/// Who may not open the pool has the same files, by requests.
#[test]
fn a_user_who_may_not_open_the_pool() {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
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

/// A program that writes all the time is written back all the same, in time.
#[test]
fn what_is_written_all_the_time_comes_down() {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
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
