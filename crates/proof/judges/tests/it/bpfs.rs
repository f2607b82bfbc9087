//! Tests that no power failure breaks a BPFS pool. This part runs before every merge; `keepstone
//! crashtest --length 3` is the campaign.

use crate::common;
use crashsim::campaign::{self, CampaignOptions, Family, Report};
use crashsim::deaths::{Scenario, Victim};
use crashsim::explore::Budget;
use crashsim::lint::{Lint, lint};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::stats::Distinct;
use crashsim::trace::Trace;
use crashsim::workload;
use judges::bpfs::snapshots::{self, Snapshotted};
use judges::bpfs::{Bpfs, Ordered, branches, commands, shared};
use judges::lent::LentBpfs;
use pool::DurabilityMode;
use std::sync::LazyLock;

/// The pools on which workloads start.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    campaign::prepare_process();
    workload::bases(&Bpfs).expect("the bases can be made")
});

fn explore(family: Family, options: &CampaignOptions) -> Report {
    common::explore(&Bpfs, &BASES, family, options)
}

fn every_operation(semantics: Semantics) {
    let family = Family::Exhaustive { length: 1, bases: BASES.len() };
    let report = explore(family, &CampaignOptions { semantics, ..CampaignOptions::default() });
    assert!(report.stats.nested > 0, "some recovery has something to clear");
}

#[test]
fn every_operation_survives_on_x86() {
    every_operation(Semantics::Adr);
}

#[test]
fn every_operation_survives_without_stores_of_lines() {
    every_operation(Semantics::AdrWords);
}

#[test]
fn every_operation_survives_with_eadr() {
    every_operation(Semantics::Eadr);
}

#[test]
fn every_operation_survives_on_an_ordinary_file() {
    every_operation(Semantics::Msync);
}

#[test]
fn pairs_of_operations_survive() {
    // Runs a sixth of the pairs. The campaign runs all, on all pools, and enumerates more states of
    // each crash point.
    let budget = Budget { states: 1 << 6, samples: 8, ..Budget::default() };
    let options = CampaignOptions { budget, limit: Some(3000), ..CampaignOptions::default() };
    explore(Family::Exhaustive { length: 2, bases: 1 }, &options);
}

#[test]
fn all_parts_are_all_workloads() {
    const FAMILY: Family = Family::Exhaustive { length: 1, bases: 1 };
    let part = |part, distinct: &Distinct| {
        let options = CampaignOptions { part, limit: Some(40), ..CampaignOptions::default() };
        campaign::run(&Bpfs, &BASES, &FAMILY, &options, distinct, &|_, _, _| {})
    };
    let whole = part((0, 1), &Distinct::default());
    let distinct = Distinct::default();
    let parts: Vec<Report> = (0..3).map(|k| part((k, 3), &distinct)).collect();
    assert_eq!(parts.iter().map(|part| part.workloads).collect::<Vec<_>>(), [14, 13, 13]);
    let states: u64 = parts.iter().map(|part| part.stats.distinct).sum();
    assert_eq!(states, whole.stats.distinct);
    assert_eq!(part((50, 51), &distinct).workloads, 0, "there are no so many");
}

#[test]
fn hand_picked_sequences_survive() {
    for ops in workload::sequences() {
        explore(Family::Script(ops), &CampaignOptions::default());
    }
}

/// The pools whose files share blocks.
static SHARED: LazyLock<[Base; 2]> = LazyLock::new(|| {
    campaign::prepare_process();
    shared::bases().expect("the bases can be made")
});

fn shared_blocks_survive(which: usize, semantics: Semantics) {
    let options = CampaignOptions { semantics, ..CampaignOptions::default() };
    for ops in shared::workloads().into_iter().nth(which).unwrap() {
        common::explore(&Bpfs, &SHARED[which..=which], Family::Script(ops), &options);
    }
}

#[test]
fn shared_blocks_survive_on_x86() {
    shared_blocks_survive(0, Semantics::Adr);
}

#[test]
fn shared_blocks_survive_without_stores_of_lines() {
    shared_blocks_survive(0, Semantics::AdrWords);
}

#[test]
fn shared_blocks_survive_with_eadr() {
    shared_blocks_survive(0, Semantics::Eadr);
}

#[test]
fn shared_blocks_of_tall_trees_survive() {
    shared_blocks_survive(1, Semantics::Adr);
}

#[test]
fn shared_blocks_survive_in_order() {
    for (base, workloads) in SHARED.chunks(1).zip(shared::workloads()) {
        for ops in workloads {
            common::explore(&Ordered, base, Family::Script(ops), &CampaignOptions::default());
        }
    }
}

#[test]
fn shared_blocks_survive_readers_without_a_copy() {
    for (base, workloads) in SHARED.chunks(1).zip(shared::workloads()) {
        for ops in workloads {
            common::explore(&LentBpfs, base, Family::Script(ops), &CampaignOptions::default());
        }
    }
}

/// The pools with and without a snapshot.
static SNAPSHOTS: LazyLock<[Base; 2]> = LazyLock::new(|| {
    campaign::prepare_process();
    snapshots::bases().expect("the bases can be made")
});

fn snapshots_survive(mode: DurabilityMode, semantics: Semantics) {
    let options = CampaignOptions { semantics, ..CampaignOptions::default() };
    for ops in snapshots::workloads() {
        common::explore(&Snapshotted(mode), &*SNAPSHOTS, Family::Script(ops), &options);
    }
}

#[test]
fn snapshots_survive_on_x86() {
    snapshots_survive(DurabilityMode::Journal, Semantics::Adr);
}

#[test]
fn snapshots_survive_with_eadr() {
    snapshots_survive(DurabilityMode::Journal, Semantics::Eadr);
}

#[test]
fn snapshots_survive_in_order() {
    snapshots_survive(DurabilityMode::Ordered, Semantics::Adr);
}

#[test]
fn snapshots_survive_random_runs() {
    let family = Family::Random { runs: 20, ops: 60 };
    common::explore(&Snapshotted::default(), &*SNAPSHOTS, family, &CampaignOptions::default());
}

#[test]
fn commands_of_snapshots_survive() {
    for semantics in Semantics::ATOMIC {
        let stats = commands::explore_all(snapshots::command_runs().unwrap(), semantics).unwrap();
        println!("{semantics:?}: {stats:?}");
        assert!(stats.distinct > 100);
    }
}

#[test]
fn commands_of_branches_survive() {
    campaign::prepare_process();
    for semantics in Semantics::ATOMIC {
        let stats = commands::explore_all(branches::command_runs().unwrap(), semantics).unwrap();
        println!("{semantics:?}: {stats:?}");
        assert!(stats.distinct > 1000);
    }
}

#[test]
fn threads_that_share_blocks_survive() {
    let options = CampaignOptions::default();
    for programs in shared::INTERRUPTED {
        common::explore(&Bpfs, &SHARED[..1], Family::Interrupted(programs), &options);
    }
}

#[test]
fn threads_that_share_the_first_blocks_survive() {
    let tree = BASES.iter().position(|base| base.name == "tree").unwrap();
    let options = CampaignOptions::default();
    for programs in shared::FIRST_CLONES {
        let family = Family::Interrupted(programs);
        common::explore(&Bpfs, &BASES[tree..=tree], family, &options);
    }
}

#[test]
fn random_runs_survive() {
    explore(Family::Random { runs: 40, ops: 60 }, &CampaignOptions::default());
}

#[test]
fn evolved_sequences_survive() {
    explore(Family::Fuzz { tries: 3000 }, &CampaignOptions::default());
}

#[test]
fn a_trace_survives_its_text() {
    let base = &BASES[0];
    let ops = vfs::script::parse("write /a 4090 20; write /a 70 50; rename /a /d/c").unwrap();
    let trace = base.record(&Bpfs, &ops, 0, Semantics::Adr).unwrap().trace;
    assert!(trace.events.len() > 10);
    assert!(trace.to_string().contains(" line "));
    assert_eq!(trace.to_string().parse::<Trace>().unwrap().to_string(), trace.to_string());
    for bad in ["word 0x40 00", "line 0 00"] {
        assert!(format!("keepstone-trace 1 64\n0 {bad}").parse::<Trace>().is_err());
    }
}

#[test]
fn operations_survive_their_text() {
    for op in workload::universe() {
        assert_eq!(op.to_string().parse(), Ok(op));
    }
}

#[test]
fn a_replay_line_survives_its_text() {
    for line in [
        "adr tree 0.1 all-but:1208#0 create /n; setall /a 100 600 9",
        "adr brim 4.2 only: threads 85e39395 435306344 rename %2/n /a; punch %0 0 4096 | create /t1",
    ] {
        let replay: campaign::Replay = line.parse().unwrap();
        assert_eq!(replay.to_string(), line);
    }
    let (findings, wrong, _) =
        campaign::replay(&Bpfs, &BASES, &"adr tree 0.1 only: write /a 4090 20".parse().unwrap())
            .unwrap();
    assert!(!wrong && findings.len() == 1, "{findings:?}");
}

/// The operations flush every store of the engine before they end, and no flush or fence is always
/// in vain.
#[test]
fn traces_are_tidy() {
    let mut all = Lint::default();
    for base in BASES.iter() {
        for op in workload::universe() {
            let trace =
                base.record(&Bpfs, std::slice::from_ref(&op), 0, Semantics::Adr).unwrap().trace;
            let lint = lint(&trace);
            assert!(lint.unflushed.is_empty(), "{op} leaves stores unflushed: {lint:?}");
            all.add(lint);
        }
    }
    // The flushes of a mount are in vain unless a process has died before.
    let (grown, growing, _) = workload::MORE_COMMITS[0];
    for (base, op) in workload::COMMITS.into_iter().chain([(grown, growing)]) {
        let base = BASES.iter().find(|b| b.name == base).unwrap();
        let victim = Victim::record(&Bpfs, base, &op.parse().unwrap(), Semantics::Adr);
        let victim = victim.unwrap().unwrap();
        for death in victim.deaths(&[Scenario::NextMount], usize::MAX) {
            let recorded = victim.dies(&Bpfs, base, death.steps, death.scenario).unwrap();
            all.add(lint(&recorded.trace));
        }
    }
    for (site, (n, of)) in all.clean.iter().chain(&all.idle).filter(|(_, (n, _))| *n > 0) {
        println!("{site}: {n} of {of} in vain");
        assert!(n < of, "{site} is always in vain");
    }
}

#[test]
fn formatting_survives() {
    for semantics in Semantics::ATOMIC {
        for base in BASES.iter().chain([&BASES[0].blank()]) {
            let trace = crashsim::format::record(&Bpfs, base).unwrap();
            let (stats, wrong) = crashsim::format::explore(&Bpfs, base, &trace, semantics).unwrap();
            println!("{}: {stats:?}", base.name);
            assert!(wrong.is_empty(), "{semantics:?}, over {}: {}", base.name, wrong[0]);
        }
    }
}
