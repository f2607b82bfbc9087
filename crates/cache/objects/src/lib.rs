//! A directory tree in an object store, as what a cache has below it: S3 and what speaks it, Google Cloud Storage, Azure.
//!
//! Names and attributes are in DRAM, in the contract's model ([`vfs::model`]); what files hold lies in the store, in chunks that
//! are objects, each written once. Changes of names and attributes are kept as a journal. A commit puts the chunks that changed,
//! the journal as one more object (or, now and then, a snapshot of the whole tree), and then, if it is still the one that was put
//! last, the manifest that names them: a small object whose replacement is the commit. Until then nothing of it is seen by who
//! opens the tree next, and what is left of a commit that was never finished is collected then. `docs/format/objects.md` has the
//! bytes.
//!
//! - **objects-O1** Calls are atomic; what survives a crash is what [`fsync`](vfs::FileSystem::fsync), `sync` and
//!   [`sync_metadata`](backing::Backing::sync_metadata) have made durable: all names and attributes together, each file's content
//!   for itself. What nobody syncs, but contents, is committed after [`Options::commit_after`].
//! - **objects-O2** One process at a time has a tree: it holds a lease (lease-L1), and each commit is conditional on it
//!   (manifest-M2). Who finds that another one has taken it gives `EROFS` to what would change something and `EIO` to the rest
//!   from then on, but the root's attributes: by these it is asked how the cache stands.
//! - **objects-O3** A failure of the store is `EIO`, told in the log with its reason, and never taken for absence. What could not
//!   be committed is kept, and is part of the next commit.
//!
//! Modules, from the bottom: `format` (bytes), `store` (requests), `staging` and `content` (what files hold), `journal`, `replay`
//! (a tree from its objects), `lease`, `manifest`, `commit`, and `fs` and `below`, the contract of `vfs` and of `backing`.
//!
//! Left out: extents shared by files, more than one writer, and reading what another one writes meanwhile.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod below;
mod commit;
mod content;
pub mod format;
mod fs;
mod http;
mod journal;
mod lease;
mod manifest;
pub mod replay;
mod staging;
mod store;
mod upkeep;
mod url;

pub use fs::ObjectFs;
pub use http::Bounded;
pub use url::{Location, is_url};

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use vfs::Timestamp;

/// How a tree is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a chunk in a tree that does not exist yet: a power of two.
    pub chunk_bytes: u32,
    /// Where chunks are staged: a directory with room for [`staged_max`](Self::staged_max).
    pub staging: PathBuf,
    /// Where more bytes are staged, chunks are uploaded before they are committed.
    pub staged_max: u64,
    /// For so long the lease lasts if it is not renewed: who comes after a machine that died waits for it.
    pub lease: Duration,
    /// After so long names and attributes are committed that nobody syncs.
    pub commit_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chunk_bytes: 8 << 20,
            staging: std::env::temp_dir(),
            staged_max: 256 << 20,
            lease: Duration::from_secs(15),
            commit_after: Duration::from_secs(5),
        }
    }
}

/// Why a tree cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The location names no store that we know.
    #[error("{0}")]
    Location(String),
    /// The store failed.
    #[error("{object}: {source}")]
    Store {
        /// What was asked for.
        object: String,
        /// Why.
        source: object_store::Error,
    },
    /// Another process has it.
    #[error(
        "the tree is in use: process {pid} on {host} has held its lease since {since} and renews it; detach it there first \
         (`keepstone umount`)"
    )]
    Held {
        /// The holder's machine.
        host: String,
        /// The holder's process.
        pid: u32,
        /// By its clock.
        since: String,
    },
    /// There is something else.
    #[error("there are other objects, for one {0}; a tree needs a prefix of its own")]
    Occupied(String),
    /// Two who write could not be told apart.
    #[error(
        "the store does not refuse a conditional put whose condition fails (If-Match, If-None-Match), which keeps two machines \
         from writing one tree"
    )]
    NotConditional,
    /// What is there cannot be.
    #[error("{object}: {what}")]
    Damaged {
        /// Relative to the prefix.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another program's.
    #[error(
        "{object}: its format has version {version}, this program knows version {}",
        format::VERSION
    )]
    Version {
        /// Relative to the prefix.
        object: String,
        /// What it says.
        version: u32,
    },
    /// Nothing can be staged, or no thread started.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<object_store::Error> for Error {
    /// Of several objects together.
    fn from(source: object_store::Error) -> Self {
        Self::store("the tree", source)
    }
}

impl Error {
    fn store(object: impl Into<String>, source: object_store::Error) -> Self {
        Self::Store { object: object.into(), source }
    }

    fn held(lease: &format::Lease) -> Self {
        let Timestamp(ns) = lease.since;
        let since = std::time::UNIX_EPOCH + Duration::from_nanos(ns.max(0) as u64);
        let since = humantime::format_rfc3339_seconds(since).to_string();
        Self::Held { host: lease.host.clone(), pid: lease.pid, since }
    }
}

/// Nothing panics while it holds one of the locks, but for a bug: then what they guard is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
