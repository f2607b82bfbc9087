//! The inodes of the pool by the identities of their objects.
//!
//! - known-N1: the map has every inode of the pool that has an object. It may also have inodes that
//!   are gone, or belong to another object by now: a caller compares the identity.
//!
//! An entry takes 16 bytes for each inode of the pool, whose record takes 128 bytes of PM; a map
//! that has grown has room for twice its entries. It is never stored: an attach finds all inodes.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use vfs::Ino;

/// Inodes by hashes of the keys of their objects ([`backing::Backing::key`]).
#[derive(Default)]
pub struct KnownInodes {
    inodes: HashMap<u64, Ino>,
    hasher: RandomState,
    /// The number of entries at which those of inodes that are gone are removed.
    prune_at: usize,
}

impl KnownInodes {
    /// Returns the inode that an object with this key may have.
    pub fn find(&self, key: &[u8]) -> Option<Ino> {
        self.inodes.get(&self.hasher.hash_one(key)).copied()
    }

    /// Adds an inode.
    pub fn add(&mut self, key: &[u8], ino: Ino) {
        self.inodes.insert(self.hasher.hash_one(key), ino);
    }

    /// Whether it is time to [begin again](Self::begin) without the inodes that are gone.
    pub fn is_full(&self) -> bool {
        self.inodes.len() >= self.prune_at
    }

    /// Removes all inodes: the caller adds those that there are, and then calls
    /// [`end`](Self::end).
    pub fn begin(&mut self) {
        self.inodes.clear();
    }

    /// Ends what [`begin`](Self::begin) began.
    pub fn end(&mut self) {
        self.inodes.shrink_to(2 * self.inodes.len());
        self.prune_at = 2 * self.inodes.len().max(1024);
    }
}
