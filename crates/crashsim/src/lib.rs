//! The crash explorer.
#![forbid(unsafe_code)]

pub mod campaign;
pub mod decode;
pub mod explore;
pub mod format;
pub mod generate;
pub mod image;
pub mod lint;
pub mod mutate;
pub mod op;
pub mod oracle;
pub mod persist;
pub mod plan;
pub mod recorder;
pub mod rng;
pub mod run;
pub mod score;
pub mod show;
pub mod stats;
pub mod target;
pub mod threads;
pub mod trace;
pub mod workload;
