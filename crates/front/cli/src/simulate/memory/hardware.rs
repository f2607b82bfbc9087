//! The options of the commands that replay a trace through caches.

use std::fs::File;

use anyhow::{Context as _, Result};
use clap::Args;
use memsim::caches::memories::{self, MEMORIES, NamedMemory};
use memsim::caches::{
    AnySink, CacheSize, Channels, HardwareConfig, OrderingMode, RowBuffers, Simulator, Timing,
};
use memsim::trace::{Reader, TraceError};

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
    /// The memory: pcm, pcm-rows, stt-mram, reram, nvdimm-n, cxl-near, cxl-far or optane. `costs`
    /// lists their numbers and sources.
    #[arg(long, value_name = "NAME", default_value = MEMORIES[0].name)]
    pub memory: NamedMemory,
    /// Nanoseconds for a read of a line, or of a row, from memory, instead of that of --memory.
    #[arg(long, value_name = "NS")]
    pub read_ns: Option<u64>,
    /// Nanoseconds for a write of a line or row to memory, instead of that of --memory.
    #[arg(long, value_name = "NS")]
    pub write_ns: Option<u64>,
    /// Nanoseconds for an access that hits the L1 cache.
    #[arg(long, value_name = "NS", default_value_t = timing().l1_ns)]
    pub l1_ns: u64,
    /// Nanoseconds for an access that hits the L2 cache.
    #[arg(long, value_name = "NS", default_value_t = timing().l2_ns)]
    pub l2_ns: u64,
    /// Banks of a channel, which work at the same time, instead of those of --memory.
    #[arg(long, value_name = "N")]
    pub banks: Option<u32>,
    /// Writes that the queue of the memory controller holds for a channel. Default: 32, or a write
    /// for each bank.
    #[arg(long, value_name = "N")]
    pub queue: Option<u32>,
    /// Row buffers of a bank: bytes of a row, their number, nanoseconds for an access to one.
    /// `none`: each access goes to the cells. Default: those of --memory.
    #[arg(long, value_name = "BYTES,N,NS|none", value_parser = row_buffers)]
    pub row_buffers: Option<RowBuffersChoice>,
    /// Channels: their number, the bytes after which the next follows, nanoseconds for which a line
    /// occupies the bus. Default: those of --memory.
    #[arg(long, value_name = "N,BYTES,NS", value_parser = channels)]
    pub channels: Option<Channels>,
    /// Nanoseconds of computation before each operation, instead of the times that were measured
    /// when the trace was recorded. Recordings of one workload then give nearly the same result.
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub computation: Option<u64>,
}

/// The answer to `--row-buffers`.
#[derive(Clone, Copy, Debug)]
pub struct RowBuffersChoice(Option<RowBuffers>);

/// Splits a list of three values.
fn three(text: &str) -> Result<[&str; 3]> {
    let parts: Vec<&str> = text.split(',').collect();
    parts.try_into().ok().context("three values with commas between them")
}

fn row_buffers(text: &str) -> Result<RowBuffersChoice> {
    if text == "none" {
        return Ok(RowBuffersChoice(None));
    }
    let [bytes, buffers, hit_ns] = three(text)?;
    let (bytes, buffers) = (size::parse(bytes)?, buffers.parse()?);
    Ok(RowBuffersChoice(Some(RowBuffers { bytes, buffers, hit_ns: hit_ns.parse()? })))
}

fn channels(text: &str) -> Result<Channels> {
    let [count, interleave, bus_ns] = three(text)?;
    let (count, interleave_bytes) = (count.parse()?, size::parse(interleave)?);
    Ok(Channels { count, interleave_bytes, bus_ns: bus_ns.parse()?, fixed_ns: 0 })
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
        let of_memory = memories::timing(&self.memory, timing());
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
                read_ns: self.read_ns.unwrap_or(of_memory.read_ns),
                write_ns: self.write_ns.unwrap_or(of_memory.write_ns),
                banks: self.banks.unwrap_or(of_memory.banks),
                queue: self.queue.unwrap_or(of_memory.queue),
                rows: self.row_buffers.map_or(of_memory.rows, |RowBuffersChoice(rows)| rows),
                channels: self.channels.unwrap_or(of_memory.channels),
                volatile: None,
            },
            ..HardwareConfig::default()
        };
        config.check().map_err(output::wrong_usage)?;
        Ok(config)
    }

    /// Replays a trace.
    pub fn replay(
        &self,
        simulator: &mut Simulator<AnySink<'_>>,
        reader: &mut Reader<File>,
    ) -> std::result::Result<(), TraceError> {
        simulator.replay_file(reader, self.computation)
    }
}
