//! Explores files that are read without a copy while they change, for which engines take other
//! paths.

use crashsim::campaign::{self, CampaignOptions, Family, Report};
use crashsim::explore::Budget;
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::stats::Distinct;
use crashsim::target::Target;
use crashsim::workload;
use judges::bpfs::Bpfs;
use judges::lent::{LentBpfs, LentScmfs};
use vfs::script::parse;

fn run<T: Target>(
    target: &T,
    bases: &[Base],
    family: &Family,
    options: &CampaignOptions,
) -> Report {
    let report = campaign::run(target, bases, family, options, &Distinct::default(), &|_, _, _| {});
    assert_eq!(report.violations, 0, "{:#?}", report.findings);
    assert!(report.workloads > 0);
    report
}

fn explore<T: Target>(target: &T, bases: &[Base], family: &Family, limit: u64) {
    let report = run(
        target,
        bases,
        family,
        &CampaignOptions { limit: Some(limit), ..CampaignOptions::default() },
    );
    let unflushed = &report.lint.unflushed;
    assert!(unflushed.is_empty(), "stored and never flushed: {unflushed:?}");
}

fn operations_survive<T: Target>(target: &T) {
    let bases = workload::bases(target).expect("the bases can be made");
    explore(target, &bases, &Family::Exhaustive { length: 1, bases: bases.len() }, 400);
    explore(target, &bases, &Family::Lines, 60);
    explore(target, &bases, &Family::Sequences, 40);
    explore(target, &bases, &Family::Random { runs: 4, ops: 60 }, 4);
}

#[test]
fn operations_of_bpfs_survive() {
    operations_survive(&LentBpfs);
}

#[test]
fn operations_of_scmfs_survive() {
    operations_survive(&LentScmfs);
}

/// A process that dies in an operation dies as a reader, too; a process that recovers continues to
/// read.
fn deaths_are_survived<T: Target>(target: &T) {
    campaign::prepare_process();
    let bases = workload::bases(target).expect("the bases can be made");
    let budget = Budget { states: 1 << 4, samples: 4, ..Budget::default() };
    let options = CampaignOptions { budget, limit: Some(3), ..CampaignOptions::default() };
    run(target, &bases, &Family::Deaths, &options);
}

#[test]
fn deaths_of_readers_of_bpfs_are_survived() {
    deaths_are_survived(&LentBpfs);
}

#[test]
fn deaths_of_readers_of_scmfs_are_survived() {
    deaths_are_survived(&LentScmfs);
}

/// Returns whether an operation on a file of 5000 bytes stores a line, and whether it copies.
fn stores<T: Target>(target: &T, op: &str) -> [bool; 2] {
    let file = parse("create /a; write /a 0 5000").unwrap();
    let base = Base::build(target, "file", 128 * 4096, file).unwrap();
    let trace = base.record(target, &parse(op).unwrap(), 0, Semantics::Adr).unwrap().trace;
    [" line ", " nt "].map(|kind| trace.to_string().contains(kind))
}

#[test]
fn a_line_is_stored_in_place_only_where_nobody_reads() {
    let (in_place, copied) = ([true, false], [false, true]);
    assert_eq!(stores(&Bpfs, "write /a 64 64"), in_place);
    assert_eq!(stores(&LentBpfs, "write /a 64 64"), copied);
    // A word is stored in place even with readers.
    assert_eq!(stores(&LentBpfs, "write /a 64 8"), [false, false]);
}
