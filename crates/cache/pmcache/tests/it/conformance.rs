//! Runs the contract's suite on caches over the model.

use crate::common::{Below, attach, fresh, options, region};
use pmcache::CacheOptions;
use std::sync::Arc;
use vfs::FileSystem;
use vfs::conformance::{run_all, run_generated, stress};

fn make(options: CacheOptions) -> Box<dyn FileSystem> {
    Box::new(fresh(options).0)
}

#[test]
fn the_contract_is_kept() {
    run_all(|| make(options()));
    run_generated(|| make(options()), 20, 300);
}

#[test]
fn it_is_kept_where_each_write_goes_below() {
    let through = || CacheOptions { write_through: true, ..options() };
    run_all(|| make(through()));
    run_generated(|| make(through()), 10, 300);
}

/// Uses a cache in which hardly any data may be unwritten, and into which hardly any fits.
#[test]
fn it_is_kept_by_a_small_cache() {
    let small = || {
        let below = Below(Arc::default());
        let tight = CacheOptions { cap: 64 << 10, high: 32 << 10, low: 8 << 10, ..options() };
        Box::new(attach(region(2 << 20), &below, tight).unwrap()) as Box<dyn FileSystem>
    };
    run_generated(small, 10, 300);
}

#[test]
fn it_is_kept_by_many_threads() {
    stress(&*make(options()), 4, 300, 1).unwrap();
}
