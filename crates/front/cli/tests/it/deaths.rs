//! Commands that are killed while programs use the pool.
//!
//! Each command that changes a pool is killed at many points: at system calls, and between them.
//! Wherever that is, its work is done or not begun; programs that use the pool have no error; and
//! nothing is left behind that is not used by the same command when it is given again.
//!
//! `KEEPSTONE_KILLS` is the number of points for each command (`make campaign` tries more).
//!
//! Needs root and `/dev/fuse`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::common::killed::{self, KillPoint, SystemCall};
use crate::common::parts::{MountedPart, used};
use crate::common::{Sandbox, library, tool, wait_until};

/// Points at which each command is killed, unless `KEEPSTONE_KILLS` is set.
const KILLS: usize = 6;

/// Every second kill comes a number of instructions after a system call: a power of two, of which
/// this is the greatest logarithm.
const INSTRUCTIONS_LOG2_MAX: u64 = 16;

/// Bytes by which directories and tables of the pool may become longer: they do not become shorter.
/// All kills of a command together may take no more.
const TABLES: u64 = 32 << 10;

/// The work of a writer: files that have the same size after each round.
const WRITER: &str = r#"
    use strict; my ($dir, $stop) = @ARGV; $| = 1; my $n = 0;
    while (<STDIN>) {
        while (! -e $stop) {
            $n++;
            open my $f, ">", "$dir/new" or die "open: $!"; print $f sprintf("%08d\n", $n) x 3000; close $f or die "close: $!";
            rename "$dir/new", "$dir/whole" or die "rename: $!";
            mkdir "$dir/d" or die "mkdir: $!"; rmdir "$dir/d" or die "rmdir: $!";
            open $f, "+<", "$dir/whole" or die "open: $!"; my $r = <$f>; $r == $n or die "read: $r";
            seek $f, 9000, 0; print $f "over"; close $f or die "close: $!";
        }
        print "stopped\n";
    }
"#;

/// Two programs that write to a mounted pool, one through the mount and one by direct access.
struct Writers {
    programs: Vec<(Child, BufReader<std::process::ChildStdout>)>,
    stop: PathBuf,
}

impl Writers {
    fn new(s: &Sandbox) -> Self {
        let stop = s.outside("stop");
        fs::write(&stop, "").unwrap();
        let start = |of: &str, mut program: Command| {
            let dir = s.path(of);
            fs::create_dir_all(&dir).unwrap();
            program.args(["perl", "-e", WRITER]).arg(&dir).arg(&stop);
            let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            (child, output)
        };
        let mut direct = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        direct.env("KEEPSTONE_LIBRARY", library()).args(["run", "--quiet", "--"]);
        let programs = vec![start("through", Command::new("env")), start("direct", direct)];
        let mut writers = Self { programs, stop };
        // Files of both exist from now on.
        writers.write_during(|| wait_until("both write", || has_written(s)));
        writers
    }

    /// Lets the programs write while `work` runs. None of them may fail.
    fn write_during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        fs::remove_file(&self.stop).unwrap();
        for (program, _) in &mut self.programs {
            program.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        let done = work();
        fs::write(&self.stop, "").unwrap();
        for (_, output) in &mut self.programs {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, "stopped\n", "a program that uses the pool has failed");
        }
        done
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for (program, _) in &mut self.programs {
            drop(program.stdin.take());
            let _ = program.wait();
        }
    }
}

fn has_written(s: &Sandbox) -> bool {
    ["through", "direct"].iter().all(|of| s.path(of).join("whole").exists())
}

/// The visible work of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    NotBegun,
    /// Something is left that the documents name, and that the same command finishes or replaces.
    Begun,
    Done,
    /// The command may be repeated at any time.
    Unknown,
}

/// A command that is killed, and what can be seen of it.
struct Scenario<'a> {
    args: Vec<String>,
    /// Makes the state in which the command is given.
    prepare: Box<dyn Fn() + 'a>,
    /// Returns what the command has done. Fails if that is neither all nor nothing.
    seen: Box<dyn Fn() -> Seen + 'a>,
    /// Takes back what the command has done.
    undo: Box<dyn Fn() + 'a>,
    /// The exit status of a command that has done its work.
    success: i32,
}

impl<'a> Scenario<'a> {
    fn new(args: &[&str]) -> Self {
        Self {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            prepare: Box::new(|| {}),
            seen: Box::new(|| Seen::Unknown),
            undo: Box::new(|| {}),
            success: 0,
        }
    }

    fn prepare(self, prepare: impl Fn() + 'a) -> Self {
        Self { prepare: Box::new(prepare), ..self }
    }

    fn seen(self, seen: impl Fn() -> Seen + 'a) -> Self {
        Self { seen: Box::new(seen), ..self }
    }

    fn undo(self, undo: impl Fn() + 'a) -> Self {
        Self { undo: Box::new(undo), ..self }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs the command to its end, and checks that its work is done. Returns the number of its
    /// system calls.
    fn run(&self) -> usize {
        let ended = killed::run(self.command(), has_begun, None);
        assert_eq!(ended.code, Some(self.success), "{:?}", self.args);
        self.expect_done();
        ended.calls
    }

    fn expect_done(&self) {
        let seen = (self.seen)();
        assert!(matches!(seen, Seen::Done | Seen::Unknown), "{seen:?}: {:?}", self.args);
    }

    /// Kills the command at many points.
    fn kill_everywhere(&self, s: &Sandbox, mut writers: Option<&mut Writers>) {
        let kills = std::env::var("KEEPSTONE_KILLS").map_or(KILLS, |n| n.parse().unwrap());
        // The first run may extend tables of the pool.
        let calls = [(); 2].map(|()| {
            (self.prepare)();
            let calls = match &mut writers {
                Some(writers) => writers.write_during(|| self.run()),
                None => self.run(),
            };
            (self.undo)();
            calls
        })[1];
        assert!(calls > 0, "{:?}", self.args);
        let before = Left::of(s);
        let mut random = rng::Rng::new(7);
        for n in 0..kills {
            let call = 1 + n * calls / kills;
            let instructions =
                if n % 2 == 0 { 0 } else { 1 << random.below(INSTRUCTIONS_LOG2_MAX + 1) };
            let point = KillPoint { call, instructions };
            (self.prepare)();
            let kill = || killed::run(self.command(), has_begun, Some(point));
            let ended = match &mut writers {
                Some(writers) => writers.write_during(kill),
                None => kill(),
            };
            let seen = (self.seen)();
            let at = format!("{point:?} of {calls} calls, {seen:?}: {:?}", self.args);
            eprintln!("{at}");
            // Counts of calls differ from run to run, so it may have ended before.
            assert!(ended.code.is_none_or(|code| code == self.success), "{at}: {ended:?}");
            assert!(ended.code.is_none() || seen != Seen::NotBegun, "{at}: {ended:?}");
            if seen != Seen::Done {
                let again = self.command().stderr(Stdio::piped()).output().unwrap();
                // A repair may find that the killed one has repaired all.
                let codes = [Some(0), Some(self.success)];
                assert!(codes.contains(&again.status.code()), "{at}: {again:?}");
                self.expect_done();
            }
            (self.undo)();
            before.is_again(s, &at);
        }
    }
}

/// Where the counting of system calls begins: the command locks a pool, or makes a file.
fn has_begun(&(number, args): &SystemCall) -> bool {
    let makes = |flags: u64| {
        let flags = flags as i32 & !libc::O_DIRECTORY;
        flags & (libc::O_CREAT | libc::O_TMPFILE) != 0
    };
    match number {
        libc::SYS_flock => true,
        libc::SYS_open => makes(args[1]),
        libc::SYS_openat => makes(args[2]),
        _ => false,
    }
}

/// All that a command could leave behind.
#[derive(Debug)]
struct Left {
    used: u64,
    descriptors: usize,
    files: BTreeSet<PathBuf>,
}

impl Left {
    fn of(s: &Sandbox) -> Self {
        let server = s.servers.last().unwrap();
        let descriptors = fs::read_dir(format!("/proc/{server}/fd")).unwrap().count();
        let info: Value = serde_json::from_str(&s.ok(["info", "--json", s.pool_str()])).unwrap();
        let uuid = info["uuid"].as_str().unwrap().to_owned();
        let name = s.pool.file_name().unwrap().to_str().unwrap();
        let is_of_pool = |file: &Path| {
            let file = file.to_string_lossy();
            file.contains(&uuid) || file.contains(&uuid.replace('-', "")) || file.contains(name)
        };
        let shared = format!("/dev/shm/keepstone-{}", rustix::process::geteuid().as_raw());
        let places = [Path::new("/dev/shm"), Path::new(&shared), Path::new("/run/keepstone")];
        let of_pool = places.into_iter().flat_map(files_in).filter(|file| is_of_pool(file));
        let files = of_pool.chain(files_in(&s.outside(""))).collect();
        Self { used: used(s), descriptors, files }
    }

    /// Waits until no more is left than before.
    fn is_again(&self, s: &Sandbox, at: &str) {
        assert_eq!(Self::of(s).files, self.files, "{at}");
        wait_until(&format!("no more than {self:?} is left after {at}"), || {
            let now = Self::of(s);
            let is_back = now.used <= self.used + TABLES && now.descriptors <= self.descriptors;
            if !is_back {
                eprintln!("{} bytes used, {} descriptors", now.used, now.descriptors);
            }
            is_back
        });
    }
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !path.ends_with("stop")).collect()
}

/// Files in `kept` of a pool.
const FILES: usize = 60;

fn content(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; 3 * 4096 + n]
}

/// Makes a tree in `kept` of a mounted pool.
fn make_tree(s: &Sandbox) {
    for n in 0..FILES {
        let dir = s.path(&format!("kept/{}", n % 5));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(n.to_string()), content(n)).unwrap();
    }
    fs::write(s.path("kept/large"), vec![9; 8 << 20]).unwrap();
}

/// Checks that a directory has all of that tree, and no more.
fn check_tree(dir: &Path) {
    for n in 0..FILES {
        let file = dir.join(format!("{}/{n}", n % 5));
        assert!(fs::read(&file).unwrap() == content(n), "{}", file.display());
    }
    assert!(fs::read(dir.join("large")).unwrap() == vec![9; 8 << 20]);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 6);
}

fn mounted(layout: &str) -> Sandbox {
    let s = Sandbox::mounted_as(layout, &["-o", "direct"]);
    make_tree(&s);
    s
}

/// Unmounts the pool, which must be sound.
fn check(s: Sandbox, writers: Writers) {
    drop(writers);
    check_tree(&s.path("kept"));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

fn json(s: &Sandbox, args: &[&str]) -> Value {
    serde_json::from_str(&s.ok([&["--json"], args].concat())).unwrap()
}

/// Returns the snapshots of the pool, and whether each is complete.
fn snapshots(s: &Sandbox) -> Vec<(String, bool)> {
    let list = json(s, &["snapshot", "list", s.pool_str()])["snapshots"].clone();
    let all = list.as_array().unwrap().iter();
    all.map(|one| (one["name"].as_str().unwrap().to_owned(), one["is_incomplete"] != true))
        .collect()
}

/// Returns what has been done of a snapshot.
fn snapshot_seen(s: &Sandbox, name: &str) -> Seen {
    match snapshots(s).iter().find(|(found, _)| found == name) {
        None => Seen::NotBegun,
        Some((_, false)) => Seen::Begun,
        Some((_, true)) => {
            check_tree(&s.path(&format!(".snapshots/{name}/kept")));
            Seen::Done
        }
    }
}

#[test]
fn snapshot_create() {
    let s = mounted("bpfs");
    let mut writers = Writers::new(&s);
    Scenario::new(&["snapshot", "create", s.pool_str(), "x"])
        .seen(|| snapshot_seen(&s, "x"))
        .undo(|| drop(s.ok(["snapshot", "delete", s.pool_str(), "x"])))
        .kill_everywhere(&s, Some(&mut writers));
    check(s, writers);
}

#[test]
fn snapshot_delete_and_prune() {
    let s = mounted("bpfs");
    let mut writers = Writers::new(&s);
    let create = |name: &str| drop(s.ok(["snapshot", "create", s.pool_str(), name]));
    Scenario::new(&["snapshot", "delete", s.pool_str(), "x"])
        .prepare(|| create("x"))
        .seen(|| match snapshot_seen(&s, "x") {
            Seen::NotBegun => Seen::Done,
            Seen::Done => Seen::NotBegun,
            other => other,
        })
        .kill_everywhere(&s, Some(&mut writers));
    Scenario::new(&["snapshot", "prune", s.pool_str(), "--keep", "1", "--prefix", "p-"])
        .prepare(|| ["p-1", "p-2", "p-3"].map(create).into_iter().collect())
        .seen(|| {
            assert_eq!(snapshot_seen(&s, "p-3"), Seen::Done);
            match snapshots(&s).len() {
                1 => Seen::Done,
                3 => Seen::NotBegun,
                _ => Seen::Begun,
            }
        })
        .undo(|| drop(s.ok(["snapshot", "delete", s.pool_str(), "p-3"])))
        .kill_everywhere(&s, Some(&mut writers));
    check(s, writers);
}

/// Returns what has been done of the branch `b`.
fn branch_seen(s: &Sandbox) -> Seen {
    let list = json(s, &["branch", "list", s.pool_str()])["branches"].clone();
    let all = list.as_array().unwrap();
    let is_finished = |branch: &Value| branch["name"] == "b" && branch["is_finished"] == true;
    if all.iter().any(is_finished) {
        let b = MountedPart::new(s, "b");
        check_tree(&b.path("kept"));
        return Seen::Done;
    }
    if all.is_empty() { Seen::NotBegun } else { Seen::Begun }
}

#[test]
fn branch_create_and_discard() {
    let s = mounted("bpfs");
    let mut writers = Writers::new(&s);
    let (create, discard) =
        (["branch", "create", s.pool_str(), "b"], ["branch", "discard", s.pool_str(), "b"]);
    Scenario::new(&create)
        .seen(|| branch_seen(&s))
        .undo(|| drop(s.ok(discard)))
        .kill_everywhere(&s, Some(&mut writers));
    Scenario::new(&discard)
        .prepare(|| drop(s.ok(create)))
        .seen(|| match branch_seen(&s) {
            Seen::NotBegun => Seen::Done,
            Seen::Done => Seen::NotBegun,
            other => other,
        })
        .kill_everywhere(&s, Some(&mut writers));
    check(s, writers);
}

#[test]
fn branch_commit() {
    let s = mounted("bpfs");
    let writers = Writers::new(&s);
    let [create, discard, commit] =
        ["create", "discard", "commit"].map(|verb| ["branch", verb, s.pool_str(), "b"]);
    let marker = s.path("marker");
    Scenario::new(&commit)
        .prepare(|| {
            s.ok(create);
            let b = MountedPart::new(&s, "b");
            fs::write(b.path("marker"), content(200)).unwrap();
        })
        .seen(|| {
            let is_there = marker.exists();
            assert!(!is_there || fs::read(&marker).unwrap() == content(200));
            check_tree(&s.path("kept"));
            match (is_there, branch_seen(&s)) {
                (true, Seen::Done) => panic!("the branch is committed, and still there"),
                (true, _) => Seen::Done,
                (false, Seen::Done) => Seen::NotBegun,
                (false, _) => panic!("the branch is gone, and not committed"),
            }
        })
        .undo(|| {
            fs::remove_file(&marker).unwrap();
            // The next command on branches removes what a killed one has left.
            s.ok(create);
            s.ok(discard);
        })
        .kill_everywhere(&s, None);
    check(s, writers);
}

fn clone_in(layout: &str) {
    let s = mounted(layout);
    let mut writers = Writers::new(&s);
    let [from, to] = ["kept", "copy"].map(|name| s.path(name).to_str().unwrap().to_owned());
    let copy = Path::new(&to);
    Scenario::new(&["clone", &from, &to])
        .seen(|| {
            if !copy.exists() {
                return Seen::NotBegun;
            }
            check_tree(copy);
            Seen::Done
        })
        .undo(|| {
            fs::remove_dir_all(copy).unwrap();
            // The documented rest of a copy in a pool whose files do not share blocks.
            for entry in fs::read_dir(&s.dir).unwrap().flatten() {
                if entry.file_name().to_str().unwrap().starts_with(".copy.clone-") {
                    assert_eq!(layout, "scmfs");
                    fs::remove_dir_all(entry.path()).unwrap();
                }
            }
        })
        .kill_everywhere(&s, Some(&mut writers));
    check(s, writers);
}

#[test]
fn clone() {
    clone_in("bpfs");
}

#[test]
fn clone_by_copies() {
    clone_in("scmfs");
}

#[test]
fn send_and_receive() {
    let s = mounted("bpfs");
    let mut writers = Writers::new(&s);
    s.ok(["snapshot", "create", s.pool_str(), "base"]);
    let (stream, rest) = (s.outside("stream"), s.outside("rest"));
    let base = format!("{}@base", s.pool_str());
    let file = stream.to_str().unwrap();
    s.ok(["send", &base, "-o", file]);
    let whole = fs::read(&stream).unwrap();
    fs::remove_file(&stream).unwrap();
    Scenario::new(&["send", &base, "-o", file])
        .seen(|| match fs::read(&stream) {
            Ok(found) => {
                assert!(found == whole, "the stream is not whole");
                Seen::Done
            }
            Err(_) => Seen::NotBegun,
        })
        .undo(|| fs::remove_file(&stream).unwrap())
        .kill_everywhere(&s, Some(&mut writers));

    fs::write(&stream, &whole).unwrap();
    fs::write(&rest, "").unwrap();
    let to = format!("{}@copy", s.pool_str());
    let delete = || drop(s.ok(["snapshot", "delete", s.pool_str(), "copy"]));
    Scenario::new(&["receive", &to, file])
        .seen(|| snapshot_seen(&s, "copy"))
        .undo(delete)
        .kill_everywhere(&s, Some(&mut writers));
    // The receiver keeps the part that has come. Given its token, the sender leaves that out.
    let resumed = || {
        let seen = snapshot_seen(&s, "copy");
        if seen == Seen::Begun {
            let list = json(&s, &["snapshot", "list", s.pool_str()])["snapshots"].clone();
            let copy = list.as_array().unwrap().iter().find(|one| one["name"] == "copy");
            let token = copy.unwrap()["token"].as_str().unwrap();
            s.ok(["send", &base, "--resume", token, "-o", rest.to_str().unwrap()]);
            s.ok(["receive", &to, rest.to_str().unwrap()]);
            return snapshot_seen(&s, "copy");
        }
        seen
    };
    Scenario::new(&["receive", &to, file])
        .seen(resumed)
        .undo(delete)
        .kill_everywhere(&s, Some(&mut writers));
    s.ok(["snapshot", "delete", s.pool_str(), "base"]);
    check(s, writers);
}

#[test]
fn trim_and_export() {
    let s = mounted("bpfs");
    let mut writers = Writers::new(&s);
    Scenario::new(&["trim", s.dir_str()])
        .prepare(|| {
            fs::write(s.path("gone"), vec![1; 8 << 20]).unwrap();
            fs::remove_file(s.path("gone")).unwrap();
        })
        .kill_everywhere(&s, Some(&mut writers));
    s.ok(["snapshot", "create", s.pool_str(), "base"]);
    let archive = s.outside("archive");
    let base = format!("{}@base", s.pool_str());
    Scenario::new(&["export", &base, "-o", archive.to_str().unwrap()])
        .seen(|| {
            if !archive.exists() {
                return Seen::NotBegun;
            }
            let listed = tool("tar", &["-tf", archive.to_str().unwrap()]);
            assert_eq!(listed.lines().filter(|path| path.contains("kept/")).count(), FILES + 7);
            Seen::Done
        })
        .undo(|| fs::remove_file(&archive).unwrap())
        .kill_everywhere(&s, Some(&mut writers));
    s.ok(["snapshot", "delete", s.pool_str(), "base"]);
    check(s, writers);
}

/// A pool that no program uses, beside the one that is in use.
struct Unused {
    s: Sandbox,
    pool: String,
}

impl Unused {
    fn new(layout: &str) -> Self {
        let s = mounted("bpfs");
        let pool = s.outside("other").to_str().unwrap().to_owned();
        s.ok(["mkfs", &pool, "--size", "64M", "--layout", layout]);
        let unused = Self { s, pool };
        unused.change(|dir| {
            fs::create_dir(dir.join("kept")).unwrap();
            fs::write(dir.join("kept/file"), content(3)).unwrap();
        });
        unused
    }

    /// Changes files of the pool.
    fn change(&self, work: impl FnOnce(&Path)) {
        let dir = self.s.outside("of-other");
        fs::create_dir(&dir).unwrap();
        self.s.ok(["mount", &self.pool, dir.to_str().unwrap()]);
        work(&dir);
        self.s.ok(["umount", dir.to_str().unwrap()]);
        fs::remove_dir(&dir).unwrap();
    }

    /// Returns the pool with damage that one `check --repair` repairs.
    fn damaged(&self) -> Vec<u8> {
        let sound = fs::read(&self.pool).unwrap();
        let code = |args: &[&str]| self.s.run([args, &[&self.pool]].concat()).status.code();
        let repaired = |word: usize| {
            let mut bytes = sound.clone();
            bytes[word..][..8].fill(0xa5);
            fs::write(&self.pool, &bytes).unwrap();
            let is_repaired =
                code(&["check", "--repair"]) == Some(1) && code(&["check"]) == Some(0);
            is_repaired.then_some(bytes)
        };
        // Words of the blocks after those of the pool itself.
        let is_used = |word: &usize| sound[*word..][..8] != [0; 8];
        let words = (16..512).map(|block| block * 4096).filter(is_used);
        let damaged =
            words.flat_map(|block| [0, 8, 24].map(|word| block + word)).find_map(repaired);
        fs::write(&self.pool, &sound).unwrap();
        damaged.expect("damage that can be repaired")
    }

    /// Checks that a pool is sound, and returns its size in bytes.
    fn size(&self, pool: &str) -> u64 {
        self.s.ok(["check", pool]);
        json(&self.s, &["info", pool])["size_bytes"].as_u64().unwrap()
    }
}

#[test]
fn mkfs_and_clone_pool() {
    let other = Unused::new("bpfs");
    let (s, pool) = (&other.s, &*other.pool);
    let new = s.outside("new");
    let made = || {
        if !new.exists() {
            return Seen::NotBegun;
        }
        assert_eq!(other.size(new.to_str().unwrap()), 64 << 20);
        Seen::Done
    };
    let remove = || fs::remove_file(&new).unwrap();
    for args in [
        &["mkfs", new.to_str().unwrap(), "--size", "64M"][..],
        &["mkfs", new.to_str().unwrap(), "--size", "64M", "--thick"],
        &["mkfs", new.to_str().unwrap(), "--size", "64M", "--layout", "scmfs"],
        &["clone-pool", pool, new.to_str().unwrap()],
    ] {
        Scenario::new(args).seen(made).undo(remove).kill_everywhere(s, None);
    }
}

fn resize_and_repair(layout: &str) {
    let other = Unused::new(layout);
    let (s, pool) = (&other.s, &*other.pool);
    let resize = |size: &str| drop(s.ok(["resize", pool, size]));
    for (from, to) in [("64M", "96M"), ("96M", "48M")] {
        let bytes = |size: &str| size.trim_end_matches('M').parse::<u64>().unwrap() << 20;
        Scenario::new(&["resize", pool, to])
            .prepare(|| resize(from))
            .seen(|| match other.size(pool) {
                size if size == bytes(from) => Seen::NotBegun,
                size if size == bytes(to) => Seen::Done,
                size => panic!("{size} bytes"),
            })
            .kill_everywhere(s, None);
    }
    let damaged = other.damaged();
    let repair = Scenario::new(&["check", "--repair", pool])
        .prepare(|| fs::write(pool, &damaged).unwrap())
        .seen(|| match s.run(["check", pool]).status.code() {
            Some(0) => Seen::Done,
            Some(1) => Seen::Begun,
            code => panic!("{code:?}"),
        });
    Scenario { success: 1, ..repair }.kill_everywhere(s, None);
}

#[test]
fn resize_and_repair_bpfs() {
    resize_and_repair("bpfs");
}

#[test]
fn resize_and_repair_scmfs() {
    resize_and_repair("scmfs");
}

#[test]
fn rollback() {
    let other = Unused::new("bpfs");
    let (s, pool) = (&other.s, &*other.pool);
    s.ok(["snapshot", "create", pool, "without"]);
    other.change(|dir| fs::write(dir.join("kept/marker"), content(5)).unwrap());
    s.ok(["snapshot", "create", pool, "with"]);
    let differs = |name: &str| !s.ok(["snapshot", "diff", pool, name]).is_empty();
    Scenario::new(&["snapshot", "rollback", pool, "without"])
        .prepare(|| drop(s.ok(["snapshot", "rollback", pool, "with"])))
        .seen(|| {
            s.ok(["check", pool]);
            match (differs("with"), differs("without")) {
                (false, true) => Seen::NotBegun,
                (true, false) => Seen::Done,
                state => panic!("{state:?}"),
            }
        })
        .kill_everywhere(s, None);
}

/// A server is killed while it makes its pool from a saved one, while it serves, and while it saves
/// the pool.
#[test]
fn restore_and_save() {
    let other = Unused::new("bpfs");
    let s = &other.s;
    let (pool, saved, dir) = (s.outside("memory"), s.outside("saved"), s.outside("of-memory"));
    fs::create_dir(&dir).unwrap();
    fs::copy(&other.pool, &saved).unwrap();
    let at = [&pool, &saved, &dir].map(|path| path.to_str().unwrap().to_owned());
    let [pool, saved, dir] = [&*at[0], &*at[1], &*at[2]];
    let life = |point| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["mount", "--foreground", "--restore", saved, "--save", saved, pool, dir]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Unmounts what the server has mounted, dead or alive.
            let ending = scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    if is_mounted(dir) {
                        let _ = s.run(["umount", dir]);
                    }
                    std::thread::yield_now();
                }
                if is_mounted(dir) {
                    s.ok(["umount", "--lazy", dir]);
                }
            });
            let ended = killed::run(command, has_begun, point);
            has_ended.store(true, Ordering::Relaxed);
            ending.join().unwrap();
            ended
        })
    };
    let run = || {
        let ended = life(None);
        assert_eq!(ended.code, Some(0));
        fs::remove_file(pool).unwrap();
        ended.calls
    };
    run();
    let calls = run();
    let kills = std::env::var("KEEPSTONE_KILLS").map_or(KILLS, |n| n.parse().unwrap());
    let before = Left::of(s);
    for n in 0..kills {
        let point = KillPoint { call: 1 + n * calls / kills, instructions: 100 * (n % 2) };
        life(Some(point));
        assert_eq!(other.size(saved), 64 << 20, "{point:?}");
        if Path::new(pool).exists() {
            assert_eq!(other.size(pool), 64 << 20, "{point:?}");
        }
        run();
        before.is_again(s, &format!("{point:?} of {calls} calls"));
    }
}

fn is_mounted(dir: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == Some(dir))
}
