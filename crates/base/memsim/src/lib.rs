//! Models of memory hardware that does not exist here, or not in this machine. They replay traces
//! of accesses to persistent memory. Section numbers refer to BPFS (Condit et al., SOSP 2009),
//! unless they name another paper.
//!
//! - [`trace`]: accesses of a program as a binary stream, of any length; reader and writer.
//! - [`caches`]: caches, the epoch hardware of §4.4, and the memory controller.
//! - [`interference`]: a program in DRAM beside a file system in persistent memory (§5.3.2).
//! - [`record`]: an observer of a region that writes a trace.
//! - [`summary`]: the counts of a trace: accesses, bytes, lines, threads, time.
//! - [`wear`]: writes of lines behind the caches, and the time until a cell fails (§4.2).
//! - [`atomicity`]: the capacitor that completes writes (§4.3).
//! - [`foreign`], [`crash_text`]: traces of other simulators, and of the crash explorer.
//! - [`throughput`]: the time of a run on memory of less throughput (§5.4, Figure 7).
//!
//! Models are functions of the trace and their configuration: the same input gives the same result
//! on every machine. Memory is bounded whatever the trace holds.

#![forbid(unsafe_code)]

pub mod atomicity;
pub mod caches;
pub mod crash_text;
pub mod foreign;
pub mod interference;
pub mod record;
pub mod summary;
pub mod throughput;
pub mod trace;
pub mod wear;

/// Bytes in a cache line.
pub const LINE: u64 = pmem::LINE;
