//! Attributes, extended attributes, ACLs.

use super::{Inode, Node, State};
use crate::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use crate::rules::clear_privileges;
use crate::{Attr, Errno, FileKind, Ino, Limits, Result, SetAttr, SetTime, SetXattr, Timestamp};

/// Attribute that lends privileges to a program; a change of content or owner takes it away.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

impl State {
    pub(super) fn setattr(&mut self, now: Timestamp, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let limits = self.limits;
        let inode = self.inode_mut(ino)?;
        let chmod_acl = check_setattr(limits, inode, set)?;
        if set.uid.is_some() || set.gid.is_some() {
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            if !inode.is_dir() {
                inode.perm = clear_privileges(inode.perm);
                inode.xattrs.remove(CAPABILITY);
            }
        }
        if let Some(perm) = set.perm {
            inode.perm = perm & 0o7777;
        }
        if let Some(mut acl) = chmod_acl {
            acl.chmod(inode.perm);
            inode.xattrs.insert(ACL_ACCESS.to_vec(), acl.to_bytes());
        }
        if let (Some(size), Node::File(data)) = (set.size, &mut inode.node) {
            data.truncate(size);
            inode.xattrs.remove(CAPABILITY);
            inode.mtime = now;
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        if *set != SetAttr::default() {
            inode.ctime = set.ctime.unwrap_or(now);
        }
        Ok(inode.attr(ino))
    }

    pub(super) fn drop_privileges(&mut self, now: Timestamp, ino: Ino) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        if inode.is_dir() {
            return Ok(());
        }
        let perm = clear_privileges(inode.perm);
        let had_capability = inode.xattrs.remove(CAPABILITY).is_some();
        if had_capability || perm != inode.perm {
            inode.perm = perm;
            inode.ctime = now;
        }
        Ok(())
    }

    pub(super) fn setxattr(
        &mut self,
        now: Timestamp,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        let limits = self.limits;
        let inode = self.inode_mut(ino)?;
        limits.check_xattr(inode.kind(), name, value.len())?;
        let acl = if name == ACL_ACCESS || name == ACL_DEFAULT {
            Some(Acl::parse_valid(value)?)
        } else {
            None
        };
        let exists = inode.xattrs.contains_key(name);
        match mode {
            SetXattr::Create if exists => return Err(Errno::EXIST),
            SetXattr::Replace if !exists => return Err(Errno::NODATA),
            _ => {}
        }
        let list_len: usize = inode.xattrs.keys().map(|name| name.len() + 1).sum();
        if !exists && list_len + name.len() + 1 > limits.xattr_list {
            return Err(Errno::NOSPC);
        }
        let stored = match acl {
            None => Some(value.to_vec()),
            Some(acl) if name == ACL_DEFAULT => Some(acl.to_bytes()),
            Some(acl) => {
                let (perm, acl) = acl.split_mode(inode.perm);
                inode.perm = perm;
                acl.map(|acl| acl.to_bytes())
            }
        };
        match stored {
            Some(value) => inode.xattrs.insert(name.to_vec(), value),
            None => inode.xattrs.remove(name),
        };
        inode.ctime = now;
        Ok(())
    }

    pub(super) fn removexattr(&mut self, now: Timestamp, ino: Ino, name: &[u8]) -> Result<()> {
        let limits = self.limits;
        let inode = self.inode_mut(ino)?;
        limits.check_xattr(inode.kind(), name, 0)?;
        inode.xattrs.remove(name).ok_or(Errno::NODATA)?;
        inode.ctime = now;
        Ok(())
    }
}

/// Checks all of `set`; gives the access ACL that a change of mode has to rewrite.
fn check_setattr(limits: &Limits, inode: &Inode, set: &SetAttr) -> Result<Option<Acl>> {
    if let Some(size) = set.size {
        match inode.kind() {
            FileKind::File if size > limits.file_size => return Err(Errno::FBIG),
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
    }
    if set.perm.is_none() {
        return Ok(None);
    }
    if inode.kind() == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    inode.xattrs.get(ACL_ACCESS).map(|value| Acl::parse(value)).transpose()
}
