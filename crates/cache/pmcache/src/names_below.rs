//! The names below that the pool has known, for write-back (writeback-W8).
//!
//! A directory that is not busy needs no list: if its object has its stamp, the pool has known all
//! names in it. This module remembers, as long as the server runs:
//!
//! - the names of directories that a pass has made busy and not marked clean;
//! - the stamps of all directories, also of those that were removed in the pool since.
//!
//! Both are only evidence for removals below. Without it, names stay there.

use crate::lock;
use crate::objects::stamp;
use backing::Identity;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;
use vfs::{Attr, Timestamp};

/// Fewest stamps after which those of directories that are gone may be forgotten.
const STAMPS_MIN: usize = 64 << 10;

/// Names in an object, and the objects that had them when the pool had the same names.
pub type KnownNames = BTreeMap<Vec<u8>, Identity>;

/// What the pool has known of directories below.
#[derive(Default)]
pub struct NamesBelow {
    /// The names of busy directories, by the identities of these.
    busy: Mutex<HashMap<Vec<u8>, KnownNames>>,
    /// The stamps of directories, by hashes of their identities.
    stamps: Mutex<HashMap<u64, u32>>,
    hasher: RandomState,
}

impl NamesBelow {
    /// Notes that the pool has all names of an object with this stamp.
    pub fn note_stamp(&self, identity: &[u8], stamp: u32) {
        let mut stamps = lock(&self.stamps);
        if stamps.len() >= STAMPS_MIN && stamps.len() == stamps.capacity() {
            // Those that are forgotten are compared by their times.
            stamps.clear();
        }
        stamps.insert(self.hasher.hash_one(identity), stamp);
    }

    /// Whether nothing has changed the names in the object of a directory since it was removed in
    /// the pool, which was at `removed_at` at the latest.
    pub fn is_as_removed(&self, identity: &[u8], object: &Attr, removed_at: Timestamp) -> bool {
        match lock(&self.stamps).get(&self.hasher.hash_one(identity)) {
            Some(known) => *known == stamp(object),
            // It was removed before the server began.
            None => object.ctime <= removed_at,
        }
    }

    /// Takes the names of a busy directory.
    pub fn take(&self, identity: &[u8]) -> Option<KnownNames> {
        lock(&self.busy).remove(identity)
    }

    /// Remembers the names of a busy directory.
    pub fn remember(&self, identity: Vec<u8>, names: KnownNames) {
        lock(&self.busy).insert(identity, names);
    }

    /// Forgets the names of all busy directories: none is left.
    pub fn forget(&self) {
        lock(&self.busy).clear();
    }
}
