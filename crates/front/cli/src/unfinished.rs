//! Records of what a server could not do at its end: write back a cache, or save a copy of a pool.
//!
//! The server of an unmounted pool has no terminal. It leaves a record, and the command that waits
//! for its end takes that and reports it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::attach::ending::Remainder;
use crate::{background, pool};

/// Work that a server could not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unfinished {
    /// Data of a cache that are not in its backing store.
    NotWrittenBack(Remainder),
    /// The pool has no new copy (`--save`), for this reason.
    NotSaved(String),
}

/// Records what the server of a pool could not do.
pub fn record(pool: &Path, what: &Unfinished) -> Result<()> {
    let path = path(pool)?;
    background::write_private(&path, &serde_json::to_vec(what)?)
}

/// Takes the record that the last server of a pool left.
pub fn take(pool: &Path) -> Result<Option<Unfinished>> {
    let path = path(pool)?;
    let text = match fs::read(&path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| path.display().to_string())?,
    };
    fs::remove_file(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&text).ok())
}

/// Returns the path of the record, in a directory that only this user can use.
fn path(pool: &Path) -> Result<PathBuf> {
    let (info, _) = pool::info(pool)?;
    let log = background::log_path(&info.uuid.to_string());
    background::make_private(log.parent().unwrap_or(Path::new("/")))?;
    Ok(log.with_extension("left"))
}
