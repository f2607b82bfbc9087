//! Many workloads: which ones, by how many workers, and what came of it.

use crate::explore::Budget;
use crate::generate;
use crate::op::Op;
use crate::persist::Semantics;
use crate::rng::Rng;
use crate::run::{Base, CrashAt, Settings, Violation, explore};
use crate::stats::{Distinct, Stats};
use crate::target::Target;
use crate::trace::{Action, Trace};
use crate::workload::universe;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A family of workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// Every sequence of so many operations of the universe, crashed in the last: those before are
    /// sequences themselves. Length 1 on every base, longer ones on the first `bases`.
    Exhaustive {
        /// Operations.
        length: usize,
        /// Bases.
        bases: usize,
    },
    /// Seeded random runs, crashed everywhere.
    Random {
        /// Runs.
        runs: u64,
        /// Operations of each.
        ops: usize,
    },
    /// Sequences that evolve toward what was not seen before, crashed everywhere where they reach it.
    Fuzz {
        /// Sequences tried.
        tries: u64,
    },
    /// This one, on each base.
    Script(Vec<Op>),
}

impl Family {
    /// For tables.
    pub fn name(&self) -> String {
        match self {
            Self::Exhaustive { length, .. } => format!("length {length}"),
            Self::Random { ops, .. } => format!("random, {ops} operations"),
            Self::Fuzz { .. } => "fuzzed".into(),
            Self::Script(_) => "script".into(),
        }
    }

    fn count(&self, bases: usize) -> u64 {
        match self {
            Self::Exhaustive { length, bases: n } => {
                let n = if *length == 1 { bases } else { *n };
                (universe().len() as u64).pow(*length as u32) * n.min(bases) as u64
            }
            Self::Random { runs, .. } => *runs,
            Self::Fuzz { tries } => *tries,
            Self::Script(_) => bases as u64,
        }
    }
}

/// How to run a family.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rules.
    pub semantics: Semantics,
    /// What to spend on a crash point.
    pub budget: Budget,
    /// Seed of everything random.
    pub seed: u64,
    /// Workers.
    pub threads: usize,
    /// At most so many workloads, spread evenly.
    pub limit: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            semantics: Semantics::Adr,
            budget: Budget::default(),
            seed: 1,
            threads: 1,
            limit: None,
        }
    }
}

/// A violation and how to see it again.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The argument of `keepstone crashtest --replay`.
    pub replay: String,
    /// What is wrong.
    pub what: String,
    /// What persisted and what did not.
    pub detail: Vec<String>,
}

/// What a family came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Its name.
    pub family: String,
    /// Workloads run.
    pub workloads: u64,
    /// Workloads left out by the limit.
    pub workloads_skipped: u64,
    /// Counts.
    pub stats: Stats,
    /// States that recovery did not turn into what it must be.
    pub violations: u64,
    /// The first of them.
    pub findings: Vec<Finding>,
    /// Wall-clock time.
    pub seconds: f64,
}

/// Findings kept.
const FINDINGS_MAX: usize = 20;

/// A crash, in one line: rules, base, crash point, state, operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The rules.
    pub semantics: Semantics,
    /// Name of the base.
    pub base: String,
    /// Where the power failed.
    pub at: CrashAt,
    /// The state.
    pub state: String,
    /// What was done.
    pub ops: Vec<Op>,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: Vec<String> = self.ops.iter().map(Op::to_string).collect();
        let (semantics, base, at) = (self.semantics.name(), &self.base, self.at);
        write!(f, "{semantics} {base} {}.{} {} {}", at.op, at.nth, self.state, ops.join("; "))
    }
}

impl FromStr for Replay {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.trim().splitn(5, ' ');
        let mut next = |what| words.next().ok_or(format!("a replay line has {what}"));
        let name = next("a semantics")?;
        let semantics = Semantics::ALL.into_iter().find(|s| s.name() == name);
        let semantics = semantics.ok_or(format!("unknown semantics `{name}`"))?;
        let base = next("a base")?.to_owned();
        let at = next("a crash point")?;
        let (op, nth) = at.split_once('.').ok_or("a crash point is OPERATION.NUMBER")?;
        let number = |text: &str| text.parse().map_err(|_| format!("not a number: `{text}`"));
        let (op, nth) = (number(op)?, number(nth)?);
        let state = next("a state")?.to_owned();
        let ops = crate::workload::script(next("operations")?).map_err(|e| e.to_string())?;
        Ok(Self { semantics, base, at: CrashAt { op, nth }, state, ops })
    }
}

/// Reruns one crash: what was found there, with the state's words, and whether it is wrong.
pub fn replay<T: Target>(
    target: &T,
    bases: &[Base],
    line: &Replay,
) -> Result<(Vec<Finding>, bool), String> {
    let base = bases.iter().find(|b| b.name == line.base);
    let base = base.ok_or_else(|| format!("unknown base `{}`", line.base))?;
    let from = line.at.op as usize;
    if from >= line.ops.len() {
        return Err(format!("there is no operation {from}: they are counted from 0"));
    }
    let recorded = base.record(target, &line.ops, from)?;
    let settings = Settings {
        semantics: line.semantics,
        budget: Budget::default(),
        distinct: &Distinct::default(),
        stop_early: false,
        only: Some((line.at, line.state.clone())),
    };
    let explored = explore(target, base, from, &recorded, &settings);
    if explored.violations.is_empty() {
        return Err(format!("operation {from} has no crash point {}", line.at.nth));
    }
    let finding =
        |v: Violation| Finding { replay: line.to_string(), what: v.what, detail: v.detail };
    let findings = explored.violations.into_iter().map(finding).collect();
    Ok((findings, explored.violations_total > 0))
}

/// Readies this process for exploring: engines allocate and free volatile state thousands of times
/// a second, and clearing huge pages for it would take most of the time.
pub fn prepare_process() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Runs a family; `progress` is told workloads done and in all, and states met so far.
pub fn run<T: Target>(
    target: &T,
    bases: &[Base],
    family: &Family,
    options: &Options,
    distinct: &Distinct,
    progress: &(dyn Fn(u64, u64, u64) + Sync),
) -> Report {
    let start = Instant::now();
    let all = family.count(bases.len());
    let total = options.limit.map_or(all, |limit| limit.min(all));
    let job = Job {
        target,
        bases,
        family,
        options,
        distinct,
        report: Mutex::new(Report {
            family: family.name(),
            workloads_skipped: all - total,
            ..Report::default()
        }),
        corpus: Mutex::new(Corpus::default()),
    };
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Relaxed);
            if i >= total {
                break;
            }
            // Spread evenly over all sequences, where not all are taken.
            job.workload(if total < all { i * (all / total) + i % (all / total) } else { i });
            let done = job.report.lock().expect("no worker panics");
            progress(done.workloads, total, done.stats.distinct);
        }
    };
    std::thread::scope(|s| {
        for _ in 1..options.threads {
            s.spawn(work);
        }
        work();
    });
    let mut report = job.report.into_inner().expect("no worker panics");
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// Sequences that reached something new, and what was reached.
#[derive(Default)]
struct Corpus {
    kept: Vec<Vec<Op>>,
    seen: HashSet<(u32, String)>,
}

struct Job<'a, T> {
    target: &'a T,
    bases: &'a [Base],
    family: &'a Family,
    options: &'a Options,
    distinct: &'a Distinct,
    report: Mutex<Report>,
    corpus: Mutex<Corpus>,
}

impl<T: Target> Job<'_, T> {
    fn workload(&self, i: u64) {
        let base = &self.bases[i as usize % self.bases.len()];
        let mut rng = Rng::new(self.options.seed ^ crate::rng::next(i));
        match self.family {
            Family::Exhaustive { length, bases } => {
                let universe = universe();
                let n = universe.len() as u64;
                let bases = if *length == 1 { self.bases.len() } else { *bases };
                let bases = &self.bases[..bases.min(self.bases.len())];
                let mut digits = i / bases.len() as u64;
                let mut ops = Vec::with_capacity(*length);
                for _ in 0..*length {
                    ops.push(universe[(digits % n) as usize].clone());
                    digits /= n;
                }
                self.crash(&bases[i as usize % bases.len()], ops, length - 1, false);
            }
            Family::Random { ops, .. } => {
                self.crash(base, generate::ops(&mut rng, *ops), 0, false);
            }
            Family::Fuzz { .. } => {
                let ops = self.evolve(&mut rng);
                self.crash(base, ops, 0, true);
            }
            Family::Script(ops) => self.crash(base, ops.clone(), 0, false),
        }
    }

    fn evolve(&self, rng: &mut Rng) -> Vec<Op> {
        let corpus = self.corpus.lock().expect("no worker panics");
        if corpus.kept.is_empty() || rng.below(8) == 0 {
            return generate::ops(rng, 4);
        }
        let mut any = || &corpus.kept[rng.below(corpus.kept.len() as u64) as usize];
        let (one, other) = (any(), any());
        generate::mutate(rng, one, other)
    }

    /// Records a workload and crashes it, if it is worth it.
    fn crash(&self, base: &Base, ops: Vec<Op>, from: usize, only_new: bool) {
        let mut out = Report::default();
        match base.record(self.target, &ops, from) {
            Err(what) => {
                out.violations = 1;
                let at = CrashAt { op: 0, nth: 0 };
                self.find(&mut out, base, &ops, &Violation::new(at, what));
            }
            Ok(recorded) => {
                if !only_new || self.reaches_new(&recorded.trace, &ops) {
                    let settings = Settings {
                        semantics: self.options.semantics,
                        budget: self.options.budget,
                        distinct: self.distinct,
                        stop_early: false,
                        only: None,
                    };
                    let explored = explore(self.target, base, from, &recorded, &settings);
                    out.stats = explored.stats;
                    out.violations = explored.violations_total;
                    for v in &explored.violations {
                        self.find(&mut out, base, &ops, v);
                    }
                }
            }
        }
        let mut report = self.report.lock().expect("no worker panics");
        report.workloads += 1;
        report.stats.add(&out.stats);
        report.violations += out.violations;
        let room = FINDINGS_MAX - report.findings.len();
        report.findings.extend(out.findings.into_iter().take(room));
    }

    fn find(&self, out: &mut Report, base: &Base, ops: &[Op], v: &Violation) {
        let replay = Replay {
            semantics: self.options.semantics,
            base: base.name.to_owned(),
            at: v.at,
            state: v.state.clone(),
            ops: ops.to_vec(),
        };
        out.findings.push(Finding {
            replay: replay.to_string(),
            what: v.what.clone(),
            detail: v.detail.clone(),
        });
    }

    /// Whether an operation of a trace takes a line of source after another for the first time; if so
    /// the sequence is kept. How often in a row counts too, by powers of two.
    fn reaches_new(&self, trace: &Trace, ops: &[Op]) -> bool {
        let mut corpus = self.corpus.lock().expect("no worker panics");
        let mut new = false;
        let (mut last, mut same, mut verb) = ("", 0u32, String::new());
        for e in &trace.events {
            let site = match e.action {
                Action::Begin { op } => {
                    let op = ops[op as usize].to_string();
                    verb = op.split(' ').next().unwrap_or_default().to_owned();
                    "begin"
                }
                Action::End { .. } => "end",
                _ => trace.sites[e.site as usize].as_str(),
            };
            same = if site == last { same + 1 } else { 0 };
            let pair = format!("{verb} {last} {site}");
            new |= corpus.seen.insert((same.checked_ilog2().map_or(0, |n| n + 1), pair));
            last = site;
        }
        if new {
            corpus.kept.push(ops.to_vec());
        }
        new
    }
}
