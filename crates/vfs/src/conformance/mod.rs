//! The suite that holds an implementation to the contract.
//!
//! [`scenarios()`] are one promise each; [`run_all`] runs them on fresh file systems.

mod scenarios;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use scenarios::{Scenario, scenarios};

use crate::FileSystem;

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
