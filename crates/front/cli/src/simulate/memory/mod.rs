//! `keepstone simulate memory`: models of memory hardware (docs/SIMULATION.md).

mod caches;
mod convert;
mod costs;
mod describe;
mod hardware;
mod interference;
mod record;
mod throughput;
mod wear;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use memsim::trace::Reader;

/// The models.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Record a trace of a file system that does a benchmark in a pool in DRAM.
    #[command(after_help = "\
Example: keepstone simulate memory record TRACE --workload append --bytes 64

`keepstone mount --record FILE` records the server of a mount.")]
    Record(record::RecordArgs),
    /// Count the accesses of a trace.
    #[command(after_help = "Example: keepstone simulate memory describe TRACE")]
    Describe(describe::DescribeArgs),
    /// Compute the time of a run on memory of less throughput: time in DRAM + traffic / throughput.
    #[command(after_help = "\
Example: keepstone simulate memory throughput --time 12.5 --read 300M --written 1.2G --peer disk=40
         keepstone simulate memory throughput TRACE --at 34,480,800

This is the formula of BPFS §5.4 and Figure 7. It adds the whole transfer to the time, so real \
memory is faster. The traffic of TRACE is that of its counters: lines flushed or stored past the \
cache, and lines loaded, as if no load hit a cache. With --model it is that of simulated caches.")]
    Throughput(throughput::ThroughputArgs),
    /// Replay a trace through caches, in several ways of keeping stores in order.
    #[command(after_help = "\
Example: keepstone simulate memory caches TRACE --mode clwb,epoch --memory optane --adr

Cores execute their accesses one after the other; nothing overlaps. docs/SIMULATION.md has the \
rules.")]
    Caches(caches::CachesArgs),
    /// Replay a trace beside a program that uses DRAM on the same channel, and compare the rates of
    /// both if the file system writes through, has epochs, or is in DRAM itself (BPFS Figure 6).
    #[command(after_help = "\
Example: keepstone simulate memory interference TRACE --memory pcm-rows

The program is a stencil over a grid that no cache holds. The trace's threads run on one core, \
and compute for --computation before each operation, or not at all.")]
    Interference(interference::InterferenceArgs),
    /// Compute the additional hardware of epochs (BPFS §4.4.1), and the capacitor that completes
    /// writes (§4.3). List the memories that --memory knows.
    #[command(after_help = "Example: keepstone simulate memory costs --l2 8M --rows 32")]
    Costs(costs::CostsArgs),
    /// Count the writes of each line behind the caches, and compute the time until a cell fails.
    #[command(after_help = "\
Example: keepstone simulate memory wear TRACE --mode epoch --capacity 16G

The traced run repeats for ever. Lifetimes are for cells that endure 10^8 to 10^12 writes (BPFS \
§4.2).")]
    Wear(wear::WearArgs),
    /// Make a memory trace of one of another simulator.
    #[command(after_help = "\
Example: keepstone simulate memory import loads.txt TRACE --from ramulator2

Accesses become loads and stores of whole lines.")]
    Import(convert::ImportArgs),
    /// Write a memory trace as one of another simulator, or of the crash explorer.
    #[command(after_help = "\
Example: keepstone simulate memory export TRACE writes.txt --to nvmain --through epoch --cycle 0.5

The formats of other simulators have neither flushes nor fences.")]
    Export(convert::ExportArgs),
}

pub fn run(command: &MemoryCommand, json: bool) -> Result<ExitCode> {
    match command {
        MemoryCommand::Describe(args) => describe::run(args, json)?,
        MemoryCommand::Record(args) => record::run(args, json)?,
        MemoryCommand::Throughput(args) => throughput::run(args, json)?,
        MemoryCommand::Caches(args) => caches::run(args, json)?,
        MemoryCommand::Interference(args) => interference::run(args, json)?,
        MemoryCommand::Costs(args) => costs::run(args, json)?,
        MemoryCommand::Wear(args) => wear::run(args, json)?,
        MemoryCommand::Import(args) => convert::import(args, json)?,
        MemoryCommand::Export(args) => convert::export(args, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a trace. Errors name the file.
fn open(path: &Path) -> Result<Reader<File>> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    Reader::new(file).with_context(named)
}
