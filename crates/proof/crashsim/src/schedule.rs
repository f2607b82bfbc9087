//! Chooses the thread that takes the next step, so that a seed repeats an interleaving.
//!
//! Threads run one at a time, each from one [`step`] to the next; there the scheduler chooses the
//! next thread. The recorder takes a step before every access that changes or orders persistent
//! memory, before it copies bytes out, and at the start and end of an operation. So no engine is
//! changed for it. Single words are loaded without a step: engines do that under spin locks. On
//! request ([`Policy::at_words`]), a run also has a step at each change of a word in the state that
//! threads share ([`step_at_word`]).
//!
//! A thread that waits for a lock of the engine takes no steps. The kernel reports that the thread
//! sleeps, and another one has to run (`proc_pid_stat(5)`, field 3). Once that one has released the
//! lock, both run until their next steps; the seed does not order their accesses to volatile memory
//! meanwhile. So some schedules, mostly of three threads, have several possible runs (on a busy
//! machine 1 in 15 does not repeat at once). The trace shows which run it was. To repeat that run,
//! a caller tries until it occurs ([`crate::campaign::replay`]).
//!
//! Half of the seeds give few changes of thread at chosen moments (PCT: Burckhardt et al., "A
//! Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010): a bug that
//! takes `d` such moments is found with a probability of at least 1 in `n·k^(d-1)`, of `n` threads
//! and `k` steps. The other half choose at random at each step.

use rng::Rng;
use serde::Serialize;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

/// Lets another thread run. Does nothing in threads that no scheduler runs.
pub fn step() {
    ME.with_borrow(|me| {
        if let Some(slot) = me {
            slot.wait_for_turn();
        }
    });
}

/// Lets another thread run before a change of a word in memory that threads share, if the run has
/// such steps ([`Policy::at_words`]). Engines call this.
pub fn step_at_word() {
    ME.with_borrow(|me| {
        if let Some(slot) = me.as_ref().filter(|slot| slot.at_words) {
            slot.wait_for_turn();
        }
    });
}

/// The counts of a run under a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interleaving {
    /// Steps of all threads.
    pub steps: u64,
    /// Steps by another thread than the step before.
    pub switches: u64,
    /// Switches because a thread waited for a lock.
    pub waits: u64,
    /// For one run: the thread that took each step.
    #[serde(skip)]
    pub order: Vec<usize>,
}

impl Interleaving {
    /// Adds another run.
    pub fn add(&mut self, o: &Self) {
        self.steps += o.steps;
        self.switches += o.switches;
        self.waits += o.waits;
    }
}

/// A schedule by name: `5`, a seed; `preempt:12`, the first thread is interrupted after 12 steps;
/// `order:0*5,1*2`, the first thread takes five steps, then the second two. An order comes from an
/// earlier run, but can be used for other programs, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Derived from a number.
    Seed(u64),
    /// One change of thread, after this number of steps.
    Preempt(u64),
    /// The thread of each step.
    Order(Vec<usize>),
}

const PREEMPT: &str = "preempt:";
const ORDER: &str = "order:";

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seed(seed) => write!(f, "{seed}"),
            Self::Preempt(after) => write!(f, "{PREEMPT}{after}"),
            Self::Order(order) => {
                let parts = order.chunk_by(|a, b| a == b);
                let parts: Vec<_> = parts.map(|p| format!("{}*{}", p[0], p.len())).collect();
                write!(f, "{ORDER}{}", parts.join(","))
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("not a schedule: `{text}`; one is for example 5, preempt:12 or order:0*5,1*2")
        };
        let number = |text: &str| text.parse().map_err(|_| bad());
        if let Some(after) = text.strip_prefix(PREEMPT) {
            return Ok(Self::Preempt(number(after)?));
        }
        let Some(order) = text.strip_prefix(ORDER) else { return Ok(Self::Seed(number(text)?)) };
        let mut steps = Vec::new();
        for part in order.split(',').filter(|part| !part.is_empty()) {
            let (thread, times) = part.split_once('*').ok_or_else(bad)?;
            let (thread, times) = (number(thread)? as usize, number(times)? as usize);
            steps.extend(std::iter::repeat_n(thread, times.min(STEPS_MAX)));
        }
        Ok(Self::Order(steps))
    }
}

/// Steps of a thread without a change that a line can request.
const STEPS_MAX: usize = 1 << 20;

impl Schedule {
    /// Returns the policy for `threads` threads; `steps` returns about how many steps they take in
    /// all.
    pub fn policy(
        &self,
        threads: usize,
        steps: impl FnOnce() -> Result<u64, String>,
    ) -> Result<Policy, String> {
        Ok(match self {
            Self::Seed(seed) => Policy::new(*seed, threads, steps()?),
            Self::Preempt(after) => Policy::preempt(*after),
            Self::Order(order) => Policy::order(order.clone()),
        })
    }
}

/// The policy by which the next thread is chosen.
#[derive(Clone, Debug)]
pub struct Policy {
    rng: Rng,
    rule: Rule,
    at_words: bool,
}

#[derive(Clone, Debug)]
enum Rule {
    /// The threads in this order; then as [`Policy::in_turn`].
    Order(Vec<usize>),
    /// The first thread for this number of steps, then the others while they can run, then the
    /// first again.
    Preempt(u64),
    /// Any thread, at each step.
    Walk,
    /// The one of highest priority. At each of these steps, the priority of the last thread drops
    /// below all others.
    Priorities { of: Vec<i64>, drops: Vec<u64> },
}

impl Policy {
    /// Makes the policy of this seed for `threads` threads that take about `steps` steps in all.
    pub fn new(seed: u64, threads: usize, steps: u64) -> Self {
        const DROPS_MAX: u64 = 4;
        let mut rng = Rng::new(seed);
        if rng.below(2) == 0 {
            return Self { rng, rule: Rule::Walk, at_words: false };
        }
        let mut of: Vec<i64> = (1..=threads as i64).collect();
        for i in (1..threads).rev() {
            of.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let n = 1 + rng.below(DROPS_MAX);
        let drops = (0..n).map(|_| rng.below(steps.max(1))).collect();
        Self { rng, rule: Rule::Priorities { of, drops }, at_words: false }
    }

    /// Makes a policy by which the first thread runs while it can, then the next.
    pub fn in_turn(threads: usize) -> Self {
        let of = (1..=threads as i64).rev().collect();
        Self::without_chance(Rule::Priorities { of, drops: Vec::new() })
    }

    /// Makes a policy by which the first thread is interrupted once, after `after` steps.
    pub fn preempt(after: u64) -> Self {
        Self::without_chance(Rule::Preempt(after))
    }

    /// Makes a policy that repeats the order of an earlier run.
    pub fn order(order: Vec<usize>) -> Self {
        Self::without_chance(Rule::Order(order))
    }

    fn without_chance(rule: Rule) -> Self {
        Self { rng: Rng::new(0), rule, at_words: false }
    }

    /// Adds steps at changes of words, if the programs call [`step_at_word`] there.
    pub fn at_words(self) -> Self {
        Self { at_words: true, ..self }
    }

    /// Chooses among those that can run; `last` took step number `step`.
    fn choose(&mut self, ready: &[usize], last: Option<usize>, step: u64) -> usize {
        match &mut self.rule {
            Rule::Order(order) => {
                let next = order.get(step as usize).filter(|next| ready.contains(next));
                *next.unwrap_or(&ready[0])
            }
            Rule::Preempt(after) if step < *after => ready[0],
            Rule::Preempt(_) => ready[ready.len() - 1],
            Rule::Walk => self.rng.pick(ready),
            Rule::Priorities { of, drops } => {
                if let Some(last) = last
                    && drops.contains(&step)
                {
                    of[last] = of.iter().min().expect("there are threads") - 1;
                }
                *ready.iter().max_by_key(|t| of[**t]).expect("somebody is ready")
            }
        }
    }
}

thread_local! {
    static ME: RefCell<Option<Arc<ScheduledThread>>> = const { RefCell::new(None) };
}

const RUNS: u8 = 0;
const WAITS: u8 = 1;
const DONE: u8 = 2;

/// One thread, as the scheduler sees it.
#[derive(Debug)]
struct ScheduledThread {
    status: AtomicU8,
    /// The kernel's number of it; 0: not started.
    tid: AtomicI32,
    thread: OnceLock<Thread>,
    scheduler: Thread,
    /// Whether it has steps at changes of words.
    at_words: bool,
}

impl ScheduledThread {
    fn new(at_words: bool) -> Self {
        Self {
            at_words,
            status: AtomicU8::new(RUNS),
            tid: AtomicI32::new(0),
            thread: OnceLock::new(),
            scheduler: thread::current(),
        }
    }

    /// Waits in the thread at a step, until the scheduler chooses it.
    fn wait_for_turn(&self) {
        self.tell(WAITS);
        while self.status.load(Acquire) == WAITS {
            thread::park();
        }
    }

    /// Reports the thread's status to the scheduler.
    fn tell(&self, status: u8) {
        self.status.store(status, Release);
        self.scheduler.unpark();
    }

    /// Lets the thread run to its next step.
    fn go_on(&self) {
        self.status.store(RUNS, Release);
        self.thread.get().expect("a thread that waits has started").unpark();
    }

    fn is(&self, status: u8) -> bool {
        self.status.load(Acquire) == status
    }
}

/// A thread's part in a run. Dropping it ends the part, even after a panic.
struct SchedulePart(Arc<ScheduledThread>);

impl SchedulePart {
    /// Puts this thread under a scheduler, and waits for its first turn.
    fn start(slot: Arc<ScheduledThread>) -> Self {
        slot.thread.set(thread::current()).expect("a slot is one thread's");
        slot.tid.store(rustix::thread::gettid().as_raw_pid(), Release);
        ME.set(Some(slot.clone()));
        slot.wait_for_turn();
        Self(slot)
    }
}

impl Drop for SchedulePart {
    fn drop(&mut self) {
        ME.set(None);
        self.0.tell(DONE);
    }
}

/// Runs programs at once, each in a thread of its own, under `policy`. If all threads wait for each
/// other, the process prints `name` and aborts, as it cannot continue.
pub fn run<P: FnOnce() + Send>(programs: Vec<P>, mut policy: Policy, name: &str) -> Interleaving {
    let slots: Vec<Arc<ScheduledThread>> =
        programs.iter().map(|_| Arc::new(ScheduledThread::new(policy.at_words))).collect();
    thread::scope(|s| {
        for (slot, program) in slots.iter().zip(programs) {
            let slot = slot.clone();
            s.spawn(move || {
                let _part = SchedulePart::start(slot);
                program();
            });
        }
        schedule(&slots, &mut policy, name)
    })
}

/// Lets one thread at a time run, to its next step, until all are done. Returns the order that was
/// taken.
fn schedule(slots: &[Arc<ScheduledThread>], policy: &mut Policy, name: &str) -> Interleaving {
    let mut taken = Interleaving::default();
    let mut last: Option<usize> = None;
    loop {
        wait_until_all_stop(slots);
        let ready: Vec<usize> = (0..slots.len()).filter(|t| slots[*t].is(WAITS)).collect();
        if ready.is_empty() {
            if slots.iter().all(|s| s.is(DONE)) {
                return taken;
            }
            wait_for_any(slots, name);
            continue;
        }
        let next = policy.choose(&ready, last, taken.steps);
        let waits = last.is_some_and(|l| slots[l].is(RUNS));
        taken.steps += 1;
        taken.order.push(next);
        taken.switches += u64::from(last.is_some_and(|l| l != next));
        taken.waits += u64::from(waits);
        last = Some(next);
        slots[next].go_on();
    }
}

/// Waits until no thread runs: each is at a step, done, or waits for a lock.
fn wait_until_all_stop(slots: &[Arc<ScheduledThread>]) {
    const POLL: Duration = Duration::from_micros(100);
    // A thread later in the list can wake a sleeping one, so one look is not enough.
    let mut still = 0;
    let mut used: Vec<Option<u64>> = vec![None; slots.len()];
    while still < 2 {
        still += 1;
        for (slot, used) in slots.iter().zip(&mut used) {
            while slot.is(RUNS) {
                let Some((asleep, ticks)) = look(slot.tid.load(Acquire)) else {
                    // Not started, or just ended.
                    thread::park_timeout(POLL);
                    continue;
                };
                if asleep || ticks - *used.get_or_insert(ticks) > SPINNING_TICKS {
                    break;
                }
                still = 0;
                thread::park_timeout(POLL);
            }
        }
    }
}

/// Clock ticks, of 10 ms, after which a thread that has run without a step counts as spinning on a
/// lock. They count its own run time, which does not depend on other load.
const SPINNING_TICKS: u64 = 2;

/// Returns whether the kernel has a thread asleep, and its run time, in clock ticks. Returns `None`
/// if the thread has not started or has ended.
fn look(tid: i32) -> Option<(bool, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name of the command, in parentheses, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some((*fields.first()? == "S", ticks(11)? + ticks(12)?))
}

/// Waits until a thread can run again. If all threads wait for locks, and no thread is left to
/// release one, reports a deadlock.
///
/// The number of times that all are seen to be stuck decides, not the time: on a busy machine a
/// thread that could run, and this one, may not be scheduled for seconds.
fn wait_for_any(slots: &[Arc<ScheduledThread>], name: &str) {
    const POLL: Duration = Duration::from_millis(10);
    const SURE: usize = 500;
    let mut stuck = 0;
    let mut used: Vec<Option<u64>> = vec![None; slots.len()];
    while !slots.iter().any(|s| s.is(WAITS)) && !slots.iter().all(|s| s.is(DONE)) {
        let mut looks = slots.iter().zip(&mut used).filter(|(slot, _)| slot.is(RUNS));
        let are_stuck = looks.all(|(slot, used)| {
            look(slot.tid.load(Acquire)).is_some_and(|(asleep, ticks)| {
                asleep || ticks - *used.get_or_insert(ticks) > STUCK_TICKS
            })
        });
        stuck = if are_stuck { stuck + 1 } else { 0 };
        if stuck > SURE {
            eprintln!("deadlock: all threads wait for each other in: {name}");
            std::process::abort();
        }
        thread::park_timeout(POLL);
    }
}

/// Clock ticks after which a thread that has been running since all seemed to wait counts as stuck.
const STUCK_TICKS: u64 = 500;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, RwLock};

    /// Runs two threads that note their steps; the second half of them under a lock.
    fn noted(policy: Policy) -> (Vec<usize>, Interleaving) {
        let (notes, lock) = (Mutex::new(Vec::new()), RwLock::new(()));
        let program = |who: usize| {
            let (notes, lock) = (&notes, &lock);
            move || {
                let note = || {
                    step();
                    notes.lock().unwrap().push(who);
                };
                (0..4).for_each(|_| note());
                let _held = lock.write().unwrap();
                (0..4).for_each(|_| note());
            }
        };
        let taken = run((0..3).map(program).collect(), policy, "a test");
        (notes.into_inner().unwrap(), taken)
    }

    #[test]
    fn a_seed_repeats_its_schedule_and_seeds_differ() {
        let all: std::collections::BTreeSet<Vec<usize>> = (0..20)
            .map(|seed| {
                let (notes, taken) = noted(Policy::new(seed, 3, 24));
                assert_eq!(noted(Policy::new(seed, 3, 24)), (notes.clone(), taken));
                notes
            })
            .collect();
        assert!(all.len() > 15, "{} schedules of 20 seeds", all.len());
    }

    #[test]
    fn what_was_taken_is_a_line_that_repeats_it() {
        let (notes, taken) = noted(Policy::new(3, 3, 24));
        let line = Schedule::Order(taken.order.clone()).to_string();
        let again: Schedule = line.parse().unwrap();
        assert_eq!(again, Schedule::Order(taken.order.clone()), "{line}");
        assert_eq!(noted(again.policy(3, || Err("not asked".into())).unwrap()), (notes, taken));
        for bad in ["", "order:1", "order:x*2", "preempt:", "preempt:order:0*1"] {
            assert!(bad.parse::<Schedule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn who_waits_for_a_lock_lets_others_go_on() {
        let (notes, taken) = noted(Policy::new(1, 3, 24));
        assert_eq!(notes.len(), 24);
        let waits: u64 = (0..20).map(|seed| noted(Policy::new(seed, 3, 24)).1.waits).sum();
        assert!(waits > 0, "{taken:?}");
    }

    #[test]
    fn changes_of_words_are_steps_where_that_is_asked_for() {
        let steps = |policy: Policy| run(vec![step_at_word, step_at_word], policy, "a test").steps;
        assert_eq!(steps(Policy::in_turn(2)), 2, "each thread begins with one");
        assert_eq!(steps(Policy::in_turn(2).at_words()), 4);
    }

    #[test]
    fn in_turn_nobody_is_interrupted() {
        let (notes, taken) = noted(Policy::in_turn(3));
        assert!(notes.is_sorted(), "{notes:?}");
        assert_eq!((taken.switches, taken.waits), (2, 0));
    }
}
