//! The integration tests of `cli`, in one binary: nextest runs each test in a process of its own.

mod attach;
mod bdev;
mod behind;
mod beside;
mod clones;
mod commands;
mod common;
mod copies;
mod doctor;
mod every;
mod foreign;
mod kept;
mod kernel;
mod language;
mod memory;
mod modes;
mod mounts;
mod nameless;
#[cfg(feature = "object-store")]
mod objects;
mod overlay;
mod permits;
mod pinned;
mod resolved;
mod run;
mod semantics;
mod served;
mod simulate;
mod snapshots;
mod strangers;
mod stress;
mod thin;
mod tidy;
mod top;
mod tree;
mod usage;
