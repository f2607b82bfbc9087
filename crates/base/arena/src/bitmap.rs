//! A bitmap that many threads allocate from without a lock.

use crate::sync::AtomicU64;
use crate::{Arena, Layout, Span};
use std::ops::Range;
use std::sync::atomic::Ordering::*;

/// `len` bits, one per block or inode; a set bit is in use. The bits behind the end in the last
/// word read as set.
#[derive(Clone, Copy)]
pub struct Bitmap {
    words: Span<AtomicU64>,
    len: u64,
}

impl Bitmap {
    /// Plans a bitmap of `len` bits.
    pub fn plan(layout: &mut Layout, len: u64) -> Self {
        Self { words: layout.table(len.div_ceil(64) as usize), len }
    }

    /// Marks the bits behind the end as in use. To be called once, before any other method.
    pub fn init(&self, arena: &Arena) {
        if !self.len.is_multiple_of(64) {
            self.word(arena, self.len).fetch_or(!0 << (self.len % 64), Relaxed);
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

    /// Claims the first up to `most` neighbouring clear bits of `within` by one atomic operation
    /// (so at most 64). `None` if all bits are set.
    pub fn claim(&self, arena: &Arena, within: Range<u64>, most: u64) -> Option<Range<u64>> {
        let within = within.start..within.end.min(self.len);
        if within.is_empty() || most == 0 {
            return None;
        }
        let words = arena.table(self.words);
        let (first, last) = (within.start / 64, (within.end - 1) / 64);
        for w in first..=last {
            let mut allowed = !0;
            if w == first {
                allowed &= !0 << (within.start % 64);
            }
            if w == last {
                allowed &= !0 >> (63 - (within.end - 1) % 64);
            }
            let word = &words[w as usize];
            let mut seen = word.load(Relaxed);
            loop {
                let free = !seen & allowed;
                if free == 0 {
                    break;
                }
                let bit = free.trailing_zeros();
                let n = (!(free >> bit)).trailing_zeros().min(most.min(64) as u32);
                let mask = (!0 >> (64 - n)) << bit;
                match word.compare_exchange_weak(seen, seen | mask, AcqRel, Relaxed) {
                    Ok(_) => {
                        let start = w * 64 + u64::from(bit);
                        // If the memory of the bits is gone, none of them is free (room-O4).
                        return (!arena.has_met_loss()).then(|| start..start + u64::from(n));
                    }
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Claims a whole word of clear bits: the first among `most` words, from the start of `within`
    /// on, continuing from its end at the start of the map. `None` if all of them have a set bit.
    pub fn claim_word(&self, arena: &Arena, within: Range<u64>, most: u64) -> Option<Range<u64>> {
        let (from, words) = (within.start, arena.table(self.words));
        let words = &words[..words.len().min(within.end.div_ceil(64).max(1) as usize)];
        let first = (from / 64) as usize % words.len();
        let (before, after) = words.split_at(first);
        let all = after.iter().zip(first..).chain(before.iter().zip(0..));
        all.take(most as usize).find_map(|(word, index)| {
            let is_clear =
                word.load(Relaxed) == 0 && word.compare_exchange(0, !0, AcqRel, Relaxed).is_ok();
            let start = index as u64 * 64;
            (is_clear && !arena.has_met_loss()).then_some(start..start + 64)
        })
    }

    /// Claims exactly these bits; returns whether all of them were clear. Otherwise clears those
    /// that it has set already. Until then, other threads may see these as in use.
    pub fn claim_exactly(&self, arena: &Arena, bits: Range<u64>) -> bool {
        let mut done = bits.start;
        while done < bits.end.min(self.len) {
            let mask = mask_of(done, bits.end);
            let word = self.word(arena, done);
            let claim = |seen: u64| (seen & mask == 0).then_some(seen | mask);
            if word.fetch_update(AcqRel, Relaxed, claim).is_err() {
                break;
            }
            done = (done / 64 + 1) * 64;
        }
        if done >= bits.end {
            return !arena.has_met_loss();
        }
        self.clear_range(arena, bits.start..done);
        false
    }

    /// Calls `each` for the runs of clear bits, in order. Runs that are claimed or cleared
    /// meanwhile may be missing or in pieces.
    pub fn each_clear_run(&self, arena: &Arena, mut each: impl FnMut(Range<u64>)) {
        let mut start = None;
        for (word, at) in arena.table(self.words).iter().zip((0..).step_by(64)) {
            let set = word.load(Relaxed);
            let mut bit = 0;
            while bit < 64 {
                let rest = set >> bit;
                let next = match start {
                    None => bit + rest.trailing_ones(),
                    Some(_) => bit + rest.trailing_zeros(),
                }
                .min(64);
                if next < 64 {
                    match start.take() {
                        None => start = Some(at + u64::from(next)),
                        Some(from) => each(from..at + u64::from(next)),
                    }
                }
                bit = next;
            }
        }
        if let Some(from) = start {
            each(from..self.len);
        }
    }

    /// Sets neighbouring bits; returns whether all of them were clear.
    pub fn set_range(&self, arena: &Arena, bits: Range<u64>) -> bool {
        let (mut done, mut were_clear) = (bits.start, true);
        while done < bits.end {
            let mask = mask_of(done, bits.end);
            were_clear &= self.word(arena, done).fetch_or(mask, AcqRel) & mask == 0;
            done = (done / 64 + 1) * 64;
        }
        were_clear
    }

    /// Clears neighbouring bits.
    pub fn clear_range(&self, arena: &Arena, bits: Range<u64>) {
        let mut done = bits.start;
        while done < bits.end {
            self.word(arena, done).fetch_and(!mask_of(done, bits.end), AcqRel);
            done = (done / 64 + 1) * 64;
        }
    }

    /// Finds the first `n` neighbouring clear bits of `within`, without claiming them. `None` if
    /// there is no such run.
    pub fn find_run(&self, arena: &Arena, within: Range<u64>, n: u64) -> Option<Range<u64>> {
        let end = within.end.min(self.len);
        // The bits from `start` to `at` are known to be clear.
        let (mut start, mut at) = (within.start, within.start);
        while at < end {
            let used = self.word(arena, at).load(Relaxed) >> (at % 64);
            let left = 64 - at % 64;
            let clear = u64::from(used.trailing_zeros()).min(left);
            at += clear;
            if at.min(end) - start >= n {
                return Some(start..start + n);
            }
            if clear < left {
                at += u64::from((used >> clear).trailing_ones());
                start = at;
            }
        }
        None
    }

    /// Whether all of these bits are clear.
    pub fn is_clear(&self, arena: &Arena, bits: Range<u64>) -> bool {
        let mut at = bits.start;
        while at < bits.end.min(self.len) {
            if self.word(arena, at).load(Relaxed) & mask_of(at, bits.end) != 0 {
                return false;
            }
            at = (at / 64 + 1) * 64;
        }
        bits.end <= self.len
    }

    /// Returns the values of up to `n` words from word `first` on.
    pub(crate) fn words_of<'a>(
        &self,
        arena: &'a Arena,
        first: usize,
        n: usize,
    ) -> impl Iterator<Item = u64> + use<'a> {
        let words = arena.table(self.words);
        words[first..words.len().min(first + n)].iter().map(|word| word.load(Relaxed))
    }

    /// Clears all bits and calls `each` for those that were set.
    pub fn drain(&self, arena: &Arena, mut each: impl FnMut(u64)) {
        for (w, word) in arena.table(self.words).iter().enumerate() {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let mut set = word.swap(0, AcqRel);
            while set != 0 {
                each(w as u64 * 64 + u64::from(set.trailing_zeros()));
                set &= set - 1;
            }
        }
    }

    /// Counts the set bits, without those behind the end.
    pub fn count(&self, arena: &Arena) -> u64 {
        self.count_range(arena, 0..self.len)
    }

    /// Counts the set bits in this range, which may reach beyond the end.
    pub fn count_range(&self, arena: &Arena, bits: Range<u64>) -> u64 {
        let end = bits.end.min(self.len);
        let (mut at, mut set) = (bits.start, 0);
        while at < end {
            set += u64::from((self.word(arena, at).load(Relaxed) & mask_of(at, end)).count_ones());
            at = (at / 64 + 1) * 64;
        }
        set
    }
}

/// Returns the mask of the bits `from..end`, as far as they lie in the word of `from`.
fn mask_of(from: u64, end: u64) -> u64 {
    let n = (end - from).min(64 - from % 64);
    (!0 >> (64 - n)) << (from % 64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn claims_every_bit_once() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 130);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        let mut seen = [false; 130];
        for i in 0..130 {
            let hint = i * 7 % 130;
            let run = map.claim(&arena, hint..130, 1).or_else(|| map.claim(&arena, 0..hint, 1));
            assert!(!std::mem::replace(&mut seen[run.unwrap().start as usize], true));
        }
        assert_eq!(map.claim(&arena, 0..1000, 9), None);
        assert_eq!(map.count(&arena), 130);
        for bit in [3, 4, 5, 7, 63, 64] {
            assert!(map.clear(&arena, bit) && !map.clear(&arena, bit));
        }
        assert_eq!(map.claim(&arena, 0..3, 9), None);
        assert_eq!(map.claim(&arena, 0..5, 9), Some(3..5));
        assert_eq!(map.claim(&arena, 5..130, 9), Some(5..6));
        assert_eq!(map.claim(&arena, 60..130, 9), Some(63..64));
        assert_eq!(map.claim(&arena, 60..130, 9), Some(64..65));
        assert_eq!(map.claim(&arena, 0..130, 9), Some(7..8));
    }

    #[test]
    fn whole_words_are_claimed_from_a_bit_on_and_around() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 64 * 4 + 10);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        map.set(&arena, 64 * 3 + 5);
        assert_eq!(map.claim_word(&arena, 130..266, 1), Some(128..192));
        assert_eq!(map.claim_word(&arena, 130..266, 2), None, "one is claimed, one not all clear");
        assert_eq!(map.claim_word(&arena, 130..266, 9), Some(0..64));
        assert_eq!(map.claim_word(&arena, 0..64, 9), None, "the others lie behind");
        assert_eq!(map.claim_word(&arena, 265..266, 9), Some(64..128));
        assert_eq!(map.claim_word(&arena, 0..266, 9), None);
        assert_eq!(map.count(&arena), 64 * 3 + 1);
        assert_eq!(map.claim(&arena, 0..1000, 64), Some(192..197));
    }

    #[test]
    fn bits_of_any_range_are_counted() {
        const BITS: u64 = 64 * 4 + 10;
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, BITS);
        let arena = &Arena::anonymous(&layout).unwrap();
        map.init(arena);
        for bit in (0..BITS).filter(|bit| bit * bit % 7 < 3 || (128..192).contains(bit)) {
            map.set(arena, bit);
        }
        let naive = |bits: Range<u64>| bits.filter(|bit| map.get(arena, *bit)).count() as u64;
        for start in 0..=BITS {
            for end in start..=BITS {
                assert_eq!(map.count_range(arena, start..end), naive(start..end), "{start}..{end}");
            }
        }
        assert_eq!(map.count(arena), naive(0..BITS));
        assert_eq!(map.count_range(arena, 100..10_000), naive(100..BITS));
        assert_eq!(map.count_range(arena, 10_000..20_000), 0);
    }

    #[test]
    fn runs_are_found_across_words_and_claimed_whole() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 1000);
        let arena = &Arena::anonymous(&layout).unwrap();
        map.init(arena);
        for bit in [10, 70, 300] {
            map.set(arena, bit);
        }
        assert_eq!(map.find_run(arena, 0..1000, 60), Some(71..131));
        assert_eq!(map.find_run(arena, 0..1000, 59), Some(11..70));
        assert_eq!(map.find_run(arena, 0..1000, 10), Some(0..10));
        assert_eq!(map.find_run(arena, 3..1000, 8), Some(11..19));
        assert_eq!(map.find_run(arena, 3..10, 8), None);
        assert_eq!(map.find_run(arena, 0..1000, 699), Some(301..1000));
        assert_eq!(map.find_run(arena, 0..2000, 700), None);
        assert!(map.is_clear(arena, 301..1000) && map.is_clear(arena, 11..70));
        assert!(!map.is_clear(arena, 300..301) && !map.is_clear(arena, 11..71));
        assert!(!map.is_clear(arena, 990..1001), "beyond the end");
        assert!(map.claim_exactly(arena, 71..300));
        assert!(!map.claim_exactly(arena, 290..400), "claimed up to 301");
        assert!(map.claim_exactly(arena, 990..1000));
        assert!(!map.claim_exactly(arena, 980..1010), "beyond the end");
        assert_eq!(map.count(arena), 3 + 229 + 10);
        map.clear_range(arena, 0..1000);
        assert_eq!(map.count(arena), 0);
    }

    #[test]
    fn clear_runs_are_told_in_order_and_across_words() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 400);
        let arena = &Arena::anonymous(&layout).unwrap();
        map.init(arena);
        let runs = |map: &Bitmap| {
            let mut runs = Vec::new();
            map.each_clear_run(arena, |run| runs.push(run));
            runs
        };
        assert_eq!(runs(&map), vec![0..400; 1]);
        for bit in [0, 63, 64, 127, 200, 399] {
            map.set(arena, bit);
        }
        assert_eq!(runs(&map), [1..63, 65..127, 128..200, 201..399]);
        assert!(map.claim_exactly(arena, 1..63));
        assert!(map.claim_exactly(arena, 128..192));
        assert_eq!(runs(&map), [65..127, 192..200, 201..399]);
        map.clear(arena, 399);
        assert_eq!(runs(&map), [65..127, 192..200, 201..400]);
    }

    #[test]
    fn ranges_are_set_across_words() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 400);
        let arena = &Arena::anonymous(&layout).unwrap();
        assert!(map.set_range(arena, 3..3) && map.set_range(arena, 60..200));
        assert_eq!((map.count(arena), map.count_range(arena, 60..200)), (140, 140));
        assert!(!map.set_range(arena, 199..400));
        assert_eq!((map.count(arena), map.get(arena, 59)), (340, false));
    }

    #[test]
    fn draining_finds_what_is_set() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 200);
        let arena = Arena::anonymous(&layout).unwrap();
        for bit in [0, 63, 64, 199] {
            map.set(&arena, bit);
        }
        let mut found = Vec::new();
        map.drain(&arena, |bit| found.push(bit));
        assert_eq!(found, [0, 63, 64, 199]);
        map.drain(&arena, |_| panic!("nothing is left"));
    }

    #[test]
    fn threads_never_share_a_bit() {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, 4096);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        let mut all: Vec<u64> = std::thread::scope(|s| {
            let claim =
                || (0..1024).filter_map(|i| map.claim(&arena, 0..4096, 1 + i % 3)).flatten();
            let workers: Vec<_> =
                (0..4).map(|_| s.spawn(move || claim().collect::<Vec<_>>())).collect();
            workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..4096).collect::<Vec<_>>());
    }
}
