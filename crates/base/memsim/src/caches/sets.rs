//! Arrays of lines in sets, with the least recently used line of each set as its victim.

use super::config::CacheSize;

/// The tag of a place without a line. Tags are line numbers plus 1.
const EMPTY: u64 = 0;

/// The lines of one cache. A place is an index into all of its lines.
#[derive(Debug)]
pub(super) struct Sets {
    tags: Vec<u64>,
    /// The time of the last use of each place; 0 if it is empty.
    used: Vec<u32>,
    clock: u32,
    mask: u64,
    ways: usize,
}

impl Sets {
    pub(super) fn new(size: CacheSize) -> Self {
        let lines = size.lines() as usize;
        Self {
            tags: vec![EMPTY; lines],
            used: vec![0; lines],
            clock: 0,
            mask: size.sets() - 1,
            ways: size.ways as usize,
        }
    }

    /// Returns the first place of the set of a line.
    #[inline]
    fn set(&self, line: u64) -> usize {
        (line & self.mask) as usize * self.ways
    }

    /// Returns the place of a line.
    #[inline]
    pub(super) fn find(&self, line: u64) -> Option<usize> {
        let first = self.set(line);
        let way = self.tags[first..first + self.ways].iter().position(|tag| *tag == line + 1)?;
        Some(first + way)
    }

    /// Marks a place as just used.
    #[inline]
    pub(super) fn touch(&mut self, place: usize) {
        if self.clock == u32::MAX {
            self.renumber();
        }
        self.clock += 1;
        self.used[place] = self.clock;
    }

    /// Replaces times by small ones, with the same order in each set.
    #[cold]
    fn renumber(&mut self) {
        for set in self.used.chunks_mut(self.ways) {
            let before = set.to_vec();
            let rank = |used: u32| before.iter().filter(|other| **other < used).count() as u32 + 1;
            set.iter_mut().filter(|used| **used > 0).for_each(|used| *used = rank(*used));
        }
        self.clock = self.ways as u32 + 1;
    }

    /// Returns the line at a place.
    #[inline]
    pub(super) fn line(&self, place: usize) -> Option<u64> {
        self.tags[place].checked_sub(1)
    }

    /// Returns the place that a new line takes: an empty one, else the least recently used one.
    #[inline]
    pub(super) fn oldest(&self, line: u64) -> usize {
        let first = self.set(line);
        let (mut best, mut least) = (first, u32::MAX);
        for (place, used) in (first..).zip(&self.used[first..first + self.ways]) {
            // Without a branch, which would be mispredicted.
            let is_older = *used < least;
            best = if is_older { place } else { best };
            least = if is_older { *used } else { least };
        }
        best
    }

    /// As [`oldest`](Self::oldest), but of those that are `eligible`, if there are any.
    #[inline]
    pub(super) fn victim(&self, line: u64, eligible: impl Fn(usize) -> bool) -> usize {
        let oldest = self.oldest(line);
        if self.used[oldest] == 0 || eligible(oldest) {
            return oldest;
        }
        let first = self.set(line);
        let others = (first..first + self.ways).filter(|place| eligible(*place));
        others.min_by_key(|place| self.used[*place]).unwrap_or(oldest)
    }

    /// Puts a line at a place, in front of all others of its set.
    #[inline]
    pub(super) fn fill(&mut self, place: usize, line: u64) {
        self.tags[place] = line + 1;
        self.touch(place);
    }

    /// Removes the line at a place.
    #[inline]
    pub(super) fn clear(&mut self, place: usize) {
        self.tags[place] = EMPTY;
        self.used[place] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_use_outlives_the_clock() {
        let mut sets = Sets::new(CacheSize { bytes: 4 * 64, ways: 4 });
        for line in [10, 11, 12] {
            sets.fill(sets.oldest(line), line);
        }
        assert_eq!(sets.line(sets.oldest(13)), None);
        sets.fill(sets.oldest(13), 13);
        sets.touch(sets.find(10).unwrap());
        sets.clock = u32::MAX;
        sets.touch(sets.find(12).unwrap());
        assert!(sets.clock < 100);
        for expected in [11, 13, 10, 12] {
            let place = sets.oldest(20);
            assert_eq!(sets.line(place), Some(expected));
            sets.fill(place, 20 + expected);
        }
    }
}
