//! The memory that recovery finds after a crash, and a record of recovery's accesses to it.
//!
//! One image serves all states of a crash point. A state is a few words laid over the durable
//! bytes, and [`CrashImage::reset`] reverts, page by page, the changes of the last recovery.
//!
//! The image also notes which of the *undecided* words recovery reads, in order. Recovery is
//! deterministic, so two states that agree on those words end in the same way: that makes millions
//! of states cheap.

use crate::persist::{Semantics, Unit};
use pmem::{Counters, Domain, Fenced, LINE, Line, Medium};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// Number of an 8-byte word of the region.
pub type WordNo = u32;

/// Memory after a crash.
#[derive(Debug)]
pub struct CrashImage {
    len: u64,
    stores_lines: bool,
    domain: Domain,
    counters: Counters,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    /// Former contents of pages changed since the last reset.
    undo: Vec<(u32, Box<[u8]>)>,
    changed: Vec<bool>,
    /// For each page: its row of `watched`, plus one.
    rows: Vec<u32>,
    /// Undecided words that were neither read nor overwritten yet.
    watched: Vec<[u64; WORDS / 64]>,
    reads: Vec<WordNo>,
    stores: u64,
    /// The undecided units.
    undecided: Arc<[Unit]>,
    /// Undecided words that were neither read nor overwritten, set when a caller asks for their
    /// variants.
    free: Vec<Free>,
}

/// Words of a unit that no recovery has read or overwritten.
#[derive(Debug)]
struct Free {
    /// Number of the unit.
    unit: usize,
    /// Places of the words in it.
    places: Vec<usize>,
}

impl Inner {
    fn word(&self, word: WordNo) -> u64 {
        let at = word as usize * 8;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Whether a word is undecided, and was neither read nor overwritten.
    fn is_watched(&self, word: WordNo) -> bool {
        let (page, bit) = (word as usize / WORDS, word as usize % WORDS);
        match self.rows[page] {
            0 => false,
            row => self.watched[row as usize - 1][bit / 64] >> (bit % 64) & 1 != 0,
        }
    }

    /// Keeps the former content of pages before their first change since the last reset.
    fn save(&mut self, off: usize, len: usize) {
        for page in off / PAGE..(off + len).div_ceil(PAGE) {
            if !self.changed[page] {
                self.changed[page] = true;
                let end = ((page + 1) * PAGE).min(self.bytes.len());
                self.undo.push((page as u32, self.bytes[page * PAGE..end].into()));
            }
        }
    }

    /// Stores bytes, and stops watching the words that they overwrite as a whole.
    fn store(&mut self, off: u64, data: &[u8]) {
        let off = off as usize;
        self.save(off, data.len());
        self.bytes[off..off + data.len()].copy_from_slice(data);
        self.stores += 1;
        // Words that are overwritten as a whole no longer depend on the crash.
        let words = off.div_ceil(8)..(off + data.len()) / 8;
        self.each_watched(words, |_, _| {});
    }

    fn stop_watching(&mut self) {
        if !self.watched.is_empty() {
            self.watched.clear();
            self.rows.fill(0);
        }
    }

    /// Notes that recovery reads these bytes: adds watched words to `reads`, each once.
    fn look(&mut self, off: u64, len: usize) {
        let off = off as usize;
        let words = off / 8..(off + len).div_ceil(8);
        self.each_watched(words, |reads, word| reads.push(word));
    }

    /// Stops watching the watched ones of `words`, and calls `each` with them.
    fn each_watched(
        &mut self,
        words: std::ops::Range<usize>,
        each: impl Fn(&mut Vec<WordNo>, WordNo),
    ) {
        let mut at = words.start;
        while at < words.end {
            let page_end = ((at / WORDS + 1) * WORDS).min(words.end);
            let row = self.rows[at / WORDS];
            if row == 0 {
                at = page_end;
                continue;
            }
            let bits = &mut self.watched[row as usize - 1][at % WORDS / 64];
            let cell_end = ((at / 64 + 1) * 64).min(page_end);
            let width = cell_end - at;
            let mask = (u64::MAX >> (64 - width)) << (at % 64);
            let mut hit = *bits & mask;
            *bits &= !mask;
            let cell = at - at % 64;
            while hit != 0 {
                each(&mut self.reads, (cell + hit.trailing_zeros() as usize) as WordNo);
                hit &= hit - 1;
            }
            at = cell_end;
        }
    }
}

impl CrashImage {
    /// Makes an image of `len` zeros.
    pub fn new(len: u64) -> Self {
        Self::of(vec![0; len as usize])
    }

    /// Makes an image of these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        let pages = bytes.len().div_ceil(PAGE);
        Self {
            len: bytes.len() as u64,
            stores_lines: false,
            domain: Domain::DevDax,
            counters: Counters::default(),
            inner: Mutex::new(Inner {
                bytes,
                undo: Vec::new(),
                changed: vec![false; pages],
                rows: vec![0; pages],
                watched: Vec::new(),
                reads: Vec::new(),
                stores: 0,
                undecided: Arc::default(),
                free: Vec::new(),
            }),
        }
    }

    /// Makes an image of these bytes with the capabilities of memory under these rules.
    pub fn under(semantics: Semantics, bytes: Vec<u8>) -> Self {
        let domain = semantics.domain();
        Self { stores_lines: semantics.stores_lines(), domain, ..Self::of(bytes) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A recovery that panicked is a finding; its changes are reverted like any others.
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes words durable: part of every state from now on. No state may be laid over meanwhile.
    pub fn make_durable(&self, words: &[(WordNo, u64)]) {
        let mut i = self.inner();
        debug_assert!(i.undo.is_empty(), "words become durable under a state");
        for (word, value) in words {
            let at = *word as usize * 8;
            i.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Returns the current value of a word.
    pub fn word(&self, word: WordNo) -> u64 {
        self.inner().word(word)
    }

    /// Lays a state over the durable bytes and watches the `undecided` words.
    pub fn lay(&self, state: &[(WordNo, u64)], undecided: &[WordNo]) {
        self.reset();
        let mut i = self.inner();
        for (word, value) in state {
            i.store(u64::from(*word) * 8, &value.to_le_bytes());
        }
        i.stores = 0;
        for word in undecided {
            let (page, bit) = (*word as usize / WORDS, *word as usize % WORDS);
            if i.rows[page] == 0 {
                i.watched.push([0; WORDS / 64]);
                i.rows[page] = i.watched.len() as u32;
            }
            let row = i.rows[page] as usize - 1;
            i.watched[row][bit / 64] |= 1 << (bit % 64);
        }
    }

    /// As [`lay`](Self::lay), and notes the alternatives for [`take_variant`](Self::take_variant).
    pub fn lay_among(&self, state: &[(WordNo, u64)], undecided: &Arc<[Unit]>) {
        let words: Vec<WordNo> = undecided.iter().flat_map(|u| u.words.iter().copied()).collect();
        self.lay(state, &words);
        self.inner().undecided = undecided.clone();
    }

    /// Returns the number of variants of undecided words that were not read: enough for each word
    /// to have each of its values in a variant. To be called before the first variant is taken.
    pub fn count_variants(&self) -> usize {
        let mut i = self.inner();
        let read: HashSet<WordNo> = i.reads.iter().copied().collect();
        let units = i.undecided.clone();
        let left = |unit: &(usize, &Unit)| !unit.1.words.iter().any(|word| read.contains(word));
        // Overwritten words are decided.
        let free = |(unit, of): (usize, &Unit)| {
            let places = 0..of.words.len();
            Free { unit, places: places.filter(|n| i.is_watched(of.words[*n])).collect() }
        };
        let free = units.iter().enumerate().filter(left).map(free);
        let free: Vec<Free> = free.filter(|free| !free.places.is_empty()).collect();
        let variants = free.iter().map(|free| units[free.unit].contents.len()).max();
        i.free = free;
        variants.unwrap_or(1)
    }

    /// Whether a read may have met a variant instead of the state that was laid.
    pub fn has_varied(&self) -> bool {
        !self.inner().free.is_empty()
    }

    /// Gives undecided words that were not read their `nth` content, or their last one. Later reads
    /// are not noted.
    pub fn take_variant(&self, nth: usize) {
        let mut i = self.inner();
        i.stop_watching();
        let stores = i.stores;
        let (units, free) = (i.undecided.clone(), std::mem::take(&mut i.free));
        for Free { unit, places } in &free {
            let Unit { words, contents, .. } = &units[*unit];
            let values = &contents[nth.min(contents.len() - 1)];
            for place in places {
                i.store(u64::from(words[*place]) * 8, &values[*place].to_le_bytes());
            }
        }
        i.free = free;
        i.stores = stores;
    }

    /// Restores the durable bytes, and watches nothing.
    pub fn reset(&self) {
        let mut i = self.inner();
        while let Some((page, old)) = i.undo.pop() {
            let at = page as usize * PAGE;
            i.bytes[at..at + old.len()].copy_from_slice(&old);
            i.changed[page as usize] = false;
        }
        i.stop_watching();
        i.reads.clear();
        i.undecided = Arc::default();
        i.free.clear();
        i.stores = 0;
    }

    /// Stops noting reads.
    pub fn stop_watching(&self) {
        self.inner().stop_watching();
    }

    /// Returns the undecided words that were read since [`lay`](Self::lay), in order of their first
    /// read.
    pub fn reads(&self) -> Vec<WordNo> {
        self.inner().reads.clone()
    }

    /// Returns the number of stores since [`lay`](Self::lay).
    pub fn stores(&self) -> u64 {
        self.inner().stores
    }

    /// Returns a copy of the current bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.inner().bytes.clone()
    }
}

impl Medium for CrashImage {
    fn len(&self) -> u64 {
        self.len
    }
    fn domain(&self) -> Domain {
        self.domain
    }
    fn counters(&self) -> &Counters {
        &self.counters
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        let mut i = self.inner();
        i.look(off, buf.len());
        buf.copy_from_slice(&i.bytes[off as usize..off as usize + buf.len()]);
    }
    fn load_u64(&self, off: u64) -> u64 {
        assert!(off.is_multiple_of(8), "a word is aligned");
        let mut i = self.inner();
        i.look(off, 8);
        i.word((off / 8) as WordNo)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        let mut i = self.inner();
        i.look(off, bytes.len());
        i.bytes[off as usize..off as usize + bytes.len()] == *bytes
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.inner().store(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.write(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        let mut data = vec![0; len as usize];
        self.read(src, &mut data);
        self.write(dst, &data);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.write(off, &vec![0; len as usize]);
    }
    fn store_u64(&self, off: u64, value: u64) {
        assert!(off.is_multiple_of(8), "a word is aligned");
        self.write(off, &value.to_le_bytes());
    }
    fn stores_lines(&self) -> bool {
        self.stores_lines
    }
    fn store_line(&self, off: u64, line: &Line) {
        assert!(self.stores_lines && off.is_multiple_of(LINE), "a line is aligned");
        self.write(off, line);
    }
    fn flush(&self, _off: u64, _len: u64) {}
    fn fence(&self) -> Fenced {
        Fenced::assert()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_read_has_each_of_its_values_in_a_variant() {
        let unit = |words: &[WordNo], contents: &[&[u64]]| Unit {
            words: words.to_vec(),
            contents: contents.iter().map(|values| (*values).into()).collect(),
            all: contents.len() - 1,
            line: words[0] / 8,
            since: 1,
        };
        let image = CrashImage::new(8192);
        let undecided: Arc<[Unit]> = [
            unit(&[1], &[&[0], &[10]]),
            unit(&[2, 3], &[&[0, 0], &[20, 0], &[20, 30]]),
            unit(&[600, 601], &[&[0, 0], &[60, 61]]),
            unit(&[700, 701], &[&[0, 0], &[70, 71]]),
        ]
        .into();
        image.lay_among(&[(1, 10)], &undecided);
        assert_eq!(image.load_u64(8), 10);
        assert_eq!(image.load_u64(601 * 8), 0);
        image.store_u64(700 * 8, 9);
        assert_eq!(image.count_variants(), 3);
        let found: Vec<[u64; 7]> = (0..3)
            .map(|nth| {
                image.take_variant(nth);
                [1, 2, 3, 600, 601, 700, 701].map(|word| image.word(word))
            })
            .collect();
        let expected =
            [[10, 0, 0, 0, 0, 9, 0], [10, 20, 0, 0, 0, 9, 71], [10, 20, 30, 0, 0, 9, 71]];
        assert_eq!(found, expected);
        image.load_u64(16);
        assert_eq!((image.reads(), image.stores()), (vec![1, 601], 1));
        image.reset();
        assert_eq!([2, 701].map(|word| image.word(word)), [0, 0]);
    }

    #[test]
    fn notes_first_reads_in_order_and_takes_changes_back() {
        let image = CrashImage::new(8192);
        image.make_durable(&[(1, 7)]);
        image.lay(&[(2, 9), (600, 5)], &[2, 3, 63, 64, 600]);
        assert_eq!(image.load_u64(600 * 8), 5);
        image.write(3 * 8, &[1; 8]);
        image.write(63 * 8 + 1, &[1; 7]);
        let mut buf = [0; 8192];
        image.read(0, &mut buf);
        image.read(0, &mut buf);
        assert_eq!(image.reads(), [600, 2, 63, 64]);
        assert_eq!(image.stores(), 2);
        image.reset();
        assert_eq!((image.word(1), image.word(2), image.word(3)), (7, 0, 0));
        assert!(image.reads().is_empty());
    }
}
