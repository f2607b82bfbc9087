//! Traffic counters: exact, and cheap enough to be always on.
//!
//! Each thread owns one slot of every `Counters`, so that counting is a plain load, add and store
//! in a cache line that nobody else writes. Threads beyond [`OWNED`] share one more slot and pay
//! for atomic additions. No locks, so that a fork in a threaded program leaves nothing held.

use serde::Serialize;
use std::cell::Cell;
use std::fmt;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots with an owner. The bitmap of owners is one word.
const OWNED: usize = 64;

/// Which slots have an owner. Acquire/release on it hands a slot's values from thread to thread.
static OWNERS: AtomicU64 = AtomicU64::new(0);

const UNASSIGNED: usize = usize::MAX;

thread_local! {
    /// This thread's slot. Has no destructor, so that counting works while a thread ends.
    static SLOT: Cell<usize> = const { Cell::new(UNASSIGNED) };
    /// Gives the slot back when the thread ends.
    static LEASE: Lease = const { Lease };
}

struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let slot = SLOT.replace(OWNED);
        if slot < OWNED {
            OWNERS.fetch_and(!(1 << slot), std::sync::atomic::Ordering::Release);
        }
    }
}

#[cold]
fn assign_slot() -> usize {
    let claimed = OWNERS.fetch_update(std::sync::atomic::Ordering::Acquire, Relaxed, |owners| {
        (owners != u64::MAX).then(|| owners | (owners + 1))
    });
    let slot = claimed.map_or(OWNED, |owners| owners.trailing_ones() as usize);
    SLOT.set(slot);
    // Where the destructor can no longer be registered, the thread is ending and the slot stays
    // taken: that costs speed, not exactness.
    let _ = LEASE.try_with(|_| ());
    slot
}

#[repr(usize)]
#[derive(Clone, Copy)]
enum Event {
    BytesStored,
    LinesFlushed,
    NtBytes,
    Fences,
    WordsStored,
    BytesRead,
    EmulatedCycles,
}

const EVENTS: usize = 7;

/// Two lines, because the adjacent-line prefetcher pairs them.
#[repr(align(128))]
#[derive(Default)]
struct Slot([AtomicU64; EVENTS]);

/// Traffic of one medium by class of operation. The `count_*` functions are for implementations of
/// [`Medium`](crate::Medium); everybody else takes a [`snapshot`](Counters::snapshot).
///
/// Classes are those of the operations asked for, not of the instructions executed: a
/// non-temporal write of 100 bytes counts 100 non-temporal bytes wherever its lines lie, so
/// that the numbers are the same on every CPU and every medium.
pub struct Counters(Box<[Slot]>);

impl Default for Counters {
    fn default() -> Self {
        Self((0..=OWNED).map(|_| Slot::default()).collect())
    }
}

impl Counters {
    #[inline]
    fn add(&self, event: Event, n: u64) {
        let mut slot = SLOT.get();
        if slot == UNASSIGNED {
            slot = assign_slot();
        }
        let counter = &self.0[slot].0[event as usize];
        if slot < OWNED {
            counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            counter.fetch_add(n, Relaxed);
        }
    }

    /// Counts a read of `bytes`.
    #[inline]
    pub fn count_read(&self, bytes: u64) {
        self.add(Event::BytesRead, bytes);
    }

    /// Counts a store of `bytes` through the cache.
    #[inline]
    pub fn count_write(&self, bytes: u64) {
        self.add(Event::BytesStored, bytes);
    }

    /// Counts a non-temporal write of `bytes`.
    #[inline]
    pub fn count_nt(&self, bytes: u64) {
        self.add(Event::NtBytes, bytes);
    }

    /// Counts an 8-byte failure-atomic store.
    #[inline]
    pub fn count_word(&self) {
        self.add(Event::WordsStored, 1);
    }

    /// Counts a flush of `lines`.
    #[inline]
    pub fn count_flush(&self, lines: u64) {
        self.add(Event::LinesFlushed, lines);
    }

    /// Counts a fence.
    #[inline]
    pub fn count_fence(&self) {
        self.add(Event::Fences, 1);
    }

    /// Counts TSC cycles polled away to emulate slower memory.
    #[inline]
    pub fn count_emulated(&self, cycles: u64) {
        self.add(Event::EmulatedCycles, cycles);
    }

    /// The sums so far. Exact for what happened before; concurrent traffic may or may not be in.
    pub fn snapshot(&self) -> CountersSnapshot {
        let sum = |event: Event| {
            self.0.iter().map(|s| s.0[event as usize].load(Relaxed)).fold(0, u64::wrapping_add)
        };
        CountersSnapshot {
            bytes_read: sum(Event::BytesRead),
            bytes_stored: sum(Event::BytesStored),
            words_stored: sum(Event::WordsStored),
            nt_bytes: sum(Event::NtBytes),
            lines_flushed: sum(Event::LinesFlushed),
            fences: sum(Event::Fences),
            emulated_cycles: sum(Event::EmulatedCycles),
        }
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Traffic up to a moment; subtract two for the traffic between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountersSnapshot {
    /// Bytes read by `read` and `equals`, 8 for each `load_u64`.
    pub bytes_read: u64,
    /// Bytes stored through the cache by `write`.
    pub bytes_stored: u64,
    /// Words stored by `store_u64`.
    pub words_stored: u64,
    /// Bytes written by `write_nt`, `copy_nt` and `zero_nt`.
    pub nt_bytes: u64,
    /// Lines that `flush` wrote back; none where caches are in the persistence domain.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// TSC cycles waited to emulate slower memory.
    pub emulated_cycles: u64,
}

impl Sub for CountersSnapshot {
    type Output = Self;

    /// Traffic since `earlier`, a snapshot of the same counters.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_with_more_threads_than_slots() {
        let counters = Counters::default();
        let before = counters.snapshot();
        for _ in 0..2 {
            let gate = std::sync::Barrier::new(OWNED + 16);
            std::thread::scope(|s| {
                for _ in 0..OWNED + 16 {
                    s.spawn(|| {
                        counters.count_fence();
                        gate.wait(); // all hold their slots at once
                        for i in 0..1000 {
                            counters.count_write(i);
                            counters.count_word();
                        }
                    });
                }
            });
        }
        let n = 2 * (OWNED as u64 + 16);
        let got = counters.snapshot() - before;
        let want = CountersSnapshot {
            bytes_stored: n * 499_500,
            words_stored: n * 1000,
            fences: n,
            ..Default::default()
        };
        assert_eq!(got, want);
    }
}
