//! The mutation score: the share of planted bugs that the explorer finds.

use crate::explore::Budget;
use crate::mutate::{Bug, Mutant, mutants, mutate};
use crate::persist::Semantics;
use crate::run::{Base, Recorded, Settings, explore};
use crate::stats::Distinct;
use crate::target::Target;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use vfs::script::Op;

/// The fate of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A workload on a base reveals it.
    Killed {
        /// The base and the operations.
        by: String,
        /// The violation.
        what: String,
    },
    /// No workload reveals it.
    Survived,
    /// The bug changes nothing in any workload.
    Moot,
}

/// Tries all mutants of these workloads, each `(base, operations)`, crashing from operation `from`
/// on; a mutant is dead at its first violation.
pub fn score<T: Target>(
    target: &T,
    workloads: &[(&Base, Vec<Op>)],
    from: usize,
    only: &dyn Fn(&Mutant) -> bool,
) -> Result<BTreeMap<Mutant, Fate>, String> {
    score_under(target, workloads, from, Semantics::Adr, only)
}

/// As [`score`], under these rules.
pub fn score_under<T: Target>(
    target: &T,
    workloads: &[(&Base, Vec<Op>)],
    from: usize,
    semantics: Semantics,
    only: &dyn Fn(&Mutant) -> bool,
) -> Result<BTreeMap<Mutant, Fate>, String> {
    let recorded = workloads.iter().map(|(base, ops)| {
        let names: Vec<String> = ops.iter().map(Op::to_string).collect();
        let recorded = base.record(target, ops, from, semantics)?;
        Ok(Run { base, name: names.join("; "), recorded })
    });
    Ok(score_runs(target, &recorded.collect::<Result<Vec<_>, String>>()?, from, semantics, only))
}

/// A workload that was run.
#[derive(Debug)]
pub struct Run<'b> {
    /// Its base.
    pub base: &'b Base,
    /// Its operations, for people.
    pub name: String,
    /// Its accesses to memory.
    pub recorded: Recorded,
}

/// As [`score`], for recorded runs. Uses all processors: mutants share only the crash points that
/// were found to be sound, most of which the program without a bug has, too.
pub fn score_runs<T: Target>(
    target: &T,
    runs: &[Run<'_>],
    from: usize,
    semantics: Semantics,
    only: &dyn Fn(&Mutant) -> bool,
) -> BTreeMap<Mutant, Fate> {
    let mut meets: BTreeMap<Mutant, Vec<&Run<'_>>> = BTreeMap::new();
    for run in runs {
        for m in mutants(&run.recorded.trace, from as u32).into_iter().filter(|m| only(m)) {
            meets.entry(m).or_default().push(run);
        }
    }
    let sound = Distinct::default();
    let fate = |mutant: &Mutant, runs: Vec<&Run<'_>>| {
        let mut fate = Fate::Moot;
        for run in runs {
            let Some(trace) = mutate(&run.recorded.trace, &run.base.bytes, mutant) else {
                continue;
            };
            fate = Fate::Survived;
            let recorded = Recorded { trace, ..run.recorded.clone() };
            if let Some(what) =
                first_violation(target, run.base, from, &recorded, semantics, &sound)
            {
                return Fate::Killed { by: format!("{}: {}", run.base.name, run.name), what };
            }
        }
        fate
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // Those that take longest first, so that no thread is left with one at the end.
    let mut meets: Vec<_> = meets.into_iter().collect();
    meets.sort_by_key(|(_, runs)| Reverse(runs.len()));
    let left = Mutex::new(meets.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let judge = || {
        let judged = std::iter::from_fn(next).map(|(mutant, runs)| {
            let fate = fate(&mutant, runs);
            (mutant, fate)
        });
        judged.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let judges: Vec<_> = (0..threads).map(|_| scope.spawn(judge)).collect();
        let judged = judges.into_iter().map(|judge| judge.join());
        judged.flat_map(|fates| fates.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Explores a run with a small budget; returns the first violation's message.
fn first_violation<T: Target>(
    target: &T,
    base: &Base,
    from: usize,
    recorded: &Recorded,
    semantics: Semantics,
    sound: &Distinct,
) -> Option<String> {
    let settings = Settings {
        semantics,
        budget: Budget { states: 16, runs: 64, samples: 0, ..Budget::default() },
        distinct: &Distinct::default(),
        sound,
        stop_early: true,
        only: None,
    };
    let explored = explore(target, base, from, recorded, &settings);
    explored.violations.into_iter().next().map(|v| v.what)
}

/// Returns the numbers of killed and tried mutants of each bug; moot ones do not count.
pub fn table(fates: &BTreeMap<Mutant, Fate>) -> BTreeMap<Bug, (u32, u32)> {
    let mut table: BTreeMap<Bug, (u32, u32)> = BTreeMap::new();
    for (mutant, fate) in fates.iter().filter(|(_, f)| **f != Fate::Moot) {
        let row = table.entry(mutant.bug).or_default();
        row.0 += u32::from(*fate != Fate::Survived);
        row.1 += 1;
    }
    table
}

/// Names a site by function and text instead of line number, so that it can be put in a list:
/// `file.rs prune: let _ = self.medium.fence();`. `crates` is the folder with the sources.
pub fn label(crates: &Path, site: &str) -> String {
    let named = || {
        let (file, line) = site.rsplit_once(':')?;
        let line: usize = line.parse().ok()?;
        let text = std::fs::read_to_string(crates.join(file)).ok()?;
        let lines: Vec<&str> = text.lines().collect();
        let code = lines.get(line.checked_sub(1)?)?.trim();
        let function = lines[..line].iter().rev().find_map(|l| {
            let (before, after) = l.split_once("fn ")?;
            let head = before.trim();
            let is_head = head.is_empty() || head.starts_with("pub");
            is_head.then(|| after.split(['(', '<']).next().unwrap_or(after))
        })?;
        let file = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{file} {function}: {code}"))
    };
    named().unwrap_or_else(|| site.to_owned())
}
