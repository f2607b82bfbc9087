//! The results of `run` against those of an earlier one. Only ratios are compared: all targets
//! of a run had one machine and one load, but those of two runs may differ.

use super::results::Report;
use crate::statistics::Interval;
use anyhow::{Result, ensure};

/// The change of a ratio.
#[derive(Clone, Debug)]
pub struct Change {
    /// The case.
    pub case: String,
    /// The target.
    pub target: String,
    /// The speed as a multiple of the baseline's, then.
    pub then: f64,
    /// The same now; `None` if the case fails now.
    pub now: Option<Interval>,
    /// It is worse than tolerated, and not only by chance.
    pub worse: bool,
}

/// Compares all ratios that both have. `tolerance` is the share by which a ratio may be less.
pub fn changes(now: &Report, then: &Report, tolerance: f64) -> Result<Vec<Change>> {
    let (ours, theirs) = (now.baseline(), then.baseline());
    ensure!(ours == theirs, "its ratios are to {theirs}, those of this run to {ours}");
    let is_target = |name: &str| now.targets.iter().any(|t| t.name == name && !t.is_repeat);
    let mut changes = Vec::new();
    for case in &then.cases {
        let Some(ours) = now.cases.iter().find(|ours| ours.name == case.name) else { continue };
        for row in case.rows.iter().filter(|row| is_target(&row.target)) {
            let Some(then) = row.numbers.and_then(|numbers| numbers.speed) else { continue };
            let now = ours.numbers(&row.target).and_then(|numbers| numbers.speed);
            let is_worse = |now: Interval| {
                now.median < then.median * (1.0 - tolerance) && now.is_apart_from(&then)
            };
            changes.push(Change {
                case: case.name.clone(),
                target: row.target.clone(),
                then: then.median,
                now,
                worse: now.is_none_or(is_worse),
            });
        }
    }
    ensure!(!changes.is_empty(), "it has no ratio that this run has, too");
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::tests::report;

    #[test]
    fn only_a_clear_loss_is_worse() {
        let then = report(&[("disk", 1.0, 0.02), ("pool", 4.0, 0.1)]);
        let worse = |speed, spread| {
            let now = report(&[("disk", 1.0, 0.02), ("pool", speed, spread)]);
            let changes = changes(&now, &then, 0.1).unwrap();
            assert_eq!(changes.len(), 1);
            changes[0].worse
        };
        assert!(!worse(4.5, 0.1));
        assert!(!worse(3.8, 0.1), "within the tolerance");
        assert!(!worse(3.5, 0.6), "the intervals overlap");
        assert!(worse(3.5, 0.1));
    }

    #[test]
    fn other_baselines_and_targets_do_not_compare() {
        let then = report(&[("disk", 1.0, 0.0), ("pool", 4.0, 0.1)]);
        let other = report(&[("tmpfs", 1.0, 0.0), ("pool", 4.0, 0.1)]);
        assert!(changes(&other, &then, 0.1).unwrap_err().to_string().contains("tmpfs"));
        let alone = report(&[("disk", 1.0, 0.0)]);
        assert!(changes(&alone, &then, 0.1).is_err());
    }

    #[test]
    fn a_case_that_fails_now_is_worse() {
        let then = report(&[("disk", 1.0, 0.0), ("pool", 4.0, 0.1)]);
        let mut now = then.clone();
        now.cases[0].rows[2].numbers = None;
        assert!(changes(&now, &then, 0.1).unwrap()[0].worse);
    }
}
