//! A persistent-memory cache over any directory: Chell-Cache (Chell §4) and PMAL (§IV) in one.
//!
//! The pool holds a tree, as any pool does, and has a backing store below ([`backing::Backing`]): a
//! directory of any file system, or a tree in an object store. The engine knows which parts only
//! the backing store has (*absent*), and which parts equal it (*clean*; [`vfs::Backed`]). The
//! engine's operations are the paper's structures: there is no map from files to pages and no undo
//! log besides (`docs/CACHE.md`).
//!
//! - `loading`: loads what is absent.
//! - `objects`: objects of the backing store, and their stamps.
//! - `writeback`, `pass`, `names_below`: write back what is dirty, by comparing.
//! - `below`: keeps what programs write within the space of the backing store.
//! - `through`: syncs and writes that wait for the backing store.
//! - `evict`: makes clean parts absent when the pool is nearly full.
//! - `changes`, `merge`, `known`: changes that others make below.
//! - `permits`: others that open a file below, and wait until it is written back.
//! - `resolve`: conflicts, of which the user keeps one side.
//! - `pinned`: files that stay in the pool.
//! - `commands`, `control`, `counters`: what users and front ends see.
//! - `older`: recognizes caches of an older version.

#![forbid(unsafe_code)]

mod below;
mod changes;
mod commands;
mod control;
mod counters;
mod evict;
mod known;
mod loading;
mod merge;
mod names_below;
mod objects;
mod older;
mod pass;
mod permits;
mod pinned;
mod resolve;
mod through;
mod writeback;

pub use changes::{Comparison, Conflict};
pub use control::{Command, FileStatus, right};
pub use counters::{CacheCounters, Status, Trouble, Written};
pub use evict::{EvictCounters, EvictOptions};
pub use loading::Loading;
pub use older::older_cache_of;
pub use resolve::KeptSide;
pub use writeback::PRIVATE;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The size of a block in bytes.
pub const BLOCK: u64 = 4096;

/// Takes a lock. A panic while one of the locks is held is a bug, but leaves its data consistent,
/// so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
