//! Explores SCMFS with some workloads of every family. `keepstone crashtest --engine scmfs` runs
//! all of them.

use crashsim::campaign::{self, CampaignOptions, Family};
use crashsim::run::Base;
use crashsim::stats::Distinct;
use crashsim::target::Target;
use crashsim::workload;
use judges::scmfs::collected::Collected;
use judges::scmfs::mapped::{self, Mapped};
use judges::scmfs::{Scmfs, Through, units};
use std::sync::LazyLock;

static BASES: LazyLock<Vec<Base>> =
    LazyLock::new(|| workload::bases(&Scmfs).expect("the bases can be made"));

/// Explores at most `limit` workloads of a family.
fn explore(family: Family, limit: u64) {
    explore_target(&Scmfs, family, limit);
}

/// Explores the same with a collector that always finds work.
fn explore_collected(family: Family, limit: u64) {
    explore_target(&Collected, family, limit);
}

fn explore_target<T: Target>(target: &T, family: Family, limit: u64) {
    explore_bases(target, &BASES, family, limit);
}

fn explore_bases<T: Target>(target: &T, bases: &[Base], family: Family, limit: u64) {
    let options = CampaignOptions { limit: Some(limit), ..CampaignOptions::default() };
    let report =
        campaign::run(target, bases, &family, &options, &Distinct::default(), &|_, _, _| {});
    assert_eq!(report.violations, 0, "{:#?}", report.findings);
    assert!(report.workloads > 0);
    let unflushed = &report.lint.unflushed;
    assert!(unflushed.is_empty(), "stored and never flushed: {unflushed:?}");
}

#[test]
fn single_operations_survive() {
    explore(Family::Exhaustive { length: 1, bases: BASES.len() }, 160);
}

#[test]
fn short_overwrites_survive() {
    explore(Family::Lines, 30);
}

#[test]
fn sequences_survive() {
    explore(Family::Sequences, 40);
}

#[test]
fn random_runs_survive() {
    explore(Family::Random { runs: 3, ops: 60 }, 3);
}

#[test]
fn threads_survive() {
    explore(Family::Threads { runs: 40 }, 40);
}

#[test]
fn what_the_collector_does_survives() {
    explore_collected(Family::Exhaustive { length: 1, bases: BASES.len() }, 80);
    explore_collected(Family::Sequences, 20);
    explore_collected(Family::Random { runs: 3, ops: 60 }, 3);
    explore_collected(Family::Threads { runs: 20 }, 20);
}

#[test]
fn deaths_in_the_collector_are_survived() {
    explore_collected(Family::Deaths, 2);
}

#[test]
fn deaths_are_survived() {
    explore(Family::Deaths, 2);
}

/// Stores through mappings survive while files grow, are truncated and are removed.
#[test]
fn what_is_stored_through_mappings_survives() {
    for ops in mapped::sequences() {
        explore_target(&Mapped, Family::Script(ops), 1);
    }
    explore_target(&Mapped, Family::Exhaustive { length: 1, bases: 2 }, 20);
}

/// Files survive that grow over the end of a unit of 2 MiB, free a unit, or move.
#[test]
fn whole_units_survive() {
    let bases = [units::base().expect("the pool can be made")];
    for ops in units::sequences() {
        explore_bases(&Scmfs, &bases, Family::Script(ops), 1);
    }
}

/// Stores that bypass the cache are durable on return, byte by byte, and a pool that was closed
/// loses nothing either.
#[test]
fn writes_past_the_cache_survive_on_return() {
    let bases = workload::bases(&Through).expect("the bases can be made");
    for family in [Family::Lines, Family::Sequences] {
        let options = CampaignOptions { limit: Some(12), ..CampaignOptions::default() };
        let report =
            campaign::run(&Through, &bases, &family, &options, &Distinct::default(), &|_, _, _| {});
        assert_eq!(report.violations, 0, "{:#?}", report.findings);
        assert!(report.lint.unflushed.is_empty(), "{:?}", report.lint.unflushed);
    }
}
