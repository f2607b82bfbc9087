//! Runs the explorer on an engine that may have a bug. It takes the workload families of `keepstone
//! crashtest`, the cheapest first, and ends at the first violation. Time limits count processor
//! time, so that the load of the machine does not matter.

use crate::backed;
use crate::blocks;
use crate::bpfs::snapshots::{self, Snapshotted};
use crate::bpfs::{self, Bpfs, Ordered, branches, commands, shared};
use crate::caches;
use crate::lent::{LentBpfs, LentScmfs};
use crate::modelfs::ModelFs;
use crate::scmfs::collected::Collected;
use crate::scmfs::mapped::{self, Mapped};
use crate::scmfs::{Scmfs, Through, units};
use crate::servers;
use crashsim::campaign::{self, CampaignOptions, Clock, Family, Finding, Report};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::stats::{Distinct, Stats};
use crashsim::target::Target;
use crashsim::workload;
use pool::DurabilityMode;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

/// The result of judging an engine: the first violation, or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The family that found the violation; `None` if no family found one.
    pub by: Option<String>,
    /// The number of states explored.
    pub states: u64,
    /// The processor time used, in seconds.
    pub seconds: f64,
    /// The violation.
    pub what: String,
    /// The workload, as a line for `--replay`.
    pub replay: String,
}

/// One line of fields, separated by tabs.
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

/// The names of what can be judged: engines, as in `keepstone crashtest --engine`, and the server
/// of a cache.
pub const ENGINES: [&str; 5] = ["bpfs", "cache", "model", "pmbd", "scmfs"];

/// Judges one of [`ENGINES`] within `limit` of processor time, if there is a limit, and calls
/// `tell` with the report of each family. `only` selects one family by its name.
pub fn judge(
    engine: &str,
    only: Option<&str>,
    limit: Option<Duration>,
    tell: &mut dyn FnMut(&Report),
) -> Verdict {
    let start = Clock::Processor.now();
    let mut states = 0;
    let mut found = None;
    // A panic counts as a find, too: it is a failed assertion of the engine.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut hunts = hunts(engine)?;
        hunts.retain(|hunt| only.is_none_or(|only| only == hunt.name));
        go(&hunts, limit.map(|limit| start + limit), &mut |report| {
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
    let seconds = (Clock::Processor.now() - start).as_secs_f64();
    Verdict { by, states, seconds, what, replay }
}

/// Runs the families in order until `enough` accepts a report. With a time limit, each family first
/// runs for a small part of it, as some family finds most bugs soon; chosen sequences run whole.
/// Then the unfinished families share the rest of the time.
fn go(
    hunts: &[Hunt],
    ends: Option<Duration>,
    enough: &mut dyn FnMut(Report) -> bool,
) -> Result<(), String> {
    let distinct = Distinct::default();
    let left = || ends.map(|ends| ends.saturating_sub(Clock::Processor.now()));
    let first = left().map(|time| time / FIRST_PART);
    let mut unfinished = Vec::new();
    for hunt in hunts {
        let report = (hunt.run)(first.filter(|_| !hunt.is_whole), &distinct)?;
        if first.is_some() && report.workloads < hunt.limit && report.workloads_skipped > 0 {
            unfinished.push(hunt);
        }
        if enough(Report { family: hunt.name.clone(), ..report }) {
            return Ok(());
        }
    }
    for (i, hunt) in unfinished.iter().enumerate() {
        let share = left().map(|time| time / (unfinished.len() - i) as u32);
        let report = (hunt.run)(share, &distinct)?;
        if enough(Report { family: hunt.name.clone(), ..report }) {
            return Ok(());
        }
    }
    Ok(())
}

/// The first run of each family may use the time limit divided by this number.
const FIRST_PART: u32 = 60;

/// Returns the first finding of a family: a violation, or a store in its traces that nothing
/// flushes.
fn of_report(report: Report) -> Option<(String, Finding)> {
    let Report { family, findings, lint, .. } = report;
    if let Some(finding) = findings.into_iter().next() {
        return Some((family, finding));
    }
    let (site, _) = lint.unflushed.into_iter().next()?;
    let what = format!("store never flushed at {site}");
    Some((format!("{family}, lint"), Finding::new(String::new(), what)))
}

/// A family of workloads of an engine, in one of the modes in which the engine is used.
struct Hunt {
    name: String,
    /// The number of workloads after which the family counts as finished.
    limit: u64,
    /// Whether the family runs to its end in spite of the time limit.
    is_whole: bool,
    run: Box<Run>,
}

/// Runs a family up to the first violation, for at most the given processor time.
type Run = dyn Fn(Option<Duration>, &Distinct) -> Result<Report, String>;

/// The families that judge an engine, the cheapest first.
fn hunts(engine: &str) -> Result<Vec<Hunt>, String> {
    match engine {
        "bpfs" => bpfs(),
        "cache" => {
            Ok(vec![whole("caches".to_owned(), |distinct| of_stats(caches::explore(distinct)))])
        }
        "model" => Ok(everything(ModelFs, &pools(&ModelFs)?, "")),
        "scmfs" => scmfs(),
        "pmbd" => Ok(block_devices()),
        _ => Err(format!("nobody judges `{engine}`")),
    }
}

/// The families of BPFS: notifications to servers, pools with a backing store, the engine as it is,
/// with readers that read without a copy, and in the mode `ordered`.
fn bpfs() -> Result<Vec<Hunt>, String> {
    let mut hunts = vec![whole("servers".to_owned(), |_| Ok(report_of(servers::explore())))];
    hunts.push(whole("backed".to_owned(), |distinct| of_stats(backed::explore(distinct))));
    hunts.extend(everything(Bpfs, &pools(&Bpfs)?, ""));
    hunts.extend(with_shared_blocks()?);
    hunts.extend(with_snapshots()?);
    hunts.extend(with_readers(LentBpfs)?);
    let ordered = pools(&Ordered)?;
    hunts.extend(bpfs::ordered_sequences().into_iter().map(|ops| Hunt {
        is_whole: true,
        ..hunt(Ordered, &ordered, ORDERED, Family::Script(ops))
    }));
    hunts.extend(everything(Ordered, &ordered, ORDERED));
    Ok(hunts)
}

/// The families of BPFS with files that share blocks: the engine as it is, with readers that read
/// without a copy, and in the mode `ordered`.
fn with_shared_blocks() -> Result<Vec<Hunt>, String> {
    let mut hunts = Vec::new();
    for (base, workloads) in shared::bases()?.into_iter().zip(shared::workloads()) {
        let bases: Pools = [base].into();
        let name = |way: &str| format!("{way}shared blocks");
        for ops in workloads {
            let family = Family::Script(ops);
            let all = [
                Hunt { name: name(""), ..hunt(Bpfs, &bases, "", family.clone()) },
                Hunt { name: name(LENT), ..hunt(LentBpfs, &bases, "", family.clone()) },
                Hunt { name: name(ORDERED), ..hunt(Ordered, &bases, "", family) },
            ];
            hunts.extend(all.map(|hunt| Hunt { is_whole: true, ..hunt }));
        }
        let programs: &[_] = if bases[0].name == "shared" { &shared::INTERRUPTED } else { &[] };
        for programs in programs {
            let family = Family::Interrupted(programs);
            hunts.push(Hunt { is_whole: true, ..hunt(Bpfs, &bases, "shared, ", family) });
        }
        hunts.push(hunt(Bpfs, &bases, "shared, ", Family::Lines));
        hunts.push(hunt(Bpfs, &bases, "shared, ", Family::Random { runs: 10, ops: 60 }));
    }
    let mut fresh = workload::bases(&Bpfs)?;
    fresh.retain(|base| base.name == "tree");
    let fresh: Pools = fresh.into();
    hunts.extend(shared::FIRST_CLONES.map(|programs| Hunt {
        is_whole: true,
        ..hunt(Bpfs, &fresh, "first clones, ", Family::Interrupted(programs))
    }));
    Ok(hunts)
}

/// The families of BPFS with snapshots: commands on a whole pool, then changes of what a snapshot
/// shows.
fn with_snapshots() -> Result<Vec<Hunt>, String> {
    let mut hunts = vec![
        whole("commands of snapshots".to_owned(), |_| {
            let runs = snapshots::command_runs();
            of_stats(runs.and_then(|runs| commands::explore_all(runs, Semantics::Adr)))
        }),
        whole("commands of branches".to_owned(), |_| {
            let runs = branches::command_runs();
            of_stats(runs.and_then(|runs| commands::explore_all(runs, Semantics::Adr)))
        }),
    ];
    for base in snapshots::bases()? {
        let bases: Pools = [base].into();
        for (mode, way) in [(DurabilityMode::Journal, ""), (DurabilityMode::Ordered, ORDERED)] {
            hunts.extend(snapshots::workloads().into_iter().map(|ops| Hunt {
                name: format!("{way}snapshots"),
                is_whole: true,
                ..hunt(Snapshotted(mode), &bases, "", Family::Script(ops))
            }));
        }
        let random = Family::Random { runs: 10, ops: 60 };
        hunts.push(hunt(Snapshotted::default(), &bases, "snapshots, ", random));
    }
    Ok(hunts)
}

/// Returns the report of a judge that returns counts, or what it has found.
fn of_stats(explored: Result<Stats, String>) -> Result<Report, String> {
    Ok(match explored {
        Ok(stats) => Report { stats, ..Report::default() },
        Err(what) => report_of(Err(what)),
    })
}

/// The families of SCMFS. They run it by default, with stores that bypass the cache, and with
/// readers that read without a copy. Others run it with stores through mappings, with whole units,
/// and with a busy collector.
fn scmfs() -> Result<Vec<Hunt>, String> {
    let bases = pools(&Scmfs)?;
    let mut hunts = everything(Scmfs, &bases, "");
    let through = pools(&Through)?;
    hunts.extend(
        [Family::Lines, Family::Sequences]
            .map(|family| hunt(Through, &through, "through, ", family)),
    );
    hunts.extend(with_readers(LentScmfs)?);
    hunts.extend(mapped::sequences().into_iter().map(|ops| {
        let name = "mapped, sequences".to_owned();
        Hunt { name, ..hunt(Mapped, &bases, "", Family::Script(ops)) }
    }));
    let with_units: Pools = [units::base()?].into();
    hunts.extend(units::sequences().into_iter().map(|ops| {
        let name = "units, sequences".to_owned();
        Hunt { name, ..hunt(Scmfs, &with_units, "", Family::Script(ops)) }
    }));
    let others = [Family::Exhaustive { length: 1, bases: 2 }, Family::Random { runs: 10, ops: 60 }];
    hunts.extend(others.map(|family| hunt(Mapped, &bases, "mapped, ", family)));
    // These run on the pools of the plain engine: on its own pools, the collector removes what a
    // crash in the middle of a truncation leaves.
    hunts.extend(everything(Collected, &bases, "collected, "));
    Ok(hunts)
}

/// The pools on which workloads start.
type Pools = Rc<[Base]>;

fn pools<T: Target>(target: &T) -> Result<Pools, String> {
    Ok(workload::bases(target)?.into())
}

/// Makes a hunt from a family of a target on the given pools. `way` precedes its name and names the
/// mode in which the engine is used.
fn hunt<T: Target + 'static>(target: T, bases: &Pools, way: &str, family: Family) -> Hunt {
    let bases = bases.clone();
    let limit = match family {
        Family::Deaths => DEATHS,
        Family::Exhaustive { length: 2.., .. } => PAIRS,
        _ => u64::MAX,
    };
    Hunt {
        name: format!("{way}{}", family.name()),
        limit,
        is_whole: match family {
            Family::Sequences => ["", LENT].contains(&way),
            Family::LateDeaths => way.is_empty(),
            _ => false,
        },
        run: Box::new(move |time, distinct| {
            let limit = Some(limit).filter(|limit| *limit < u64::MAX);
            let clock = Clock::Processor;
            let options = CampaignOptions {
                limit,
                time,
                clock,
                stop_early: true,
                ..CampaignOptions::default()
            };
            Ok(campaign::run(&target, &bases, &family, &options, distinct, &|_, _, _| {}))
        }),
    }
}

/// Returns the hunts of a target: formatting, the families that `keepstone crashtest` runs by
/// default, and some more.
fn everything<T: Target + Copy + 'static>(target: T, bases: &Pools, way: &str) -> Vec<Hunt> {
    let length = |length| Family::Exhaustive { length, bases: bases.len() };
    let families = [
        Family::Lines,
        Family::Preemptions,
        Family::WordPreemptions,
        Family::Twice,
        Family::Sequences,
        length(1),
        Family::Random { runs: 10, ops: 60 },
        Family::Fuzz { tries: 1000 },
        Family::Threads { runs: 200 },
        Family::LateDeaths,
        Family::SurvivingProcesses,
        Family::Deaths,
        length(2),
    ];
    let families = families.into_iter().filter(|family| family.suits(&target));
    let families = families.map(|family| hunt(target, bases, way, family));
    [formatting_of(target, bases, way)].into_iter().chain(families).collect()
}

/// The number of operations in which a process dies.
const DEATHS: u64 = 6;

/// The number of sequences of two operations that are tried beyond the quick run.
const PAIRS: u64 = 3000;

/// The prefix of the names of families of the mode `ordered`.
const ORDERED: &str = "ordered, ";

/// The prefix of the names of families with readers that read without a copy.
const LENT: &str = "lent, ";

/// Returns the hunts in which readers read without a copy while the files change.
fn with_readers<T: Target + Copy + 'static>(target: T) -> Result<Vec<Hunt>, String> {
    let bases = pools(&target)?;
    let single = Family::Exhaustive { length: 1, bases: bases.len() };
    let families = [Family::Lines, single, Family::Sequences];
    Ok(families.map(|family| hunt(target, &bases, LENT, family)).into())
}

/// The name of the family that formats.
const FORMATTING: &str = "formatting";

/// Returns the hunt that formats over a pool and over an empty medium, and explores the crashes.
/// `way` is the prefix of its name.
fn formatting_of<T: Target + 'static>(target: T, bases: &Pools, way: &str) -> Hunt {
    let bases = bases.clone();
    let run = move || {
        let mut all = Report::default();
        for base in [&bases[0], &bases[0].blank()] {
            let format = crashsim::format::record(&target, base)?;
            let (stats, wrong) = crashsim::format::explore(&target, base, &format, Semantics::Adr)?;
            add_formatting(&mut all, &stats, wrong);
        }
        Ok(all)
    };
    whole(format!("{way}{FORMATTING}"), move |_| run())
}

/// Makes a hunt from a quick family that always runs to its end.
fn whole(name: String, run: impl Fn(&Distinct) -> Result<Report, String> + 'static) -> Hunt {
    let run = Box::new(move |_, distinct: &Distinct| run(distinct));
    Hunt { name, limit: u64::MAX, is_whole: true, run }
}

/// Makes a report from the result of a family that explores no crash.
fn report_of(explored: Result<(), String>) -> Report {
    let findings: Vec<_> =
        explored.err().map(|what| Finding::new(String::new(), what)).into_iter().collect();
    Report { violations: findings.len() as u64, findings, ..Report::default() }
}

fn add_formatting(report: &mut Report, stats: &Stats, wrong: Vec<String>) {
    let finding = |what| Finding::new(String::new(), what);
    report.stats.add(stats);
    report.violations += wrong.len() as u64;
    report.findings.extend(wrong.into_iter().take(1).map(finding));
}

/// A function that makes the workloads of a family.
type Workloads = fn() -> Result<Vec<blocks::BlockWorkload>, String>;

/// Returns the hunts of block devices. They are quick and run to their ends.
fn block_devices() -> Vec<Hunt> {
    let families: [(&'static str, Workloads); 5] = [
        ("pairs", || Ok(blocks::pairs())),
        ("rounds", || Ok(blocks::rounds())),
        ("random", || Ok(blocks::random(13, 1))),
        ("deaths", blocks::deaths),
        ("threads", || Ok(blocks::schedules(1..3))),
    ];
    let mut hunts: Vec<Hunt> = families
        .into_iter()
        .map(|(name, workloads)| {
            whole(name.to_owned(), move |distinct| {
                let workloads = workloads()?;
                Ok(blocks::run(name, &workloads, Semantics::Adr, distinct, true, &|_| ()))
            })
        })
        .collect();
    hunts.push(whole(FORMATTING.to_owned(), |_| format_devices()));
    hunts
}

/// Crashes the formatting of atomic devices of two sizes, also after a killed formatting.
fn format_devices() -> Result<Report, String> {
    let mut all = Report::default();
    for blocks in [blocks::BLOCKS, blocks::BLOCKS / 2] {
        for record in [blocks::record_format, blocks::record_killed_format] {
            let run = record(blocks::Kind::Atomic(pmbd::Scheme::Nt), blocks)?;
            let wrong = blocks::explore_format(&run, &run.trace, blocks, Semantics::Adr);
            add_formatting(&mut all, &Stats::default(), wrong);
        }
    }
    Ok(all)
}
