//! Locks for what the kernel does in several steps.
//!
//! A lock stands for many inodes: as many locks as inodes would have to be kept somewhere. Their order is names, contents,
//! attributes; none is taken while the table of nodes or a cache is locked.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::Ino;

const COUNT: usize = 64;

/// Locks, each for the inodes of some numbers.
pub struct Locks([RwLock<()>; COUNT]);

/// One or two locks held.
pub type Held<'a> = (RwLockWriteGuard<'a, ()>, Option<RwLockWriteGuard<'a, ()>>);

impl Locks {
    /// None is held.
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| RwLock::new(())))
    }

    /// With others who read.
    pub fn shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        shared(&self.0[index(ino)])
    }

    /// Alone.
    pub fn exclusive(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        exclusive(&self.0[index(ino)])
    }

    /// Both alone; their locks may be one.
    pub fn exclusive_two(&self, a: Ino, b: Ino) -> Held<'_> {
        let (low, high) = (index(a).min(index(b)), index(a).max(index(b)));
        let first = exclusive(&self.0[low]);
        (first, (low < high).then(|| exclusive(&self.0[high])))
    }

    /// All of them, with others who read.
    pub fn shared_all(&self) -> Vec<RwLockReadGuard<'_, ()>> {
        self.0.iter().map(shared).collect()
    }
}

fn index(ino: Ino) -> usize {
    // Fibonacci hashing: numbers of one directory are often neighbours.
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

/// Takes a lock with others who read. It has nothing in it that a panic could leave half done.
pub fn shared(lock: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock alone.
pub fn exclusive(lock: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
