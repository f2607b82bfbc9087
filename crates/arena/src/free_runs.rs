//! Where clear bits of a [`Bitmap`] lie together: so much of each aligned unit that a search passes over those that cannot serve
//! it without a look at their bits.
//!
//! Of a unit there is a word: how long its longest run of clear bits is, and those at its beginning and its end. A run that
//! spans units is the end of one, whole ones, and the beginning of another.
//!
//! - free_runs-R1: these lengths are upper bounds, but for bits that are being cleared: whoever has cleared bits measures their units
//!   before he returns. Who claims bits need not. Zeros say that a whole unit may be clear, so nothing has to be built.
//! - free_runs-R2: who measures reads the word, then the bits, and exchanges the word for one with another number. So of two the one who
//!   has not seen what the other has cleared does not succeed.
//! - free_runs-R3: what a claim that fails takes back may have been measured meanwhile, and so counts as cleared.

use crate::sync::AtomicU64;
use crate::{Arena, Bitmap, Layout, Span};
use std::ops::Range;
use std::sync::atomic::Ordering::*;

const WORDS: usize = if cfg!(loom) { 1 } else { 8 };

/// Bits of a unit.
const UNIT: u64 = 64 * WORDS as u64;

/// Bits of a length in the word of a unit.
const LENGTH_BITS: u32 = 10;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;
const _: () = assert!(UNIT <= LENGTH_MASK);

/// A bitmap, and what is known of its clear bits.
#[derive(Clone, Copy)]
pub struct FreeRuns {
    map: Bitmap,
    /// A word for each unit: by how much its lengths are less than a unit, then how often it was measured.
    units: Span<AtomicU64>,
}

/// What is searched for, and how.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// So many neighbouring bits are claimed, …
    pub bits: u64,
    /// … where so many are clear: no fewer.
    pub room: u64,
    /// Whether units that are all clear are passed over: they are left for who needs a whole one.
    pub leaves_whole: bool,
    /// So many units that would do are passed over: they are left for other threads.
    pub skip: u64,
    /// Set where another thread was faster.
    pub was_beaten: bool,
}

/// Upper bounds of the lengths of runs of clear bits in a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    longest: u64,
    /// That which begins with the unit.
    first: u64,
    /// That which ends with it.
    last: u64,
}

impl Lengths {
    fn unpack(word: u64) -> Self {
        let nth = |n: u32| UNIT - ((word >> (n * LENGTH_BITS)) & LENGTH_MASK).min(UNIT);
        Self { longest: nth(0), first: nth(1), last: nth(2) }
    }

    /// In the word that comes after `before`.
    fn pack(&self, before: u64) -> u64 {
        let nth = |n: u32, length: u64| (UNIT - length) << (n * LENGTH_BITS);
        let times = (before >> (3 * LENGTH_BITS)) + 1;
        nth(0, self.longest) | nth(1, self.first) | nth(2, self.last) | times << (3 * LENGTH_BITS)
    }

    fn of(words: impl Iterator<Item = u64>) -> Self {
        let (mut longest, mut run, mut first) = (0, 0, None);
        for set in words {
            if set == 0 {
                run += 64;
                continue;
            }
            run += u64::from(set.trailing_zeros());
            first.get_or_insert(run);
            longest = longest.max(run).max(longest_inside(set, longest));
            run = u64::from(set.leading_zeros());
        }
        Self { longest: longest.max(run), first: first.unwrap_or(run), last: run }
    }

    fn is_whole(&self) -> bool {
        self.longest == UNIT
    }

    /// The clear bits up to the end of the unit, where there are so many up to its beginning.
    fn carry(&self, before: u64) -> u64 {
        if self.is_whole() { before + UNIT } else { self.last }
    }
}

/// The longest run of clear bits of a word; 0 where none is longer than `known`.
fn longest_inside(set: u64, known: u64) -> u64 {
    let mut clear = !set;
    if u64::from(clear.count_ones()) <= known {
        return 0;
    }
    let mut length = 0;
    while clear != 0 {
        clear &= clear << 1;
        length += 1;
    }
    length
}

impl FreeRuns {
    /// Plans what is known of this bitmap.
    pub fn plan(layout: &mut Layout, map: Bitmap) -> Self {
        Self { map, units: layout.table(map.len().div_ceil(UNIT) as usize) }
    }

    /// Claims neighbouring clear bits of `within`: the first that are there, or behind those that are left for others. Their start. While
    /// others claim and clear, `None` does not say that there are none.
    pub fn claim(&self, arena: &Arena, within: Range<u64>, search: &mut Search) -> Option<u64> {
        let end = within.end.min(self.map.len());
        // Clear bits up to the unit, as far as known.
        let mut before = 0;
        for unit in within.start / UNIT..end.div_ceil(UNIT) {
            let bits = (unit * UNIT).max(within.start)..((unit + 1) * UNIT).min(end);
            let mut known = self.lengths(arena, unit);
            if search.leaves_whole && known.is_whole() {
                before = 0;
                continue;
            }
            if known.longest.max(before + known.first) >= search.room {
                if search.skip > 0 {
                    search.skip -= 1;
                    before = 0;
                    continue;
                }
                let around = bits.start - before..bits.end;
                if let Some(start) = self.claim_found(arena, around.clone(), search) {
                    return Some(start);
                }
                self.measure_all(arena, around);
                known = self.lengths(arena, unit);
            }
            before = known.carry(before).min(bits.end - within.start);
        }
        None
    }

    /// Claims the first run that is long enough and found there.
    fn claim_found(&self, arena: &Arena, within: Range<u64>, search: &mut Search) -> Option<u64> {
        let start = self.map.find_run(arena, within, search.room)?.start;
        let is_claimed = self.claim_exactly(arena, start..start + search.bits);
        search.was_beaten |= !is_claimed;
        is_claimed.then_some(start)
    }

    /// Claims exactly these bits, if all of them are clear.
    pub fn claim_exactly(&self, arena: &Arena, bits: Range<u64>) -> bool {
        if !self.map.is_clear(arena, bits.clone()) {
            return false;
        }
        if !self.map.claim_exactly(arena, bits.clone()) {
            // free_runs-R3.
            self.measure_all(arena, bits);
            return false;
        }
        // Who leaves whole units to others is to see that these are not.
        for unit in units_of(&bits) {
            if self.lengths(arena, unit).is_whole() {
                self.measure(arena, unit);
            }
        }
        true
    }

    /// Clears neighbouring bits (free_runs-R1).
    pub fn clear(&self, arena: &Arena, bits: Range<u64>) {
        self.map.clear_range(arena, bits.clone());
        self.measure_all(arena, bits);
    }

    /// The length of the longest run of clear bits, or `most`; no less than it is, while nobody clears bits.
    pub fn longest(&self, arena: &Arena, most: u64) -> u64 {
        let (mut longest, mut before) = (0, 0);
        for unit in 0..self.map.len().div_ceil(UNIT) {
            let known = self.lengths(arena, unit);
            longest = longest.max(known.longest).max(before + known.first);
            before = known.carry(before);
            if longest >= most {
                return most;
            }
        }
        longest
    }

    /// What is known of a unit.
    fn lengths(&self, arena: &Arena, unit: u64) -> Lengths {
        match arena.table(self.units)[unit as usize].load(Acquire) {
            0 => self.measure(arena, unit),
            word => Lengths::unpack(word),
        }
    }

    fn measure_all(&self, arena: &Arena, bits: Range<u64>) {
        for unit in units_of(&bits) {
            self.measure(arena, unit);
        }
    }

    /// free_runs-R2.
    fn measure(&self, arena: &Arena, unit: u64) -> Lengths {
        let word = &arena.table(self.units)[unit as usize];
        let mut seen = word.load(Acquire);
        loop {
            let lengths = Lengths::of(self.map.words_of(arena, unit as usize * WORDS, WORDS));
            match word.compare_exchange(seen, lengths.pack(seen), AcqRel, Acquire) {
                Ok(_) => return lengths,
                Err(now) => seen = now,
            }
        }
    }
}

fn units_of(bits: &Range<u64>) -> Range<u64> {
    bits.start / UNIT..bits.end.div_ceil(UNIT)
}
