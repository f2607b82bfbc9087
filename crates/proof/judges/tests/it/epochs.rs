//! Tests BPFS on the hardware of its paper: fences are barriers, and nothing is flushed (§4.4).

use crate::common;
use crashsim::campaign::{self, CampaignOptions, Family};
use crashsim::mutate::{Bug, Mutant};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::score::{label, score_under};
use crashsim::stats::Distinct;
use crashsim::workload;
use judges::bpfs::Bpfs;
use std::path::Path;
use std::sync::LazyLock;
use vfs::script::Op;

/// The pools on which workloads start.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    campaign::prepare_process();
    workload::bases(&Bpfs).expect("the bases can be made")
});

/// The hardware with its capacitor.
fn epochs() -> CampaignOptions {
    CampaignOptions { semantics: Semantics::Epoch, ..CampaignOptions::default() }
}

#[test]
fn every_operation_survives() {
    let family = Family::Exhaustive { length: 1, bases: BASES.len() };
    common::explore(&Bpfs, &BASES, family, &epochs());
}

#[test]
fn sequences_survive() {
    for family in [Family::Sequences, Family::Twice, Family::Lines] {
        common::explore(&Bpfs, &BASES, family, &epochs());
    }
}

#[test]
fn random_runs_survive() {
    common::explore(&Bpfs, &BASES, Family::Random { runs: 20, ops: 60 }, &epochs());
}

#[test]
fn threads_survive() {
    common::explore(&Bpfs, &BASES, Family::Threads { runs: 24 }, &epochs());
}

#[test]
fn interrupted_threads_survive() {
    let options = CampaignOptions { limit: Some(24), ..epochs() };
    common::explore(&Bpfs, &BASES, Family::Preemptions, &options);
}

#[test]
fn without_the_capacitor_operations_are_torn() {
    let semantics = Semantics::EpochTorn;
    let options = CampaignOptions { semantics, ..CampaignOptions::default() };
    let family = Family::Exhaustive { length: 1, bases: 1 };
    let distinct = Distinct::default();
    let report = campaign::run(&Bpfs, &BASES[..1], &family, &options, &distinct, &|_, _, _| {});
    for f in &report.findings {
        println!("{} {}\n  {}", f.replay, f.what, f.detail.join("\n  "));
    }
    println!("{} {} {:?}", report.violations, report.workloads, report.stats);
    assert!(report.violations > 0, "words tear without the capacitor");
}

/// Barriers that no workload needs, and the reasons: the start of the site's label.
const NEEDLESS: &[(&str, &str)] = &[];

#[test]
fn every_barrier_is_needed() {
    let only = |m: &Mutant| m.bug == Bug::DropFence;
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let of = |ops: Vec<Vec<Op>>| {
        BASES.iter().flat_map(move |base| ops.clone().into_iter().map(move |ops| (base, ops)))
    };
    let single: Vec<_> =
        of(workload::universe().into_iter().map(|op| vec![op]).collect()).collect();
    let fates = score_under(&Bpfs, &single, 0, Semantics::Epoch, &only).unwrap();
    for (m, fate) in &fates {
        println!("{fate:?}: {}", label(crates, &m.site));
    }
    assert!(NEEDLESS.is_empty());
}
