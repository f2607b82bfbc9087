//! An engine with a bug: tests what the explorer reports, and that the replay line shows the same
//! again.

use crate::common::{Wrapped, WrappedBpfs};
use crashsim::campaign::{self, CampaignOptions, Family, Replay, Work};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::stats::Distinct;
use judges::bpfs::Bpfs;
use pmem::{Line, Medium};
use vfs::script::parse;

/// Forgets to flush words, so that commits in place are not durable.
#[derive(Default)]
struct Careless;

impl Wrapped for Careless {
    fn flush(&self, medium: &dyn Medium, off: u64, len: u64) {
        if len > 8 {
            medium.flush(off, len);
        }
    }
}

/// Stores lines word by word, as a CPU does without an instruction for lines.
#[derive(Default)]
struct Torn;

impl Wrapped for Torn {
    fn store_line(&self, medium: &dyn Medium, off: u64, line: &Line) {
        medium.write_nt(off, line);
    }
}

#[test]
fn lines_that_tear_are_found() {
    let target = WrappedBpfs::of::<Torn>();
    let file = parse("create /a; write /a 0 5000").unwrap();
    let bases = [Base::build(&target, "file", 128 * 4096, file).unwrap()];
    let violations = |op: &str, semantics| {
        let family = Family::Script(parse(op).unwrap());
        let options = CampaignOptions { semantics, ..CampaignOptions::default() };
        let distinct = Distinct::default();
        let report = campaign::run(&target, &bases, &family, &options, &distinct, &|_, _, _| {});
        report.violations
    };
    for op in ["write /a 64 64", "write /a 130 9"] {
        assert!(violations(op, Semantics::Adr) > 0, "{op}");
        assert!(violations(op, Semantics::Eadr) > 0, "{op}");
        assert_eq!(violations(op, Semantics::AdrWords), 0, "{op}: no line is stored");
    }
}

/// Returns the number of sites whose stores nothing flushes, by the traces.
fn unflushed(target: &WrappedBpfs) -> usize {
    let bases = [Base::build(target, "empty", 128 * 4096, Vec::new()).unwrap()];
    let family = Family::Script(parse("create /n; unlink /n").unwrap());
    let (options, distinct) = (CampaignOptions::default(), Distinct::default());
    let report = campaign::run(target, &bases, &family, &options, &distinct, &|_, _, _| {});
    report.lint.unflushed.len()
}

#[test]
fn a_store_that_nothing_flushes_counts_unless_it_is_argued_for() {
    let target = WrappedBpfs::of::<Careless>();
    assert!(unflushed(&target) > 0);
    assert_eq!(unflushed(&WrappedBpfs { argued: Some("nobody minds"), ..target }), 0);
}

#[test]
fn a_violation_names_what_was_lost_and_can_be_seen_again() {
    let target = WrappedBpfs::of::<Careless>();
    let tree = parse("mkdir /d; create /d/c; write /d/c 0 100").unwrap();
    let bases = [Base::build(&target, "tree", 128 * 4096, tree).unwrap()];
    let family = Family::Script(parse("create /n; unlink /d/c").unwrap());
    let (options, distinct) = (CampaignOptions::default(), Distinct::default());
    let report = campaign::run(&target, &bases, &family, &options, &distinct, &|_, _, _| {});
    assert!(report.violations > 0);

    let lost = "the tree is none that is allowed";
    let finding = report.findings.iter().find(|f| f.what.starts_with(lost)).unwrap();
    println!("{finding:#?}");
    let entry = "directory inode 2, entry at 0 \"c\": inode number";
    let is_lost = |detail: &&String| detail.contains(entry) && detail.contains(": lost: ");
    let lost = finding.detail.iter().find(is_lost).unwrap();
    assert!(lost.contains("stored at tree/namespace/src/dir.rs:"), "{lost}");

    let line = finding.replay.parse().unwrap();
    let (again, wrong, _) = campaign::replay(&target, &bases, &line).unwrap();
    assert!(wrong);
    assert!(again.iter().any(|a| a.what == finding.what && a.detail == finding.detail));
}

/// A missing flush is reported as one finding, however many states show it. The finding names the
/// sites of the lost stores.
#[test]
fn a_missing_flush_is_one_finding() {
    let target = WrappedBpfs::of::<Careless>();
    let bases = [Base::build(&target, "empty", 128 * 4096, Vec::new()).unwrap()];
    let family = Family::Script(parse("create /n; create /m; create /o").unwrap());
    let (options, distinct) = (CampaignOptions::default(), Distinct::default());
    let report = campaign::run(&target, &bases, &family, &options, &distinct, &|_, _, _| {});
    let lost: Vec<_> = report.findings.iter().map(|f| crashsim::lost::sites(&f.lost)).collect();
    assert!(report.violations > lost.len() as u64, "{}", report.violations);
    assert!(lost.iter().all(|sites| !sites.is_empty()), "{lost:?}");
    assert!((1..lost.len()).all(|i| !lost[i..].contains(&lost[i - 1])), "{lost:?}");
}

/// The trace of a sound engine without one of its flushes shows violations.
#[test]
fn a_trace_that_was_changed_is_crashed() {
    let file = parse("create /a; write /a 0 5000").unwrap();
    let bases = [Base::build(&Bpfs, "file", 128 * 4096, file).unwrap()];
    let line: Replay = "adr file 0.0 all-but: create /n; write /a 0 5000".parse().unwrap();
    let Work::Sequence(ops) = &line.work else { panic!("a sequence") };
    let recorded = bases[0].record(&Bpfs, ops, 0, Semantics::Adr).unwrap();
    let text = line.trace(&recorded.trace);
    assert_eq!(Replay::of_trace(&text), Ok(Some(line.clone())));
    let violations = |text: &str| {
        let trace = text.parse().unwrap();
        campaign::explore_trace(&Bpfs, &bases, &line, trace).unwrap().violations
    };
    assert_eq!(violations(&text), 0);
    let flushes = text.lines().filter(|line| line.contains(" flush "));
    let found = flushes.filter(|flush| violations(&text.replacen(*flush, "", 1)) > 0);
    assert!(found.count() > 0);
    let other = text.replace("begin 1", "begin 2");
    let error = campaign::explore_trace(&Bpfs, &bases, &line, other.parse().unwrap()).unwrap_err();
    assert!(error.contains("other operations"), "{error}");
}
