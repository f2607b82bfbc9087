//! What is free in a block of directory entries: a bit for each unit, in DRAM.

use crate::layout::{BLOCK, DIRENT_UNIT};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Units of a block.
const UNITS: usize = (BLOCK / DIRENT_UNIT) as usize;
const BITS: usize = u64::BITS as usize;

/// Free entries in a row: offset in the block and length, in bytes; length 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRun {
    pub off: u64,
    pub len: u64,
}

impl FreeRun {
    pub fn end(self) -> u64 {
        self.off + self.len
    }
}

/// Which units of a block are part of free entries. Changed by who has the directory exclusively.
#[repr(C)]
pub struct FreeUnits([AtomicU64; UNITS / BITS]);

impl FreeUnits {
    /// Records that the entries in `run` are free, or that they are not.
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

    /// The longest run of free entries.
    pub fn longest(&self) -> FreeRun {
        let mut best = 0..0;
        let mut at = 0;
        while at < UNITS {
            let start = self.next(at, true);
            at = self.next(start, false);
            if at - start > best.len() {
                best = start..at;
            }
        }
        FreeRun { off: best.start as u64 * DIRENT_UNIT, len: best.len() as u64 * DIRENT_UNIT }
    }

    /// The first unit from `at` on that is free, or not; that behind the last where there is none.
    fn next(&self, at: usize, free: bool) -> usize {
        let mut mask = u64::MAX << (at % BITS);
        for (i, word) in self.0.iter().enumerate().skip(at / BITS) {
            let bits = word.load(Relaxed);
            let found = if free { bits } else { !bits } & mask;
            if found != 0 {
                return i * BITS + found.trailing_zeros() as usize;
            }
            mask = u64::MAX;
        }
        UNITS
    }
}

fn unit(off: u64) -> usize {
    ((off / DIRENT_UNIT) as usize).min(UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64) -> FreeRun {
        FreeRun { off: first * DIRENT_UNIT, len: (last - first) * DIRENT_UNIT }
    }

    #[test]
    fn runs_across_words() {
        let free = FreeUnits(Default::default());
        assert_eq!(free.longest().len, 0);
        free.set(run(0, 256), true);
        assert_eq!(free.longest(), run(0, 256));
        free.set(run(60, 70), false);
        assert_eq!(free.longest(), run(70, 256));
        free.set(run(128, 192), false);
        assert_eq!(free.longest(), run(192, 256));
        free.set(run(192, 256), false);
        assert_eq!(free.longest(), run(0, 60));
        free.set(run(60, 128), true);
        assert_eq!(free.longest(), run(0, 128));
        free.set(run(0, 128), false);
        free.set(run(254, 256), true);
        assert_eq!(free.longest(), run(254, 256));
        // A header that lies.
        free.set(FreeRun { off: 4080, len: 60_000 }, false);
        assert_eq!(free.longest(), run(254, 255));
    }
}
