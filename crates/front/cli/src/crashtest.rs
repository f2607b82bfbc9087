//! `keepstone crashtest`

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use crashsim::any::AnyTarget;
use crashsim::campaign::{self, CampaignOptions, Family, Replay, Report, Work};
use crashsim::lint::{Lint, lint};
use crashsim::lost;
use crashsim::persist::Semantics;
use crashsim::run::{Base, CrashAt};
use crashsim::schedule::Interleaving;
use crashsim::stats::{Distinct, Stats};
use indicatif::{ProgressBar, ProgressStyle};
use judges::TARGETS;
use judges::blocks;
use serde::Serialize;

use crate::crash_program::{self, ProgramArgs};
use crate::output::{self, wrong_usage};
use crate::score::{self, Scored};

/// `keepstone crashtest`
#[derive(Debug, Args)]
pub struct CrashtestArgs {
    /// What to test: the file systems bpfs or scmfs; bpfs-ordered, BPFS with durability=ordered;
    /// model, the file system for tests, which processes do not share (no --deaths) and which loses
    /// unsynced data (no --schedules); or pmbd, block devices in all write schemes, raw and with
    /// atomic blocks. Of the options below, pmbd uses --ops, --schedules (24 for each 100),
    /// --deaths (all, or 0 for none), --replay, --semantics and --seed.
    /// With --score also cache, the server of a cache.
    #[arg(long, value_parser = PossibleValuesParser::new(TARGETS.into_iter().chain([CACHE])))]
    pub engine: Option<String>,
    /// Longest sequences of operations to explore completely: 1 takes seconds, 2 a quarter of an
    /// hour, 3 a day.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub length: u8,
    /// Also explore this many operations of random runs, 60 in each.
    #[arg(long, default_value_t = 600, value_name = "N")]
    pub ops: u64,
    /// Also try this many sequences that evolve toward states not seen before.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub fuzz: u64,
    /// Also explore this many schedules of two and three threads.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub schedules: u64,
    /// Also let a process die at every step of this many operations, spread evenly over all
    /// operations on every pool (756): while another process continues, and before another mounts
    /// the pool; about ten seconds each. From 6 on, also at the last steps of operations that
    /// commit in each way, and at every step of a sixth as many operations while another process
    /// holds an unlinked file, or in tall trees; minutes each.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub deaths: u64,
    /// Explore this script instead: operations, one per line, as in the line of a violation.
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub workload: Option<PathBuf>,
    /// Reproduce one crash: the line that a violation printed.
    #[arg(long, value_name = "LINE")]
    pub replay: Option<String>,
    /// Write the trace of memory accesses of the workload (or of the replay) to this file.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Crash a trace that --trace wrote, perhaps edited since (for example without one flush), and
    /// lint it. A trace of another program, or a log of valgrind's pmemcheck, names no workload: it
    /// is crashed if --oracle judges its states. It is linted: stores that are never flushed,
    /// redundant flushes and fences, and stores that depend on data which another thread may lose.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "workload", "trace"])]
    pub from_trace: Option<PathBuf>,
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Rules that decide which stores persist: adr (x86), adr-words (x86 without MOVDIR64B), eadr
    /// (caches survive), msync (an ordinary file), epoch (the hardware of BPFS: fences are barriers
    /// and there are no flushes), epoch-torn (the same without the capacitor). The last two are for
    /// file systems, not for --engine pmbd.
    #[arg(long, default_value = "adr", value_name = "RULES", value_parser = semantics)]
    pub semantics: Semantics,
    /// Run at most this many workloads of each family, spread evenly.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Run only part K of N of each family, to spread a long exploration over several nights or
    /// machines.
    #[arg(long, value_name = "K/N", value_parser = part)]
    pub part: Option<(u64, u64)>,
    /// Spend at most this many minutes on each family; its workloads are then spread evenly.
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Test the tester instead: plant the bugs of the catalogue in a build of the source in the
    /// current directory, one at a time, and report which are found, by which test, and how fast.
    /// Of the other options it uses --limit, --threads, --engine (default: all engines), --bug and
    /// --minutes (of processor time, for each bug).
    #[arg(long, conflicts_with_all = ["replay", "workload"])]
    pub score: bool,
    /// Plant only bugs whose names contain this text.
    #[arg(long, value_name = "TEXT", requires = "score")]
    pub bug: Option<String>,
    /// Append the verdict on each bug to this file, and skip bugs that have one there, so that an
    /// interrupted score can continue.
    #[arg(long, value_name = "FILE", requires = "score")]
    pub results: Option<PathBuf>,
    /// Threads that explore; a state takes some 16 bytes of memory until the end.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

/// The name of the server of a cache, among what can be scored.
const CACHE: &str = "cache";

/// The default engine.
const DEFAULT_ENGINE: &str = "bpfs";

/// One in N operations with deaths is also explored with surviving processes, which takes several
/// times as long.
const DEATHS_PER_SURVIVING_PROCESS: u64 = 6;

fn semantics(name: &str) -> Result<Semantics, String> {
    let known = Semantics::ALL.into_iter().find(|s| s.name() == name);
    known.ok_or_else(|| "use adr, adr-words, eadr, msync, epoch or epoch-torn".to_owned())
}

/// Parses K/N as part and number of parts. K counts from 1 on command lines and from 0 in the
/// result.
fn part(text: &str) -> Result<(u64, u64), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let part = numbers.filter(|(k, n): &(u64, u64)| (1..=*n).contains(k));
    part.map(|(k, n)| (k - 1, n)).ok_or_else(|| "write K/N: 1/4 is the first of four".to_owned())
}

/// The report that `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    states_explored: u64,
    violations: u64,
    /// Lines of source whose stores are never flushed.
    unflushed: usize,
    families: Vec<Report>,
}

impl Outcome {
    /// Returns whether all is well. A store that is never flushed, without an argument for it, is a
    /// defect even if no crash has shown it.
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
    if engine == CACHE {
        bail!("the server of a cache is judged by --score only");
    }
    if let Some(file) = &args.from_trace {
        return crash_trace(engine, args, file, json);
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
    let options = CampaignOptions {
        semantics: args.semantics,
        seed: args.seed,
        threads: usize::from(args.threads),
        part: args.part.unwrap_or(CampaignOptions::default().part),
        time: args.minutes.map(|minutes| Duration::from_secs(minutes * 60)),
        ..CampaignOptions::default()
    };
    let mut families = Vec::new();
    for family in families_of(target, args, &bases)? {
        let options = CampaignOptions { limit: limit_of(args, &family), ..options.clone() };
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

/// Crashes a trace if it names its workload, and lints it.
fn crash_trace(engine: &str, args: &CrashtestArgs, file: &Path, json: bool) -> Result<ExitCode> {
    let at = || file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(at)?;
    let trace = crash_program::parse(&text, &args.program).with_context(at)?;
    if args.program.crash.is_some() {
        return crash_program::write_image(trace, &args.program, file, json);
    }
    if args.program.oracle.is_some() {
        let report = crash_program::judge(trace, &args.program, file, args.semantics)?;
        let again = format!("keepstone crashtest --from-trace {}", file.display());
        return conclude(&again, vec![report], json);
    }
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
                "{}: names no workload, so nothing is crashed; --oracle CMD judges its states",
                file.display()
            ));
            Report::of_trace(lint(&trace))
        }
    };
    conclude("keepstone crashtest", vec![report], json)
}

/// Crashes block devices. Their states under epochs are not explored: a device answers a flush
/// with its data durable, and on that hardware no instruction makes it so.
fn run_pmbd(args: &CrashtestArgs, json: bool) -> Result<ExitCode> {
    if args.semantics.has_epochs() {
        return Err(wrong_usage(format!(
            "--semantics {}: block devices are not explored under the rules of epoch hardware, \
             which has no instruction that makes data durable; use adr, adr-words, eadr or msync",
            args.semantics.name()
        )));
    }
    let families = match &args.replay {
        Some(line) => {
            vec![("replay", vec![line.parse().map_err(|e| wrong_usage(format!("--replay: {e}")))?])]
        }
        None => {
            // Six requests on each of eight kinds of device.
            let runs = args.ops.div_ceil(6 * 8) as usize;
            let mut all = vec![
                ("pairs", blocks::pairs()),
                ("rounds", blocks::rounds()),
                ("random", blocks::random(runs, args.seed)),
            ];
            // Three programs on each of eight kinds of device. The scheduler takes long to detect
            // that one thread waits for another, so there are few.
            let seeds = args.seed..args.seed + args.schedules.div_ceil(100);
            all.push(("threads", blocks::schedules(seeds)));
            if args.deaths > 0 {
                all.push(("deaths", blocks::deaths().map_err(|e| anyhow!("{e}"))?));
            }
            all
        }
    };
    let distinct = Distinct::default();
    let run = |(name, workloads): (&str, Vec<blocks::BlockWorkload>)| {
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

/// Prints the results of families. `again` is the command that takes the lines of violations.
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

/// Returns a progress bar.
pub fn bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {percent:>3} % {msg} {eta:>4}")
        .expect("a valid template");
    let bar = ProgressBar::new(0).with_style(style);
    bar.set_prefix(name.to_owned());
    bar
}

/// A timer for notices about progress if no bar is shown.
struct News(Mutex<Instant>);

impl Default for News {
    fn default() -> Self {
        Self(Mutex::new(Instant::now() + NEWS_EVERY))
    }
}

impl News {
    /// Returns whether a notice is due, and restarts the timer if so.
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

/// Interval between notices.
const NEWS_EVERY: Duration = Duration::from_secs(60);

/// Removes the bar. Without a terminal, and so without a bar, prints a summary line.
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
    // Sequences of three take a day on one pool.
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

/// Returns the limit of workloads of a family.
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
    let line: Replay = line.parse().map_err(|e| wrong_usage(format!("--replay: {e}")))?;
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
                // The line of a trace's crash names its own option.
                match f.replay.starts_with("--") {
                    true => say!("  {again} {}", f.replay),
                    false => say!("  {again} --replay '{}'", f.replay),
                }
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

/// Prints what lint finds in the traces. Lists a flush or fence only if it was redundant every
/// time: otherwise the code there cannot know that it is.
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
