//! The ways of each set, in the order in which they were used.
//!
//! - recency-R1: The order of a set names each of its ways once, the last used first.

/// Ways whose numbers fit into a word, with four bits each.
const PACKED_MAX: usize = 16;
/// A word with a 1 in each group of four bits.
const ONES: u64 = 0x1111_1111_1111_1111;

/// The order of the ways in all sets of a cache.
#[derive(Debug)]
pub(super) struct Recency {
    ways: usize,
    /// Up to 16 ways: a word for each set, with the way used last in the lowest four bits.
    packed: Vec<u64>,
    /// More ways: a byte for each way of each set.
    bytes: Vec<u8>,
}

impl Recency {
    pub(super) fn new(sets: usize, ways: usize) -> Self {
        if ways <= PACKED_MAX {
            let order = (0..ways as u64).rev().fold(0, |order, way| order << 4 | way);
            return Self { ways, packed: vec![order; sets], bytes: Vec::new() };
        }
        let order: Vec<u8> = (0..ways as u8).collect();
        Self { ways, packed: Vec::new(), bytes: order.repeat(sets) }
    }

    fn is_packed(&self) -> bool {
        self.ways <= PACKED_MAX
    }

    /// Returns the order of a set that is not packed, and the place of a way in it.
    fn find(&mut self, set: usize, way: usize) -> (&mut [u8], usize) {
        let order = &mut self.bytes[set * self.ways..(set + 1) * self.ways];
        let at = order.iter().position(|other| usize::from(*other) == way).expect("recency-R1");
        (order, at)
    }

    /// Returns the way that was not used for longest.
    #[inline]
    pub(super) fn oldest(&self, set: usize) -> usize {
        self.nth(set, self.ways - 1)
    }

    /// Returns all ways of a set, the one that was not used for longest first.
    pub(super) fn oldest_first(&self, set: usize) -> impl Iterator<Item = usize> {
        (0..self.ways).rev().map(move |nth| self.nth(set, nth))
    }

    #[inline]
    fn nth(&self, set: usize, nth: usize) -> usize {
        if self.is_packed() {
            return (self.packed[set] >> (4 * nth)) as usize & 0xf;
        }
        self.bytes[set * self.ways + nth].into()
    }

    /// Makes a way the first.
    #[inline]
    pub(super) fn touch(&mut self, set: usize, way: usize) {
        if self.is_packed() {
            let order = &mut self.packed[set];
            let (newer, older) = split(*order, way);
            *order = older | newer << 4 | way as u64;
            return;
        }
        let (order, at) = self.find(set, way);
        order[..=at].rotate_right(1);
    }

    /// Makes a way the last.
    #[inline]
    pub(super) fn retire(&mut self, set: usize, way: usize) {
        let last = self.ways - 1;
        if self.is_packed() {
            let order = &mut self.packed[set];
            let (newer, older) = split(*order, way);
            *order = newer | older >> 4 | (way as u64) << (4 * last);
            return;
        }
        let (order, at) = self.find(set, way);
        order[at..].rotate_left(1);
    }
}

/// Returns the parts of a packed order with the ways that were used later and earlier than `way`.
#[inline]
fn split(order: u64, way: usize) -> (u64, u64) {
    // The lowest group of four bits that is 0 is that of the way. The usual test for zeros in
    // parts of a word finds the lowest one exactly.
    let differences = order ^ (ONES * way as u64);
    let zeros = differences.wrapping_sub(ONES) & !differences & ONES << 3;
    let newer = (1 << (zeros.trailing_zeros() & !3)) - 1;
    let older = !(newer << 4 | 0xf);
    (order & newer, order & older)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;

    #[test]
    fn orders_follow_the_last_uses() {
        for ways in [1, 2, 5, 8, 15, 16, 17, 64] {
            let mut recency = Recency::new(3, ways);
            let mut expected: Vec<usize> = (0..ways).rev().collect();
            let mut rng = Rng::new(ways as u64);
            for step in 0..1000 {
                let way = rng.below(ways as u64) as usize;
                expected.retain(|other| *other != way);
                if step % 4 == 0 {
                    recency.retire(1, way);
                    expected.insert(0, way);
                } else {
                    recency.touch(1, way);
                    expected.push(way);
                }
                assert!(recency.oldest_first(1).eq(expected.iter().copied()), "{ways} ways");
                assert_eq!(recency.oldest(1), expected[0]);
            }
            assert!(recency.oldest_first(0).eq((0..ways).rev()), "another set");
        }
    }
}
