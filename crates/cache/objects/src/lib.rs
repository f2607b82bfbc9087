//! A directory tree in an object store, as the backing store of a cache. The stores are S3 and
//! those with its protocol, Google Cloud Storage, and Azure.
//!
//! Names and attributes are in DRAM, in the contract's model ([`vfs::model`]). Contents of files
//! are in the store, in chunks that are objects, each written once. Changes of names and attributes
//! are collected in a journal. A commit puts the changed chunks, and the journal as one more object
//! (or sometimes a snapshot of the whole tree). Then it replaces the manifest, a small object that
//! names them, if no other process has replaced that meanwhile. This replacement is the commit: the
//! next process to open the tree sees all of it or nothing. That process also deletes objects of an
//! unfinished commit. `docs/format/objects.md` has the format.
//!
//! - **objects-O1** Calls are atomic. [`fsync`](vfs::FileSystem::fsync), `sync` and
//!   [`sync_metadata`](backing::Backing::sync_metadata) make changes durable: all names and
//!   attributes together, the content of each file separately. Names and attributes that no call
//!   syncs are committed after [`StoreOptions::commit_after`]; contents are not.
//! - **objects-O2** One process at a time has a tree: it holds a lease (lease-L1), and each commit
//!   is conditional on it (manifest-M2). If a process finds that another one has taken the lease,
//!   its calls that change something fail with `EROFS` from then on, and others with `EIO`. Only
//!   the root's attributes still work, as they show the state of the cache.
//! - **objects-O3** A failure of the store becomes `EIO`, with its reason in the log, and is never
//!   taken for a missing object. Changes that could not be committed are kept, and are part of the
//!   next commit.
//!
//! Modules, from the bottom: `format` (bytes), `store` (requests), `staging` and `content`
//! (contents of files), `journal`, `replay` (loads a tree from its objects), `lease`, `manifest`,
//! `commit`, and `fs` and `below`, which implement the contracts of `vfs` and `backing`.
//!
//! Not supported: extents shared by files, several writers, and readers beside a writer.

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

/// The options of a tree.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of a chunk in a new tree: a power of two.
    pub chunk_bytes: u32,
    /// The directory in which chunks are staged, with room for [`staged_max`](Self::staged_max).
    pub staging: PathBuf,
    /// The most staged bytes: beyond them, chunks are uploaded before they are committed.
    pub staged_max: u64,
    /// The time that the lease lasts if it is not renewed. After the death of a machine, the next
    /// process waits for it.
    pub lease: Duration,
    /// The time after which names and attributes are committed that no call syncs.
    pub commit_after: Duration,
}

impl Default for StoreOptions {
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

/// The reason why a tree cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The location does not name a supported store.
    #[error("{0}")]
    Location(String),
    /// The store failed.
    #[error("{object}: {source}")]
    Store {
        /// The requested object.
        object: String,
        /// The reason.
        source: object_store::Error,
    },
    /// Another process has the tree.
    #[error(
        "the tree is in use: process {pid} on {host} has held its lease since {since} and renews it; detach it there first \
         (`keepstone umount`)"
    )]
    Held {
        /// The holder's machine.
        host: String,
        /// The holder's process.
        pid: u32,
        /// The time when it took the lease, by its clock.
        since: String,
    },
    /// The prefix has objects that do not belong to a tree.
    #[error("there are other objects, for one {0}; a tree needs a prefix of its own")]
    Occupied(String),
    /// The store could not keep two writers apart.
    #[error(
        "the store does not refuse a conditional put whose condition fails (If-Match, If-None-Match), which keeps two machines \
         from writing one tree"
    )]
    NotConditional,
    /// An object is invalid.
    #[error("{object}: {what}")]
    Damaged {
        /// Its name relative to the prefix.
        object: String,
        /// The fault.
        what: String,
    },
    /// An object of another version of the format.
    #[error(
        "{object}: its format has version {version}, this program knows version {}",
        format::VERSION
    )]
    Version {
        /// Its name relative to the prefix.
        object: String,
        /// The version in the object.
        version: u32,
    },
    /// The staging file could not be made, or a thread not started.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<object_store::Error> for Error {
    /// Makes the error of a request for several objects.
    fn from(source: object_store::Error) -> Self {
        Self::store("the tree", source)
    }
}

impl Error {
    fn store(object: impl Into<String>, source: object_store::Error) -> Self {
        Self::Store { object: object.into(), source }
    }

    /// Makes the error that names the holder of a lease.
    fn held(lease: &format::Lease) -> Self {
        let Timestamp(ns) = lease.since;
        let since = std::time::UNIX_EPOCH + Duration::from_nanos(ns.max(0) as u64);
        let since = humantime::format_rfc3339_seconds(since).to_string();
        Self::Held { host: lease.host.clone(), pid: lease.pid, since }
    }
}

/// Takes a lock, also after a panic. Only a bug panics while it holds a lock, and then the guarded
/// data is still consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
