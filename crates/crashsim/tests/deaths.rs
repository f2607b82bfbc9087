//! A process dies, another recovers and goes on, the power fails: BPFS loses nothing that the survivor
//! saw. That is so because its recovery flushes and fences, and bugs planted there are found.

use crashsim::campaign::{self, Family, Options};
use crashsim::deaths::{FROM, Victim};
use crashsim::explore::Budget;
use crashsim::mutate::{Bug, Mutant};
use crashsim::persist::Semantics;
use crashsim::score::{Fate, Run, label, score_runs};
use crashsim::stats::Distinct;
use crashsim::target::Bpfs;
use crashsim::workload;
use std::path::Path;

#[test]
fn survivors_build_on_nothing_that_the_power_takes_back() {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    let budget = Budget { states: 1 << 4, samples: 4, ..Budget::default() };
    let options = Options { budget, limit: Some(8), ..Options::default() };
    let distinct = Distinct::default();
    let report = campaign::run(&Bpfs, &bases, &Family::Deaths, &options, &distinct, &|_, _, _| {});
    for f in &report.findings {
        println!("{}\n  {}\n  --replay '{}'", f.what, f.detail.join("\n  "), f.replay);
    }
    println!("{:?}", report.stats);
    assert_eq!(report.violations, 0);
}

/// The campaign found that a recovery made them durable together.
#[test]
fn a_new_end_is_durable_before_what_lies_beyond_it_is_cleared() {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    for steps in [5, 6] {
        let line = format!("adr worn 1.0 all-but:1388#0 death {steps} truncate /d/z 8192");
        let (findings, wrong, _) = campaign::replay(&Bpfs, &bases, &line.parse().unwrap()).unwrap();
        assert!(!wrong, "{findings:?}");
    }
}

#[test]
fn bugs_planted_in_the_recovery_are_found() {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    let mut runs = Vec::new();
    let victims = [
        ("tree", "create /n"),
        ("tree", "append /a 100"),
        ("tree", "write /a 0 5000"),
        ("tree", "rename /a /n"),
        ("tree", "rename /a /d/c"),
        ("tree", "truncate /a 100"),
        ("worn", "truncate /d/z 8192"),
    ];
    for (base, op) in victims {
        let base = bases.iter().find(|b| b.name == base).unwrap();
        let victim =
            Victim::record(&Bpfs, base, &op.parse().unwrap(), Semantics::Adr).unwrap().unwrap();
        for death in victim.deaths() {
            let recorded = victim.dies(&Bpfs, base, death.steps).unwrap();
            runs.push(Run { base, name: death.to_string(), recorded });
        }
    }
    let in_recovery = |m: &Mutant| {
        let is_ordering = matches!(
            m.bug,
            Bug::DropFlush | Bug::DropFence | Bug::FlushAfterFence | Bug::ShortFlush
        );
        is_ordering
            && ["bpfs/src/share.rs", "bpfs/src/scan.rs"].iter().any(|f| m.site.starts_with(f))
    };
    let fates = score_runs(&Bpfs, &runs, FROM, &in_recovery);
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    assert!(!fates.is_empty());
    for (m, fate) in &fates {
        let site = label(crates, &m.site);
        println!("{:?} at {site}: {fate:?}", m.bug);
        // What follows here fences before it commits; what a mount is followed by does not always, and
        // tests/mutation.rs finds them there.
        let is_fenced_again = site.starts_with("scan.rs clear_stale: ")
            && matches!(m.bug, Bug::FlushAfterFence | Bug::DropFence);
        let is_found = matches!(fate, Fate::Killed { .. });
        assert!(is_found || is_fenced_again, "{:?} at {site} is not found", m.bug);
    }
}
