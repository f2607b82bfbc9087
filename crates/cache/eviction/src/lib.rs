//! Cache replacement policies: which object a full cache gives up next.
//!
//! A policy knows keys and weights, no files, memory or processes. The cache calls it under a lock when an object comes or
//! goes, or when it needs space. A hit takes no lock: it sets a mark ([`Marks::touch`]), which policies read and clear when
//! they look for a victim.
//!
//! - [`Kind::Blended`]: the list of Chell §4.1.4, LRU among misses and FIFO among hits.
//! - [`Kind::Sieve`]: SIEVE (Zhang et al., NSDI '24), a FIFO queue with a hand that spares what has been hit.
//! - [`Kind::S3Fifo`]: S3-FIFO (Yang et al., SOSP '23), a small queue for newcomers before a main queue, and a ghost queue.
//!
//! Each takes at most 64 bytes of memory for an object, its mark, its ghost and the index included
//! (`tests/it/memory.rs`), and a constant number of steps, amortised. [`simulate`] compares them on traces, from files
//! ([`trace`]) or generated ones ([`generate`]).

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

/// What is cached, in order of eviction. Objects are named by the caller's 64-bit keys and have weights, in blocks of 4 KiB;
/// what is heavier than 2^29 - 1 blocks (2 TiB) counts as that.
pub trait Policy: Send {
    /// Adds an object; of one that is there, changes the weight only. Its slot stays the same until it is removed.
    fn insert(&mut self, key: u64, weight: u64) -> MarkSlot;

    /// Forgets an object, if it is there: one that [`Self::victim`] has named was evicted, any other one was deleted.
    fn remove(&mut self, key: u64);

    /// The cache's manager was entered for this object although it is there, as part of it was missing. Only
    /// [`Blended`] heeds it.
    fn entered(&mut self, _key: u64) {}

    /// Where hits on this object are marked.
    fn slot(&self, key: u64) -> Option<MarkSlot>;

    /// The object to evict next; it stays until it is removed. `skip` says of a key that it cannot be evicted now (dirty, or
    /// in use), and then the next one is taken. Asks about each object at most once, and returns `None` if all are
    /// skipped.
    fn victim(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64>;

    /// Number of objects.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the policy takes, its marks included.
    fn bytes_of_memory(&self) -> usize;
}

/// The policies, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// [`Blended`]
    Blended,
    /// [`Sieve`]
    Sieve,
    /// [`S3Fifo`]: has the most hits on average of the traces in docs/PERFORMANCE.md.
    #[default]
    S3Fifo,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Blended, Kind::Sieve, Kind::S3Fifo];

    /// As [`FromStr`] understands it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Blended => "blended",
            Kind::Sieve => "sieve",
            Kind::S3Fifo => "s3fifo",
        }
    }

    /// A policy without objects, and where hits are marked.
    pub fn policy(self) -> (Box<dyn Policy>, Arc<Marks>) {
        let marks = Arc::new(Marks::new(match self {
            Kind::Blended => blended::MARK_MAX,
            Kind::Sieve => sieve::MARK_MAX,
            Kind::S3Fifo => s3fifo::MARK_MAX,
        }));
        let policy: Box<dyn Policy> = match self {
            Kind::Blended => Box::new(Blended::new(marks.clone())),
            Kind::Sieve => Box::new(Sieve::new(marks.clone())),
            Kind::S3Fifo => Box::new(S3Fifo::new(marks.clone())),
        };
        (policy, marks)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKind(String);

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Kind::ALL.map(Kind::name).join(", ");
        write!(f, "`{}` is no replacement policy: there are {names}", self.0)
    }
}

impl std::error::Error for UnknownKind {}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let named = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| UnknownKind(text.to_owned()))
    }
}
