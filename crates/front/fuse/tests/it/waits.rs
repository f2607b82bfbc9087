//! Requests that wait, and other requests meanwhile.
//!
//! Needs root and `/dev/fuse`.

#![allow(unsafe_code)]

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fuse::{
    Caching, MountAccess, MountFlags, MountOptions, MountPoint, OpCounters, Server, ServerOptions,
};
use rustix::process::{Pid, Signal};
use vfs::model::Model;
use vfs::{Errno, FileSystem, Ino, Mappings, Openings, Result};

/// Size of files whose reads wait until the gate is open.
const SLOW_BYTES: usize = 7777;

/// A file system whose reads can be kept waiting.
#[derive(Default)]
struct Gate {
    model: Model,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    waiting: usize,
    waiting_max: usize,
}

impl FileSystem for Gate {
    vfs::forward!(self => self.model; root, durability, kernel_cache, limits, lookup, forget,
        getattr, setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout,
        readdir, write, append, drop_privileges, fallocate, seek, copy_range, clone_range, fsync, sync,
        getxattr, setxattr, listxattr, removexattr, statfs);

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.model.getattr(ino)?.size == SLOW_BYTES as u64 {
            let mut state = self.state.lock().unwrap();
            state.waiting += 1;
            state.waiting_max = state.waiting_max.max(state.waiting);
            self.changed.notify_all();
            let mut was_killed = false;
            while !state.is_open && !was_killed {
                // As an engine waits for a lock.
                state = self.changed.wait_timeout(state, Duration::from_millis(10)).unwrap().0;
                was_killed = os::caller::is_killed();
            }
            state.waiting -= 1;
            if was_killed {
                return Err(Errno::INTR);
            }
        }
        self.model.read(ino, offset, buf)
    }
}

impl Mappings for Gate {}

impl Openings for Gate {}

impl Gate {
    fn set_open(&self, is_open: bool) {
        self.state.lock().unwrap().is_open = is_open;
        self.changed.notify_all();
    }

    /// Waits until at least `count` requests wait.
    fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let too_few = |state: &mut State| state.waiting < count;
        let waited = self.changed.wait_timeout_while(state, Duration::from_secs(60), too_few);
        let (state, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "{} of {count} wait", state.waiting);
    }
}

/// A mount with two threads. Dropping it opens the gate and ends the mount.
struct Mount {
    dir: PathBuf,
    gate: Arc<Gate>,
    mount_point: MountPoint,
    server: Option<JoinHandle<std::io::Result<()>>>,
    _scratch: tempfile::TempDir,
}

impl Mount {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        let scratch = tempfile::Builder::new().prefix("keepstone-").tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        let counters = Arc::new(OpCounters::default());
        let options = ServerOptions { caching: Caching::NONE, counters, stats: None };
        let server = Server::new(gate.clone(), options).unwrap();
        let options = MountOptions {
            source: scratch.path().display().to_string(),
            access: MountAccess::All,
            flags: MountFlags::NOSUID,
            threads: 2,
        };
        let mounted = fuse::mount(server, scratch.path(), &options).unwrap();
        let mount_point = mounted.mount_point();
        let server = Some(std::thread::spawn(|| mounted.serve()));
        let dir = scratch.path().to_owned();
        let mount = Self { dir, gate, mount_point, server, _scratch: scratch };
        fs::set_permissions(&mount.dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        fs::write(mount.dir.join("fast"), "content").unwrap();
        mount
    }

    /// Makes files as this user, and reads each in a thread of its own.
    fn read_slowly(&self, uid: u32, count: usize) -> Vec<JoinHandle<std::io::Result<usize>>> {
        let paths = (0..count).map(|i| self.dir.join(format!("slow-{uid}-{i}")));
        paths
            .map(|path| {
                fs::write(&path, [7; SLOW_BYTES]).unwrap();
                std::thread::spawn(move || {
                    become_user(uid);
                    let mut file = fs::File::open(path)?;
                    file.read(&mut [0; SLOW_BYTES])
                })
            })
            .collect()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.set_open(true);
        let ended = self.mount_point.end(Duration::from_secs(10));
        if let Some(server) = self.server.take()
            && ended.is_ok()
        {
            server.join().unwrap().unwrap();
        }
    }
}

/// Makes this thread alone one of a user.
fn become_user(uid: u32) {
    // SAFETY: the system call takes integers, and changes this thread only.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
}

/// Does what another user would do meanwhile.
fn use_mount(dir: &Path, name: &str) {
    assert_eq!(fs::read_to_string(dir.join("fast")).unwrap(), "content");
    fs::write(dir.join(name), "new").unwrap();
    assert_eq!(fs::metadata(dir.join(name)).unwrap().len(), 3);
    fs::rename(dir.join(name), dir.join("renamed")).unwrap();
    assert!(fs::read_dir(dir).unwrap().count() > 1);
    fs::remove_file(dir.join("renamed")).unwrap();
}

/// workers-W4: the engine learns that the program behind a waiting request was killed. Without
/// that, the program would wait for its answer, and this test for the program.
#[test]
fn a_killed_program_does_not_wait_for_its_answer() {
    let mount = Mount::new();
    let path = mount.dir.join("slow");
    fs::write(&path, [7; SLOW_BYTES]).unwrap();
    let read = |signal| {
        let mut cat = Command::new("cat").arg(&path).stdout(Stdio::null()).spawn().unwrap();
        mount.gate.wait_for(1);
        let pid = Pid::from_child(&cat);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = cat.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        assert_eq!(mount.gate.state.lock().unwrap().waiting, 0);
    };
    read(Signal::KILL);
    // Any signal that ends a process.
    read(Signal::TERM);
    use_mount(&mount.dir, "other");
}

/// Users that let all their requests wait do not delay another one, and get all their answers in
/// the end.
#[test]
fn requests_that_wait_keep_no_other_user_waiting() {
    const EACH: usize = 150;
    let mount = Mount::new();
    let mut readers = mount.read_slowly(12345, EACH);
    mount.gate.wait_for(33);
    for i in 0..20 {
        use_mount(&mount.dir, &format!("new-{i}"));
    }
    for uid in 12346..12350 {
        let before = mount.gate.state.lock().unwrap().waiting;
        readers.extend(mount.read_slowly(uid, EACH / 3));
        mount.gate.wait_for(before + 1);
        use_mount(&mount.dir, "another");
    }
    assert!(mount.gate.state.lock().unwrap().waiting_max < 66, "some thread is left");
    mount.gate.set_open(true);
    for reader in readers {
        assert_eq!(reader.join().unwrap().unwrap(), SLOW_BYTES);
    }
    // Threads are parked again, and the mount still works.
    for i in 0..200 {
        use_mount(&mount.dir, &format!("later-{i}"));
    }
    assert_eq!(mount.gate.state.lock().unwrap().waiting, 0);
}

/// A mount ends even if it got few or no requests.
#[test]
fn a_mount_ends_whatever_its_threads_have_done() {
    for requests in [0, 1, 2, 3, 70, 140] {
        let mount = Mount::new();
        for _ in 0..requests {
            fs::metadata(mount.dir.join("fast")).unwrap();
        }
    }
}
