//! Sets of blocks, as words of bits like those on the media.

use crate::BLOCK;
use std::collections::BTreeMap;
use std::ops::Range;

/// The number of blocks of a word.
const EACH: u64 = 64;

/// A set of blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The words that are not 0, by their numbers.
    words: BTreeMap<u64, u64>,
    count: u64,
}

impl Blocks {
    /// Makes a set from words of a bitmap and their numbers.
    pub fn from_words(words: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut blocks = Self::default();
        for (index, word) in words {
            blocks.set_word(index, word);
        }
        blocks
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns a word of the bitmap.
    pub fn word(&self, index: u64) -> u64 {
        self.words.get(&index).copied().unwrap_or(0)
    }

    /// Stores a word of the bitmap, and updates the count.
    fn set_word(&mut self, index: u64, word: u64) {
        let before = match word {
            0 => self.words.remove(&index),
            _ => self.words.insert(index, word),
        };
        let before = before.unwrap_or(0);
        self.count = self.count + u64::from(word.count_ones()) - u64::from(before.count_ones());
    }

    /// Adds blocks. Returns the words that this changes.
    pub fn add(&mut self, blocks: &Range<u64>) -> Vec<u64> {
        let words = words_of(blocks);
        words.filter(|index| self.update(*index, |word| word | mask(*index, blocks))).collect()
    }

    /// Removes blocks. Returns the words that this changes.
    pub fn remove(&mut self, blocks: &Range<u64>) -> Vec<u64> {
        let words: Vec<u64> = self.words.range(words_of(blocks)).map(|(index, _)| *index).collect();
        let changes = words.into_iter();
        changes.filter(|index| self.update(*index, |word| word & !mask(*index, blocks))).collect()
    }

    /// Removes the blocks that are in `these` and not in `but`. Returns the words that this
    /// changes.
    pub fn remove_all(&mut self, these: &Self, but: &Self) -> Vec<u64> {
        let words = these.words.iter();
        let changes = words.filter(|(index, mask)| {
            self.update(**index, |word| word & !(**mask & !but.word(**index)))
        });
        changes.map(|(index, _)| *index).collect()
    }

    /// Changes a word of the bitmap. Returns whether it differs now.
    fn update(&mut self, index: u64, to: impl Fn(u64) -> u64) -> bool {
        let word = self.word(index);
        let new = to(word);
        self.set_word(index, new);
        new != word
    }

    /// Returns the number of these blocks that are missing in the set.
    pub fn missing(&self, blocks: &Range<u64>) -> u64 {
        let mut copy = 0;
        let mut at = blocks.start;
        while let Some(next) = self.next(at).filter(|next| next.start < blocks.end) {
            copy += next.end.min(blocks.end) - next.start;
            at = next.end;
        }
        blocks.end - blocks.start - copy
    }

    /// Returns the first run of adjacent blocks at or after `from`.
    pub fn next(&self, from: u64) -> Option<Range<u64>> {
        let start = self.find(from)?;
        // A word that is missing is 0.
        let mut end = start;
        loop {
            let word = self.word(end / EACH) >> (end % EACH);
            let ones = u64::from(word.trailing_ones()).min(EACH - end % EACH);
            end += ones;
            if ones == 0 || !end.is_multiple_of(EACH) {
                return Some(start..end);
            }
        }
    }

    /// Returns the first block of the set from `from` on; `None` without one.
    fn find(&self, from: u64) -> Option<u64> {
        let (index, shift) = (from / EACH, from % EACH);
        let first = self.word(index) >> shift << shift;
        if first != 0 {
            return Some(index * EACH + u64::from(first.trailing_zeros()));
        }
        let (next, word) = self.words.range(index + 1..).next()?;
        Some(next * EACH + u64::from(word.trailing_zeros()))
    }

    /// Returns all blocks as ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::successors(self.next(0), |last| self.next(last.end))
    }
}

/// Returns the words that have bits of these blocks.
fn words_of(blocks: &Range<u64>) -> Range<u64> {
    if blocks.is_empty() { 0..0 } else { blocks.start / EACH..blocks.end.div_ceil(EACH) }
}

/// Returns the bits of a word that stand for some of these blocks. The word has at least one of
/// them.
fn mask(index: u64, blocks: &Range<u64>) -> u64 {
    let first = index * EACH;
    let start = blocks.start.max(first) - first;
    let end = blocks.end.min(first + EACH) - first;
    u64::MAX >> (EACH - (end - start)) << start
}

/// Joins ascending numbers to ranges of adjacent ones.
pub fn joined(numbers: &[u64]) -> impl Iterator<Item = Range<u64>> + '_ {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1)
}

/// Returns the blocks that contain these bytes.
pub fn blocks_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn as_a_set_of_numbers() {
        let (mut blocks, mut naive) = (Blocks::default(), BTreeSet::new());
        let mut rng = Rng::new(7);
        for _ in 0..2000 {
            let start = rng.below(400);
            let range = start..start + rng.below(150);
            let changed = if rng.below(2) == 0 {
                naive.extend(range.clone());
                blocks.add(&range)
            } else {
                naive.retain(|block| !range.contains(block));
                blocks.remove(&range)
            };
            let words = range.start / 64..range.end.div_ceil(64);
            assert!(changed.iter().all(|word| words.contains(word)));
            assert_eq!(joined(&changed).flatten().collect::<Vec<_>>(), changed);
            assert_eq!(blocks.count(), naive.len() as u64);
            let listed: Vec<u64> = blocks.ranges().flatten().collect();
            assert_eq!(listed, naive.iter().copied().collect::<Vec<_>>());
            let held = naive.range(range.clone()).count() as u64;
            assert_eq!(blocks.missing(&range), range.end - range.start - held);
        }
    }

    #[test]
    fn what_was_changed_meanwhile_stays() {
        let mut blocks = Blocks::default();
        blocks.add(&(10..200));
        let these = blocks.clone();
        let mut but = Blocks::default();
        but.add(&(60..70));
        assert_eq!(blocks.remove_all(&these, &but), vec![0, 1, 2, 3]);
        assert_eq!(blocks.ranges().collect::<Vec<_>>(), vec![60..70]);
    }
}
