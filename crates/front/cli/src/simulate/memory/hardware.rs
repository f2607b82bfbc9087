//! The options of the commands that replay a trace through caches.

use anyhow::Result;
use clap::Args;
use memsim::caches::{CacheSize, HardwareConfig, OrderingMode, Timing};

use crate::{output, size};

/// Sizes and times of the hardware. The defaults are those of BPFS §5.1 and §4.3.
#[derive(Debug, Args)]
pub struct HardwareArgs {
    /// Cores; thread N of the trace runs on core N modulo this number.
    #[arg(long, value_name = "N", default_value_t = HardwareConfig::default().cores)]
    pub cores: u32,
    /// Size of the L1 cache of each core, in bytes or with K, M, G, and its ways.
    #[arg(long, value_name = "BYTES[,WAYS]", default_value = "32K,8", value_parser = l1)]
    pub l1: CacheSize,
    /// Size of the shared L2 cache, and its ways.
    #[arg(long, value_name = "BYTES[,WAYS]", default_value = "4M,16", value_parser = l2)]
    pub l2: CacheSize,
    /// Epochs in flight.
    #[arg(long, value_name = "N", default_value_t = HardwareConfig::default().epochs)]
    pub epochs: u32,
    /// Data is durable in the queue of the memory controller (ADR), not only in memory.
    #[arg(long)]
    pub adr: bool,
    /// Nanoseconds for a read of a line from memory.
    #[arg(long, value_name = "NS", default_value_t = timing().read_ns)]
    pub read_ns: u64,
    /// Nanoseconds for a write of a line to memory.
    #[arg(long, value_name = "NS", default_value_t = timing().write_ns)]
    pub write_ns: u64,
    /// Nanoseconds for an access that hits the L1 cache.
    #[arg(long, value_name = "NS", default_value_t = timing().l1_ns)]
    pub l1_ns: u64,
    /// Nanoseconds for an access that hits the L2 cache.
    #[arg(long, value_name = "NS", default_value_t = timing().l2_ns)]
    pub l2_ns: u64,
    /// Banks of the memory, which work at the same time.
    #[arg(long, value_name = "N", default_value_t = timing().banks)]
    pub banks: u32,
    /// Writes that the queue of the memory controller holds.
    #[arg(long, value_name = "N", default_value_t = timing().queue)]
    pub queue: u32,
}

fn timing() -> Timing {
    HardwareConfig::default().timing
}

fn l1(text: &str) -> Result<CacheSize> {
    cache(text, HardwareConfig::default().l1)
}

fn l2(text: &str) -> Result<CacheSize> {
    cache(text, HardwareConfig::default().l2)
}

fn cache(text: &str, default: CacheSize) -> Result<CacheSize> {
    let (bytes, ways) = match text.split_once(',') {
        Some((bytes, ways)) => (bytes, ways.parse()?),
        None => (text, default.ways),
    };
    Ok(CacheSize { bytes: size::parse(bytes)?, ways })
}

impl HardwareArgs {
    /// Returns the hardware. A configuration that cannot be is wrong usage.
    pub fn config(&self, mode: OrderingMode) -> Result<HardwareConfig> {
        let config = HardwareConfig {
            mode,
            cores: self.cores,
            l1: self.l1,
            l2: self.l2,
            epochs: self.epochs,
            is_queue_durable: self.adr,
            timing: Timing {
                l1_ns: self.l1_ns,
                l2_ns: self.l2_ns,
                read_ns: self.read_ns,
                write_ns: self.write_ns,
                banks: self.banks,
                queue: self.queue,
            },
            ..HardwareConfig::default()
        };
        config.check().map_err(output::wrong_usage)?;
        Ok(config)
    }
}
