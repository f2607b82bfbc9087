//! Files that programs have announced to open by a [`Ticket`], and the virtual directory of such names.
//!
//! The directory has no inode in the engine: requests for its number are answered here, or fail as those for any
//! number that no inode has.

use std::time::Duration;

use fuser::{FileAttr, INodeNo, Request};
use mounts::{MountEvents, Opening, Requester, Ticket};
use vfs::{Entry, Errno, FileKind, FileSystem, Ino, Result};

use crate::convert;

/// The number of the virtual directory: no engine's, as they begin at 1.
pub(crate) const DIR: INodeNo = INodeNo(1 << 63);
/// How long the kernel may remember the virtual directory, which stays as it is.
pub(crate) const DIR_TTL: Duration = Duration::from_secs(24 * 3600);

/// Attributes of the virtual directory: every user may ask to "create" in it. Only root may list or watch it.
pub(crate) fn dir_attr() -> FileAttr {
    FileAttr { perm: 0o333, nlink: 2, ..convert::only_kind(Ino(DIR.0), FileKind::Dir) }
}

/// What the requester has announced by this ticket, if that is to be opened by a name in the virtual directory (`as_new`), or not.
pub(crate) fn announced(
    events: &dyn MountEvents,
    ticket: Ticket,
    req: &Request,
    as_new: bool,
) -> Option<Opening> {
    let by = Requester { thread: req.pid(), user: req.uid() };
    events.answer_opening(ticket, by).filter(|opening| opening.as_new == as_new)
}

/// The inode that was announced, if it still is in that life, and for the virtual directory a regular file; else `ENOENT`. Adds a
/// reference.
pub(crate) fn lookup(fs: &dyn FileSystem, opening: &Opening) -> Result<Entry> {
    let entry = fs.lookup(opening.ino, b".").map_err(|err| match err {
        Errno::STALE => Errno::NOENT,
        err => err,
    })?;
    let is_kind = !opening.as_new || entry.kind == FileKind::File;
    if entry.generation == opening.generation && is_kind {
        return Ok(entry);
    }
    fs.forget(entry.ino, 1);
    Err(Errno::NOENT)
}
