//! Traffic counters: exact, and cheap enough to be always on ([`Sharded`]).

use crate::sharded::Sharded;
use serde::Serialize;
use std::fmt;
use std::ops::Sub;

#[repr(usize)]
#[derive(Clone, Copy)]
enum CounterEvent {
    BytesStored,
    LinesFlushed,
    NtBytes,
    Fences,
    WordsStored,
    BytesRead,
    EmulatedCycles,
}

const EVENTS: usize = 7;

/// The traffic of one medium by class of operation. The `count_*` functions are for implementations
/// of [`Medium`](crate::Medium); other code takes a [`snapshot`](Counters::snapshot).
///
/// An event belongs to the class of the requested operation, not of the executed instructions: a
/// non-temporal write of 100 bytes counts 100 non-temporal bytes, however it is aligned. So the
/// numbers are the same on every CPU and every medium.
#[derive(Default)]
pub struct Counters(Sharded<EVENTS>);

impl Counters {
    #[inline]
    fn add(&self, event: CounterEvent, n: u64) {
        self.0.add(event as usize, n);
    }

    /// Counts a read of `bytes`.
    #[inline]
    pub fn count_read(&self, bytes: u64) {
        self.add(CounterEvent::BytesRead, bytes);
    }

    /// Counts a store of `bytes` through the cache.
    #[inline]
    pub fn count_write(&self, bytes: u64) {
        self.add(CounterEvent::BytesStored, bytes);
    }

    /// Counts a non-temporal write of `bytes`.
    #[inline]
    pub fn count_nt(&self, bytes: u64) {
        self.add(CounterEvent::NtBytes, bytes);
    }

    /// Counts an 8-byte failure-atomic store.
    #[inline]
    pub fn count_word(&self) {
        self.add(CounterEvent::WordsStored, 1);
    }

    /// Counts a flush of `lines`.
    #[inline]
    pub fn count_flush(&self, lines: u64) {
        self.add(CounterEvent::LinesFlushed, lines);
    }

    /// Counts a fence.
    #[inline]
    pub fn count_fence(&self) {
        self.add(CounterEvent::Fences, 1);
    }

    /// Counts TSC cycles waited to emulate slower memory.
    #[inline]
    pub fn count_emulated(&self, cycles: u64) {
        self.add(CounterEvent::EmulatedCycles, cycles);
    }

    /// Returns the sums so far. They include all earlier traffic; concurrent traffic may or may not
    /// be counted.
    pub fn snapshot(&self) -> CountersSnapshot {
        let sum = |event: CounterEvent| self.0.sum(event as usize);
        CountersSnapshot {
            bytes_read: sum(CounterEvent::BytesRead),
            bytes_stored: sum(CounterEvent::BytesStored),
            words_stored: sum(CounterEvent::WordsStored),
            nt_bytes: sum(CounterEvent::NtBytes),
            lines_flushed: sum(CounterEvent::LinesFlushed),
            fences: sum(CounterEvent::Fences),
            emulated_cycles: sum(CounterEvent::EmulatedCycles),
        }
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// The traffic up to a moment. Subtract two snapshots for the traffic between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountersSnapshot {
    /// Bytes read by `read` and `equals`, 8 for each `load_u64`.
    pub bytes_read: u64,
    /// Bytes stored through the cache by `write`.
    pub bytes_stored: u64,
    /// Words stored by `store_u64`.
    pub words_stored: u64,
    /// Bytes written by `write_nt`, `copy_nt`, `zero_nt` and `store_line`.
    pub nt_bytes: u64,
    /// Lines that `flush` wrote back; 0 if the caches are in the persistence domain.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// TSC cycles waited to emulate slower memory.
    pub emulated_cycles: u64,
}

impl Sub for CountersSnapshot {
    type Output = Self;

    /// Returns the traffic since `earlier`, a snapshot of the same counters.
    fn sub(self, earlier: Self) -> Self {
        Self {
            bytes_read: self.bytes_read.wrapping_sub(earlier.bytes_read),
            bytes_stored: self.bytes_stored.wrapping_sub(earlier.bytes_stored),
            words_stored: self.words_stored.wrapping_sub(earlier.words_stored),
            nt_bytes: self.nt_bytes.wrapping_sub(earlier.nt_bytes),
            lines_flushed: self.lines_flushed.wrapping_sub(earlier.lines_flushed),
            fences: self.fences.wrapping_sub(earlier.fences),
            emulated_cycles: self.emulated_cycles.wrapping_sub(earlier.emulated_cycles),
        }
    }
}
