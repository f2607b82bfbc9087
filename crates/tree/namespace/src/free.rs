//! The free space of a block of directory entries: one bit for each unit, in DRAM.

use crate::layout::{BLOCK, DIRENT_UNIT, dirent_bytes};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::Limits;

/// Units of a block.
const UNITS: usize = (BLOCK / DIRENT_UNIT) as usize;
const BITS: usize = u64::BITS as usize;
/// Runs of `1 << (LEVELS - 1)` units have room for any name.
const LEVELS: usize = 6;
const _: () = assert!(dirent_bytes(Limits::MAX.name) <= DIRENT_UNIT << (LEVELS - 1));

/// Free entries in a row: offset in the block and length, in bytes; length 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRun {
    /// Offset in the block.
    pub off: u64,
    /// Length; 0: none.
    pub len: u64,
}

impl FreeRun {
    /// Returns the offset behind it.
    pub fn end(self) -> u64 {
        self.off + self.len
    }
}

/// The units of a block that are part of free entries. Only the holder of the directory's exclusive
/// lock changes them.
#[repr(C)]
pub struct FreeUnits([AtomicU64; UNITS / BITS]);

impl FreeUnits {
    /// Marks the entries in `run` as free or as used.
    pub fn set(&self, run: FreeRun, free: bool) {
        let (start, end) = (unit(run.off), unit(run.end()));
        for (i, word) in self.0.iter().enumerate() {
            let (from, to) = (start.max(i * BITS), end.min((i + 1) * BITS));
            if from < to {
                let mask = u64::MAX >> (BITS - (to - from)) << (from - i * BITS);
                let bits = word.load(Relaxed);
                word.store(if free { bits | mask } else { bits & !mask }, Relaxed);
            }
        }
    }

    /// Returns all the free entries in a row that `run`, which is free, is part of.
    pub fn around(&self, run: FreeRun) -> FreeRun {
        run_of(self.behind_used_before(unit(run.off))..self.first_used_from(unit(run.end())))
    }

    /// Returns the unit behind the last used one before `at`; 0 if all are free.
    fn behind_used_before(&self, at: usize) -> usize {
        for (i, word) in self.0.iter().enumerate().take(at.div_ceil(BITS)).rev() {
            let below = (at - i * BITS).min(BITS);
            let used = !word.load(Relaxed) & u64::MAX >> (BITS - below);
            if used != 0 {
                return (i + 1) * BITS - used.leading_zeros() as usize;
            }
        }
        0
    }

    /// Returns the first run of free entries that has room for any name, else the longest.
    pub fn best(&self) -> FreeRun {
        let free = self.0.each_ref().map(|word| word.load(Relaxed));
        // The starts of runs of 1, 2, 4 units and so on: a run of `n + m` units is a run of `n`
        // followed by a run of `m`.
        let mut starts = [free; LEVELS];
        let mut levels = 0;
        let mut longer = free;
        while longer != [0; _] && levels < LEVELS {
            starts[levels] = longer;
            longer = both(&longer, &from(&longer, 1 << levels));
            levels += 1;
        }
        let Some(top) = levels.checked_sub(1) else { return FreeRun { off: 0, len: 0 } };
        let (mut best, mut len) = (starts[top], 1 << top);
        if levels < LEVELS {
            for (i, more) in starts[..top].iter().enumerate().rev() {
                let longer = both(&best, &from(more, len));
                if longer != [0; _] {
                    (best, len) = (longer, len + (1 << i));
                }
            }
        }
        let word = best.iter().position(|word| *word != 0).unwrap_or_default();
        let start = word * BITS + best[word].trailing_zeros() as usize;
        run_of(start..self.first_used_from(start))
    }

    /// Returns the first used unit from `at` on; the number of units if all are free.
    fn first_used_from(&self, at: usize) -> usize {
        let mut mask = u64::MAX << (at % BITS);
        for (i, word) in self.0.iter().enumerate().skip(at / BITS) {
            let used = !word.load(Relaxed) & mask;
            if used != 0 {
                return i * BITS + used.trailing_zeros() as usize;
            }
            mask = u64::MAX;
        }
        UNITS
    }
}

/// Returns the units that are in both sets.
fn both(a: &[u64; UNITS / BITS], b: &[u64; UNITS / BITS]) -> [u64; UNITS / BITS] {
    std::array::from_fn(|i| a[i] & b[i])
}

/// Returns the units from `by` on, shifted to the start.
fn from(units: &[u64; UNITS / BITS], by: usize) -> [u64; UNITS / BITS] {
    let word = |i: usize| units.get(i).copied().unwrap_or_default();
    let (words, bits) = (by / BITS, by % BITS);
    std::array::from_fn(|i| {
        let low = word(i + words) >> bits;
        // In two steps, because a shift by all bits of a word overflows.
        low | word(i + words + 1) << 1 << (BITS - 1 - bits)
    })
}

fn run_of(units: Range<usize>) -> FreeRun {
    FreeRun { off: units.start as u64 * DIRENT_UNIT, len: units.len() as u64 * DIRENT_UNIT }
}

fn unit(off: u64) -> usize {
    ((off / DIRENT_UNIT) as usize).min(UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;

    fn run(first: usize, last: usize) -> FreeRun {
        run_of(first..last)
    }

    #[test]
    fn runs_across_words() {
        let free = FreeUnits(Default::default());
        assert_eq!(free.best().len, 0);
        free.set(run(0, 256), true);
        assert_eq!(free.best(), run(0, 256));
        free.set(run(60, 70), false);
        assert_eq!(free.best(), run(0, 60));
        assert_eq!(free.around(run(70, 71)), run(70, 256));
        free.set(run(128, 192), false);
        assert_eq!(free.best(), run(0, 60));
        free.set(run(192, 256), false);
        assert_eq!(free.best(), run(0, 60));
        free.set(run(60, 128), true);
        assert_eq!(free.best(), run(0, 128));
        free.set(run(0, 128), false);
        free.set(run(254, 256), true);
        assert_eq!(free.best(), run(254, 256));
        assert_eq!(free.around(run(255, 256)), run(254, 256));
        free.set(run(100, 140), true);
        assert_eq!(free.around(run(120, 121)), run(100, 140));
        assert_eq!(free.around(run(100, 140)), run(100, 140));
        free.set(run(0, 256), true);
        assert_eq!(free.around(run(64, 128)), run(0, 256));
        free.set(run(0, 254), false);
        // A header with a false length.
        free.set(FreeRun { off: 4080, len: 60_000 }, false);
        assert_eq!(free.best(), run(254, 255));
    }

    #[test]
    fn the_best_run_is_found() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let free = FreeUnits(Default::default());
            for _ in 0..rng.index(40) {
                let first = rng.index(256);
                let most = 1 << rng.index(9);
                let last = (first + 1 + rng.index(most)).min(256);
                free.set(run(first, last), rng.index(3) > 0);
            }
            let is_free =
                |unit: &usize| free.0[unit / BITS].load(Relaxed) >> (unit % BITS) & 1 == 1;
            let len = |start: usize| (start..UNITS).take_while(is_free).count();
            let longest = (0..UNITS).rev().max_by_key(|start| len(*start)).unwrap();
            let any = |start: &usize| len(*start) >= 1 << (LEVELS - 1);
            let best = (0..UNITS).find(any).unwrap_or(longest);
            let expected = if len(best) == 0 { run(0, 0) } else { run(best, best + len(best)) };
            assert_eq!(free.best(), expected);
            assert_eq!(free.around(expected), expected);
        }
    }
}
