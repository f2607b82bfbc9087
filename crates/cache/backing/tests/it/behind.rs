//! Tests of the kernel's reports of changes by other processes, which are children of this process
//! here.

use crate::common::{Disk, KINDS, directory, file, open, open_without_handles, room};
use backing::{Backing as _, Change, DirFs, DirOptions, Opening, Reach, Watch};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use vfs::{Errno, FileSystem as _, Ino, ROOT, SetAttr};

/// The time after which a test gives up waiting.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a script in a directory as another process.
fn others(dir: &Path, script: &str) {
    let status = Command::new("sh").args(["-euc", script]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Keys of inodes, with the numbers by which a caller knows them.
type Known = Vec<(Vec<u8>, Ino)>;

/// Returns the keys of referenced inodes.
fn known<const N: usize>(fs: &DirFs, inos: [Ino; N]) -> Known {
    let key = |ino| fs.key(&fs.identity(ino).unwrap().0).to_vec();
    inos.map(|ino| (key(ino), ino)).into()
}

/// Collects reports until all `expected` changes were among them.
fn told(fs: &DirFs, known: &Known, expected: &[Change]) -> BTreeSet<Change> {
    let until = Instant::now() + LIMIT;
    let number = |key: &[u8]| known.iter().find(|(of, _)| of == key).map(|(_, ino)| *ino);
    let mut told = BTreeSet::new();
    while !expected.iter().all(|change| told.contains(change)) {
        assert!(Instant::now() < until, "{told:?} and not {expected:?}");
        fs.wait_for_changes(Duration::from_millis(100), &number, &mut |change| {
            told.insert(change);
        })
        .unwrap();
    }
    told
}

fn name(dir: Ino, name: &str) -> Change {
    Change::Name(dir, name.into())
}

fn changes_are_told(path: &Path, fs: &DirFs) {
    let (f, d) = (file(fs, ROOT, b"f"), directory(fs, ROOT, b"d"));
    let g = file(fs, d, b"g");
    let known = known(fs, [ROOT, f, d, g]);
    for (script, expected) in [
        ("echo more >>f", &[Change::Content(f)][..]),
        ("chmod 600 f", &[Change::Attributes(f)]),
        ("touch -d @1 d/g", &[Change::Attributes(g)]),
        ("ln f d/h", &[Change::Attributes(f), name(d, "h")]),
        ("mv d/h h", &[name(d, "h"), name(ROOT, "h")]),
        ("rm h; mkdir e", &[Change::Attributes(f), name(ROOT, "h"), name(ROOT, "e")]),
        ("truncate -s 1 d/g", &[Change::Content(g)]),
        ("chmod 700 d", &[Change::Attributes(d)]),
    ] {
        // This process changes the same places.
        fs.write(f, 0, b"own").unwrap();
        fs::write(path.join("d/own"), b"own").unwrap();
        fs::remove_file(path.join("d/own")).unwrap();
        let set = SetAttr { perm: Some(0o644), ..SetAttr::default() };
        fs.setattr(&vfs::Caller::ROOT, f, &set).unwrap();
        others(path, script);
        let told = told(fs, &known, expected);
        let own = [name(d, "own"), Change::Lost];
        assert!(own.iter().all(|own| !told.contains(own)), "{script}: {told:?}");
        let has_content = told.contains(&Change::Content(f));
        assert_eq!(has_content, script.contains(">>f"), "{script}: {told:?}");
    }
}

#[test]
fn what_others_change_is_told_and_nothing_else() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        let fs = open(&path);
        let dir = fs::File::open(&path).unwrap();
        assert_eq!(fs.watch(Watch::Notify), Ok(Reach::Whole), "{kind}");
        // The watch also covers the directory below what is mounted over it.
        let _over = disk.mount_over("d");
        let below = format!("/proc/{}/fd/{}", std::process::id(), dir.as_raw_fd());
        changes_are_told(Path::new(&below), &fs);
    }
}

#[test]
fn who_may_less_is_told_of_directories() {
    let mut fewer = capabilities(None).unwrap();
    fewer.effective -= CapabilitySet::SYS_ADMIN;
    for open in [open, open_without_handles] {
        let disk = Disk::new("ext4");
        let path = disk.dir("d");
        let fs = open(&path);
        let all = capabilities(None).unwrap();
        set_capabilities(None, fewer).unwrap();
        assert_eq!(fs.watch(Watch::Permission), Err(Errno::PERM));
        assert_eq!(fs.watch(Watch::Notify), Ok(Reach::Directories));
        changes_are_told(&path, &fs);
        set_capabilities(None, all).unwrap();
    }
}

fn changes_are_told_by_keys(path: &Path, fs: &DirFs) {
    let (f, d) = (file(fs, ROOT, b"f"), directory(fs, ROOT, b"d"));
    let mut known = known(fs, [f, d, ROOT]);
    // The caller's own numbers.
    known.iter_mut().zip(100..).for_each(|((_, ino), own)| *ino = Ino(own));
    fs.sync().unwrap();
    [f, d].into_iter().for_each(|ino| fs.forget(ino, 1));
    assert_eq!(fs.nodes_held(), 1, "only the root");
    fs::write(path.join("own"), b"own").unwrap();
    others(path, "echo more >>f; chmod 700 d; touch new; touch d/in; mkdir other; touch other/x");
    let [f, d, root] = [100, 101, 102].map(Ino);
    let expected = [Change::Content(f), Change::Attributes(d), name(root, "new"), name(d, "in")];
    let told = told(fs, &known, &expected);
    let more = [name(root, "other"), Change::Attributes(root)];
    assert!(told.iter().all(|c| expected.contains(c) || more.contains(c)), "{told:?}");
}

/// A caller that holds no references knows inodes by the keys of their identities.
#[test]
fn what_is_not_referenced_is_told_by_keys() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        let fs = open(&path);
        assert_eq!(fs.watch(Watch::Notify), Ok(Reach::Whole), "{kind}");
        changes_are_told_by_keys(&path, &fs);
    }
    let mut fewer = capabilities(None).unwrap();
    fewer.effective -= CapabilitySet::SYS_ADMIN;
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let all = capabilities(None).unwrap();
    set_capabilities(None, fewer).unwrap();
    assert_eq!(fs.watch(Watch::Notify), Ok(Reach::Directories));
    changes_are_told_by_keys(&path, &fs);
    set_capabilities(None, all).unwrap();
}

#[test]
fn where_it_cannot_be_told_that_is_said() {
    let proc = DirFs::open(Path::new("/sys/kernel"), DirOptions::default()).unwrap();
    assert_eq!(proc.watch(Watch::Notify), Err(Errno::OPNOTSUPP));
    assert_eq!(proc.watch(Watch::Off), Ok(Reach::Whole));
    let mut tell = |_| panic!("nothing is told");
    let waited = proc.wait_for_changes(Duration::ZERO, &|_| None, &mut tell);
    assert_eq!(waited, Err(Errno::OPNOTSUPP));
}

/// Tests that a loss of reports is reported, after more changes than the kernel queues.
#[test]
fn a_loss_is_told() {
    let disk = Disk::new("tmpfs");
    let path = disk.dir("d");
    let fs = open(&path);
    let (f, _d) = (file(&fs, ROOT, b"f"), directory(&fs, ROOT, b"d"));
    let known = known(&fs, [f]);
    fs.watch(Watch::Notify).unwrap();
    let most = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap();
    others(&path, &format!("i=0; while [ $i -le {} ]; do : >d/$i; i=$((i+1)); done", most.trim()));
    told(&fs, &known, &[Change::Lost]);
    // Further changes are reported as before.
    others(&path, "echo more >>f");
    told(&fs, &known, &[Change::Content(f)]);
}

/// Ends a thread when it is dropped, also if a test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Runs `test` while another thread takes openings, which arrive through the channel.
fn with_openings(fs: &DirFs, test: impl FnOnce(&Receiver<Opening>)) {
    let (sender, openings) = channel();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Ended(&has_ended);
        scope.spawn(|| {
            let sender = sender;
            while !has_ended.load(SeqCst) {
                let mut tell = |opening| sender.send(opening).unwrap();
                fs.wait_for_openings(Duration::from_millis(50), &mut tell).unwrap();
            }
        });
        test(&openings);
        drop(end);
    });
}

fn reader(path: &Path) -> Child {
    let mut cat = Command::new("cat");
    cat.arg(path).stdout(Stdio::piped()).stderr(Stdio::piped());
    cat.spawn().unwrap()
}

/// Waits until a process is inside `openat(2)`, where it waits for an answer.
fn until_it_opens(child: &Child) {
    let call = format!("/proc/{}/syscall", child.id());
    let openat = format!("{} ", libc::SYS_openat);
    let until = Instant::now() + LIMIT;
    let mut looks = 0;
    // Several looks exclude a call that was under way by chance.
    while looks < 20 {
        assert!(Instant::now() < until, "it opens nothing");
        std::thread::sleep(Duration::from_millis(1));
        let call = fs::read_to_string(&call).unwrap_or_default();
        looks = if call.starts_with(&openat) { looks + 1 } else { 0 };
    }
}

fn output(reader: Child) -> Result<String, String> {
    let output = reader.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn who_opens_a_file_by_a_guarded_name_waits() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        let fs = open(&path);
        assert_eq!(fs.watch(Watch::Permission), Ok(Reach::Whole), "{kind}");
        let dir = directory(&fs, ROOT, b"guarded");
        let (f, g) = (file(&fs, dir, b"f"), file(&fs, ROOT, b"g"));
        fs.write(f, 0, b"old").unwrap();
        fs.write(g, 0, b"free").unwrap();
        fs.guard_names(dir).unwrap();
        let [(key, _)] = &known(&fs, [f])[..] else { unreachable!("one inode") };
        let f_path = path.join("guarded/f");
        with_openings(&fs, |openings| {
            assert_eq!(output(reader(&path.join("g"))).unwrap(), "free");
            let waiting = reader(&f_path);
            let opening = openings.recv_timeout(LIMIT).unwrap();
            assert_eq!((&opening.key, opening.pid), (key, waiting.id()));
            // Openings by this process do not wait.
            assert_eq!(fs::read(&f_path).unwrap(), b"old");
            fs.write(f, 0, b"new").unwrap();
            drop(opening);
            assert_eq!(output(waiting).unwrap(), "new", "{kind}");
            assert!(openings.try_recv().is_err());
        });
        // Nothing answers any more, whether or not the opening was reported (behind-D5).
        let waiting = [reader(&f_path), reader(&f_path)];
        waiting.iter().for_each(until_it_opens);
        drop(fs);
        for waiting in waiting {
            assert_eq!(output(waiting).unwrap(), "new");
        }
    }
}

/// Tests that a guard keeps neither a file nor a directory whose last name was removed.
#[test]
fn a_guard_keeps_no_file() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    fs.watch(Watch::Permission).unwrap();
    let free = room(&fs);
    let dir = directory(&fs, ROOT, b"guarded");
    fs.guard_names(dir).unwrap();
    // Openings by this process need an answer, too.
    with_openings(&fs, |_| {
        let f = file(&fs, dir, b"f");
        fs.write(f, 0, &vec![1; 8 << 20]).unwrap();
        fs.fsync(f).unwrap();
        assert!(room(&fs) < free - (7 << 20));
        fs.unlink(dir, b"f").unwrap();
        fs.rmdir(ROOT, b"guarded").unwrap();
        [f, dir].into_iter().for_each(|ino| fs.forget(ino, 1));
        fs.sync().unwrap();
        let until = Instant::now() + LIMIT;
        while room(&fs) < free - (1 << 20) {
            assert!(Instant::now() < until, "its space stays taken");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}
