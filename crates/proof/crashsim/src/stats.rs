//! Counts of an exploration, and the set of images it met.

use serde::Serialize;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard};

/// The counts of an exploration, summed over crash points.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Crash points.
    pub points: u64,
    /// Number of states that the rules allow at all of them, as a power of two: a product of units
    /// each, so astronomical if a block is undecided.
    pub allowed_log2: f64,
    /// The largest share of a crash point's states with an unknown outcome, because the budget was
    /// spent. 0: every allowed state agrees with some recovery that was run, on all that this
    /// recovery read.
    pub unknown_share_max: f64,
    /// States enumerated one by one.
    pub enumerated: u64,
    /// Of these, images not met before, with a verdict.
    pub distinct: u64,
    /// Of these, images not met before, without a verdict because the budget of recoveries was
    /// spent.
    pub not_run: u64,
    /// Recoveries run.
    pub recovered: u64,
    /// Crash points some of whose states have no known outcome, because the budget was spent.
    pub cut_points: u64,
    /// Recoveries that read something else than an earlier one in the same situation.
    pub unsteady: u64,
    /// Recoveries that stored something, so that a crash in them was explored too.
    pub nested: u64,
}

impl Stats {
    /// Notes a crash point that has `2^log2` states, of which the share `unknown` has no known
    /// outcome.
    pub(crate) fn count_point(&mut self, log2: f64, unknown: f64) {
        let sum = if self.points == 0 { log2 } else { add_log2(self.allowed_log2, log2) };
        self.allowed_log2 = sum;
        self.points += 1;
        self.unknown_share_max = self.unknown_share_max.max(unknown);
    }

    /// Adds the counts of another exploration.
    pub fn add(&mut self, o: &Self) {
        if o.points > 0 {
            self.count_point(o.allowed_log2, o.unknown_share_max);
            self.points += o.points - 1;
        }
        self.enumerated += o.enumerated;
        self.distinct += o.distinct;
        self.not_run += o.not_run;
        self.recovered += o.recovered;
        self.cut_points += o.cut_points;
        self.unsteady += o.unsteady;
        self.nested += o.nested;
    }
}

/// `log2(2^a + 2^b)`
fn add_log2(a: f64, b: f64) -> f64 {
    a.max(b) + (-(a - b).abs()).exp2().ln_1p() / std::f64::consts::LN_2
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

const SHARDS: usize = 64;

type Shard = HashSet<u64, BuildHasherDefault<Identity>>;

/// The images (or crash points) met so far, by hash, shared by all workers: 8 to 16 bytes each.
pub struct Distinct(Vec<Mutex<Shard>>);

impl Default for Distinct {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

impl Distinct {
    /// Adds an image; returns whether it is new.
    pub fn insert(&self, hash: u64) -> bool {
        self.shard(hash).insert(hash)
    }

    /// Whether an image has been added.
    pub fn contains(&self, hash: u64) -> bool {
        self.shard(hash).contains(&hash)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.0[(hash >> 58) as usize % SHARDS].lock().expect("no worker panics here")
    }
}
