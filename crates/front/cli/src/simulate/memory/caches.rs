//! `keepstone simulate memory caches`: a trace through caches, in several ordering modes.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use memsim::caches::{HardwareReport, OrderingMode, Simulator};

use super::hardware::HardwareArgs;
use crate::output;

/// `keepstone simulate memory caches`
#[derive(Debug, Args)]
pub struct CachesArgs {
    /// A memory trace.
    pub trace: PathBuf,
    /// Ordering modes to compare: clwb (flushes and fences as the program executed them),
    /// write-through, flush-all (a fence flushes whole caches), eadr (caches are durable), epoch
    /// (the hardware of BPFS §4.4).
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_values_t = OrderingMode::ALL)]
    pub mode: Vec<OrderingMode>,
    #[command(flatten)]
    pub hardware: HardwareArgs,
}

pub fn run(args: &CachesArgs, json: bool) -> Result<()> {
    let replay = |mode: &OrderingMode| -> Result<HardwareReport> {
        let mut simulator = Simulator::new(args.hardware.config(*mode)?, None)?;
        let mut reader = super::open(&args.trace)?;
        let named = || args.trace.display().to_string();
        args.hardware.replay(&mut simulator, &mut reader).with_context(named)?;
        Ok(simulator.finish().0)
    };
    let reports: Vec<_> = args.mode.iter().map(replay).collect::<Result<_>>()?;
    if json {
        return output::json(&serde_json::json!({ "modes": reports }));
    }
    let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    type Cell = Box<dyn Fn(&HardwareReport) -> String>;
    let rows: [(&str, Cell); 20] = [
        ("time, ms", Box::new(move |r| ms(r.time_ns))),
        ("of that computation", Box::new(move |r| ms(r.compute_ns))),
        ("waits for durability", Box::new(move |r| ms(r.counts.fence_wait_ns))),
        ("waits for the queue", Box::new(move |r| ms(r.counts.queue_wait_ns))),
        ("everything durable after, ms", Box::new(move |r| ms(r.durable_ns))),
        ("lines loaded", Box::new(|r| r.counts.loads.to_string())),
        ("lines stored", Box::new(|r| r.counts.stores.to_string())),
        ("L1 hits", Box::new(|r| r.counts.l1_hits.to_string())),
        ("L2 hits", Box::new(|r| r.counts.l2_hits.to_string())),
        ("lines read from memory", Box::new(|r| r.counts.memory_reads.to_string())),
        ("lines written to memory", Box::new(|r| r.counts.memory_writes.to_string())),
        ("requests that hit a row buffer", Box::new(|r| r.counts.rows.hits.to_string())),
        ("rows written to the cells", Box::new(|r| r.counts.rows.writes.to_string())),
        ("dirty lines, most", Box::new(|r| r.counts.dirty_max.to_string())),
        ("dirty lines at the end", Box::new(|r| r.dirty_at_end.to_string())),
        ("epochs with stores", Box::new(|r| r.counts.epochs.to_string())),
        ("epochs in flight, most", Box::new(|r| r.counts.epochs_in_flight_max.to_string())),
        ("waits for a full table", Box::new(|r| r.counts.epoch_table_full.to_string())),
        ("conflicts within a core", Box::new(|r| r.counts.same_line_conflicts.to_string())),
        ("conflicts of two cores", Box::new(|r| r.counts.cross_core_conflicts.to_string())),
    ];
    let line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        say!("{name:31}{}", cells.map(|cell| format!("{cell:>14}")).collect::<String>());
    };
    line("", &mut reports.iter().map(|report| report.config.mode.to_string()));
    for (name, cell) in rows {
        line(name, &mut reports.iter().map(cell));
    }
    Ok(())
}
