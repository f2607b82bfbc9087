//! Caches and the memory controller below them: which lines a trace reads from memory and writes to
//! it, in which order, and the time that takes.
//!
//! Each core has a private L1 cache; all share an inclusive L2 cache. A thread runs on one core.
//! Cores execute their events in the order of the trace, and wait for each access: no event
//! overlaps with another one of the same core. The way in which software keeps stores in order is
//! an [`OrderingMode`].
//!
//! - [`config`]: sizes, times and modes; [`cost`]: the additional hardware for epochs (§4.4.1);
//! - [`memories`]: named memories and the sources of their numbers;
//! - `sets`: arrays of lines; `recency`: which of a set were used last; `l2`: the L2 cache;
//!   `epochs`: the table of epochs in flight;
//! - [`controller`]: the queues; `waiting`: which request a bank serves next; `contexts`: epochs
//!   with queued writes; [`banks`]: channels, banks and row buffers;
//! - [`simulator`]: replays a trace; [`report`]: its counts.

pub mod banks;
pub mod config;
mod contexts;
pub mod controller;
pub mod cost;
mod epochs;
mod l2;
pub mod memories;
mod recency;
pub mod report;
mod sets;
pub mod simulator;
mod waiting;

pub use config::{
    BadConfig, CacheSize, Channels, HardwareConfig, OrderingMode, RowBuffers, Timing, VolatileRanks,
};
pub use report::{Counts, HardwareReport};
pub use simulator::{AnySink, Simulator, WriteBack, WriteSink};
