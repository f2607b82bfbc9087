//! Sets of blocks, as they are on the media: bits of words.

use crate::BLOCK;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of a word.
const EACH: u64 = 64;

/// A set of blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// None of them 0.
    words: BTreeMap<u64, u64>,
    count: u64,
}

impl Blocks {
    /// From words of a bitmap and their numbers.
    pub fn from_words(words: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut blocks = Self::default();
        for (index, word) in words {
            blocks.set_word(index, word);
        }
        blocks
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A word of the bitmap.
    pub fn word(&self, index: u64) -> u64 {
        self.words.get(&index).copied().unwrap_or(0)
    }

    fn set_word(&mut self, index: u64, word: u64) {
        let before = match word {
            0 => self.words.remove(&index),
            _ => self.words.insert(index, word),
        };
        let before = before.unwrap_or(0);
        self.count = self.count + u64::from(word.count_ones()) - u64::from(before.count_ones());
    }

    /// Adds blocks; which words that changes.
    pub fn add(&mut self, blocks: &Range<u64>) -> Vec<u64> {
        let words = words_of(blocks);
        words.filter(|index| self.update(*index, |word| word | mask(*index, blocks))).collect()
    }

    /// Removes blocks; which words that changes.
    pub fn remove(&mut self, blocks: &Range<u64>) -> Vec<u64> {
        let words: Vec<u64> = self.words.range(words_of(blocks)).map(|(index, _)| *index).collect();
        let changes = words.into_iter();
        changes.filter(|index| self.update(*index, |word| word & !mask(*index, blocks))).collect()
    }

    /// Removes those that are in `these` and not in `but`; which words that changes.
    pub fn remove_all(&mut self, these: &Self, but: &Self) -> Vec<u64> {
        let words = these.words.iter();
        let changes = words.filter(|(index, mask)| {
            self.update(**index, |word| word & !(**mask & !but.word(**index)))
        });
        changes.map(|(index, _)| *index).collect()
    }

    fn update(&mut self, index: u64, to: impl Fn(u64) -> u64) -> bool {
        let word = self.word(index);
        let new = to(word);
        self.set_word(index, new);
        new != word
    }

    /// How many of these it has not.
    pub fn missing(&self, blocks: &Range<u64>) -> u64 {
        let mut copy = 0;
        let mut at = blocks.start;
        while let Some(next) = self.next(at).filter(|next| next.start < blocks.end) {
            copy += next.end.min(blocks.end) - next.start;
            at = next.end;
        }
        blocks.end - blocks.start - copy
    }

    /// The first blocks behind each other at or after `from`.
    pub fn next(&self, from: u64) -> Option<Range<u64>> {
        let start = self.find(from)?;
        // Where the next word is not there, it is 0.
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

    fn find(&self, from: u64) -> Option<u64> {
        let (index, shift) = (from / EACH, from % EACH);
        let first = self.word(index) >> shift << shift;
        if first != 0 {
            return Some(index * EACH + u64::from(first.trailing_zeros()));
        }
        let (next, word) = self.words.range(index + 1..).next()?;
        Some(next * EACH + u64::from(word.trailing_zeros()))
    }

    /// All of them, by ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::successors(self.next(0), |last| self.next(last.end))
    }
}

/// The words that have bits of these blocks.
fn words_of(blocks: &Range<u64>) -> Range<u64> {
    if blocks.is_empty() { 0..0 } else { blocks.start / EACH..blocks.end.div_ceil(EACH) }
}

/// The bits of a word that stand for some of these blocks, of which there are some.
fn mask(index: u64, blocks: &Range<u64>) -> u64 {
    let first = index * EACH;
    let start = blocks.start.max(first) - first;
    let end = blocks.end.min(first + EACH) - first;
    u64::MAX >> (EACH - (end - start)) << start
}

/// Numbers in ascending order as ranges of those that follow each other.
pub fn joined(numbers: &[u64]) -> impl Iterator<Item = Range<u64>> + '_ {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1)
}

/// The blocks in which these bytes are.
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
