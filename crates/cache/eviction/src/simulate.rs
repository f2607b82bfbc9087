//! Runs traces through caches that hold whole objects, and counts what they find.
//!
//! All caches see a trace side by side, in one pass. A cache holds objects in blocks of 4 KiB and gives up others when it
//! is full. One that is larger than the cache is not kept. One that has grown since it came misses what is new of it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::trace::Access;
use crate::{Kind, MarkSlot, Marks, Policy, UnknownKind};

/// Bytes of a block, the unit of weight.
pub const BLOCK: u64 = 4096;

/// What a cache of the simulation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A policy that the cache can have.
    Kind(Kind),
    /// To compare with: LRU as if each hit took the manager's lock, [`Kind::Blended`] entered by every access.
    Lru,
}

impl Subject {
    /// All of them.
    pub const ALL: [Subject; 4] = [
        Subject::Lru,
        Subject::Kind(Kind::Blended),
        Subject::Kind(Kind::Sieve),
        Subject::Kind(Kind::S3Fifo),
    ];

    /// As [`FromStr`] understands it.
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

/// What a trace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Footprint {
    /// Number of accesses.
    pub accesses: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of all objects, in whole blocks, as large as each was first.
    pub bytes: u64,
}

/// Counts what a trace has.
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

    /// What was counted.
    pub fn footprint(&self) -> Footprint {
        self.found
    }
}

/// What a cache did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of accesses.
    pub accesses: u64,
    /// Accesses that found the whole object.
    pub hits: u64,
    /// Bytes that were accessed.
    pub bytes: u64,
    /// Bytes of these that were there.
    pub bytes_hit: u64,
    /// Objects that were evicted.
    pub evictions: u64,
}

impl Counts {
    /// Share of accesses that were hits, 0 to 1.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.accesses)
    }

    /// Share of bytes that were there, 0 to 1.
    pub fn byte_hit_ratio(&self) -> f64 {
        ratio(self.bytes_hit, self.bytes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A cache that holds nothing but keys.
pub struct Cache {
    subject: Subject,
    policy: Box<dyn Policy>,
    marks: Arc<Marks>,
    /// Slot and bytes of each object.
    objects: HashMap<u64, (MarkSlot, u64)>,
    /// In blocks, as `used`.
    capacity: u64,
    used: u64,
    counts: Counts,
}

impl Cache {
    /// An empty cache of so many bytes, which are rounded down to whole blocks.
    pub fn new(subject: Subject, bytes: u64) -> Self {
        let kind = match subject {
            Subject::Kind(kind) => kind,
            Subject::Lru => Kind::Blended,
        };
        let (policy, marks) = kind.policy();
        let capacity = bytes / BLOCK;
        let objects = HashMap::new();
        Cache { subject, policy, marks, objects, capacity, used: 0, counts: Counts::default() }
    }

    /// What it did.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of memory that its policy takes.
    pub fn bytes_of_memory(&self) -> usize {
        self.policy.bytes_of_memory()
    }

    /// Number of objects in it.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether nothing is in it.
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

    /// Adds an object that was missing.
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

    /// Adds what an object has more than before.
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

/// Blocks that hold so many bytes; an empty object takes one, too.
fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK).max(1)
}
