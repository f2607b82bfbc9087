//! `run`: the same loads on targets of the user's choice, which this program sets up and removes.
//!
//! Reading order: [`spec`] (the grammar), [`cases`] (the loads), [`place`] (set-up and removal),
//! [`worker`] (the process that works), [`measure`] (rounds), [`durability`], [`results`],
//! [`mod@compare`] (with an earlier run); [`words`], [`page`] and [`figure`] (output).
//! [`mod@scale`] is the command of that name, with [`jobs`] (its work) and [`chart`] (its plots).

mod cases;
mod chart;
mod compare;
mod durability;
mod figure;
mod jobs;
mod measure;
mod page;
mod place;
mod results;
mod scale;
mod spec;
mod words;
mod worker;

pub use results::Report;
pub use scale::{Amounts, Growth, ScaleArgs, scale};
pub use spec::Spec;
pub use words::print;
pub use worker::{WorkerArgs, work};

use crate::fuse::Programs;
use crate::report::Results;
use crate::rounds::Clock;
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use fuse::StopSignals;
use measure::Entry;
use results::Scale;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Exit status if a ratio is worse than that of the earlier run.
pub const EXIT_WORSE: u8 = 3;
/// Exit status if the user has stopped the program, as by the shell's convention.
const EXIT_STOPPED: i32 = 130;
/// Seconds after which a target that does not answer is given up.
const PATIENCE_S: u64 = 120;

/// `run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Targets; the first is the baseline of ratios: dir:DIR, tmpfs, pool, pool:DIR, pool:POOL,
    /// cache:DIR, bdev, loop or device:FILE, with options after commas, and NAME= in front if
    /// reports shall have another name.
    #[arg(required = true, value_name = "TARGET")]
    pub targets: Vec<Spec>,
    /// Only cases whose names contain TEXT. May be given several times.
    #[arg(long = "case", value_name = "TEXT")]
    pub cases: Vec<String>,
    /// Rounds of each case. Default: 31, with --quick 11.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: Option<u16>,
    /// Clock of the measurements; `cpu`, the time of the processor in the program, its calls and
    /// the server, for busy machines. It leaves out waiting for devices.
    #[arg(long, value_enum, default_value_t = Clock::Wall)]
    pub clock: Clock,
    /// Bytes of the file of the data cases. Default: 128M, with --quick 32M.
    #[arg(long, value_name = "BYTES", value_parser = spec::bytes)]
    pub file: Option<u64>,
    /// Files of the cases with names. Default: 10000, with --quick 1000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub names: Option<u32>,
    /// Flush pools in DRAM as if it were persistent memory, to measure the cost of that.
    #[arg(long, conflicts_with = "dram")]
    pub as_pm: bool,
    /// Compare the ratios with those of an earlier run that FILE has from --save.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Percentage by which a ratio may be less than that of the earlier run.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    pub tolerance: f64,
    /// Give a target up that does not answer for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE_S)]
    pub patience: u64,
    #[command(flatten)]
    pub pages: Pages,
    /// The keepstone program. Default: the one that has started this program, the one in its
    /// directory, or in PATH.
    #[arg(long)]
    pub keepstone: Option<PathBuf>,
}

/// Documents that are written of results.
#[derive(Debug, Args)]
pub struct Pages {
    /// Write an HTML page that needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a Markdown document.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write the plot of all cases.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl Pages {
    /// Writes the documents that are asked for.
    pub fn write(&self, results: &Results) -> Result<()> {
        let report = results.targets()?;
        write_page(&self.html, || page::html(&results.origin, report))?;
        write_page(&self.markdown, || words::markdown(&results.origin, report))?;
        write_page(&self.svg, || figure::svg(report))
    }
}

/// Writes a document, if a file is named for it.
fn write_page(path: &Option<PathBuf>, make: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, make()).with_context(|| format!("cannot write {}", path.display()))
}

/// The settings of a run that all its parts need.
pub struct Settings {
    /// The keepstone program.
    keepstone: PathBuf,
    rounds: usize,
    slice: Duration,
    clock: Clock,
    bytes: u64,
    names: usize,
    /// Workers make no files: their orders are jobs of `scale`.
    bare: bool,
    patience: Duration,
    stop: Stop,
}

impl Settings {
    fn slice_us(&self) -> u64 {
        self.slice.as_micros() as u64
    }

    /// Returns what servers are started with.
    fn programs(&self, spec: &Spec) -> Programs {
        let layout = spec.layout.name().to_owned();
        Programs { keepstone: self.keepstone.clone(), layout, peers: PathBuf::new() }
    }
}

/// Whether the user has asked the program to stop.
#[derive(Clone, Debug, Default)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes the signals that end a program. The first sets the flag; the second ends the program
    /// at once. Call it before any thread exists.
    fn on_signals() -> Result<Self> {
        let signals = StopSignals::block()?;
        let stop = Self::default();
        let set = stop.clone();
        std::thread::spawn(move || {
            signals.wait();
            set.0.store(true, Relaxed);
            tell!("stopping: removing what was set up");
            signals.wait();
            std::process::exit(EXIT_STOPPED);
        });
        Ok(stop)
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Finds the keepstone program: as named, the one that has started this program, the one next to
/// it, or that in `PATH`.
fn program(named: Option<&Path>) -> Result<PathBuf> {
    let starter = std::env::var_os("KEEPSTONE_PROGRAM").map(PathBuf::from);
    if let Some(path) = named.or(starter.as_deref()) {
        ensure!(path.exists(), "{}: no such program", path.display());
        return Ok(std::path::absolute(path)?);
    }
    let this = std::env::current_exe()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = this.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let found = dirs.map(|dir| dir.join("keepstone")).find(|program| program.is_file());
    found
        .context("the program `keepstone` is neither next to this one nor in PATH; see --keepstone")
}

/// The amount to measure, unless options name another.
#[derive(Clone, Copy)]
pub struct Amount {
    rounds: usize,
    slice_ms: u64,
    file_mib: u64,
    names: usize,
}

impl Amount {
    /// The default.
    pub const FULL: Self = Self { rounds: 31, slice_ms: 20, file_mib: 128, names: 10_000 };
    /// With --quick.
    pub const QUICK: Self = Self { rounds: 11, slice_ms: 4, file_mib: 32, names: 1000 };
    /// For tests.
    pub const TINY: Self = Self { rounds: 2, slice_ms: 1, file_mib: 2, names: 20 };
}

/// Measures the targets.
pub fn run(args: &RunArgs, amount: Amount) -> Result<Report> {
    let stop = Stop::on_signals()?;
    let settings = Settings {
        keepstone: program(args.keepstone.as_deref())?,
        rounds: args.rounds.map_or(amount.rounds, usize::from),
        slice: Duration::from_millis(amount.slice_ms),
        clock: args.clock,
        bytes: args
            .file
            .map_or(amount.file_mib << 20, |bytes| bytes.max(1) >> 20 << 20)
            .max(1 << 20),
        names: args.names.map_or(amount.names, |names| names as usize),
        bare: false,
        patience: Duration::from_secs(args.patience),
        stop,
    };
    let wanted = |name: &str| args.cases.is_empty() || args.cases.iter().any(|c| name.contains(c));
    let cases: Vec<_> = cases::all().into_iter().filter(|case| wanted(&case.name())).collect();
    if cases.is_empty() {
        bail!(WrongUsage(format!("--case {}: no case has such a name", args.cases.join(", "))));
    }
    let specs = with_repeat(&args.targets)?;
    let mut entries = Vec::new();
    for (number, spec) in specs.iter().enumerate() {
        let entry = Entry::new(spec, number == 1, &settings);
        stopped(&settings)?;
        if let Some(why) = &entry.facts.error {
            tell!("{}: {why}", entry.facts.name);
        }
        entries.push(entry);
    }
    let mut results = Vec::new();
    for case in cases {
        results.push(measure::case(case, &mut entries, &settings));
        stopped(&settings)?;
    }
    Ok(Report {
        settings: Scale {
            rounds: settings.rounds,
            slice_ms: settings.slice.as_secs_f64() * 1e3,
            file_bytes: settings.bytes,
            names: settings.names,
            dram_as_pm: args.as_pm,
            cpu_time: args.clock == Clock::Cpu,
        },
        targets: entries.iter().map(|entry| entry.facts.clone()).collect(),
        cases: results,
    })
}

/// Fails if the user has asked to stop.
fn stopped(settings: &Settings) -> Result<()> {
    if settings.stop.is_set() {
        bail!(Stopped);
    }
    Ok(())
}

/// The error of a command line that the parser accepts.
#[derive(Debug)]
pub struct WrongUsage(String);

impl std::fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

impl WrongUsage {
    /// The exit status, as of the parser.
    pub const EXIT: u8 = 2;
}

/// The error of a run that the user has stopped.
#[derive(Debug)]
pub struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped; what was set up is removed")
    }
}

impl std::error::Error for Stopped {}

impl Stopped {
    /// The exit status.
    pub const EXIT: u8 = EXIT_STOPPED as u8;
}

/// Returns the targets with the first one twice, whose ratio to itself is the noise.
fn with_repeat(targets: &[Spec]) -> Result<Vec<Spec>> {
    let again = Spec { name: format!("{} again", targets[0].name), ..targets[0].clone() };
    let mut specs = targets.to_vec();
    specs.insert(1, again);
    for (i, spec) in specs.iter().enumerate() {
        let is_twice = specs[..i].iter().any(|other| other.name == spec.name);
        if is_twice {
            let name = &spec.name;
            bail!(WrongUsage(format!("{name}: two targets of this name; write NAME={name}")));
        }
    }
    Ok(specs)
}

/// Compares with the earlier run that was asked for; returns whether a ratio is worse.
pub fn compare(args: &RunArgs, report: &Report) -> Result<bool> {
    let Some(path) = &args.baseline else { return Ok(false) };
    let earlier = saved(path)?;
    let changes = compare::changes(report, earlier.targets()?, args.tolerance / 100.0)
        .with_context(|| format!("cannot compare with {}", path.display()))?;
    tell_part!("{}", words::changes(&changes));
    Ok(changes.iter().any(|change| change.worse))
}

/// Reads the results that a run has saved.
pub fn saved(path: &Path) -> Result<Results> {
    let json = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let results: Results = serde_json::from_slice(&json)
        .with_context(|| format!("{}: not saved by `keepstone bench`", path.display()))?;
    results.targets().with_context(|| path.display().to_string())?;
    Ok(results)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::statistics::{Interval, Latency};
    use durability::{Class, Durability, Promise};
    use results::{CaseResult, Facts, Numbers, Row};

    /// Makes the report of one case: targets with their speeds, and the spread of these.
    pub fn report(speeds: &[(&str, f64, f64)]) -> Report {
        let (first, _, noise) = speeds[0];
        let again = format!("{first} again");
        let mut all = speeds.to_vec();
        all.insert(1, (&again, 1.0, noise));
        let facts = |(i, (name, ..)): (usize, &(&str, f64, f64))| Facts {
            name: (*name).to_owned(),
            is_repeat: i == 1,
            durability: Some(Durability {
                promise: Promise::OnSync,
                medium: "ext4 & <disk>".to_owned(),
            }),
            error: None,
        };
        let row = |(i, (name, speed, spread)): (usize, &(&str, f64, f64))| {
            let around =
                |median: f64, by: f64| Interval { low: median - by, median, high: median + by };
            Row {
                target: (*name).to_owned(),
                durability: Class::Durable,
                error: None,
                numbers: Some(Numbers {
                    ns: around(1e4 / speed, 100.0),
                    cpu_ns: 5e3,
                    latency: Some(Latency {
                        samples: 2000,
                        p50_ns: 2_000,
                        p99_ns: 7_000,
                        p999_ns: 90_000,
                        max_ns: 100_000,
                    }),
                    speed: (i > 0).then(|| around(*speed, *spread)),
                    differs: i > 1,
                    in_process: 2.0,
                    by_kernel: 0.0,
                    requests: 1.0,
                }),
            }
        };
        Report {
            settings: Scale {
                rounds: 3,
                slice_ms: 1.0,
                file_bytes: 1 << 20,
                names: 10,
                dram_as_pm: false,
                cpu_time: false,
            },
            targets: all.iter().enumerate().map(facts).collect(),
            cases: vec![CaseResult {
                name: "write+fsync/4K".to_owned(),
                what: "pwrite at random, then fdatasync".to_owned(),
                bytes: 4096,
                steal: 0.01,
                rows: all.iter().enumerate().map(row).collect(),
            }],
        }
    }

    #[test]
    fn the_first_target_is_measured_twice() {
        let parse = |text: &str| text.parse::<Spec>().unwrap();
        let names = |targets: &[Spec]| {
            with_repeat(targets).map(|specs| specs.into_iter().map(|s| s.name).collect::<Vec<_>>())
        };
        let specs = names(&[parse("tmpfs"), parse("pool")]).unwrap();
        assert_eq!(specs, ["tmpfs", "tmpfs again", "pool"]);
        assert!(names(&[parse("tmpfs"), parse("tmpfs")]).is_err());
        assert!(names(&[parse("tmpfs"), parse("b=tmpfs")]).is_ok());
    }
}
