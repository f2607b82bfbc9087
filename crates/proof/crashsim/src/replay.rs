//! Replays a crash from one line, and crashes a given trace.

use crate::campaign::{Finding, Report};
use crate::deaths::{self, Death, Victim};
use crate::explore::Budget;
use crate::lint::lint_of;
use crate::persist::Semantics;
use crate::run::{Base, CrashAt, Explored, Settings, explore};
use crate::stats::Distinct;
use crate::target::Target;
use crate::threads::{self, ThreadsPlan};
use crate::trace::{Action, Trace};
use crate::twice::{self, Twice};
use std::fmt;
use std::str::FromStr;
use std::time::Instant;
use vfs::script::Op;

/// A crash, in one line: rules, base, crash point, state, operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The rules.
    pub semantics: Semantics,
    /// Name of the base.
    pub base: String,
    /// The crash point.
    pub at: CrashAt,
    /// The state.
    pub state: String,
    /// The workload.
    pub work: Work,
}

/// The workload that ran before the power failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// One operation after the other.
    Sequence(Vec<Op>),
    /// Threads at once.
    Threads {
        /// The programs, and their schedule.
        plan: ThreadsPlan,
        /// The run, in case the schedule does not repeat ([`threads::Recorded::print`]).
        print: u32,
    },
    /// A process died in an operation, and another continued.
    Death(Death),
    /// The power had already failed, in another operation.
    Twice(Twice),
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (semantics, base, at) = (self.semantics.name(), &self.base, self.at);
        write!(f, "{semantics} {base} {}.{} {} ", at.op, at.nth, self.state)?;
        match &self.work {
            Work::Sequence(ops) => {
                let ops: Vec<String> = ops.iter().map(Op::to_string).collect();
                f.write_str(&ops.join("; "))
            }
            Work::Threads { plan, print } => write!(f, "threads {print:x} {plan}"),
            Work::Death(death) => write!(f, "death {death}"),
            Work::Twice(twice) => write!(f, "twice {twice}"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(death) = text.strip_prefix("death ") {
            return Ok(Self::Death(death.parse()?));
        }
        if let Some(twice) = text.strip_prefix("twice ") {
            return Ok(Self::Twice(twice.parse()?));
        }
        let Some(threads) = text.strip_prefix("threads ") else {
            return Ok(Self::Sequence(vfs::script::parse(text).map_err(|e| e.to_string())?));
        };
        let (print, plan) = threads.split_once(' ').ok_or("threads have a number and a plan")?;
        let print = u32::from_str_radix(print, 16).map_err(|_| format!("not a run: `{print}`"))?;
        Ok(Self::Threads { plan: plan.parse()?, print })
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
        let work = next("operations")?.parse()?;
        Ok(Self { semantics, base, at: CrashAt { op, nth }, state, work })
    }
}

/// Beginning of the line in a trace of `keepstone crashtest` that has the replay line of its
/// workload.
const TRACE_OF: &str = "# replay ";

impl Replay {
    /// Returns a trace as text, with this line in it, by which [`explore_trace`] finds the workload
    /// again.
    pub fn trace(&self, trace: &Trace) -> String {
        let text = trace.to_string();
        let (head, events) = text.split_once('\n').unwrap_or((&text, ""));
        format!("{head}\n{TRACE_OF}{self}\n{events}")
    }

    /// Returns the line in the text of a trace, if it has one.
    pub fn of_trace(text: &str) -> Result<Option<Self>, String> {
        text.lines().find_map(|line| line.strip_prefix(TRACE_OF)).map(str::parse).transpose()
    }
}

/// Reruns one crash: returns the findings with the state's words, whether the state is wrong, and
/// the trace.
pub fn replay<T: Target>(
    target: &T,
    bases: &[Base],
    line: &Replay,
) -> Result<(Vec<Finding>, bool, Trace), String> {
    let only = Some((line.at, line.state.clone()));
    let (explored, trace) = explore_again(target, bases, line, only, None)?;
    if explored.violations.is_empty() {
        return Err(format!("operation {} has no crash point {}", line.at.op, line.at.nth));
    }
    let finding = |v| Finding::of(line.to_string(), v);
    let findings = explored.violations.into_iter().map(finding).collect();
    Ok((findings, explored.violations_total > 0, trace))
}

/// Crashes a trace everywhere. The trace is that of the line's workload, or a variant of it, for
/// example with a flush left out, to see whether that would be found. No line reproduces its
/// findings.
pub fn explore_trace<T: Target>(
    target: &T,
    bases: &[Base],
    line: &Replay,
    trace: Trace,
) -> Result<Report, String> {
    let start = Instant::now();
    let (explored, trace) = explore_again(target, bases, line, None, Some(trace))?;
    let base = base_of(bases, line)?;
    let mut report = Report::of_trace(lint_of(target, &base.bytes, &trace));
    report.stats = explored.stats;
    report.violations = explored.violations_total;
    let finding = |v| Finding::of(String::new(), v);
    report.findings = explored.violations.into_iter().map(finding).collect();
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn base_of<'b>(bases: &'b [Base], line: &Replay) -> Result<&'b Base, String> {
    let base = bases.iter().find(|b| b.name == line.base);
    base.ok_or_else(|| format!("unknown base `{}`", line.base))
}

/// Records a line's workload again and explores it, or explores a given trace with the same
/// operations.
fn explore_again<T: Target>(
    target: &T,
    bases: &[Base],
    line: &Replay,
    only: Option<(CrashAt, String)>,
    given: Option<Trace>,
) -> Result<(Explored, Trace), String> {
    let base = base_of(bases, line)?;
    let from = if only.is_some() { line.at.op as usize } else { 0 };
    let settings = Settings {
        semantics: line.semantics,
        budget: Budget::default(),
        distinct: &Distinct::default(),
        sound: &Distinct::default(),
        stop_early: false,
        only,
    };
    let take = |recorded: &mut Trace| match given {
        Some(given) if given.len != recorded.len || marks(&given) != marks(recorded) => {
            Err("the trace is of other operations than its workload".to_owned())
        }
        Some(given) => {
            *recorded = given;
            Ok(())
        }
        None => Ok(()),
    };
    match &line.work {
        Work::Sequence(ops) if from >= ops.len() => {
            Err(format!("there is no operation {from}: they are counted from 0"))
        }
        Work::Sequence(ops) => {
            let mut recorded = base.record(target, ops, from, line.semantics)?;
            take(&mut recorded.trace)?;
            Ok((explore(target, base, from, &recorded, &settings), recorded.trace))
        }
        Work::Threads { plan, print } => {
            let mut recorded = record_again(target, base, plan, line.semantics, *print)?;
            take(&mut recorded.trace)?;
            Ok((threads::explore(target, base, &recorded, &settings)?, recorded.trace))
        }
        Work::Death(Death { victim, steps, scenario }) => {
            let victim = Victim::record(target, base, victim, line.semantics)?;
            let victim = victim.ok_or("the deaths of this operation are not explored")?;
            let mut recorded = victim.dies(target, base, *steps, *scenario)?;
            take(&mut recorded.trace)?;
            Ok((explore(target, base, deaths::FROM, &recorded, &settings), recorded.trace))
        }
        Work::Twice(twice) => {
            let left = twice::left(target, base, twice, line.semantics)?;
            let second = std::slice::from_ref(&twice.second);
            let mut recorded = left.record(target, second, 0, line.semantics)?;
            take(&mut recorded.trace)?;
            Ok((explore(target, &left, 0, &recorded, &settings), recorded.trace))
        }
    }
}

/// Returns the marks of a trace: the beginnings and ends of operations.
fn marks(trace: &Trace) -> Vec<Action> {
    let is_mark = |action: &Action| matches!(action, Action::Begin { .. } | Action::End { .. });
    trace.events.iter().map(|event| event.action).filter(is_mark).collect()
}

/// Runs a plan until it repeats the wanted run.
fn record_again<T: Target>(
    target: &T,
    base: &Base,
    plan: &ThreadsPlan,
    semantics: Semantics,
    print: u32,
) -> Result<threads::Recorded, String> {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        let recorded = threads::record(target, base, plan, semantics)?;
        if recorded.print() == print {
            return Ok(recorded);
        }
    }
    Err(format!(
        "the run has come out differently {TRIES} times: the line is of another version of this program"
    ))
}
