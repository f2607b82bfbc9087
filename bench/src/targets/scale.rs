//! `scale`: how costs grow with the number of files, their sizes, threads and processes, and the
//! sizes of pools.

use super::chart;
use super::jobs::Job;
use super::place::{Place, Target, new_dir};
use super::spec::{self, Kind, Spec};
use super::worker::{Answer, Order};
use super::{Settings, Stop, program, stopped, write_page};
use crate::engine::size;
use crate::fuse::{Server, Servers};
use crate::machine::Origin;
use crate::ramdisk::run as command;
use crate::rounds::Clock;
use crate::statistics::median;
use crate::tables::Table;
use crate::text::time;
use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Mounts of a pool, whose median time counts.
const MOUNTS: usize = 3;
/// Seconds after which a target that does not answer is given up.
const PATIENCE_S: u64 = 900;
/// Bytes of a pool for each of many files, which are empty.
const BYTES_PER_FILE: u64 = 1 << 10;

/// `scale`
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Targets, as of `run`, except devices.
    #[arg(required = true, value_name = "TARGET")]
    pub targets: Vec<Spec>,
    /// Only parts whose names contain TEXT: files, sizes, threads, processes, pools.
    #[arg(long = "part", value_name = "TEXT")]
    pub parts: Vec<String>,
    /// Most files in a directory. Default: 100000, with --quick 10000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1_000_001))]
    pub files: Option<u32>,
    /// Largest file that is written. Default: 1G, with --quick 64M.
    #[arg(long, value_name = "BYTES", value_parser = spec::bytes)]
    pub file: Option<u64>,
    /// Largest sparse file. Default: 64G, with --quick 1G.
    #[arg(long, value_name = "BYTES", value_parser = spec::bytes)]
    pub sparse: Option<u64>,
    /// Most threads and processes. Default: 64, with --quick 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub users: Option<u8>,
    /// Largest pool. Default: 16T, with --quick 256G.
    #[arg(long, value_name = "BYTES", value_parser = spec::bytes)]
    pub pool: Option<u64>,
    /// Flush pools in DRAM as if it were persistent memory, to measure the cost of that.
    #[arg(long, conflicts_with = "dram")]
    pub as_pm: bool,
    /// Give a target up that does not answer for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE_S)]
    pub patience: u64,
    /// Write an HTML page with plots that needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a Markdown document.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// The keepstone program. Default: as of `run`.
    #[arg(long)]
    pub keepstone: Option<PathBuf>,
}

impl ScaleArgs {
    /// Writes the documents that are asked for.
    pub fn write(&self, origin: &Origin, growth: &Growth) -> Result<()> {
        write_page(&self.html, || chart::html(origin, growth))?;
        write_page(&self.markdown, || {
            let text = crate::tables::markdown(&growth.tables());
            format!("# Growth, by `keepstone bench scale`\n\n{text}")
        })
    }
}

/// The amounts to measure, unless options name others.
#[derive(Clone, Copy)]
pub struct Amounts {
    files: u64,
    file: u64,
    sparse: u64,
    users: u64,
    pool: u64,
    ms: u64,
}

impl Amounts {
    /// The default.
    pub const FULL: Self = Self {
        files: 100_000,
        file: 1 << 30,
        sparse: 64 << 30,
        users: 64,
        pool: 16 << 40,
        ms: 500,
    };
    /// With --quick.
    pub const QUICK: Self =
        Self { files: 10_000, file: 64 << 20, sparse: 1 << 30, users: 8, pool: 256 << 30, ms: 100 };
    /// For tests.
    pub const TINY: Self =
        Self { files: 1000, file: 1 << 20, sparse: 16 << 20, users: 2, pool: 1 << 30, ms: 5 };
}

/// The results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Growth {
    /// The points of all plots.
    pub points: Vec<GrowthPoint>,
    /// Parts that failed: target, part and reason.
    pub failures: Vec<(String, String, String)>,
}

/// A point of a plot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrowthPoint {
    /// The part: `files`, `sizes`, `threads`, `processes` or `pools`.
    pub part: String,
    /// The kind of cost.
    pub what: String,
    /// The unit of the value.
    pub unit: Unit,
    /// The target.
    pub target: String,
    /// The number of files, threads or processes, or a size in bytes.
    pub x: f64,
    /// The value.
    pub y: f64,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds of an operation, or of the whole.
    Ns,
    /// Operations a second, of all users.
    OpsPerSecond,
    /// Bytes.
    Bytes,
}

impl Unit {
    /// Formats a value.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Ns if value >= 1e9 => format!("{:.2} s", value / 1e9),
            Self::Ns => time(value),
            Self::OpsPerSecond if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
            Self::OpsPerSecond => format!("{:.1} k/s", value / 1e3),
            Self::Bytes if value >= 1e6 => format!("{:.1} MB", value / 1e6),
            Self::Bytes => format!("{value:.0} B"),
        }
    }
}

impl GrowthPoint {
    /// Formats the place on the axis.
    pub fn place(&self) -> String {
        match self.part.as_str() {
            "sizes" | "pools" => bytes(self.x),
            _ => format!("{:.0}", self.x),
        }
    }
}

/// Formats a power of two of bytes.
pub fn bytes(value: f64) -> String {
    match value as u64 {
        b if b >= 1 << 40 => format!("{}T", b >> 40),
        b if b >= 1 << 30 => format!("{}G", b >> 30),
        b => size(b as usize),
    }
}

impl Growth {
    /// Returns the plots, each by its part and its kind of cost, in the order of the points.
    pub fn plots(&self) -> Vec<(&str, &str)> {
        let mut plots: Vec<(&str, &str)> = Vec::new();
        for point in &self.points {
            let plot = (point.part.as_str(), point.what.as_str());
            if !plots.contains(&plot) {
                plots.push(plot);
            }
        }
        plots
    }

    /// Returns the points of a plot.
    pub fn of(&self, (part, what): (&str, &str)) -> Vec<&GrowthPoint> {
        self.points.iter().filter(|point| point.part == part && point.what == what).collect()
    }

    /// Makes a table for each plot, and one of failures.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for plot in self.plots() {
            let points = self.of(plot);
            let mut places: Vec<(f64, String)> = points.iter().map(|p| (p.x, p.place())).collect();
            places.sort_by(|a, b| a.0.total_cmp(&b.0));
            places.dedup();
            let mut head = vec!["target"];
            head.extend(places.iter().map(|(_, name)| name.as_str()));
            let mut table = Table::new(format!("{}: {}", plot.0, plot.1), &head);
            let mut targets: Vec<&str> = points.iter().map(|point| point.target.as_str()).collect();
            targets.dedup();
            for target in targets {
                let mut row = vec![target.to_owned()];
                row.extend(places.iter().map(|(x, _)| {
                    let found = points.iter().find(|p| p.target == target && p.x == *x);
                    found.map_or_else(|| "–".to_owned(), |point| point.unit.show(point.y))
                }));
                table.add(row);
            }
            tables.push(table);
        }
        if !self.failures.is_empty() {
            let mut table = Table::new("Failed", &["target", "part", "reason"]);
            for (target, part, why) in &self.failures {
                table.add(vec![target.clone(), part.clone(), why.clone()]);
            }
            tables.push(table);
        }
        tables
    }
}

/// Returns `first`, and its products with powers of `factor`, up to `last`, which is among them.
fn steps(first: u64, factor: u64, last: u64) -> Vec<u64> {
    let all = std::iter::successors(Some(first), |n| n.checked_mul(factor));
    let mut steps: Vec<u64> = all.take_while(|n| *n < last).collect();
    steps.push(last);
    steps
}

/// Measures the targets.
pub fn scale(args: &ScaleArgs, amounts: Amounts) -> Result<Growth> {
    let settings = Settings {
        keepstone: program(args.keepstone.as_deref())?,
        rounds: 1,
        slice: Duration::ZERO,
        clock: Clock::Wall,
        bytes: 0,
        names: 0,
        bare: true,
        patience: Duration::from_secs(args.patience),
        stop: Stop::on_signals()?,
    };
    let whole = |bytes: u64| (bytes >> 20 << 20).max(1 << 20);
    let amounts = Amounts {
        files: args.files.map_or(amounts.files, u64::from),
        file: whole(args.file.unwrap_or(amounts.file)),
        sparse: whole(args.sparse.unwrap_or(amounts.sparse)),
        users: args.users.map_or(amounts.users, u64::from),
        pool: args.pool.unwrap_or(amounts.pool),
        ms: amounts.ms,
    };
    let mut growth = Growth::default();
    let parts: [(&str, Part); 5] = [
        ("files", files),
        ("sizes", sizes),
        ("threads", threads),
        ("processes", processes),
        ("pools", pools),
    ];
    for (part, measure) in parts {
        if !args.parts.is_empty() && !args.parts.iter().any(|text| part.contains(text)) {
            continue;
        }
        for spec in &args.targets {
            let mut run =
                PartRun { part, spec, settings: &settings, amounts, points: &mut growth.points };
            let done = measure(&mut run);
            stopped(&settings)?;
            if let Err(err) = done {
                tell!("{}, {part}: {err:#}", spec.name);
                growth.failures.push((spec.name.clone(), part.to_owned(), format!("{err:#}")));
            }
        }
    }
    Ok(growth)
}

/// Measures a part on a target.
type Part = fn(&mut PartRun<'_>) -> Result<()>;

/// A part on a target, and where its points go.
struct PartRun<'r> {
    part: &'static str,
    spec: &'r Spec,
    settings: &'r Settings,
    amounts: Amounts,
    points: &'r mut Vec<GrowthPoint>,
}

impl PartRun<'_> {
    fn add(&mut self, x: u64, what: impl Into<String>, unit: Unit, y: f64) {
        let (part, target) = (self.part.to_owned(), self.spec.name.clone());
        self.points.push(GrowthPoint { part, what: what.into(), unit, target, x: x as f64, y });
    }

    /// Lets the target do a job; adds its results.
    fn job(&mut self, target: &mut Target, x: u64, unit: Unit, job: Job) -> Result<()> {
        tell!("{}, {}: {}", self.spec.name, self.part, x);
        match target.ask(&Order::Scale(job), self.settings)? {
            Answer::Scaled(results) => {
                results.into_iter().for_each(|(what, y)| self.add(x, what, unit, y));
                Ok(())
            }
            other => Err(other.unexpected()),
        }
    }

    /// Sets the target up, with room for `bytes`.
    fn target(&self, bytes: u64) -> Result<Target> {
        let spec = Spec { bytes: self.spec.bytes.max(bytes), ..self.spec.clone() };
        Target::new(&spec, self.settings)
    }

    /// Returns the directory of new pools, if the target has a new pool.
    fn pool_dir(&self) -> Option<&Path> {
        match &self.spec.kind {
            Kind::Pool(dir) if dir.is_dir() => Some(dir),
            _ => None,
        }
    }
}

/// A pool that is mounted and unmounted.
struct PoolFile<'r> {
    home: TempDir,
    spec: &'r Spec,
    settings: &'r Settings,
    /// The time to format it.
    formatted: Duration,
}

impl<'r> PoolFile<'r> {
    fn new(dir: &Path, spec: &'r Spec, settings: &'r Settings, bytes: u64) -> Result<Self> {
        let home = new_dir(dir)?;
        let start = Instant::now();
        let made = ["--thin", "--layout", spec.layout.name(), "--size", &bytes.to_string()];
        let pool = home.path().join("pool");
        command(Command::new(&settings.keepstone).arg("mkfs").arg(pool).args(made))?;
        Ok(Self { home, spec, settings, formatted: start.elapsed() })
    }

    fn mount(&self) -> Result<Server> {
        let options = self.spec.mount_options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let programs = self.settings.programs(self.spec);
        let servers = Servers::new(&programs, self.home.path());
        servers.mounted("pool", &self.home.path().join("pool"), &options)
    }

    /// Returns the median time of mounts, in nanoseconds.
    fn mount_ns(&self) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..MOUNTS {
            let start = Instant::now();
            let server = self.mount()?;
            times.push(start.elapsed().as_nanos() as f64);
            drop(server);
        }
        Ok(median(&mut times))
    }

    /// Returns the memory that processes share about this pool, and its server's own, in bytes.
    fn dram(&self, server: u32) -> Result<u64> {
        let pool = self.home.path().join("pool");
        let info =
            command(Command::new(&self.settings.keepstone).args(["info", "--json"]).arg(pool))?;
        let info: serde_json::Value = serde_json::from_str(&info)?;
        let uuid = info["uuid"].as_str().context("no UUID")?.replace('-', "");
        let user = rustix::process::geteuid().as_raw();
        let states = std::fs::read_dir(format!("/dev/shm/keepstone-{user}"));
        let own = |entry: &std::fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(&uuid))
        };
        let states = states.into_iter().flatten().flatten().filter(own);
        let shared: u64 =
            states.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum();
        let status = std::fs::read_to_string(format!("/proc/{server}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(shared + kib.unwrap_or(0) * 1024)
    }
}

/// Files in one directory; of a new pool also the time to mount it, and the memory for each file.
fn files(run: &mut PartRun<'_>) -> Result<()> {
    for count in steps(1000, 10, run.amounts.files) {
        let files = count as usize;
        let Some(dir) = run.pool_dir().map(Path::to_owned) else {
            let mut target = run.target(0)?;
            run.job(&mut target, count, Unit::Ns, Job::Make { count: files })?;
            run.job(&mut target, count, Unit::Ns, Job::Remove { count: files })?;
            continue;
        };
        let (spec, settings) = (run.spec, run.settings);
        let bytes = spec.bytes.max(count * BYTES_PER_FILE);
        let pool = PoolFile::new(&dir, spec, settings, bytes)?;
        let mounted =
            || Target::at(Place::in_pool(pool.mount()?, &settings.keepstone)?, spec, settings);
        let mut target = mounted()?;
        let server = target.server_pid().context("a server")?;
        let empty = pool.dram(server)?;
        run.job(&mut target, count, Unit::Ns, Job::Make { count: files })?;
        let full = pool.dram(server)?;
        drop(target);
        let per_file = full.saturating_sub(empty) as f64 / count as f64;
        run.add(count, "DRAM for each file", Unit::Bytes, per_file);
        run.add(count, "mount", Unit::Ns, pool.mount_ns()?);
        run.job(&mut mounted()?, count, Unit::Ns, Job::Remove { count: files })?;
    }
    Ok(())
}

/// Files of growing size.
fn sizes(run: &mut PartRun<'_>) -> Result<()> {
    let (file, sparse) = (run.amounts.file, run.amounts.sparse);
    let mut target = run.target(2 * file + (256 << 20))?;
    for bytes in steps(1 << 20, 16, file) {
        run.job(&mut target, bytes, Unit::Ns, Job::Size { bytes, sparse: false })?;
    }
    for bytes in steps(1 << 20, 16, sparse) {
        run.job(&mut target, bytes, Unit::Ns, Job::Size { bytes, sparse: true })?;
    }
    Ok(())
}

fn threads(run: &mut PartRun<'_>) -> Result<()> {
    users(run, false)
}

fn processes(run: &mut PartRun<'_>) -> Result<()> {
    users(run, true)
}

/// Threads or processes at the same time.
fn users(run: &mut PartRun<'_>, processes: bool) -> Result<()> {
    let (most, ms) = (run.amounts.users, run.amounts.ms);
    let mut target = run.target(most * (16 << 20) + (256 << 20))?;
    for users in steps(1, 2, most) {
        let job = Job::Users { users, processes, ms };
        run.job(&mut target, users, Unit::OpsPerSecond, job)?;
    }
    Ok(())
}

/// New pools of growing size, without files.
fn pools(run: &mut PartRun<'_>) -> Result<()> {
    let Some(dir) = run.pool_dir().map(Path::to_owned) else { return Ok(()) };
    for bytes in steps(1 << 30, 16, run.amounts.pool) {
        tell!("{}, pools: {}", run.spec.name, self::bytes(bytes as f64));
        let pool = PoolFile::new(&dir, run.spec, run.settings, bytes)?;
        run.add(bytes, "mkfs", Unit::Ns, pool.formatted.as_nanos() as f64);
        run.add(bytes, "mount", Unit::Ns, pool.mount_ns()?);
        let server = pool.mount()?;
        run.add(bytes, "DRAM while it is empty", Unit::Bytes, pool.dram(server.pid())? as f64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_the_last() {
        assert_eq!(steps(1000, 10, 100_000), [1000, 10_000, 100_000]);
        assert_eq!(steps(1, 2, 6), [1, 2, 4, 6]);
        assert_eq!(steps(1000, 10, 20), [20]);
        assert_eq!(steps(1 << 30, 16, 16 << 40).last(), Some(&(16 << 40)));
    }

    #[test]
    fn tables_have_a_column_for_each_place() {
        let point = |target: &str, x: f64, y| GrowthPoint {
            part: "files".to_owned(),
            what: "create".to_owned(),
            unit: Unit::Ns,
            target: target.to_owned(),
            x,
            y,
        };
        let points =
            vec![point("pool", 1e3, 500.0), point("pool", 1e4, 600.0), point("dir", 1e3, 2e3)];
        let growth = Growth { points, failures: Vec::new() };
        let tables = growth.tables();
        assert_eq!(tables.len(), 1);
        let text = tables[0].text();
        assert!(text.contains("files: create") && text.contains("10000"), "{text}");
        assert!(
            text.contains("600 ns") && text.contains("2.00 µs") && text.contains('–'),
            "{text}"
        );
        assert_eq!(Unit::OpsPerSecond.show(2.5e6), "2.50 M/s");
        assert_eq!(bytes((16u64 << 40) as f64), "16T");
    }
}
