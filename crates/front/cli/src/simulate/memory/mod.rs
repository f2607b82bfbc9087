//! `keepstone simulate memory`: models of memory hardware (docs/SIMULATION.md).

mod describe;
mod throughput;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use memsim::trace::Reader;

/// The models.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Count the accesses of a trace.
    #[command(after_help = "Example: keepstone simulate memory describe TRACE")]
    Describe(describe::DescribeArgs),
    /// Compute the time of a run on memory of less throughput: time in DRAM + traffic / throughput.
    #[command(after_help = "\
Example: keepstone simulate memory throughput --time 12.5 --read 300M --written 1.2G --peer disk=40
         keepstone simulate memory throughput TRACE --at 34,480,800

This is the formula of BPFS §5.4 and Figure 7. It adds the whole transfer to the time, so real memory is
faster. The traffic of TRACE is that of its counters: lines flushed or stored past the cache, and lines loaded,
as if no load hit a cache.")]
    Throughput(throughput::ThroughputArgs),
}

pub fn run(command: &MemoryCommand, json: bool) -> Result<ExitCode> {
    match command {
        MemoryCommand::Describe(args) => describe::run(args, json)?,
        MemoryCommand::Throughput(args) => throughput::run(args, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a trace. Errors name the file.
fn open(path: &Path) -> Result<Reader<File>> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    Reader::new(file).with_context(named)
}
