//! The largest sizes and counts of a file system, and the rules that follow.

use crate::acl::{ACL_ACCESS, ACL_DEFAULT};
use crate::rules::has_any;
use crate::{Errno, Fallocate, FileKind, Result};
use std::ops::Range;

/// The largest sizes and counts of a file system, and whether its files share content. Each engine
/// states its own ([`FileSystem::limits`](crate::FileSystem::limits)); front ends and the
/// contract's own rules act on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest name of a directory entry, in bytes.
    pub name: usize,
    /// Longest target of a symbolic link, in bytes.
    pub symlink: usize,
    /// Largest size of a file, in bytes.
    pub file_size: u64,
    /// Most names that one inode other than a directory can have.
    pub links: u32,
    /// Longest value of an extended attribute, in bytes.
    pub xattr: usize,
    /// Longest list of names of extended attributes, in bytes, with a NUL after each.
    pub xattr_list: usize,
    /// Whether files may share content
    /// ([`FileSystem::clone_range`](crate::FileSystem::clone_range)).
    pub clones: bool,
}

impl Limits {
    /// The limits that no engine may exceed: lengths are the kernel's own limits, and a file of
    /// 2^48 bytes is a tree of height 4 (BPFS §3.1).
    pub const MAX: Self = Self {
        name: 255,
        symlink: 4095,
        file_size: 1 << 48,
        links: 65_000,
        xattr: 65_536,
        xattr_list: 65_536,
        clones: true,
    };

    /// Returns whether every limit is at most that of `other`.
    pub const fn are_within(&self, other: &Self) -> bool {
        self.name <= other.name
            && self.symlink <= other.symlink
            && self.file_size <= other.file_size
            && self.links <= other.links
            && self.xattr <= other.xattr
            && self.xattr_list <= other.xattr_list
            && self.clones <= other.clones
    }

    /// Checks a name that is to be created or removed: `ENOENT` if it is empty, `EINVAL` if it
    /// contains `/` or NUL or is `.` or `..`, `ENAMETOOLONG` if it is too long.
    #[inline]
    pub fn check_name(&self, name: &[u8]) -> Result<()> {
        self.check_component(name)?;
        if matches!(name, b"." | b"..") { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Checks a name that is to be looked up: as [`check_name`](Self::check_name), but `.` and `..`
    /// are allowed.
    #[inline]
    pub fn check_component(&self, name: &[u8]) -> Result<()> {
        if name.is_empty() {
            return Err(Errno::NOENT);
        }
        if has_any(name, [b'/', 0]) {
            return Err(Errno::INVAL);
        }
        if name.len() > self.name { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// Checks the target of a new symbolic link: `ENOENT` if it is empty, `ENAMETOOLONG` if it is
    /// too long.
    pub fn check_target(&self, target: &[u8]) -> Result<()> {
        match target.len() {
            0 => Err(Errno::NOENT),
            len if len > self.symlink => Err(Errno::NAMETOOLONG),
            _ => Ok(()),
        }
    }

    /// Checks an attribute that is to be set on, or (with a length of 0) removed from, an inode of
    /// `kind`. In this order: `ERANGE` for an empty name or one beyond [`XATTR_NAME_MAX`] bytes;
    /// `E2BIG` for a value that is too long; `EOPNOTSUPP` for an unknown namespace; `EINVAL` for a
    /// name without anything after the prefix, or with a NUL; `EPERM` for `user.` except on files
    /// and directories; `EOPNOTSUPP` for ACLs on symbolic links; `EACCES` for a default ACL except
    /// on directories.
    pub fn check_xattr(&self, kind: FileKind, name: &[u8], value_len: usize) -> Result<()> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Err(Errno::RANGE);
        }
        if value_len > self.xattr {
            return Err(Errno::TOOBIG);
        }
        if name == ACL_ACCESS || name == ACL_DEFAULT {
            return match kind {
                FileKind::Symlink => Err(Errno::OPNOTSUPP),
                FileKind::Dir => Ok(()),
                _ if name == ACL_DEFAULT => Err(Errno::ACCESS),
                _ => Ok(()),
            };
        }
        let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
        let prefix = prefixes.into_iter().find(|p| name.starts_with(p)).ok_or(Errno::OPNOTSUPP)?;
        if name.len() == prefix.len() || name.contains(&0) {
            return Err(Errno::INVAL);
        }
        let for_users = prefix == b"user.";
        if for_users && !matches!(kind, FileKind::File | FileKind::Dir) {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// Returns the end of a range of a file; `EFBIG` if no file can reach it.
    #[inline]
    pub fn end_of(&self, offset: u64, len: u64) -> Result<u64> {
        offset.checked_add(len).filter(|end| *end <= self.file_size).ok_or(Errno::FBIG)
    }

    /// Checks a call of [`FileSystem::fallocate`](crate::FileSystem::fallocate) on an inode of this
    /// kind with `size` bytes, and returns its range of bytes.
    pub fn check_fallocate(
        &self,
        (kind, size): (FileKind, u64),
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Range<u64>> {
        match kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR),
            _ => return Err(Errno::NODEV),
        }
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = self.end_of(offset, len)?;
        let (is_collapse, is_insert) = (mode == Fallocate::Collapse, mode == Fallocate::Insert);
        if is_collapse || is_insert {
            let is_aligned = offset.is_multiple_of(SHIFT_UNIT) && len.is_multiple_of(SHIFT_UNIT);
            if !is_aligned || offset >= size || is_collapse && end >= size {
                return Err(Errno::INVAL);
            }
            if is_insert && size + len > self.file_size {
                return Err(Errno::FBIG);
            }
        }
        Ok(offset..end)
    }

    /// Checks a call of [`FileSystem::clone_range`](crate::FileSystem::clone_range), between files
    /// of these sizes or, with `is_same`, within one; returns the number of bytes to share.
    pub fn check_clone(
        &self,
        is_same: bool,
        (from, from_size): (u64, u64),
        (to, to_size): (u64, u64),
        len: u64,
    ) -> Result<u64> {
        let is_aligned = |at: u64| at.is_multiple_of(CLONE_UNIT);
        let rest = from_size.checked_sub(from).ok_or(Errno::INVAL)?;
        if !is_aligned(from) || !is_aligned(to) || len > rest {
            return Err(Errno::INVAL);
        }
        let len = if len == 0 { rest } else { len };
        let to_end = self.end_of(to, len)?;
        if !is_aligned(len) && (len < rest || to_end < to_size) {
            return Err(Errno::INVAL);
        }
        let blocks = len.next_multiple_of(CLONE_UNIT);
        if is_same && len > 0 && from < to + blocks && to < from + blocks {
            return Err(Errno::INVAL);
        }
        Ok(len)
    }
}

/// The unit, in bytes, of content that files share.
pub const CLONE_UNIT: u64 = 4096;

/// Longest name of an extended attribute, in bytes, prefix included: the kernel's limit, for all
/// engines.
pub const XATTR_NAME_MAX: usize = 255;

/// The unit, in bytes, of ranges that are removed from or inserted into the middle of a file.
const SHIFT_UNIT: u64 = 4096;
