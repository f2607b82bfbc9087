//! BPFS in the mode `ordered`: after each crash, the pool has the state of one moment since the
//! last sync. Threads and killed processes are judged as well: an operation survives only with
//! those that it can have seen. `keepstone crashtest --engine bpfs-ordered` is the campaign.

use crate::common;
use crashsim::campaign::{self, CampaignOptions, Family, Report};
use crashsim::explore::Budget;
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::workload;
use judges::bpfs::Ordered;
use std::sync::LazyLock;

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    campaign::prepare_process();
    workload::bases(&Ordered).expect("the bases can be made")
});

fn explore(family: Family, options: &CampaignOptions) -> Report {
    common::explore(&Ordered, &BASES, family, options)
}

fn few() -> CampaignOptions {
    let budget = Budget { states: 1 << 6, samples: 8, ..Budget::default() };
    CampaignOptions { budget, ..CampaignOptions::default() }
}

fn every_operation(semantics: Semantics, bases: usize) {
    explore(Family::Exhaustive { length: 1, bases }, &CampaignOptions { semantics, ..few() });
}

#[test]
fn every_operation_survives() {
    every_operation(Semantics::Adr, 2);
}

#[test]
fn every_operation_survives_in_other_memories() {
    every_operation(Semantics::AdrWords, 1);
    every_operation(Semantics::Eadr, 1);
    every_operation(Semantics::Msync, 1);
}

#[test]
fn pairs_of_operations_survive_in_order() {
    let options = CampaignOptions { limit: Some(500), ..few() };
    explore(Family::Exhaustive { length: 2, bases: 1 }, &options);
}

#[test]
fn writes_of_all_sizes_survive() {
    explore(Family::Lines, &few());
}

/// Pairs of a write and an operation that could spoil what the write has left.
#[test]
fn what_a_write_leaves_survives_in_order() {
    for ops in judges::bpfs::ordered_sequences() {
        explore(Family::Script(ops), &few());
    }
}

#[test]
fn random_runs_survive_in_order() {
    explore(Family::Random { runs: 8, ops: 60 }, &few());
}

#[test]
fn threads_survive_in_order() {
    explore(Family::Preemptions, &CampaignOptions { limit: Some(128), ..few() });
    explore(Family::Threads { runs: 40 }, &few());
}

#[test]
fn threads_that_meet_at_words_survive_in_order() {
    explore(Family::WordPreemptions, &CampaignOptions { limit: Some(120), ..few() });
}

#[test]
fn late_deaths_leave_an_order() {
    explore(Family::LateDeaths, &CampaignOptions { limit: Some(4), ..few() });
}
