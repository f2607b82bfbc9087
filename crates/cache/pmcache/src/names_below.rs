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
use backing::Identity;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;
use vfs::Timestamp;

/// Fewest stamps after which those of directories that are gone may be forgotten.
const STAMPS_MIN: usize = 64 << 10;

/// Names in an object, and the objects that had them when the pool had the same names.
pub type KnownNames = BTreeMap<Vec<u8>, Identity>;

/// The unit in which times are compared, as a power of two in nanoseconds: about a tick. Marks
/// recur after 208 days.
const UNIT: u32 = 22;

/// Units by which times below may be ahead of those of the pool, which has the time of the last
/// tick.
const AHEAD: i64 = 1;

fn units(time: Timestamp) -> i64 {
    time.0 >> UNIT
}

/// Returns the mark of a directory that is about to become busy.
pub fn busy_mark() -> u32 {
    (units(Timestamp::now()) as u32).max(1)
}

/// Whether an object was changed for the last time before a directory got this mark.
pub fn is_before_mark(mark: u32, changed: Timestamp) -> bool {
    let now = units(Timestamp::now());
    let age = (now as u32).wrapping_sub(mark);
    units(changed) <= now - i64::from(age) + AHEAD
}

/// Whether an object was changed for the last time before this time in the pool.
pub fn is_before(time: Timestamp, changed: Timestamp) -> bool {
    units(changed) <= units(time) + AHEAD
}

/// The names and stamps of directories below that the pool has known.
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

    /// Returns the stamp of an object, when the pool had all names in it; `None` if its directory
    /// was removed in the pool before the server began.
    pub fn stamp_of(&self, identity: &[u8]) -> Option<u32> {
        lock(&self.stamps).get(&self.hasher.hash_one(identity)).copied()
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
