//! `keepstone simulate memory interference`: a program in DRAM beside a trace, on one channel.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use memsim::caches::OrderingMode;
use memsim::interference::{FileMemory, alone, beside};

use super::hardware::HardwareArgs;
use crate::output;

/// `keepstone simulate memory interference`
#[derive(Debug, Args)]
pub struct InterferenceArgs {
    /// A memory trace.
    pub trace: PathBuf,
    #[command(flatten)]
    pub hardware: HardwareArgs,
}

pub fn run(args: &InterferenceArgs, json: bool) -> Result<()> {
    let config = args.hardware.config(OrderingMode::Epoch)?;
    let dram_ns = args.hardware.memory.dram_ns;
    let computation = args.hardware.computation.unwrap_or(0);
    let mut rates = Vec::new();
    for backing in FileMemory::ALL {
        let mut reader = super::open(&args.trace)?;
        let found = beside(&mut reader, config, backing, dram_ns, computation);
        rates.push(found.with_context(|| args.trace.display().to_string())?);
    }
    let time_ns = rates.iter().map(|rates| rates.time_ns).max().unwrap_or(0);
    rates.push(alone(config, dram_ns, time_ns)?);
    if json {
        return output::json(&serde_json::json!({ "systems": rates }));
    }
    say!("{:32}{:>16}{:>16}", "in a microsecond", "lines of TRACE", "of the stencil");
    for rates in rates {
        let name = match rates.backing {
            Some(FileMemory::WriteThrough) => "write-through",
            Some(FileMemory::Epoch) => "epochs",
            Some(FileMemory::Dram) => "file system in DRAM",
            None => "stencil alone",
        };
        say!("{name:32}{:>16.2}{:>16.2}", rates.file_system, rates.stencil);
    }
    Ok(())
}
