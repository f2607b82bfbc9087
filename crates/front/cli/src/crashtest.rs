//! `keepstone crashtest`

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use crashsim::any::AnyTarget;
use crashsim::campaign::{self, Family, Options, Replay, Report, Work};
use crashsim::lint::{Lint, lint};
use crashsim::lost;
use crashsim::persist::Semantics;
use crashsim::run::{Base, CrashAt};
use crashsim::schedule::Interleaving;
use crashsim::stats::{Distinct, Stats};
use crashsim::trace::Trace;
use indicatif::{ProgressBar, ProgressStyle};
use judges::blocks;
use judges::judge::ENGINES;
use serde::Serialize;

use crate::output;
use crate::score::{self, Scored};

/// `keepstone crashtest`
#[derive(Debug, Args)]
pub struct CrashtestArgs {
    /// What to test: bpfs or scmfs, the file systems; model, the one for tests, which processes do not share (no --deaths) and
    /// which loses what was not synced (no --schedules); or pmbd, block devices in all write schemes, raw and with atomic
    /// blocks: of the options below it heeds --ops, --schedules (24 for each 100), --deaths (all, or 0
    /// for none), --replay, --semantics and --seed.
    #[arg(long, value_parser = ENGINES)]
    pub engine: Option<String>,
    /// Longest sequences of operations to explore completely: 1 takes seconds, 2 a quarter of an hour,
    /// 3 a day.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub length: u8,
    /// Also explore this many operations of random runs, 60 in each.
    #[arg(long, default_value_t = 600, value_name = "N")]
    pub ops: u64,
    /// Also try this many sequences that evolve toward what was not seen before.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub fuzz: u64,
    /// Also explore this many schedules of two and three threads.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub schedules: u64,
    /// Also let a process die at every step of this many operations, spread evenly over all of them on
    /// every pool (756), while another goes on, and before another mounts it; some ten seconds each. From 6 on also at
    /// the last steps of operations that commit in each way, and of a sixth as many beside a process that holds a file
    /// without a name, or in tall trees; minutes each.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub deaths: u64,
    /// Explore this script instead: operations, one a line, as in the line of a violation.
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub workload: Option<PathBuf>,
    /// Show one crash again: the line that a violation printed.
    #[arg(long, value_name = "LINE")]
    pub replay: Option<String>,
    /// Write what the workload (or the replay's) did to memory, to this file.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Crash what --trace wrote, perhaps changed since (a flush left out, say), and lint it. Of a trace that does not name its
    /// workload, as other programs record them, only lint is printed: stores that are never flushed, flushes and fences in
    /// vain, and stores that lean on what another thread may lose.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "workload", "trace"])]
    pub from_trace: Option<PathBuf>,
    /// What decides which stores persist: adr (x86 as it is), adr-words (without MOVDIR64B), eadr (caches
    /// survive), msync (an ordinary file).
    #[arg(long, default_value = "adr", value_name = "RULES", value_parser = semantics)]
    pub semantics: Semantics,
    /// At most this many workloads of each family, spread evenly.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Of these, only part K of N of each family: to spread a long exploration over several nights or machines.
    #[arg(long, value_name = "K/N", value_parser = part)]
    pub part: Option<(u64, u64)>,
    /// At most this many minutes for each family; its workloads are then spread evenly.
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Test the tester instead: plant the bugs of the catalogue in a build of the source in the current directory, one at
    /// a time, and say which are found, by what, and how fast; of the other options it heeds --limit, --threads,
    /// --engine (all of them without it), --bug and --minutes (of processor time, for each bug).
    #[arg(long, conflicts_with_all = ["replay", "workload"])]
    pub score: bool,
    /// Of the bugs, only those whose names contain this text.
    #[arg(long, value_name = "TEXT", requires = "score")]
    pub bug: Option<String>,
    /// Append what became of each bug to this file, and do not judge again those that are in it: so a score that was
    /// interrupted goes on.
    #[arg(long, value_name = "FILE", requires = "score")]
    pub results: Option<PathBuf>,
    /// Threads that explore; a state takes some 16 bytes of memory until the end.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

/// The engine that is tested where none is named.
const DEFAULT_ENGINE: &str = "bpfs";

/// Of so many operations with deaths one is also explored beside surviving processes, which takes several times as long.
const DEATHS_PER_SURVIVING_PROCESS: u64 = 6;

fn semantics(name: &str) -> Result<Semantics, String> {
    let known = Semantics::ALL.into_iter().find(|s| s.name() == name);
    known.ok_or_else(|| "use adr, adr-words, eadr or msync".to_owned())
}

/// Which of how many parts, counted from 1 on command lines.
fn part(text: &str) -> Result<(u64, u64), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let part = numbers.filter(|(k, n): &(u64, u64)| (1..=*n).contains(k));
    part.map(|(k, n)| (k - 1, n)).ok_or_else(|| "write K/N: 1/4 is the first of four".to_owned())
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    states_explored: u64,
    violations: u64,
    /// Lines of source that store what is never flushed.
    unflushed: usize,
    families: Vec<Report>,
}

impl Outcome {
    /// What is never flushed and not argued for is wrong even where no crash has shown it.
    fn is_sound(&self) -> bool {
        self.violations == 0 && self.unflushed == 0
    }
}

pub fn run(args: &CrashtestArgs, json: bool) -> Result<ExitCode> {
    if args.score {
        let scored = Scored {
            engine: args.engine.clone(),
            limit: args.limit,
            time: args.minutes.map(|minutes| Duration::from_secs(minutes * 60)),
            threads: args.threads,
            named: args.bug.clone(),
            results: args.results.clone(),
        };
        return score::run(&scored, json);
    }
    campaign::prepare_process();
    let engine = args.engine.as_deref().unwrap_or(DEFAULT_ENGINE);
    if let Some(file) = &args.from_trace {
        return crash_trace(engine, file, json);
    }
    match judges::file_system(engine) {
        Some(target) => run_file_system(target, args, json),
        None => run_pmbd(args, json),
    }
}

/// Crashes a file system.
fn run_file_system(target: &dyn AnyTarget, args: &CrashtestArgs, json: bool) -> Result<ExitCode> {
    let bases = target.bases().map_err(|e| anyhow!("{e}"))?;
    if let Some(line) = &args.replay {
        return replay(target, args, &bases, line, json);
    }
    let distinct = Distinct::default();
    let options = Options {
        semantics: args.semantics,
        seed: args.seed,
        threads: usize::from(args.threads),
        part: args.part.unwrap_or(Options::default().part),
        time: args.minutes.map(|minutes| Duration::from_secs(minutes * 60)),
        ..Options::default()
    };
    let mut families = Vec::new();
    for family in families_of(target, args, &bases)? {
        let options = Options { limit: limit_of(args, &family), ..options.clone() };
        let bar = bar(&family.name());
        let news = News::default();
        let report = target.run(&bases, &family, &options, &distinct, &|done, of, states| {
            bar.set_length(of);
            bar.set_position(done);
            bar.set_message(format!("{states} states"));
            if bar.is_hidden() && news.are_due() {
                let name = family.name();
                output::notice(format_args!("{name}: {done} of {of} workloads, {states} states"));
            }
        });
        finish(&bar, &report);
        families.push(report);
    }
    let again = match &args.engine {
        None => "keepstone crashtest".to_owned(),
        Some(engine) => format!("keepstone crashtest --engine {engine}"),
    };
    conclude(&again, families, json)
}

/// Crashes what a trace says, or shows what it says without a crash.
fn crash_trace(engine: &str, file: &Path, json: bool) -> Result<ExitCode> {
    let at = || file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(at)?;
    let trace: Trace = text.parse().with_context(at)?;
    let line = Replay::of_trace(&text).map_err(|e| anyhow!("{}: {e}", file.display()))?;
    let report = match (line, judges::file_system(engine)) {
        (Some(line), Some(target)) => {
            let bases = target.bases().map_err(|e| anyhow!("{e}"))?;
            target
                .explore_trace(&bases, &line, trace)
                .map_err(|e| anyhow!("{}: {e}", file.display()))?
        }
        _ => {
            output::notice(format_args!(
                "{}: names no workload, so nothing is crashed",
                file.display()
            ));
            Report::of_trace(lint(&trace))
        }
    };
    conclude("keepstone crashtest", vec![report], json)
}

/// Crashes block devices.
fn run_pmbd(args: &CrashtestArgs, json: bool) -> Result<ExitCode> {
    let families = match &args.replay {
        Some(line) => {
            vec![("replay", vec![line.parse().map_err(|e| anyhow!("--replay: {e}"))?])]
        }
        None => {
            // Six requests on each of eight kinds.
            let runs = args.ops.div_ceil(6 * 8) as usize;
            let mut all = vec![
                ("pairs", blocks::pairs()),
                ("rounds", blocks::rounds()),
                ("random", blocks::random(runs, args.seed)),
            ];
            // Three programs on each of eight kinds; where one waits for another, the scheduler takes long to see it.
            let seeds = args.seed..args.seed + args.schedules.div_ceil(100);
            all.push(("threads", blocks::schedules(seeds)));
            if args.deaths > 0 {
                all.push(("deaths", blocks::deaths().map_err(|e| anyhow!("{e}"))?));
            }
            all
        }
    };
    let distinct = Distinct::default();
    let run = |(name, workloads): (&str, Vec<blocks::Workload>)| {
        let bar = bar(name);
        bar.set_length(workloads.len() as u64);
        let progress = |done| bar.set_position(done);
        let report = blocks::run(name, &workloads, args.semantics, &distinct, false, &progress);
        finish(&bar, &report);
        report
    };
    let again = format!("keepstone crashtest --engine pmbd --semantics {}", args.semantics.name());
    conclude(&again, families.into_iter().map(run).collect(), json)
}

/// Prints what families came to; `again` is the command that takes the lines of violations.
fn conclude(again: &str, families: Vec<Report>, json: bool) -> Result<ExitCode> {
    let outcome = outcome(families);
    if json {
        output::json(&outcome)?;
    } else {
        print(again, &outcome);
    }
    Ok(if outcome.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn outcome(families: Vec<Report>) -> Outcome {
    let unflushed: BTreeSet<_> = families.iter().flat_map(|r| r.lint.unflushed.keys()).collect();
    Outcome {
        states_explored: families.iter().map(|r| r.stats.distinct).sum(),
        violations: families.iter().map(|r| r.violations).sum(),
        unflushed: unflushed.len(),
        families,
    }
}

/// A bar that shows how far something is.
pub fn bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {percent:>3} % {msg} {eta:>4}")
        .expect("a valid template");
    let bar = ProgressBar::new(0).with_style(style);
    bar.set_prefix(name.to_owned());
    bar
}

/// What is told of work under way where no bar is shown, now and then.
struct News(Mutex<Instant>);

impl Default for News {
    fn default() -> Self {
        Self(Mutex::new(Instant::now() + NEWS_EVERY))
    }
}

impl News {
    /// Whether it is time to tell; then not again for a while.
    fn are_due(&self) -> bool {
        let now = Instant::now();
        let Ok(mut due) = self.0.try_lock() else { return false };
        let are_due = now >= *due;
        if are_due {
            *due = now + NEWS_EVERY;
        }
        are_due
    }
}

/// How often that is.
const NEWS_EVERY: Duration = Duration::from_secs(60);

/// Takes the bar away. Where none is shown, as there is no terminal, a line tells what has been done.
fn finish(bar: &ProgressBar, report: &Report) {
    bar.finish_and_clear();
    if bar.is_hidden() {
        let Report { family, workloads, violations, seconds, .. } = report;
        output::notice(format_args!(
            "{family}: {workloads} workloads, {violations} violations, {seconds:.0} s"
        ));
    }
}

fn families_of(
    target: &dyn AnyTarget,
    args: &CrashtestArgs,
    bases: &[Base],
) -> Result<Vec<Family>> {
    if let Some(file) = &args.workload {
        let at = || file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(at)?;
        let ops = vfs::script::parse(&text).with_context(at)?;
        if let Some(to) = &args.trace {
            let recorded = target.record(&bases[0], &ops, args.semantics);
            let recorded = recorded.map_err(|e| anyhow!("{e}"))?;
            let line = Replay {
                semantics: args.semantics,
                base: bases[0].name.to_owned(),
                at: CrashAt { op: 0, nth: 0 },
                state: "all-but:".to_owned(),
                work: Work::Sequence(ops.clone()),
            };
            std::fs::write(to, line.trace(&recorded.trace))
                .with_context(|| to.display().to_string())?;
        }
        return Ok(vec![Family::Script(ops)]);
    }
    // Of triples one pool takes a day.
    let pools = |length| if length < 3 { bases.len() } else { 1 };
    let lengths = 1..=usize::from(args.length);
    let mut families: Vec<Family> =
        lengths.map(|length| Family::Exhaustive { length, bases: pools(length) }).collect();
    if args.length > 0 {
        families.extend([Family::Lines, Family::Sequences, Family::Twice]);
    }
    const RUN: usize = 60;
    if args.ops > 0 {
        families.push(Family::Random { runs: args.ops.div_ceil(RUN as u64), ops: RUN });
    }
    if args.fuzz > 0 {
        families.push(Family::Fuzz { tries: args.fuzz });
    }
    if args.schedules > 0 {
        families.push(Family::Threads { runs: args.schedules });
        families.extend([Family::Preemptions, Family::WordPreemptions]);
    }
    if args.deaths > 0 {
        families.push(Family::Deaths);
    }
    if args.deaths >= DEATHS_PER_SURVIVING_PROCESS {
        families.extend([Family::LateDeaths, Family::SurvivingProcesses]);
    }
    families.retain(|family| target.is_suited(family));
    Ok(families)
}

/// At most so many workloads of a family.
fn limit_of(args: &CrashtestArgs, family: &Family) -> Option<u64> {
    let at_most = |n: u64| Some(args.limit.map_or(n, |limit| limit.min(n)));
    match family {
        Family::Deaths => at_most(args.deaths),
        Family::SurvivingProcesses => at_most(args.deaths / DEATHS_PER_SURVIVING_PROCESS),
        _ => args.limit,
    }
}

fn replay(
    target: &dyn AnyTarget,
    args: &CrashtestArgs,
    bases: &[Base],
    line: &str,
    json: bool,
) -> Result<ExitCode> {
    let line: Replay = line.parse().map_err(|e| anyhow!("--replay: {e}"))?;
    let (findings, wrong, trace) =
        target.replay(bases, &line).map_err(|e| anyhow!("--replay: {e}"))?;
    if let Some(to) = &args.trace {
        std::fs::write(to, line.trace(&trace)).with_context(|| to.display().to_string())?;
    }
    if json {
        output::json(&findings)?;
    } else {
        for f in &findings {
            say!("{}", f.what);
            f.detail.iter().for_each(|d| say!("  {d}"));
        }
    }
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(again: &str, outcome: &Outcome) {
    for r in &outcome.families {
        for f in &r.findings {
            say!("VIOLATION {}", f.what);
            f.detail.iter().for_each(|d| say!("  {d}"));
            lost::sites(&f.lost).iter().for_each(|site| say!("  lost: what {site} stored"));
            if f.times > 1 {
                say!("  {} verdicts are this one", f.times);
            }
            if !f.replay.is_empty() {
                say!("  {again} --replay '{}'", f.replay);
            }
        }
    }
    say!(
        "{:24} {:>9} {:>7} {:>11} {:>11} {:>10} {:>10} {:>7} {:>8}",
        "",
        "workloads",
        "points",
        "states",
        "distinct",
        "recovered",
        "violations",
        "skipped",
        "seconds"
    );
    for r in &outcome.families {
        let Stats { points, enumerated, distinct, recovered, not_run, .. } = r.stats;
        say!(
            "{:24} {:>9} {points:>7} {enumerated:>11} {distinct:>11} {recovered:>10} {:>10} {:>7} {:>8.1}",
            r.family,
            r.workloads,
            r.violations,
            not_run,
            r.seconds
        );
        if r.workloads_skipped > 0 {
            say!("{:24} {:>9} workloads left out by a limit or a part", "", r.workloads_skipped);
        }
        if r.stats.cut_points > 0 {
            say!(
                "{:24} {:>9} crash points not explored completely; up to {:.1} % of one unknown",
                "",
                r.stats.cut_points,
                r.stats.unknown_share_max * 100.0
            );
        }
    }
    let mut interleaving = Interleaving::default();
    let mut lint = Lint::default();
    for r in &outcome.families {
        interleaving.add(&r.interleaving);
        lint.add(r.lint.clone());
    }
    if interleaving.steps > 0 {
        let Interleaving { steps, switches, waits, .. } = interleaving;
        say!("threads: {steps} steps, {switches} changes of thread, {waits} of them at a lock");
    }
    print_lint(&lint);
    say!(
        "{} distinct crash states explored, {} violations, {} lines that store what is never flushed",
        outcome.states_explored,
        outcome.violations,
        outcome.unflushed
    );
}

/// What the traces show without a crash. Flushes and fences are listed where they were always in
/// vain: elsewhere who makes them cannot know.
fn print_lint(lint: &Lint) {
    let mut rows: Vec<String> = Vec::new();
    for (site, n) in &lint.unflushed {
        rows.push(format!("store never flushed{n:>12}   {site}"));
    }
    for (name, sites) in [("flush in vain", &lint.clean), ("fence in vain", &lint.idle)] {
        let always = sites.iter().filter(|(_, (n, of))| n == of);
        rows.extend(always.map(|(site, (n, _))| format!("{name:19}{n:>12}   {site}")));
    }
    let mut harmless: BTreeMap<&str, u64> = BTreeMap::new();
    for l in &lint.leaning {
        match l.harmless {
            Some(why) => *harmless.entry(why).or_default() += l.times,
            None => rows.push(format!(
                "leans on another   {:>12}   {} keeps, {} having read what {} may lose: {}",
                l.times, l.kept, l.load, l.lost, l.what
            )),
        }
    }
    let of_no_harm = |(why, n)| format!("leans, harmless    {n:>12}   {why}");
    rows.extend(harmless.into_iter().map(of_no_harm));
    if !rows.is_empty() {
        say!("without a crash{:>16}", "times");
        rows.iter().for_each(|row| say!("{row}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_1() {
        assert_eq!((part("1/4"), part("4/4")), (Ok((0, 4)), Ok((3, 4))));
        for wrong in ["0/4", "5/4", "1/0", "1", "one/2"] {
            assert!(part(wrong).unwrap_err().contains("K/N"), "{wrong}");
        }
    }

    #[test]
    fn a_store_that_is_never_flushed_fails_without_a_violation() {
        let mut reports = [Report::default(), Report::default()];
        assert!(outcome(reports.to_vec()).is_sound());
        for report in &mut reports {
            report.lint.unflushed.insert("file.rs:7".into(), 3);
        }
        let outcome = outcome(reports.to_vec());
        assert_eq!((outcome.violations, outcome.unflushed), (0, 1));
        assert!(!outcome.is_sound());
    }
}
