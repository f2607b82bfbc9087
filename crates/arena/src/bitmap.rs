//! A bitmap that many threads allocate from without a lock.

use crate::{Arena, Layout, Span};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// `len` bits, one per block or inode; set means in use. The tail of the last word reads as set.
#[derive(Clone, Copy)]
pub struct Bitmap {
    words: Span<AtomicU64>,
    len: u64,
}

impl Bitmap {
    /// Plans a bitmap of `len` bits.
    pub fn plan(layout: &mut Layout, len: u64) -> Self {
        Self {
            words: layout.table(len.div_ceil(64) as usize),
            len,
        }
    }

    /// Marks the bits past the end as in use; once, before anything else.
    pub fn init(&self, arena: &Arena) {
        if !self.len.is_multiple_of(64) {
            self.word(arena, self.len)
                .fetch_or(!0 << (self.len % 64), Relaxed);
        }
    }

    /// Number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn word<'a>(&self, arena: &'a Arena, bit: u64) -> &'a AtomicU64 {
        &arena.table(self.words)[(bit / 64) as usize]
    }

    /// Sets a bit; returns whether it was clear before.
    pub fn set(&self, arena: &Arena, bit: u64) -> bool {
        let mask = 1 << (bit % 64);
        self.word(arena, bit).fetch_or(mask, AcqRel) & mask == 0
    }

    /// Clears a bit; returns whether it was set before.
    pub fn clear(&self, arena: &Arena, bit: u64) -> bool {
        let mask = 1 << (bit % 64);
        self.word(arena, bit).fetch_and(!mask, AcqRel) & mask != 0
    }

    /// Whether a bit is set.
    pub fn get(&self, arena: &Arena, bit: u64) -> bool {
        self.word(arena, bit).load(Acquire) >> (bit % 64) & 1 != 0
    }

    /// Claims a clear bit at or after `hint`, wrapping around once. `None` where all are set.
    pub fn claim(&self, arena: &Arena, hint: u64) -> Option<u64> {
        let words = arena.table(self.words);
        let first = (hint % self.len.max(1) / 64) as usize;
        let from_hint = !0u64 << (hint % 64);
        let order = std::iter::once((first, from_hint))
            .chain((first + 1..words.len()).map(|w| (w, !0)))
            .chain((0..=first).map(|w| (w, !0)));
        for (w, allowed) in order {
            let mut seen = words[w].load(Relaxed);
            loop {
                let free = !seen & allowed;
                if free == 0 {
                    break;
                }
                let bit = free.trailing_zeros();
                match words[w].compare_exchange_weak(seen, seen | 1 << bit, AcqRel, Relaxed) {
                    Ok(_) => return Some(w as u64 * 64 + u64::from(bit)),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// How many bits are set, the tail of the last word not counted.
    pub fn count(&self, arena: &Arena) -> u64 {
        let tail = self.len.next_multiple_of(64) - self.len;
        let set: u64 = arena
            .table(self.words)
            .iter()
            .map(|w| u64::from(w.load(Relaxed).count_ones()))
            .sum();
        set - tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_every_bit_once_and_wraps() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 130);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        let mut seen = [false; 130];
        for i in 0..130 {
            let bit = map.claim(&arena, i * 7).unwrap();
            assert!(!std::mem::replace(&mut seen[bit as usize], true));
        }
        assert_eq!(map.claim(&arena, 5), None);
        assert_eq!(map.count(&arena), 130);
        assert!(map.clear(&arena, 129) && !map.clear(&arena, 129));
        assert_eq!(map.claim(&arena, 0), Some(129));
    }

    #[test]
    fn threads_never_share_a_bit() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 4096);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        let mut all: Vec<u64> = std::thread::scope(|s| {
            let workers: Vec<_> = (0..4)
                .map(|t| {
                    s.spawn({
                        let arena = &arena;
                        move || {
                            (0..1024)
                                .filter_map(|_| map.claim(arena, t * 64))
                                .collect::<Vec<_>>()
                        }
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|w| w.join().unwrap())
                .collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..4096).collect::<Vec<_>>());
    }
}
