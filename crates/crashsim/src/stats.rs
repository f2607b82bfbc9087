//! Counts of an exploration, and the set of images it met.

use serde::Serialize;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;

/// What was explored. Sums over crash points.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Crash points.
    pub points: u64,
    /// States that the rules allow at them (a product of units, so possibly astronomical).
    pub possible: f64,
    /// Of these, states whose outcome is known: they agree with a recovery that was run on
    /// everything that recovery read.
    pub covered: f64,
    /// States enumerated one by one.
    pub enumerated: u64,
    /// Of these, images not met before that have a verdict.
    pub distinct: u64,
    /// Of these, images not met before for which the budget of recoveries was spent.
    pub not_run: u64,
    /// Recoveries run.
    pub recovered: u64,
    /// Crash points of which `covered` is not all because the budget was spent.
    pub cut_points: u64,
    /// Recoveries that read something else than an earlier one in the same situation.
    pub unsteady: u64,
    /// Recoveries that stored something, so that a crash in them was explored too.
    pub nested: u64,
}

impl Stats {
    /// States that nothing is known of.
    pub fn skipped(&self) -> f64 {
        (self.possible - self.covered).max(0.0)
    }

    /// Adds what another exploration did.
    pub fn add(&mut self, o: &Self) {
        self.points += o.points;
        self.possible += o.possible;
        self.covered += o.covered;
        self.enumerated += o.enumerated;
        self.distinct += o.distinct;
        self.not_run += o.not_run;
        self.recovered += o.recovered;
        self.cut_points += o.cut_points;
        self.unsteady += o.unsteady;
        self.nested += o.nested;
    }
}

/// Keys that are hashes already.
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

/// The images met so far, by hash, shared by all workers: 8 to 16 bytes each.
pub struct Distinct(Vec<Mutex<HashSet<u64, BuildHasherDefault<Identity>>>>);

impl Default for Distinct {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

impl Distinct {
    /// Adds an image; whether it is new.
    pub fn insert(&self, hash: u64) -> bool {
        let shard = &self.0[(hash >> 58) as usize % SHARDS];
        shard.lock().expect("no worker panics here").insert(hash)
    }
}
