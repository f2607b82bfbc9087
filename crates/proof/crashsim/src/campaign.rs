//! Runs many workloads: chooses them, distributes them to workers and sums up the results.

use crate::deaths::{self, Scenario, Victim};
use crate::explore::Budget;
use crate::generate;
use crate::lint::{Lint, lint_of};
use crate::lost::{self, Lost};
use crate::persist::Semantics;
pub use crate::replay::{Replay, Work, explore_trace, replay};
use crate::run::{Base, CrashAt, Explored, Settings, Violation, explore};
use crate::schedule::{Interleaving, Schedule};
use crate::stats::{Distinct, Stats};
use crate::target::Target;
use crate::threads::{self, ThreadsPlan};
use crate::trace::{Action, Event, Trace};
use crate::twice::{self, Left, TWICE};
use crate::workload::{
    BRIM, COMMITS, MORE_COMMITS, TALL, TWINS, all_sequences, brim_sequences, twin_sequences,
    universe,
};
use rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vfs::Durability;
use vfs::script::Op;

/// A family of workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// Every sequence of `length` operations of the universe, crashed in the last one: shorter
    /// sequences cover those before. Length 1 on every base, longer ones on the first `bases`.
    Exhaustive {
        /// Operations in a sequence.
        length: usize,
        /// Bases for sequences longer than 1.
        bases: usize,
    },
    /// Seeded random runs, crashed everywhere.
    Random {
        /// Number of runs.
        runs: u64,
        /// Operations in each run.
        ops: usize,
    },
    /// Sequences that evolve toward behaviour not seen before, crashed everywhere if they reach it.
    Fuzz {
        /// Number of sequences tried.
        tries: u64,
    },
    /// Several threads at once under seeded schedules, [`SCHEDULES`] for each choice of programs,
    /// crashed everywhere.
    Threads {
        /// Number of schedules.
        runs: u64,
    },
    /// Every operation of the universe on every base, by a process that dies at each of its steps,
    /// while another process continues or before the next one mounts; crashed everywhere from there
    /// on.
    Deaths,
    /// Deaths at the last steps of operations that commit in each way ([`COMMITS`],
    /// [`MORE_COMMITS`]), and after they have returned.
    LateDeaths,
    /// Writes of all sizes from a byte to two lines, at different places of a line.
    Lines,
    /// The hand-picked sequences, on the bases of `SEQUENCED`, crashed everywhere.
    Sequences,
    /// Two threads. The first is interrupted once, at each of its steps, by the second, which takes
    /// the space that the first gives back.
    Preemptions,
    /// The same with steps at changes of words in the state that threads share, too.
    WordPreemptions,
    /// Deaths in chosen operations: in tall trees, and in those of [`deaths::HELD_BESIDE`], while
    /// processes hold files without names and map others ([`Scenario::BESIDE`]).
    SurvivingProcesses,
    /// Operations that follow a crash in another one, which left traces but did not take effect
    /// ([`TWICE`]).
    Twice,
    /// This sequence, on each base.
    Script(Vec<Op>),
    /// These programs, separated by `|`, on each base: the first is interrupted once, after each
    /// number of steps up to [`threads::INTERRUPTED`].
    Interrupted(&'static str),
}

/// Schedules for each choice of programs.
pub const SCHEDULES: u64 = 8;

impl Family {
    /// Whether the engine can run the family. Schedules are only judged if names and attributes are
    /// durable on return, or if all operations survive in order; deaths only if processes can share
    /// a pool.
    pub fn suits<T: Target>(&self, target: &T) -> bool {
        match self {
            Self::Threads { .. } | Self::Preemptions | Self::Interrupted(_) => {
                target.strength().durability != Durability::OnSync || target.strength().keeps_order
            }
            Self::WordPreemptions => target.has_steps_at_words(),
            Self::Deaths | Self::LateDeaths | Self::SurvivingProcesses => target.is_shared(),
            _ => true,
        }
    }

    /// Returns the family's name for tables.
    pub fn name(&self) -> String {
        match self {
            Self::Exhaustive { length, .. } => format!("length {length}"),
            Self::Random { ops, .. } => format!("random, {ops} operations"),
            Self::Fuzz { .. } => "fuzzed".into(),
            Self::Threads { .. } => "threads".into(),
            Self::Deaths => "deaths".into(),
            Self::LateDeaths => "late deaths".into(),
            Self::Lines => "lines".into(),
            Self::Sequences => "sequences".into(),
            Self::Preemptions => "preemptions".into(),
            Self::WordPreemptions => "preemptions at words".into(),
            Self::SurvivingProcesses => "surviving processes".into(),
            Self::Twice => "two crashes".into(),
            Self::Script(_) => "script".into(),
            Self::Interrupted(_) => "interrupted".into(),
        }
    }

    /// Returns the number of workloads, for this number of bases.
    fn count(&self, bases: usize) -> u64 {
        match self {
            Self::Exhaustive { length, bases: n } => {
                let n = if *length == 1 { bases } else { *n };
                (universe().len() as u64).pow(*length as u32) * n.min(bases) as u64
            }
            Self::Random { runs, .. } => *runs,
            Self::Fuzz { tries } => *tries,
            Self::Threads { runs } => *runs,
            Self::Deaths => universe().len() as u64 * bases as u64,
            Self::LateDeaths => (COMMITS.len() + MORE_COMMITS.len()) as u64,
            Self::Lines => LINES,
            Self::Sequences => sequenced().len() as u64,
            Self::Preemptions => threads::PREEMPTIONS,
            Self::WordPreemptions => threads::AT_WORDS_PREEMPTIONS,
            Self::SurvivingProcesses => (deaths::HELD_BESIDE.len() + OTHERS.len()) as u64,
            Self::Twice => TWICE.len() as u64,
            Self::Script(_) => bases as u64,
            Self::Interrupted(_) => threads::INTERRUPTED * bases as u64,
        }
    }
}

/// Bases of sequences: each has all names. The second has tall trees, the third leftovers of a
/// crash in them.
const SEQUENCED: [&str; 3] = ["worn", "tall", "tall-stale"];

/// Returns the hand-picked sequences, with their bases.
fn sequenced() -> Vec<(&'static str, Vec<Op>)> {
    let of_all = |ops: Vec<Op>| SEQUENCED.map(|base| (base, ops.clone()));
    let on_brim = brim_sequences().into_iter().map(|ops| (BRIM, ops));
    let on_twins = twin_sequences().into_iter().map(|ops| (TWINS, ops));
    all_sequences().into_iter().flat_map(of_all).chain(on_brim).chain(on_twins).collect()
}

/// Operations in which a process dies, with their bases. One leaves something to clear, one commits
/// in the superblock, and two commit in blocks of pointers above the lowest level.
const OTHERS: [(&str, &str); 4] = [
    ("truncate /d/z 4096", "tree"),
    ("rename /a /d/c", "tree"),
    ("write /t 3000000 4096", "tall"),
    ("punch /t 0 2097152", "tall"),
];

/// Last steps of an operation: its commit, and the steps after it.
const LATE: usize = 6;

/// Sizes of writes, from 1 byte.
const LINES: u64 = 130;

/// Returns writes of a size: within a line if that is possible, from the start of a line, and at
/// any place.
fn lines(size: u64) -> Vec<Op> {
    let line = pmem::LINE;
    let within = line.saturating_sub(size) / 2;
    let at = [line + within, 10 * line, 20 * line + size * 7 % line];
    at.map(|at| Op::write("/a", at, size)).into()
}

/// Options for running a family.
#[derive(Clone, Debug)]
pub struct CampaignOptions {
    /// The persistency rules.
    pub semantics: Semantics,
    /// Limits for one crash point.
    pub budget: Budget,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of workers.
    pub threads: usize,
    /// Number of workloads at most; those that run are spread evenly.
    pub limit: Option<u64>,
    /// Runs shard `.0`, counted from 0, of `.1`; the shards together cover all workloads.
    pub part: (u64, u64),
    /// Time after which no workload begins, and no further process dies. The workloads that were
    /// run are spread evenly.
    pub time: Option<Duration>,
    /// The clock for `time`.
    pub clock: Clock,
    /// Stop at the first violation.
    pub stop_early: bool,
}

impl Default for CampaignOptions {
    fn default() -> Self {
        Self {
            semantics: Semantics::Adr,
            budget: Budget::default(),
            seed: 1,
            threads: 1,
            limit: None,
            part: (0, 1),
            time: None,
            clock: Clock::Wall,
            stop_early: false,
        }
    }
}

/// A clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Wall-clock time.
    Wall,
    /// The processor time of this process, whatever else the machine does.
    Processor,
}

impl Clock {
    /// Returns the time since some moment in the past.
    pub fn now(self) -> Duration {
        let id = match self {
            Self::Wall => ClockId::Monotonic,
            Self::Processor => ClockId::ProcessCPUTime,
        };
        let now = clock_gettime(id);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }
}

/// A violation, and the line that reproduces it.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The argument of `keepstone crashtest --replay`.
    pub replay: String,
    /// The message.
    pub what: String,
    /// The words that persisted and those that did not.
    pub detail: Vec<String>,
    /// The words that were lost, as few as possible, and the lines of source that stored them.
    pub lost: Vec<Lost>,
    /// Number of verdicts with this cause: they have lost stores of the same lines of source.
    pub times: u64,
}

impl Finding {
    /// Makes a finding of a violation and the line that reproduces it.
    pub(crate) fn of(replay: String, violation: Violation) -> Self {
        let Violation { what, detail, lost, times, .. } = violation;
        Self { replay, what, detail, lost, times }
    }

    /// Makes a finding without a state.
    pub fn new(replay: String, what: String) -> Self {
        Self { replay, what, detail: Vec::new(), lost: Vec::new(), times: 1 }
    }
}

/// The results of a family.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Its name.
    pub family: String,
    /// Workloads run.
    pub workloads: u64,
    /// Workloads left out: by a limit, a violation (`stop_early`), or as other parts run them.
    pub workloads_skipped: u64,
    /// Counts.
    pub stats: Stats,
    /// Number of states that recovery did not turn into a legal one.
    pub violations: u64,
    /// The first of them.
    pub findings: Vec<Finding>,
    /// Problems that the traces show without a crash.
    pub lint: Lint,
    /// The interleaving of threads.
    pub interleaving: Interleaving,
    /// Wall-clock time.
    pub seconds: f64,
}

impl Report {
    /// Makes the report on a trace without crashes.
    pub fn of_trace(lint: Lint) -> Self {
        Self { family: "trace".into(), workloads: 1, lint, ..Self::default() }
    }
}

/// Findings kept at most.
const FINDINGS_MAX: usize = 20;

/// Prepares this process for exploring: engines and images allocate and free megabytes thousands of
/// times a second. Clearing huge pages for that would take most of the time, and so would returning
/// memory to the kernel and allocating it again.
#[expect(unsafe_code, reason = "malloc has no other way to be told")]
pub fn prepare_process() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // SAFETY: sets parameters of malloc; allocates and frees nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Bytes of freed memory that malloc keeps, and of the largest piece that it does not map
/// separately.
const KEPT: i32 = 256 << 20;

/// Runs a family. `progress` receives the workloads done, all workloads, and the states met so far.
pub fn run<T: Target>(
    target: &T,
    bases: &[Base],
    family: &Family,
    options: &CampaignOptions,
    distinct: &Distinct,
    progress: &(dyn Fn(u64, u64, u64) + Sync),
) -> Report {
    let start = Instant::now();
    let tall = bases.iter().position(|base| base.name.starts_with(TALL));
    let common = &bases[..tall.unwrap_or(bases.len())];
    let all = family.count(common.len());
    let total = options.limit.map_or(all, |limit| limit.min(all));
    let (part, parts) = options.part;
    let mine = total.saturating_sub(part).div_ceil(parts);
    let job = Job {
        target,
        bases: common,
        all_bases: bases,
        family,
        options,
        ends: options.time.map(|time| options.clock.now() + time),
        distinct,
        sound: Distinct::default(),
        report: Mutex::new(Report { family: family.name(), ..Report::default() }),
        corpus: Mutex::new(Corpus::default()),
    };
    let in_order = total == all && options.time.is_none();
    let stride = if in_order { 1 } else { stride(all) };
    let next = AtomicU64::new(0);
    let work = || {
        while !job.is_over() {
            let i = next.fetch_add(1, Relaxed) * parts + part;
            if i >= total {
                break;
            }
            job.workload((u128::from(i) * u128::from(stride) % u128::from(all)) as u64);
            let mut done = job.report.lock().expect("no worker panics");
            done.workloads += 1;
            progress(done.workloads, mine, done.stats.distinct);
            if options.stop_early && done.violations > 0 {
                break;
            }
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
    report.workloads_skipped = all - report.workloads;
    report
}

/// Returns a step through `all` workloads that meets each once, and whose every beginning is spread
/// evenly: about the golden ratio.
fn stride(all: u64) -> u64 {
    let common = |a: u64, b: u64| {
        let (mut a, mut b) = (a, b);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (all as f64 * 0.618_033_988_749_895) as u64;
    (1..=golden).rev().find(|step| common(*step, all) == 1).unwrap_or(1)
}

/// Sequences that reached new behaviour, and the behaviour that was reached.
#[derive(Default)]
struct Corpus {
    kept: Vec<Vec<Op>>,
    seen: HashSet<(u32, String)>,
}

struct Job<'a, T> {
    target: &'a T,
    bases: &'a [Base],
    all_bases: &'a [Base],
    family: &'a Family,
    options: &'a CampaignOptions,
    /// The end of its time.
    ends: Option<Duration>,
    distinct: &'a Distinct,
    /// Crash points without a wrong state.
    sound: Distinct,
    report: Mutex<Report>,
    corpus: Mutex<Corpus>,
}

impl<T: Target> Job<'_, T> {
    /// Runs workload number `i` of the family and adds its results to the report.
    fn workload(&self, i: u64) {
        let base = &self.bases[i as usize % self.bases.len()];
        let mut rng = Rng::new(self.options.seed ^ rng::hash(i));
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
            Family::Threads { .. } => {
                let programs = i / SCHEDULES;
                let base = &self.bases[programs as usize % self.bases.len()];
                let seed = |i| u64::from(rng::hash(self.options.seed ^ rng::hash(i)) as u32);
                self.crash_threads(base, ThreadsPlan::generate(seed(programs), seed(i)));
            }
            Family::Lines => self.crash(&self.bases[0], lines(i + 1), 0, false),
            Family::Sequences => {
                let (base, ops) = sequenced().swap_remove(i as usize);
                self.crash(self.base(base), ops, 0, false);
            }
            Family::Preemptions => self.crash_preemption(ThreadsPlan::preemption(i)),
            Family::WordPreemptions => self.crash_preemption(ThreadsPlan::preemption_at_words(i)),
            Family::SurvivingProcesses => {
                let i = i as usize;
                let held = deaths::HELD_BESIDE.get(i);
                let (text, base) = match held {
                    Some(text) => (*text, "tree"),
                    None => OTHERS[i - deaths::HELD_BESIDE.len()],
                };
                let op = text.parse().expect("an operation");
                let scenarios: &[_] =
                    if held.is_some() { &Scenario::BESIDE } else { &Scenario::ALL };
                self.crash_deaths(self.base(base), &op, scenarios, usize::MAX);
            }
            Family::Deaths => {
                let op = &universe()[i as usize / self.bases.len()];
                self.crash_deaths(base, op, &Scenario::ALL, usize::MAX);
            }
            Family::LateDeaths => {
                let i = i as usize;
                let first = COMMITS.get(i).map(|(base, text)| (*base, *text, LATE));
                let (base, text, last) = first.unwrap_or_else(|| MORE_COMMITS[i - COMMITS.len()]);
                let op = text.parse().expect("an operation");
                self.crash_deaths(self.base(base), &op, &Scenario::ALL, last);
            }
            Family::Twice => {
                let (base, first, second) = TWICE[i as usize];
                let [first, second] = [first, second].map(|op| op.parse().expect("an operation"));
                self.crash_twice(self.base(base), &first, &second);
            }
            Family::Script(ops) => self.crash(base, ops.clone(), 0, false),
            Family::Interrupted(programs) => {
                let steps = i / self.bases.len() as u64;
                let plan = ThreadsPlan::interrupted(programs, steps);
                self.crash_preemption(plan.map(|plan| (base.name, plan)));
            }
        }
    }

    /// Returns a base by its name, or the first.
    fn base(&self, name: &str) -> &Base {
        self.all_bases.iter().find(|base| base.name == name).unwrap_or(&self.bases[0])
    }

    /// Makes a sequence for [`Family::Fuzz`]: random, or from two sequences that reached new
    /// behaviour.
    fn evolve(&self, rng: &mut Rng) -> Vec<Op> {
        let corpus = self.corpus.lock().expect("no worker panics");
        if corpus.kept.is_empty() || rng.below(8) == 0 {
            return generate::ops(rng, 4);
        }
        let mut any = || &corpus.kept[rng.below(corpus.kept.len() as u64) as usize];
        let (one, other) = (any(), any());
        generate::mutate(rng, one, other)
    }

    fn settings(&self) -> Settings<'_> {
        Settings {
            semantics: self.options.semantics,
            budget: self.options.budget,
            distinct: self.distinct,
            sound: &self.sound,
            stop_early: self.options.stop_early,
            only: None,
        }
    }

    /// Records a workload and crashes it; with `only_new`, only if it reaches new behaviour.
    fn crash(&self, base: &Base, ops: Vec<Op>, from: usize, only_new: bool) {
        let mut out = Report::default();
        let semantics = self.options.semantics;
        let explored = base.record(self.target, &ops, from, semantics).map(|recorded| {
            out.lint = lint_of(self.target, &base.bytes, &recorded.trace);
            match only_new && !self.reaches_new(&recorded.trace, &ops) {
                true => Explored::default(),
                false => explore(self.target, base, from, &recorded, &self.settings()),
            }
        });
        self.report(out, base, Work::Sequence(ops), explored);
    }

    /// Runs a plan on its base.
    fn crash_preemption(&self, plan: Result<(&str, ThreadsPlan), String>) {
        match plan {
            Ok((base, plan)) => self.crash_threads(self.base(base), plan),
            Err(what) => {
                let none = Work::Sequence(Vec::new());
                self.report(Report::default(), &self.bases[0], none, Err(what));
            }
        }
    }

    /// Runs threads at once and crashes them.
    fn crash_threads(&self, base: &Base, mut plan: ThreadsPlan) {
        let (mut out, mut print) = (Report::default(), 0);
        let semantics = self.options.semantics;
        let explored = threads::record(self.target, base, &plan, semantics).and_then(|recorded| {
            out.lint = lint_of(self.target, &base.bytes, &recorded.trace);
            out.interleaving = recorded.taken.clone();
            plan.schedule = Schedule::Order(recorded.taken.order.clone());
            print = recorded.print();
            threads::explore(self.target, base, &recorded, &self.settings())
        });
        self.report(out, base, Work::Threads { plan, print }, explored);
    }

    /// Lets a process die at each of the last `last` steps of an operation, and crashes the steps
    /// that follow in these scenarios.
    fn crash_deaths(&self, base: &Base, op: &Op, scenarios: &[Scenario], last: usize) {
        let victim = match Victim::record(self.target, base, op, self.options.semantics) {
            Ok(Some(victim)) => victim,
            Ok(None) => return,
            Err(what) => {
                let work = Work::Sequence(vec![op.clone()]);
                return self.report(Report::default(), base, work, Err(what));
            }
        };
        for death in victim.deaths(scenarios, last) {
            if self.is_over() || self.options.stop_early && self.is_wrong() {
                return;
            }
            let recorded = victim.dies(self.target, base, death.steps, death.scenario);
            let explored = recorded.map(|recorded| {
                explore(self.target, base, deaths::FROM, &recorded, &self.settings())
            });
            self.report(Report::default(), base, Work::Death(death), explored);
        }
    }

    /// Crashes an operation, and then another one everywhere in each state that the first has left.
    fn crash_twice(&self, base: &Base, first: &Op, second: &Op) {
        let semantics = self.options.semantics;
        let lefts = match twice::lefts(self.target, base, (first, second), semantics) {
            Ok(lefts) => lefts,
            Err(what) => {
                let work = Work::Sequence(vec![first.clone()]);
                return self.report(Report::default(), base, work, Err(what));
            }
        };
        for Left { twice, base: left } in lefts {
            if self.is_over() || self.options.stop_early && self.is_wrong() {
                return;
            }
            let recorded = left.record(self.target, std::slice::from_ref(second), 0, semantics);
            let explored = recorded
                .map(|recorded| explore(self.target, &left, 0, &recorded, &self.settings()));
            self.report(Report::default(), base, Work::Twice(twice), explored);
        }
    }

    /// Whether the time is over.
    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| self.options.clock.now() >= ends)
    }

    /// Whether a violation was found.
    fn is_wrong(&self) -> bool {
        self.report.lock().expect("no worker panics").violations > 0
    }

    /// Adds a workload's results to the family's report, under its lock. `out` has what the trace
    /// shows without a crash. An error in `explored` counts as a violation. Violations that lose
    /// the same words are one finding.
    fn report(&self, out: Report, base: &Base, work: Work, explored: Result<Explored, String>) {
        let explored = explored.unwrap_or_else(|what| Explored {
            violations: vec![Violation::new(CrashAt { op: 0, nth: 0 }, what)],
            violations_total: 1,
            ..Explored::default()
        });
        let mut report = self.report.lock().expect("no worker panics");
        report.stats.add(&explored.stats);
        report.violations += explored.violations_total;
        report.lint.add(out.lint);
        report.interleaving.add(&out.interleaving);
        for v in explored.violations {
            let is_same = |f: &&mut Finding| lost::is_same((&f.lost, &f.what), (&v.lost, &v.what));
            if let Some(known) = report.findings.iter_mut().find(is_same) {
                known.times += v.times;
                continue;
            }
            if report.findings.len() >= FINDINGS_MAX {
                continue;
            }
            let replay = Replay {
                semantics: self.options.semantics,
                base: base.name.to_owned(),
                at: v.at,
                state: v.state.clone(),
                work: work.clone(),
            };
            report.findings.push(Finding::of(replay.to_string(), v));
        }
    }

    /// Whether an operation of a trace reaches a line of source directly after another for the
    /// first time; if so, keeps the sequence. The number of repetitions of a line counts too, by
    /// powers of two.
    fn reaches_new(&self, trace: &Trace, ops: &[Op]) -> bool {
        let mut corpus = self.corpus.lock().expect("no worker panics");
        let mut new = false;
        let (mut last, mut same, mut verb) = ("", 0u32, String::new());
        let is_load = |e: &&Event| matches!(e.action, Action::Load { .. });
        for e in trace.events.iter().filter(|e| !is_load(e)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stride_meets_every_workload_once_and_spreads_any_beginning() {
        for all in [1u64, 2, 6, 126, 756, 15_876] {
            let met: HashSet<u64> = (0..all).map(|i| i * stride(all) % all).collect();
            assert_eq!(met.len() as u64, all);
            let mut first: Vec<u64> = (0..all / 10).map(|i| i * stride(all) % all).collect();
            first.sort_unstable();
            let gap = first.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
            assert!(
                gap <= all.div_ceil(30).max(20),
                "a tenth of {all} leaves out {gap} neighbours"
            );
        }
    }
}
