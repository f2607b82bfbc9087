//! Files that programs have announced to open by a [`Ticket`], and the virtual directory of such
//! names.
//!
//! The directory has no inode in the engine. The server answers requests for its number here, or
//! they fail as those for any number without an inode do.

use std::time::Duration;

use fuser::{FileAttr, INodeNo, Request};
use mounts::{MountEvents, Opening, Requester, Ticket};
use vfs::{Entry, Errno, FileKind, FileSystem, Ino, Result};

use crate::convert;

/// Number of the virtual directory. No engine has it, as their numbers begin at 1.
pub(crate) const DIR: INodeNo = INodeNo(1 << 63);
/// Time for which the kernel may remember the virtual directory, which never changes.
pub(crate) const DIR_TTL: Duration = Duration::from_secs(24 * 3600);

/// Returns the attributes of the virtual directory: every user may ask to "create" in it. Only root
/// may list or watch it.
pub(crate) fn dir_attr() -> FileAttr {
    FileAttr { perm: 0o333, nlink: 2, ..convert::only_kind(Ino(DIR.0), FileKind::Dir) }
}

/// Returns the opening that the requester has announced by this ticket. `as_new`: by a name in the
/// virtual directory.
pub(crate) fn announced(
    events: &dyn MountEvents,
    ticket: Ticket,
    req: &Request,
    as_new: bool,
) -> Option<Opening> {
    let by = Requester { thread: req.pid(), user: req.uid() };
    events.answer_opening(ticket, by).filter(|opening| opening.as_new == as_new)
}

/// Returns the announced inode, if it still has that generation and, for the virtual directory, is
/// a regular file; else `ENOENT`. Adds a reference.
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
