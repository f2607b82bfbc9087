//! The calls.

use super::text::Octal;

crate::text_form! {
/// One operation. A place is a path (`/d/a`) or a handle (`%0`) that an earlier `open` or `tmpfile` made; a path can begin with
/// the handle of a directory (`%0/a`). Names are written as [`escape`](super::escape) does. Numbers are in bytes; modes are
/// octal. Content is derived from the operation's number, so that no two writes store the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named as the calls they make
pub enum Op {
    Create(path: String) "create";
    Mkdir(path: String) "mkdir";
    Symlink(path: String, len: u32) "symlink";
    Mkfifo(path: String) "mkfifo";
    Mknod(path: String, device: u32) "mknod";
    Link(from: String, to: String) "link";
    Unlink(path: String) "unlink";
    Rmdir(path: String) "rmdir";
    Rename(from: String, to: String) "rename";
    RenameNoReplace(from: String, to: String) "rename-noreplace";
    Exchange(from: String, to: String) "exchange";
    Write(place: String, at: u64, len: u64) "write";
    Append(place: String, len: u64) "append";
    Truncate(place: String, size: u64) "truncate";
    Allocate(place: String, at: u64, len: u64) "allocate";
    AllocateKeep(place: String, at: u64, len: u64) "allocate-keep";
    Punch(place: String, at: u64, len: u64) "punch";
    Zero(place: String, at: u64, len: u64) "zero";
    ZeroKeep(place: String, at: u64, len: u64) "zero-keep";
    Collapse(place: String, at: u64, len: u64) "collapse";
    Insert(place: String, at: u64, len: u64) "insert";
    Copy(from: String, from_at: u64, to: String, to_at: u64, len: u64) "copy";
    Chmod(place: String, perm: Octal) "chmod";
    Chown(place: String, uid: u32, gid: u32) "chown";
    /// Size, mode and owner in one call.
    SetAll(place: String, size: u64, perm: Octal, uid: u32) "setall";
    /// Both times, derived from the operation's number.
    Utimes(place: String) "utimes";
    DropPrivileges(place: String) "drop-privileges";
    SetXattr(place: String, name: String, len: u32) "setxattr";
    RemoveXattr(place: String, name: String) "removexattr";
    /// An access ACL with a named user.
    SetAcl(place: String) "setacl";
    /// A default ACL with a named user.
    SetDefaultAcl(place: String) "setdefaultacl";
    /// Opens a path as a handle.
    Open(path: String, handle: usize) "open";
    Tmpfile(dir: String, handle: usize) "tmpfile";
    Close(handle: usize) "close";
    Read(place: String) "read";
    List(place: String) "list";
    Fsync(place: String) "fsync";
    /// Appends blocks until there is no space. Many operations; for setting up only.
    Fill(place: String) "fill";
    /// Unmounts and mounts again; handles are gone.
    Remount "remount";
}
}

impl Op {
    /// The file whose content or size it changes.
    pub(super) fn content_of(&self) -> Option<&str> {
        match self {
            Self::Write(p, ..)
            | Self::Append(p, _)
            | Self::Truncate(p, _)
            | Self::Allocate(p, ..)
            | Self::AllocateKeep(p, ..)
            | Self::Punch(p, ..)
            | Self::Zero(p, ..)
            | Self::ZeroKeep(p, ..)
            | Self::Collapse(p, ..)
            | Self::Insert(p, ..)
            | Self::Copy(_, _, p, ..)
            | Self::SetAll(p, ..) => Some(p),
            _ => None,
        }
    }
}
