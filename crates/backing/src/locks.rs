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
pub struct Held<'a>(RwLockWriteGuard<'a, ()>, Option<RwLockWriteGuard<'a, ()>>);

impl Locks {
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| RwLock::new(())))
    }

    pub fn shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        shared(&self.0[index(ino)])
    }

    pub fn exclusive(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        exclusive(&self.0[index(ino)])
    }

    /// Both, whose locks may be one.
    pub fn exclusive_two(&self, a: Ino, b: Ino) -> Held<'_> {
        let (low, high) = (index(a).min(index(b)), index(a).max(index(b)));
        let first = exclusive(&self.0[low]);
        Held(first, (low < high).then(|| exclusive(&self.0[high])))
    }

    /// All of them.
    pub fn shared_all(&self) -> Vec<RwLockReadGuard<'_, ()>> {
        self.0.iter().map(shared).collect()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The second goes first; both go.
        let _ = (&self.0, self.1.take());
    }
}

fn index(ino: Ino) -> usize {
    // Fibonacci hashing: numbers of one directory are often neighbours.
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

/// Locks have nothing in them that a panic could leave half done.
pub fn shared(lock: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub fn exclusive(lock: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
