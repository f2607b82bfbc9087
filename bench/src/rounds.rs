//! Comparing systems in one run: interleaved rounds, medians, ratios.
//!
//! In a case, several contenders do the same kind of operation. Each round lets every contender
//! work for one time slice, one after the other (A B C, A B C, …), so that other load on the
//! machine affects all of them. The ratio of two contenders is taken within each round; the median
//! of these ratios is the result, and their quartiles show its reliability. Absolute times are
//! printed for orientation only.

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pmem::{Counters, CountersSnapshot};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

type Step<'a> = Box<dyn FnMut(u64) -> vfs::Result<()> + 'a>;

/// One system doing the operation of a case.
pub struct Contender<'a> {
    name: String,
    prepare: Step<'a>,
    run: Step<'a>,
}

impl<'a> Contender<'a> {
    /// Makes a contender. `run` does the number of operations that it receives.
    pub fn new(name: impl Into<String>, run: impl FnMut(u64) -> vfs::Result<()> + 'a) -> Self {
        Self { name: name.into(), prepare: Box::new(|_| Ok(())), run: Box::new(run) }
    }

    /// Does `ops` operations after their preparation; returns the times that they took by each of
    /// the clocks.
    pub fn timed<const N: usize>(
        &mut self,
        ops: u64,
        clocks: [ClockId; N],
    ) -> vfs::Result<[Duration; N]> {
        (self.prepare)(ops)?;
        let before = clocks.map(read_clock);
        (self.run)(ops)?;
        let after = clocks.map(read_clock);
        Ok(std::array::from_fn(|i| after[i] - before[i]))
    }

    /// Does `samples` times `unit` operations after one preparation. Passes the time of one
    /// operation of each sample to `note`; reading the clock is part of it.
    pub fn sampled(
        &mut self,
        samples: u64,
        unit: u64,
        mut note: impl FnMut(Duration),
    ) -> vfs::Result<()> {
        (self.prepare)(samples * unit)?;
        for _ in 0..samples {
            let before = read_clock(ClockId::Monotonic);
            (self.run)(unit)?;
            note((read_clock(ClockId::Monotonic) - before) / unit as u32);
        }
        Ok(())
    }

    /// Runs `prepare` before each round, untimed.
    pub fn prepared(self, prepare: impl FnMut(u64) -> vfs::Result<()> + 'a) -> Self {
        Self { prepare: Box::new(prepare), ..self }
    }
}

/// A kind of operation and its contenders.
pub struct Case<'a> {
    name: String,
    what: String,
    bytes_per_op: u64,
    ops_max: u64,
    /// Operations of each round, and rounds, if operations shall not fill a slice.
    fixed: Option<(u64, usize)>,
    contenders: Vec<Contender<'a>>,
    counters: Option<&'a Counters>,
    targets: Vec<(String, f64)>,
    /// The contender that is no system, but does the least that each system has to do.
    floor: Option<usize>,
}

impl<'a> Case<'a> {
    /// Makes a case. `what` describes one operation in a few words.
    pub fn new(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            what: what.into(),
            bytes_per_op: 0,
            ops_max: 1 << 20,
            fixed: None,
            contenders: Vec::new(),
            counters: None,
            targets: Vec::new(),
            floor: None,
        }
    }

    /// Sets the bytes that the caller asks to move with one operation.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes_per_op = bytes;
        self
    }

    /// Sets the most operations that fit one round.
    pub fn ops_max(mut self, ops: u64) -> Self {
        self.ops_max = ops.max(1);
        self
    }

    /// Lets every contender do `ops` operations, `rounds` times, without a warm-up, because the
    /// load uses up its files or has a published length.
    pub fn fixed(mut self, ops: u64, rounds: usize) -> Self {
        self.fixed = Some((ops.max(1), rounds.max(1)));
        self
    }

    /// Adds a contender. The first is the subject; the others are its peers.
    pub fn with(mut self, contender: impl Into<Option<Contender<'a>>>) -> Self {
        self.contenders.extend(contender.into());
        self
    }

    /// Adds the least that the subject has to do. It bounds the targets that can be reached.
    pub fn floor(mut self, contender: Contender<'a>) -> Self {
        self.floor = Some(self.contenders.len());
        self.with(contender)
    }

    /// Sets the counters of the subject's traffic.
    pub fn counters(mut self, counters: &'a Counters) -> Self {
        self.counters = Some(counters);
        self
    }

    /// Adds a target, if any: the subject should reach `at_least` times the speed of `peer`.
    pub fn target(mut self, peer: &str, at_least: impl Into<Option<f64>>) -> Self {
        self.targets.extend(at_least.into().map(|at_least| (peer.to_owned(), at_least)));
        self
    }
}

/// Median and quartiles.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// A quarter of the values lies below.
    pub q1: f64,
    /// Half of the values lie below.
    pub median: f64,
    /// A quarter of the values lies above.
    pub q3: f64,
}

impl Spread {
    /// Returns those of at least one value.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        Self { q1: at(1), median: at(2), q3: at(3) }
    }
}

/// The times of one contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// The name of the system.
    pub name: String,
    /// Time per operation in nanoseconds.
    pub ns_per_op: Spread,
    /// Time of this contender through that of the subject, round by round: above 1 the subject is
    /// faster. The subject itself has 1.
    pub subject_speed: Spread,
}

/// Traffic of one operation of the subject, on average.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Lines flushed.
    pub lines: f64,
    /// Bytes written past the cache.
    pub nt_bytes: f64,
    /// Fences.
    pub fences: f64,
}

impl Traffic {
    /// Returns the traffic per operation, of `ops` operations.
    pub fn per_op(total: CountersSnapshot, ops: u64) -> Self {
        let per_op = |n: u64| n as f64 / ops as f64;
        Self {
            lines: per_op(total.lines_flushed),
            nt_bytes: per_op(total.nt_bytes),
            fences: per_op(total.fences),
        }
    }

    /// Returns the bytes that reach the medium: whole lines, and the bytes that bypassed the cache.
    pub fn bytes(&self) -> f64 {
        self.lines * pmem::LINE as f64 + self.nt_bytes
    }
}

/// A target and the result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The contender to compare with.
    pub peer: String,
    /// The target: speed relative to the peer.
    pub at_least: f64,
    /// The median of the speed relative to the peer.
    pub got: f64,
    /// The target is met.
    pub met: bool,
    /// The median of the speed of the floor relative to the peer, which is the limit.
    #[serde(default)]
    pub limit: Option<f64>,
}

/// The result of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the case.
    pub name: String,
    /// A description of one operation.
    pub what: String,
    /// Bytes asked per operation.
    pub bytes_per_op: u64,
    /// The number of rounds.
    pub rounds: usize,
    /// The contenders, the subject first.
    pub timings: Vec<Timing>,
    /// The subject's traffic.
    pub traffic: Option<Traffic>,
    /// Targets.
    pub verdicts: Vec<Verdict>,
}

/// The clock of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Clock {
    /// Wall time.
    #[default]
    Wall,
    /// CPU time of the working threads, in the kernel too. Leaves out other load on a busy machine,
    /// but also waits, and later work of the kernel's own threads.
    Cpu,
}

impl Clock {
    /// Reads the clock. For [`Cpu`](Self::Cpu) with several threads, returns the process's time
    /// divided by `threads`.
    fn now(self, threads: u32) -> Duration {
        let (id, share) = match (self, threads) {
            (Self::Wall, _) => (ClockId::Monotonic, 1),
            (Self::Cpu, 1) => (ClockId::ThreadCPUTime, 1),
            (Self::Cpu, threads) => (ClockId::ProcessCPUTime, threads),
        };
        read_clock(id) / share
    }
}

fn read_clock(id: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(id);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The amount to measure.
pub struct Plan {
    /// Rounds of each case.
    pub rounds: usize,
    /// The time that one contender works in one round.
    pub slice: Duration,
    /// Parts of the names of cases to run; empty: all.
    pub filter: Vec<String>,
    /// Only the subject works.
    pub solo: bool,
    /// The clock of a measurement.
    pub clock: Clock,
    /// The number of threads of a contender.
    pub threads: u32,
}

impl Plan {
    /// Returns whether the filter selects the case.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()))
    }

    /// Measures a case, if the filter selects it.
    pub fn run(&self, case: Case<'_>, outcomes: &mut Vec<Outcome>) -> Result<()> {
        if self.wants(&case.name) {
            let name = case.name.clone();
            let outcome = self.measure(case).with_context(|| format!("case {name}"))?;
            outcomes.push(outcome);
        }
        Ok(())
    }

    /// Calibrates the contenders of a case, then runs its rounds.
    fn measure(&self, mut case: Case<'_>) -> Result<Outcome> {
        if self.solo {
            case.contenders.truncate(1);
        }
        let rounds = case.fixed.map_or(self.rounds, |(_, rounds)| rounds);
        let bar = progress(&case.name, (rounds * case.contenders.len()) as u64);
        let mut ops = Vec::new();
        for contender in &mut case.contenders {
            ops.push(match case.fixed {
                Some((ops, _)) => ops,
                None => self.calibrate(contender, case.ops_max)?,
            });
        }
        let mut ns = vec![Vec::with_capacity(rounds); ops.len()];
        let mut moved = CountersSnapshot::default();
        for _ in 0..rounds {
            for (i, contender) in case.contenders.iter_mut().enumerate() {
                (contender.prepare)(ops[i])?;
                let before = case.counters.filter(|_| i == 0).map(Counters::snapshot);
                let start = self.clock.now(self.threads);
                (contender.run)(ops[i])?;
                let took = self.clock.now(self.threads) - start;
                ns[i].push(took.as_nanos().max(1) as f64 / ops[i] as f64);
                if let (Some(before), Some(counters)) = (before, case.counters) {
                    moved = sum(moved, counters.snapshot() - before);
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let traffic = case.counters.map(|_| Traffic::per_op(moved, ops[0] * rounds as u64));
        let timings: Vec<Timing> = case
            .contenders
            .iter()
            .zip(&ns)
            .map(|(contender, own)| Timing {
                name: contender.name.clone(),
                ns_per_op: Spread::of(own.clone()),
                subject_speed: Spread::of(own.iter().zip(&ns[0]).map(|(o, s)| o / s).collect()),
            })
            .collect();
        let verdict = |(peer, at_least): (String, f64)| {
            let timing = timings.iter().find(|t| t.name == peer)?;
            let got = timing.subject_speed.median;
            let its = case.contenders.iter().position(|c| c.name == peer)?;
            let limit = case.floor.and_then(|floor| ns.get(floor)).map(|floor| {
                Spread::of(ns[its].iter().zip(floor).map(|(p, f)| p / f).collect()).median
            });
            Some(Verdict { peer, at_least, got, met: got >= at_least, limit })
        };
        Ok(Outcome {
            verdicts: case.targets.into_iter().filter_map(verdict).collect(),
            name: case.name,
            what: case.what,
            bytes_per_op: case.bytes_per_op,
            rounds,
            timings,
            traffic,
        })
    }

    /// Returns the number of operations that fill a slice; the search is the warm-up. The fastest
    /// of several tries counts, so that one slow moment does not make all rounds short.
    pub fn calibrate(&self, contender: &mut Contender<'_>, ops_max: u64) -> Result<u64> {
        const TRIES: usize = 3;
        let mut ops = 1;
        loop {
            let mut took = Duration::MAX;
            for _ in 0..TRIES {
                (contender.prepare)(ops).with_context(|| contender.name.clone())?;
                let start = self.clock.now(self.threads);
                (contender.run)(ops).with_context(|| contender.name.clone())?;
                took = took.min(self.clock.now(self.threads) - start).max(Duration::from_nanos(1));
                if took < self.slice / 2 {
                    break;
                }
            }
            if took >= self.slice / 2 || ops == ops_max {
                return Ok(ops);
            }
            let factor = (self.slice.as_secs_f64() / took.as_secs_f64()).clamp(2.0, 16.0);
            ops = ((ops as f64 * factor) as u64).min(ops_max);
        }
    }
}

/// Adds the counters that [`Traffic`] uses.
fn sum(a: CountersSnapshot, b: CountersSnapshot) -> CountersSnapshot {
    CountersSnapshot {
        lines_flushed: a.lines_flushed + b.lines_flushed,
        nt_bytes: a.nt_bytes + b.nt_bytes,
        fences: a.fences + b.fences,
        ..a
    }
}

/// Makes a progress bar on stderr, which is invisible if stderr is not a terminal.
pub fn progress(what: &str, len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:24} {bar:40} {pos}/{len} {elapsed}")
        .expect("a valid template");
    ProgressBar::new(len).with_style(style).with_message(what.to_owned())
}
