//! Attacks by other users: names that promotions leave, and mounts of their own that claim a pool.
//!
//! Needs root and `/dev/fuse`.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use crate::common::{PermissionsExt as _, Sandbox};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo, ReplyAttr, ReplyEntry,
    ReplyStatfs, ReplyXattr, Request, Session, SessionACL,
};
use rustix::fs::{Mode, OFlags, inotify};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::Value;

const STRANGER: u32 = 12345;

/// Runs a part of a test with the permissions of another user: the credentials of this thread only.
fn as_stranger<T>(part: impl FnOnce() -> T) -> T {
    let set = |uid: u32| {
        // SAFETY: changes only the calling thread's credentials.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(result, 0, "this test runs as root");
    };
    set(STRANGER);
    let result = part();
    set(0);
    result
}

/// Creates a pool with a private file of root in a private directory.
fn with_secret() -> Sandbox {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    fs::set_permissions(&sandbox.dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(sandbox.path("private")).unwrap();
    fs::write(sandbox.path("private/file"), "top secret").unwrap();
    fs::set_permissions(sandbox.path("private/file"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(sandbox.path("private"), fs::Permissions::from_mode(0o700)).unwrap();
    sandbox
}

/// A stranger's program has a file of root as its output. The name in its `/proc/self/fd` opens
/// nothing, and neither do similar names.
#[test]
fn the_name_of_a_descriptor_that_a_stranger_is_handed_opens_nothing() {
    let sandbox = with_secret();
    let stranger = "name=$(readlink /proc/$$/fd/1); echo $name; \
                    name=${name% (deleted)}; for try in \"$name\" \"${name%?}0\" \"${name%?}1\"; do \
                    if (: <>\"$try\") 2>/dev/null || cat \"$try\" 2>/dev/null; then echo opened; fi; done";
    let script = format!(
        "exec 3<>private/file; flock 3; setpriv --reuid {STRANGER} --clear-groups bash -c '{stranger}' >&3"
    );
    let output = sandbox.served_script(&["--quiet"], &script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let written = fs::read_to_string(sandbox.path("private/file")).unwrap();
    let lines: Vec<_> = written.lines().collect();
    assert!(lines[0].contains("/.keepstone-promote/"), "{written:?} was not promoted");
    assert_eq!(lines.len(), 1, "{written:?}");
    // Nor for root, afterwards.
    assert!(fs::read(lines[0].trim_end_matches(" (deleted)")).is_err());
    sandbox.umount();
}

/// A stranger watches the root of the mount while descriptors of all kinds of a program of root are
/// promoted.
#[test]
fn names_that_are_watched_open_nothing() {
    let sandbox = with_secret();
    let watch =
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    as_stranger(|| {
        inotify::add_watch(&watch, &sandbox.dir, inotify::WatchFlags::ALL_EVENTS).unwrap();
    });
    let script = "cd private; mkfifo pipe; exec 3<>file; flock 3; exec 4<>pipe; flock 4; \
                  mkdir gone; exec 5<gone; rmdir gone; /bin/true; readlink /proc/self/fd/{3,4,5}";
    let output = sandbox.served_script(&["--quiet"], script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("/.keepstone-"), "nothing was promoted: {shown}");
    let mut names: Vec<PathBuf> = shown
        .lines()
        .map(|line| PathBuf::from(line.trim_end_matches(" (deleted)")))
        .filter(|path| path.to_string_lossy().contains("/.keepstone-"))
        .collect();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    while let Ok(event) = events.next() {
        if let Some(name) = event.file_name() {
            names.push(sandbox.path(name.to_str().unwrap()));
        }
    }
    for user in [0, STRANGER] {
        let try_all = || {
            for name in &names {
                let last = Path::new(name.file_name().unwrap());
                let beside = sandbox.path(".keepstone-promote").join(last);
                for path in [name, &beside] {
                    if path.ends_with(".keepstone-promote")
                        || !path.to_string_lossy().contains(".keepstone-")
                    {
                        continue;
                    }
                    for flags in [OFlags::RDONLY, OFlags::RDWR | OFlags::CREATE, OFlags::PATH] {
                        // Root may create a file of any name in the root directory.
                        if user == 0 && flags.contains(OFlags::CREATE) && path != &beside {
                            continue;
                        }
                        let opened = rustix::fs::open(path, flags, Mode::empty());
                        assert!(opened.is_err(), "{} as user {user}", path.display());
                    }
                }
            }
        };
        if user == 0 { try_all() } else { as_stranger(try_all) }
    }
    sandbox.umount();
}

/// A server without a pool: its root is empty. It counts requests, and may leave requests for
/// attributes unanswered.
struct Fake {
    asked: Arc<AtomicU64>,
    hangs: bool,
    open: Mutex<Vec<ReplyXattr>>,
    open_statfs: Mutex<Vec<ReplyStatfs>>,
}

impl Filesystem for Fake {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: STRANGER,
            gid: STRANGER,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(1), &attr);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.asked.fetch_add(1, SeqCst);
        if self.hangs {
            return self.open_statfs.lock().unwrap().push(reply);
        }
        reply.statfs(1, 1, 1, 1, 1, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, reply: ReplyXattr) {
        if name == fuse::STATS_XATTR {
            self.asked.fetch_add(1, SeqCst);
            if self.hangs {
                return self.open.lock().unwrap().push(reply);
            }
        }
        reply.error(Errno::ENODATA);
    }
}

/// A mount of such a server by a user. It claims a pool that it does not have. Dropping this ends
/// it.
struct FakeMount {
    dir: PathBuf,
    asked: Arc<AtomicU64>,
}

impl FakeMount {
    fn new(sandbox: &Sandbox, name: &str, user: u32, hangs: bool) -> Self {
        let dir = sandbox.outside(name);
        fs::create_dir(&dir).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device: OwnedFd = rustix::fs::open("/dev/fuse", flags, Mode::empty()).unwrap();
        let data = format!(
            "fd={},rootmode=40755,user_id={user},group_id={user},default_permissions,allow_other",
            device.as_raw_fd()
        );
        let data = CString::new(data).unwrap();
        let fs_type = mounts::FS_TYPE;
        rustix::mount::mount(sandbox.pool_str(), &dir, fs_type, MountFlags::empty(), &*data)
            .unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let fake = Fake {
            asked: asked.clone(),
            hangs,
            open: Mutex::default(),
            open_statfs: Mutex::default(),
        };
        let acl = SessionACL::All;
        let mut config = Config::default();
        config.acl = acl;
        std::thread::spawn(move || {
            let _ = Session::from_fd(fake, device, acl, config).and_then(|session| session.run());
        });
        Self { dir, asked }
    }

    fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }
}

impl Drop for FakeMount {
    fn drop(&mut self) {
        // Cuts the connection, so that waiting requests get an error.
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

fn explained(sandbox: &Sandbox, script: &str) -> (String, Value) {
    let options = ["--quiet", "--stats", "--explain", "--json"];
    let output = sandbox.served_script(&options, script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let at = text.find('{').expect("a report");
    (text[..at].to_owned(), serde_json::from_str(&text[at..]).unwrap())
}

/// Programs of root use such a mount through its server, and never the pool that it names. This
/// holds if a stranger has made the mount, and also if root has, but the server does not have the
/// pool.
#[test]
fn a_mount_that_names_a_pool_of_others_is_left_to_its_server() {
    let sandbox = with_secret();
    fs::write(sandbox.path("victim"), "x").unwrap();
    for (name, user) in [("strange", STRANGER), ("wrong", 0)] {
        let fake = FakeMount::new(&sandbox, name, user, false);
        let dir = fake.dir.display();
        let script = format!(
            "for try in 'cat {dir}/victim' 'rm {dir}/victim' 'chown 1 {dir}/private' 'touch {dir}/new'; do \
             if $try 2>/dev/null; then exit 9; fi; done; cat victim"
        );
        let (text, report) = explained(&sandbox, &script);
        assert_eq!(text, "x", "of the mount of the pool itself");
        assert!(report["reasons"]["foreign"]["calls"].as_u64() > Some(0), "{name}: {report:#}");
    }
    assert_eq!(fs::read_to_string(sandbox.path("victim")).unwrap(), "x");
    sandbox.umount();
}

/// No command asks mounts of strangers, so servers that never answer block nothing.
#[test]
fn mounts_of_strangers_are_not_asked() {
    let sandbox = with_secret();
    let fakes: Vec<_> =
        (0..20).map(|i| FakeMount::new(&sandbox, &format!("fake{i}"), STRANGER, true)).collect();
    let dir = fakes[0].dir.to_str().unwrap();
    let (_, report) = explained(&sandbox, "cat private/file >/dev/null");
    let not_asked = report["not_asked"].as_object().unwrap();
    for fake in &fakes {
        assert!(not_asked.contains_key(fake.dir.to_str().unwrap()), "{report:#}");
    }
    assert!(report["served"]["calls"].as_u64() > Some(0), "{report:#}");
    assert!(!not_asked.contains_key(sandbox.dir_str()), "{report:#}");
    let output = sandbox.run(["run", "--quiet", "--stats", "--json", "--", "true"]);
    let nothing: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(nothing["served_percent"].is_null(), "{nothing:#}");
    let refused = sandbox.fails(["stats", dir], 1);
    assert!(refused.contains("12345"), "{refused}");
    sandbox.fails(["attach", "status", dir], 1);
    let top = sandbox.ok(["top", "--count", "1", "--json"]);
    assert!(top.contains(sandbox.dir_str()) && !top.contains(dir), "{top}");
    sandbox.ok(["info", sandbox.pool_str()]);
    // The pool's name means only the real mount. The directory's name removes the fake mount
    // without asking its server.
    sandbox.ok(["umount", dir]);
    assert!(fakes.iter().all(|fake| fake.asked() == 0), "a server was asked");
    sandbox.ok(["umount", sandbox.pool_str()]);
}

/// Servers of this user that do not answer, whether they have read the request or not, delay the
/// program only for a moment, and the report names them.
#[test]
fn a_server_that_does_not_answer_is_reported() {
    let sandbox = with_secret();
    let reads_only = FakeMount::new(&sandbox, "silent", 0, true);
    let stopped = Sandbox::mounted(&[]);
    stopped.stop_server();
    let (_, report) = explained(&sandbox, "cat private/file >/dev/null");
    for dir in [reads_only.dir.to_str().unwrap(), stopped.dir_str()] {
        let why = report["not_asked"][dir].as_str().unwrap_or_default();
        assert!(why.contains("did not answer"), "{dir}: {report:#}");
    }
    assert!(report["mounts"].as_object().unwrap().contains_key(sandbox.dir_str()), "{report:#}");
    assert!(reads_only.asked() > 0);
    stopped.signal_server(rustix::process::Signal::CONT);
    sandbox.umount();
}
