//! What a trace shows without a crash: stores that are never made durable, flushes in vain.
//!
//! Left out: one thread making durable what it read of another's undecided stores. Exploring with
//! alternating threads ([`crate::run`]) and [`crate::threads`] finds what comes of it.

use crate::trace::{Action, StoreKind, Trace};
use std::collections::{BTreeMap, BTreeSet};

/// What is odd, by line of source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lint {
    /// Stores through the cache that nothing flushed: how many.
    pub unflushed: BTreeMap<String, u64>,
    /// Flushes of ranges in which no line had been stored to since its last flush: how many of all.
    pub clean: BTreeMap<String, (u64, u64)>,
    /// Fences with nothing to wait for: how many of all.
    pub idle: BTreeMap<String, (u64, u64)>,
}

/// Looks at a trace.
pub fn lint(trace: &Trace) -> Lint {
    let mut lint = Lint::default();
    // Lines stored to and not flushed, each with the sites of the stores.
    let mut dirty: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut waiting: BTreeSet<u8> = BTreeSet::new();
    let name = |site: u32| trace.sites[site as usize].clone();
    for e in &trace.events {
        match e.action {
            Action::Store { kind: StoreKind::Nt, .. } => drop(waiting.insert(e.thread)),
            Action::Store { addr, len, .. } => {
                for line in addr / 64..(addr + len).div_ceil(64) {
                    dirty.entry(line).or_default().insert(e.site);
                }
            }
            Action::Flush { addr, len } => {
                let lines = addr / 64..(addr + len).div_ceil(64);
                let any = lines.filter(|line| dirty.remove(line).is_some()).count() > 0;
                let (clean, all) = lint.clean.entry(name(e.site)).or_default();
                *clean += u64::from(!any);
                *all += 1;
                waiting.insert(e.thread);
            }
            Action::Fence => {
                let (idle, all) = lint.idle.entry(name(e.site)).or_default();
                *idle += u64::from(!waiting.remove(&e.thread));
                *all += 1;
            }
            Action::Begin { .. } | Action::End { .. } => {}
        }
    }
    for site in dirty.into_values().flatten() {
        *lint.unflushed.entry(name(site)).or_default() += 1;
    }
    lint.clean.retain(|_, (n, _)| *n > 0);
    lint.idle.retain(|_, (n, _)| *n > 0);
    lint
}
