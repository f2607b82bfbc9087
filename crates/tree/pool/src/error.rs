//! Errors of formatting, opening and checking a pool.

use serde::Serialize;
use vfs::Errno;

/// Failure of an operation on a whole pool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The region holds no pool.
    #[error(
        "no pool here: {0}. Name another file; or format this one with `keepstone mkfs`, if it has nothing to keep"
    )]
    NotAPool(String),
    /// The region holds a pool that cannot be used: it has another version, is cut off, or is
    /// damaged at the start.
    #[error("holds a pool that cannot be opened: {0}")]
    Unusable(String),
    /// The pool has no such snapshot.
    #[error(
        "no snapshot `{0}`, and no branch of this name; `keepstone snapshot list` and `keepstone branch list` show all"
    )]
    NoSnapshot(String),
    /// The region cannot hold a pool.
    #[error("cannot format: {0}")]
    Unformattable(String),
    /// The pool contains contradictions.
    #[error("the pool is damaged: {} problem(s), first: {}. `keepstone check` lists them; \
             `check --repair` repairs what is safe; a read-only mount is possible", .0.len(), .0[0])]
    Damaged(Vec<Problem>),
    /// The machine did not provide the needed memory.
    #[error("no memory for the volatile state: {0}")]
    Memory(#[from] std::io::Error),
    /// The state that processes share could not be created or opened.
    #[error("cannot share the pool with other processes: {0}")]
    Shared(std::io::Error),
    /// The pool has no room for the state that opening it needs.
    #[error("{0}")]
    Errno(#[from] Errno),
}

/// One violated invariant.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// The object, for example `inode 17` or `directory inode 1, entry at 0x5020`.
    pub object: String,
    /// The violation.
    pub what: String,
    /// The effect of a repair, if one is safe: it stores one word.
    pub remedy: Option<String>,
    /// Whether it was repaired.
    pub repaired: bool,
    /// That word: its place in the region, and its value.
    #[serde(skip)]
    pub fix: Option<(u64, u64)>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.what)
    }
}
