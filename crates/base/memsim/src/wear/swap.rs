//! Rotation within pages and swaps between them (§4.2): when a page has got a number of writes
//! since it was last moved, it changes places with a random page.
//!
//! Rotation spreads the writes of a page evenly, so a page has one number for its wear. To bound
//! the work, the pages of a large memory are grouped to at most 4096 frames, which move
//! as a whole.

use super::counts::PAGE_LINES;
use rng::Rng;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// The most frames that are simulated.
const FRAMES_MAX: u64 = 1 << 12;
/// The most swaps that are simulated.
const SWAPS_MAX: u64 = 20_000_000;

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PageSwaps {
    /// Writes of each line, in the mean of a frame, between two moves: a part of the endurance.
    pub interval_of_endurance: f64,
    /// Seed of the choices.
    pub seed: u64,
}

impl Default for PageSwaps {
    fn default() -> Self {
        Self { interval_of_endurance: 1e-3, seed: 1 }
    }
}

/// The next swap of a frame. The earliest is the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NextSwap {
    at: f64,
    frame: usize,
}

impl Eq for NextSwap {}

impl Ord for NextSwap {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then_with(|| other.frame.cmp(&self.frame))
    }
}

impl PartialOrd for NextSwap {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A frame's content.
#[derive(Clone, Copy, Debug)]
struct FrameContent {
    /// Its part of all writes.
    share: f64,
    /// The place where it is.
    place: usize,
    /// The time, in writes to the memory, from which it is there.
    since: f64,
}

impl PageSwaps {
    /// Returns the writes to a memory of `lines` lines until a cell fails. `shares` are the parts
    /// of all writes that lines get.
    pub fn writes_until_failure(&self, shares: &[(u64, f64)], lines: u64, endurance: f64) -> f64 {
        let frame_lines = lines.div_ceil(FRAMES_MAX).max(PAGE_LINES).next_multiple_of(PAGE_LINES);
        let frames = lines.div_ceil(frame_lines).max(1) as usize;
        let mut of_frames = BTreeMap::<u64, f64>::new();
        for (line, share) in shares {
            *of_frames.entry(line / frame_lines % frames as u64).or_default() += share;
        }
        // A swap writes each line of both frames once.
        let interval = (endurance * self.interval_of_endurance).max(1.0) * frame_lines as f64;
        let limit = endurance * frame_lines as f64;
        let mut rng = Rng::new(self.seed);
        let mut worn = vec![0.0_f64; frames];
        let content = |place| FrameContent {
            share: of_frames.get(&(place as u64)).copied().unwrap_or(0.0),
            place,
            since: 0.0,
        };
        let mut contents: Vec<FrameContent> = (0..frames).map(content).collect();
        let mut at_place: Vec<usize> = (0..frames).collect();
        let next =
            |frame: usize, now: f64, share: f64| NextSwap { at: now + interval / share, frame };
        let hot = (0..frames).filter(|frame| contents[*frame].share > 0.0);
        let mut queue: BinaryHeap<NextSwap> =
            hot.map(|frame| next(frame, 0.0, contents[frame].share)).collect();
        for _ in 0..SWAPS_MAX {
            let Some(NextSwap { at: now, frame }) = queue.pop() else { break };
            let other = at_place[rng.index(frames)];
            for moved in [frame, other] {
                let FrameContent { share, place, since } = contents[moved];
                worn[place] += share * (now - since);
                if worn[place] > limit {
                    return now - (worn[place] - limit) / share;
                }
                worn[place] += frame_lines as f64;
                contents[moved].since = now;
            }
            let (a, b) = (contents[frame].place, contents[other].place);
            (contents[frame].place, contents[other].place) = (b, a);
            (at_place[a], at_place[b]) = (other, frame);
            queue.push(next(frame, now, contents[frame].share));
        }
        // Too many swaps: the frame that wears fastest goes on as it did.
        let now = contents.iter().map(|content| content.since).fold(0.0, f64::max);
        let most = worn.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        now * (limit / most).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_spread_a_hot_page() {
        let lines = 256 * PAGE_LINES;
        let hot = [(5, 0.9), (9000, 0.1)];
        let endurance = 1e8;
        let life = |interval_of_endurance| {
            let swaps = PageSwaps { interval_of_endurance, seed: 1 };
            swaps.writes_until_failure(&hot, lines, endurance)
        };
        let ideal = endurance * lines as f64;
        let alone = endurance * PAGE_LINES as f64 / 0.9;
        let of_ideal = life(1e-3) / ideal;
        assert!(of_ideal > 0.8 && of_ideal < 1.0, "{of_ideal}");
        assert!(life(1e-1) < life(1e-3), "rare swaps spread less");
        assert!((life(2.0) / alone - 1.0).abs() < 0.01, "no swap before the failure");
    }

    #[test]
    fn the_same_seed_gives_the_same_life() {
        let life = || PageSwaps::default().writes_until_failure(&[(1, 1.0)], 1 << 20, 1e6);
        assert_eq!(life(), life());
    }
}
