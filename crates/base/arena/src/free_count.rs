//! The count of free blocks, kept so that threads do not contend for one cache line.
//!
//! Every operation that takes blocks reserves the most that it may need. It gives back what it
//! replaced or did not need: mostly the same number. So each thread has a counter for that, which
//! it shares with few other threads or none.
//!
//! - free_count-K1: the number of free blocks is the sum of the common counter and the threads'
//!   counters. Any thread may take from any counter, so nothing has to be given back when a thread
//!   ends or a process dies.
//! - free_count-K2: threads' counters grow only while the common one is *ample*. So if space is
//!   short, it soon is in one counter. Blocks that are in transit between counters, where no thread
//!   counts them, then do not make another thread fail.
//! - free_count-K3: a thread that gets fewer blocks than it needs gives them back at once: another
//!   may need only these. If two threads take at once, each may get part of what is enough for one.
//!   Both give it back and try again, so that one succeeds.

use crate::sync::{self, AtomicU64};
use crate::{Arena, Layout, Span};
use std::sync::atomic::Ordering::*;

/// The number of threads' counters.
const OWN_COUNTERS: usize = if cfg!(loom) { 2 } else { 64 };

/// The number that a thread's counter gets from the common one when it has less than that.
const REFILL: u64 = if cfg!(loom) { 2 } else { 32 };

/// The most in a thread's counter: above that, blocks that are given back go to the common one.
const OWN_MAX: u64 = 2 * REFILL;

/// The common counter is ample (free_count-K2) from this number on.
const AMPLE: u64 = if cfg!(loom) { 4 } else { 1024 };

/// Two lines, because the prefetcher loads pairs of them. Only the first word is used.
#[cfg(not(loom))]
type Counter = [AtomicU64; 16];
#[cfg(loom)]
type Counter = AtomicU64;

#[cfg(not(loom))]
#[inline]
fn word(counter: &Counter) -> &AtomicU64 {
    &counter[0]
}
#[cfg(loom)]
fn word(counter: &Counter) -> &AtomicU64 {
    counter
}

/// The count of free blocks.
#[derive(Clone, Copy)]
pub struct FreeCount {
    /// The common counter, then the threads' counters.
    counters: Span<Counter>,
}

impl FreeCount {
    /// Plans the counters.
    pub fn plan(layout: &mut Layout) -> Self {
        Self { counters: layout.table(1 + OWN_COUNTERS) }
    }

    #[inline]
    fn common<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        word(&arena.table(self.counters)[0])
    }

    /// Returns the counter of the calling thread.
    #[inline]
    fn own<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        word(&arena.table(self.counters)[1 + arena.owner() as usize % OWN_COUNTERS])
    }

    fn all<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = &'a AtomicU64> {
        arena.table(self.counters).iter().map(word)
    }

    /// Sets the number of free blocks. No other thread may use the count meanwhile.
    pub fn set(&self, arena: &Arena, free: u64) {
        self.all(arena).for_each(|counter| counter.store(0, Relaxed));
        self.common(arena).store(free, Release);
    }

    /// Returns the number of free blocks; approximate while other threads change it.
    pub fn total(&self, arena: &Arena) -> u64 {
        self.all(arena).map(|counter| counter.load(Acquire)).sum()
    }

    /// Takes `n` blocks if at least `keep` are left then. Returns whether it did.
    #[inline]
    pub fn take(&self, arena: &Arena, n: u64, keep: u64) -> bool {
        let (common, own) = (self.common(arena), self.own(arena));
        if common.load(Relaxed) >= keep && take(own, n, 0) {
            return true;
        }
        if own.load(Relaxed) < REFILL && take(common, n + REFILL, AMPLE) {
            own.fetch_add(REFILL, Release);
            return true;
        }
        take(common, n, keep) || self.gather(arena, n, keep)
    }

    /// As [`take`](Self::take), from all counters.
    #[cold]
    fn gather(&self, arena: &Arena, n: u64, keep: u64) -> bool {
        // free_count-K3: the last thread to give its blocks back sees all of them.
        while self.total(arena) >= n + keep {
            let mut have = 0;
            for counter in self.all(arena) {
                have += take_up_to(counter, n - have);
            }
            // If several threads do this at once, the last to take sees what all have left.
            if have == n && self.total(arena) >= keep {
                return true;
            }
            self.common(arena).fetch_add(have, AcqRel);
            sync::give_way();
        }
        false
    }

    /// Gives `n` blocks back.
    #[inline]
    pub fn give(&self, arena: &Arena, n: u64) {
        let (common, own) = (self.common(arena), self.own(arena));
        let is_welcome = common.load(Relaxed) >= AMPLE && own.load(Relaxed) + n <= OWN_MAX;
        let counter = if is_welcome { own } else { common };
        counter.fetch_add(n, Release);
    }
}

/// Takes `n` from a counter if that leaves `keep`. Returns whether it did.
#[inline]
fn take(counter: &AtomicU64, n: u64, keep: u64) -> bool {
    counter
        .fetch_update(AcqRel, Relaxed, |have| have.checked_sub(n).filter(|left| *left >= keep))
        .is_ok()
}

/// Takes up to `n` from a counter. Returns the number taken.
fn take_up_to(counter: &AtomicU64, n: u64) -> u64 {
    match counter.fetch_update(AcqRel, Relaxed, |have| Some(have.saturating_sub(n))) {
        Ok(had) | Err(had) => had.min(n),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KEEP: u64 = 32;

    fn count(free: u64) -> (FreeCount, Arena) {
        let mut layout = Layout::default();
        let count = FreeCount::plan(&mut layout);
        let arena = Arena::anonymous(&layout).unwrap();
        count.set(&arena, free);
        (count, arena)
    }

    /// Gives each of many threads a counter of its own.
    fn spread(count: &FreeCount, arena: &Arena) {
        std::thread::scope(|s| {
            for _ in 0..2 * OWN_COUNTERS {
                s.spawn(|| {
                    assert!(count.take(arena, 4, KEEP));
                    count.give(arena, 4);
                });
            }
        });
    }

    #[test]
    fn what_comes_back_goes_out_again_without_the_common_count() {
        let (count, arena) = count(10_000);
        assert!(count.take(&arena, 4, KEEP));
        count.give(&arena, 4);
        let common = count.common(&arena).load(Relaxed);
        for n in [1, 4, 30] {
            assert!(count.take(&arena, n, KEEP));
            assert_eq!(count.total(&arena), 10_000 - n);
            count.give(&arena, n);
        }
        assert_eq!(count.common(&arena).load(Relaxed), common);
        count.give(&arena, 1000);
        assert_eq!(
            count.common(&arena).load(Relaxed),
            common + 1000,
            "threads' counters are small"
        );
    }

    #[test]
    fn counters_are_gathered_before_anything_is_refused() {
        let (count, arena) = count(8000);
        spread(&count, &arena);
        let common = count.common(&arena).load(Relaxed);
        assert!(common < 8000 - OWN_COUNTERS as u64 * REFILL / 2, "others have some: {common}");
        assert!(!count.take(&arena, 8000 - KEEP + 1, KEEP));
        assert_eq!(count.common(&arena).load(Relaxed), common, "K3");
        assert!(count.take(&arena, 8000 - KEEP, KEEP));
        assert!(!count.take(&arena, 1, KEEP) && !count.take(&arena, KEEP + 1, 0));
        assert!(count.take(&arena, KEEP, 0) && !count.take(&arena, 1, 0));
        assert_eq!(count.total(&arena), 0);
        count.give(&arena, 8000);
        assert_eq!(count.common(&arena).load(Relaxed), 8000, "K2");
    }

    #[test]
    fn what_is_kept_is_kept_of_all() {
        let (count, arena) = count(8000);
        spread(&count, &arena);
        let common = count.common(&arena).load(Relaxed);
        // Empty the common counter, so that only threads' counters have blocks.
        assert!(take(count.common(&arena), common, 0));
        let left = count.total(&arena);
        let taken = (0..).take_while(|_| count.take(&arena, 3, KEEP)).count() as u64 * 3;
        assert!((KEEP..KEEP + 3).contains(&(left - taken)), "{taken} of {left}");
        assert_eq!(count.total(&arena), left - taken);
    }

    #[test]
    fn threads_never_have_more_than_there_is() {
        let (count, arena) = count(3 * AMPLE);
        let out = AtomicU64::new(0);
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let (count, arena, out) = (&count, &arena, &out);
                s.spawn(move || {
                    let mut mine = Vec::new();
                    for i in 0..20_000u64 {
                        let n = 1 + (i * 7 + thread) % 90;
                        if count.take(arena, n, KEEP) {
                            mine.push(n);
                            assert!(out.fetch_add(n, SeqCst) + n <= 3 * AMPLE - KEEP);
                        }
                        if i % 64 > 32 {
                            let n = mine.pop().unwrap_or(0);
                            out.fetch_sub(n, SeqCst);
                            count.give(arena, n);
                        }
                    }
                    out.fetch_sub(mine.iter().sum(), SeqCst);
                    mine.into_iter().for_each(|n| count.give(arena, n));
                });
            }
        });
        assert_eq!(count.total(&arena), 3 * AMPLE);
    }
}
