//! The mutation score: which planted bugs the explorer finds.

use crate::explore::Budget;
use crate::mutate::{Bug, Mutant, mutants, mutate};
use crate::op::Op;
use crate::persist::Semantics;
use crate::run::{Base, Recorded, Settings, explore};
use crate::stats::Distinct;
use crate::target::Target;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A workload on a base shows it.
    Killed {
        /// The base and the operations.
        by: String,
        /// What went wrong.
        what: String,
    },
    /// No workload shows it.
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
    let mut recorded = Vec::with_capacity(workloads.len());
    let mut meets: BTreeMap<Mutant, Vec<usize>> = BTreeMap::new();
    for (i, (base, ops)) in workloads.iter().enumerate() {
        let r = base.record(target, ops, from)?;
        for m in mutants(&r.trace, from as u32).into_iter().filter(|m| only(m)) {
            meets.entry(m).or_default().push(i);
        }
        recorded.push(r);
    }
    let mut fates = BTreeMap::new();
    for (mutant, at) in meets {
        let mut fate = Fate::Moot;
        for i in at {
            let (base, ops) = &workloads[i];
            let Some(trace) = mutate(&recorded[i].trace, &base.bytes, &mutant) else { continue };
            let r = Recorded {
                trace,
                trees: recorded[i].trees.clone(),
                promises: recorded[i].promises.clone(),
                syncs: recorded[i].syncs.clone(),
            };
            fate = Fate::Survived;
            if let Some(what) = first_violation(target, base, from, &r) {
                let ops: Vec<String> = ops.iter().map(Op::to_string).collect();
                let by = format!("{}: {}", base.name, ops.join("; "));
                fate = Fate::Killed { by, what };
                break;
            }
        }
        fates.insert(mutant, fate);
    }
    Ok(fates)
}

fn first_violation<T: Target>(
    target: &T,
    base: &Base,
    from: usize,
    recorded: &Recorded,
) -> Option<String> {
    let settings = Settings {
        semantics: Semantics::Adr,
        budget: Budget { states: 16, samples: 0, ..Budget::default() },
        distinct: &Distinct::default(),
        stop_early: true,
        only: None,
    };
    let explored = explore(target, base, from, recorded, &settings);
    explored.violations.into_iter().next().map(|v| v.what)
}

/// Killed and tried mutants of each bug; moot ones do not count.
pub fn table(fates: &BTreeMap<Mutant, Fate>) -> BTreeMap<Bug, (u32, u32)> {
    let mut table: BTreeMap<Bug, (u32, u32)> = BTreeMap::new();
    for (mutant, fate) in fates.iter().filter(|(_, f)| **f != Fate::Moot) {
        let row = table.entry(mutant.bug).or_default();
        row.0 += u32::from(*fate != Fate::Survived);
        row.1 += 1;
    }
    table
}

/// A site by function and text instead of line number, so that it can be named in a list:
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
