//! The ranges stored through the cache since the last barrier. With them the write-back scheme
//! flushes only those lines. The alternative is `wbinvd`, which flushes all caches, and which user
//! space may not execute.
//!
//! - **dirty-D1** A range is marked after it has been stored, so a barrier that takes the mark
//!   flushes the bytes. A barrier between store and mark may miss the request, as that has not
//!   returned.

use arena::{Arena, Layout, Span};
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// Bytes per bit.
const GRAIN: u64 = 4096;

/// Two levels of bits, so that a barrier after few stores to a large device checks few words.
#[derive(Clone, Copy)]
pub(crate) struct Dirty {
    /// One bit per [`GRAIN`].
    grains: Span<AtomicU64>,
    /// One bit per word of `grains`, set if that may be nonzero.
    words: Span<AtomicU64>,
    len: u64,
}

impl Dirty {
    /// Plans the bits for a region of at most `len` bytes.
    pub(crate) fn plan(layout: &mut Layout, len: u64) -> Self {
        let words = len.div_ceil(GRAIN).div_ceil(64);
        Self {
            grains: layout.table(words as usize),
            words: layout.table(words.div_ceil(64) as usize),
            len,
        }
    }

    /// Marks `off..off + len` as stored (dirty-D1).
    pub(crate) fn note(&self, arena: &Arena, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        for grain in off / GRAIN..=(off + len - 1) / GRAIN {
            set(arena.table(self.grains), grain);
            set(arena.table(self.words), grain / 64);
        }
    }

    /// Clears the marks and calls `each` with offset and length of the marked ranges.
    pub(crate) fn take(&self, arena: &Arena, mut each: impl FnMut(u64, u64)) {
        for_each_bit(arena.table(self.words), 0, |word| {
            let grains = std::slice::from_ref(&arena.table(self.grains)[word as usize]);
            for_each_bit(grains, word * 64, |grain| {
                let off = grain * GRAIN;
                each(off, GRAIN.min(self.len - off));
            });
        });
    }
}

/// Sets bit `n`.
fn set(bits: &[AtomicU64], n: u64) {
    // Set the bit even if it is set. A check first would not be ordered after the marked store. A
    // barrier that takes the bit in between would then flush a line that does not hold the store
    // yet.
    bits[(n / 64) as usize].fetch_or(1 << (n % 64), AcqRel);
}

/// Clears the bits and calls `each` with `first` plus the number of each bit that was set.
fn for_each_bit(bits: &[AtomicU64], first: u64, mut each: impl FnMut(u64)) {
    for (w, word) in bits.iter().enumerate() {
        if word.load(Relaxed) == 0 {
            continue;
        }
        let mut set = word.swap(0, AcqRel);
        while set != 0 {
            each(first + w as u64 * 64 + u64::from(set.trailing_zeros()));
            set &= set - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_was_noted_once() {
        let mut layout = Layout::default();
        let dirty = Dirty::plan(&mut layout, GRAIN * 10_000 + 5);
        let arena = &Arena::inherited(&layout).unwrap();
        dirty.note(arena, 10, 0);
        dirty.note(arena, GRAIN - 1, 2);
        dirty.note(arena, GRAIN * 9_999, GRAIN + 5);
        let mut found = Vec::new();
        dirty.take(arena, |off, len| found.push((off, len)));
        let want = [(0, GRAIN), (GRAIN, GRAIN), (GRAIN * 9_999, GRAIN), (GRAIN * 10_000, 5)];
        assert_eq!(found, want);
        dirty.take(arena, |off, _| panic!("{off} again"));
    }
}
