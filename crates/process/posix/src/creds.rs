//! The credentials of callers, and what these permit: `fs/namei.c` and `fs/posix_acl.c` of Linux in
//! user space.
//!
//! The permission of the pool file decides on access to the pool. The checks here make programs see
//! the mount's answers.

#![allow(unsafe_code)]

use bitflags::bitflags;
use mounts::Requester;
use os::syscalls::{are_filtered, syscall};
use rustix::fd::IntoRawFd as _;
use rustix::fs::{Mode, OFlags};
use vfs::acl::{ACL_ACCESS, Acl, Tag};
use vfs::rules::{S_ISGID, S_ISUID, S_IXGRP};
use vfs::{Attr, Caller, Errno, FileKind, FileSystem, Result};

bitflags! {
    /// Capabilities that file systems ask for (`capabilities(7)`), by their number in the kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u64 {
        /// Change owners.
        const CHOWN = 1 << 0;
        /// Read, write and search everything.
        const DAC_OVERRIDE = 1 << 1;
        /// Read and search everything.
        const DAC_READ_SEARCH = 1 << 2;
        /// Do what only owners may.
        const FOWNER = 1 << 3;
        /// Keep set-user-ID and set-group-ID.
        const FSETID = 1 << 4;
        /// Trusted attributes.
        const SYS_ADMIN = 1 << 21;
        /// Make device files.
        const MKNOD = 1 << 27;
        /// Give files capabilities.
        const SETFCAP = 1 << 31;
    }
}

bitflags! {
    /// The operations that a caller wants to perform on an inode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AccessMask: u32 {
        /// Execute; for directories, search.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}

/// A user with groups and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User ID of file system calls.
    pub uid: u32,
    /// Group ID of file system calls.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Capabilities.
    pub caps: Caps,
}

/// The credentials of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadIdentity {
    /// The credentials of file system calls.
    pub effective: Credentials,
    /// The credentials that `access` without `AT_EACCESS` checks.
    pub real: Credentials,
}

/// An ID of the calling thread's file system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FsId {
    User,
    Group,
}

impl FsId {
    /// Returns the present ID.
    ///
    /// `setfsuid` returns it at once. But a filter of system calls may end the process for that
    /// call: systemd has it in `@privileged`. Then `/proc` has the ID.
    fn current(self) -> Result<u32> {
        if are_filtered() {
            return Ok(self.in_status().unwrap_or_else(|| self.effective()));
        }
        let number = match self {
            Self::User => libc::SYS_setfsuid,
            Self::Group => libc::SYS_setfsgid,
        };
        // An invalid ID changes nothing; the call returns the present one. SAFETY: plain numbers,
        // no memory, no descriptors.
        unsafe { syscall(number, [u32::MAX as usize, 0, 0, 0, 0]) }.map(|id| id as u32)
    }

    /// Reads the ID from `/proc`.
    fn in_status(self) -> Option<u32> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/thread-self/status", flags, Mode::empty()).ok()?;
        // These lines are among the first.
        let mut beginning = [0; 1024];
        let len = rustix::io::read(&file, &mut beginning);
        // By the kernel alone: `close` of libc would come back to this library, which may hold
        // locks. SAFETY: the descriptor that was opened above.
        unsafe { rustix::io::close(file.into_raw_fd()) };
        let len = len.ok()?;
        let name: &[u8] = match self {
            Self::User => b"Uid:",
            Self::Group => b"Gid:",
        };
        let mut lines = beginning[..len].split(|byte| *byte == b'\n');
        let ids = std::str::from_utf8(lines.find_map(|line| line.strip_prefix(name))?).ok()?;
        // Real, effective, saved, that of file system calls.
        ids.split_ascii_whitespace().nth(3)?.parse().ok()
    }

    /// Returns the effective ID, which is the same unless the thread has called `setfsuid`.
    fn effective(self) -> u32 {
        match self {
            Self::User => rustix::process::geteuid().as_raw(),
            Self::Group => rustix::process::getegid().as_raw(),
        }
    }
}

/// The calling thread, as the server of a mount sees it.
pub fn requester() -> Result<Requester> {
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    Ok(Requester { thread, user: FsId::User.current()? })
}

impl ThreadIdentity {
    /// Reads the credentials of the calling thread.
    pub fn read() -> Result<Self> {
        use rustix::process::{getgid, getuid};
        let (uid, gid) = (FsId::User.current()?, FsId::Group.current()?);
        let mut groups = vec![0u32; 64];
        loop {
            let args = [groups.len(), groups.as_mut_ptr() as usize, 0, 0, 0];
            // SAFETY: room for `groups.len()` IDs.
            match unsafe { syscall(libc::SYS_getgroups, args) } {
                Ok(len) => break groups.truncate(len),
                Err(Errno::INVAL) if groups.len() < 65_536 => groups.resize(65_536, 0),
                Err(e) => return Err(e),
            }
        }
        let caps = rustix::thread::capabilities(None)?;
        let effective = Caps::from_bits_truncate(caps.effective.bits());
        let real_uid = getuid().as_raw();
        // As in the kernel, a real user other than root has no capabilities there.
        const SECBIT_NO_SETUID_FIXUP: usize = 1 << 2;
        let get = [libc::PR_GET_SECUREBITS as usize, 0, 0, 0, 0];
        // SAFETY: it changes nothing.
        let secure_bits = unsafe { syscall(libc::SYS_prctl, get) }.unwrap_or(0) as usize;
        let keeps_caps = secure_bits & SECBIT_NO_SETUID_FIXUP != 0;
        let real = match real_uid {
            _ if keeps_caps => effective,
            0 => Caps::from_bits_truncate(caps.permitted.bits()),
            _ => Caps::empty(),
        };
        Ok(Self {
            effective: Credentials { uid, gid, groups: groups.clone(), caps: effective },
            real: Credentials { uid: real_uid, gid: getgid().as_raw(), groups, caps: real },
        })
    }

    /// The credentials of no user and no group, without capabilities.
    pub fn nobody() -> Self {
        let none = || Credentials {
            uid: u32::MAX,
            gid: u32::MAX,
            groups: Vec::new(),
            caps: Caps::empty(),
        };
        Self { effective: none(), real: none() }
    }
}

impl Credentials {
    /// The owner and group of an inode that a call creates.
    pub fn caller(&self) -> Caller {
        Caller { uid: self.uid, gid: self.gid }
    }

    /// Whether all of `caps` are there.
    #[inline]
    pub fn can(&self, caps: Caps) -> bool {
        self.caps.contains(caps)
    }

    /// Whether `gid` is the group or one of the supplementary groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller is the owner or may act as one (`inode_owner_or_capable`).
    pub fn owns(&self, attr: &Attr) -> bool {
        self.uid == attr.uid || self.can(Caps::FOWNER)
    }

    /// Returns `EACCES` unless `want` is permitted (`generic_permission`).
    #[inline]
    pub fn check(&self, fs: &dyn FileSystem, attr: &Attr, want: AccessMask) -> Result<()> {
        let is_dir = attr.kind == FileKind::Dir;
        if is_dir && self.can(Caps::DAC_OVERRIDE) {
            return Ok(());
        }
        if self.is_granted(fs, attr, want)? {
            return Ok(());
        }
        let read_only =
            if is_dir { !want.contains(AccessMask::WRITE) } else { want == AccessMask::READ };
        if read_only && self.can(Caps::DAC_READ_SEARCH) {
            return Ok(());
        }
        let executable = !want.contains(AccessMask::EXEC) || is_dir || attr.perm & 0o111 != 0;
        if executable && self.can(Caps::DAC_OVERRIDE) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether mode bits and ACL permit `want` (`acl_permission_check`).
    fn is_granted(&self, fs: &dyn FileSystem, attr: &Attr, want: AccessMask) -> Result<bool> {
        let allows = |bits: u32| want.bits() & !bits == 0;
        if attr.uid == self.uid {
            return Ok(allows(attr.perm >> 6));
        }
        if attr.perm & 0o070 != 0 && attr.kind != FileKind::Symlink {
            match fs.getxattr(attr.ino, ACL_ACCESS) {
                Ok(acl) => return Ok(self.acl_grants(attr, &Acl::parse(&acl)?, want)),
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(allows(if self.in_group(attr.gid) { attr.perm >> 3 } else { attr.perm }))
    }

    /// Whether an ACL permits `want` to a user who is not the owner (`posix_acl_permission`).
    fn acl_grants(&self, attr: &Attr, acl: &Acl, want: AccessMask) -> bool {
        let entries = acl.entries();
        let allows = |perm: u16| want.bits() & !u32::from(perm) == 0;
        let mask = entries.iter().find(|e| e.tag == Tag::Mask).map_or(0o7, |e| e.perm);
        if let Some(named) = entries.iter().find(|e| e.tag == Tag::User(self.uid)) {
            return allows(named.perm & mask);
        }
        let mut member = false;
        for entry in entries {
            let gid = match entry.tag {
                Tag::GroupObj => attr.gid,
                Tag::Group(gid) => gid,
                _ => continue,
            };
            if self.in_group(gid) {
                member = true;
                if allows(entry.perm) {
                    return allows(entry.perm & mask);
                }
            }
        }
        !member && entries.iter().any(|e| e.tag == Tag::Other && allows(e.perm))
    }

    /// Returns `EPERM` if a sticky directory keeps the caller from removing or renaming the inode.
    pub fn check_sticky(&self, dir: &Attr, victim: &Attr) -> Result<()> {
        let sticky = dir.perm & 0o1000 != 0;
        if !sticky || self.uid == victim.uid || self.uid == dir.uid || self.can(Caps::FOWNER) {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }

    /// Whether a write by this caller takes set-user-ID and its like from a file with these
    /// attributes. Capabilities of files are not among the attributes: executables may have them.
    pub fn write_drops_privileges(&self, attr: &Attr) -> bool {
        !self.can(Caps::FSETID) && attr.perm & (S_ISUID | S_ISGID | 0o111) != 0
    }

    /// Whether a change by this caller also takes set-group-ID from a file that is not
    /// group-executable. It does if the caller is outside the file's group
    /// (`setattr_should_drop_sgid`).
    pub fn drops_plain_setgid(&self, attr: &Attr) -> bool {
        attr.perm & (S_ISGID | S_IXGRP) == S_ISGID
            && attr.kind != FileKind::Dir
            && !self.in_group(attr.gid)
            && !self.can(Caps::FSETID)
    }

    /// Returns `mode` without set-group-ID, if a user outside the group creates a group-executable
    /// file in a directory that hands on its group (`mode_strip_sgid`).
    pub fn strip_setgid(&self, dir: &Attr, mode: u32) -> u32 {
        let both = S_ISGID | S_IXGRP;
        let hands_on = dir.perm & S_ISGID != 0 && mode & both == both;
        if hands_on && !self.in_group(dir.gid) && !self.can(Caps::FSETID) {
            mode & !S_ISGID
        } else {
            mode
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_a_thread_are_in_proc_as_the_kernel_returns_them() {
        let ids = [FsId::User, FsId::Group];
        std::thread::scope(|scope| {
            let changed = scope.spawn(|| {
                // SAFETY: numbers; only this thread changes.
                unsafe {
                    libc::syscall(libc::SYS_setfsgid, 54_321);
                    libc::syscall(libc::SYS_setfsuid, 12_345);
                }
                (ids.map(FsId::in_status), ids.map(FsId::current))
            });
            let (in_status, current) = changed.join().unwrap();
            assert_eq!(in_status, [Some(12_345), Some(54_321)], "this needs root");
            assert_eq!(current, [Ok(12_345), Ok(54_321)]);
        });
        assert_eq!(ids.map(FsId::in_status), ids.map(|id| Some(id.effective())));
    }
}
