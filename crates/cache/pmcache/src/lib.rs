//! A persistent-memory cache over any directory: Chell-Cache (Chell §4) and PMAL (§IV) in one.
//!
//! Files stay where they are, in a directory of an existing file system (`backing::Backing`); what is read from them and written
//! to them is kept in a pool of an engine that makes every operation atomic and durable. The paper's structures are that
//! engine's: a *Cnode* is a shadow file, the map from inodes to Cnodes a directory of it, by the identity of the backing file,
//! and the map from a Cnode to its pages the shadow's own tree of blocks. So there is no undo log: a change of these maps is
//! one short-circuit shadow page commit. What is beside it is a bitmap for each file that has something which the backing file
//! has not yet ([`record`], `docs/format/pmcache.md`).
//!
//! - **pmcache-C1** A block of a shadow that exists has the file's content. One that does not is read from the backing file, as
//!   far as that reaches; beyond its end the file has zeros.
//! - **pmcache-C2** What the shadow has and the backing file may not have is marked in the bitmap, durably, before it is
//!   stored, and until the backing file has it, durably. A mark without a block means nothing.
//! - **pmcache-C3** The shadow of a file with a bitmap has its size and its times. Where the backing file is longer, it is cut,
//!   durably, before the file grows again: so C1 never shows what was cut off.
//! - **pmcache-C4** A file is changed below only while its record says so ([`record::Flags::BUSY`]). Until that is synced, the
//!   record says this ([`record::Flags::UNSYNCED`]): then the file may also be found as it was earlier, which its time of change
//!   shows. Otherwise it is as its fingerprint says, or somebody else has changed it: then what was only read is forgotten, and
//!   what was written is kept and refused.
//! - **pmcache-C5** What was acknowledged can be written below: its space was allocated there before, or counted.
//! - **pmcache-C6** What is marked is discarded only by a command that names it, or where its file was removed through the
//!   cache and the removal is durable: a file that a power failure brings back has what was written to it.
//!
//! Locks, in the order they are taken: `Node::io` (the backing file is changed), `Node::state`, of a second file only where it
//! need not be waited for; then any one of the cache's own.

#![forbid(unsafe_code)]

mod behind;
mod births;
mod cnode;
mod content;
mod control;
mod copy;
mod counters;
mod delegate;
mod drain;
mod fs;
mod node;
mod openers;
mod options;
mod pins;
mod punch;
mod range;
pub mod record;
mod recover;
mod removed;
mod space;
mod table;

pub use control::{COMMANDS, Command, DATA, FileStatus, right};
pub use counters::{Counters, Status, Trouble};
pub use delegate::{DELEGATION, Forget, JOIN};
pub use options::{Mode, Options};
pub use recover::{Error, directory_of};

use backing::Backing;
use counters::Counts;
use drain::Backlog;
use space::Resident;
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use table::Table;
use vfs::{FileSystem, Ino};

/// Bytes of a block, of which a bit says whether the backing file has it.
pub const BLOCK: u64 = 4096;

/// A cache: a directory below, and what a pool keeps of its files.
pub struct Cache<P, B> {
    /// Who waits to open files behind the cache. They are let in before what is below goes (behind-D5).
    openers: openers::Openers,
    pool: P,
    backing: B,
    options: Options,
    /// Directories of the pool.
    nodes: Ino,
    dirty: Ino,
    table: Table,
    /// Held by who makes, loads or removes a shadow file.
    shadows: Mutex<()>,
    backlog: Backlog,
    /// Set where programs may have files by themselves.
    delegating: OnceLock<delegate::Delegating>,
    resident: Resident,
    counts: Counts,
    /// Files that the cache has something for, and that are not there.
    lost: Mutex<Vec<recover::Lost>>,
    /// Files that are gone, which a power failure may bring back.
    removed: Mutex<removed::Removed>,
    /// Held by who changes names, also by what of that is kept here.
    names: Mutex<()>,
    /// What changed in directories since it was made durable below.
    news: Mutex<births::News>,
    /// Whether creations can be recorded in the pool (births-N1).
    records_births: bool,
    /// How others are noticed.
    watching: Mutex<behind::Watching>,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// What is below.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// What keeps it.
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// How it works.
    pub fn options(&self) -> &Options {
        &self.options
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
