//! The engine-independent parts of a pool: how pools are formatted, mounted and checked, reports
//! about them, errors, and the name of the file with the state that processes share.
//!
//! An engine implements [`Engine`], and takes and returns the types here. To open a pool of any
//! engine, use the crate `engines`, the only one that names them all.

#![forbid(unsafe_code)]

mod clone;
mod engine;
mod error;
mod options;
mod prealloc;
mod report;
mod shared;
mod snapshots;
pub mod stream;

pub use arena::{Paused, Place};
pub use clone::{TreeSource, clone_tree};
pub use engine::{Alone, Engine, Processes, ReadBuf};
pub use error::{Error, Problem};
pub use options::{
    CheckOptions, Consistency, DurabilityMode, FormatOptions, LABEL_MAX, MountOptions, PastCache,
    WritePolicy, length_for, scan_threads,
};
pub use os::faults::Otherwise;
pub use prealloc::Prealloc;
pub use report::{CheckReport, FreeSpace, MountReport, PoolInfo, label};
pub use shared::{handle_fault, handle_faults, is_mapped, place, remove_abandoned};
pub use snapshots::{
    ALL_SNAPSHOTS, BRANCH_NAME_MAX, BranchInfo, SNAPSHOT_NAME_MAX, Snapshot, Snapshots,
    base_of_branch, branch_of_snapshot, branch_part, branches_part, check_branch_name,
    check_snapshot_name, is_snapshot_entry, later_of_branch, snapshot_part, split_branch,
};
