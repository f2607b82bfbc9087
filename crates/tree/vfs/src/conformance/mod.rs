//! The suite that holds an implementation to the contract.
//!
//! - [`scenarios()`] check one promise each; [`run_all`] runs them on fresh file systems.
//! - [`gen_ops`] makes sequences of calls from a seed, [`compare()`] runs a sequence next to the
//!   model, and [`run_generated`] does both for many seeds. A [`Failure`] prints the seed and a
//!   script ([`crate::script`]); [`Failure::minimise`] makes the script short. [`ops`] gives the
//!   same sequences to proptest.
//! - [`stress()`] makes calls from many threads at once.
//!
//! `KEEPSTONE_OPS` sets the length of generated sequences, `KEEPSTONE_SEED` the only seed to run;
//! `KEEPSTONE_REPLAY=FILE` runs a script instead.

mod apply;
mod compare;
mod generate;
mod scenarios;
mod stress;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use apply::{AttrView, Handles, Outcome, apply};
pub use compare::{Failure, compare};
pub use generate::{gen_op, gen_ops, ops};
pub use scenarios::{Scenario, scenarios};
pub use stress::stress;

use crate::script::parse;
use crate::{Backed, DirtyCount, FileKind, FileSystem, Result};

/// Returns what [`Backed::dirty_count`] has to return, by a look at all inodes.
///
/// # Errors
/// Those of the pool.
pub fn count_dirty(pool: &(impl Backed + ?Sized)) -> Result<DirtyCount> {
    const BLOCK: u64 = 4096;
    let (mut dirty, mut count) = (Vec::new(), DirtyCount::default());
    pool.each_inode(&mut |ino, residence| dirty.extend((!residence.is_clean).then_some(ino)))?;
    for ino in dirty {
        let attr = pool.getattr(ino)?;
        if attr.nlink == 0 {
            continue;
        }
        count.inodes += 1;
        let mut at = 0;
        while attr.kind == FileKind::File
            && let Some(range) = pool.dirty_range(ino, at)?
        {
            at = range.end.next_multiple_of(BLOCK);
            count.bytes += at - range.start;
        }
    }
    Ok(count)
}

/// Runs every scenario on a file system of its own from `make`.
///
/// # Panics
///
/// At the end, naming all the scenarios that failed.
pub fn run_all(make: impl Fn() -> Box<dyn FileSystem>) {
    let failed: Vec<&str> = scenarios()
        .into_iter()
        .filter(|(_, scenario)| {
            let fs = make();
            catch_unwind(AssertUnwindSafe(|| scenario(fs.as_ref()))).is_err()
        })
        .map(|(name, _)| name)
        .inspect(|name| eprintln!("^ scenario {name} failed\n"))
        .collect();
    assert!(failed.is_empty(), "{} scenarios failed: {}", failed.len(), failed.join(", "));
}

/// Compares file systems from `make` with the model on generated sequences, one of `ops` calls for
/// each seed below `seeds`.
///
/// # Panics
///
/// With the first failure, minimised.
pub fn run_generated(make: impl Fn() -> Box<dyn FileSystem>, seeds: u64, ops: usize) {
    if let Some(file) = std::env::var_os("KEEPSTONE_REPLAY") {
        let text = std::fs::read_to_string(file).expect("KEEPSTONE_REPLAY is a file");
        let ops = parse(&text).unwrap_or_else(|bad| panic!("{bad}"));
        return compare(make().as_ref(), &ops).unwrap_or_else(|failure| panic!("{failure}"));
    }
    let ops = number_from_env("KEEPSTONE_OPS").map_or(ops, |ops| ops as usize);
    let seeds = match number_from_env("KEEPSTONE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..seeds,
    };
    for seed in seeds {
        if let Err(failure) = compare(make().as_ref(), &gen_ops(seed, ops)) {
            let failure = Failure { seed: Some(seed), ..failure };
            panic!("{failure}\nminimised: {}", failure.clone().minimise(&make));
        }
    }
}

/// Returns the number in an environment variable.
///
/// # Panics
///
/// If it is set to anything else.
pub fn number_from_env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
