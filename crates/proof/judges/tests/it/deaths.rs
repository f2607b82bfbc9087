//! A process dies; another process, which shared the pool or comes later, recovers and continues;
//! then the power fails. BPFS loses nothing that the second process saw, because the scan flushes
//! and fences. Bugs planted in the scan are found, both in the scan of a recovery and in that of a
//! mount.

use crashsim::campaign::{self, CampaignOptions, Family, Replay};
use crashsim::deaths::{FROM, HELD_BESIDE, Scenario, Victim};
use crashsim::explore::Budget;
use crashsim::mutate::{Bug, Mutant};
use crashsim::persist::Semantics;
use crashsim::run::{Settings, explore};
use crashsim::score::{Fate, Run, label, score_runs};
use crashsim::stats::Distinct;
use crashsim::target::Target;
use crashsim::workload;
use judges::bpfs::Bpfs;
use judges::bpfs::snapshots::{self, Snapshotted};
use judges::scmfs::Scmfs;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn nobody_builds_on_what_the_power_takes_back() {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    let budget = Budget { states: 1 << 4, samples: 4, ..Budget::default() };
    let options = CampaignOptions { budget, limit: Some(4), ..CampaignOptions::default() };
    let distinct = Distinct::default();
    let report = campaign::run(&Bpfs, &bases, &Family::Deaths, &options, &distinct, &|_, _, _| {});
    for f in &report.findings {
        println!("{}\n  {}\n  --replay '{}'", f.what, f.detail.join("\n  "), f.replay);
    }
    println!("{:?}", report.stats);
    assert_eq!(report.violations, 0);
}

/// The campaign found that mounts made nothing durable. The next mount had relied on a cleared
/// pointer, or on a new name, that a power failure then undid.
#[test]
fn what_the_killed_left_is_durable_when_it_is_mounted() {
    let lines = [
        "adr tree 1.0 all-but:7c000#0 death next-mount 5 punch /a 0 4096",
        "adr worn 1.0 all-but:a120#0 death next-mount 9 link /a /n",
    ];
    replay(&lines);
}

/// The campaign found that a recovery made the new end of a file and the cleared bytes beyond it
/// durable together.
#[test]
fn a_new_end_is_durable_before_what_lies_beyond_it_is_cleared() {
    let lines = [
        "adr worn 1.0 all-but:9388#0 death 5 truncate /d/z 8192",
        "adr worn 1.0 all-but:9388#0 death 6 truncate /d/z 8192",
    ];
    replay(&lines);
}

/// A replay line also repeats the recovery by a process that holds a file without a name.
#[test]
fn a_death_beside_a_holder_is_shown_again() {
    let lines = [
        "adr tree 1.0 only: death holder 2 utimes /a",
        "adr tree 2.0 only: death holder 3 chmod /e 700",
        "adr tree 2.0 only: death newcomer 0 utimes /a",
        "adr tree 2.0 only: death successor 2 unlink /b",
    ];
    replay(&lines);
}

/// Operations survive crashes after deaths in operations that store in place, at their beginning
/// and at their end.
fn others_survive<T: Target>(target: &T, scenario: Scenario) {
    campaign::prepare_process();
    let bases = workload::bases(target).unwrap();
    let settings = Settings {
        semantics: Semantics::Adr,
        budget: Budget { states: 1 << 4, samples: 4, ..Budget::default() },
        distinct: &Distinct::default(),
        sound: &Distinct::default(),
        stop_early: false,
        only: None,
    };
    for op in HELD_BESIDE {
        let victim = Victim::record(target, &bases[0], &op.parse().unwrap(), Semantics::Adr);
        let victim = victim.unwrap().unwrap();
        let all: Vec<_> = victim.deaths(&[scenario], usize::MAX).collect();
        for death in [&all[0], &all[all.len() - 1]] {
            let recorded = victim.dies(target, &bases[0], death.steps, scenario);
            let recorded = recorded.unwrap_or_else(|what| panic!("{death}: {what}"));
            let explored = explore(target, &bases[0], FROM, &recorded, &settings);
            assert_eq!(explored.violations_total, 0, "{death}: {:#?}", explored.violations);
        }
    }
}

/// A process dies while it makes or deletes a snapshot, or writes to what a snapshot shows.
#[test]
fn snapshots_survive_deaths() {
    campaign::prepare_process();
    let target = Snapshotted::default();
    let bases = snapshots::bases().unwrap();
    let settings = Settings {
        semantics: Semantics::Adr,
        budget: Budget { states: 1 << 4, samples: 4, ..Budget::default() },
        distinct: &Distinct::default(),
        sound: &Distinct::default(),
        stop_early: false,
        only: None,
    };
    for (base, op) in [(0, "sync"), (1, "sync"), (0, "fsync /"), (0, "write /a 100 200")] {
        let victim = Victim::record(&target, &bases[base], &op.parse().unwrap(), Semantics::Adr);
        let victim = victim.unwrap().unwrap();
        let scenarios = [Scenario::SurvivingProcess, Scenario::NextMount];
        let all: Vec<_> = victim.deaths(&scenarios, usize::MAX).collect();
        for death in all.iter().step_by(all.len().div_ceil(24)) {
            let recorded = victim.dies(&target, &bases[base], death.steps, death.scenario);
            let recorded = recorded.unwrap_or_else(|what| panic!("{death}: {what}"));
            let explored = explore(&target, &bases[base], FROM, &recorded, &settings);
            assert_eq!(explored.violations_total, 0, "{death}: {:#?}", explored.violations);
        }
    }
}

/// A new process gets the slot of the dead one, either cleared or with all that is counted there.
#[test]
fn slots_of_the_dead_are_taken_on_bpfs() {
    others_survive(&Bpfs, Scenario::Newcomer);
    others_survive(&Bpfs, Scenario::Successor);
}

#[test]
fn slots_of_the_dead_are_taken_on_scmfs() {
    others_survive(&Scmfs, Scenario::Newcomer);
    others_survive(&Scmfs, Scenario::Successor);
}

/// The dead process has stored to a file through a mapping, and a living one still stores to
/// another file.
#[test]
fn mappings_survive_those_who_made_them() {
    others_survive(&Scmfs, Scenario::Mapper);
}

/// The surviving process holds a file without a name and a removed directory.
#[test]
fn what_is_held_outlives_the_death_of_another() {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    let op = HELD_BESIDE[2].parse().unwrap();
    let victim = Victim::record(&Bpfs, &bases[0], &op, Semantics::Adr).unwrap().unwrap();
    for death in victim.deaths(&[Scenario::Holder], 1) {
        victim.dies(&Bpfs, &bases[0], death.steps, death.scenario).unwrap();
    }
}

fn replay(lines: &[&str]) {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    for line in lines {
        let parsed: Replay = line.parse().unwrap();
        assert_eq!(parsed.to_string(), *line);
        let (findings, wrong, _) = campaign::replay(&Bpfs, &bases, &parsed).unwrap();
        assert!(!wrong, "{findings:?}");
    }
}

/// The number of deaths of each victim after which bugs are planted.
const LAST: usize = 5;

#[test]
fn bugs_planted_in_the_scan_are_found() {
    campaign::prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    // The victims commit near their ends, except for the one that makes the inode file grow.
    let commits = workload::COMMITS.map(|(base, op)| (base, op, LAST));
    let commits = commits.into_iter().chain(workload::MORE_COMMITS[..1].iter().copied());
    let victims: Vec<_> = commits
        .map(|(base, op, last)| {
            let base = bases.iter().find(|b| b.name == base).unwrap();
            let victim = Victim::record(&Bpfs, base, &op.parse().unwrap(), Semantics::Adr);
            (base, victim.unwrap().unwrap(), last)
        })
        .collect();
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let place = |m: &Mutant| label(crates, &m.site).split(':').next().unwrap().to_owned();
    // Stores that clear bytes beyond the ends of files are tested in tests/it/mutation.rs.
    let places = ["scan.rs scan", "scan.rs scan_dir", "scan.rs scan_inode_file", "scan.rs walk"];
    let in_scan = |m: &Mutant| {
        let bugs = [Bug::DropFlush, Bug::DropFence, Bug::FlushAfterFence, Bug::ShortFlush];
        bugs.contains(&m.bug) && places.contains(&&*place(m))
    };
    for scenario in Scenario::ALL {
        let mut runs = Vec::new();
        for (base, victim, last) in &victims {
            for death in victim.deaths(&[scenario], *last) {
                let recorded = victim.dies(&Bpfs, base, death.steps, scenario).unwrap();
                runs.push(Run { base, name: death.to_string(), recorded });
            }
        }
        let fates = score_runs(&Bpfs, &runs, FROM, Semantics::Adr, &in_scan);
        for (m, fate) in &fates {
            let site = label(crates, &m.site);
            println!("{scenario:?}: {:?} at {site}: {fate:?}", m.bug);
            let is_found = matches!(fate, Fate::Killed { .. });
            assert!(is_found, "{scenario:?}: {:?} at {site} is not found", m.bug);
        }
        let met: BTreeSet<_> = fates.keys().map(place).collect();
        assert!(met.iter().eq(&places), "only {met:?}");
    }
}
