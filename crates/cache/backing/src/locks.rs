//! Locks for operations that take several kernel calls.
//!
//! One lock serves many inodes, as a lock for each inode would need a table of locks. They are
//! taken in the order names, contents, attributes. No lock is taken while the table of nodes or a
//! cache is locked.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::Ino;

const COUNT: usize = 64;

/// Locks, each for a share of the inode numbers.
pub struct Locks([RwLock<()>; COUNT]);

/// One or two held locks.
pub type Held<'a> = (RwLockWriteGuard<'a, ()>, Option<RwLockWriteGuard<'a, ()>>);

impl Locks {
    /// Makes the locks; none is held.
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| RwLock::new(())))
    }

    /// Takes the lock of an inode, shared with other readers.
    pub fn shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        shared(&self.0[index(ino)])
    }

    /// Takes the lock of an inode exclusively.
    pub fn exclusive(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        exclusive(&self.0[index(ino)])
    }

    /// Takes the locks of two inodes exclusively; both may have the same lock.
    pub fn exclusive_two(&self, a: Ino, b: Ino) -> Held<'_> {
        let (low, high) = (index(a).min(index(b)), index(a).max(index(b)));
        let first = exclusive(&self.0[low]);
        (first, (low < high).then(|| exclusive(&self.0[high])))
    }

    /// Takes all locks, shared with other readers.
    pub fn shared_all(&self) -> Vec<RwLockReadGuard<'_, ()>> {
        self.0.iter().map(shared).collect()
    }
}

fn index(ino: Ino) -> usize {
    // Fibonacci hashing: numbers of one directory are often neighbours.
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

/// Takes a lock, shared with other readers. A poisoned lock is usable: it protects no data that a
/// panic could leave half changed.
pub fn shared(lock: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock exclusively.
pub fn exclusive(lock: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
