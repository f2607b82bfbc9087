//! Files that are looked up by inode ([`mounts::Alias`]).

use mounts::Alias;
use vfs::{Entry, Errno, FileSystem, Result};

/// The inode if it still is in that life; else `ENOENT`. Adds a reference.
pub(crate) fn lookup(fs: &impl FileSystem, alias: &Alias) -> Result<Entry> {
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
