//! Arrays of lines in sets, with the least recently used line of each set as its victim.

use super::config::CacheSize;
use super::recency::Recency;

/// The tag of a place without a line. Tags are line numbers plus 1.
const EMPTY: u64 = 0;
/// Words of prints have a byte for each of eight ways.
const WORD_WAYS: usize = 8;
/// A word with a 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

#[derive(Clone, Copy, Debug, Default)]
struct CachedLine<T> {
    tag: u64,
    data: T,
}

/// The lines of one cache, with `data` for each. A place is an index into all of its lines: first
/// come the first ways of all sets. So lines that follow each other, and came one after the other,
/// are neighbours in this machine's caches.
#[derive(Debug)]
pub(super) struct Sets<T> {
    entries: Vec<CachedLine<T>>,
    /// A byte for each way, computed from its tag. A search compares eight of them at a time, and
    /// then only the tags of those that are equal.
    prints: Vec<u64>,
    /// The order of their use (recency-R1).
    recency: Recency,
    mask: u64,
    set_bits: u32,
    /// Words of prints in a set.
    words: usize,
}

impl<T: Copy + Default> Sets<T> {
    pub(super) fn new(size: CacheSize) -> Self {
        let (sets, ways) = (size.sets() as usize, size.ways as usize);
        let words = ways.div_ceil(WORD_WAYS);
        Self {
            entries: vec![CachedLine::default(); sets * ways],
            prints: vec![0; sets * words],
            recency: Recency::new(sets, ways),
            mask: size.sets() - 1,
            set_bits: sets.trailing_zeros(),
            words,
        }
    }

    /// Returns the number of places.
    pub(super) fn places(&self) -> usize {
        self.entries.len()
    }

    /// Returns the set of a line.
    #[inline]
    fn set(&self, line: u64) -> usize {
        (line & self.mask) as usize
    }

    /// Returns the set and the way of a place.
    #[inline]
    fn split(&self, place: usize) -> (usize, usize) {
        (place & self.mask as usize, place >> self.set_bits)
    }

    /// Returns the place of a way of a set.
    #[inline]
    fn place(&self, set: usize, way: usize) -> usize {
        way << self.set_bits | set
    }

    /// Returns the print of a line.
    #[inline]
    fn print(&self, line: u64) -> u64 {
        let above = line >> self.set_bits;
        (above ^ above >> 8) & 0xff
    }

    /// Returns the place of a line.
    #[inline]
    pub(super) fn find(&self, line: u64) -> Option<usize> {
        let set = self.set(line);
        let expected = self.print(line) * ONES;
        for word in 0..self.words {
            let differences = self.prints[set * self.words + word] ^ expected;
            // The highest bit of each byte that is 0, and maybe of some bytes above one.
            let mut zeros = differences.wrapping_sub(ONES) & !differences & ONES << 7;
            while zeros != 0 {
                let way = word * WORD_WAYS + zeros.trailing_zeros() as usize / 8;
                let place = self.place(set, way);
                if self.entries.get(place).is_some_and(|entry| entry.tag == line + 1) {
                    return Some(place);
                }
                zeros &= zeros - 1;
            }
        }
        None
    }

    /// Marks a place as just used.
    #[inline]
    pub(super) fn touch(&mut self, place: usize) {
        let (set, way) = self.split(place);
        self.recency.touch(set, way);
    }

    /// Returns the line at a place.
    #[inline]
    pub(super) fn line(&self, place: usize) -> Option<u64> {
        self.entries[place].tag.checked_sub(1)
    }

    #[inline]
    pub(super) fn data(&self, place: usize) -> T {
        self.entries[place].data
    }

    #[inline]
    pub(super) fn data_mut(&mut self, place: usize) -> &mut T {
        &mut self.entries[place].data
    }

    /// Returns the place that a new line takes: an empty one, else the least recently used one.
    #[inline]
    pub(super) fn oldest(&self, line: u64) -> usize {
        let set = self.set(line);
        self.place(set, self.recency.oldest(set))
    }

    /// As [`oldest`](Self::oldest), but of those that are `eligible`, if there are any.
    #[inline]
    pub(super) fn victim(&self, line: u64, eligible: impl Fn(usize) -> bool) -> usize {
        let oldest = self.oldest(line);
        if self.entries[oldest].tag == EMPTY || eligible(oldest) {
            return oldest;
        }
        let set = self.set(line);
        let mut places = self.recency.oldest_first(set).map(|way| self.place(set, way));
        places.find(|place| eligible(*place)).unwrap_or(oldest)
    }

    /// Puts a line at a place of its set, in front of all others.
    #[inline]
    pub(super) fn fill(&mut self, place: usize, line: u64, data: T) {
        let (set, way) = self.split(place);
        self.entries[place] = CachedLine { tag: line + 1, data };
        let print = self.print(line);
        let word = &mut self.prints[set * self.words + way / WORD_WAYS];
        let shift = way % WORD_WAYS * 8;
        *word = *word & !(0xff << shift) | print << shift;
        self.recency.touch(set, way);
    }

    /// Removes the line at a place.
    #[inline]
    pub(super) fn clear(&mut self, place: usize) {
        let (set, way) = self.split(place);
        self.entries[place] = CachedLine::default();
        self.recency.retire(set, way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;

    /// Compares with lists of lines, of which the last one was used last.
    #[test]
    fn lines_are_found_and_replaced_as_in_lists() {
        for (sets, ways) in [(1_u64, 1_u32), (4, 3), (2, 8), (1, 11), (8, 16), (2, 64)] {
            let bytes = sets * u64::from(ways) * crate::LINE;
            let mut cache = Sets::new(CacheSize { bytes, ways });
            let mut lists = vec![Vec::new(); sets as usize];
            let mut rng = Rng::new(sets);
            for step in 0..20_000 {
                // Neighbours, and lines far from them with equal prints.
                let line = rng.below(sets * u64::from(ways) * 2) << (rng.below(4) * 12);
                let list: &mut Vec<u64> = &mut lists[(line % sets) as usize];
                let place = cache.find(line);
                assert_eq!(place.is_some(), list.contains(&line));
                list.retain(|other| *other != line);
                match place {
                    Some(place) if step % 8 == 0 => {
                        cache.clear(place);
                        continue;
                    }
                    Some(place) => {
                        assert_eq!((cache.line(place), cache.data(place)), (Some(line), !line));
                        cache.touch(place);
                    }
                    None => {
                        let place = cache.oldest(line);
                        let full = list.len() == ways as usize;
                        assert_eq!(cache.line(place), full.then(|| list.remove(0)));
                        cache.fill(place, line, !line);
                    }
                }
                list.push(line);
            }
        }
    }
}
