//! The time until the first cell fails, if the traced run repeats for ever.
//!
//! A write of a line wears all its cells once. Hardware that compares can write only the words that
//! were stored to ([`Levelling::PartialWrites`]); Lee et al. (ISCA 2009), whom §4.2 cites, extend
//! the life of a device so, together with several row buffers, from 525 to 49 000 hours.

use super::counts::{WearCounts, WearTotals};
use super::{start_gap, swap};
use serde::Serialize;
use std::fmt;

/// The numbers of writes that a cell endures, from 2009 to 2012 by the paper's forecast (§4.2).
pub const ENDURANCES: [f64; 5] = [1e8, 1e9, 1e10, 1e11, 1e12];

/// A way to spread writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Levelling {
    /// None: the line with the most writes fails first.
    None,
    /// Only words that were stored to are written.
    PartialWrites,
    /// The bits of a page rotate, so that its cells wear evenly (§4.2); whole lines are written.
    Rotation,
    /// Rotation, and swaps of a page with a random one ([`swap`]).
    PageSwaps,
    /// A gap moves through the lines ([`start_gap`]).
    StartGap,
    /// All lines of the memory wear evenly: the bound.
    Ideal,
}

impl Levelling {
    /// All, from the worst to the best.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::PartialWrites,
        Self::Rotation,
        Self::PageSwaps,
        Self::StartGap,
        Self::Ideal,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::PartialWrites => "partial writes",
            Self::Rotation => "bit rotation",
            Self::PageSwaps => "rotation, page swaps",
            Self::StartGap => "start-gap",
            Self::Ideal => "ideal",
        }
    }
}

impl fmt::Display for Levelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The memory that wears.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worn {
    /// Lines of the memory.
    pub lines: u64,
    /// Seconds that the run takes.
    pub run_s: f64,
    /// Settings of start-gap.
    pub start_gap: start_gap::StartGap,
    /// Settings of page swaps.
    pub swaps: swap::PageSwaps,
}

/// The time until a cell fails.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lifetime {
    /// The levelling.
    pub levelling: Levelling,
    /// Writes that a cell endures.
    pub endurance: f64,
    /// Hours until the first cell fails.
    pub hours: f64,
    /// That time as a part of the ideal one.
    pub of_ideal: f64,
}

impl Worn {
    /// Computes lifetimes for one endurance. The order is that of [`Levelling::ALL`]. `None` if
    /// nothing was written.
    pub fn lifetimes(&self, counts: &WearCounts, endurance: f64) -> Option<Vec<Lifetime>> {
        let totals: WearTotals = counts.totals();
        if totals.line_writes == 0 {
            return None;
        }
        let writes = totals.line_writes as f64;
        let ideal = endurance * self.lines as f64 / writes;
        let shares: Vec<(u64, f64)> =
            counts.lines().map(|(line, n)| (line, f64::from(n) / writes)).collect();
        let runs = |levelling| match levelling {
            Levelling::None => endurance / totals.line_max as f64,
            Levelling::PartialWrites => endurance / totals.word_max.max(1) as f64,
            Levelling::Rotation => endurance / totals.page_max,
            Levelling::PageSwaps => {
                self.swaps.writes_until_failure(&shares, self.lines, endurance) / writes
            }
            Levelling::StartGap => {
                self.start_gap.writes_until_failure(&shares, self.lines, endurance) / writes
            }
            Levelling::Ideal => ideal,
        };
        let lifetime = |levelling| {
            let runs = runs(levelling);
            let hours = runs * self.run_s / 3600.0;
            Lifetime { levelling, endurance, hours, of_ideal: runs / ideal }
        };
        Some(Levelling::ALL.map(lifetime).to_vec())
    }
}
