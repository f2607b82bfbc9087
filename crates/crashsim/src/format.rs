//! Crashes while a pool is formatted over another one: there must be the old pool, or none, or the
//! new one, empty; and the new one when formatting has returned.

use crate::explore::{Budget, Explorer, Point};
use crate::image::CrashImage;
use crate::oracle::{Found, Oracle};
use crate::persist::{Persistency, Semantics};
use crate::recorder::Recorder;
use crate::run::Base;
use crate::stats::{Distinct, Stats};
use crate::target::Target;
use crate::trace::{Action, Trace};
use std::sync::Arc;
use vfs::model::Model;
use vfs::tree::{Tree, tree};

/// Formats over `base` and records it.
pub fn record<T: Target>(target: &T, base: &Base) -> Result<Trace, String> {
    let recorder = Recorder::new(CrashImage::of(base.bytes.clone()));
    target.format(&recorder)?;
    Ok(recorder.into_trace())
}

/// Explores the crashes of a recorded formatting; returns what is wrong.
pub fn explore<T: Target>(
    target: &T,
    base: &Base,
    trace: &Trace,
    semantics: Semantics,
) -> Result<(Stats, Vec<String>), String> {
    let walk = |m: &Model| tree(m).map(Arc::new).map_err(|e| e.to_string());
    let (old, new) = (walk(&base.model())?, walk(&Model::new())?);
    let oracle = Oracle::new(target, base.fresh());
    let recover = |image: &CrashImage| match target.is_pool(image) {
        true => oracle.recover(image).map(Some),
        false => Ok(None),
    };
    let image = CrashImage::of(base.bytes.clone());
    let distinct = Distinct::default();
    let budget = Budget { states: 1 << 8, ..Budget::default() };
    let mut explorer = Explorer::new(&image, &recover, budget, &distinct);
    let mut p = Persistency::over(semantics, &base.bytes);
    let mut wrong = Vec::new();
    let mut crash =
        |explorer: &mut Explorer<'_, Option<Found>>, p: &Persistency, legal: &[&Arc<Tree>]| {
            oracle.next_point();
            let units = p.units();
            explorer.explore(&Point::new(p, &units), &mut |_, _, outcome| match outcome {
                Err(what) => wrong.push(what.clone()),
                Ok(None) if legal.len() > 1 => {}
                Ok(Some(found)) if legal.contains(&&found.tree) => {}
                Ok(None) => wrong.push("no pool after formatting".into()),
                Ok(Some(_)) => wrong.push("neither the old pool nor an empty one".into()),
            });
        };
    for event in &trace.events {
        if event.action == Action::Fence {
            crash(&mut explorer, &p, &[&old, &new]);
        }
        p.apply(trace, event);
        image.settle(&p.take_settled());
    }
    crash(&mut explorer, &p, &[&new]);
    Ok((explorer.stats.clone(), wrong))
}
