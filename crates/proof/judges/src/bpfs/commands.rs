//! Crashes of commands on a whole pool, for commands that change what a pool is besides its tree.

use crashsim::explore::{Budget, Outcome};
use crashsim::image::CrashImage;
use crashsim::persist::Semantics;
use crashsim::program::{self, Moment};
use crashsim::stats::{Distinct, Stats};
use crashsim::trace::Trace;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A continuation after a crash.
#[derive(Clone, Copy)]
pub struct Sequel<F> {
    /// A command that works after a crash anywhere.
    pub run: fn(&CrashImage) -> Result<(), String>,
    /// Its effect.
    pub done: F,
}

/// A recorded command.
pub struct CommandRun<F> {
    /// Its name in reports.
    pub name: String,
    /// The pool before.
    pub bytes: Vec<u8>,
    /// The accesses of the command.
    pub trace: Trace,
    /// The state of the pool before the command.
    pub before: F,
    /// The state after it.
    pub done: F,
    /// Recovers an image and returns what it is.
    pub state: fn(&CrashImage) -> Result<F, String>,
    /// A continuation after each crash, whose result is judged as well.
    pub then: Option<Sequel<F>>,
}

impl<F: Clone + PartialEq + Debug> CommandRun<F> {
    /// Explores the crashes of the command, or of a changed `trace` of it.
    ///
    /// # Errors
    /// The first violation.
    pub fn explore(&self, trace: &Trace, semantics: Semantics) -> Result<Stats, String> {
        let state = |image: &CrashImage| -> Result<F, String> {
            let after = (self.state)(image)?;
            if let Some(then) = &self.then {
                (then.run)(image).map_err(|e| format!("after that: {e}"))?;
                let end = (self.state)(image)?;
                if end != then.done {
                    return Err(format!("after that: it leaves {end:?}"));
                }
            }
            Ok(after)
        };
        let recover = |image: &CrashImage| {
            catch_unwind(AssertUnwindSafe(|| state(image)))
                .unwrap_or_else(|_| Err("recovery panicked".to_owned()))
        };
        let mut wrong = None;
        let mut verdict = |now: Moment, outcome: &Outcome<F>| match outcome {
            Err(what) => wrong = wrong.take().or(Some(what.clone())),
            Ok(found) if *found == self.done || *found == self.before && !now.over => {}
            Ok(found) => wrong = wrong.take().or(Some(format!("it leaves {found:?}"))),
        };
        let budget = Budget { states: 1 << 8, ..Budget::default() };
        let (bytes, distinct) = (&self.bytes, Distinct::default());
        let stats =
            program::explore(trace, bytes, semantics, budget, &distinct, &recover, &mut verdict);
        match wrong {
            Some(what) => Err(format!("{}: {what}", self.name)),
            None => Ok(stats),
        }
    }
}

/// Explores the crashes of recorded commands.
///
/// # Errors
/// The first violation.
pub fn explore_all<F: Clone + PartialEq + Debug>(
    runs: Vec<CommandRun<F>>,
    semantics: Semantics,
) -> Result<Stats, String> {
    let mut all = Stats::default();
    for run in runs {
        all.add(&run.explore(&run.trace, semantics)?);
    }
    Ok(all)
}
