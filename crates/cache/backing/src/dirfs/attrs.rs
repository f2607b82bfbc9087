//! Attributes, including extended ones.

use super::inode::{attr, stat};
use super::{DirFs, DirInode, link_to};
use crate::locks;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Statx, StatxAttributes, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid, XattrFlags,
};
use std::os::fd::{AsFd as _, OwnedFd};
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use vfs::rules::clear_privileges;
use vfs::{Attr, Errno, FileKind, Ino, Result, SetAttr, SetTime, SetXattr};

/// The attribute with the capabilities that a program has beyond its caller's.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// The names under which XFS lists each ACL a second time.
const XFS_ACLS: &[u8] = b"trusted.SGI_ACL_";
/// The maximum length of a value and of a list of names, in bytes.
const XATTR_MAX: usize = 65_536;

impl DirFs {
    /// Checks attributes and sets them.
    pub(super) fn set_attrs(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let inode = self.inode(ino)?;
        match (set.size, inode.kind) {
            (None, _) | (_, FileKind::File) => {}
            (_, FileKind::Dir) => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        if set.perm.is_some() && inode.kind == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        if set.size.is_some_and(|size| size > self.limits.file_size) {
            return Err(Errno::FBIG);
        }
        let result = self.set_steps(ino, &inode, set);
        if *set != SetAttr::default() {
            // This holds even after a failure midway.
            self.nodes().note_attrs(ino);
        }
        result
    }

    /// Sets the size, then the rest.
    fn set_steps(&self, ino: Ino, inode: &DirInode, set: &SetAttr) -> Result<Attr> {
        let _content = set.size.map(|_| self.contents.exclusive(ino));
        if let Some(size) = set.size {
            // The size comes first, because this step may fail. Some file systems do not remove the
            // capability with it.
            rustix::fs::ftruncate(self.content(inode, true)?, size)?;
            drop_capability(&inode.fd)?;
        }
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        let changes_times = set.atime.is_some() || set.mtime.is_some();
        let steps = [changes_owner, set.perm.is_some(), changes_times];
        let stat = if steps.into_iter().filter(|step| *step).count() > 1 {
            let _whole = locks::exclusive(&self.attrs);
            self.set_in_order(inode, set, steps)?;
            stat(inode.fd.as_fd())?
        } else {
            let _whole = locks::shared(&self.attrs);
            self.set_in_order(inode, set, steps)?;
            stat(inode.fd.as_fd())?
        };
        attr(ino, &stat)
    }

    /// Sets the owner first, because that clears privilege bits of the mode, then the mode, and
    /// times last, because the other steps change them.
    fn set_in_order(
        &self,
        inode: &DirInode,
        set: &SetAttr,
        [owner, mode, times]: [bool; 3],
    ) -> Result<()> {
        if owner {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(&inode.fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(perm) = set.perm.filter(|_| mode) {
            let mode = Mode::from_raw_mode(perm & 0o7777);
            rustix::fs::chmodat(CWD, link_to(&inode.fd), mode, AtFlags::empty())?;
        }
        if times {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            rustix::fs::utimensat(&inode.fd, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    /// Removes the set-user-ID and set-group-ID bits and the capability of an inode, except of a
    /// directory (`FileSystem::drop_privileges`).
    pub(super) fn clear_privileges(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Dir {
            return Ok(());
        }
        let mode = u32::from(stat(inode.fd.as_fd())?.stx_mode);
        if clear_privileges(mode) != mode || self.get_xattr(ino, CAPABILITY).is_ok() {
            // A change of owner, even to the same one, removes all of them in one step.
            rustix::fs::chownat(&inode.fd, "", None, None, AtFlags::EMPTY_PATH)?;
            self.nodes().note_attrs(ino);
        }
        Ok(())
    }

    /// Returns the value of an extended attribute. `ENODATA` if it does not exist, or has a name
    /// that [`set_xattr`](Self::set_xattr) refuses.
    pub(super) fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        // A name that cannot be set does not exist.
        if self.limits.check_xattr(inode.kind, name, 0).is_err() || is_hidden(name) {
            return Err(Errno::NODATA);
        }
        let path = link_to(&inode.fd);
        match sized(|buf| rustix::fs::getxattr(&path, name, buf)) {
            Err(Errno::OPNOTSUPP) => Err(Errno::NODATA),
            result => result,
        }
    }

    /// Sets an extended attribute (`FileSystem::setxattr`). Checks the content of an ACL, and
    /// whether it exists if `mode` depends on that: the kernel does neither. `EOPNOTSUPP` for the
    /// second names of ACLs on XFS.
    pub(super) fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        self.limits.check_xattr(inode.kind, name, value.len())?;
        if is_hidden(name) {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = match mode {
            SetXattr::Any => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        let _whole = is_acl(name).then(|| locks::exclusive(&self.attrs));
        if is_acl(name) {
            // The kernel treats an empty list as a removal and ignores the flags.
            Acl::parse_valid(value)?;
            match (mode, self.get_xattr(ino, name).is_ok()) {
                (SetXattr::Create, true) => return Err(Errno::EXIST),
                (SetXattr::Replace, false) => return Err(Errno::NODATA),
                _ => {}
            }
        }
        let _room = self.leave_reserve()?;
        rustix::fs::setxattr(link_to(&inode.fd), name, value, flags)?;
        self.nodes().note_attrs(ino);
        Ok(())
    }

    /// Returns the names of the extended attributes, without those that
    /// [`set_xattr`](Self::set_xattr) refuses. Empty if the file system has no attributes.
    pub(super) fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino)?;
        let path = link_to(&inode.fd);
        let list = match sized(|buf| rustix::fs::listxattr(&path, buf)) {
            Err(Errno::OPNOTSUPP) => Vec::new(),
            result => result?,
        };
        let is_ours =
            |name: &&[u8]| self.limits.check_xattr(inode.kind, name, 0).is_ok() && !is_hidden(name);
        Ok(list.split(|byte| *byte == 0).filter(is_ours).map(<[u8]>::to_vec).collect())
    }

    /// Removes an extended attribute. `ENODATA` if it does not exist, also for an ACL.
    pub(super) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        self.limits.check_xattr(inode.kind, name, 0)?;
        if is_hidden(name) {
            return Err(Errno::NODATA);
        }
        if is_acl(name) && self.get_xattr(ino, name) == Err(Errno::NODATA) {
            // The kernel returns no error then.
            return Err(Errno::NODATA);
        }
        rustix::fs::removexattr(link_to(&inode.fd), name)?;
        self.nodes().note_attrs(ino);
        Ok(())
    }
}

/// Removes the capability of a file, if it has one (vfs-C5).
pub(super) fn drop_capability(fd: &OwnedFd) -> Result<()> {
    match rustix::fs::removexattr(link_to(fd), CAPABILITY) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        // A process that may not remove it cannot keep it by writing either: the kernel has removed
        // it.
        Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns whether data can only be appended to a file with these attributes (`chattr(1)`).
pub(super) fn is_append_only(stat: &Statx) -> bool {
    let attributes = stat.stx_attributes;
    attributes.contains(StatxAttributes::APPEND) && !attributes.contains(StatxAttributes::IMMUTABLE)
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Returns whether XFS lists an ACL a second time under this name.
fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(XFS_ACLS)
}

/// Calls `get` with a buffer that is large enough, and returns the bytes.
fn sized(get: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buf = vec![0; 512];
    let len = loop {
        match get(&mut buf) {
            Err(Errno::RANGE) if buf.len() < XATTR_MAX => buf.resize(XATTR_MAX, 0),
            result => break result?,
        }
    };
    buf.truncate(len);
    Ok(buf)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(time)) => {
            let (tv_sec, nanos) = time.parts();
            Timespec { tv_sec, tv_nsec: nanos.into() }
        }
    }
}
