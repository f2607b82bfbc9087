//! Any program on persistent memory: its trace, crashed everywhere.

use crate::explore::{Budget, Explorer, Outcome, Point};
use crate::image::CrashImage;
use crate::persist::{Initial, Persistency, Semantics};
use crate::stats::{Distinct, Stats};
use crate::trace::{Action, Trace};

/// When the power fails.
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
/// operation has returned, and at the end. `recover` brings an image to life and says what it found;
/// `verdict` is told once for each different recovery.
pub fn explore<S: Clone>(
    trace: &Trace,
    initial: &[u8],
    semantics: Semantics,
    budget: Budget,
    distinct: &Distinct,
    recover: &dyn Fn(&CrashImage) -> Outcome<S>,
    verdict: &mut dyn FnMut(Moment, &Outcome<S>),
) -> Stats {
    let image = CrashImage::of(initial.to_vec());
    let mut explorer = Explorer::new(&image, recover, budget, distinct);
    let mut p = Persistency::over(semantics, Initial::of(initial));
    let mut now = Moment::default();
    let mut crash = |explorer: &mut Explorer<'_, S>, p: &Persistency, now: Moment| {
        explorer.explore(&Point::new(p, p.units()), &mut |_, _, outcome| verdict(now, outcome));
    };
    for event in &trace.events {
        match event.action {
            Action::Begin { .. } => now.begun += 1,
            Action::End { .. } => now.returned += 1,
            _ => {}
        }
        if matches!(event.action, Action::Fence | Action::End { .. }) {
            crash(&mut explorer, &p, now);
        }
        p.apply(trace, event);
        let durable = p.take_durable_words();
        image.make_durable(&durable);
        if !durable.is_empty() && matches!(event.action, Action::Store { .. }) {
            // eADR: a store is durable at once.
            crash(&mut explorer, &p, now);
        }
    }
    now.over = true;
    crash(&mut explorer, &p, now);
    explorer.stats
}
