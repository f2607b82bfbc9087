//! The free space that a thin pool does not need, and when the background gives it back
//! ([`crate::thin`]).
//!
//! - surplus-B1: only blocks count that were free all the time over some looks, so that space which
//!   operations take and free again stays provisioned.
//! - surplus-B2: huge pages that are free are given back first. Others are divided later, and only
//!   if little of them is in use: the blocks in use then lie in small pages.
//! - surplus-B3: a trim that gave back little is not repeated soon. Free space may lie in places
//!   that no trim gives back.

use crate::thin::Trim;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Free blocks that a trim of the background leaves provisioned: 16 MiB.
pub(crate) const KEPT: u64 = 4096;

/// Free blocks beyond [`KEPT`] from which on the background trims: 16 MiB.
const TRIM_FROM: u64 = 4096;

/// The number of looks, a second apart, over which blocks must be free to count as surplus
/// (surplus-B1).
const LOOKS: usize = 10;

/// The number of looks before huge pages are divided (surplus-B2).
const LOOKS_TO_DIVIDE: usize = 20;

/// The background's view of free space over some time.
#[derive(Debug, Default)]
pub(crate) struct Surplus(Mutex<FreeHistory>);

#[derive(Debug, Default)]
struct FreeHistory {
    /// The numbers of free blocks at the last looks, without those given back since.
    free: VecDeque<u64>,
    /// The looks until the next trim (surplus-B3).
    pause: usize,
    /// The surplus that the last trim found.
    expected: u64,
}

impl FreeHistory {
    /// Returns the fewest free blocks of this number of looks, if that is more than enough.
    fn least(&self, looks: usize) -> Option<u64> {
        let from = self.free.len().checked_sub(looks)?;
        self.free.range(from..).min().copied().filter(|least| *least > KEPT + TRIM_FROM)
    }
}

impl Surplus {
    /// Notes the number of free blocks. Returns the trims that are due.
    pub fn look(&self, free: u64) -> Vec<Trim> {
        let Ok(mut seen) = self.0.lock() else { return Vec::new() };
        if seen.free.len() == LOOKS_TO_DIVIDE {
            seen.free.pop_front();
        }
        seen.free.push_back(free);
        seen.pause = seen.pause.saturating_sub(1);
        let Some(least) = seen.least(LOOKS).filter(|_| seen.pause == 0) else { return Vec::new() };
        seen.expected = least - KEPT;
        let mut trims = vec![Trim::Surplus(free - least)];
        trims.extend(seen.least(LOOKS_TO_DIVIDE).map(|least| Trim::Pieces(free - least)));
        trims
    }

    /// Notes the number of blocks that were given back after a look.
    pub fn note_given(&self, blocks: u64) {
        let Ok(mut seen) = self.0.lock() else { return };
        seen.free.iter_mut().for_each(|free| *free = free.saturating_sub(blocks));
        if blocks < seen.expected / 2 {
            seen.pause = LOOKS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: u64 = KEPT + TRIM_FROM + 1;

    /// Looks at these numbers of free blocks; returns the last result.
    fn looks(surplus: &Surplus, each: &[u64]) -> Vec<Trim> {
        each.iter().map(|free| surplus.look(*free)).last().unwrap_or_default()
    }

    #[test]
    fn only_what_was_free_all_the_time_is_surplus() {
        let surplus = Surplus::default();
        assert_eq!(looks(&surplus, &[ENOUGH; 9]), []);
        assert_eq!(looks(&surplus, &[ENOUGH]), [Trim::Surplus(0)]);
        assert_eq!(looks(&surplus, &[2 * ENOUGH]), [Trim::Surplus(ENOUGH)], "it was in use");
        assert_eq!(looks(&surplus, &[ENOUGH - 1]), [], "not enough");
        assert_eq!(looks(&surplus, &[2 * ENOUGH; 9]), [], "it was used in between");
        assert_eq!(looks(&surplus, &[2 * ENOUGH]), [Trim::Surplus(0)]);
    }

    #[test]
    fn huge_pages_are_divided_later() {
        let surplus = Surplus::default();
        assert_eq!(looks(&surplus, &[ENOUGH; 19]), [Trim::Surplus(0)]);
        assert_eq!(looks(&surplus, &[2 * ENOUGH]), [Trim::Surplus(ENOUGH), Trim::Pieces(ENOUGH)]);
        assert_eq!(looks(&surplus, &[2 * ENOUGH; 10]), [Trim::Surplus(0), Trim::Pieces(ENOUGH)]);
    }

    #[test]
    fn a_trim_that_gave_little_is_not_repeated_soon() {
        let surplus = Surplus::default();
        let free = 4 * ENOUGH;
        assert_eq!(looks(&surplus, &[free; 10]), [Trim::Surplus(0)]);
        // All that it found: what is free since then is due after as many looks.
        surplus.note_given(free - KEPT);
        assert_eq!(looks(&surplus, &[KEPT]), []);
        assert_eq!(looks(&surplus, &[free; 9]), []);
        assert_eq!(looks(&surplus, &[free]), [Trim::Surplus(0)]);
        surplus.note_given(1);
        assert_eq!(looks(&surplus, &[free; 9]), []);
        assert_eq!(looks(&surplus, &[free])[0], Trim::Surplus(0));
    }
}
