//! Targets behind a trait object. The explorer is compiled for each target in the crate that names
//! the target, and nowhere else.

use crate::campaign::{self, CampaignOptions, Family, Finding, Replay, Report};
use crate::persist::Semantics;
use crate::run::{Base, Recorded};
use crate::stats::Distinct;
use crate::target::Target;
use crate::trace::Trace;
use crate::workload;
use vfs::script::Op;

/// The explorer's functions, with any [`Target`].
pub trait AnyTarget {
    /// As [`workload::bases`].
    ///
    /// # Errors
    /// As it.
    fn bases(&self) -> Result<Vec<Base>, String>;

    /// As [`Family::suits`].
    fn is_suited(&self, family: &Family) -> bool;

    /// As [`campaign::run`].
    fn run(
        &self,
        bases: &[Base],
        family: &Family,
        options: &CampaignOptions,
        distinct: &Distinct,
        progress: &(dyn Fn(u64, u64, u64) + Sync),
    ) -> Report;

    /// As [`campaign::replay`].
    ///
    /// # Errors
    /// As it.
    fn replay(&self, bases: &[Base], line: &Replay) -> Result<(Vec<Finding>, bool, Trace), String>;

    /// As [`campaign::explore_trace`].
    ///
    /// # Errors
    /// As it.
    fn explore_trace(&self, bases: &[Base], line: &Replay, trace: Trace) -> Result<Report, String>;

    /// As [`Base::record`].
    ///
    /// # Errors
    /// As it.
    fn record(&self, base: &Base, ops: &[Op], semantics: Semantics) -> Result<Recorded, String>;
}

impl<T: Target> AnyTarget for T {
    fn bases(&self) -> Result<Vec<Base>, String> {
        workload::bases(self)
    }

    fn is_suited(&self, family: &Family) -> bool {
        family.suits(self)
    }

    fn run(
        &self,
        bases: &[Base],
        family: &Family,
        options: &CampaignOptions,
        distinct: &Distinct,
        progress: &(dyn Fn(u64, u64, u64) + Sync),
    ) -> Report {
        campaign::run(self, bases, family, options, distinct, progress)
    }

    fn replay(&self, bases: &[Base], line: &Replay) -> Result<(Vec<Finding>, bool, Trace), String> {
        campaign::replay(self, bases, line)
    }

    fn explore_trace(&self, bases: &[Base], line: &Replay, trace: Trace) -> Result<Report, String> {
        campaign::explore_trace(self, bases, line, trace)
    }

    fn record(&self, base: &Base, ops: &[Op], semantics: Semantics) -> Result<Recorded, String> {
        base.record(self, ops, 0, semantics)
    }
}
