//! The calls of the contract as operations of a script.

use super::text::{Field, Octal, Words, options};
use crate::{Caller, SetAttr, SetTime, SetXattr, Timestamp};
use std::fmt;
use std::str::FromStr;

crate::text_form! {
/// One operation. A place is a path (`/d/a`) or a handle (`%0`) that an earlier operation made; a
/// path can begin with the handle of a directory (`%0/a`). Numbers are in bytes, modes octal.
/// `docs/format/script.md` describes the words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named as the calls they make
pub enum Op {
    /// Adds a reference, which a handle can keep.
    Lookup(path: String, keep: Keep) "lookup";
    Getattr(place: String) "getattr";
    Setattr(place: String, attrs: Attrs) "setattr";
    Create(path: String, new: New, keep: Keep) "create";
    Mkdir(path: String, new: New, keep: Keep) "mkdir";
    Symlink(path: String, len: u32, new: New, keep: Keep) "symlink";
    Mkfifo(path: String, new: New, keep: Keep) "mkfifo";
    Mksocket(path: String, new: New, keep: Keep) "mksocket";
    /// A character device.
    Mknod(path: String, device: u32, new: New, keep: Keep) "mknod";
    MknodBlock(path: String, device: u32, new: New, keep: Keep) "mknod-block";
    Readlink(place: String) "readlink";
    Link(from: String, to: String) "link";
    Unlink(path: String) "unlink";
    Rmdir(path: String) "rmdir";
    Rename(from: String, to: String) "rename";
    RenameNoReplace(from: String, to: String) "rename-noreplace";
    Exchange(from: String, to: String) "exchange";
    /// Leaves a whiteout under the old name.
    RenameWhiteout(from: String, to: String, new: New) "rename-whiteout";
    /// Renames with any bits of `renameat2(2)`.
    RenameFlags(from: String, to: String, flags: u32) "rename-flags";
    Write(place: String, at: Pos, len: u64, data: Data) "write";
    Append(place: String, len: u64, data: Data) "append";
    Truncate(place: String, size: Pos) "truncate";
    Allocate(place: String, at: Pos, len: u64) "allocate";
    AllocateKeep(place: String, at: Pos, len: u64) "allocate-keep";
    Punch(place: String, at: Pos, len: u64) "punch";
    Zero(place: String, at: Pos, len: u64) "zero";
    ZeroKeep(place: String, at: Pos, len: u64) "zero-keep";
    Collapse(place: String, at: Pos, len: u64) "collapse";
    Insert(place: String, at: Pos, len: u64) "insert";
    SeekData(place: String, at: Pos) "seek-data";
    SeekHole(place: String, at: Pos) "seek-hole";
    Copy(from: String, from_at: Pos, to: String, to_at: Pos, len: u64) "copy";
    /// A copy that shares blocks.
    Clone(from: String, from_at: Pos, to: String, to_at: Pos, len: u64) "clone";
    Chmod(place: String, perm: Octal) "chmod";
    Chown(place: String, uid: u32, gid: u32) "chown";
    /// Size, mode and owner in one call.
    SetAll(place: String, size: u64, perm: Octal, uid: u32) "setall";
    /// Both times, derived from the operation's number.
    Utimes(place: String) "utimes";
    DropPrivileges(place: String) "drop-privileges";
    Getxattr(place: String, name: String) "getxattr";
    SetXattr(place: String, name: String, len: u32, data: Data, how: How) "setxattr";
    Listxattr(place: String) "listxattr";
    RemoveXattr(place: String, name: String) "removexattr";
    /// An access ACL.
    SetAcl(place: String, acl: AclOf, how: How) "setacl";
    /// A default ACL.
    SetDefaultAcl(place: String, acl: AclOf, how: How) "setdefaultacl";
    /// Opens a path as a handle.
    Open(path: String, handle: usize) "open";
    Tmpfile(dir: String, handle: usize, new: New) "tmpfile";
    Close(handle: usize) "close";
    Read(place: String, part: Part) "read";
    List(place: String, batch: Batch) "list";
    Fsync(place: String) "fsync";
    /// Syncs the whole file system.
    Sync "sync";
    Statfs "statfs";
    /// Appends blocks until there is no space. Many operations; for setting up only.
    Fill(place: String) "fill";
    /// Unmounts and mounts again; handles are gone.
    Remount "remount";
}
}

options! {
    /// The caller who makes a node, and its mode (of a whiteout only the caller). Defaults: caller
    /// 3:4, or 0:0 for files without a name; mode 666 for files, 644 for files without a name, 777
    /// for directories and links, 600 for others; umask 22, or 0 for files without a name.
    pub struct New {
        /// The caller.
        by: By,
        /// Permissions.
        mode: Octal,
        /// The permissions to leave out.
        umask: Octal,
    }
}

options! {
    /// The handle that keeps the inode that was made or found.
    pub struct Keep {
        /// Its number.
        keep: usize,
    }
}

options! {
    /// The bytes to write. Default: bytes that are derived from the operation's number.
    pub struct Data {
        /// The number from which the bytes are derived instead; 0: all bytes are zero.
        fill: u32,
    }
}

options! {
    /// The part to read. Default: the first 64 bytes.
    pub struct Part {
        /// Where it begins.
        at: Pos,
        /// Bytes.
        len: u32,
    }
}

options! {
    /// The way in which directories are listed. Default: in one call.
    pub struct Batch {
        /// Entries of each call.
        batch: u32,
    }
}

options! {
    /// The permissions that an ACL gives. Default: 75470.
    pub struct AclOf {
        /// Permissions of the owner, user 5, the group, the mask and others, a digit each.
        perms: Octal,
        /// Whether the ACL expresses no more than a mode: it has neither the user nor the mask.
        plain: bool,
    }
}

options! {
    /// The condition under which an attribute is set. Default: none.
    pub struct How {
        /// Whether the attribute must be absent or present.
        how: Only,
    }
}

options! {
    /// The attributes to set.
    pub struct Attrs {
        /// Permissions.
        mode: Octal,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Bytes.
        size: u64,
        /// Last access.
        atime: When,
        /// Last change of content.
        mtime: When,
        /// Last change of the inode, in nanoseconds.
        ctime: i64,
    }
}

impl Attrs {
    /// Converts to the type of the contract.
    pub fn set(&self) -> SetAttr {
        let time = |when: &Option<When>| {
            when.as_ref().map(|when| when.0.map_or(SetTime::Now, |ns| SetTime::At(Timestamp(ns))))
        };
        SetAttr {
            perm: self.mode.map(|mode| mode.0),
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: time(&self.atime),
            mtime: time(&self.mtime),
            ctime: self.ctime.map(Timestamp),
        }
    }
}

/// A word that does not have the form of its type.
#[derive(Clone, Copy, Debug)]
pub struct BadWord;

impl From<std::num::ParseIntError> for BadWord {
    fn from(_: std::num::ParseIntError) -> Self {
        Self
    }
}

/// A place in a file: `5`, `end-5`, `limit+1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pos {
    /// Bytes from the start.
    At(u64),
    /// Bytes from the end.
    End(i64),
    /// Bytes from the end of the largest possible file.
    Limit(i64),
}

impl From<u64> for Pos {
    fn from(at: u64) -> Self {
        Self::At(at)
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => write!(f, "{at}"),
            Self::End(from) => write!(f, "end{from:+}"),
            Self::Limit(from) => write!(f, "limit{from:+}"),
        }
    }
}

impl FromStr for Pos {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        if let Some(from) = word.strip_prefix("end") {
            return Ok(Self::End(from.parse()?));
        }
        match word.strip_prefix("limit") {
            Some(from) => Ok(Self::Limit(from.parse()?)),
            None => Ok(Self::At(word.parse()?)),
        }
    }
}

/// A caller: `1000:100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct By {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl From<By> for Caller {
    fn from(By { uid, gid }: By) -> Self {
        Self { uid, gid }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for By {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let (uid, gid) = word.split_once(':').ok_or(BadWord)?;
        Ok(Self { uid: uid.parse()?, gid: gid.parse()? })
    }
}

/// A time in nanoseconds, or `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct When(pub Option<i64>);

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ns) => write!(f, "{ns}"),
            None => f.write_str("now"),
        }
    }
}

impl FromStr for When {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        if word == "now" { Ok(Self(None)) } else { Ok(Self(Some(word.parse()?))) }
    }
}

/// The condition under which an attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Only {
    /// Only if the attribute does not exist.
    Create,
    /// Only if the attribute exists.
    Replace,
}

impl From<Only> for SetXattr {
    fn from(only: Only) -> Self {
        match only {
            Only::Create => Self::Create,
            Only::Replace => Self::Replace,
        }
    }
}

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Replace => "replace",
        })
    }
}

impl FromStr for Only {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        match word {
            "create" => Ok(Self::Create),
            "replace" => Ok(Self::Replace),
            _ => Err(BadWord),
        }
    }
}

impl Op {
    /// Returns the file whose content or size the operation changes.
    pub fn content_of(&self) -> Option<&str> {
        match self {
            Self::Write(p, ..)
            | Self::Append(p, ..)
            | Self::Truncate(p, _)
            | Self::Allocate(p, ..)
            | Self::AllocateKeep(p, ..)
            | Self::Punch(p, ..)
            | Self::Zero(p, ..)
            | Self::ZeroKeep(p, ..)
            | Self::Collapse(p, ..)
            | Self::Insert(p, ..)
            | Self::Copy(_, _, p, ..)
            | Self::Clone(_, _, p, ..)
            | Self::SetAll(p, ..) => Some(p),
            _ => None,
        }
    }

    /// Returns whether the operation changes only access times and handles.
    pub fn reads(&self) -> bool {
        matches!(
            self,
            Self::Lookup(..)
                | Self::Getattr(_)
                | Self::Readlink(_)
                | Self::SeekData(..)
                | Self::SeekHole(..)
                | Self::Getxattr(..)
                | Self::Listxattr(_)
                | Self::Open(..)
                | Self::Close(_)
                | Self::Read(..)
                | Self::List(..)
                | Self::Statfs
        )
    }

    /// Creates a file with a name.
    pub fn create(path: impl Into<String>) -> Self {
        Self::Create(path.into(), New::default(), Keep::default())
    }

    /// Creates a directory.
    pub fn mkdir(path: impl Into<String>) -> Self {
        Self::Mkdir(path.into(), New::default(), Keep::default())
    }

    /// Writes bytes of its own at a place in a file.
    pub fn write(place: impl Into<String>, at: u64, len: u64) -> Self {
        Self::Write(place.into(), at.into(), len, Data::default())
    }

    /// Writes bytes of its own at the end of a file.
    pub fn append(place: impl Into<String>, len: u64) -> Self {
        Self::Append(place.into(), len, Data::default())
    }

    /// Sets a size.
    pub fn truncate(place: impl Into<String>, size: u64) -> Self {
        Self::Truncate(place.into(), size.into())
    }
}
