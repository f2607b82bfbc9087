//! `keepstone simulate memory costs`: the additional hardware for epochs, the capacitor, and the
//! memories that other commands know.

use anyhow::{Result, ensure};
use clap::Args;
use memsim::atomicity::{Capacitor, PAPER_DROOP};
use memsim::caches::OrderingMode;
use memsim::caches::cost::EpochCost;
use memsim::caches::memories::{MEMORIES, NamedMemory};

use super::hardware::HardwareArgs;
use crate::output;

/// `keepstone simulate memory costs`
#[derive(Debug, Args)]
pub struct CostsArgs {
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Rows that the memory writes at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub rows: u64,
    /// Bits of a row: a cache line.
    #[arg(long, value_name = "BITS", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub row_bits: u64,
    /// The part of its voltage that the capacitor may lose. The default is what the numbers of
    /// BPFS §4.3 imply.
    #[arg(long, value_name = "PART", default_value_t = PAPER_DROOP, value_parser = droop)]
    pub droop: f64,
}

fn droop(text: &str) -> Result<f64> {
    let droop: f64 = text.parse()?;
    ensure!(
        droop > 0.0 && droop < 1.0,
        "a part of the voltage between 0 and 1, for example 0.0001"
    );
    Ok(droop)
}

pub fn run(args: &CostsArgs, json: bool) -> Result<()> {
    let cost = EpochCost::of(&args.hardware.config(OrderingMode::Epoch)?);
    let capacitor = Capacitor::new(args.rows, args.row_bits, args.droop);
    let total_bytes = cost.total_bytes();
    if json {
        return output::json(&serde_json::json!({
            "epochs": cost, "total_bytes": total_bytes, "capacitor": capacitor, "memories": MEMORIES,
        }));
    }
    let bytes = |bits: u64| format!("{} bytes", bits.div_ceil(8));
    output::table([
        ("epoch counters", bytes(cost.counter_bits)),
        ("tags of both levels", bytes(cost.tag_bits)),
        ("  for each line", format!("{} bits", cost.tag_bits_per_line)),
        ("index of the L2 cache", bytes(cost.l2_index_bits)),
        ("index of the L1 caches", bytes(cost.l1_index_bits)),
        ("in all", format!("{total_bytes} bytes ({:.1} KiB)", total_bytes as f64 / 1024.0)),
        ("capacitor", format!("{:.1} to {:.1} µF", capacitor.ones_uf, capacitor.zeros_uf)),
        ("  energy of the writes", format!("{:.2} nJ", capacitor.energy_nj)),
        ("  words torn without it", format!("up to {}", capacitor.torn_words)),
    ]);
    say!();
    say!("memory        read    write  rows, B  banks  source");
    for memory in MEMORIES {
        let NamedMemory { name, read_ns, write_ns, source, .. } = memory;
        let rows = memory.rows.map_or("-".to_owned(), |rows| rows.bytes.to_string());
        let banks = match memory.channels.count {
            1 => memory.banks.to_string(),
            count => format!("{count}×{}", memory.banks),
        };
        say!("{name:10} {read_ns:>4} ns  {write_ns:>4} ns  {rows:>7}  {banks:>5}  {source}");
    }
    Ok(())
}
