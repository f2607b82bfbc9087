//! Comparing systems in one run: interleaved rounds, medians, ratios.
//!
//! A case is one kind of operation, done by several contenders. Each round lets every contender work
//! for one time slice, one after the other (A B C, A B C, …), so that whatever else the machine does
//! meets all of them. The ratio of two contenders is taken within each round; the median of these
//! ratios is the result, and their quartiles say how much to believe it. Absolute times are printed
//! for orientation only.

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
    /// `run` does as many operations as it is told.
    pub fn new(name: impl Into<String>, run: impl FnMut(u64) -> vfs::Result<()> + 'a) -> Self {
        Self { name: name.into(), prepare: Box::new(|_| Ok(())), run: Box::new(run) }
    }

    /// `prepare` comes before each round and is not timed.
    pub fn prepared(self, prepare: impl FnMut(u64) -> vfs::Result<()> + 'a) -> Self {
        Self { prepare: Box::new(prepare), ..self }
    }
}

/// A kind of operation and who does it.
pub struct Case<'a> {
    name: String,
    what: String,
    bytes_per_op: u64,
    ops_max: u64,
    /// Operations of each round, where they are not to be as many as fill a slice; and how many rounds.
    fixed: Option<(u64, usize)>,
    contenders: Vec<Contender<'a>>,
    counters: Option<&'a Counters>,
    targets: Vec<(String, f64)>,
    /// Which contender is no system, but what each of them has to do at least.
    floor: Option<usize>,
}

impl<'a> Case<'a> {
    /// `what` says in a few words what one operation is.
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

    /// Bytes that the caller asks to move with one operation.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes_per_op = bytes;
        self
    }

    /// Most operations that fit one round.
    pub fn ops_max(mut self, ops: u64) -> Self {
        self.ops_max = ops.max(1);
        self
    }

    /// Every contender does so many operations, `rounds` times, and none before to warm up: what it does uses up what there
    /// is, or is published with its length.
    pub fn fixed(mut self, ops: u64, rounds: usize) -> Self {
        self.fixed = Some((ops.max(1), rounds.max(1)));
        self
    }

    /// Adds a contender. The first is the subject; the others are what it is compared with.
    pub fn with(mut self, contender: impl Into<Option<Contender<'a>>>) -> Self {
        self.contenders.extend(contender.into());
        self
    }

    /// Adds what the subject has to do at least, whatever else it does: it bounds the targets that can be
    /// reached.
    pub fn floor(mut self, contender: Contender<'a>) -> Self {
        self.floor = Some(self.contenders.len());
        self.with(contender)
    }

    /// Where the subject's traffic is counted.
    pub fn counters(mut self, counters: &'a Counters) -> Self {
        self.counters = Some(counters);
        self
    }

    /// The subject should reach `at_least` times the speed of `peer`, if there is such a number.
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
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        Self { q1: at(1), median: at(2), q3: at(3) }
    }
}

/// What one contender did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Which system.
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
    /// Traffic per operation, of `ops` operations.
    pub fn per_op(total: CountersSnapshot, ops: u64) -> Self {
        let per_op = |n: u64| n as f64 / ops as f64;
        Self {
            lines: per_op(total.lines_flushed),
            nt_bytes: per_op(total.nt_bytes),
            fences: per_op(total.fences),
        }
    }

    /// Bytes that reach the medium: whole lines, and what went past the cache.
    pub fn bytes(&self) -> f64 {
        self.lines * pmem::LINE as f64 + self.nt_bytes
    }
}

/// A target and what was reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The contender to compare with.
    pub peer: String,
    /// Speed relative to it that is asked for.
    pub at_least: f64,
    /// Speed relative to it, the median.
    pub got: f64,
    /// Whether that is enough.
    pub met: bool,
    /// Speed of the floor relative to the peer, the median: what cannot be surpassed.
    #[serde(default)]
    pub limit: Option<f64>,
}

/// What a case showed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Which case.
    pub name: String,
    /// What one operation is.
    pub what: String,
    /// Bytes asked per operation.
    pub bytes_per_op: u64,
    /// How many rounds.
    pub rounds: usize,
    /// The contenders, the subject first.
    pub timings: Vec<Timing>,
    /// The subject's traffic.
    pub traffic: Option<Traffic>,
    /// Targets.
    pub verdicts: Vec<Verdict>,
}

/// What time is taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Clock {
    /// What passes.
    #[default]
    Wall,
    /// What the threads that work are on a CPU, in the kernel too: what others do on a busy machine is left out, but also
    /// what the kernel's own threads do for them later, and waiting.
    Cpu,
}

impl Clock {
    /// The time, of each of so many threads in the mean.
    fn now(self, threads: u32) -> Duration {
        let (id, share) = match (self, threads) {
            (Self::Wall, _) => (ClockId::Monotonic, 1),
            (Self::Cpu, 1) => (ClockId::ThreadCPUTime, 1),
            (Self::Cpu, threads) => (ClockId::ProcessCPUTime, threads),
        };
        let now = rustix::time::clock_gettime(id);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32) / share
    }
}

/// How much to measure.
pub struct Plan {
    /// Rounds of each case.
    pub rounds: usize,
    /// How long one contender works in one round.
    pub slice: Duration,
    /// Parts of the names of cases to run; empty: all.
    pub filter: Vec<String>,
    /// Whether only the subject works.
    pub solo: bool,
    /// What time is taken of.
    pub clock: Clock,
    /// How many threads a contender works with.
    pub threads: u32,
}

impl Plan {
    /// Whether the case is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()))
    }

    /// Measures a case, if it is asked for.
    pub fn run(&self, case: Case<'_>, outcomes: &mut Vec<Outcome>) -> Result<()> {
        if self.wants(&case.name) {
            let name = case.name.clone();
            let outcome = self.measure(case).with_context(|| format!("case {name}"))?;
            outcomes.push(outcome);
        }
        Ok(())
    }

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

    /// How many operations fill a slice; finding out is the warm-up. Of several tries the fastest
    /// counts, so that a moment of bad luck does not make all rounds short.
    fn calibrate(&self, contender: &mut Contender<'_>, ops_max: u64) -> Result<u64> {
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

fn sum(a: CountersSnapshot, b: CountersSnapshot) -> CountersSnapshot {
    CountersSnapshot {
        lines_flushed: a.lines_flushed + b.lines_flushed,
        nt_bytes: a.nt_bytes + b.nt_bytes,
        fences: a.fences + b.fences,
        ..a
    }
}

/// A bar on stderr; invisible where stderr is not a terminal.
pub fn progress(what: &str, len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:24} {bar:40} {pos}/{len} {elapsed}")
        .expect("a valid template");
    ProgressBar::new(len).with_style(style).with_message(what.to_owned())
}
