//! Crashes while a command changes a pool as a whole and keeps what it holds, such as a resize.
//! They must leave a sound pool with the same tree.

use crate::explore::{Budget, Outcome};
use crate::image::CrashImage;
use crate::persist::Semantics;
use crate::program::{self, Moment};
use crate::recorder::Recorder;
use crate::stats::{Distinct, Stats};
use crate::target::Target;
use crate::trace::Trace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vfs::tree::Tree;

/// Runs a command on the pool in `bytes`, and records that.
///
/// # Errors
/// Those of the command.
pub fn record(
    bytes: &[u8],
    command: impl FnOnce(&Recorder<CrashImage>) -> Result<(), String>,
) -> Result<Trace, String> {
    let recorder = Recorder::new(CrashImage::of(bytes.to_vec()));
    command(&recorder)?;
    Ok(recorder.into_trace())
}

/// Explores the crashes of a recorded command on the pool in `bytes`; returns the violations.
/// `is_done` returns whether the command has taken effect, which it must have at its end.
///
/// # Errors
/// If the pool cannot be read as it is before the command.
pub fn explore<T: Target>(
    target: &T,
    bytes: &[u8],
    trace: &Trace,
    semantics: Semantics,
    is_done: impl Fn(&CrashImage) -> bool,
) -> Result<(Stats, Vec<String>), String> {
    let look = |image: &CrashImage| -> Result<(Tree, bool), String> {
        let is_done = is_done(image);
        let found = {
            let mounted = target.mount(image).map_err(|e| format!("mount: {e}"))?;
            target.strength().read(&*mounted.fs).map_err(|e| format!("walk: {e}"))?
        };
        target.check(image).map_err(|e| format!("check: {e}"))?;
        Ok((found, is_done))
    };
    let recover = |image: &CrashImage| {
        catch_unwind(AssertUnwindSafe(|| look(image)))
            .unwrap_or_else(|_| Err("recovery panicked".to_owned()))
    };
    let (old, _) = recover(&CrashImage::of(bytes.to_vec()))?;
    let mut wrong = Vec::new();
    let budget = Budget { states: 1 << 8, ..Budget::default() };
    let mut verdict = |now: Moment, outcome: &Outcome<(Tree, bool)>| match outcome {
        Err(what) => wrong.push(what.clone()),
        Ok((found, _)) if *found != old => wrong.push("another tree".into()),
        Ok((_, false)) if now.over => wrong.push("no effect after the command".into()),
        Ok(_) => {}
    };
    let distinct = Distinct::default();
    let stats =
        program::explore(trace, bytes, semantics, budget, &distinct, &recover, &mut verdict);
    Ok((stats, wrong))
}
