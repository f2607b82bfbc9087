//! A process layer over each engine on anonymous memory, without a mount. [`Stage`] stands in for
//! the kernel.

#![allow(unsafe_code)]
#![allow(dead_code)]

use bpfs::Bpfs;
use mounts::{Requester, Ticket};
use pmem::Region;
use posix::{
    AttachedPool, Errno, Fork, Kernel, MountEvents, MountSpec, MountState, Process, Raw, Served,
};
use scmfs::Scmfs;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::{DirEntry, FileKind, FileSystem, Ino};

/// A kernel that stands in for the mount, as far as tests need it. It answers and records
/// everything below the mount point, and passes the rest to the real kernel.
#[derive(Clone)]
pub struct Stage {
    mountpoint: Vec<u8>,
    /// Names that were opened and entered below the mount point.
    pub calls: Arc<Mutex<Vec<String>>>,
    /// Calls made, of any kind.
    pub count: Arc<AtomicU64>,
    /// Path of the kernel's working directory. `None` (no path) unless a test sets it.
    pub cwd: Arc<Mutex<Option<Vec<u8>>>>,
    /// Inode number of the working directory.
    pub cwd_ino: Arc<AtomicU64>,
    /// Device that relative paths lead to: that of the mount, unless a test sets another.
    pub device: Arc<AtomicU64>,
    /// The calls that fail.
    pub fault: Arc<Mutex<Option<KernelFault>>>,
}

/// A fault: calls that fail, and what has become of it.
#[derive(Clone, Copy, Debug)]
pub struct KernelFault {
    /// Number of calls that succeed first.
    pub after: u64,
    pub errno: Errno,
    /// Whether all calls that make a descriptor fail, not only the next call.
    pub stays: bool,
    /// Whether a call has failed.
    pub hit: bool,
}

/// `st_dev` of files in the mount.
const DEVICE: u64 = 77;

impl Stage {
    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    /// Counts a call, and fails it if the fault demands that.
    fn enter(&self) -> Result<(), Errno> {
        self.enter_call(false)
    }

    /// As [`enter`](Self::enter), for calls that make a descriptor.
    fn enter_for_number(&self) -> Result<(), Errno> {
        self.enter_call(true)
    }

    fn enter_call(&self, makes_number: bool) -> Result<(), Errno> {
        self.count.fetch_add(1, Relaxed);
        let mut fault = self.fault.lock().unwrap();
        let Some(fault) = fault.as_mut() else { return Ok(()) };
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        let fails = if fault.stays { makes_number } else { !fault.hit };
        if !fails {
            return Ok(());
        }
        fault.hit = true;
        Err(fault.errno)
    }

    fn is_ours(&self, path: &[u8]) -> bool {
        path.strip_prefix(&self.mountpoint[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
    }
}

impl Kernel for Stage {
    fn dup(&self, fd: i32, min: i32, cloexec: bool) -> Result<i32, Errno> {
        self.enter_for_number()?;
        Raw.dup(fd, min, cloexec)
    }
    fn dup3(&self, old: i32, new: i32, cloexec: bool) -> Result<(), Errno> {
        self.enter()?;
        Raw.dup3(old, new, cloexec)
    }
    fn close(&self, fd: i32) -> Result<(), Errno> {
        // The descriptor is free, whatever the call returns.
        let said = self.enter();
        Raw.close(fd)?;
        said
    }
    fn close_range(&self, first: u32, last: u32, flags: u32) -> Result<(), Errno> {
        self.enter()?;
        Raw.close_range(first, last, flags)
    }
    fn is_cloexec(&self, fd: i32) -> Result<bool, Errno> {
        self.enter()?;
        Raw.is_cloexec(fd)
    }
    fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), Errno> {
        self.enter()?;
        Raw.set_cloexec(fd, cloexec)
    }
    /// Opens a file in memory, one for each path.
    fn open(&self, path: &[u8], flags: i32) -> Result<i32, Errno> {
        self.enter_for_number()?;
        if !self.is_ours(path) {
            return Raw.open(path, flags);
        }
        let name = match Ticket::parse_root(&path[self.mountpoint.len() + 1..]) {
            Some(ticket) => format!("/{}", answer(ticket, false)?),
            None => String::from_utf8_lossy(&path[self.mountpoint.len()..]).into_owned(),
        };
        self.note(format!("open {name}"));
        // An inode is a single file, by whatever name.
        let file = name[1..].replace('/', "-");
        let backing = [&self.mountpoint[..], b"/", file.as_bytes()].concat();
        let backing_path = std::path::Path::new(std::ffi::OsStr::from_bytes(&backing));
        if !backing_path.exists() {
            // Closing it later would end the process's locks on the file.
            drop(std::fs::File::create(backing_path));
        }
        let kept = flags & !(libc::O_DIRECTORY | libc::O_NOFOLLOW);
        Raw.open(&backing, kept)
    }
    /// Opens a file in memory, one for each inode.
    fn open_at(&self, _dir: i32, name: &[u8], flags: i32) -> Result<i32, Errno> {
        let name = String::from_utf8_lossy(name);
        if flags & libc::O_PATH != 0 {
            self.enter_for_number()?;
            assert_eq!(name, Ticket::DIR);
            return Raw.open(b"/dev/shm", flags);
        }
        let inode = answer(Ticket::parse(name.as_bytes()).unwrap(), true)?;
        let path = [&self.mountpoint[..], b"/", inode.as_bytes()].concat();
        self.open(&path, flags & !libc::O_CREAT)
    }
    fn seek_to(&self, fd: i32, offset: u64) -> Result<(), Errno> {
        self.enter()?;
        Raw.seek_to(fd, offset)
    }
    fn seek_by(&self, fd: i32, delta: i64) -> Result<u64, Errno> {
        self.enter()?;
        Raw.seek_by(fd, delta)
    }
    fn set_status(&self, fd: i32, flags: i32) -> Result<(), Errno> {
        self.enter()?;
        Raw.set_status(fd, flags)
    }
    fn drop_cache(&self, fd: i32) {
        self.note(format!("drop_cache {fd}"));
    }
    fn update_kernel_size(&self, fd: i32, size: u64) {
        self.note(format!("update_kernel_size {fd} {size}"));
    }
    fn lock(&self, fd: i32, cmd: i32, lock: &mut libc::flock) -> Result<(), Errno> {
        self.enter()?;
        Raw.lock(fd, cmd, lock)
    }
    fn flock(&self, fd: i32, operation: i32) -> Result<(), Errno> {
        self.enter()?;
        Raw.flock(fd, operation)
    }
    fn chdir(&self, path: &[u8]) -> Result<(), Errno> {
        self.enter()?;
        self.note(format!("chdir {}", path.escape_ascii()));
        Ok(())
    }
    fn getcwd<'b>(&self, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        self.enter()?;
        let cwd = self.cwd.lock().unwrap().clone().ok_or(Errno::NOENT)?;
        buf[..cwd.len()].copy_from_slice(&cwd);
        Ok(&buf[..cwd.len()])
    }
    fn here(&self) -> Result<(u64, u64), Errno> {
        self.enter()?;
        Ok((self.device.load(Relaxed), self.cwd_ino.load(Relaxed)))
    }
    fn place(&self, path: &[u8]) -> Result<(u64, u64), Errno> {
        self.enter()?;
        self.note(format!("device {}", path.escape_ascii()));
        Ok((self.device.load(Relaxed), 0))
    }
    fn slurp(&self, path: &[u8], buf: &mut [u8]) -> Result<usize, Errno> {
        self.enter_for_number()?;
        Raw.slurp(path, buf)
    }
    fn identity(&self, fd: i32) -> Result<(u64, u64, u32), Errno> {
        Raw.identity(fd)
    }
    fn status(&self, fd: i32) -> Result<i32, Errno> {
        Raw.status(fd)
    }
    fn is_same_description(&self, one: i32, other: i32) -> bool {
        Raw.is_same_description(one, other)
    }
    fn raise(&self, signal: i32) {
        self.count.fetch_add(1, Relaxed);
        self.note(format!("raise {signal}"));
    }
}

/// The kernel's table as tests set it: the state of a mount.
pub type SharedMountState = Arc<Mutex<Option<MountState>>>;

/// The pools that have been attached, whose announcements [`Stage`] answers.
static POOLS: Mutex<Vec<Arc<dyn MountEvents>>> = Mutex::new(Vec::new());

/// Returns the inode that this thread has announced by a ticket, with its generation.
fn answer(ticket: Ticket, as_new: bool) -> Result<String, Errno> {
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let by = Requester { thread, user: rustix::process::geteuid().as_raw() };
    let pools = POOLS.lock().unwrap();
    let opening = pools.iter().find_map(|pool| pool.answer_opening(ticket, by));
    let opening = opening.filter(|opening| opening.as_new == as_new).ok_or(Errno::NOENT)?;
    Ok(format!("{}-{}", opening.ino.0, opening.generation))
}

/// The layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestEngine {
    Bpfs,
    Scmfs,
}

/// Makes a test for each engine of each function, which takes a [`TestEngine`].
#[allow(unused_macros, reason = "each test program uses a part")]
macro_rules! on_each_engine {
    ($($test:ident),+ $(,)?) => {
        mod bpfs {
            $(#[test] fn $test() { super::$test(crate::common::TestEngine::Bpfs); })+
        }
        mod scmfs {
            $(#[test] fn $test() { super::$test(crate::common::TestEngine::Scmfs); })+
        }
    };
}
#[allow(unused_imports, reason = "each test program uses a part")]
pub(crate) use on_each_engine;

/// A mounted file system of any engine.
pub trait PoolEngine: FileSystem + MountEvents {
    fn rehearse_recovery(&self) -> vfs::Result<()>;
}

impl PoolEngine for Bpfs<Region> {
    fn rehearse_recovery(&self) -> vfs::Result<()> {
        Self::rehearse_recovery(self)
    }
}

impl PoolEngine for Scmfs<Region> {
    fn rehearse_recovery(&self) -> vfs::Result<()> {
        Self::rehearse_recovery(self)
    }
}

/// A process with a pool at `dir`.
pub struct TestWorld {
    pub process: Process,
    pub engine: TestEngine,
    pub fs: Arc<dyn PoolEngine>,
    pub stage: Stage,
    pub dir: tempfile::TempDir,
    pub table: SharedMountState,
}

impl TestWorld {
    pub fn new(engine: TestEngine) -> Self {
        Self::with(engine, 0, &[])
    }

    /// `flags`: of the mount, `ST_RDONLY` and so on. `nested`: names that other mounts cover.
    pub fn with(engine: TestEngine, flags: u64, nested: &[&str]) -> Self {
        let fs = Self::pool(engine);
        let dir = tempfile::Builder::new().prefix("keepstone-p-").tempdir_in("/dev/shm").unwrap();
        let mountpoint = dir.path().as_os_str().as_bytes().to_vec();
        let stage = Stage {
            mountpoint: mountpoint.clone(),
            calls: Arc::default(),
            count: Arc::default(),
            cwd: Arc::default(),
            cwd_ino: Arc::default(),
            device: Arc::new(AtomicU64::new(DEVICE)),
            fault: Arc::default(),
        };
        let process = Process::with_kernel(Box::new(stage.clone())).unwrap();
        let nested = nested.iter().map(|name| [&mountpoint, name.as_bytes()].join(&b'/'));
        let table =
            SharedMountState::new(Mutex::new(Some(MountState { flags, nested: nested.collect() })));
        let spec = Self::spec(mountpoint, &table, &fs);
        process.add_mount(spec).unwrap();
        Self { process, engine, fs, stage, dir, table }
    }

    /// Changes the state of the mount in the table, and announces that.
    pub fn remount(&self, state: Option<MountState>) {
        *self.table.lock().unwrap() = state;
        self.fs.announce_mount_change();
    }

    /// A new pool.
    pub fn pool(engine: TestEngine) -> Arc<dyn PoolEngine> {
        let region = Region::anonymous(64 << 20).unwrap();
        let formatting = bpfs::FormatOptions::default();
        // A process that has ever had threads is served in another way than one that has not.
        let options = bpfs::MountOptions { threads: Some(1), ..bpfs::MountOptions::default() };
        match engine {
            TestEngine::Bpfs => {
                bpfs::format(&region, &formatting).unwrap();
                Arc::new(Bpfs::mount(region, &options).unwrap())
            }
            TestEngine::Scmfs => {
                scmfs::format(&region, &formatting).unwrap();
                Arc::new(Scmfs::mount(region, &options).unwrap())
            }
        }
    }

    /// A mount of a pool.
    pub fn spec(
        mountpoint: Vec<u8>,
        table: &SharedMountState,
        fs: &Arc<dyn PoolEngine>,
    ) -> MountSpec {
        Self::spec_of(mountpoint, table, fs.clone(), fs.clone())
    }

    /// A mount of any file system, with the events of a pool.
    pub fn spec_of(
        mountpoint: Vec<u8>,
        table: &SharedMountState,
        fs: Arc<dyn FileSystem>,
        events: Arc<dyn MountEvents>,
    ) -> MountSpec {
        let table = table.clone();
        let attach = move || {
            POOLS.lock().unwrap().push(events.clone());
            Ok(AttachedPool {
                fs: fs.clone(),
                events: events.clone(),
                file: None,
                on_fork: Self::inherits(fs.clone()),
            })
        };
        let look = move || table.lock().unwrap().clone();
        MountSpec { mountpoint, dev: DEVICE, look: Box::new(look), attach: Box::new(attach) }
    }

    /// Takes over a parent's references in a child.
    fn inherits(fs: Arc<dyn FileSystem>) -> Box<dyn Fn(Fork) + Send + Sync> {
        Box::new(move |step| {
            if let Fork::Inherits(ino) = step {
                fs.lookup(ino, b".").unwrap();
            }
        })
    }

    /// The absolute path of a name in the pool.
    pub fn path(&self, name: &str) -> Vec<u8> {
        let mut path = self.dir.path().as_os_str().as_bytes().to_vec();
        if !name.is_empty() {
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        path
    }

    /// Opens a name in the pool.
    pub fn open(&self, name: &str, flags: i32) -> i32 {
        done(self.process.contents().open(libc::AT_FDCWD, &self.path(name), flags, 0o644)).unwrap()
    }

    /// Removes everything in the pool by its names. Inodes that stay are kept by references.
    pub fn remove_all(&self) {
        let mut dirs = vec![self.fs.root()];
        let mut at = 0;
        let mut names = Vec::new();
        while at < dirs.len() {
            let dir = dirs[at];
            let list = &mut |entry: &DirEntry<'_>| {
                if entry.kind == FileKind::Dir {
                    dirs.push(entry.ino);
                }
                names.push((dir, entry.name.to_vec(), entry.kind));
                true
            };
            self.fs.readdir(dir, 2, list).unwrap();
            at += 1;
        }
        for (dir, name, kind) in names.into_iter().rev() {
            let directory = kind == FileKind::Dir;
            let removed =
                if directory { self.fs.rmdir(dir, &name) } else { self.fs.unlink(dir, &name) };
            removed.unwrap();
        }
    }

    /// Inodes that a name or a reference keeps, without the root, of the first few thousand.
    pub fn live_inodes(&self) -> Vec<u64> {
        (2..3000).filter(|ino| self.is_live(*ino)).collect()
    }

    /// Whether a name or a reference keeps an inode.
    pub fn is_live(&self, ino: u64) -> bool {
        self.fs.getattr(Ino(ino)).is_ok()
    }
}

/// Returns the result of a call that must have been served.
#[track_caller]
pub fn done<T>(served: Served<T>) -> Result<T, Errno> {
    match served {
        Served::Done(result) => result,
        Served::Kernel => panic!("left to the kernel"),
    }
}

/// Calls `stat`.
pub fn stat(p: &Process, dirfd: i32, path: &[u8], flags: i32) -> Served<libc::stat> {
    // SAFETY: a stat is plain numbers, for which zeroes are valid.
    let mut st = posix::Unaligned(unsafe { std::mem::zeroed() });
    match p.names().stat(dirfd, path, flags, || Ok(&mut st)) {
        Served::Done(result) => Served::Done(result.map(|()| st.0)),
        Served::Kernel => Served::Kernel,
    }
}

/// Returns the result of a call of libc.
pub fn libc_result(ret: i64) -> Result<i64, Errno> {
    if ret < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        Err(Errno::from_raw_os_error(errno))
    } else {
        Ok(ret)
    }
}

pub fn cstring(path: &[u8]) -> CString {
    CString::new(path).unwrap()
}

/// Gives the calls of this thread the credentials of a user.
pub fn become_user(process: &posix::Process, (uid, gid, groups): (u32, u32, &[u32])) {
    // SAFETY: numbers, and an array with its length; only this thread changes.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, 0);
        let set = libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
        assert_eq!(set, 0, "this needs root");
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
    process.credentials_changed();
}

/// Whether another process sees a POSIX lock on the file of a descriptor, which it has or opens.
pub fn another_sees_lock(number: impl FnOnce() -> i32) -> bool {
    // SAFETY: the child asks and ends.
    unsafe {
        match libc::fork() {
            0 => {
                let mut asked: libc::flock = std::mem::zeroed();
                (asked.l_type, asked.l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
                libc::fcntl(number(), libc::F_GETLK, &mut asked);
                libc::_exit((asked.l_type != libc::F_UNLCK as i16).into())
            }
            pid => {
                let mut status = 0;
                libc::waitpid(pid, &mut status, 0);
                status != 0
            }
        }
    }
}
