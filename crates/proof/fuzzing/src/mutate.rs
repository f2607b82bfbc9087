//! Drives a target without coverage: mutations of its valid inputs, decided by a seed.

use crate::Target;
use rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// No input grows beyond this, in bytes.
const LEN_MAX: usize = 64 << 10;

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this number of inputs.
    Inputs(u64),
    /// After this time.
    Elapsed(Duration),
}

/// Runs a target on its seeds, then on mutations of them from the seed `first` on. Returns the
/// number of inputs.
///
/// # Panics
/// On a finding, with the seed that repeats it: `KEEPSTONE_FUZZ_SEED=N` runs that input alone.
pub fn run(target: &Target, until: Until, first: u64) -> u64 {
    let seeds = (target.seeds)();
    seeds.iter().for_each(|seed| (target.run)(seed));
    let start = Instant::now();
    let mut count = 0;
    loop {
        let is_over = match until {
            Until::Inputs(max) => count >= max,
            Until::Elapsed(max) => start.elapsed() >= max,
        };
        if is_over {
            return count;
        }
        let seed = first + count;
        let input = input(&seeds, seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        assert!(outcome.is_ok(), "{}: rerun with KEEPSTONE_FUZZ_SEED={seed}", target.name);
        count += 1;
    }
}

/// The input of a seed.
fn input(seeds: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(rng::hash(seed));
    let mut bytes = pick(&mut rng, seeds).to_vec();
    for _ in 0..=rng.below(8) {
        change(&mut rng, &mut bytes, seeds);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

fn pick<'s>(rng: &mut Rng, seeds: &'s [Vec<u8>]) -> &'s [u8] {
    if seeds.is_empty() { &[] } else { &seeds[rng.below(seeds.len() as u64) as usize] }
}

/// Changes one place.
fn change(rng: &mut Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    let len = (1 + rng.below(16) as usize).min(bytes.len() - at);
    match rng.below(9) {
        0 if len > 0 => bytes[at] ^= 1 << rng.below(8),
        1 if len > 0 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
        2 if len > 0 => bytes[at..at + len].fill_with(|| rng.next() as u8),
        3 => drop(bytes.drain(at..at + len)),
        4 => drop(bytes.splice(at..at, (0..=rng.below(16)).map(|_| 0xff))),
        5 => bytes.truncate(at),
        6 => {
            let other = pick(rng, seeds);
            let from = rng.below(other.len() as u64 + 1) as usize;
            bytes.splice(at.., other[from..].iter().copied());
        }
        7 => {
            let copied = bytes[at..at + len].to_vec();
            bytes.splice(at..at, copied);
        }
        _ => {
            let word = [u64::MAX, 1 << 63, 1 << 32, 1 << 31, 4096, 0][rng.below(6) as usize];
            let word = word.to_le_bytes();
            let len = word.len().min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&word[..len]);
        }
    }
}
