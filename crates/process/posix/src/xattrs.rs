//! Extended attributes: which caller may see and change which (`fs/xattr.c`).

use crate::creds::{AccessMask, Caps};
use crate::held::HeldInode;
use crate::names::Names;
use crate::served::{CallResult, CallStop, checked};
use crate::{Errno, Served};
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT};
use vfs::rules::S_ISGID;
use vfs::{FileKind, Limits, SetAttr, SetXattr, XATTR_NAME_MAX};

/// Prefixes of attributes that the server of a mount computes or takes as commands. Calls on them
/// are the kernel's.
const OF_SERVER: [&[u8]; 2] = [b"user.keepstone.", vfs::COMMANDS.as_bytes()];

/// Copies a value out, and returns its length. With an empty buffer, only returns the length.
fn answer(value: &[u8], buf: &mut [u8]) -> CallResult<usize> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

impl Names {
    fn at_path(&self, path: &[u8], flags: i32) -> CallResult<HeldInode<'_>> {
        self.paths().find(libc::AT_FDCWD, path, flags & libc::AT_SYMLINK_NOFOLLOW)
    }

    fn at_fd(&self, fd: i32) -> CallResult<HeldInode<'_>> {
        Ok(HeldInode::description(self.task(), self.table().get_open(fd)?))
    }

    /// `getxattr`, `lgetxattr` (`AT_SYMLINK_NOFOLLOW`): writes the value to `buf`, unless that is
    /// empty, and returns its length.
    pub fn getxattr(&self, path: &[u8], name: &[u8], buf: &mut [u8], flags: i32) -> Served<usize> {
        CallResult::into(
            checked(self.at_path(path, flags), check_name(name))
                .and_then(|held| self.get_value(&held, name, buf)),
        )
    }

    /// `fgetxattr`.
    pub fn fgetxattr(&self, fd: i32, name: &[u8], buf: &mut [u8]) -> Served<usize> {
        CallResult::into(
            checked(self.at_fd(fd), check_name(name))
                .and_then(|held| self.get_value(&held, name, buf)),
        )
    }

    /// Checks permission, and copies a value to `buf`, as [`answer`].
    fn get_value(&self, held: &HeldInode<'_>, name: &[u8], buf: &mut [u8]) -> CallResult<usize> {
        if is_acl(name) {
            if held.kind == FileKind::Symlink {
                return Err(Errno::OPNOTSUPP.into());
            }
        } else {
            self.may_use(held, name, AccessMask::READ)?;
            check_namespace(name)?;
        }
        answer(&held.fs().getxattr(held.ino, name)?, buf)
    }

    /// `setxattr`, `lsetxattr`. `how`: 0, `XATTR_CREATE` or `XATTR_REPLACE`.
    pub fn setxattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        how: i32,
        flags: i32,
    ) -> Served<()> {
        CallResult::into(
            checked(self.at_path(path, flags), check_set(name, value, how).map(drop))
                .and_then(|held| self.set_value(&held, name, value, how)),
        )
    }

    /// `fsetxattr`.
    pub fn fsetxattr(&self, fd: i32, name: &[u8], value: &[u8], how: i32) -> Served<()> {
        CallResult::into(
            checked(self.at_fd(fd), check_set(name, value, how).map(drop))
                .and_then(|held| self.set_value(&held, name, value, how)),
        )
    }

    /// Checks permission, and sets a value. An access ACL may remove set-group-ID.
    fn set_value(
        &self,
        held: &HeldInode<'_>,
        name: &[u8],
        value: &[u8],
        how: i32,
    ) -> CallResult<()> {
        let mode = check_set(name, value, how)?;
        held.check_writable()?;
        self.may_change(held, name)?;
        held.fs().setxattr(held.ino, name, value, mode)?;
        if name == ACL_ACCESS {
            self.clear_setgid_for_stranger(held)?;
        }
        Ok(())
    }

    /// Takes set-group-ID from a file whose access ACL was set by a user outside the file's group,
    /// as the kernel does.
    fn clear_setgid_for_stranger(&self, held: &HeldInode<'_>) -> Result<(), Errno> {
        let creds = &self.task().identity().effective;
        let attr = held.fs().getattr(held.ino)?;
        let keeps = creds.in_group(attr.gid) || creds.can(Caps::FSETID);
        if attr.perm & S_ISGID == 0 || keeps {
            return Ok(());
        }
        let set = SetAttr { perm: Some(attr.perm & !S_ISGID), ..SetAttr::default() };
        held.fs().setattr(&creds.caller(), held.ino, &set).map(drop)
    }

    /// `removexattr`, `lremovexattr`.
    pub fn removexattr(&self, path: &[u8], name: &[u8], flags: i32) -> Served<()> {
        CallResult::into(
            checked(self.at_path(path, flags), check_name(name))
                .and_then(|held| self.remove_value(&held, name)),
        )
    }

    /// `fremovexattr`.
    pub fn fremovexattr(&self, fd: i32, name: &[u8]) -> Served<()> {
        CallResult::into(
            checked(self.at_fd(fd), check_name(name))
                .and_then(|held| self.remove_value(&held, name)),
        )
    }

    /// Checks permission, and removes an attribute.
    fn remove_value(&self, held: &HeldInode<'_>, name: &[u8]) -> CallResult<()> {
        held.check_writable()?;
        self.may_change(held, name)?;
        match held.fs().removexattr(held.ino, name) {
            // A file that has no ACL is as if the ACL had been removed.
            Err(Errno::NODATA) if is_acl(name) => Ok(()),
            done => Ok(done?),
        }
    }

    /// `listxattr`, `llistxattr`: the names, each with its NUL.
    pub fn listxattr(&self, path: &[u8], buf: &mut [u8], flags: i32) -> Served<usize> {
        CallResult::into(self.at_path(path, flags).and_then(|held| self.list_names(&held, buf)))
    }

    /// `flistxattr`.
    pub fn flistxattr(&self, fd: i32, buf: &mut [u8]) -> Served<usize> {
        CallResult::into(self.at_fd(fd).and_then(|held| self.list_names(&held, buf)))
    }

    /// Lists the names that the user may see, as [`answer`].
    fn list_names(&self, held: &HeldInode<'_>, buf: &mut [u8]) -> CallResult<usize> {
        let names = held.fs().listxattr(held.ino)?;
        let trusted = self.task().identity().effective.can(Caps::SYS_ADMIN);
        let visible = names.iter().filter(|name| trusted || !name.starts_with(b"trusted."));
        let list: Vec<u8> =
            visible.flat_map(|name| [name, &b"\0"[..]]).flatten().copied().collect();
        answer(&list, buf)
    }

    /// Checks permission to set or remove an attribute. `Kernel` for one of the server.
    fn may_change(&self, held: &HeldInode<'_>, name: &[u8]) -> CallResult<()> {
        let creds = &self.task().identity().effective;
        if is_acl(name) {
            if held.kind == FileKind::Symlink {
                return Err(Errno::OPNOTSUPP.into());
            }
            return if creds.owns(held.attr()?) { Ok(()) } else { Err(Errno::PERM.into()) };
        }
        self.may_use(held, name, AccessMask::WRITE)?;
        let needed = match name {
            b"security.capability" => Caps::SETFCAP,
            _ if name.starts_with(b"security.") => Caps::SYS_ADMIN,
            _ => return Ok(()),
        };
        if creds.can(needed) { Ok(()) } else { Err(Errno::PERM.into()) }
    }

    /// Checks permission to use an attribute (`xattr_permission`).
    fn may_use(&self, held: &HeldInode<'_>, name: &[u8], want: AccessMask) -> CallResult<()> {
        if OF_SERVER.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(CallStop::Kernel);
        }
        let creds = &self.task().identity().effective;
        let hidden = if want == AccessMask::WRITE { Errno::PERM } else { Errno::NODATA };
        if name.starts_with(b"security.") || name.starts_with(b"system.") {
            return Ok(());
        }
        if name.starts_with(b"trusted.") {
            return if creds.can(Caps::SYS_ADMIN) { Ok(()) } else { Err(hidden.into()) };
        }
        if name.starts_with(b"user.") {
            let attr = held.attr()?;
            let sticky = attr.kind == FileKind::Dir && attr.perm & 0o1000 != 0;
            if !matches!(attr.kind, FileKind::File | FileKind::Dir) {
                return Err(hidden.into());
            }
            if sticky && want == AccessMask::WRITE && !creds.owns(attr) {
                return Err(Errno::PERM.into());
            }
        }
        Ok(held.check(creds, want)?)
    }
}

/// Returns `EOPNOTSUPP` for a name in no namespace, `EINVAL` for a name that is only a namespace.
fn check_namespace(name: &[u8]) -> Result<(), Errno> {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let prefix = prefixes.into_iter().find(|prefix| name.starts_with(prefix));
    if prefix.ok_or(Errno::OPNOTSUPP)?.len() == name.len() { Err(Errno::INVAL) } else { Ok(()) }
}

/// Checks the arguments of `setxattr`, in the kernel's order.
pub fn check_set(name: &[u8], value: &[u8], how: i32) -> Result<SetXattr, Errno> {
    let mode = match how {
        0 => SetXattr::Any,
        libc::XATTR_CREATE => SetXattr::Create,
        libc::XATTR_REPLACE => SetXattr::Replace,
        _ => return Err(Errno::INVAL),
    };
    check_name(name)?;
    // The kernel's limit. An engine may have a smaller one, which comes after more checks.
    if value.len() > Limits::MAX.xattr { Err(Errno::TOOBIG) } else { Ok(mode) }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX { Err(Errno::RANGE) } else { Ok(()) }
}
