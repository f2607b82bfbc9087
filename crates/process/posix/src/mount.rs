//! Mounts of pools, as this process sees them.
//!
//! - **mount-T1** The state of a mount is that of the kernel's table at the last look: read-only or
//!   not, covered directories, whether paths still lead to it. The mount's server announces changes
//!   by a word of the pool's [`MountEvents`]. Each walk, and each change by a descriptor, first
//!   loads the word, and looks at the table again if it has changed.

#![allow(unsafe_code)]

use crate::attach_lock::AttachLock;
use crate::creds::{AccessMask, Credentials, ThreadIdentity};
use crate::cwd::Prefix;
use crate::known::CurrentValue;
use crate::mappings::PoolFile;
use crate::served::{CallResult, CallStop};
use mounts::{MountEvents, MountState};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use vfs::{Attr, Errno, FileKind, FileSystem, Ino, Limits};

/// A mount that the process may serve itself.
pub struct MountSpec {
    /// The mount point: absolute, as in `/proc/self/mountinfo`, without a trailing slash.
    pub mountpoint: Vec<u8>,
    /// `st_dev` of files in it.
    pub dev: u64,
    /// Looks up the mount in the kernel's table, and returns its flags and the mounts below it.
    /// `None` if it is unmounted, or another mount hides it.
    pub look: Box<dyn Fn() -> Option<MountState> + Send + Sync>,
    /// Opens the pool. Called once, at the first use of a path below the mount point, while the
    /// table of descriptors is not locked. After an error the mount is the kernel's for good.
    pub attach: Box<dyn Fn() -> Result<AttachedPool, Errno> + Send + Sync>,
}

/// A pool that is open in this process.
pub struct AttachedPool {
    /// The engine.
    pub fs: Arc<dyn FileSystem>,
    /// Events that the mount's server announces.
    pub events: Arc<dyn MountEvents>,
    /// The file of the pool, if files can be mapped in place.
    pub file: Option<PoolFile>,
    /// Receives forks: the engine must keep what the process holds until the child holds it, too.
    pub on_fork: Box<dyn Fn(Fork) + Send + Sync>,
}

/// A step of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The parent is about to fork.
    Begins,
    /// The child inherits a description of this inode, which the parent holds.
    Inherits(Ino),
    /// In the child: it holds what it inherits. In the parent: the child has done so, or does not
    /// exist.
    Ends,
}

const UNTRIED: u32 = 0;
const USABLE: u32 = 1;
const REFUSED: u32 = 2;
/// Bits of [`ServedMount::reach`] that are 0 in an address.
const REACH: usize = 3;

/// The server has not been asked for its directory of capabilities.
const NOT_ASKED: i32 = -2;

/// A pool in use.
struct PoolInUse {
    attached: AttachedPool,
    /// Limits of the engine. A call of the engine would cost each walk more than these two loads.
    limits: Limits,
    /// [`MountEvents::mount_changes`] before the last look (mount-T1).
    changes: AtomicU64,
    state: CurrentValue<MountSnapshot>,
}

/// The state of a mount at the last look at the kernel's table (mount-T1).
#[derive(PartialEq, Eq)]
struct MountSnapshot {
    /// `ST_*` of `statvfs`.
    flags: u64,
    /// Whether absolute paths lead to the mount.
    is_reached: bool,
    /// Inodes that other mounts cover.
    covered: SmallVec<[Ino; 4]>,
}

/// A mount, and its state in this process.
pub(crate) struct ServedMount {
    pub spec: MountSpec,
    state: AtomicU32,
    pool: AtomicPtr<PoolInUse>,
    /// The placeholder: descriptors of the pool's files are duplicates of it.
    placeholder: AtomicI32,
    /// The descriptor of the directory by which promotions open files. [`NOT_ASKED`], or -1 if the
    /// server has no such directory.
    capability: AtomicI32,
    /// Whether this user reaches the mount point: `UNTRIED`, or `USABLE` or `REFUSED` with the
    /// address of the user's identity.
    reach: AtomicUsize,
    /// Offsets at which the components of the mount point start.
    starts: SmallVec<[u16; 8]>,
    /// The way to the mount from a working directory outside.
    pub prefix: Prefix,
}

impl ServedMount {
    pub fn new(spec: MountSpec) -> Self {
        let path = &spec.mountpoint[..];
        let starts = |&at: &usize| path[at] != b'/' && (at == 0 || path[at - 1] == b'/');
        let starts = (0..path.len()).filter(starts).map(|at| at as u16).collect();
        Self {
            spec,
            starts,
            state: AtomicU32::new(UNTRIED),
            pool: AtomicPtr::new(std::ptr::null_mut()),
            placeholder: AtomicI32::new(-1),
            capability: AtomicI32::new(NOT_ASKED),
            reach: AtomicUsize::new(UNTRIED as usize),
            prefix: Prefix::default(),
        }
    }

    /// Attaches the pool, once. `placeholder` opens the descriptor that is duplicated, and
    /// `give_back` closes it after an error. An open pool is never closed, because the front end
    /// has its address. `Kernel` if attaching failed, now or before, or if another thread attaches
    /// for too long.
    pub fn attach(
        &self,
        lock: &AttachLock,
        placeholder: impl FnOnce() -> Result<i32, Errno>,
        give_back: impl FnOnce(i32),
    ) -> CallResult<&AttachedPool> {
        if let Some(tried) = self.tried() {
            return tried;
        }
        let _held = lock.hold().ok_or(CallStop::Kernel)?;
        // Another thread may have attached it meanwhile.
        if let Some(tried) = self.tried() {
            return tried;
        }
        let attempt = placeholder().and_then(|fd| match (self.spec.attach)() {
            Ok(pool) => Ok((pool, fd)),
            Err(errno) => {
                give_back(fd);
                Err(errno)
            }
        });
        let Ok((attached, fd)) = attempt else {
            self.state.store(REFUSED, Release);
            return Err(CallStop::Kernel);
        };
        let changes = AtomicU64::new(attached.events.mount_changes());
        let state = CurrentValue::new(self.look(&*attached.fs, 0));
        let limits = *attached.fs.limits();
        let pool = Box::into_raw(Box::new(PoolInUse { limits, attached, changes, state }));
        self.pool.store(pool, Release);
        self.placeholder.store(fd, Release);
        self.state.store(USABLE, Release);
        Ok(self.attached())
    }

    /// The result of attaching; `None` before.
    #[inline]
    fn tried(&self) -> Option<CallResult<&AttachedPool>> {
        match self.state.load(Acquire) {
            USABLE => Some(Ok(self.attached())),
            UNTRIED => None,
            _ => Some(Err(CallStop::Kernel)),
        }
    }

    /// Leaves a mount to the kernel, unless it is attached.
    pub fn refuse(&self) {
        let _ = self.state.compare_exchange(UNTRIED, REFUSED, Relaxed, Relaxed);
    }

    #[inline]
    fn pool(&self) -> &PoolInUse {
        // SAFETY: callers come from a description or a walk, which attached the pool. It stays
        // until the mount is dropped.
        unsafe { &*self.pool.load(Acquire) }
    }

    /// The pool of a mount that has been attached.
    #[inline]
    pub fn attached(&self) -> &AttachedPool {
        &self.pool().attached
    }

    /// The limits of a pool that has been attached.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.pool().limits
    }

    /// Whether a name that the pool does not have may lead to the directory of snapshots, which
    /// only the mount's server shows. Such a name is left to the kernel.
    #[inline]
    pub fn is_of_server(dir: Ino, name: &[u8]) -> bool {
        dir == vfs::ROOT && name == mounts::SNAPSHOTS_NAME.as_bytes()
    }

    /// Whether the mount is left to the kernel: attaching has failed, or this user does not reach
    /// it.
    pub fn is_refused(&self) -> bool {
        self.state.load(Relaxed) == REFUSED || self.reach.load(Relaxed) & REACH == REFUSED as usize
    }

    /// The pool, if it is attached.
    pub fn if_attached(&self) -> Option<&AttachedPool> {
        (self.state.load(Acquire) == USABLE).then(|| self.attached())
    }

    /// The placeholder.
    pub fn placeholder(&self) -> i32 {
        self.placeholder.load(Acquire)
    }

    /// Notes that the placeholder has another number.
    pub fn move_placeholder(&self, fd: i32) {
        self.placeholder.store(fd, Release);
    }

    /// The descriptor of the directory of capabilities, or `Some(None)` if the server has none.
    /// `None` if it has not been asked.
    pub fn capability(&self) -> Option<Option<i32>> {
        let fd = self.capability.load(Acquire);
        (fd != NOT_ASKED).then_some((fd >= 0).then_some(fd))
    }

    /// Stores the descriptor of the directory of capabilities, after it was opened or moved.
    pub fn set_capability(&self, fd: Option<i32>) {
        self.capability.store(fd.unwrap_or(-1), Release);
    }

    /// Looks at the table again if an event announces a change (mount-T1).
    #[inline]
    pub fn catch_up(&self) {
        let pool = self.pool();
        if pool.attached.events.mount_changes() != pool.changes.load(Relaxed) {
            self.look_again();
        }
    }

    /// The state of a mount that has been attached.
    #[inline]
    fn state(&self) -> &MountSnapshot {
        self.catch_up();
        self.pool().state.current()
    }

    /// Loads the state of the mount from the kernel's table (mount-T1).
    #[cold]
    fn look_again(&self) {
        let pool = self.pool();
        // Loaded first: a change after this load causes another look.
        let changes = pool.attached.events.mount_changes();
        let flags = pool.state.current().flags;
        pool.state.change(self.look(&*pool.attached.fs, flags));
        pool.changes.store(changes, Release);
    }

    /// Looks at the table, and returns the mount's state. If the mount is not there, the flags stay
    /// as they were.
    fn look(&self, fs: &dyn FileSystem, flags: u64) -> MountSnapshot {
        match (self.spec.look)() {
            Some(seen) => MountSnapshot {
                flags: seen.flags,
                is_reached: true,
                covered: seen.nested.iter().filter_map(|path| self.find(fs, path)).collect(),
            },
            None => MountSnapshot { flags, is_reached: false, covered: SmallVec::new() },
        }
    }

    /// Identifies the state of the mount: the number differs if the state does.
    #[inline]
    pub fn state_id(&self) -> usize {
        std::ptr::from_ref(self.state()).addr()
    }

    /// `ST_RDONLY`, `ST_NOEXEC`, `ST_NOSUID`, `ST_NODEV`, … as `statvfs` shows them.
    pub fn flags(&self) -> u64 {
        self.state().flags
    }

    /// Returns `EROFS` if the mount is read-only.
    #[inline]
    pub fn check_writable(&self) -> Result<(), Errno> {
        if self.flags() & libc::ST_RDONLY != 0 { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Returns `EROFS` if `want` would change an inode of a read-only mount.
    #[inline]
    pub fn check_change(&self, kind: FileKind, want: AccessMask) -> Result<(), Errno> {
        let changes = want.contains(AccessMask::WRITE)
            && matches!(kind, FileKind::File | FileKind::Dir | FileKind::Symlink);
        if changes { self.check_writable() } else { Ok(()) }
    }

    /// Checks permission and, for a change, that the mount is writable.
    #[inline]
    pub fn check(&self, creds: &Credentials, attr: &Attr, want: AccessMask) -> Result<(), Errno> {
        self.check_change(attr.kind, want)?;
        creds.check(self.attached().fs.as_ref(), attr, want)
    }

    /// Returns `Kernel` if absolute paths no longer lead to the mount.
    pub fn check_reached(&self) -> CallResult<()> {
        if self.state().is_reached { Ok(()) } else { Err(CallStop::Kernel) }
    }

    /// Returns `Kernel` if this user may not pass the directories above the mount point.
    pub fn check_reach(
        &self,
        user: &ThreadIdentity,
        reach: impl FnOnce(&[u8]) -> Result<(), Errno>,
    ) -> CallResult<()> {
        let user = std::ptr::from_ref(user).addr();
        let mut known = self.reach.load(Relaxed);
        if known & !REACH != user || known & REACH == UNTRIED as usize {
            let reached = reach(&self.spec.mountpoint).is_ok();
            let state = if reached { USABLE } else { REFUSED };
            known = user | state as usize;
            self.reach.store(known, Relaxed);
        }
        if known & REACH == USABLE as usize { Ok(()) } else { Err(CallStop::Kernel) }
    }

    /// Forgets whether users reach the mount, after a change of the user.
    pub fn forget_reach(&self) {
        self.reach.store(UNTRIED as usize, Relaxed);
    }

    /// Returns `Kernel` if another mount covers the inode. The walk has caught up with the table
    /// when it began.
    #[inline]
    pub fn check_covered(&self, ino: Ino) -> CallResult<()> {
        if self.pool().state.current().covered.contains(&ino) {
            Err(CallStop::Kernel)
        } else {
            Ok(())
        }
    }

    /// Returns `Kernel` if a program may be running from the file. The kernel knows whether the
    /// file may be written to.
    pub fn check_not_executed(&self, ino: Ino) -> CallResult<()> {
        if self.attached().events.is_executed(ino) { Err(CallStop::Kernel) } else { Ok(()) }
    }

    /// Returns `Kernel` if a process may map the file through the kernel's pages. Only calls of the
    /// kernel see and change these.
    #[inline]
    pub fn check_unmapped(&self, ino: Ino) -> CallResult<()> {
        if self.attached().events.is_mapped(ino) { Err(CallStop::Kernel) } else { Ok(()) }
    }

    /// Finds the inode at an absolute path, without symbolic links.
    fn find(&self, fs: &dyn FileSystem, path: &[u8]) -> Option<Ino> {
        let rest = path.strip_prefix(&self.spec.mountpoint[..])?;
        let mut at = fs.root();
        for name in vfs::path::names(rest) {
            // A covered directory cannot be removed, so no reference is needed.
            at = fs.peek(at, name).ok()?.ino;
        }
        Some(at)
    }

    /// Returns the rest of an absolute path below the mount point. `None` if it leads elsewhere, or
    /// if its text does not show where it leads.
    pub fn strip<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        if path.first() == Some(&b'/') { self.strip_names(path, 0) } else { None }
    }

    /// As [`strip`](Self::strip), of a path that starts below the first `passed` components of the
    /// mount point.
    pub fn strip_names<'a>(&self, path: &'a [u8], passed: usize) -> Option<&'a [u8]> {
        let mut rest = path;
        for name in self.names(passed) {
            loop {
                let slashes = rest.iter().take_while(|&&b| b == b'/').count();
                rest = &rest[slashes..];
                match rest.strip_prefix(b"./") {
                    Some(after) => rest = after,
                    None => break,
                }
            }
            rest = rest.strip_prefix(name)?;
            if !matches!(rest.first(), None | Some(b'/')) {
                return None;
            }
        }
        Some(rest)
    }

    /// The components of the mount point after the first `passed`.
    #[inline]
    pub fn names(&self, passed: usize) -> impl Iterator<Item = &[u8]> {
        let starts = self.starts.get(passed..).unwrap_or_default().iter();
        starts.map(|&start| {
            let rest = &self.spec.mountpoint[start.into()..];
            &rest[..rest.iter().position(|&b| b == b'/').unwrap_or(rest.len())]
        })
    }
}

/// The largest number of mounts of a process.
pub(crate) const MOUNTS: usize = 16;

/// The mounts of a process. None is ever removed.
#[derive(Default)]
pub(crate) struct Mounts {
    slots: [AtomicPtr<ServedMount>; MOUNTS],
    /// Held while a mount is attached, and while the process forks.
    pub attaching: AttachLock,
}

impl Mounts {
    /// Adds a mount. `ENOSPC` beyond [`MOUNTS`].
    pub fn add(&self, mount: ServedMount) -> Result<(), Errno> {
        let mount = Box::into_raw(Box::new(mount));
        for slot in &self.slots {
            if slot.compare_exchange(std::ptr::null_mut(), mount, AcqRel, Relaxed).is_ok() {
                return Ok(());
            }
        }
        // SAFETY: it came from a box above, and no other thread has seen it.
        drop(unsafe { Box::from_raw(mount) });
        Err(Errno::NOSPC)
    }

    /// All mounts, with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &ServedMount)> {
        let slots = self.slots.iter().map(|slot| slot.load(Acquire));
        // SAFETY: a mount, once added, stays until `self` is dropped.
        slots.enumerate().map_while(|(i, m)| Some((i, unsafe { m.as_ref()? })))
    }

    /// The mount with this index, which must exist.
    #[inline]
    pub fn get(&self, index: usize) -> &ServedMount {
        // SAFETY: as above; indexes come from descriptions, which are opened below mounts.
        unsafe { &*self.slots[index % MOUNTS].load(Acquire) }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            let mount = std::mem::replace(slot.get_mut(), std::ptr::null_mut());
            if !mount.is_null() {
                // SAFETY: it came from a box in `add`; by `&mut self`, no other thread uses it.
                drop(unsafe { Box::from_raw(mount) });
            }
        }
    }
}

impl Drop for ServedMount {
    fn drop(&mut self) {
        let pool = *self.pool.get_mut();
        if !pool.is_null() {
            // SAFETY: it came from a box in `attach`; by `&mut self`, no other thread uses it.
            drop(unsafe { Box::from_raw(pool) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_opened_when_nothing_else_can_fail() {
        let mount = |attach| {
            let (mountpoint, look) = (b"/mnt".to_vec(), Box::new(|| None));
            ServedMount::new(MountSpec { mountpoint, dev: 0, look, attach })
        };
        let lock = AttachLock::default();
        let refused = mount(Box::new(|| panic!("nothing is to be put behind it")));
        assert!(refused.attach(&lock, || Err(Errno::MFILE), |_| ()).is_err());
        let mut given_back = 0;
        let refused = mount(Box::new(|| Err(Errno::NODEV)));
        assert!(refused.attach(&lock, || Ok(7), |fd| given_back = fd).is_err());
        assert_eq!(given_back, 7);
    }

    #[test]
    fn mount_points_are_stripped_by_whole_components() {
        let mount = ServedMount::new(MountSpec {
            mountpoint: b"/mnt/pool".to_vec(),
            dev: 0,
            look: Box::new(|| None),
            attach: Box::new(|| Err(Errno::NODEV)),
        });
        let strip = |path: &str| mount.strip(path.as_bytes()).map(|rest| rest.to_vec());
        assert_eq!(strip("/mnt/pool"), Some(b"".to_vec()));
        assert_eq!(strip("//mnt/./pool//a"), Some(b"//a".to_vec()));
        assert_eq!(strip("/mnt/pool/.."), Some(b"/..".to_vec()));
        for other in ["/mnt/pools", "/mnt", "/mnt/x/../pool/a", "mnt/pool", "/", ""] {
            assert_eq!(strip(other), None, "{other}");
        }
        let below = |path: &str, passed| mount.strip_names(path.as_bytes(), passed).is_some();
        assert!(below("mnt/pool", 0) && below("pool/a", 1) && below(".//./pool", 1));
        assert!(!below("pools", 1) && !below("pool", 0) && !below("./", 1) && !below("", 1));
    }
}
