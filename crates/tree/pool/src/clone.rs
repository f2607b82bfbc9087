//! Clones of directory trees, by the means of the engine.

use crate::Engine;
use vfs::{Cloned, Errno, FileKind, Ino, Progress, Result};

/// The source of a copy in one step ([`Engine::copy_tree`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeSource<'a> {
    /// A directory.
    Dir(Ino),
    /// The root of a snapshot of this name.
    Snapshot(&'a str),
}

/// As [`vfs::clone_tree()`], by one operation of the engine if it has one for directories. That
/// calls `progress` at its end only.
///
/// # Errors
/// Those of [`vfs::clone_tree()`].
pub fn clone_tree(
    engine: &dyn Engine,
    from: Ino,
    to: (Ino, &[u8]),
    unique: u64,
    progress: Progress<'_>,
) -> Result<Cloned> {
    if engine.getattr(from)?.kind == FileKind::Dir {
        if vfs::is_below(engine, to.0, from)? {
            return Err(Errno::INVAL);
        }
        match engine.copy_tree(&TreeSource::Dir(from), to) {
            Err(Errno::OPNOTSUPP) => {}
            copied => {
                let done = copied?;
                // It is too late to stop.
                let _ = progress(&done);
                return Ok(done);
            }
        }
    }
    vfs::clone_tree(engine, from, to, unique, progress)
}
