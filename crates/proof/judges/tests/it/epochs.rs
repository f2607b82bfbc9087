//! Tests BPFS on the hardware of its paper: fences are barriers, and nothing is flushed (§4.4).

use crate::common;
use crashsim::campaign::{self, CampaignOptions, Family, Report};
use crashsim::mutate::{Bug, Mutant};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::score::{Fate, label, score_under};
use crashsim::stats::Distinct;
use crashsim::workload;
use judges::bpfs::Bpfs;
use std::collections::BTreeMap;
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
    let options = CampaignOptions { limit: Some(40), ..epochs() };
    for family in [Family::Sequences, Family::Twice, Family::Lines] {
        common::explore(&Bpfs, &BASES, family, &options);
    }
}

#[test]
fn random_runs_survive() {
    common::explore(&Bpfs, &BASES, Family::Random { runs: 20, ops: 60 }, &epochs());
}

/// Runs programs of which the first is interrupted once, at some of its steps.
fn interrupted(programs: &'static str) -> Report {
    let options = CampaignOptions { limit: Some(6), ..epochs() };
    let (family, distinct) = (Family::Interrupted(programs), Distinct::default());
    let tree = BASES.iter().position(|base| base.name == "tree").expect("a base");
    let bases = &BASES[tree..=tree];
    let report = campaign::run(&Bpfs, bases, &family, &options, &distinct, &|_, _, _| {});
    report.findings.iter().for_each(|f| println!("{}\n  {}", f.replay, f.what));
    report
}

#[test]
fn threads_survive() {
    for programs in [
        "write %0 100 200 | write %1 10 80",
        "setxattr %0 user.x 20 | setxattr %1 user.y 5000",
        "rename /a %3/n | write %1 10 80",
        "unlink /o | create /n",
        "append %0 40000 | append %1 9000",
        "append %0 40000 | create /n; append /n 100",
    ] {
        println!("{programs}: {}", interrupted(programs).violations);
    }
}

/// Which space is free is known from DRAM. So the thread that takes a block touches no word of the
/// removal that has freed it, and hardware does not know that one comes after the other. The paper
/// lets it touch such a word (§3.5); BPFS here relies on removals that are durable.
#[test]
fn space_that_another_thread_has_freed_is_taken_too_early() {
    for programs in ["truncate %0 100 | append %1 9000", "unlink %2/z | append %1 9000"] {
        assert!(interrupted(programs).violations > 0, "{programs}");
    }
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

/// Fences that BPFS does not need on epoch hardware: the start of the site's label, and the reason.
const NEEDLESS: &[(&str, &str)] = &[];

/// An operation that commits by one word, without a fence before it: nothing else keeps it behind
/// the operation before.
const ONE_WORD: &str = "write /d/c 0 8";

#[test]
fn barriers_are_needed() {
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let is_fence = |m: &Mutant| m.bug == Bug::DropFence;
    let single = workload::universe().into_iter().map(|op| vec![op]);
    let mut fates = score_of(&["tree", "brim"], single.collect(), &is_fence);
    // What is not needed within an operation may be needed before the next.
    let settled = |fates: &BTreeMap<Mutant, Fate>, m: &Mutant| {
        matches!(fates.get(m), Some(Fate::Killed { .. }))
    };
    let next: Op = ONE_WORD.parse().unwrap();
    let pairs = workload::universe().into_iter().map(|op| vec![op, next.clone()]);
    let open = |m: &Mutant| is_fence(m) && !settled(&fates, m);
    let more = score_of(&["tree"], pairs.collect(), &open);
    fates.extend(more);
    let mut unexplained = 0;
    for (m, fate) in &fates {
        let site = label(crates, &m.site);
        let why = NEEDLESS.iter().find(|(place, _)| site.starts_with(place)).map(|(_, why)| *why);
        match fate {
            Fate::Killed { by, .. } => {
                println!("needed by {by}: {site}");
                assert!(why.is_none(), "{site} is needed");
            }
            Fate::Survived => {
                println!("not needed: {site}: {}", why.unwrap_or("WHY?"));
                unexplained += u32::from(why.is_none());
            }
            Fate::Moot => {}
        }
    }
    assert_eq!(unexplained, 0, "fences are not needed, and that is not explained");
}

/// Tries mutants in these sequences on these pools.
fn score_of(
    bases: &[&str],
    sequences: Vec<Vec<Op>>,
    only: &dyn Fn(&Mutant) -> bool,
) -> BTreeMap<Mutant, Fate> {
    let of = |base| sequences.iter().map(move |ops| (base, ops.clone()));
    let bases = BASES.iter().filter(|base| bases.contains(&base.name));
    let workloads: Vec<_> = bases.flat_map(of).collect();
    score_under(&Bpfs, &workloads, 0, Semantics::Epoch, only).unwrap()
}
