//! Explores the crashes of any program on persistent memory, from its trace.

use crate::explore::{Budget, Explorer, Outcome, Point};
use crate::image::CrashImage;
use crate::lost::{self, Lost};
use crate::persist::{Initial, Persistency, Semantics};
use crate::stats::{Distinct, Stats};
use crate::trace::{Action, Trace};
use std::fmt;

/// The time at which the power fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Operations begun so far.
    pub begun: u32,
    /// Operations that have returned so far.
    pub returned: u32,
    /// Whether this is the end of the trace.
    pub over: bool,
}

/// Explores the crashes of a trace over memory that held `initial`: before every fence, when an
/// operation has returned, and at the end. `recover` recovers an image and returns what it found;
/// `verdict` is called once for each different recovery.
pub fn explore<S: Clone>(
    trace: &Trace,
    initial: &[u8],
    semantics: Semantics,
    budget: Budget,
    distinct: &Distinct,
    recover: &dyn Fn(&CrashImage) -> Outcome<S>,
    verdict: &mut dyn FnMut(Moment, &Outcome<S>),
) -> Stats {
    let mut crash = |explorer: &mut Explorer<'_, S>, point: &Point, now: Moment, _| {
        explorer.explore(point, &mut |_, _, outcome| verdict(now, outcome));
    };
    at_each_point(trace, initial, semantics, budget, distinct, recover, &mut crash)
}

/// States that recovery did not turn into legal ones, all for one reason: they have lost stores of
/// the same lines of source.
#[derive(Clone, Debug)]
pub struct Bug {
    /// The message about the first of them.
    pub what: String,
    /// The time at which the power failed.
    pub at: Moment,
    /// The words that it has lost, as few as possible, and the lines that stored them. Empty:
    /// recovery is wrong whatever persists.
    pub lost: Vec<Lost>,
    /// Number of verdicts on this bug.
    pub times: u64,
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} verdicts)", self.what, self.times)?;
        self.lost.iter().try_for_each(|Lost { addr, site }| {
            write!(f, "\n  lost: word {addr:#x}, stored at {site}")
        })
    }
}

/// As [`explore`], but merges verdicts on one bug: `judge` returns whether the result of a recovery
/// is legal at a moment.
pub fn find_bugs<S: Clone>(
    trace: &Trace,
    initial: &[u8],
    semantics: Semantics,
    budget: Budget,
    distinct: &Distinct,
    recover: &dyn Fn(&CrashImage) -> Outcome<S>,
    judge: &dyn Fn(Moment, &S) -> Result<(), String>,
) -> (Stats, Vec<Bug>) {
    let mut bugs: Vec<Bug> = Vec::new();
    let mut crash = |explorer: &mut Explorer<'_, S>, point: &Point, now: Moment, until: usize| {
        let wrong = |outcome: &Outcome<S>| match outcome {
            Ok(found) => judge(now, found).err(),
            Err(what) => Some(what.clone()),
        };
        let mut states = Vec::new();
        explorer.explore(point, &mut |_, state, outcome| {
            states.extend(wrong(outcome).map(|what| (state.clone(), what)));
        });
        for (state, what) in states {
            let all = lost::lost(trace, until, point, &state);
            let is_part = |bug: &&mut Bug| {
                !bug.lost.is_empty() && lost::sites(&bug.lost).is_subset(&lost::sites(&all))
            };
            if let Some(bug) = bugs.iter_mut().find(is_part) {
                bug.times += 1;
                continue;
            }
            let (state, what) = explorer.shrink(point, state, what, &wrong);
            let lost = lost::lost(trace, until, point, &state);
            let is_same = |bug: &&mut Bug| lost::is_same((&bug.lost, &bug.what), (&lost, &what));
            match bugs.iter_mut().find(is_same) {
                Some(bug) => bug.times += 1,
                None => bugs.push(Bug { what, at: now, lost, times: 1 }),
            }
        }
    };
    let stats = at_each_point(trace, initial, semantics, budget, distinct, recover, &mut crash);
    (stats, bugs)
}

/// A function called at a crash point, before the event of this number.
pub(crate) type AtPoint<'a, S> = dyn FnMut(&mut Explorer<'_, S>, &Point, Moment, usize) + 'a;

/// Calls a function at each crash point of a trace.
pub(crate) fn at_each_point<S: Clone>(
    trace: &Trace,
    initial: &[u8],
    semantics: Semantics,
    budget: Budget,
    distinct: &Distinct,
    recover: &dyn Fn(&CrashImage) -> Outcome<S>,
    at_point: &mut AtPoint<'_, S>,
) -> Stats {
    let image = CrashImage::of(initial.to_vec());
    let mut explorer = Explorer::new(&image, recover, budget, distinct);
    let mut p = Persistency::over(semantics, Initial::of(initial));
    let mut now = Moment::default();
    let mut crash = |explorer: &mut Explorer<'_, S>, p: &Persistency, now: Moment, until: usize| {
        at_point(explorer, &Point::new(p, p.units()), now, until);
    };
    for (i, event) in trace.events.iter().enumerate() {
        match event.action {
            Action::Begin { .. } => now.begun += 1,
            Action::End { .. } => now.returned += 1,
            _ => {}
        }
        if matches!(event.action, Action::Fence | Action::End { .. }) {
            crash(&mut explorer, &p, now, i);
        }
        p.apply(trace, event);
        let durable = p.take_durable_words();
        image.make_durable(&durable);
        if !durable.is_empty() && matches!(event.action, Action::Store { .. }) {
            // eADR: a store is durable at once.
            crash(&mut explorer, &p, now, i + 1);
        }
    }
    now.over = true;
    crash(&mut explorer, &p, now, trace.events.len());
    explorer.stats
}
