//! The results of `run`, as JSON has them.

use super::durability::{Class, Durability};
use crate::statistics::{Interval, Latency};
use serde::{Deserialize, Serialize};

/// The results of one `run`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The settings that numbers depend on.
    pub settings: Scale,
    /// The targets. The first is the baseline, the second the same again.
    pub targets: Vec<Facts>,
    /// The cases.
    pub cases: Vec<CaseResult>,
}

/// Settings that numbers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Rounds of each case.
    pub rounds: usize,
    /// The time that a target works in one round, in milliseconds.
    pub slice_ms: f64,
    /// Bytes of the file of the data cases.
    pub file_bytes: u64,
    /// Files of the cases with names.
    pub names: usize,
    /// DRAM was flushed as if it were persistent memory.
    pub dram_as_pm: bool,
    /// Times are those of the processor, without waits.
    pub cpu_time: bool,
}

/// Facts about a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// It is the baseline again.
    pub is_repeat: bool,
    /// Its durability, if it could be set up.
    pub durability: Option<Durability>,
    /// The reason why it could not be set up, or had to be given up.
    pub error: Option<String>,
}

/// The results of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseResult {
    /// Its name.
    pub name: String,
    /// One operation.
    pub what: String,
    /// Bytes that one operation moves, or 0.
    pub bytes: u64,
    /// The share of the processors' time that the host gave to other machines.
    pub steal: f64,
    /// The targets that could do it.
    pub rows: Vec<Row>,
}

/// The result of a case on a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The name of the target.
    pub target: String,
    /// The state of the work when an operation has returned.
    pub durability: Class,
    /// Why there are no numbers.
    pub error: Option<String>,
    /// The numbers.
    pub numbers: Option<Numbers>,
}

/// The numbers of a case on a target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Time of an operation by the clock of the run, in nanoseconds.
    pub ns: Interval,
    /// Time of the processor of an operation in the program, the kernel's calls and the server, in
    /// nanoseconds.
    pub cpu_ns: f64,
    /// Wall times of single operations. Results of earlier versions have none.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// Speed as a multiple of that of the baseline, by rounds. None for the baseline itself.
    pub speed: Option<Interval>,
    /// The speed differs from the baseline's by more than the baseline's from itself.
    pub differs: bool,
    /// Calls of an operation on a pool that were answered in the program.
    pub in_process: f64,
    /// Calls of an operation on a pool that the library left to the kernel.
    pub by_kernel: f64,
    /// Requests of an operation that a server of a mount has answered.
    pub requests: f64,
}

impl Report {
    /// Returns the number of targets and cases that failed.
    pub fn failed(&self) -> usize {
        let targets = self.targets.iter().filter(|target| target.error.is_some()).count();
        let rows = self.cases.iter().flat_map(|case| &case.rows);
        targets + rows.filter(|row| row.error.is_some()).count()
    }

    /// Returns the name of the baseline.
    pub fn baseline(&self) -> &str {
        self.targets.first().map_or("", |target| &target.name)
    }
}

impl CaseResult {
    /// Returns the speed of the baseline as a multiple of its own: the noise.
    pub fn noise(&self, report: &Report) -> Option<Interval> {
        let again = report.targets.iter().find(|target| target.is_repeat)?;
        self.numbers(&again.name)?.speed
    }

    /// Returns the numbers of a target.
    pub fn numbers(&self, target: &str) -> Option<&Numbers> {
        self.rows.iter().find(|row| row.target == target)?.numbers.as_ref()
    }
}
