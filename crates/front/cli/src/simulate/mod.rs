//! `keepstone simulate`: replays traces of accesses through models.

mod cache;
mod memory;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The models.
#[derive(Debug, Subcommand)]
pub enum SimulateCommand {
    /// Compare cache replacement policies on a trace of accesses to objects.
    #[command(after_help = "\
Example: keepstone simulate cache --zipf 1.0 --once 25 --policy sieve,s3fifo --cache 64M,1%
         keepstone simulate cache TRACE --cache 1%,10%

TRACE is text, a line `key [size in bytes]` for each access, or oracleGeneral: records of 24 \
bytes as in the traces of the papers on S3-FIFO and SIEVE, uncompressed. Without TRACE and \
--zipf, the command compares the policies on a set of generated traces.")]
    Cache(cache::CacheArgs),
    /// Replay a trace of accesses to persistent memory through models of hardware.
    Memory {
        /// The model.
        #[command(subcommand)]
        command: Box<memory::MemoryCommand>,
    },
}

pub fn run(command: &SimulateCommand, json: bool) -> Result<ExitCode> {
    match command {
        SimulateCommand::Cache(args) => cache::run(args, json),
        SimulateCommand::Memory { command } => memory::run(command, json),
    }
}
