//! Tests block devices in every crash state, and the explorer with bugs planted in them.

use crashsim::campaign::prepare_process;
use crashsim::mutate::{Bug, Mutant, mutants, mutate};
use crashsim::persist::Semantics;
use crashsim::score::label;
use crashsim::stats::Distinct;
use judges::blocks::{
    BLOCKS, BlockWorkload, Kind, deaths, explore, explore_format, pairs, random, record,
    record_format, record_killed_format, rounds, run, schedules,
};
use std::collections::BTreeMap;
use std::path::Path;

fn check(workloads: &[BlockWorkload]) {
    prepare_process();
    for semantics in [Semantics::Adr, Semantics::Eadr] {
        let report = run("test", workloads, semantics, &Distinct::default(), false, &|_| ());
        assert_eq!(report.workloads, workloads.len() as u64);
        assert!(report.findings.is_empty(), "{}: {:?}", semantics.name(), report.findings[0]);
        assert!(report.stats.points > 0);
    }
}

#[test]
fn every_pair_of_requests_survives_every_crash() {
    check(&pairs());
}

#[test]
fn random_runs_survive_every_crash() {
    check(&random(8, 7));
    check(&rounds());
}

/// Recovery once trusted words of the map that a killed process had stored and not flushed. It
/// reused their old data blocks, and a power failure reverted the words.
#[test]
fn nobody_builds_on_what_the_power_takes_back() {
    check(&deaths().unwrap());
}

#[test]
fn requests_at_once_survive_every_crash() {
    // Runs half of the schedules: the scheduler needs long to detect that one thread waits for
    // another.
    let half: Vec<_> = schedules(0..2).into_iter().step_by(2).collect();
    check(&half);
}

#[test]
fn workloads_are_text_and_back() {
    let mut all = pairs();
    all.extend(schedules(3..5));
    all.extend(deaths().unwrap());
    for workload in all {
        assert_eq!(workload.to_string().parse(), Ok(workload));
    }
    for bad in [
        "",
        "raw/nt",
        "raw/nt: ",
        "raw/x: barrier",
        "raw/nt: write 31+2",
        "raw/nt: fly 0+1",
        "raw/nt: write 0+1 keep",
        "raw/nt: write-bytes 500+13",
        "raw/nt: zero-bytes 0+1 keep",
        "raw/nt: killed 3 write 0+1",
        "raw/nt: killed write 0+1; barrier",
        "raw/nt: schedule write 0+1 | barrier",
    ] {
        assert!(bad.parse::<BlockWorkload>().is_err(), "{bad}");
    }
}

/// A replay line contains the schedule that was taken, not the seed from which it came.
#[test]
fn a_schedule_is_recorded_and_repeats() {
    prepare_process();
    let seeded = schedules(3..4).into_iter().find(|w| w.kind == Kind::Raw(pmbd::Scheme::Nt));
    let seeded = seeded.unwrap();
    let first = record(&seeded).unwrap();
    let line = BlockWorkload { schedule: first.taken(), ..seeded }.to_string();
    assert!(line.contains(": schedule order:"), "{line}");
    let again = record(&line.parse().unwrap()).unwrap();
    assert_eq!(again.taken(), first.taken());
    let actions = |run: &judges::blocks::BlockRun| {
        run.trace.events.iter().map(|e| (e.thread, e.action)).collect::<Vec<_>>()
    };
    assert_eq!(actions(&again), actions(&first));
}

/// The numbers of blocks of devices formatted over one of [`BLOCKS`]. In a smaller device, words of
/// the old map are invalid if their data blocks lie beyond its end, which depends on the thread
/// that wrote them. In a device of the same size they are always valid.
const FORMATS: [u64; 2] = [BLOCKS, BLOCKS / 2];

#[test]
fn formatting_leaves_the_old_device_or_none_or_the_new_one() {
    for blocks in FORMATS {
        let kind = Kind::Atomic(pmbd::Scheme::Nt);
        for record in [record_format, record_killed_format] {
            let run = record(kind, blocks).unwrap();
            for semantics in [Semantics::Adr, Semantics::Eadr] {
                let wrong = explore_format(&run, &run.trace, blocks, semantics);
                assert!(wrong.is_empty(), "{blocks} blocks: {}", wrong[0]);
            }
        }
    }
}

/// Mutants that are not bugs: the start of the site's label, the bugs, and the reason.
const EXPLAINED: &[(&str, &[Bug], &str)] = &[
    ("raw.rs write", &[Bug::DelayStore], ALONE),
    ("mod.rs commit: medium.publish_word", &[Bug::DelayStore], ALONE),
    (
        "mod.rs commit: medium.publish_word",
        &[Bug::SwapStores],
        "each word commits a block of its own",
    ),
    (
        "mod.rs commit: medium.publish_word",
        &[Bug::EarlyReuse],
        "the bug takes words for offsets, and these are numbers and checksums; what it is about, A2, \
         shows where the fence is left out",
    ),
    ("scan.rs format: let _ = medium.publish", &[Bug::DelayStore, Bug::TearStore], HALF_A_MAGIC),
    (
        "scan.rs format: let _ = medium.publish(SUPERBLOCK, 0",
        &[Bug::EarlyStore],
        "nothing precedes it",
    ),
    ("scan.rs format: let ready = medium.fence()", &[Bug::DropFence], "nothing precedes the first"),
];
/// The function that makes durable what a killed process left.
const RECOVERY: &str = "scan.rs persist";
const ALONE: &str = "it is all that the request commits: the delay ends before it returns";
const HALF_A_MAGIC: &str = "half a magic is none, and the magic is all that is committed";

/// Returns the reason why a mutant in a device of this kind is not a bug.
fn explanation(crates: &Path, (kind, mutant): &(String, Mutant)) -> Option<&'static str> {
    let site = format!("{kind} {}", label(crates, &mutant.site));
    let is = |(start, bugs, _): &&(&str, &[Bug], &str)| {
        site.contains(start) && bugs.contains(&mutant.bug)
    };
    EXPLAINED.iter().find(is).map(|(.., why)| *why)
}

#[test]
fn planted_bugs_are_found() {
    prepare_process();
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut fates: BTreeMap<(String, Mutant), bool> = BTreeMap::new();
    let mut explained: BTreeMap<(String, Mutant), bool> = BTreeMap::new();
    // Workloads with a death test only mutants of the recovery.
    let is_of_recovery = |mutant: &Mutant| label(crates, &mutant.site).starts_with(RECOVERY);
    for workload in pairs().into_iter().chain(deaths().unwrap()) {
        let run = record(&workload).unwrap();
        for mutant in mutants(&run.trace, run.from) {
            if workload.victim.is_some() && !is_of_recovery(&mutant) {
                continue;
            }
            let of = (workload.kind.to_string(), mutant.clone());
            // If no workload needs to find it, all of them would explore it.
            let is_explained =
                *explained.entry(of.clone()).or_insert_with(|| explanation(crates, &of).is_some());
            let fate = fates.entry(of).or_default();
            if *fate || is_explained {
                continue;
            }
            let Some(trace) = mutate(&run.trace, &run.initial, &mutant) else { continue };
            let distinct = Distinct::default();
            *fate = !explore(&run, &trace, Semantics::Adr, &distinct).1.is_empty();
        }
    }
    let kind = Kind::Atomic(pmbd::Scheme::Nt);
    for blocks in FORMATS {
        let run = record_format(kind, blocks).unwrap();
        for mutant in mutants(&run.trace, 0) {
            let Some(trace) = mutate(&run.trace, &run.initial, &mutant) else { continue };
            let fate = fates.entry((kind.to_string(), mutant)).or_default();
            *fate = *fate || !explore_format(&run, &trace, blocks, Semantics::Adr).is_empty();
        }
    }
    // A device that a killed process formatted must be durable before others build on it.
    let atomic: Vec<Kind> = Kind::all().filter(|kind| kind.is_atomic()).collect();
    for kind in atomic {
        let run = record_killed_format(kind, BLOCKS).unwrap();
        for mutant in mutants(&run.trace, 0).into_iter().filter(is_of_recovery) {
            let Some(trace) = mutate(&run.trace, &run.initial, &mutant) else { continue };
            let fate = fates.entry((kind.to_string(), mutant)).or_default();
            *fate = *fate || !explore_format(&run, &trace, BLOCKS, Semantics::Adr).is_empty();
        }
    }
    let mut unexplained = 0;
    for (of, killed) in &fates {
        if !killed {
            let (kind, mutant) = of;
            let (site, why) = (label(crates, &mutant.site), explanation(crates, of));
            println!("{kind}: {:?} at {site} survives: {}", mutant.bug, why.unwrap_or("WHY?"));
            unexplained += u32::from(why.is_none());
        }
    }
    println!("{} mutants", fates.len());
    assert_eq!(unexplained, 0, "mutants survive and are not explained");
}
