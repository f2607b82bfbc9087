//! The lengths of runs of clear bits in each aligned unit of a [`Bitmap`]. With them a search skips
//! units without a long enough run, and does not read their bits.
//!
//! Each unit has a word with the lengths of its longest run of clear bits, and of the runs at its
//! beginning and its end. A run that spans units is the end of one, any number of clear units, and
//! the beginning of another.
//!
//! - free_runs-R1: these lengths are upper bounds, except for bits that are just being cleared: a
//!   thread that has cleared bits measures their units before it returns. A thread that claims bits
//!   need not. A word of zeros means that the whole unit may be clear, so nothing has to be built.
//! - free_runs-R2: a thread that measures reads the word, then the bits, and exchanges the word for
//!   one with another number. So of two threads, the one that has not seen the bits that the other
//!   has cleared fails.
//! - free_runs-R3: a claim that fails clears the bits that it had set. Another thread may have
//!   measured them meanwhile, so they count as cleared.

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

/// A bitmap, and the lengths of its runs of clear bits.
#[derive(Clone, Copy)]
pub struct FreeRuns {
    map: Bitmap,
    /// A word for each unit: the unit's length minus each of its three lengths, then the number of
    /// times that it was measured.
    units: Span<AtomicU64>,
}

/// The parameters of a search for a run of clear bits.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The number of neighbouring bits to claim.
    pub bits: u64,
    /// The least length of the run of clear bits in which they lie.
    pub room: u64,
    /// Whether to skip units that are all clear: they are left for searches that need whole units.
    pub leaves_whole: bool,
    /// The number of suitable units to skip: they are left for other threads.
    pub skip: u64,
    /// Set if another thread claimed the found bits first.
    pub was_beaten: bool,
}

/// Upper bounds of the lengths of runs of clear bits in a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    longest: u64,
    /// The run that begins with the unit.
    first: u64,
    /// The run that ends with it.
    last: u64,
}

impl Lengths {
    fn unpack(word: u64) -> Self {
        let nth = |n: u32| UNIT - ((word >> (n * LENGTH_BITS)) & LENGTH_MASK).min(UNIT);
        Self { longest: nth(0), first: nth(1), last: nth(2) }
    }

    /// Packs the lengths into the word that replaces `before`.
    fn pack(&self, before: u64) -> u64 {
        let nth = |n: u32, length: u64| (UNIT - length) << (n * LENGTH_BITS);
        let times = (before >> (3 * LENGTH_BITS)) + 1;
        nth(0, self.longest) | nth(1, self.first) | nth(2, self.last) | times << (3 * LENGTH_BITS)
    }

    /// Measures the runs of clear bits in the words of a unit.
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

    /// Returns the length of the run at the end of the unit, if a run of `before` bits ends at its
    /// beginning.
    fn carry(&self, before: u64) -> u64 {
        if self.is_whole() { before + UNIT } else { self.last }
    }
}

/// Returns the length of the longest run of clear bits of a word, or 0 if the word has no more than
/// `known` clear bits.
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
    /// Plans the lengths for this bitmap.
    pub fn plan(layout: &mut Layout, map: Bitmap) -> Self {
        Self { map, units: layout.table(map.len().div_ceil(UNIT) as usize) }
    }

    /// Claims neighbouring clear bits of `within`: the first that suit, except those that are left
    /// for other searches ([`Search`]). Returns their start. While other threads claim and clear
    /// bits, `None` does not mean that there are no such bits.
    pub fn claim(&self, arena: &Arena, within: Range<u64>, search: &mut Search) -> Option<u64> {
        let end = within.end.min(self.map.len());
        // The length of the run that ends at the beginning of the unit (an upper bound).
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

    /// As [`claim`](Self::claim), but the claimed bits begin with a unit.
    pub fn claim_aligned(
        &self,
        arena: &Arena,
        within: Range<u64>,
        bits: u64,
        room: u64,
    ) -> Option<u64> {
        let end = within.end.min(self.map.len());
        // Bits of the units before this one that are all clear (an upper bound).
        let mut whole = 0;
        for unit in within.start.div_ceil(UNIT)..end.div_ceil(UNIT) {
            let mut known = self.lengths(arena, unit);
            let start = unit * UNIT - whole;
            if whole + known.first >= room && start + room <= end {
                let is_clear = self.map.is_clear(arena, start..start + room);
                if is_clear && self.claim_exactly(arena, start..start + bits) {
                    return Some(start);
                }
                self.measure_all(arena, start..start + room);
                known = self.lengths(arena, unit);
            }
            whole = if known.is_whole() { whole + UNIT } else { 0 };
        }
        None
    }

    /// Claims bits of the first run in `within` that is long enough.
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
        // Measure units that count as whole, so that searches that skip whole units do not skip
        // these.
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

    /// Returns the length of the longest run of clear bits, or `most` if that is less. While no
    /// thread clears bits, this is an upper bound.
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

    /// Returns the lengths of a unit; measures it if it never was.
    fn lengths(&self, arena: &Arena, unit: u64) -> Lengths {
        match arena.table(self.units)[unit as usize].load(Acquire) {
            0 => self.measure(arena, unit),
            word => Lengths::unpack(word),
        }
    }

    /// Measures all units that the range touches.
    fn measure_all(&self, arena: &Arena, bits: Range<u64>) {
        for unit in units_of(&bits) {
            self.measure(arena, unit);
        }
    }

    /// Measures a unit, records the lengths of its runs and returns them (free_runs-R2).
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rng::Rng;

    /// The model: a list of bits that is searched one by one.
    struct Naive(Vec<bool>);

    impl Naive {
        fn fits(&self, start: usize, n: usize) -> bool {
            start + n <= self.0.len() && !self.0[start..start + n].contains(&true)
        }

        fn is_whole(&self, unit: usize) -> bool {
            self.fits(unit * UNIT as usize, UNIT as usize)
        }

        /// Returns the start of the first run of `n` clear bits, without whole units if
        /// `leaves_whole`.
        fn first(&self, n: usize, leaves_whole: bool) -> Option<u64> {
            let unit = UNIT as usize;
            let may = |at: usize| {
                let mut units = at / unit..(at + n).div_ceil(unit);
                self.fits(at, n) && !(leaves_whole && units.any(|unit| self.is_whole(unit)))
            };
            (0..self.0.len()).find(|at| may(*at)).map(|at| at as u64)
        }

        fn longest(&self) -> u64 {
            self.0.split(|set| *set).map(<[bool]>::len).max().unwrap_or(0) as u64
        }

        fn set(&mut self, start: u64, n: u64, value: bool) {
            self.0[start as usize..(start + n) as usize].fill(value);
        }
    }

    fn new(bits: u64) -> (FreeRuns, Arena) {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, bits);
        let runs = FreeRuns::plan(&mut layout, map);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        (runs, arena)
    }

    fn search(n: u64, leaves_whole: bool) -> Search {
        Search { bits: n, room: n, leaves_whole, ..Search::default() }
    }

    #[test]
    fn searches_find_what_a_look_at_every_bit_finds() {
        const BITS: u64 = 7 * UNIT + 100;
        for seed in 1..5 {
            let mut rng = Rng::new(seed);
            let (runs, arena) = new(BITS);
            let mut naive = Naive(vec![false; BITS as usize]);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for step in 0..3000 {
                let most = [3, 40, 400, 2000][rng.below(4) as usize];
                let (n, leaves_whole) = (1 + rng.below(most), rng.below(2) == 0);
                // Fill up and empty alternately.
                if rng.below(8) < if step / 300 % 2 == 0 { 6 } else { 3 } {
                    let found = runs.claim(&arena, 0..BITS, &mut search(n, leaves_whole));
                    assert_eq!(found, naive.first(n as usize, leaves_whole), "{seed} {step} {n}");
                    if let Some(start) = found {
                        naive.set(start, n, true);
                        held.push((start, n));
                    }
                } else if !held.is_empty() {
                    let (start, n) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    // Clear it in two pieces: the second may join them to one run.
                    for (start, n) in [(start, n / 2), (start + n / 2, n - n / 2)] {
                        if n > 0 {
                            runs.clear(&arena, start..start + n);
                            naive.set(start, n, false);
                        }
                    }
                }
                let longest = runs.longest(&arena, BITS);
                assert!(longest >= naive.longest(), "{seed} {step}: hidden");
            }
            // Searches for single bits find all bits that are left.
            while runs.claim(&arena, 0..BITS, &mut search(1, false)).is_some() {}
            assert_eq!(runs.map.count(&arena), BITS);
            assert_eq!(runs.longest(&arena, BITS), 0);
        }
    }

    #[test]
    fn what_is_behind_a_run_can_be_claimed_and_room_is_asked_for() {
        let (runs, arena) = &new(4 * UNIT);
        assert!(runs.claim_exactly(arena, 10..20));
        assert!(!runs.claim_exactly(arena, 0..11));
        assert!(!runs.claim_exactly(arena, 4 * UNIT - 1..4 * UNIT + 1), "beyond the end");
        let mut roomy = Search { room: 100, ..search(5, true) };
        assert_eq!(runs.claim(arena, 0..4 * UNIT, &mut roomy), Some(20));
        assert_eq!(runs.claim(arena, 0..4 * UNIT, &mut search(5, true)), Some(0));
        assert!(runs.claim_exactly(arena, UNIT + 1..UNIT + 2));
        // Clear are 5..10, 25..513, and 514 to the end, with whole units.
        let mut skip = Search { skip: 1, ..search(3, true) };
        assert_eq!(runs.claim(arena, 0..4 * UNIT, &mut skip), Some(UNIT + 2));
        assert_eq!(skip.skip, 0);
        let mut skip = Search { skip: 2, ..search(3, true) };
        assert_eq!(runs.claim(arena, 0..4 * UNIT, &mut skip), None, "no broken unit is left");
        let all = &mut search(UNIT + 500, false);
        assert_eq!(runs.claim(arena, 0..4 * UNIT, all), Some(UNIT + 5));
        assert!(!skip.was_beaten && !all.was_beaten);
    }

    #[test]
    fn searches_keep_to_what_they_are_given() {
        let (runs, arena) = &new(3 * UNIT);
        let n = UNIT / 2;
        assert_eq!(runs.claim(arena, 7..7 + n - 1, &mut search(n, false)), None);
        assert_eq!(runs.claim(arena, 7..7 + n, &mut search(n, false)), Some(7));
        let across = UNIT - 3..UNIT + n - 3;
        assert_eq!(runs.claim(arena, across.clone(), &mut search(n + 1, false)), None);
        assert_eq!(runs.claim(arena, across, &mut search(n, false)), Some(UNIT - 3));
        assert_eq!(runs.claim(arena, 2 * UNIT..9 * UNIT, &mut search(n, true)), None);
        assert_eq!(runs.claim(arena, 2 * UNIT..9 * UNIT, &mut search(n, false)), Some(2 * UNIT));
    }

    #[test]
    fn an_aligned_search_begins_with_a_unit() {
        let (runs, arena) = &new(6 * UNIT + 9);
        assert!(runs.claim_exactly(arena, 0..1));
        let claim = |bits, room| runs.claim_aligned(arena, 0..7 * UNIT, bits, room);
        assert_eq!(claim(UNIT + 3, UNIT + 3), Some(UNIT));
        assert_eq!(
            claim(1, UNIT),
            Some(3 * UNIT),
            "the rest of a unit is not the beginning of one"
        );
        assert_eq!(claim(UNIT, 2 * UNIT + 10), None);
        assert_eq!(claim(UNIT, 2 * UNIT + 9), Some(4 * UNIT), "up to the end");
        assert_eq!(claim(9, 9), Some(5 * UNIT));
        assert_eq!(claim(9, 9), Some(6 * UNIT));
        assert_eq!(claim(1, 1), None, "no unit begins with a clear bit");
        runs.clear(arena, 4 * UNIT..5 * UNIT + 9);
        assert_eq!(runs.claim_aligned(arena, 4 * UNIT + 1..6 * UNIT, 1, UNIT), Some(5 * UNIT));
        assert_eq!(runs.claim_aligned(arena, 1..6 * UNIT, UNIT, UNIT), Some(4 * UNIT));
    }

    /// Four threads claim and clear: no bit is claimed twice, and afterwards none is hidden.
    #[test]
    fn threads_share_no_run_and_hide_none() {
        const BITS: u64 = 6 * UNIT + 10;
        let (runs, arena) = &new(BITS);
        let work = |seed: u64| {
            let mut rng = Rng::new(seed);
            let mut held: Vec<Range<u64>> = Vec::new();
            for _ in 0..20_000 {
                if rng.below(2) == 0 {
                    let n = 1 + rng.below(150);
                    let mut search = Search { skip: rng.below(3), ..search(n, rng.below(2) == 0) };
                    let found = runs.claim(arena, 0..BITS, &mut search);
                    held.extend(found.map(|start| start..start + n));
                } else if let Some(last) = held.last().cloned() {
                    // Append to the last run, as an appending file does.
                    let more = last.end..last.end + 1 + rng.below(100);
                    if more.end <= BITS && runs.claim_exactly(arena, more.clone()) {
                        held.push(more);
                    }
                    let gone = held.swap_remove(rng.below(held.len() as u64) as usize);
                    runs.clear(arena, gone);
                }
            }
            held
        };
        let held: Vec<Range<u64>> = std::thread::scope(|s| {
            let workers: Vec<_> = (1..5).map(|seed| s.spawn(move || work(seed * 77))).collect();
            workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
        });
        let mut naive = Naive(vec![false; BITS as usize]);
        for run in &held {
            assert!(naive.fits(run.start as usize, (run.end - run.start) as usize), "twice");
            naive.set(run.start, run.end - run.start, true);
        }
        assert_eq!(runs.map.count(arena), naive.0.iter().filter(|set| **set).count() as u64);
        for unit in 0..BITS.div_ceil(UNIT) {
            let words = runs.map.words_of(arena, unit as usize * WORDS, WORDS);
            let (is, known) = (Lengths::of(words), runs.lengths(arena, unit));
            let hides = known.longest < is.longest || known.first < is.first;
            assert!(!hides && known.last >= is.last, "{unit}: {known:?} of {is:?}");
        }
        assert!(runs.longest(arena, BITS) >= naive.longest());
        let mut search = search(naive.longest(), false);
        assert!(runs.claim(arena, 0..BITS, &mut search).is_some());
    }
}
