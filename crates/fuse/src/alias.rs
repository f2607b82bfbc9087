//! Files that are looked up by inode ([`mounts::Alias`]), and the virtual directory of such names.
//!
//! The directory has no inode in the engine: requests for its number are answered here, or fail as those for any
//! number that no inode has.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{FileAttr, INodeNo};
use mounts::{Alias, MountEvents};
use vfs::{Entry, Errno, FileKind, FileSystem, Ino, Result};

use crate::convert;

/// The number of the virtual directory: no engine's, as they begin at 1.
pub(crate) const DIR: INodeNo = INodeNo(1 << 63);
/// How long the kernel may remember the virtual directory, which stays as it is.
pub(crate) const DIR_TTL: Duration = Duration::from_secs(24 * 3600);

/// Attributes of the virtual directory: everybody who knows its name may "create" in it.
pub(crate) fn dir_attr() -> FileAttr {
    FileAttr { perm: 0o777, nlink: 2, ..convert::only_kind(Ino(DIR.0), FileKind::Dir) }
}

/// The inode if it still is in that life; else `ENOENT`. Adds a reference.
pub(crate) fn lookup(fs: &dyn FileSystem, alias: &Alias) -> Result<Entry> {
    let entry = fs.lookup(alias.ino, b".").map_err(|err| match err {
        Errno::STALE => Errno::NOENT,
        err => err,
    })?;
    if entry.generation == alias.generation {
        return Ok(entry);
    }
    fs.forget(alias.ino, 1);
    Err(Errno::NOENT)
}

/// The regular file that is called `name` in the virtual directory of `secret`, for an answer to the kernel; else
/// `ENOENT`. Adds a reference.
pub(crate) fn lookup_file(
    fs: &dyn FileSystem,
    events: &dyn MountEvents,
    secret: u64,
    name: &OsStr,
) -> Result<Entry> {
    let (alias, ticket) = Alias::parse_file(secret, name.as_bytes()).ok_or(Errno::NOENT)?;
    events.answer_opening(alias.ino, ticket);
    let entry = lookup(fs, &alias)?;
    if entry.kind == FileKind::File {
        return Ok(entry);
    }
    fs.forget(entry.ino, 1);
    Err(Errno::NOENT)
}
