//! Whether the explorer finds a bug that is there: the same families of workloads that `keepstone crashtest` runs,
//! the cheapest first, up to the first violation.

use crate::blocks;
use crate::bpfs::Bpfs;
use crate::lent::{LentBpfs, LentScmfs};
use crate::modelfs::ModelFs;
use crate::scmfs::collected::Collected;
use crate::scmfs::mapped::{self, Mapped};
use crate::scmfs::{Scmfs, Through};
use crashsim::campaign::{self, Family, Finding, Options, Report};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::stats::Distinct;
use crashsim::target::Target;
use crashsim::workload;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::time::Instant;

/// What was found, or that nothing was.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The family that found it.
    pub by: Option<String>,
    /// States explored.
    pub states: u64,
    /// Time that it took.
    pub seconds: f64,
    /// What is wrong.
    pub what: String,
    /// The workload, as for `--replay`.
    pub replay: String,
}

/// A line, of fields with tabs between.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, states, seconds, what, replay } = self;
        let what = what.lines().next().unwrap_or_default().replace('\t', " ");
        write!(f, "{}\t{states}\t{seconds:.3}\t{what}\t{replay}", by.as_deref().unwrap_or_default())
    }
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [by, states, seconds, what, replay] = fields[..] else {
            return Err(format!("no verdict: `{line}`"));
        };
        Ok(Self {
            by: Some(by.to_owned()).filter(|by| !by.is_empty()),
            states: states.parse().map_err(|_| format!("not a number: `{states}`"))?,
            seconds: seconds.parse().map_err(|_| format!("not a number: `{seconds}`"))?,
            what: what.to_owned(),
            replay: replay.to_owned(),
        })
    }
}

/// The engines that can be judged: the names of their crates.
pub const ENGINES: [&str; 4] = ["bpfs", "modelfs", "pmbd", "scmfs"];

/// Judges one of [`ENGINES`]; `tell` is told what each family came to. `only`: one family, by its name.
pub fn judge(engine: &str, only: Option<&str>, tell: &mut dyn FnMut(&Report)) -> Verdict {
    let start = Instant::now();
    let distinct = Distinct::default();
    let mut states = 0;
    // A panic is a find, too: an assertion of the engine's.
    let families = |distinct: &Distinct, enough: &mut Enough<'_>| match engine {
        "bpfs" => of_bpfs(distinct, only, enough),
        "modelfs" => of_file_systems(&ModelFs, distinct, only, enough),
        "scmfs" => of_scmfs(distinct, only, enough),
        "pmbd" => of_block_devices(distinct, only, enough),
        _ => Err(format!("nobody judges `{engine}`")),
    };
    let mut found = None;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        families(&distinct, &mut |report: Report| {
            tell(&report);
            states += report.stats.distinct;
            found = of_report(report);
            found.is_some()
        })
    }));
    let failed = match ended {
        Err(_) => Some("a panic".to_owned()),
        Ok(Err(what)) => Some(what),
        Ok(Ok(())) => None,
    };
    let (by, what, replay) = match (found, failed) {
        (Some((by, finding)), _) => (Some(by), finding.what, finding.replay),
        (None, Some(what)) => (Some("setting up".to_owned()), what, String::new()),
        (None, None) => (None, String::new(), String::new()),
    };
    Verdict { by, states, seconds: start.elapsed().as_secs_f64(), what, replay }
}

/// What a family found: a violation, or what its traces show without a crash.
fn of_report(report: Report) -> Option<(String, Finding)> {
    let Report { family, findings, lint, .. } = report;
    if let Some(finding) = findings.into_iter().next() {
        return Some((family, finding));
    }
    let (site, _) = lint.unflushed.into_iter().next()?;
    let what = format!("store never flushed at {site}");
    Some((format!("{family}, lint"), Finding { replay: String::new(), what, detail: Vec::new() }))
}

/// Told what each family found; whether that is enough.
type Enough<'a> = dyn FnMut(Report) -> bool + 'a;

/// The family that formats.
const FORMATTING: &str = "formatting";

/// Sequences of two that are tried beyond the quick run.
const PAIRS: u64 = 3000;

/// Whether a family is one of those that are asked for.
fn is_asked(only: Option<&str>, family: &str) -> bool {
    only.is_none_or(|only| only == family)
}

fn of_file_systems<T: Target>(
    target: &T,
    distinct: &Distinct,
    only: Option<&str>,
    enough: &mut Enough<'_>,
) -> Result<(), String> {
    of_pools(target, &workload::bases(target)?, distinct, only, enough)
}

/// The same on these pools.
fn of_pools<T: Target>(
    target: &T,
    bases: &[Base],
    distinct: &Distinct,
    only: Option<&str>,
    enough: &mut Enough<'_>,
) -> Result<(), String> {
    let blank = bases[0].blank();
    for base in [&bases[0], &blank].into_iter().filter(|_| is_asked(only, FORMATTING)) {
        let format = crashsim::format::record(target, base)?;
        let (stats, wrong) = crashsim::format::explore(target, base, &format, Semantics::Adr)?;
        if enough(formatting(stats, wrong)) {
            return Ok(());
        }
    }
    let families =
        file_system_families(bases).into_iter().filter(|(family, _)| family.suits(target));
    for (family, limit) in families.filter(|(family, _)| is_asked(only, &family.name())) {
        let options = Options { limit, stop_early: true, ..Options::default() };
        if enough(campaign::run(target, bases, &family, &options, distinct, &|_, _, _| {})) {
            return Ok(());
        }
    }
    Ok(())
}

/// BPFS; then, with somebody who reads without a copy.
fn of_bpfs(distinct: &Distinct, only: Option<&str>, enough: &mut Enough<'_>) -> Result<(), String> {
    let mut is_enough = false;
    of_file_systems(&Bpfs, distinct, only, &mut |report| {
        is_enough = enough(report);
        is_enough
    })?;
    if is_enough { Ok(()) } else { of_readers(&LentBpfs, distinct, only, enough).map(drop) }
}

/// What is read without a copy while it changes; whether that was enough.
fn of_readers<T: Target>(
    target: &T,
    distinct: &Distinct,
    only: Option<&str>,
    enough: &mut Enough<'_>,
) -> Result<bool, String> {
    let bases = workload::bases(target)?;
    let single = Family::Exhaustive { length: 1, bases: bases.len() };
    let families = [(Family::Lines, "lent, lines"), (single, "lent, length 1")];
    for (family, name) in families.into_iter().filter(|(_, name)| is_asked(only, name)) {
        let options = Options { stop_early: true, ..Options::default() };
        let report = campaign::run(target, &bases, &family, &options, distinct, &|_, _, _| {});
        if enough(Report { family: name.into(), ..report }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// SCMFS as it is by default; then, what is stored past the cache; through mappings; with a busy collector.
fn of_scmfs(
    distinct: &Distinct,
    only: Option<&str>,
    enough: &mut Enough<'_>,
) -> Result<(), String> {
    let mut is_enough = false;
    of_file_systems(&Scmfs, distinct, only, &mut |report| {
        is_enough = enough(report);
        is_enough
    })?;
    let families = [(Family::Lines, "through, lines"), (Family::Sequences, "through, sequences")];
    let asked = families.into_iter().filter(|(_, name)| is_asked(only, name));
    let bases = if is_enough { Vec::new() } else { workload::bases(&Through)? };
    for (family, name) in asked.filter(|_| !bases.is_empty()) {
        let options = Options { stop_early: true, ..Options::default() };
        let report = campaign::run(&Through, &bases, &family, &options, distinct, &|_, _, _| {});
        if enough(Report { family: name.into(), ..report }) {
            return Ok(());
        }
    }
    if is_enough
        || of_readers(&LentScmfs, distinct, only, enough)?
        || of_mappings(distinct, only, enough)?
    {
        return Ok(());
    }
    // Its own collector leaves nothing of a crash in the middle of a truncation.
    of_pools(&Collected, &workload::bases(&Scmfs)?, distinct, only, enough)
}

/// What is stored through mappings; whether that was enough.
fn of_mappings(
    distinct: &Distinct,
    only: Option<&str>,
    enough: &mut Enough<'_>,
) -> Result<bool, String> {
    const NAME: &str = "mapped, sequences";
    let single = Family::Exhaustive { length: 1, bases: 2 };
    let random = Family::Random { runs: 10, ops: 60 };
    let others = [(single, "mapped, length 1"), (random, "mapped, random")];
    let sequences = mapped::sequences().into_iter().map(|ops| (Family::Script(ops), NAME));
    let families = sequences.chain(others).filter(|(_, name)| is_asked(only, name));
    let bases = workload::bases(&Scmfs)?;
    for (family, name) in families {
        let options = Options { stop_early: true, ..Options::default() };
        let report = campaign::run(&Mapped, &bases, &family, &options, distinct, &|_, _, _| {});
        if enough(Report { family: name.into(), ..report }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The families of the quick run, as `keepstone crashtest` has them by default, and then some more.
fn file_system_families(bases: &[Base]) -> Vec<(Family, Option<u64>)> {
    let length = |length| Family::Exhaustive { length, bases: bases.len() };
    vec![
        (Family::Lines, None),
        (Family::Preemptions, None),
        (Family::Sequences, None),
        (length(1), None),
        (Family::Random { runs: 10, ops: 60 }, None),
        (Family::Fuzz { tries: 1000 }, None),
        (Family::Threads { runs: 200 }, None),
        (Family::SurvivingProcesses, None),
        (Family::Deaths, Some(6)),
        (length(2), Some(PAIRS)),
    ]
}

fn formatting(stats: crashsim::stats::Stats, wrong: Vec<String>) -> Report {
    let finding = |what| Finding { replay: String::new(), what, detail: Vec::new() };
    Report {
        family: FORMATTING.into(),
        stats,
        violations: wrong.len() as u64,
        findings: wrong.into_iter().take(1).map(finding).collect(),
        ..Report::default()
    }
}

/// Makes the workloads of a family.
type Workloads = fn() -> Result<Vec<blocks::Workload>, String>;

fn of_block_devices(
    distinct: &Distinct,
    only: Option<&str>,
    enough: &mut Enough<'_>,
) -> Result<(), String> {
    let families: [(&str, Workloads); 5] = [
        ("pairs", || Ok(blocks::pairs())),
        ("rounds", || Ok(blocks::rounds())),
        ("random", || Ok(blocks::random(13, 1))),
        ("deaths", blocks::deaths),
        ("threads", || Ok(blocks::schedules(1..3))),
    ];
    for (name, workloads) in families.into_iter().filter(|(name, _)| is_asked(only, name)) {
        if enough(blocks::run(name, &workloads()?, Semantics::Adr, distinct, true, &|_| ())) {
            return Ok(());
        }
    }
    let sizes = [blocks::BLOCKS, blocks::BLOCKS / 2];
    for blocks in sizes.into_iter().filter(|_| is_asked(only, FORMATTING)) {
        for record in [blocks::record_format, blocks::record_killed_format] {
            let run = record(blocks::Kind::Atomic(pmbd::Scheme::Nt), blocks)?;
            let wrong = blocks::explore_format(&run, &run.trace, blocks, Semantics::Adr);
            if enough(formatting(crashsim::stats::Stats::default(), wrong)) {
                return Ok(());
            }
        }
    }
    Ok(())
}
