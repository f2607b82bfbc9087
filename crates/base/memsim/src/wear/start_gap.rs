//! Start-gap (Qureshi et al., MICRO 2009): an empty line, the gap, moves by one place after every
//! `interval` writes. When it has passed all lines, each line has moved by one place.
//!
//! The memory consists of regions with a gap each. A fixed random function of the address chooses
//! the region and the place of a line, so that neighbouring hot lines do not follow each other.
//!
//! The computation does not replay writes. It uses three facts of a region of `n` lines:
//!
//! - start_gap-G1: During a *turn*, `n + 1` moves of the gap, each line stays at one place (it
//!   moves once). The place gets the line's share of `(n + 1) × interval` writes, and one by the
//!   gap.
//! - start_gap-G2: After `n + 1` turns each line was at each place: the wear is even.
//! - start_gap-G3: So a life is a number of whole revolutions, and a part of one, in which the
//!   first place reaches the endurance. Only that part is computed turn by turn.

use serde::Serialize;

/// The most steps of the last revolution that are computed one by one. If it has more, the part
/// that is left counts as 0.
const STEPS_MAX: u64 = 200_000_000;

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StartGap {
    /// Writes to a region between two moves of its gap.
    pub interval: u64,
    /// Lines of a region.
    pub region_lines: u64,
    /// Seed of the random function.
    pub seed: u64,
}

/// The paper's interval of 100 costs 1 % more writes. A region of 16 384 lines turns once in 1.6
/// million writes, which is far below the endurance of a cell.
impl Default for StartGap {
    fn default() -> Self {
        Self { interval: 100, region_lines: 1 << 14, seed: 1 }
    }
}

impl StartGap {
    /// Returns the writes to a memory of `lines` lines until a cell fails. `shares` are the parts
    /// of all writes that lines get.
    pub fn writes_until_failure(&self, shares: &[(u64, f64)], lines: u64, endurance: f64) -> f64 {
        let region_lines = self.region_lines.clamp(1, lines.max(1));
        let regions = lines.div_ceil(region_lines).max(1);
        let mut of_regions = std::collections::BTreeMap::<u64, Vec<(u64, f64)>>::new();
        for (line, share) in shares {
            let hash = rng::hash(line ^ rng::hash(self.seed));
            // Two lines may get one place. That changes nothing of what a place gets in a turn.
            let (region, place) = (hash % regions, (hash >> 32) % region_lines);
            of_regions.entry(region).or_default().push((place, *share));
        }
        let lives = of_regions.values().map(|of_region| {
            let share: f64 = of_region.iter().map(|(_, share)| share).sum();
            let within: Vec<(u64, f64)> =
                of_region.iter().map(|(place, part)| (*place, part / share)).collect();
            self.region_writes(&within, region_lines, endurance) / share
        });
        lives.fold(f64::INFINITY, f64::min)
    }

    /// Returns the writes to one region until a cell fails, whose writes `shares` sum up to 1.
    fn region_writes(&self, shares: &[(u64, f64)], lines: u64, endurance: f64) -> f64 {
        let places = lines + 1;
        let turn_writes = (places * self.interval) as f64;
        // start_gap-G2: each place gets all shares once, and one write of the gap in each turn.
        let of_revolution = turn_writes + places as f64;
        let mut revolutions = (endurance / of_revolution).floor();
        let mut left = endurance - revolutions * of_revolution;
        let hottest = shares.iter().map(|(_, share)| share * turn_writes).fold(0.0, f64::max);
        if revolutions > 0.0 && left < hottest {
            // The last turn must not be cut short at its beginning only.
            revolutions -= 1.0;
            left += of_revolution;
        }
        let turns = self.turns_until(shares, places, turn_writes, left);
        revolutions * turn_writes * places as f64 + turns * turn_writes
    }

    /// Returns the number of turns, with a fraction, until a place that was unused gets `left`
    /// writes (start_gap-G3).
    fn turns_until(&self, shares: &[(u64, f64)], places: u64, turn_writes: f64, left: f64) -> f64 {
        let mut worn = vec![0.0_f64; places as usize];
        let mut steps = 0;
        for turn in 0..=places {
            steps += shares.len() as u64;
            if steps > STEPS_MAX {
                return turn as f64;
            }
            let gap = (turn + 1) as f64;
            let mut fraction = 1.0_f64;
            for (place, share) in shares {
                let wear = &mut worn[((place + turn) % places) as usize];
                let writes = share * turn_writes;
                let room = left - gap - *wear;
                if writes > room {
                    fraction = fraction.min((room / writes).max(0.0));
                }
                *wear += writes;
            }
            if fraction < 1.0 {
                return turn as f64 + fraction;
            }
        }
        places as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replays start-gap write by write, as the paper's registers do, until a place has `endurance`
    /// writes.
    fn replay(shares: &[(u64, f64)], lines: u64, interval: u64, endurance: u64) -> u64 {
        let mut rng = rng::Rng::new(7);
        let mut worn = vec![0_u64; lines as usize + 1];
        let (mut start, mut gap, mut writes) = (0, lines, 0);
        loop {
            let mut choice = rng.unit();
            let of = |(line, share): &(u64, f64)| {
                choice -= share;
                (choice < 0.0).then_some(*line)
            };
            let line = shares.iter().find_map(of).unwrap_or(shares[0].0);
            let mut place = (line + start) % lines;
            place += u64::from(place >= gap);
            worn[place as usize] += 1;
            writes += 1;
            if worn[place as usize] >= endurance {
                return writes;
            }
            if writes % interval == 0 {
                if gap == 0 {
                    (gap, start) = (lines, (start + 1) % lines);
                } else {
                    gap -= 1;
                }
                // The line before the gap was copied into it.
                let copied = if gap == lines { 0 } else { gap + 1 };
                worn[copied as usize] += 1;
            }
        }
    }

    fn one_region(lines: u64, interval: u64) -> StartGap {
        StartGap { interval, region_lines: lines, seed: 1 }
    }

    #[test]
    fn a_hot_spot_lives_as_long_as_a_replay() {
        let shares = [(3, 0.9), (4, 0.05), (9, 0.05)];
        for (lines, interval, endurance) in [(16, 10, 50_000), (32, 20, 100_000)] {
            let replayed = replay(&shares, lines, interval, endurance) as f64;
            let computed =
                one_region(lines, interval).writes_until_failure(&shares, lines, endurance as f64);
            assert!((computed / replayed - 1.0).abs() < 0.03, "{computed} {replayed}");
        }
    }

    #[test]
    fn a_hot_spot_lives_nearly_as_long_as_the_ideal() {
        let hot: Vec<(u64, f64)> =
            (0..1000).map(|line| (line, if line == 7 { 0.5 } else { 0.5 / 999.0 })).collect();
        let ideal = |lines: u64, endurance: f64| lines as f64 * endurance;
        for endurance in [1e8, 1e10] {
            let life = StartGap::default().writes_until_failure(&hot, 4096, endurance);
            let part = life / ideal(4096, endurance);
            assert!(part > 0.95 && part < 1.0, "{part}");
        }
    }

    #[test]
    fn a_gap_that_is_too_slow_does_not_help() {
        // One turn takes more writes than a cell endures.
        let life = one_region(1 << 10, 100).writes_until_failure(&[(5, 1.0)], 1 << 10, 1e4);
        assert!(life < 1.1e4, "{life}");
    }
}
