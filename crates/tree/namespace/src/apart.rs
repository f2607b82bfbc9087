//! Blocks for one purpose that are claimed 64 at a time, so that they lie together.
//!
//! Inodes and directories stay when the files around them are removed. Between the data of files,
//! they would break up the space that becomes free ([`crate::thin`]).
//!
//! - apart-A1: such a block is counted as free until it is taken, although its bit is set.
//! - apart-A2: if the bitmap has no free bit, an allocation takes a block of any purpose.
//! - apart-A3: a run that is used up keeps its place: the search for the next one begins there. So
//!   it finds free space in a pool of any size, although it is short.
//! - apart-A4: after a search that has found nothing, some requests get nothing without a search,
//!   which takes a microsecond. Its result rarely changes at once.

use crate::tables::Tables;
use arena::{Layout, Span};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Words of the bitmap that one search looks at for one that is all free: those of 512 MiB.
const WORDS_LOOKED_AT: u64 = 2048;

/// Requests without a search after one that has found nothing (apart-A4).
const PAUSE: u64 = 15;

/// The bits of a word with the number of blocks; the others hold the first block.
const COUNT_BITS: u32 = 8;

/// A claimed run of blocks for each purpose.
#[derive(Clone, Copy)]
pub struct ApartRuns {
    runs: Span<AtomicU64>,
    /// For each purpose, the requests that still get nothing.
    pauses: Span<AtomicU64>,
}

impl ApartRuns {
    /// Plans the runs of this number of purposes.
    pub fn plan(l: &mut Layout, purposes: usize) -> Self {
        Self { runs: l.table(purposes), pauses: l.table(purposes) }
    }

    fn words<'t>(&self, tables: &'t Tables) -> &'t [AtomicU64] {
        tables.arena.table(self.runs)
    }

    /// Takes a reserved block for a purpose. If none is left, claims a word of the bitmap that is
    /// all free: from the last one on (apart-A3), or from block `from` on. `None` if there is no
    /// such word.
    pub fn take(&self, tables: &Tables, purpose: usize, from: u64) -> Option<u64> {
        let word = &self.words(tables)[purpose];
        let pause = &tables.arena.table(self.pauses)[purpose];
        take(word).or_else(|| {
            let left = pause.load(Relaxed);
            if left > 0 {
                // Threads that come at the same time may count one request together.
                pause.store(left - 1, Relaxed);
                return None;
            }
            let seen = word.load(Relaxed);
            let end = tables.size_in_blocks();
            let search = |from| tables.blocks.claim_word(&tables.arena, from..end, WORDS_LOOKED_AT);
            // The first search of a small pool meets all words.
            let others = end > WORDS_LOOKED_AT * 64;
            let found = search(unpack(seen).start);
            let found = found.or_else(|| others.then(|| search(from)).flatten());
            let Some(claimed) = found else {
                pause.store(PAUSE, Relaxed);
                return None;
            };
            let rest = claimed.start + 1..claimed.end;
            // If another thread has claimed some meanwhile, these are free again.
            let is_used_up = unpack(seen).is_empty();
            let stored = || word.compare_exchange(seen, pack(&rest), AcqRel, Relaxed);
            if !is_used_up || stored().is_err() {
                tables.blocks.clear_range(&tables.arena, rest);
            }
            Some(claimed.start)
        })
    }

    /// Takes a reserved block of any purpose (apart-A2).
    #[cold]
    pub fn take_any(&self, tables: &Tables) -> Option<u64> {
        self.words(tables).iter().find_map(take)
    }

    /// Takes all blocks that are left, which `clear` makes free for all purposes.
    pub fn clear(&self, tables: &Tables, clear: impl Fn(Range<u64>)) {
        for word in self.words(tables) {
            let run = unpack(word.load(Relaxed));
            let none = pack(&(run.start..run.start));
            clear(unpack(word.swap(none, AcqRel)));
        }
    }
}

/// Takes the first block of a run.
fn take(word: &AtomicU64) -> Option<u64> {
    let rest = |word| {
        let run = unpack(word);
        (!run.is_empty()).then(|| pack(&(run.start + 1..run.end)))
    };
    word.fetch_update(AcqRel, Relaxed, rest).ok().map(|word| unpack(word).start)
}

fn pack(run: &Range<u64>) -> u64 {
    run.start << COUNT_BITS | (run.end - run.start)
}

fn unpack(word: u64) -> Range<u64> {
    let start = word >> COUNT_BITS;
    start..start + word % (1 << COUNT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Memory, Plan, PoolLength};
    use arena::Arena;

    /// Returns tables of a pool of this many blocks, and runs for two purposes.
    fn of(blocks: u64) -> (Tables, ApartRuns) {
        let mut plan = Plan::new(false, PoolLength { blocks, expected: blocks }, 32);
        let runs = ApartRuns::plan(plan.layout(), 2);
        let arena = Arena::anonymous(plan.layout()).unwrap();
        (plan.open(Memory::Fresh { arena, seed: 1 }), runs)
    }

    #[test]
    fn blocks_for_a_purpose_lie_together() {
        let (tables, runs) = of(1 << 12);
        tables.blocks.set(&tables.arena, 3);
        let take = |purpose| runs.take(&tables, purpose, 0).unwrap();
        assert_eq!([take(0), take(1), take(0), take(1)], [64, 128, 65, 129]);
        (66..128).for_each(|block| assert_eq!(take(0), block));
        assert_eq!(take(0), 192);
        runs.clear(&tables, |blocks| tables.blocks.clear_range(&tables.arena, blocks));
        assert_eq!(tables.blocks.count(&tables.arena), 1 + 64 + 2 + 1);
        assert_eq!(runs.take_any(&tables), None);
        assert_eq!(runs.take(&tables, 1, 0), Some(256));
        assert_eq!(runs.take_any(&tables), Some(257));
    }

    #[test]
    fn runs_are_found_in_a_long_pool() {
        let (words, rest) = (5 * WORDS_LOOKED_AT, 64);
        let (tables, runs) = of(words * 64);
        let fill = |blocks: Range<u64>| assert!(tables.blocks.claim_exactly(&tables.arena, blocks));
        let end = tables.blocks.len();
        fill(0..end - 4 * rest);
        assert_eq!(runs.take(&tables, 0, 0), None, "it looks at a part only");
        let first = end - 4 * rest;
        (0..PAUSE).for_each(|_| assert_eq!(runs.take(&tables, 0, first), None, "apart-A4"));
        assert_eq!(runs.take(&tables, 0, first), Some(first));
        (1..64).for_each(|nth| assert_eq!(runs.take(&tables, 0, 0), Some(first + nth)));
        assert_eq!(runs.take(&tables, 0, 0), Some(first + 64), "apart-A3");
        runs.clear(&tables, |blocks| tables.blocks.clear_range(&tables.arena, blocks));
        assert_eq!(runs.take(&tables, 0, 0), Some(first + 128), "apart-A3");
    }
}
