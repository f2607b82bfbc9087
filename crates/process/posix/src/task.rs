//! State that every call depends on: the kernel, the mounts, the process's identity, and its
//! limits.

use crate::creds::ThreadIdentity;
use crate::identity::Identities;
use crate::mount::{Mounts, ServedMount};
use crate::sys::Kernel;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use vfs::rules::{S_ISGID, S_ISUID};
use vfs::{Attr, Errno, FileSystem, SetAttr};

/// The kernel, the mounts, credentials and limits of a process.
pub struct Task {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) mounts: Mounts,
    pub(crate) identities: Identities,
    /// `RLIMIT_FSIZE`.
    pub(crate) file_size_max: AtomicU64,
    umask: AtomicU32,
    /// Whether threads may have different values of `umask`.
    umask_unshared: AtomicBool,
}

impl Task {
    pub(crate) fn new(kernel: Box<dyn Kernel>) -> Result<Self, Errno> {
        let task = Self {
            kernel,
            mounts: Mounts::default(),
            identities: Identities::new()?,
            file_size_max: AtomicU64::new(u64::MAX),
            umask: AtomicU32::new(rustix::process::umask(rustix::fs::Mode::empty()).bits()),
            umask_unshared: AtomicBool::new(false),
        };
        rustix::process::umask(rustix::fs::Mode::from_bits_retain(task.umask.load(Relaxed)));
        Ok(task)
    }

    /// The mounts, with their indexes.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = (usize, &ServedMount)> {
        self.mounts.iter()
    }

    /// The mount with this index, which must exist.
    #[inline]
    pub(crate) fn mount(&self, index: usize) -> &ServedMount {
        self.mounts.get(index)
    }

    /// User, groups and capabilities of the calling thread.
    #[inline]
    pub(crate) fn identity(&self) -> &ThreadIdentity {
        self.identities.current()
    }

    /// Notes that threads have got a `umask` of their own (`unshare(CLONE_FS)`).
    pub fn umask_is_unshared(&self) {
        self.umask_unshared.store(true, Relaxed);
    }

    /// The `umask` of the calling thread.
    pub(crate) fn current_umask(&self) -> u32 {
        let common = self.umask.load(Relaxed);
        if !self.umask_unshared.load(Relaxed) {
            return common;
        }
        let mut status = [0; 256];
        let len = self.kernel.slurp(b"/proc/thread-self/status", &mut status).unwrap_or(0);
        let own = status[..len].split(|&byte| byte == b'\n').find_map(|line| {
            let digits = line.strip_prefix(b"Umask:")?.trim_ascii();
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
        });
        // If `/proc` does not show it, no other user gets any permission.
        own.unwrap_or(common | 0o077)
    }

    /// Notes the argument of a call of the kernel's `umask`, which must be made, too.
    pub fn umask(&self, mask: u32) {
        self.umask.store(mask & 0o777, Relaxed);
    }

    /// Reads a number below `/proc/sys/fs`: how the kernel protects links and files in directories
    /// that all users may write to. 0 if it cannot be read. It is read each time, so this is for
    /// rare cases.
    pub(crate) fn protection(&self, name: &str) -> u8 {
        let mut path = [0; 64];
        let path = crate::text::format(&mut path, format_args!("/proc/sys/fs/{name}"));
        let mut value = [b'0'; 4];
        let _ = self.kernel.slurp(path, &mut value);
        value[0].wrapping_sub(b'0')
    }

    /// Returns `EPERM` in a user namespace that renames users. The pool's IDs are those of the
    /// initial namespace.
    pub(crate) fn check_user_namespace(&self) -> Result<(), Errno> {
        let mut map = [0; 64];
        let len = self.kernel.slurp(b"/proc/self/uid_map", &mut map)?;
        let mut words = map[..len].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let identity: [&[u8]; 3] = [b"0", b"0", b"4294967295"];
        if words.by_ref().take(3).eq(identity) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Takes from a file the privileges that it loses by an unprivileged change of its content.
    pub(crate) fn drop_privileges(&self, fs: &dyn FileSystem, attr: &Attr) -> Result<(), Errno> {
        let creds = &self.identity().effective;
        if creds.write_drops_privileges(attr) {
            fs.drop_privileges(attr.ino)?;
        }
        if creds.drops_plain_setgid(attr) {
            let perm = Some(attr.perm & !(S_ISUID | S_ISGID));
            fs.setattr(&creds.caller(), attr.ino, &SetAttr { perm, ..SetAttr::default() })?;
        }
        Ok(())
    }
}
