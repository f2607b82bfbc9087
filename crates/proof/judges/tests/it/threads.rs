//! Concurrent threads: BPFS survives crashes under many schedules. Engines and programs whose bugs
//! show only under some schedules do not survive.

use crate::common::{Wrapped, WrappedBpfs};
use crashsim::campaign::{self, CampaignOptions, Family, Report};
use crashsim::explore::Budget;
use crashsim::image::CrashImage;
use crashsim::lint::{Lint, lint};
use crashsim::persist::Semantics;
use crashsim::recorder::Recorder;
use crashsim::run::Base;
use crashsim::schedule::{self, Policy};
use crashsim::stats::Distinct;
use crashsim::target::Target;
use crashsim::threads::{ThreadsPlan, record};
use crashsim::trace::{Action, Trace};
use crashsim::workload;
use judges::bpfs::Bpfs;
use judges::scmfs::Scmfs;
use judges::servers;
use pmem::{Fenced, Medium};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::script::Driver;

fn explore<T: Target>(target: &T, runs: u64) -> (Vec<Base>, Report) {
    campaign::prepare_process();
    let bases = workload::bases(target).expect("the bases can be made");
    let budget = Budget { states: 1 << 6, samples: 8, ..Budget::default() };
    let options = CampaignOptions { budget, ..CampaignOptions::default() };
    let (family, distinct) = (Family::Threads { runs }, Distinct::default());
    let report = campaign::run(target, &bases, &family, &options, &distinct, &|_, _, _| {});
    println!("{:?}, {:?}", report.stats, report.interleaving);
    (bases, report)
}

#[test]
fn bpfs_survives_and_leans_on_nothing_but_times() {
    let (_, report) = explore(&Bpfs, 400);
    for f in &report.findings {
        println!("{}\n  {}\n  --replay '{}'", f.what, f.detail.join("\n  "), f.replay);
    }
    assert_eq!(report.violations, 0);
    assert_eq!(report.stats.unsteady, 0, "recovery is not deterministic");
    assert!(report.interleaving.waits > 0, "nobody ever waited for a lock");
    let harmful: Vec<_> = report.lint.leaning.iter().filter(|l| l.harmless.is_none()).collect();
    assert!(harmful.is_empty(), "{harmful:#?}");
}

/// The number of runs in which one thread interrupts another, spread over all of them.
const INTERRUPTIONS: u64 = 42;

fn interruptions_survive<T: Target>(target: &T) {
    campaign::prepare_process();
    let bases = workload::bases(target).expect("the bases can be made");
    let budget = Budget { states: 1 << 6, samples: 8, ..Budget::default() };
    let options =
        CampaignOptions { budget, limit: Some(INTERRUPTIONS), ..CampaignOptions::default() };
    let (family, distinct) = (Family::Preemptions, Distinct::default());
    let report = campaign::run(target, &bases, &family, &options, &distinct, &|_, _, _| {});
    assert_eq!(report.workloads, INTERRUPTIONS);
    assert_eq!(report.violations, 0, "{:#?}", report.findings);
}

#[test]
fn interruptions_survive_on_bpfs() {
    interruptions_survive(&Bpfs);
}

#[test]
fn interruptions_survive_on_scmfs() {
    interruptions_survive(&Scmfs);
}

/// The number of runs in which one thread interrupts another at words of the derived state.
const WORD_INTERRUPTIONS: u64 = 160;

fn interruptions_at_words_survive<T: Target>(target: &T) {
    campaign::prepare_process();
    let bases = workload::bases(target).expect("the bases can be made");
    let budget = Budget { states: 1 << 4, samples: 4, ..Budget::default() };
    let options =
        CampaignOptions { budget, limit: Some(WORD_INTERRUPTIONS), ..CampaignOptions::default() };
    let (family, distinct) = (Family::WordPreemptions, Distinct::default());
    assert!(family.suits(target));
    let report = campaign::run(target, &bases, &family, &options, &distinct, &|_, _, _| {});
    println!("{:?}, {:?}", report.stats, report.interleaving);
    assert_eq!(report.violations, 0, "{:#?}", report.findings);
}

#[test]
fn interruptions_at_words_survive_on_bpfs() {
    interruptions_at_words_survive(&Bpfs);
}

#[test]
fn interruptions_at_words_survive_on_scmfs() {
    interruptions_at_words_survive(&Scmfs);
}

#[test]
fn servers_are_told_whatever_the_schedule() {
    campaign::prepare_process();
    servers::explore().unwrap();
}

#[test]
fn a_plan_with_steps_at_words_is_a_line() {
    let line = "words preempt:7 create /n | create /m; unlink /n";
    let plan: ThreadsPlan = line.parse().unwrap();
    assert!(plan.at_words && plan.programs.len() == 2);
    assert_eq!(plan.to_string(), line);
}

#[test]
fn the_twins_use_the_last_redo_record() {
    let bases = workload::bases(&Bpfs).unwrap();
    let twins = bases.iter().find(|base| base.name == workload::TWINS).unwrap();
    let image = CrashImage::of(twins.bytes.clone());
    let mounted = Bpfs.mount(&image).unwrap();
    let driver = Driver::new(&*mounted.fs);
    let numbers = ["/a", "/d/c"].map(|path| driver.with(path, |ino| Ok(ino.0 % 32)).unwrap());
    assert_eq!(numbers, [31, 31]);
}

#[test]
fn operations_overlap() {
    let base = &workload::bases(&Bpfs).unwrap()[0];
    let overlaps = |seed| {
        let recorded =
            record(&Bpfs, base, &ThreadsPlan::generate(seed / 4, seed), Semantics::Adr).unwrap();
        overlapping(&recorded.trace)
    };
    let overlaps: u32 = (0..40).map(overlaps).sum();
    assert!(overlaps > 40, "{overlaps} operations began while another was in flight");
}

fn overlapping(trace: &Trace) -> u32 {
    let (mut open, mut overlaps) = (0, 0);
    for e in &trace.events {
        match e.action {
            Action::Begin { .. } => {
                overlaps += u32::from(open > 0);
                open += 1;
            }
            Action::End { .. } => open -= 1,
            _ => {}
        }
    }
    overlaps
}

/// Saves fences: a thread makes no fence if nothing was flushed since the last one. But that may
/// have been another thread's fence, which has not waited for the flushes of this thread.
#[derive(Default)]
struct SavesFences {
    flushed: AtomicBool,
}

impl Wrapped for SavesFences {
    fn flush(&self, medium: &dyn Medium, off: u64, len: u64) {
        self.flushed.store(true, SeqCst);
        medium.flush(off, len);
    }
    fn wrote_nt(&self) {
        self.flushed.store(true, SeqCst);
    }
    fn fence(&self, medium: &dyn Medium) -> Fenced {
        match self.flushed.swap(false, SeqCst) {
            true => medium.fence(),
            false => Fenced::assert(),
        }
    }
}

#[test]
fn a_fence_saved_because_of_another_threads_is_found_and_shown_again() {
    let target = WrappedBpfs::of::<SavesFences>();
    let bases = workload::bases(&target).unwrap();
    let family = Family::Exhaustive { length: 1, bases: 1 };
    let options = CampaignOptions { limit: Some(200), ..CampaignOptions::default() };
    let distinct = Distinct::default();
    let alone = campaign::run(&target, &bases, &family, &options, &distinct, &|_, _, _| {});
    assert_eq!(alone.violations, 0, "one thread alone does not show it");

    let (bases, report) = explore(&target, 80);
    assert!(report.violations > 0);
    let finding = &report.findings[0];
    println!("{finding:#?}");
    let line = finding.replay.parse().unwrap();
    let (again, wrong, _) = campaign::replay(&target, &bases, &line).unwrap();
    assert!(wrong);
    assert_eq!((&again[0].what, &again[0].detail), (&finding.what, &finding.detail));
}

fn lint_of(text: &str) -> Lint {
    lint(&format!("keepstone-trace 1 4096\n{text}").parse().unwrap())
}

const ONE: &str = "0100000000000000";

#[test]
fn a_store_leans_on_what_its_thread_has_read_until_that_is_durable() {
    let leans = |text: &str| lint_of(text).leaning.len();
    let read = format!("0 word 0x0 {ONE} a\n1 load 0x0 8 b");
    let found = lint_of(&format!("{read}\n1 word 0x40 {ONE} c")).leaning;
    assert_eq!(found.len(), 1);
    let sites = [&found[0].lost, &found[0].load, &found[0].kept];
    assert_eq!(
        (sites, found[0].word, found[0].times),
        (["a", "b", "c"].map(String::from).each_ref(), 0, 1)
    );

    let flushed = format!("{read}\n0 flush 0x0 8 -");
    assert_eq!(leans(&format!("{flushed}\n1 word 0x40 {ONE} c")), 1, "a flush alone is nothing");
    assert_eq!(
        leans(&format!("{flushed}\n1 fence -\n1 word 0x40 {ONE} c")),
        1,
        "nor another's fence"
    );
    assert_eq!(leans(&format!("{flushed}\n0 fence -\n1 word 0x40 {ONE} c")), 0);
    let helped = format!("{read}\n1 flush 0x0 8 -\n1 fence -\n1 word 0x40 {ONE} c");
    assert_eq!(leans(&helped), 0, "who reads may make it durable");
    assert_eq!(leans(&format!("{read}\n1 word 0x38 {ONE} c")), 0, "a line persists in order");
    assert_eq!(leans(&format!("{read}\n1 nt 0x38 {ONE} c")), 1, "but not past the cache");
    assert_eq!(leans(&format!("{read}\n0 word 0x40 {ONE} c")), 0, "its own stores are ordered");
    assert_eq!(leans(&format!("{read}\n1 begin 1\n1 word 0x40 {ONE} c")), 0);
}

/// Runs a mailbox: one thread puts a number into word 0, another takes it and records that in
/// word 64. With `durably`, the number is durable before the other thread can take it.
fn mailbox(durably: bool, seed: u64) -> Lint {
    let pm = Recorder::new(CrashImage::new(4096));
    let ready = AtomicBool::new(false);
    let put = || {
        pm.store_u64(0, 7);
        if !durably {
            ready.store(true, SeqCst);
        }
        pm.flush(0, 8);
        let _ = pm.fence();
        ready.store(true, SeqCst);
    };
    let take = || {
        // Gives up if the number does not arrive in time.
        for _ in 0..20 {
            schedule::step();
            if ready.load(SeqCst) {
                pm.store_u64(64, pm.load_u64(0));
                pm.flush(64, 8);
                let _ = pm.fence();
                return;
            }
        }
    };
    let programs: Vec<Box<dyn FnOnce() + Send + '_>> = vec![Box::new(put), Box::new(take)];
    schedule::run(programs, Policy::new(seed, 2, 12), "the mailbox");
    lint(&pm.into_trace())
}

#[test]
fn a_message_taken_before_it_is_durable_is_reported_under_some_schedule() {
    let leaning = |durably| {
        let found = (0..40).flat_map(|seed| mailbox(durably, seed).leaning);
        found.map(|l| (l.lost, l.load, l.kept)).collect::<Vec<_>>()
    };
    let found = leaning(false);
    assert!(!found.is_empty() && found.len() < 40, "{found:?}");
    assert!(
        found.iter().all(|f| *f == found[0] && f.0.contains("tests/it/threads.rs")),
        "{found:?}"
    );
    assert_eq!(leaning(true), []);
}
