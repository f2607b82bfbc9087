//! Cache replacement policies. They choose the objects that a full cache evicts next.
//!
//! A policy knows keys and weights, but no files, memory or processes. The cache calls it under a
//! lock when an object is added or removed, or when it needs space. A hit takes no lock: it sets a
//! mark ([`Marks::touch`]), which policies read and clear when they look for a victim.
//!
//! - [`PolicyKind::Blended`]: the list of Chell §4.1.4, LRU among misses and FIFO among hits;
//! - [`PolicyKind::Sieve`]: SIEVE (Zhang et al., NSDI '24), a FIFO queue with a hand that spares
//!   objects that were hit;
//! - [`PolicyKind::S3Fifo`]: S3-FIFO (Yang et al., SOSP '23), a small queue for new objects before
//!   a main queue, and a ghost queue.
//!
//! Each policy takes at most 64 bytes of memory for an object, including its mark, its ghost and
//! the index (`tests/it/memory.rs`), and a constant number of steps, amortised. [`simulate`]
//! compares them on traces, from files ([`trace`]) or generated ones ([`generate`]).

#![forbid(unsafe_code)]

mod blended;
pub mod generate;
mod marks;
mod objects;
mod s3fifo;
mod sieve;
pub mod simulate;
pub mod trace;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use blended::Blended;
pub use marks::{MarkSlot, Marks};
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;

/// The objects of a cache, in order of eviction. The caller names objects by 64-bit keys and gives
/// them weights, in blocks of 4 KiB. Weights above 2^29 - 1 blocks (2 TiB) count as that.
pub trait Policy: Send {
    /// Adds an object, or changes the weight of one that exists. Its slot stays the same until it
    /// is removed.
    fn insert(&mut self, key: u64, weight: u64) -> MarkSlot;

    /// Removes an object, if it exists. One that [`Self::victim`] returned counts as evicted, any
    /// other one as deleted.
    fn remove(&mut self, key: u64);

    /// Notes that the cache's manager was called for an object that exists, because part of it was
    /// missing. Only [`Blended`] uses this.
    fn entered(&mut self, _key: u64) {}

    /// Returns the slot where hits on this object are marked.
    fn slot(&self, key: u64) -> Option<MarkSlot>;

    /// Returns the object to evict next, which stays until it is removed. `skip` returns whether an
    /// object cannot be evicted now (dirty, or in use); then the next one is tried. Asks about each
    /// object at most once, and returns `None` if all are skipped.
    fn victim(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64>;

    /// Returns the number of objects.
    fn len(&self) -> usize;

    /// Returns whether there are no objects.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that the policy takes, including its marks.
    fn bytes_of_memory(&self) -> usize;
}

/// The policies, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// [`Blended`]
    Blended,
    /// [`Sieve`]
    Sieve,
    /// [`S3Fifo`]: has the highest average hit ratio on the traces in
    /// docs/measurements/eviction.md.
    #[default]
    S3Fifo,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::Blended, PolicyKind::Sieve, PolicyKind::S3Fifo];

    /// Returns the name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Blended => "blended",
            PolicyKind::Sieve => "sieve",
            PolicyKind::S3Fifo => "s3fifo",
        }
    }

    /// Makes a policy without objects, and its marks.
    pub fn policy(self) -> (Box<dyn Policy>, Arc<Marks>) {
        let marks = Arc::new(Marks::new(match self {
            PolicyKind::Blended => blended::MARK_MAX,
            PolicyKind::Sieve => sieve::MARK_MAX,
            PolicyKind::S3Fifo => s3fifo::MARK_MAX,
        }));
        let policy: Box<dyn Policy> = match self {
            PolicyKind::Blended => Box::new(Blended::new(marks.clone())),
            PolicyKind::Sieve => Box::new(Sieve::new(marks.clone())),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(marks.clone())),
        };
        (policy, marks)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKind(String);

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
        write!(f, "`{}` is no replacement policy: there are {names}", self.0)
    }
}

impl std::error::Error for UnknownKind {}

impl FromStr for PolicyKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let named = PolicyKind::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| UnknownKind(text.to_owned()))
    }
}
