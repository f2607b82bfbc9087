//! Blocks for one purpose that are claimed 64 at a time, so that they lie together.
//!
//! Inodes and directories stay when the files around them are removed. Between the data of files,
//! they would break up the space that becomes free ([`crate::thin`]).
//!
//! - apart-A1: such a block is counted as free until it is taken, although its bit is set.
//! - apart-A2: if the bitmap has no free bit, an allocation takes a block of any purpose.

use crate::tables::Tables;
use arena::{Layout, Span};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Words of the bitmap that are searched for one that is all free.
const WORDS_LOOKED_AT: u64 = 4096;

/// The bits of a word with the number of blocks; the others hold the first block.
const COUNT_BITS: u32 = 8;

/// A claimed run of blocks for each purpose.
#[derive(Clone, Copy)]
pub struct ApartRuns(Span<AtomicU64>);

impl ApartRuns {
    /// Plans the runs of this number of purposes.
    pub fn plan(l: &mut Layout, purposes: usize) -> Self {
        Self(l.table(purposes))
    }

    fn words<'t>(&self, tables: &'t Tables) -> &'t [AtomicU64] {
        tables.arena.table(self.0)
    }

    /// Takes a reserved block for a purpose. If none is left, claims a word of the bitmap that is
    /// all free, from block `from` on. `None` if there is no such word.
    pub fn take(&self, tables: &Tables, purpose: usize, from: u64) -> Option<u64> {
        let word = &self.words(tables)[purpose];
        take(word).or_else(|| {
            let claimed = tables.blocks.claim_word(&tables.arena, from, WORDS_LOOKED_AT)?;
            let rest = claimed.start + 1..claimed.end;
            // If another thread has claimed some meanwhile, these are free again.
            if word.compare_exchange(0, pack(&rest), AcqRel, Relaxed).is_err() {
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
            clear(unpack(word.swap(0, AcqRel)));
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
    if run.is_empty() { 0 } else { run.start << COUNT_BITS | (run.end - run.start) }
}

fn unpack(word: u64) -> Range<u64> {
    let start = word >> COUNT_BITS;
    start..start + word % (1 << COUNT_BITS)
}
