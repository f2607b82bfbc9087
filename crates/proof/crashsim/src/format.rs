//! Crashes while a pool is formatted over another one. They must leave the old pool, no pool, or
//! the new one, empty; and the new one once formatting has returned.

use crate::explore::{Budget, Outcome};
use crate::image::CrashImage;
use crate::oracle::{FoundState, Oracle};
use crate::persist::Semantics;
use crate::program::{self, Moment};
use crate::recorder::Recorder;
use crate::run::Base;
use crate::stats::{Distinct, Stats};
use crate::target::Target;
use crate::trace::Trace;
use std::sync::Arc;
use vfs::model::Model;

/// Formats over `base`, and records that.
pub fn record<T: Target>(target: &T, base: &Base) -> Result<Trace, String> {
    let recorder = Recorder::new(CrashImage::of(base.bytes.clone()));
    target.format(&recorder)?;
    Ok(recorder.into_trace())
}

/// Explores the crashes of a recorded formatting; returns the violations.
pub fn explore<T: Target>(
    target: &T,
    base: &Base,
    trace: &Trace,
    semantics: Semantics,
) -> Result<(Stats, Vec<String>), String> {
    let strength = target.strength();
    let walk = |m: &Model| strength.read(m).map(Arc::new).map_err(|e| e.to_string());
    let (old, new) = (walk(&base.model())?, walk(&Model::new())?);
    let oracle = Oracle::new(target, base.fresh());
    let recover = |image: &CrashImage| match target.is_pool(image) {
        true => oracle.recover(image).map(Some),
        false => Ok(None),
    };
    let mut wrong = Vec::new();
    let budget = Budget { states: 1 << 8, ..Budget::default() };
    let mut verdict = |now: Moment, outcome: &Outcome<Option<FoundState>>| match outcome {
        Err(what) => wrong.push(what.clone()),
        Ok(None) if now.over => wrong.push("no pool after formatting".into()),
        Ok(None) => {}
        Ok(Some(found)) if found.tree == new || !now.over && found.tree == old => {}
        Ok(Some(_)) => wrong.push("neither the old pool nor an empty one".into()),
    };
    let (bytes, distinct) = (&base.bytes, Distinct::default());
    let stats =
        program::explore(trace, bytes, semantics, budget, &distinct, &recover, &mut verdict);
    Ok((stats, wrong))
}
