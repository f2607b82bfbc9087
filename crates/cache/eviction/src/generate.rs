//! Generated traces: files of different popularity, with scans, loops, single accesses and shifts
//! of popularity.
//!
//! Everything is computed from the seed: the same description gives the same accesses.

use crate::objects::mix;
use crate::trace::Access;
use rng::Rng;

/// The number of accesses from one scan to the next.
const SCAN_PERIOD: u64 = 50_000;
/// The first keys of loops and of objects that are accessed once. The keys of popular objects start
/// at 0.
const LOOP_KEYS: u64 = 1 << 40;
const SINGLE_KEYS: u64 = 1 << 41;
/// Parameters of file sizes: the logarithm is normally distributed (Agrawal, Arpaci-Dusseau,
/// Arpaci-Dusseau, FAST '09, Table 2). The tail is cut off.
const SIZE_MU: f64 = 9.48;
const SIZE_SIGMA: f64 = 2.46;
const SIZE_MAX: f64 = (512u64 << 20) as f64;

/// The sizes of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// The same size for all objects, in bytes.
    Fixed(u64),
    /// Sizes of files: half of them below 13 KiB, 270 KB on average, at most 512 MiB.
    Files,
}

/// A trace to generate. Percentages are shares of the accesses; the rest goes to popular objects.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedWorkload {
    /// Number of objects among which popularity is distributed.
    pub objects: u64,
    /// Number of accesses.
    pub accesses: u64,
    /// Exponent of Zipf's law: the object of rank n is accessed in proportion to n^-alpha.
    pub alpha: f64,
    /// Percentage of scans through all objects in order, in bursts, like a backup.
    pub scan_percent: u32,
    /// Percentage of accesses that loop in order through other objects, a tenth as many.
    pub loop_percent: u32,
    /// Percentage of accesses to objects that are accessed only once.
    pub single_percent: u32,
    /// Number of accesses after which other objects become popular; 0: never.
    pub shift_every: u64,
    /// The sizes of the objects.
    pub sizes: Sizes,
    /// The seed of all random choices.
    pub seed: u64,
}

impl GeneratedWorkload {
    /// Makes a workload of popular objects only.
    pub fn zipf(alpha: f64, objects: u64, accesses: u64) -> Self {
        GeneratedWorkload {
            objects,
            accesses,
            alpha,
            scan_percent: 0,
            loop_percent: 0,
            single_percent: 0,
            shift_every: 0,
            sizes: Sizes::Files,
            seed: 1,
        }
    }

    /// Returns the workloads on which `keepstone simulate` compares policies, with names.
    pub fn standard(objects: u64, accesses: u64) -> Vec<(&'static str, GeneratedWorkload)> {
        let zipf = |alpha| GeneratedWorkload::zipf(alpha, objects, accesses);
        vec![
            ("zipf 0.6", zipf(0.6)),
            ("zipf 0.8", zipf(0.8)),
            ("zipf 1.0", zipf(1.0)),
            ("zipf 1.2", zipf(1.2)),
            ("zipf 1.0, 20 % scans", GeneratedWorkload { scan_percent: 20, ..zipf(1.0) }),
            ("zipf 1.0, 20 % loop", GeneratedWorkload { loop_percent: 20, ..zipf(1.0) }),
            ("zipf 1.0, 25 % once", GeneratedWorkload { single_percent: 25, ..zipf(1.0) }),
            ("zipf 1.0, 50 % once", GeneratedWorkload { single_percent: 50, ..zipf(1.0) }),
            ("zipf 1.0, 75 % once", GeneratedWorkload { single_percent: 75, ..zipf(1.0) }),
            ("zipf 1.0, shifting", GeneratedWorkload { shift_every: accesses / 10, ..zipf(1.0) }),
        ]
    }

    /// Returns the accesses.
    pub fn generate(&self) -> Generated {
        Generated {
            popularity: Alias::zipf(self.alpha, self.objects.max(1)),
            rng: Rng::new(mix(self.seed)),
            workload: self.clone(),
            done: 0,
            scanned: 0,
            looped: 0,
        }
    }

    /// Returns the size of an object in bytes.
    fn size_of(&self, key: u64) -> u64 {
        match self.sizes {
            Sizes::Fixed(size) => size,
            Sizes::Files => file_size(key ^ self.seed << 48),
        }
    }
}

/// Returns the size of a file, which depends only on its key.
fn file_size(key: u64) -> u64 {
    let mut rng = Rng::new(mix(key.wrapping_add(1)));
    // The Box-Muller method for the normal distribution; 1 - x is above zero.
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * rng.unit()).cos();
    (SIZE_MU + SIZE_SIGMA * normal).exp().clamp(1.0, SIZE_MAX) as u64
}

/// The accesses of a [`GeneratedWorkload`].
pub struct Generated {
    workload: GeneratedWorkload,
    popularity: Alias,
    rng: Rng,
    done: u64,
    scanned: u64,
    looped: u64,
}

impl Generated {
    /// Draws the key of the next access.
    fn key(&mut self) -> u64 {
        let GeneratedWorkload { objects, scan_percent, loop_percent, single_percent, .. } =
            self.workload;
        let is_scan =
            self.done % SCAN_PERIOD * 100 >= SCAN_PERIOD * u64::from(100 - scan_percent.min(100));
        if is_scan {
            self.scanned += 1;
            return (self.scanned - 1) % objects.max(1);
        }
        let percent = self.rng.below_fast(100) as u32;
        if percent < loop_percent {
            self.looped += 1;
            LOOP_KEYS + self.looped % (objects / 10).max(1)
        } else if percent < loop_percent.saturating_add(single_percent) {
            SINGLE_KEYS + self.done
        } else {
            self.popular()
        }
    }

    /// Draws a popular object. At each shift, the object of rank `objects / 10` becomes the most
    /// popular one.
    fn popular(&mut self) -> u64 {
        let GeneratedWorkload { objects, shift_every, .. } = self.workload;
        let rank = self.popularity.draw(&mut self.rng);
        let shifts = self.done.checked_div(shift_every).unwrap_or(0);
        // The keys are spread, so that scans do not meet the objects in the order of their ranks.
        let number = (rank + shifts * (objects / 10)) % objects.max(1);
        spread(number, objects.max(1))
    }
}

impl Iterator for Generated {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        if self.done == self.workload.accesses {
            return None;
        }
        let key = self.key();
        self.done += 1;
        Some(Access { key, size: self.workload.size_of(key) })
    }
}

/// Permutes the numbers below `n`.
fn spread(number: u64, n: u64) -> u64 {
    /// A prime above every `n` in use, so that both have no common divisor.
    const PRIME: u64 = 0xffff_ffff_ffff_ffc5;
    (u128::from(number) * u128::from(PRIME) % u128::from(n)) as u64
}

/// A table to draw from a given distribution in constant time (Walker's alias method).
struct Alias {
    /// For each column, its own share and the column that owns the rest.
    columns: Vec<(f64, u32)>,
}

impl Alias {
    /// Makes the table of `n` ranks by Zipf's law: rank `i` has a share in proportion to `(i +
    /// 1)^-alpha`.
    fn zipf(alpha: f64, n: u64) -> Self {
        let shares: Vec<f64> = (1..=n).map(|rank| (rank as f64).powf(-alpha)).collect();
        let mean = shares.iter().sum::<f64>() / n as f64;
        let mut columns: Vec<_> =
            shares.iter().enumerate().map(|(i, share)| (share / mean, i as u32)).collect();
        // Splits the ranks into those whose share fills a column, which come first, and the others.
        let (mut rich, mut poor): (Vec<_>, Vec<_>) =
            (0..columns.len()).partition(|i| columns[*i].0 >= 1.0);
        while let (Some(to), Some(from)) = (poor.pop(), rich.pop()) {
            columns[to].1 = from as u32;
            columns[from].0 -= 1.0 - columns[to].0;
            if columns[from].0 < 1.0 { poor.push(from) } else { rich.push(from) }
        }
        Alias { columns }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let column = rng.below_fast(self.columns.len() as u64);
        let (share, alias) = self.columns[column as usize];
        if rng.unit() < share { column } else { alias.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let workload = GeneratedWorkload::zipf(1.0, 1000, 400_000);
        let mut counts = HashMap::new();
        for access in workload.generate() {
            *counts.entry(access.key).or_insert(0u32) += 1;
        }
        // The harmonic number of 1000 is 7.485.
        for rank in [1u64, 2, 10] {
            let expected = 400_000.0 / 7.485 / rank as f64;
            let count = f64::from(counts[&spread(rank - 1, 1000)]);
            assert!((count / expected - 1.0).abs() < 0.05, "rank {rank}: {count}, {expected}");
        }
    }

    #[test]
    fn keys_are_spread_without_collision() {
        for n in [1, 7, 1000, 4096] {
            let all: BTreeSet<_> = (0..n).map(|number| spread(number, n)).collect();
            assert_eq!((all.len() as u64, all.last()), (n, Some(&(n - 1))));
        }
    }

    #[test]
    fn files_are_as_large_as_files_are() {
        let mut sizes: Vec<_> = (0..100_000).map(file_size).collect();
        sizes.sort();
        assert!((12_000..14_500).contains(&sizes[50_000]), "{}", sizes[50_000]);
        let mean = sizes.iter().sum::<u64>() / 100_000;
        assert!((200_000..350_000).contains(&mean), "{mean}");
    }

    #[test]
    fn shares_are_as_described() {
        let base = GeneratedWorkload::zipf(0.8, 10_000, 200_000);
        let workload =
            GeneratedWorkload { scan_percent: 20, loop_percent: 25, single_percent: 50, ..base };
        let (mut loops, mut singles) = (0, 0);
        for access in workload.generate() {
            loops += u64::from((LOOP_KEYS..SINGLE_KEYS).contains(&access.key));
            singles += u64::from(access.key >= SINGLE_KEYS);
        }
        // These are shares of the 160 000 accesses that are not scans.
        assert!((39_000..41_000).contains(&loops), "{loops}");
        assert!((79_000..81_000).contains(&singles), "{singles}");
        let again: Vec<_> = workload.generate().take(100).collect();
        assert_eq!(again, workload.generate().take(100).collect::<Vec<_>>());
    }
}
