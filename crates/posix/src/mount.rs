//! Mounts of pools, as this process sees them.

use vfs::{Errno, FileSystem};

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
    /// a lock; possibly by two threads at once, the second result is then dropped). After an error
    /// the mount is the kernel's for good.
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
