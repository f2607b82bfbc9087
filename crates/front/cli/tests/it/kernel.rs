//! Functions of the kernel on a mount: locks, mappings, file handles.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::common::{Sandbox, child_test, on_each_engine, wait_until};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

on_each_engine!(shared_writable_mappings, shared_writable_mappings_without_cache, file_handles,);

/// Number of waiting processes, more than the server has threads.
const WAITERS: usize = 8;
const SERVER_THREADS: &str = "2";

fn open_rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Not a test: waits for a lock on the file that ARG names, counts itself in the file, and releases
/// the lock.
#[test]
#[ignore = "run by the tests below in processes of its own"]
fn waiter() {
    let arg = std::env::var_os("ARG").unwrap();
    let (kind, path) = arg.to_str().unwrap().split_once(':').unwrap();
    let file = open_rw(Path::new(path));
    lock(&file, kind, FlockOperation::LockExclusive).unwrap();
    // While the lock is held, no other process counts.
    let mut count = [0];
    file.read_exact_at(&mut count, 0).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    file.write_all_at(&[count[0] + 1], 0).unwrap();
    lock(&file, kind, FlockOperation::Unlock).unwrap();
}

fn lock(file: &File, kind: &str, operation: FlockOperation) -> rustix::io::Result<()> {
    if kind == "flock" { flock(file, operation) } else { fcntl_lock(file, operation) }
}

/// Blocking locks of several processes: no worker of the server is occupied, a signal ends a wait,
/// and every process gets the lock in the end.
fn blocking_locks(kind: &str) {
    let s = Sandbox::mounted(&["--threads", SERVER_THREADS]);
    let path = s.path("locked");
    fs::write(&path, [0]).unwrap();
    let file = open_rw(&path);
    lock(&file, kind, FlockOperation::LockExclusive).unwrap();
    let mut arg = OsString::from(format!("{kind}:"));
    arg.push(&path);
    let mut waiters: Vec<Child> = (0..WAITERS)
        .map(|_| child_test("kernel::waiter", &arg).stdout(Stdio::null()).spawn().unwrap())
        .collect();
    wait_until("all wait", || waiters.iter().all(|waiter| is_blocked(waiter.id())));

    // The mount continues to work meanwhile.
    for i in 0..100 {
        let other = s.path(&format!("other{i}"));
        fs::write(&other, "content").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "content");
    }
    assert_eq!(fs::read_dir(&s.dir).unwrap().count(), 101);

    // A signal ends the wait of one process.
    let mut interrupted = waiters.pop().unwrap();
    let pid = crate::common::pid(interrupted.id() as i32);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!interrupted.wait().unwrap().success());

    lock(&file, kind, FlockOperation::Unlock).unwrap();
    for mut waiter in waiters {
        assert!(waiter.wait().unwrap().success());
    }
    assert_eq!(fs::read(&path).unwrap(), [WAITERS as u8 - 1]);
}

/// Returns whether a thread of the process sleeps in the kernel for a lock.
fn is_blocked(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stacks = tasks.map(|task| fs::read_to_string(task.path().join("syscall")));
    // x86-64: 72 is fcntl, 73 is flock.
    stacks.flatten().any(|line| line.starts_with("72 ") || line.starts_with("73 "))
}

#[test]
fn blocking_flock() {
    blocking_locks("flock");
}

#[test]
fn blocking_fcntl() {
    blocking_locks("fcntl");
}

#[test]
fn locks_that_do_not_wait() {
    let s = Sandbox::mounted(&[]);
    let (first, second) = (open_rw(&s.path("f")), open_rw(&s.path("f")));
    flock(&first, FlockOperation::LockShared).unwrap();
    flock(&second, FlockOperation::NonBlockingLockShared).unwrap();
    let refused = flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop(first);
    // A child that another test has just forked keeps it open until its exec.
    wait_until("the lock is free", || {
        flock(&second, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

/// A shared, writable mapping of a file.
struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    fn of(file: &File, len: usize) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self { base: base.unwrap().cast(), len }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the whole mapping is writable, and used by this thread only.
        unsafe { std::ptr::write_bytes(self.base, byte, self.len) };
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: within the mapping; volatile because the file changes behind the compiler.
        unsafe { self.base.add(at).read_volatile() }
    }

    fn sync(&self) {
        // SAFETY: exactly the mapping.
        unsafe { rustix::mm::msync(self.base.cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; nothing refers to it any more.
        unsafe { rustix::mm::munmap(self.base.cast(), self.len) }.unwrap();
    }
}

fn shared_mappings(layout: &str, mount_options: &[&str]) {
    const LEN: usize = 1 << 20;
    let mut s = Sandbox::mounted_as(layout, mount_options);
    let path = s.path("mapped");
    let file = open_rw(&path);
    file.set_len(LEN as u64).unwrap();
    let map = Mapping::of(&file, LEN);
    let mut seen = vec![0; LEN];
    map.fill(1);
    file.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == [1; LEN], "reads see mapped stores");
    file.write_all_at(&[2; 100], 5000).unwrap();
    assert_eq!((map.byte(4999), map.byte(5000), map.byte(5100)), (1, 2, 1));
    // Data that msync has confirmed survives a kill of the server.
    map.fill(3);
    map.sync();
    drop((map, file));
    s.signal_server(rustix::process::Signal::KILL);
    s.server_ends();
    s.mount(mount_options);
    assert!(fs::read(&path).unwrap() == [3; LEN]);
    // So does the content of a mapping after its unmap.
    let file = open_rw(&path);
    let map = Mapping::of(&file, LEN);
    map.fill(4);
    drop((map, file));
    s.signal_server(rustix::process::Signal::KILL);
    s.server_ends();
    s.mount(mount_options);
    assert!(fs::read(&path).unwrap() == [4; LEN]);
}

fn shared_writable_mappings(layout: &str) {
    shared_mappings(layout, &[]);
}

fn shared_writable_mappings_without_cache(layout: &str) {
    shared_mappings(layout, &["--no-cache"]);
}

#[repr(C)]
struct Handle {
    header: libc::file_handle,
    bytes: [u8; 128],
}

/// Returns the handle of a file.
fn handle_of(path: &Path) -> Handle {
    // SAFETY: all zeros are valid for plain data.
    let mut handle: Handle = unsafe { std::mem::zeroed() };
    handle.header.handle_bytes = 128;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount_id = 0;
    // SAFETY: `name` ends with NUL; the handle has room for `handle_bytes` bytes.
    let result = unsafe {
        let handle = (&raw mut handle).cast();
        libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), handle, &mut mount_id, 0)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn open_handle(mount: &Path, handle: &mut Handle, flags: i32) -> std::io::Result<File> {
    let mount = File::open(mount)?;
    // SAFETY: the handle came from `name_to_handle_at`.
    let fd =
        unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut *handle).cast(), flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn file_handles(layout: &str) {
    let mut s = Sandbox::mounted_as(layout, &[]);
    let path = s.path("d/e/file");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "content").unwrap();
    let ino = fs::metadata(&path).unwrap().ino();
    let mut file = handle_of(&path);
    let mut dir = handle_of(path.parent().unwrap());
    let read = |handle: &mut Handle| -> std::io::Result<String> {
        std::io::read_to_string(open_handle(&s.dir, handle, libc::O_RDONLY)?)
    };
    assert_eq!(read(&mut file).unwrap(), "content");
    // Renamed, and forgotten by the kernel.
    fs::rename(&path, s.path("moved")).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(read(&mut file).unwrap(), "content");
    // A handle outlives the mount.
    let mount_dir = s.dir.clone();
    s.umount();
    s.mount(&[]);
    let opened = open_handle(&mount_dir, &mut file, libc::O_RDONLY).unwrap();
    assert_eq!(opened.metadata().unwrap().ino(), ino);
    drop(opened);
    // A directory's handle finds its path again, through lookups of "..".
    let opened = open_handle(&mount_dir, &mut dir, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let link = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    assert_eq!(fs::read_link(link).unwrap(), s.path("d/e"));
    drop(opened);
    // A handle of a removed file is stale, even if the inode number is reused.
    fs::remove_file(s.path("moved")).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    for i in 0..10 {
        fs::write(s.path(&format!("new{i}")), "other").unwrap();
    }
    let stale = open_handle(&mount_dir, &mut file, libc::O_RDONLY).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
}
