//! Several threads at once, crashed everywhere: any linearizable prefix is legal.
//!
//! Threads run for real, on the recorder, which makes them give way to each other at random stores.
//! So a run is not repeatable by its seed; its trace is the replay, and a violation carries it.
//!
//! At a crash point some operations have returned, some are in flight. Recovery must find the tree
//! of a sequence that has all of the former and any of the latter, in an order that agrees with
//! real time and in which each operation gives the result that its thread saw.

use crate::explore::{Budget, Explorer, Point};
use crate::image::CrashImage;
use crate::op::{Driver, Op};
use crate::oracle::Oracle;
use crate::persist::{Persistency, Semantics};
use crate::recorder::Recorder;
use crate::rng::Rng;
use crate::run::Base;
use crate::stats::{Distinct, Stats};
use crate::target::Target;
use crate::trace::{Action, Trace};
use std::collections::BTreeMap;
use std::sync::Mutex;
use vfs::model::Model;
use vfs::tree::{Tree, tree};

/// What threads do: each its own sequence.
pub type Programs = Vec<Vec<Op>>;

/// Files that all threads use, and one that each has for itself.
pub fn programs(rng: &mut Rng, threads: usize, ops: usize) -> Programs {
    let program = |t: usize, rng: &mut Rng| {
        let own = format!("/t{t}");
        (0..ops)
            .map(|_| match rng.below(14) {
                0 => Op::Create(own.clone()),
                1 => Op::Write("/a".into(), rng.below(9000), 100),
                2 => Op::Append("/a".into(), 300),
                3 => Op::Truncate("/a".into(), rng.below(9000)),
                4 => Op::Rename("/a".into(), "/n".into()),
                5 => Op::Rename("/n".into(), "/d/n".into()),
                6 => Op::Rename("/d/n".into(), "/a".into()),
                7 => Op::Link("/a".into(), own.clone()),
                8 => Op::Unlink(own.clone()),
                9 => Op::Write("/d/c".into(), 0, 8),
                10 => Op::Exchange("/a".into(), "/d/c".into()),
                11 => Op::Append("/d/c".into(), 5000),
                12 => Op::Create("/n".into()),
                _ => Op::SetAll("/a".into(), rng.below(9000), 0o600, 3),
            })
            .collect()
    };
    (0..threads).map(|t| program(t, rng)).collect()
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct Explored {
    /// Counts.
    pub stats: Stats,
    /// What is wrong, at most one a crash point.
    pub violations: Vec<String>,
    /// The trace.
    pub trace: Trace,
}

/// An operation of a run: its number in traces is its index.
struct Call {
    op: Op,
    worked: bool,
}

/// Runs programs on a base at once and explores the crashes.
pub fn explore<T: Target>(
    target: &T,
    base: &Base,
    programs: &Programs,
    seed: u64,
    budget: Budget,
    distinct: &Distinct,
) -> Result<Explored, String> {
    let (trace, calls) = record(target, base, programs, seed)?;
    let oracle = Oracle::new(target, base.fresh());
    let recover = |image: &CrashImage| oracle.recover(image);
    let image = CrashImage::of(base.bytes.clone());
    let mut explorer = Explorer::new(&image, &recover, budget, distinct);
    let mut p = Persistency::over(Semantics::Adr, &base.bytes);
    let mut found = Explored::default();
    // For each operation: where its first and last event are, as far as the crash point knows.
    let mut spans: BTreeMap<usize, (usize, Option<usize>)> = BTreeMap::new();
    let mut stored = false;
    for (i, event) in trace.events.iter().enumerate() {
        match event.action {
            Action::Begin { op } => drop(spans.insert(op as usize, (i, None))),
            Action::End { op } => {
                spans.entry(op as usize).and_modify(|s| s.1 = Some(i));
            }
            Action::Store { .. } => stored = true,
            _ => {}
        }
        let crash =
            matches!(event.action, Action::End { .. }) || event.action == Action::Fence && stored;
        if crash {
            stored = false;
            oracle.next_point();
            let legal = linearizations(base, &calls, &spans)?;
            let units = p.units();
            let mut wrong = None;
            explorer.explore(&Point::new(&p, &units), &mut |_, _, outcome| match outcome {
                Err(what) => drop(wrong.get_or_insert(what.clone())),
                Ok(f) if legal.iter().any(|t| *t == *f.tree) => {}
                Ok(f) => {
                    let diffs = legal.iter().filter_map(|t| vfs::tree::diff(t, &f.tree));
                    let nearest = diffs.min_by_key(String::len).unwrap_or_default();
                    wrong.get_or_insert(format!(
                        "none of {} legal trees; the nearest: {nearest}",
                        legal.len()
                    ));
                }
            });
            found.violations.extend(wrong.map(|w| format!("before event {i}: {w}")));
        }
        p.apply(&trace, event);
        image.settle(&p.take_settled());
    }
    found.stats = explorer.stats.clone();
    found.trace = trace;
    Ok(found)
}

/// Runs programs at once; operations are numbered in the order in which they start.
fn record<T: Target>(
    target: &T,
    base: &Base,
    programs: &Programs,
    seed: u64,
) -> Result<(Trace, Vec<Call>), String> {
    let recorder = Recorder::new(CrashImage::of(base.bytes.clone())).with_chaos(seed);
    let calls: Mutex<Vec<Call>> = Mutex::default();
    {
        let mounted = target.mount(&recorder)?;
        let run = |program: &Vec<Op>| {
            let mut driver = Driver::new(&*mounted.fs);
            for op in program {
                let id = {
                    let mut calls = calls.lock().expect("no program panics here");
                    calls.push(Call { op: op.clone(), worked: false });
                    calls.len() - 1
                };
                recorder.begin(id as u32);
                let worked = driver.run(op, id as u64).is_ok();
                calls.lock().expect("no program panics here")[id].worked = worked;
                recorder.end(id as u32);
            }
        };
        let run = &run;
        std::thread::scope(|s| {
            for program in programs {
                s.spawn(move || run(program));
            }
        });
    }
    let calls = calls.into_inner().map_err(|_| "a program panicked".to_owned())?;
    Ok((recorder.into_trace(), calls))
}

/// Every tree that the operations begun so far can have led to.
fn linearizations(
    base: &Base,
    calls: &[Call],
    spans: &BTreeMap<usize, (usize, Option<usize>)>,
) -> Result<Vec<Tree>, String> {
    let mut search = Search { calls, spans, trees: Vec::new(), steps: 0 };
    search.extend(&base.model(), &mut Vec::new())?;
    Ok(search.trees)
}

struct Search<'a> {
    calls: &'a [Call],
    spans: &'a BTreeMap<usize, (usize, Option<usize>)>,
    trees: Vec<Tree>,
    steps: u64,
}

impl Search<'_> {
    /// Orders beyond this number are a mistake of who chose the programs.
    const STEPS_MAX: u64 = 200_000;

    fn extend(&mut self, model: &Model, done: &mut Vec<usize>) -> Result<(), String> {
        self.steps += 1;
        if self.steps > Self::STEPS_MAX {
            return Err("too many orders: use fewer or shorter programs".into());
        }
        let left: Vec<usize> = self.spans.keys().copied().filter(|c| !done.contains(c)).collect();
        // All that had returned are in: what is in flight may be missing.
        if left.iter().all(|c| self.spans[c].1.is_none()) {
            let t = tree(model).map_err(|e| e.to_string())?;
            if !self.trees.contains(&t) {
                self.trees.push(t);
            }
        }
        for &call in &left {
            let start = self.spans[&call].0;
            let too_early = |c: &usize| self.spans[c].1.is_some_and(|end| end < start);
            if left.iter().any(too_early) {
                continue;
            }
            let Call { op, worked, .. } = &self.calls[call];
            let next = model.clone();
            let fits = Driver::new(&next).run(op, call as u64).is_ok() == *worked;
            // Of an operation in flight only the effect counts: its result was seen by nobody.
            if fits {
                done.push(call);
                self.extend(&next, done)?;
                done.pop();
            }
        }
        Ok(())
    }
}
