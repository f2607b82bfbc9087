//! The power fails during an operation that leaves no trace, and again during the next one.

use crashsim::campaign::{self, CampaignOptions, Family, Replay};
use crashsim::stats::Distinct;
use crashsim::target::Target;
use crashsim::twice::TWICE;
use crashsim::workload;
use judges::bpfs::Bpfs;
use judges::scmfs::Scmfs;

fn second_crashes_are_survived<T: Target>(target: &T) {
    campaign::prepare_process();
    let bases = workload::bases(target).unwrap();
    let (options, distinct) = (CampaignOptions::default(), Distinct::default());
    let report = campaign::run(target, &bases, &Family::Twice, &options, &distinct, &|_, _, _| {});
    println!("{:?}", report.stats);
    assert_eq!(report.violations, 0, "{:#?}", report.findings);
    assert_eq!(report.workloads, TWICE.len() as u64);
}

#[test]
fn second_crashes_are_survived_on_bpfs() {
    second_crashes_are_survived(&Bpfs);
}

#[test]
fn second_crashes_are_survived_on_scmfs() {
    second_crashes_are_survived(&Scmfs);
}

#[test]
fn a_second_crash_is_shown_again() {
    let bases = workload::bases(&Bpfs).unwrap();
    let line = "adr tree 0.0 all-but: twice 0 only: mknod /n 259 | mknod /m 300";
    let parsed: Replay = line.parse().unwrap();
    assert_eq!(parsed.to_string(), line);
    let (findings, wrong, _) = campaign::replay(&Bpfs, &bases, &parsed).unwrap();
    assert!(!wrong, "{findings:?}");
}
