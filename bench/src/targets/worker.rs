//! The process in which the cases of one target run: this program again, under `keepstone run` if
//! the target is used so. It receives orders on its input, one JSON value a line, and answers each
//! on its output.

use super::cases::{self, Case};
use super::jobs::{self, Job, Measured};
use crate::posix::Libc;
use crate::rounds::{Clock, Plan};
use crate::statistics::{Latencies, Latency};
use crate::workload::{Bed, BedSize};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use counters::Counters;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An order to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Prepares a case for rounds of this time; the answer is [`Answer::Begun`].
    Begin {
        /// Its name.
        case: String,
        /// The time of a round, in microseconds.
        slice_us: u64,
    },
    /// Does one round; the answer is [`Answer::Took`].
    Round,
    /// Times single operations, as many as a round has; the answer is [`Answer::Sampled`].
    Sample,
    /// Ends the case; the answer is [`Answer::Ended`].
    End,
    /// Does a job of `scale`; the answer is [`Answer::Scaled`].
    Scale(Job),
}

/// The answer to an order, or to the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The files are there.
    Ready,
    /// A case is prepared.
    Begun {
        /// The number of operations of a round.
        ops: u64,
        /// The calls of the process so far, as the library counts them.
        calls: Calls,
    },
    /// The times of a round.
    Took {
        /// Wall time, in nanoseconds.
        ns: u64,
        /// Time of the processor in this process, also in the kernel.
        cpu_ns: u64,
    },
    /// The number of operations that were timed singly.
    Sampled(u64),
    /// A case has ended.
    Ended {
        /// The calls of the process so far.
        calls: Calls,
        /// The times of single operations.
        latency: Option<Latency>,
    },
    /// The results of a job of `scale`.
    Scaled(Vec<Measured>),
    /// The case or target is broken.
    Failed(String),
}

impl Answer {
    /// Returns the error of an order that is answered by this instead.
    pub fn unexpected(self) -> anyhow::Error {
        match self {
            Self::Failed(why) => anyhow!("{why}"),
            other => anyhow!("an unexpected answer: {other:?}"),
        }
    }
}

/// Counts of calls on files of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Answered in the process, without the kernel.
    pub in_process: u64,
    /// Left to the kernel.
    pub by_kernel: u64,
}

/// The arguments of a worker.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The directory to work in, or a device.
    pub place: PathBuf,
    /// Bytes of files.
    #[arg(long)]
    pub bytes: u64,
    /// Number of files in a directory.
    #[arg(long)]
    pub names: usize,
    /// Make no files: orders are jobs of `scale`.
    #[arg(long)]
    pub bare: bool,
    /// The place is a device.
    #[arg(long)]
    pub device: bool,
    /// The device may be overwritten.
    #[arg(long)]
    pub overwrite: bool,
}

/// Serves orders until the input ends.
pub fn work(args: &WorkerArgs) -> Result<()> {
    if let Err(err) = serve(args) {
        tell(&Answer::Failed(format!("{err:#}")))?;
    }
    Ok(())
}

fn serve(args: &WorkerArgs) -> Result<()> {
    let counters = std::env::var_os("KEEPSTONE_STATS")
        .and_then(|path| Counters::inherited(&CString::new(path.as_bytes()).ok()?));
    let calls = || counters.map(calls).unwrap_or_default();
    let dir = if args.device { args.place.parent().unwrap_or(Path::new("/")) } else { &args.place };
    let store = Libc::new(dir, false).with_context(|| dir.display().to_string())?;
    let mut lines = std::io::stdin().lines();
    let mut next =
        || lines.next().map(|line| Ok::<_, anyhow::Error>(serde_json::from_str(&line?)?));
    if args.bare {
        tell(&Answer::Ready)?;
        while let Some(order) = next().transpose()? {
            let Order::Scale(job) = order else { bail!("only jobs are done here") };
            match jobs::run(&store, dir, job) {
                Ok(results) => tell(&Answer::Scaled(results))?,
                Err(err) => tell(&Answer::Failed(format!("{err:#}")))?,
            }
        }
        return Ok(());
    }
    let bed = if args.device {
        let (file, bytes) = open_device(&args.place, args.overwrite, args.bytes)?;
        Bed::of_file("", &store, file.into(), bytes)?
    } else {
        let size = BedSize { names: args.names, files: 1, bytes: args.bytes };
        Bed::sized("", &store, size).context("cannot make the files")?
    };
    tell(&Answer::Ready)?;
    while let Some(order) = next().transpose()? {
        let Order::Begin { case, slice_us } = order else { bail!("no case has begun") };
        let case = cases::named(&case).with_context(|| format!("{case}: no such case"))?;
        match serve_case(case, slice_us, &bed, &calls, &mut next) {
            Ok(latency) => tell(&Answer::Ended { calls: calls(), latency })?,
            Err(err) => tell(&Answer::Failed(format!("{err:#}")))?,
        }
    }
    Ok(())
}

/// Serves the orders of a case up to its end, or up to its first error. Returns the times of single
/// operations.
fn serve_case(
    case: Case,
    slice_us: u64,
    bed: &Bed<'_, Libc>,
    calls: &impl Fn() -> Calls,
    next: &mut impl FnMut() -> Option<Result<Order>>,
) -> Result<Option<Latency>> {
    let mut contender = case.on(bed)?;
    let plan = Plan {
        rounds: 1,
        slice: Duration::from_micros(slice_us),
        filter: Vec::new(),
        solo: false,
        clock: Clock::Wall,
        threads: 1,
    };
    let ops = plan.calibrate(&mut contender, case.ops_max())?;
    tell(&Answer::Begun { ops, calls: calls() })?;
    let mut latencies = Latencies::new();
    loop {
        match next().transpose()? {
            Some(Order::Round) => {
                let clocks = [ClockId::Monotonic, ClockId::ProcessCPUTime];
                let [wall, cpu] = contender.timed(ops, clocks)?.map(|took| took.as_nanos() as u64);
                tell(&Answer::Took { ns: wall, cpu_ns: cpu })?;
            }
            Some(Order::Sample) => {
                let unit = case.unit();
                let samples = (ops / unit).max(1);
                contender.sampled(samples, unit, |took| latencies.add(took))?;
                tell(&Answer::Sampled(samples * unit))?;
            }
            _ => return Ok(latencies.percentiles()),
        }
    }
}

/// Opens a device, or a file as if it were one; returns its bytes, at most `most`.
fn open_device(path: &Path, overwrite: bool, most: u64) -> Result<(File, u64)> {
    let open = || File::options().read(true).write(overwrite).open(path);
    let mut file = open().with_context(|| path.display().to_string())?;
    let bytes = file.seek(SeekFrom::End(0))?.min(most) >> 20 << 20;
    if bytes == 0 {
        bail!("{}: smaller than 1 MiB", path.display());
    }
    Ok((file, bytes))
}

/// Returns the sums of counts.
fn calls(counters: &Counters) -> Calls {
    let classes = counters.sums().all.classes;
    Calls {
        in_process: classes.iter().map(|calls| calls.served.calls).sum(),
        by_kernel: classes.iter().map(|calls| calls.by_kernel.calls).sum(),
    }
}

/// Sends an answer.
fn tell(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    Ok(out.flush()?)
}
