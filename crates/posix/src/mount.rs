//! Mounts of pools, as this process sees them.

use crate::served::{Call, Stop};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::*};
use vfs::{Errno, FileSystem, Ino};

/// A mount that the process may serve itself.
pub struct MountSpec {
    /// Where it is mounted: absolute, as in `/proc/self/mountinfo`, without a trailing slash.
    pub mountpoint: Vec<u8>,
    /// `st_dev` of what is in it.
    pub dev: u64,
    /// `ST_RDONLY`, `ST_NOEXEC`, `ST_NOSUID`, `ST_NODEV`, … as `statvfs` shows them.
    pub flags: u64,
    /// Other mounts whose mount points lie below this one: absolute paths. Walks that reach one of
    /// them go to the kernel.
    pub nested: Vec<Vec<u8>>,
    /// Opens the pool; called once, at the first use that hits a path below the mount point (not in
    /// a lock). After an error the mount is the kernel's for good.
    pub attach: Box<dyn Fn() -> Result<Attached, Errno> + Send + Sync>,
}

/// A pool that is open in this process.
pub struct Attached {
    /// The engine.
    pub fs: Box<dyn FileSystem>,
    /// The pool's secret, part of the names that open an inode through the mount.
    pub secret: u64,
    /// To be called in a forked child before any other call of the engine.
    pub after_fork: Box<dyn Fn() + Send + Sync>,
}

const UNTRIED: u32 = 0;
const USABLE: u32 = 1;
const REFUSED: u32 = 2;
/// A thread is at it; meanwhile the mount serves the others.
const ATTACHING: u32 = 3;

/// A pool in use.
struct Pool {
    attached: Attached,
    /// Inodes that other mounts cover.
    covered: SmallVec<[Ino; 4]>,
}

/// A mount and what has become of it.
pub(crate) struct Mount {
    pub spec: MountSpec,
    state: AtomicU32,
    pool: AtomicPtr<Pool>,
    /// The descriptor that those of the pool's files are duplicates of.
    placeholder: AtomicI32,
    /// Whether the mount point can be reached by this user: `UNTRIED`, `USABLE` or `REFUSED`.
    reach: AtomicU32,
}

impl Mount {
    pub fn new(spec: MountSpec) -> Self {
        Self {
            spec,
            state: AtomicU32::new(UNTRIED),
            pool: AtomicPtr::new(std::ptr::null_mut()),
            placeholder: AtomicI32::new(-1),
            reach: AtomicU32::new(UNTRIED),
        }
    }

    /// Attaches the pool, once; `placeholder` makes that descriptor.
    pub fn attach(&self, placeholder: impl FnOnce() -> Result<i32, Errno>) -> Call<&Attached> {
        if self.state.load(Acquire) == USABLE {
            return Ok(self.attached());
        }
        if self.state.compare_exchange(UNTRIED, ATTACHING, Acquire, Relaxed).is_err() {
            return Err(Stop::Kernel);
        }
        let attempt = (self.spec.attach)().and_then(|pool| Ok((pool, placeholder()?)));
        let Ok((attached, fd)) = attempt else {
            self.state.store(REFUSED, Release);
            return Err(Stop::Kernel);
        };
        let covered = self.spec.nested.iter().filter_map(|path| self.find(&*attached.fs, path));
        let pool = Box::into_raw(Box::new(Pool { covered: covered.collect(), attached }));
        self.pool.store(pool, Release);
        self.placeholder.store(fd, Release);
        self.state.store(USABLE, Release);
        Ok(self.attached())
    }

    #[inline]
    fn pool(&self) -> &Pool {
        // SAFETY: callers come from a description or a walk, which attached it; it stays until the
        // mount is dropped.
        unsafe { &*self.pool.load(Acquire) }
    }

    /// The pool of a mount that has been attached.
    #[inline]
    pub fn attached(&self) -> &Attached {
        &self.pool().attached
    }

    /// The pool, if it is attached.
    pub fn if_attached(&self) -> Option<&Attached> {
        (self.state.load(Acquire) == USABLE).then(|| self.attached())
    }

    /// The descriptor to duplicate.
    pub fn placeholder(&self) -> i32 {
        self.placeholder.load(Acquire)
    }

    /// The placeholder has been moved.
    pub fn move_placeholder(&self, fd: i32) {
        self.placeholder.store(fd, Release);
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.spec.flags & libc::ST_RDONLY != 0
    }

    /// `Kernel` where the directories above the mount point keep this user out.
    pub fn check_reach(&self, reach: impl FnOnce(&[u8]) -> Result<(), Errno>) -> Call<()> {
        if self.reach.load(Relaxed) == UNTRIED {
            let reached = reach(&self.spec.mountpoint).is_ok();
            self.reach.store(if reached { USABLE } else { REFUSED }, Relaxed);
        }
        if self.reach.load(Relaxed) == USABLE { Ok(()) } else { Err(Stop::Kernel) }
    }

    /// The user has changed.
    pub fn forget_reach(&self) {
        self.reach.store(UNTRIED, Relaxed);
    }

    /// `Kernel` where another mount covers the directory.
    #[inline]
    pub fn check_covered(&self, ino: Ino) -> Call<()> {
        if self.pool().covered.contains(&ino) { Err(Stop::Kernel) } else { Ok(()) }
    }

    /// The inode at an absolute path, without symbolic links.
    fn find(&self, fs: &dyn FileSystem, path: &[u8]) -> Option<Ino> {
        let rest = path.strip_prefix(&self.spec.mountpoint[..])?;
        let mut at = fs.root();
        for name in rest.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            // Covered directories cannot be removed, so no reference is needed.
            at = fs.peek(at, name).ok()?.ino;
        }
        Some(at)
    }

    /// What is left of an absolute path below the mount point; `None` where it leads elsewhere, or
    /// that cannot be told from its text.
    pub fn strip<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let mut rest = path;
        for name in self.spec.mountpoint.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            loop {
                rest = strip_slashes(rest)?;
                match rest.strip_prefix(b".") {
                    Some(after) if after.first() == Some(&b'/') => rest = after,
                    _ => break,
                }
            }
            rest = rest.strip_prefix(name)?;
        }
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }
}

/// What follows the slashes that `path` must start with.
fn strip_slashes(path: &[u8]) -> Option<&[u8]> {
    let slashes = path.iter().take_while(|&&b| b == b'/').count();
    (slashes > 0).then(|| &path[slashes..])
}

impl Drop for Mount {
    fn drop(&mut self) {
        let pool = *self.pool.get_mut();
        if !pool.is_null() {
            // SAFETY: it came from a box in `attach`; `&mut self` says that nobody uses it.
            drop(unsafe { Box::from_raw(pool) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_stripped_by_whole_components() {
        let mount = Mount::new(MountSpec {
            mountpoint: b"/mnt/pool".to_vec(),
            dev: 0,
            flags: 0,
            nested: vec![],
            attach: Box::new(|| Err(Errno::NODEV)),
        });
        let strip = |path: &str| mount.strip(path.as_bytes()).map(|rest| rest.to_vec());
        assert_eq!(strip("/mnt/pool"), Some(b"".to_vec()));
        assert_eq!(strip("//mnt/./pool//a"), Some(b"//a".to_vec()));
        assert_eq!(strip("/mnt/pool/.."), Some(b"/..".to_vec()));
        for other in ["/mnt/pools", "/mnt", "/mnt/x/../pool/a", "mnt/pool", "/", ""] {
            assert_eq!(strip(other), None, "{other}");
        }
    }
}
