//! A persistent-memory cache over any directory: Chell-Cache (Chell §4) and PMAL (§IV) in one.
//!
//! Files stay in a directory of an existing file system, the backing store (`backing::Backing`).
//! The cache keeps data that is read from them and written to them in a pool, whose engine makes
//! every operation atomic and durable.
//!
//! The engine provides the paper's structures. A *Cnode* is a shadow file in the pool. The map from
//! inodes to Cnodes is a directory of the pool, by the identity of the backing file. The map from a
//! Cnode to its pages is the shadow's own tree of blocks. So there is no undo log: a change of
//! these maps takes one short-circuit shadow page commit. In addition, each file with data that the
//! backing file lacks has a bitmap ([`record`], `docs/format/pmcache.md`).
//!
//! - **pmcache-C1** An existing block of a shadow has the file's content. A missing one is read
//!   from the backing file, as far as that reaches; beyond its end the file has zeros.
//! - **pmcache-C2** A block of the shadow that the backing file may lack is marked in the bitmap.
//!   The mark is durable before the block is stored, and stays until the block is durable in the
//!   backing file. A mark without a block has no meaning.
//! - **pmcache-C3** While a file has a bitmap, its shadow has its size and its times. A longer
//!   backing file is truncated, durably, before the file grows again: so bytes that were cut off
//!   never appear again by pmcache-C1.
//! - **pmcache-C4** The cache changes a backing file only while its record is marked so
//!   ([`record::Flags::BUSY`]). Until that change is synced, the record is marked
//!   [`record::Flags::UNSYNCED`]. A power failure may then bring back an earlier state of the file,
//!   which its change time shows. In all other cases, a file that differs from its fingerprint was
//!   changed by another process. Then data that was only read is dropped. Written data is kept but
//!   not written back, and access to the file is refused.
//! - **pmcache-C5** Acknowledged data can be written back: its space in the backing store was
//!   allocated before, or counted.
//! - **pmcache-C6** Marked data is discarded only by a command that names the file, or after a
//!   removal through the cache has become durable. So a file that a power failure brings back has
//!   the data written to it.
//!
//! Locks are taken in this order: `Node::io` (the backing file is changed); `Node::state`, and that
//! of a second file only without waiting; then any one of the cache's own locks.

#![forbid(unsafe_code)]

mod behind;
mod births;
mod changes;
mod cnode;
mod commands;
mod content;
mod control;
mod copy;
mod counters;
mod delegate;
mod drain;
mod evict;
mod fs;
mod known;
mod loading;
mod merge;
mod node;
mod openers;
mod options;
mod pass;
mod permits;
mod pinned;
mod pins;
mod punch;
mod range;
pub mod record;
mod recover;
mod removed;
mod resolve;
mod space;
mod table;
mod writeback;

pub use changes::{Comparison, Conflict};
pub use control::{COMMANDS, Command, DATA, FileStatus, right};
pub use counters::{CacheCounters, Status, Trouble, Written};
pub use delegate::{DELEGATION, Forget, JOIN};
pub use evict::{EvictCounters, EvictOptions};
pub use loading::Loading;
pub use options::{CacheOptions, Mode};
pub use recover::{Error, directory_of};
pub use resolve::KeptSide;
pub use writeback::PRIVATE;

use backing::Backing;
use counters::CacheCounts;
use drain::Backlog;
use space::Resident;
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use table::NodeTable;
use vfs::{FileSystem, Ino};

/// The size of a block in bytes, which is the unit of the bitmaps.
pub const BLOCK: u64 = 4096;

/// A cache: a backing directory, and a pool with data of its files.
pub struct Cache<P, B> {
    /// Processes that wait to open files behind the cache. This field is dropped before `backing`,
    /// which permits their openings (behind-D5).
    openers: openers::Openers,
    pool: P,
    backing: B,
    options: CacheOptions,
    /// The directories of the pool.
    nodes: Ino,
    dirty: Ino,
    table: NodeTable,
    /// Held while a shadow file is created, loaded or removed.
    shadows: Mutex<()>,
    backlog: Backlog,
    /// Set if files may be delegated to programs.
    delegating: OnceLock<delegate::Delegating>,
    resident: Resident,
    counts: CacheCounts,
    /// Files with data in the cache that the backing store lacks and that cannot be found in it.
    lost: Mutex<Vec<recover::Lost>>,
    /// Removed files that a power failure may bring back.
    removed: Mutex<removed::Removed>,
    /// Held while names are changed, and while the notes about that are changed.
    names: Mutex<()>,
    /// Changes in directories since the backing store was last synced.
    news: Mutex<births::News>,
    /// Whether creations can be recorded in the pool (births-N1).
    records_births: bool,
    /// The watch for changes by other processes.
    watching: Mutex<behind::Watching>,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Returns the backing store.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Returns the pool.
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// Returns the options.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }
}

/// Takes a lock. A panic while one of the locks is held is a bug, but leaves its data consistent,
/// so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
