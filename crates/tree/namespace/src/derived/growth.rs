//! Space that files of a pool with a backing store gained, and that the backing store has to have.
//!
//! - growth-G1: a file gains blocks only if all that was gained and not written back yet stays
//!   within the limit. Several processes at the same time may exceed it by one call each.

use arena::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes that were gained, and the limit.
#[derive(Clone, Copy)]
pub struct Growth<'a> {
    gained: &'a AtomicU64,
    /// The limit plus one; 0: none.
    end: &'a AtomicU64,
}

impl<'a> Growth<'a> {
    pub(crate) fn new([gained, end]: &'a [AtomicU64; 2]) -> Self {
        Self { gained, end }
    }

    /// Returns the bytes that may be gained now; `None`: any number.
    #[inline]
    pub fn left(self) -> Option<u64> {
        let limit = self.end.load(Relaxed).checked_sub(1)?;
        Some(limit.saturating_sub(self.gained()))
    }

    /// Returns the bytes that were gained and not settled.
    pub fn gained(self) -> u64 {
        self.gained.load(Relaxed)
    }

    /// Counts bytes that were gained.
    #[inline]
    pub fn gain(self, bytes: u64) {
        self.gained.fetch_add(bytes, Relaxed);
    }

    /// Notes that this number of bytes was written back.
    pub(crate) fn settle(self, bytes: u64) {
        let less = |gained: u64| Some(gained.saturating_sub(bytes));
        let _ = self.gained.fetch_update(Relaxed, Relaxed, less);
    }

    /// Sets the limit.
    pub(crate) fn limit(self, bytes: u64) {
        self.end.store(bytes.saturating_add(1), Relaxed);
    }
}
