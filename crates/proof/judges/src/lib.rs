//! Judges of the engines: each says to the crash explorer what its engine promises, and how it is formatted, mounted,
//! checked and read.
//!
//! - [`mod@bpfs`], [`mod@scmfs`], [`mod@modelfs`]: each a [`crashsim::target::Target`], explored with the workloads of file
//!   systems that suit it;
//! - [`lent`]: the engines again, with somebody who reads without a copy what operations change;
//! - [`blocks`]: block devices, whose requests and oracle are simpler and their own;
//! - [`servers`]: what servers of mounts are told, under schedules;
//! - [`catalogue`]: bugs planted in the engines' source, and [`judge`]: whether the explorer finds one.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod bpfs;
pub mod catalogue;
pub mod judge;
pub mod lent;
pub mod modelfs;
mod mounted;
pub mod scmfs;
pub mod servers;
mod words;

use crashsim::any::AnyTarget;
use crashsim::target::Usage;
use pool::CheckReport;

/// The judge of the engine of this name; `None` where that is no file system.
pub fn file_system(engine: &str) -> Option<&'static dyn AnyTarget> {
    match engine {
        "bpfs" => Some(&bpfs::Bpfs),
        "scmfs" => Some(&scmfs::Scmfs),
        "model" => Some(&modelfs::ModelFs),
        _ => None,
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// What a check has found in a sound pool; else its first problem.
fn usage(report: &CheckReport) -> Result<Usage, String> {
    match report.problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(Usage {
            blocks: report.blocks,
            blocks_used: report.blocks_used,
            inodes: report.inodes,
            stale: report.stale_words,
        }),
    }
}
