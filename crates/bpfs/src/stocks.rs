//! How many blocks are free (V2), counted so that threads do not pass one line to and fro.
//!
//! Every operation that takes blocks reserves as many as it may need, and gives back what it replaced
//! or did not need: mostly as many. So each thread has a *stock* to do that with, which it shares with
//! few others or nobody.
//!
//! - K1: what is free is the sum of the common count and all stocks. Anybody may take from any of them:
//!   nothing has to be given back when a thread ends or a process dies.
//! - K2: stocks grow only while the common count stays *ample*. So where space is short it is soon in one
//!   place, and what is on its way to a stock, where nobody sees it, is not what somebody lacks.
//! - K3: nobody takes for a while what is not enough for him: others may do with less.

use arena::{Arena, Layout, Span};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// How many there are, for threads to have different ones.
const STOCKS: usize = 64;

/// What a stock gets from the common count when it has less.
const REFILL: u64 = 32;

/// A stock of more than this gives to the common count what comes back.
const STOCK_MAX: u64 = 2 * REFILL;

/// The common count is ample from here on.
const AMPLE: u64 = 1024;

/// Two lines, because the prefetcher pairs them; the first word counts.
type Counter = [AtomicU64; 16];

/// The count of free blocks.
#[derive(Clone, Copy)]
pub struct FreeCount {
    /// The common one, then the stocks.
    counters: Span<Counter>,
}

impl FreeCount {
    /// Plans it.
    pub fn plan(layout: &mut Layout) -> Self {
        Self { counters: layout.table(1 + STOCKS) }
    }

    fn common<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        &arena.table(self.counters)[0][0]
    }

    /// The stock of the calling thread.
    fn stock<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        &arena.table(self.counters)[1 + arena.owner() as usize % STOCKS][0]
    }

    fn all<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = &'a AtomicU64> {
        arena.table(self.counters).iter().map(|counter| &counter[0])
    }

    /// So many are free. Nobody else may be at it.
    pub fn set(&self, arena: &Arena, free: u64) {
        self.all(arena).for_each(|counter| counter.store(0, Relaxed));
        self.common(arena).store(free, Release);
    }

    /// How many are free; while others are at it, more or less.
    pub fn total(&self, arena: &Arena) -> u64 {
        self.all(arena).map(|counter| counter.load(Acquire)).sum()
    }

    /// Takes `n`, so that `keep` are left; whether there were so many.
    #[inline]
    pub fn take(&self, arena: &Arena, n: u64, keep: u64) -> bool {
        let (common, stock) = (self.common(arena), self.stock(arena));
        if common.load(Relaxed) >= keep && take(stock, n, 0) {
            return true;
        }
        if stock.load(Relaxed) < REFILL && take(common, n + REFILL, AMPLE) {
            stock.fetch_add(REFILL, Release);
            return true;
        }
        take(common, n, keep) || self.gather(arena, n, keep)
    }

    /// As [`take`](Self::take), from wherever there are any.
    #[cold]
    fn gather(&self, arena: &Arena, n: u64, keep: u64) -> bool {
        // K3
        if self.total(arena) < n + keep {
            return false;
        }
        let mut have = 0;
        for counter in self.all(arena) {
            have += take_up_to(counter, n - have);
        }
        // Of those who do this at once, the last to take sees what all have left.
        let is_enough = have == n && self.total(arena) >= keep;
        if !is_enough {
            self.common(arena).fetch_add(have, Release);
        }
        is_enough
    }

    /// Gives `n` back.
    #[inline]
    pub fn give(&self, arena: &Arena, n: u64) {
        let (common, stock) = (self.common(arena), self.stock(arena));
        let is_welcome = common.load(Relaxed) >= AMPLE && stock.load(Relaxed) + n <= STOCK_MAX;
        let counter = if is_welcome { stock } else { common };
        counter.fetch_add(n, Release);
    }
}

/// Takes `n` from a counter if that leaves `keep`; whether it did.
#[inline]
fn take(counter: &AtomicU64, n: u64, keep: u64) -> bool {
    counter
        .fetch_update(AcqRel, Relaxed, |have| have.checked_sub(n).filter(|left| *left >= keep))
        .is_ok()
}

/// Takes up to `n` from a counter; how many.
fn take_up_to(counter: &AtomicU64, n: u64) -> u64 {
    match counter.fetch_update(AcqRel, Relaxed, |have| Some(have.saturating_sub(n))) {
        Ok(had) | Err(had) => had.min(n),
    }
}
