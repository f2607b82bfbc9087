//! Adapters (judges) between the engines and the crash explorer. A judge states what its engine
//! promises, and formats, mounts, checks and reads its pools.
//!
//! - [`mod@bpfs`], [`mod@scmfs`], [`mod@modelfs`]: each a [`crashsim::target::Target`], explored
//!   with the workloads of file systems that suit it;
//! - [`lent`]: the same engines, with readers that read file contents without a copy while
//!   operations change them;
//! - [`backed`]: pools of BPFS with a backing store, with loads, marks and evictions;
//! - [`caches`]: the server of a cache, which dies at each step of loads, write-back and eviction;
//! - [`blocks`]: block devices, with simpler requests and an oracle of their own;
//! - [`servers`]: notifications to the servers of mounts, under many schedules;
//! - [`catalogue`]: bugs planted in the engines' source; [`judge`] tests whether the explorer finds
//!   one.

#![forbid(unsafe_code)]

pub mod backed;
pub mod blocks;
pub mod bpfs;
pub mod caches;
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

/// The names of what can be crashed: engines, and modes of theirs.
pub const TARGETS: [&str; 5] = ["bpfs", "bpfs-ordered", "model", "pmbd", "scmfs"];

/// The judge of the file system engine of this name; `None` for any other name.
pub fn file_system(engine: &str) -> Option<&'static dyn AnyTarget> {
    match engine {
        "bpfs" => Some(&bpfs::Bpfs),
        "bpfs-ordered" => Some(&bpfs::Ordered),
        "scmfs" => Some(&scmfs::Scmfs),
        "model" => Some(&modelfs::ModelFs),
        _ => None,
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Returns what a check counted in a sound pool, or else its first problem.
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
