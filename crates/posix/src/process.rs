//! The process.

use crate::MountSpec;
use vfs::Errno;

/// What this process knows of its descriptors and mounts. Any number of threads may call it.
pub struct Process {}

impl Process {
    /// Makes the shared memory of the family and claims its first process slot. Makes two system
    /// calls; opens nothing.
    pub fn start() -> Result<Self, Errno> {
        Ok(Self {})
    }

    /// Adds a mount; it is attached at its first use. `ENOSPC` beyond 16 mounts.
    pub fn add_mount(&self, spec: MountSpec) -> Result<(), Errno> {
        let _ = spec;
        Ok(())
    }

    /// Whether calls on `fd` may be answered here: one load.
    #[inline]
    pub fn owns(&self, fd: i32) -> bool {
        let _ = fd;
        false
    }

    /// Moves a descriptor of the caller's own (a pool file, say) to a high number that the program
    /// neither sees nor can close; returns that number.
    pub fn hide(&self, fd: i32) -> Result<i32, Errno> {
        Ok(fd)
    }

    /// Reads user, groups and capabilities again: after each set*id, setgroups, capset.
    pub fn credentials_changed(&self) {}

    /// Reads `RLIMIT_FSIZE` and `RLIMIT_NOFILE` again: after each setrlimit, prlimit.
    pub fn limits_changed(&self) {}

    /// After a successful chroot, pivot_root, unshare, setns, mount or umount: paths are the
    /// kernel's from now on; open descriptors stay.
    pub fn namespace_changed(&self) {}
}
