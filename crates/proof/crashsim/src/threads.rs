//! Several threads at once, crashed everywhere: any linearizable prefix is legal.
//!
//! Threads run under a scheduler ([`mod@schedule`]), so that a seed determines how their steps
//! interleave. Each operation makes one call of the contract. Looking up a path is another call, so
//! files below the root are named by handles that are open from the start ([`OPEN`]).
//!
//! When all have returned, the sum of free and used blocks is the same as before. At a crash point
//! some operations have returned, some are in flight. Recovery must find the tree of a sequence
//! that has all of the former and any of the latter. Its order must agree with real time, and each
//! operation must give the result that its thread saw. If operations are durable on a sync only,
//! but in order ([`Strength::keeps_order`](crate::target::Strength::keeps_order)), such a sequence
//! may end earlier: it has those that returned before a sync began. If content is durable on
//! `fsync`, that holds for names and attributes; each byte of a file has its value in some moment
//! of some such sequence ([`crate::promise`]). On hardware with epochs ([`crate::inflight`]) any of
//! the operations may be missing, last ones first in each thread.

use crate::account::Account;
use crate::explore::{Explorer, Outcome, Point, State};
use crate::image::CrashImage;
use crate::lost;
use crate::oracle::{Allowed, FoundState, Oracle};
use crate::persist::{Persistency, Semantics};
use crate::promise::{History, Moment, Syncs};
use crate::recorder::Recorder;
use crate::run::{Base, CrashAt, DETAILED, Explored, Settings, Violation};
use crate::schedule::{self, Interleaving, Policy, Schedule};
use crate::target::Target;
use crate::trace::{Action, Event, Trace};
use crate::workload::{BRIM, TWINS};
use rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Mutex;
use vfs::model::Model;
use vfs::script::{Data, Driver, Handles, How, Octal, Op, Part, Pos, parse};
use vfs::tree::{Tree, diff, tree};
use vfs::{Durability, Errno, FileSystem};

/// The programs of threads, and their schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadsPlan {
    /// The schedule.
    pub schedule: Schedule,
    /// The program of each thread.
    pub programs: Vec<Vec<Op>>,
    /// Whether threads also switch at words of the state that they share ([`Policy::at_words`]).
    pub at_words: bool,
}

/// Prefix of the schedule if threads switch at words.
const AT_WORDS: &str = "words ";

/// The form in replay lines: `[words ]SCHEDULE PROGRAM | PROGRAM`.
impl fmt::Display for ThreadsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.at_words { AT_WORDS } else { "" }, self.schedule)?;
        for (i, program) in self.programs.iter().enumerate() {
            let ops: Vec<String> = program.iter().map(Op::to_string).collect();
            write!(f, "{}{}", if i == 0 { " " } else { " | " }, ops.join("; "))?;
        }
        Ok(())
    }
}

impl FromStr for ThreadsPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (at_words, text) = text.strip_prefix(AT_WORDS).map_or((false, text), |t| (true, t));
        let parts = text.split_once(' ').ok_or("threads have a schedule and programs")?;
        let (schedule, programs) = (parts.0.parse()?, parts.1);
        let programs = programs.split('|').map(parse).collect::<Result<_, _>>();
        Ok(Self { schedule, programs: programs.map_err(|e| e.to_string())?, at_words })
    }
}

impl ThreadsPlan {
    /// Makes schedule `seed` of programs number `programs`: two threads with three operations, or
    /// three with two, on files that all use, and on one name that each has for itself.
    pub fn generate(programs: u64, seed: u64) -> Self {
        let mut rng = Rng::new(programs);
        let (threads, ops) = if rng.below(2) == 0 { (2, 3) } else { (3, 2) };
        let mut programs: Vec<_> = (0..threads).map(|t| program(&mut rng, t, ops)).collect();
        if rng.below(SYNCED) == 0 {
            for program in &mut programs {
                let sync = if rng.below(3) == 0 { Op::Sync } else { Op::Fsync("%0".into()) };
                *program.last_mut().expect("programs have operations") = sync;
            }
        }
        Self { schedule: Schedule::Seed(seed), programs, at_words: false }
    }

    /// Makes a plan of programs, separated by `|`, of which the first is interrupted once, after
    /// some steps.
    pub fn interrupted(programs: &str, steps: u64) -> Result<Self, String> {
        format!("{} {programs}", Schedule::Preempt(steps)).parse()
    }

    /// Returns one of [`PREEMPTIONS`], with its base: the first program is interrupted once.
    pub fn preemption(i: u64) -> Result<(&'static str, Self), String> {
        let (base, programs) = INTERRUPTIONS[(i / INTERRUPTED) as usize];
        Ok((base, Self::interrupted(programs, i % INTERRUPTED)?))
    }

    /// Returns one of [`AT_WORDS_PREEMPTIONS`], with its base: the same with steps at changes of
    /// words.
    pub fn preemption_at_words(i: u64) -> Result<(&'static str, Self), String> {
        let (base, programs) = AT_WORDS_INTERRUPTIONS[(i / AT_WORDS_INTERRUPTED) as usize];
        let schedule = Schedule::Preempt(i % AT_WORDS_INTERRUPTED);
        Ok((base, format!("{AT_WORDS}{schedule} {programs}").parse()?))
    }
}

/// One of this number of choices of programs ends with a sync.
const SYNCED: u64 = 4;

/// Programs with their bases. In most, the first gives blocks back, perhaps because a file moves,
/// and the second takes blocks between two steps of the first. New threads look for blocks from the
/// start of the pool, so they find those blocks. In others, both sync a file, or both need one redo
/// record, the last.
const INTERRUPTIONS: [(&str, &str); 16] = [
    ("tree", "write %0 100 200 | write %1 10 80"),
    ("tree", "write %0 4000 200 | append %1 9000"),
    ("tree", "punch %0 100 200 | write %1 10 80"),
    ("tree", "unlink %2/z | append %1 9000"),
    ("tree", "truncate %0 100 | append %1 9000"),
    ("tree", "setxattr %0 user.x 20 | setxattr %1 user.y 5000"),
    ("tree", "rename /a %3/n | write %1 10 80"),
    ("tree", "unlink /o | create /n"),
    ("tree", "write %0 100 200; fsync %0 | fsync %0"),
    ("tree", "write %0 100 200; sync | fsync %0; append %1 9"),
    ("tree", "append %0 9000; fsync %0 | write %0 10 200; fsync %0"),
    ("tree", "append %0 40000 | append %1 9000"),
    ("tree", "append %0 40000 | create /n; append /n 100"),
    (TWINS, "write %0 100 200 | write %1 10 80"),
    (TWINS, "rename /a /n | rename %2/c %2/n"),
    (TWINS, "write %0 100 200; append %0 9000 | exchange %2/c /o"),
];

/// Steps after which programs are interrupted: more than those of the preemptions take.
pub const INTERRUPTED: u64 = 32;

/// Number of runs of two programs of which the first is interrupted once.
pub const PREEMPTIONS: u64 = INTERRUPTIONS.len() as u64 * INTERRUPTED;

/// Programs with their bases that meet at words of the state that they share. In two, a removed
/// file's blocks become free that both want for new files; in one of these, the files are in two
/// directories, so that no lock keeps one program out while the other creates its file. In others,
/// both count names, links and references of the same inodes, or both take the last free inode or
/// block.
const AT_WORDS_INTERRUPTIONS: [(&str, &str); 5] = [
    ("tree", "unlink %2/z; create /n; append /n 100 | create /m; append /m 100"),
    ("tree", "append /o 100; unlink /o; create /n; append /n 100 | create /e/m; append /e/m 100"),
    ("tree", "link %0 /n; unlink /a | unlink %2/c; unlink /b"),
    (BRIM, "create /n | create /m"),
    ("full", "unlink /h; append %1 5000 | append %0 5000"),
];

/// Steps after which those are interrupted: more than the first takes.
const AT_WORDS_INTERRUPTED: u64 = 96;

/// Number of runs of those.
pub const AT_WORDS_PREEMPTIONS: u64 = AT_WORDS_INTERRUPTIONS.len() as u64 * AT_WORDS_INTERRUPTED;

/// Files of the handles of all threads: `%0` is a file with several blocks, `%1` one of one block
/// with two names, `%2` its directory, `%3` an empty directory.
pub const OPEN: [&str; 4] = ["/a", "/d/c", "/d", "/e"];

/// Makes a random program of `ops` operations on [`OPEN`] and on a name of the thread's own.
fn program(rng: &mut Rng, thread: usize, ops: usize) -> Vec<Op> {
    let own = format!("/t{thread}");
    let text = String::from;
    let op = |rng: &mut Rng| match rng.below(24) {
        0 => Op::create(own.clone()),
        1 => Op::write("%0", rng.below(9000), 100),
        2 => Op::append("%0", 300),
        3 => Op::truncate("%0", rng.below(9000)),
        4 => Op::Rename(text("/a"), text("/n")),
        5 => Op::Rename(text("/n"), text("%2/n")),
        6 => Op::Rename(text("%2/n"), text("/a")),
        7 => Op::Link(text("%0"), own.clone()),
        8 => Op::Unlink(own.clone()),
        9 => Op::write("%1", 0, 8),
        10 => Op::Exchange(text("/a"), text("%2/c")),
        11 => Op::append("%1", 5000),
        12 => Op::create("/n"),
        13 => Op::SetAll(text("%0"), rng.below(9000), Octal(0o600), 3),
        14 => Op::Read(text("%0"), Part::default()),
        15 => Op::Copy(text("%0"), Pos::At(0), text("%1"), Pos::At(100), 4200),
        16 => Op::mkdir(own.clone()),
        17 => Op::Rename(text("/d"), text("%3/d")),
        18 => Op::Rename(text("%3/d"), text("/d")),
        19 => Op::SetXattr(text("%0"), text("user.x"), 20, Data::default(), How::default()),
        20 => Op::Punch(text("%0"), Pos::At(0), 4096),
        21 => Op::Unlink(text("/a")),
        22 => Op::create("%3/n"),
        _ => Op::Rename(own.clone(), text("%3/n")),
    };
    (0..ops).map(|_| op(rng)).collect()
}

/// Opens [`OPEN`]; handles of missing files stay closed.
fn open(fs: &dyn FileSystem) -> Handles {
    let mut driver = Driver::new(fs);
    for (handle, path) in OPEN.into_iter().enumerate() {
        let _ = driver.run(&Op::Open(path.into(), handle), 0);
    }
    driver.handles()
}

/// An operation of a run: its number in traces is its index.
#[derive(Debug)]
struct ThreadCall {
    op: Op,
    result: Result<(), Errno>,
}

/// A plan that was run once, without a crash. Operations are numbered in the order in which they
/// start.
#[derive(Debug)]
pub struct Recorded {
    /// Its accesses to memory.
    pub trace: Trace,
    /// The interleaving of the threads.
    pub taken: Interleaving,
    calls: Vec<ThreadCall>,
}

impl Recorded {
    /// Returns a hash of the order of its steps, which differs between runs.
    pub fn print(&self) -> u32 {
        let step = |h, e: &Event| {
            let addr = match e.action {
                Action::Store { addr, .. } | Action::Flush { addr, .. } => addr,
                _ => 0,
            };
            rng::hash(
                h ^ rng::hash(u64::from(e.thread) << 32 | u64::from(addr)) ^ u64::from(e.site),
            )
        };
        // Loads are no steps.
        let events = self.trace.events.iter();
        let steps = events.filter(|e| !matches!(e.action, Action::Load { .. }));
        steps.fold(0, step) as u32
    }
}

/// Runs a plan on a copy of a base, in memory under these rules.
pub fn record<T: Target>(
    target: &T,
    base: &Base,
    plan: &ThreadsPlan,
    semantics: Semantics,
) -> Result<Recorded, String> {
    let threads = plan.programs.len();
    let in_turn = || record_under(target, base, plan, semantics, Policy::in_turn(threads));
    let policy = plan.schedule.policy(threads, || Ok(in_turn()?.taken.steps))?;
    let policy = if plan.at_words { policy.at_words() } else { policy };
    record_under(target, base, plan, semantics, policy)
}

/// Runs a plan by this policy, and checks that no space is lost.
///
/// # Errors
/// The mount, the account of space, or a store that bypasses the recorder. Failed operations are
/// results.
fn record_under<T: Target>(
    target: &T,
    base: &Base,
    plan: &ThreadsPlan,
    semantics: Semantics,
    policy: Policy,
) -> Result<Recorded, String> {
    let image = CrashImage::under(semantics, base.bytes.clone());
    let recorder = Recorder::new(image).under(semantics);
    let calls: Mutex<Vec<ThreadCall>> = Mutex::default();
    let taken = {
        let mounted = target.mount(&recorder)?;
        let account = Account::open(&mounted);
        let handles = open(&*mounted.fs);
        let run = |program: &Vec<Op>| {
            let mut driver = Driver::with_handles(&*mounted.fs, handles);
            for op in program {
                schedule::step();
                let id = {
                    let mut calls = calls.lock().expect("no program panics here");
                    calls.push(ThreadCall { op: op.clone(), result: Ok(()) });
                    calls.len() - 1
                };
                recorder.begin(id as u32);
                let result = driver.run(op, id as u64);
                calls.lock().expect("no program panics here")[id].result = result;
                recorder.end(id as u32);
            }
        };
        let run = &run;
        let programs = plan.programs.iter().map(|program| move || run(program)).collect();
        let taken = schedule::run(programs, policy, &format!("threads {plan}"));
        Driver::with_handles(&*mounted.fs, handles).close_all();
        // Makes durable the commit that an operation may have left to the next sync.
        mounted.fs.close().map_err(|e| format!("close: {e}"))?;
        account.close(target, &mounted, recorder.inner())?;
        taken
    };
    if let Some(at) = recorder.unrecorded() {
        return Err(format!("a store near {at:#x} went past the medium"));
    }
    let calls = calls.into_inner().map_err(|_| "a program panicked".to_owned())?;
    Ok(Recorded { trace: recorder.into_trace(), taken, calls })
}

/// Explores the crashes of a recorded run: before every fence, and when an operation has returned;
/// with eADR also after every store.
pub fn explore<T: Target>(
    target: &T,
    base: &Base,
    recorded: &Recorded,
    settings: &Settings<'_>,
) -> Result<Explored, String> {
    let oracle = Oracle::new(target, base.fresh());
    let recover = |image: &CrashImage| oracle.recover(image);
    let image = CrashImage::of(base.bytes.clone());
    let mut explorer = Explorer::new(&image, &recover, settings.budget, settings.distinct);
    let mut p = Persistency::over(settings.semantics, base.initial.clone()).lagging();
    let has_epochs = settings.semantics.has_epochs();
    let mut found = Explored::default();
    let mut at = CrashAt { op: 0, nth: 0 };
    let strength = target.strength();
    let mut legal = Legal {
        base,
        is_ordered: strength.is_ordered(),
        is_lazy: strength.keeps_order || has_epochs,
        has_epochs,
        calls: &recorded.calls,
        threads: BTreeMap::new(),
        spans: BTreeMap::new(),
        states: None,
    };
    let mut stored = false;
    for (i, event) in recorded.trace.events.iter().enumerate() {
        legal.follow(i, event);
        let returned = matches!(event.action, Action::End { .. });
        if let Action::Begin { op } = event.action {
            at = CrashAt { op, nth: 0 };
        }
        let fenced = event.action == Action::Fence && stored;
        if !returned && !fenced {
            p.apply(&recorded.trace, event);
            let durable = p.take_durable_words();
            image.make_durable(&durable);
            let is_store = matches!(event.action, Action::Store { .. });
            stored |= is_store;
            if !is_store || durable.is_empty() {
                continue;
            }
        }
        stored = false;
        oracle.next_point();
        // An event that makes its store durable at once has been applied.
        let until = if returned || fenced { i } else { i + 1 };
        for units in p.ways(event.thread) {
            let point = Point::new(&p, units);
            let failure = Failure { target, trace: &recorded.trace, until, point: &point, at };
            failure.explore(&mut explorer, legal.states()?, settings, &mut found);
            at.nth += 1;
        }
        if returned || fenced {
            p.apply(&recorded.trace, event);
            image.make_durable(&p.take_durable_words());
        }
    }
    found.stats = explorer.stats.clone();
    Ok(found)
}

/// A power failure.
struct Failure<'a, T> {
    target: &'a T,
    trace: &'a Trace,
    /// The event before which the power fails.
    until: usize,
    point: &'a Point,
    at: CrashAt,
}

impl<T: Target> Failure<'_, T> {
    /// Explores the states that it leaves.
    fn explore(
        &self,
        explorer: &mut Explorer<'_, FoundState>,
        legal: &States,
        settings: &Settings<'_>,
        found: &mut Explored,
    ) {
        let Self { target, trace, until, point, at } = *self;
        let mut wrong: Vec<(State, String)> = Vec::new();
        match &settings.only {
            Some((only, _)) if *only != at => return,
            Some((_, named)) => match crate::show::parse(point, named) {
                None => {
                    let what = format!("this crash point has no state `{named}`");
                    found.violations_total += 1;
                    return found.violations.push(Violation::new(at, what));
                }
                Some(state) => {
                    let verdict = judge(&explorer.run(point, &state).1, legal);
                    found.violations_total += u64::from(verdict.is_some());
                    wrong.push((state, verdict.unwrap_or_else(|| "recovered as it must".into())));
                }
            },
            None => {
                explorer.explore(point, &mut |_, state, outcome| {
                    wrong.extend(judge(outcome, legal).map(|what| (state.clone(), what)));
                });
                found.violations_total += wrong.len() as u64;
                wrong.truncate(DETAILED as usize);
                wrong.retain(|(state, _)| !found.knows(&lost::lost(trace, until, point, state)));
                for (state, what) in &mut wrong {
                    let least = explorer.shrink(point, state.clone(), what.clone(), &|outcome| {
                        judge(outcome, legal)
                    });
                    (*state, *what) = least;
                }
            }
        }
        for (state, what) in wrong {
            let lost = lost::lost(trace, until, point, &state);
            found.keep(at, what, lost, |lost| {
                crate::show::state(target, explorer.image, point, &state, lost)
            });
        }
    }
}

/// Returns the message of a violation if the outcome is not legal.
fn judge(outcome: &Outcome<FoundState>, legal: &States) -> Option<String> {
    let found = match outcome {
        Err(what) => return Some(what.clone()),
        Ok(found) => found,
    };
    match legal {
        States::Trees(legal) if legal.contains(&found.tree) => None,
        States::Trees(legal) => {
            let diffs = legal.iter().filter_map(|t| diff(t, &found.tree));
            let nearest = diffs.min_by_key(String::len).unwrap_or_default();
            let n = legal.len();
            Some(format!("none of the {n} trees that are allowed; the nearest: {nearest}"))
        }
        States::Mixtures(ways, allowed) => {
            let durability = Durability::MetadataOnReturn;
            let ask = || {
                let mut whys = ways.iter().map(|(history, now)| {
                    history.allows(durability, now.clone(), &found.tree, &found.contents)
                });
                let first = whys.next().unwrap_or(Ok(()));
                if first.is_err() && whys.any(|allowed| allowed.is_ok()) { Ok(()) } else { first }
            };
            allowed.admits(found, ask).err()
        }
    }
}

/// The legal results of a recovery.
enum States {
    /// One of these.
    Trees(Vec<Tree>),
    /// A mixture of one of these histories: names and attributes of one of its moments, and content
    /// of any moment since the file was synced.
    Mixtures(Vec<Way>, Allowed),
}

/// An order of the operations as a history, and the moments in it that may be now.
type Way = (History, RangeInclusive<usize>);

/// The states that the operations begun so far can have led to.
struct Legal<'a> {
    base: &'a Base,
    /// Whether a crash leaves the state of one moment, content too.
    is_ordered: bool,
    /// Whether operations that have returned may be missing, unless there was a sync since.
    is_lazy: bool,
    /// Whether fences only order the stores of their thread. No sync makes anything durable then,
    /// and threads that share nothing may be missing operations of any of them (BPFS §3.5).
    has_epochs: bool,
    calls: &'a [ThreadCall],
    /// The thread of each operation begun.
    threads: BTreeMap<usize, u8>,
    /// Indexes of the first and last event of each operation begun.
    spans: BTreeMap<usize, (usize, Option<usize>)>,
    states: Option<States>,
}

impl Legal<'_> {
    /// Notes the event number `i`. If an operation begins or ends, the legal states change.
    fn follow(&mut self, i: usize, event: &Event) {
        match event.action {
            Action::Begin { op } => {
                self.spans.insert(op as usize, (i, None));
                self.threads.insert(op as usize, event.thread);
            }
            Action::End { op } => {
                self.spans.entry(op as usize).and_modify(|s| s.1 = Some(i));
            }
            _ => return,
        }
        self.states = None;
    }

    /// Returns the legal states at this event; finds them only once.
    fn states(&mut self) -> Result<&States, String> {
        let states = match self.states.take() {
            Some(states) => states,
            None => self.find_states()?,
        };
        Ok(self.states.insert(states))
    }

    /// Whether an operation must be in: it has returned and, if operations are durable on sync
    /// only, it had returned before a sync began that has returned.
    fn is_required(&self, call: usize) -> bool {
        let Some(end) = self.spans[&call].1 else { return false };
        let covers = |(sync, (start, ended)): (&usize, &(usize, Option<usize>))| {
            let is_sync = matches!(self.calls[*sync].op, Op::Fsync(_) | Op::Sync);
            is_sync && ended.is_some() && end < *start
        };
        !self.is_lazy || !self.has_epochs && self.spans.iter().any(covers)
    }

    /// Searches all orders of the operations that explain their results.
    ///
    /// # Errors
    /// No order does.
    fn find_states(&self) -> Result<States, String> {
        let (calls, spans, is_ordered) = (self.calls, &self.spans, self.is_ordered);
        let model = self.base.model();
        let handles = open(&model);
        let is_synced = spans.iter().any(|(call, (_, end))| {
            end.is_some() && matches!(calls[*call].op, Op::Fsync(_) | Op::Sync)
        });
        let required = spans.keys().copied().filter(|call| self.is_required(*call)).collect();
        let mut search = ScheduleSearch {
            calls,
            spans,
            threads: self.has_epochs.then_some(&self.threads),
            required,
            handles,
            is_ordered,
            trees: Vec::new(),
            over: Vec::new(),
            now: Vec::new(),
            ways: (is_synced && !is_ordered).then(Vec::new),
            steps: 0,
        };
        search.extend(&model, &mut Vec::new(), &mut Vec::new())?;
        let ScheduleSearch { trees, over, now, ways, .. } = search;
        if trees.is_empty() && now.is_empty() {
            return Err(format!("no order of the operations explains their results: {calls:?}"));
        }
        if is_ordered {
            return Ok(States::Trees(trees));
        }
        let ways = ways.filter(|ways| !ways.is_empty()).unwrap_or_else(|| {
            let range = over.len()..=over.len() + now.len() - 1;
            vec![(History::of_moments([over, now].concat()), range)]
        });
        Ok(States::Mixtures(ways, Allowed::default()))
    }
}

struct ScheduleSearch<'a> {
    calls: &'a [ThreadCall],
    spans: &'a BTreeMap<usize, (usize, Option<usize>)>,
    /// The thread of each operation, if only operations of one thread have an order.
    threads: Option<&'a BTreeMap<usize, u8>>,
    /// The operations that must be in.
    required: BTreeSet<usize>,
    handles: Handles,
    is_ordered: bool,
    /// The legal trees, if a crash leaves the state of one moment.
    trees: Vec<Tree>,
    /// Else the moments that are over, because an operation had not begun that has returned, and
    /// those that may be now.
    over: Vec<Moment>,
    now: Vec<Moment>,
    /// If anything was synced, the ways one by one: what was durable in one of them need not have
    /// been durable in another. `None`: nothing was synced, or some way cannot be followed to its
    /// end.
    ways: Option<Vec<Way>>,
    steps: u64,
}

impl ScheduleSearch<'_> {
    /// Orders at most; beyond that the programs are badly chosen.
    const STEPS_MAX: u64 = 200_000;

    /// Follows all orders from here on. `path`: the moments so far, and whether each may be now.
    fn extend(
        &mut self,
        model: &Model,
        done: &mut Vec<usize>,
        path: &mut Vec<(Moment, bool)>,
    ) -> Result<(), String> {
        self.steps += 1;
        if self.steps > Self::STEPS_MAX {
            return Err("too many orders: use fewer or shorter programs".into());
        }
        let left: Vec<usize> = self.spans.keys().copied().filter(|c| !done.contains(c)).collect();
        // Operations in flight may be missing.
        let is_now = left.iter().all(|c| !self.required.contains(c));
        if !self.is_ordered {
            let moment = Moment::of(model, self.handles, self.synced(model, done.last()))?;
            path.push((moment.clone(), is_now));
            let moments = if is_now { &mut self.now } else { &mut self.over };
            if !moments.contains(&moment) {
                moments.push(moment);
            }
        } else if is_now {
            let t = tree(model).map_err(|e| e.to_string())?;
            if !self.trees.contains(&t) {
                self.trees.push(t);
            }
        }
        let mut is_end = true;
        for &call in &left {
            let start = self.spans[&call].0;
            let too_early = |c: &usize| {
                let ordered = self.threads.is_none_or(|of| of[c] == of[&call]);
                ordered && self.spans[c].1.is_some_and(|end| end < start)
            };
            if left.iter().any(too_early) {
                continue;
            }
            let ThreadCall { op, result } = &self.calls[call];
            let next = model.clone();
            // The model has no limit on space; without space, an operation changes nothing.
            let fits = *result == Err(Errno::NOSPC)
                || Driver::with_handles(&next, self.handles).run(op, call as u64) == *result;
            if fits {
                is_end = false;
                done.push(call);
                self.extend(&next, done, path)?;
                done.pop();
            }
        }
        if is_end && is_now {
            self.end(path, left.is_empty());
        }
        path.pop();
        Ok(())
    }

    /// Returns the part that is surely durable after an operation: one in flight promises nothing.
    fn synced(&self, model: &Model, call: Option<&usize>) -> Syncs {
        match call {
            Some(call) if self.spans[call].1.is_some() => {
                Syncs::by(&self.calls[*call].op, &Driver::with_handles(model, self.handles))
            }
            Some(_) => Syncs::Nothing,
            None => Syncs::All,
        }
    }

    /// Notes a way that ends here. If it lacks an operation in flight, no moment has the stores of
    /// that operation.
    fn end(&mut self, path: &[(Moment, bool)], is_whole: bool) {
        if !is_whole {
            self.ways = None;
        }
        let Some(ways) = &mut self.ways else { return };
        let first = path.iter().position(|(_, is_now)| *is_now).unwrap_or(0);
        let moments = path.iter().map(|(moment, _)| moment.clone()).collect();
        let way = (History::of_moments(moments), first..=path.len() - 1);
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
}
