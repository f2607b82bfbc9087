//! What all pools have, whatever engine keeps their files: how they are formatted, mounted and checked, what they
//! say of themselves, what can go wrong, and where those meet who share one.
//!
//! An engine implements [`Engine`] and takes and returns the types here; who wants any pool opened, asks the crate
//! `engines`, the only one that names them all.

#![forbid(unsafe_code)]

mod engine;
mod error;
mod options;
mod prealloc;
mod report;
mod shared;

pub use arena::{Paused, Place};
pub use engine::{Alone, Engine, Processes, ReadBuf};
pub use error::{Error, Problem};
pub use options::{
    CheckOptions, Consistency, FormatOptions, LABEL_MAX, MountOptions, PastCache, WritePolicy,
    scan_threads,
};
pub use prealloc::Prealloc;
pub use report::{CheckReport, FreeSpace, MountReport, PoolInfo, label};
pub use shared::{handle_fault, is_mapped, place, remove_abandoned};
