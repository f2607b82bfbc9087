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
use std::path::Path;
use std::sync::LazyLock;

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
    let options = CampaignOptions { limit: Some(20), ..epochs() };
    for family in [Family::Sequences, Family::Twice, Family::Lines] {
        common::explore(&Bpfs, &BASES, family, &options);
    }
}

#[test]
fn random_runs_survive() {
    common::explore(&Bpfs, &BASES, Family::Random { runs: 20, ops: 60 }, &epochs());
}

/// Runs programs of which the first is interrupted once, at this number of its steps.
fn interrupted(programs: &'static str, steps: u64) -> Report {
    let options = CampaignOptions { limit: Some(steps), ..epochs() };
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
        "rename /a %3/n | write %1 10 80",
        "unlink /o | create /n",
        "append %0 40000 | append %1 9000",
        "append %0 40000 | create /n; append /n 100",
    ] {
        assert_eq!(interrupted(programs, 4).violations, 0, "{programs}");
    }
}

/// Which space is free is known from DRAM. So the thread that takes a block touches no word of the
/// removal that has freed it, and hardware does not know that one comes after the other. The paper
/// lets it touch such a word (§3.5); BPFS here relies on removals that are durable.
#[test]
fn space_that_another_thread_has_freed_is_taken_too_early() {
    for programs in [
        "truncate %0 100 | append %1 9000",
        "unlink %2/z | append %1 9000",
        "setxattr %0 user.x 20 | setxattr %1 user.y 5000",
    ] {
        assert!(interrupted(programs, 6).violations > 0, "{programs}");
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

/// Fences that no single operation needs on epoch hardware: the start of the site's label, and the
/// reason.
const NEEDLESS: &[(&str, &str)] = &[
    ("store.rs commit_inode: let _ = self.medium.fence", LAST),
    ("space.rs zero: let _ = self.medium.fence", LAST),
    ("space.rs allocate: let _ = self.medium.fence", LAST),
    ("file.rs write_word: let _ = self.medium.fence", LAST),
    ("file.rs replace_leaf: txn.end_commit", LAST),
    ("extent.rs append_content: FileKind::File => txn.end_commit", LAST),
    ("dir.rs commit_slot: let _ = self.medium().publish", LAST),
    ("names.rs tmpfile: let _ = self.medium().fence", LAST),
    ("names.rs remove: let _ = self.medium().fence", LAST),
    ("attr.rs set_times: let _ = self.medium().fence", LAST),
    ("attr.rs drop_privileges: let _ = self.medium().fence", LAST),
    ("crawler.rs edit: txn.commit(&self.medium, at", LAST),
    ("extent.rs append_content: let _ = self.medium.fence", FENCED_AGAIN),
    ("redo.rs clear: let _ = medium.fence", FENCED_AGAIN),
    ("scan.rs scan: let _ = self.medium().fence", REPEATED),
    ("scan.rs clear_stale: let _ = self.medium().fence", REPEATED),
];
const LAST: &str = "nothing of the operation follows: it makes the operation durable on x86, and \
                    orders it before the next one here";
const FENCED_AGAIN: &str = "another fence follows before anything leans on this one";
const REPEATED: &str = "a mount that finds the work undone does it again";

#[test]
fn every_barrier_within_an_operation_is_needed() {
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let is_fence = |m: &Mutant| m.bug == Bug::DropFence;
    let bases = BASES.iter().filter(|base| ["tree", "brim"].contains(&base.name));
    let of = |base| workload::universe().into_iter().map(move |op| (base, vec![op]));
    let workloads: Vec<_> = bases.flat_map(of).collect();
    let fates = score_under(&Bpfs, &workloads, 0, Semantics::Epoch, &is_fence).unwrap();
    let (mut needed, mut unexplained) = (0, 0);
    for (m, fate) in &fates {
        let site = label(crates, &m.site);
        let why = NEEDLESS.iter().find(|(place, _)| site.starts_with(place)).map(|(_, why)| *why);
        match fate {
            Fate::Killed { by, .. } => {
                println!("needed by {by}: {site}");
                needed += 1;
            }
            Fate::Survived => {
                println!("not needed: {site}: {}", why.unwrap_or("WHY?"));
                unexplained += u32::from(why.is_none());
            }
            Fate::Moot => {}
        }
    }
    assert!(needed >= 19, "{needed} fences are needed");
    assert_eq!(unexplained, 0, "fences are not needed, and that is not explained");
}
