//! `keepstone simulate memory wear`: writes of lines, and the time until a cell fails.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use memsim::LINE;
use memsim::caches::{AnySink, OrderingMode, Simulator};
use memsim::wear::lifetime::{ENDURANCES, Levelling, Lifetime, Worn};
use memsim::wear::start_gap::StartGap;
use memsim::wear::swap::PageSwaps;
use memsim::wear::{HotLine, WearCounts};

use super::hardware::HardwareArgs;
use crate::{output, size};

/// `keepstone simulate memory wear`
#[derive(Debug, Args)]
pub struct WearArgs {
    /// A memory trace.
    pub trace: PathBuf,
    /// The ordering mode, which decides how many stores the caches combine.
    #[arg(long, value_name = "MODE", default_value_t = OrderingMode::Clwb)]
    pub mode: OrderingMode,
    /// Size of the memory, in bytes or with K, M, G, T. Default: that of the recorded region.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub capacity: Option<u64>,
    /// Seconds that the run takes, which is repeated for ever. Default: the simulated time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub time: Option<f64>,
    /// Number of the hottest lines to show.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub hottest: usize,
    /// Start-gap: writes to a region between two moves of its gap.
    #[arg(long, value_name = "WRITES", default_value_t = StartGap::default().interval,
        value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub gap_interval: u64,
    /// Start-gap: lines of a region.
    #[arg(long, value_name = "LINES", default_value_t = StartGap::default().region_lines,
        value_parser = clap::value_parser!(u64).range(1..=1 << 22))]
    pub gap_region: u64,
    /// Most memory for counts; the command fails if the trace writes to more pages.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = size::parse)]
    pub count_memory: u64,
    #[command(flatten)]
    pub hardware: HardwareArgs,
}

/// Bytes for the counts of a page.
const PAGE_COUNTS: u64 = 2400;

fn seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse()?;
    ensure!(seconds.is_finite() && seconds > 0.0, "a number of seconds above 0, for example 12.5");
    Ok(seconds)
}

pub fn run(args: &WearArgs, json: bool) -> Result<()> {
    let named = || args.trace.display().to_string();
    let pages_max = usize::try_from(args.count_memory / PAGE_COUNTS).unwrap_or(usize::MAX);
    let config = args.hardware.config(args.mode)?;
    let mut counts = WearCounts::new(pages_max);
    let sink: AnySink<'_> = Some(&mut counts);
    let mut simulator = Simulator::new(config, sink)?;
    let mut reader = super::open(&args.trace)?;
    args.hardware.replay(&mut simulator, &mut reader).with_context(named)?;
    let region = reader.region_len();
    let report = simulator.finish().0;
    ensure!(
        counts.missed() == 0,
        "{}: writes to more than {pages_max} pages of 4 KiB; give more --count-memory",
        named()
    );
    let totals = counts.totals();
    let capacity = args.capacity.unwrap_or(region);
    let run_s = args.time.unwrap_or(report.durable_ns as f64 / 1e9);
    let worn = Worn {
        lines: (capacity / LINE).max(totals.lines),
        run_s,
        start_gap: StartGap {
            interval: args.gap_interval,
            region_lines: args.gap_region,
            ..StartGap::default()
        },
        swaps: PageSwaps::default(),
    };
    let lives = |endurance: &f64| worn.lifetimes(&counts, *endurance);
    let lives: Vec<Vec<Lifetime>> = ENDURANCES.iter().filter_map(lives).collect();
    let hottest = counts.hottest(args.hottest);
    if json {
        let lifetimes: Vec<&Lifetime> = lives.iter().flatten().collect();
        return output::json(&serde_json::json!({
            "mode": args.mode, "memory": worn, "totals": totals, "hottest": hottest,
            "lifetimes": lifetimes,
        }));
    }
    say!(
        "{} writes to {} lines of {} in {run_s:.6} s, at most {} to one",
        totals.line_writes,
        totals.lines,
        worn.lines,
        totals.line_max
    );
    for HotLine { addr, writes } in hottest {
        say!("  {addr:#014x} {writes:>12}");
    }
    if lives.is_empty() {
        return Ok(());
    }
    say!("Hours until the first cell fails, if the run repeats; part of the ideal in percent");
    let heads = ENDURANCES.map(|endurance| format!("{:>20}", format!("{endurance:.0e} writes")));
    say!("{:22}{}", "", heads.concat());
    for (i, levelling) in Levelling::ALL.into_iter().enumerate() {
        let cell = |of: &Vec<Lifetime>| {
            let Lifetime { hours, of_ideal, .. } = of[i];
            format!("{:>20}", format!("{hours:.3e} {:6.2} %", of_ideal * 100.0))
        };
        say!("{levelling:22}{}", lives.iter().map(cell).collect::<String>());
    }
    Ok(())
}
