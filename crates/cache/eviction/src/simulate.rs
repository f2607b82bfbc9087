//! Runs traces through simulated caches of whole objects, and counts their hits.
//!
//! All caches get a trace in one pass. A cache holds objects in blocks of 4 KiB and evicts others
//! when it is full. An object larger than the cache is not kept. If an object has grown since it
//! was added, its new part is missing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::trace::Access;
use crate::{MarkSlot, Marks, Policy, PolicyKind, UnknownKind};

/// The size of a block in bytes, the unit of weight.
pub const BLOCK: u64 = 4096;

/// The policy of a simulated cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A policy that the cache can have.
    Kind(PolicyKind),
    /// LRU for comparison, as if each hit took the manager's lock: [`PolicyKind::Blended`], entered
    /// by every access.
    Lru,
}

impl Subject {
    /// All policies.
    pub const ALL: [Subject; 4] = [
        Subject::Lru,
        Subject::Kind(PolicyKind::Blended),
        Subject::Kind(PolicyKind::Sieve),
        Subject::Kind(PolicyKind::S3Fifo),
    ];

    /// Returns the name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Kind(kind) => kind.name(),
            Subject::Lru => "lru",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Subject {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        if text == "lru" { Ok(Subject::Lru) } else { text.parse().map(Subject::Kind) }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The size of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Footprint {
    /// Number of accesses.
    pub accesses: u64,
    /// Number of objects.
    pub objects: u64,
    /// The bytes of all objects, in whole blocks, with the size of each at its first access.
    pub bytes: u64,
}

/// A counter of accesses and objects of a trace.
#[derive(Debug, Default)]
pub struct Survey {
    seen: HashSet<u64>,
    found: Footprint,
}

impl Survey {
    /// Counts an access.
    pub fn access(&mut self, access: Access) {
        self.found.accesses += 1;
        if self.seen.insert(access.key) {
            self.found.objects += 1;
            self.found.bytes =
                self.found.bytes.saturating_add(blocks(access.size).saturating_mul(BLOCK));
        }
    }

    /// Returns the counts.
    pub fn footprint(&self) -> Footprint {
        self.found
    }
}

/// The counts of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimulatedCounts {
    /// Number of accesses.
    pub accesses: u64,
    /// Number of accesses that found the whole object.
    pub hits: u64,
    /// Number of bytes accessed.
    pub bytes: u64,
    /// Number of bytes accessed that were in the cache.
    pub bytes_hit: u64,
    /// Number of objects evicted.
    pub evictions: u64,
}

impl SimulatedCounts {
    /// Returns the share of accesses that were hits, 0 to 1.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.accesses)
    }

    /// Returns the share of bytes that were in the cache, 0 to 1.
    pub fn byte_hit_ratio(&self) -> f64 {
        ratio(self.bytes_hit, self.bytes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A cache that holds only keys.
pub struct Cache {
    subject: Subject,
    policy: Box<dyn Policy>,
    marks: Arc<Marks>,
    /// The slot and the size in bytes of each object.
    objects: HashMap<u64, (MarkSlot, u64)>,
    /// The capacity in blocks, like `used`.
    capacity: u64,
    used: u64,
    counts: SimulatedCounts,
}

impl Cache {
    /// Makes an empty cache of `bytes` bytes, rounded down to whole blocks.
    pub fn new(subject: Subject, bytes: u64) -> Self {
        let kind = match subject {
            Subject::Kind(kind) => kind,
            Subject::Lru => PolicyKind::Blended,
        };
        let (policy, marks) = kind.policy();
        let capacity = bytes / BLOCK;
        let objects = HashMap::new();
        Cache {
            subject,
            policy,
            marks,
            objects,
            capacity,
            used: 0,
            counts: SimulatedCounts::default(),
        }
    }

    /// Returns its counts.
    pub fn counts(&self) -> SimulatedCounts {
        self.counts
    }

    /// Returns the bytes of memory that its policy takes.
    pub fn bytes_of_memory(&self) -> usize {
        self.policy.bytes_of_memory()
    }

    /// Returns the number of objects in it.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Reads an object through the cache.
    pub fn access(&mut self, access: Access) {
        self.counts.accesses += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(access.size);
        match self.objects.get(&access.key) {
            Some((slot, size)) if *size >= access.size => {
                self.marks.touch(*slot);
                self.counts.hits += 1;
                self.counts.bytes_hit = self.counts.bytes_hit.saturating_add(access.size);
                if self.subject == Subject::Lru {
                    self.policy.entered(access.key);
                }
            }
            Some((_, size)) => {
                self.counts.bytes_hit = self.counts.bytes_hit.saturating_add(*size);
                self.grow(access);
            }
            None => self.bring(access),
        }
    }

    /// Adds an object that was missing, after evicting as many others as it needs. Does nothing if
    /// it is larger than the cache.
    fn bring(&mut self, access: Access) {
        let weight = blocks(access.size);
        if weight > self.capacity {
            return;
        }
        while self.used + weight > self.capacity {
            self.evict(None);
        }
        let slot = self.policy.insert(access.key, weight);
        self.objects.insert(access.key, (slot, access.size));
        self.used += weight;
    }

    /// Adds the new part of an object that has grown, then evicts others. Removes the object if it
    /// is larger than the cache.
    fn grow(&mut self, access: Access) {
        let weight = blocks(access.size);
        if weight > self.capacity {
            self.forget(access.key);
            return;
        }
        let size = self.objects[&access.key].1;
        self.used += weight - blocks(size);
        let slot = self.policy.insert(access.key, weight);
        self.policy.entered(access.key);
        self.marks.touch(slot);
        self.objects.insert(access.key, (slot, access.size));
        while self.used > self.capacity {
            self.evict(Some(access.key));
        }
    }

    /// Evicts one object, except `but`.
    fn evict(&mut self, but: Option<u64>) {
        let victim = self.policy.victim(&mut |key| Some(key) == but);
        self.counts.evictions += 1;
        self.forget(victim.expect("what is too large for a cache alone is not kept"));
    }

    fn forget(&mut self, key: u64) {
        let (_, size) = self.objects.remove(&key).expect("policy and cache hold the same");
        self.used -= blocks(size);
        self.policy.remove(key);
    }
}

/// Returns the number of blocks that hold `size` bytes; an empty object takes one, too.
fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK).max(1)
}
