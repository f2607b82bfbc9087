//! `keepstone simulate memory throughput`: BPFS Figure 7.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use memsim::LINE;
use memsim::caches::{OrderingMode, Simulator};
use memsim::summary::Summary;
use memsim::throughput::{Measured, Projection, RATES};
use serde::Serialize;

use super::hardware::HardwareArgs;
use crate::{output, size};

/// `keepstone simulate memory throughput`
#[derive(Debug, Args)]
pub struct ThroughputArgs {
    /// A memory trace: its time, and its traffic.
    pub trace: Option<PathBuf>,
    /// Time of the run in DRAM, in seconds. Replaces that of TRACE.
    #[arg(long, value_name = "SECONDS", required_unless_present = "trace", value_parser = seconds)]
    pub time: Option<f64>,
    /// Bytes that the run read from memory, or with K, M, G, T (powers of 1024). Replaces those of
    /// TRACE.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub read: Option<u64>,
    /// Bytes that the run wrote to memory. Replaces those of TRACE.
    #[arg(long, value_name = "BYTES", required_unless_present = "trace", value_parser = bytes)]
    pub written: Option<u64>,
    /// Traffic of TRACE by the model of caches, with flushes and fences as executed, instead of by
    /// counters.
    #[arg(long, requires = "trace")]
    pub model: bool,
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Throughputs of the memory, in MB/s (10^6 bytes per second).
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_values_t = RATES, value_parser = rate)]
    pub at: Vec<f64>,
    /// Another system and its time for the same work, in seconds: find the throughput from which
    /// the memory is faster.
    #[arg(long, value_name = "NAME=SECONDS", value_parser = peer)]
    pub peer: Vec<Peer>,
}

/// A system to compare with.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    name: String,
    time_s: f64,
    /// The throughput from which the memory is faster, in MB/s. Absent if it never is.
    faster_from_mb_per_s: Option<f64>,
}

fn seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse()?;
    ensure!(seconds.is_finite() && seconds >= 0.0, "a number of seconds, for example 12.5");
    Ok(seconds)
}

fn rate(text: &str) -> Result<f64> {
    let rate: f64 = text.parse()?;
    ensure!(rate.is_finite() && rate > 0.0, "a rate in MB/s above zero, for example 480");
    Ok(rate)
}

/// Parses a number of bytes, which may be 0.
fn bytes(text: &str) -> Result<u64> {
    if text == "0" { Ok(0) } else { size::parse(text) }
}

fn peer(text: &str) -> Result<Peer> {
    let (name, time) = text.split_once('=').context("write NAME=SECONDS, for example disk=40")?;
    Ok(Peer { name: name.to_owned(), time_s: seconds(time)?, faster_from_mb_per_s: None })
}

pub fn run(args: &ThroughputArgs, json: bool) -> Result<()> {
    let run = measured(args)?;
    let rates: Vec<Projection> = args.at.iter().map(|rate| run.at(*rate)).collect();
    let compare = |peer: &Peer| {
        let faster_from_mb_per_s = run.faster_from(peer.time_s);
        Peer { faster_from_mb_per_s, ..peer.clone() }
    };
    let peers: Vec<Peer> = args.peer.iter().map(compare).collect();
    if json {
        return output::json(&serde_json::json!({ "run": run, "rates": rates, "peers": peers }));
    }
    say!(
        "{:.3} s in DRAM, {} read, {} written",
        run.dram_s,
        size::show(run.read_bytes),
        size::show(run.written_bytes)
    );
    say!("{:>10} {:>14} {:>10}", "MB/s", "time", "slowdown");
    for Projection { mb_per_s, time_s, slowdown } in rates {
        let slowdown = slowdown.map_or("-".to_owned(), |factor| format!("{factor:.2}"));
        say!("{mb_per_s:>10} {:>14} {slowdown:>10}", format!("{time_s:.3} s"));
    }
    for Peer { name, time_s, faster_from_mb_per_s } in peers {
        match faster_from_mb_per_s {
            Some(rate) => say!("faster than {name} ({time_s} s) from {rate:.0} MB/s on"),
            None => say!("never faster than {name} ({time_s} s)"),
        }
    }
    Ok(())
}

/// Returns the run that the arguments describe.
fn measured(args: &ThroughputArgs) -> Result<Measured> {
    let of_trace = match &args.trace {
        None => Measured { dram_s: 0.0, read_bytes: 0, written_bytes: 0 },
        Some(path) => {
            let named = || path.display().to_string();
            let found = Summary::of(&mut super::open(path)?).with_context(named)?;
            let dram_s = found.elapsed_ns.max(found.compute_ns) as f64 / 1e9;
            let (read, written) = if args.model {
                let config = args.hardware.config(OrderingMode::Clwb)?;
                let mut simulator = Simulator::new(config, None)?;
                let mut reader = super::open(path)?;
                args.hardware.replay(&mut simulator, &mut reader).with_context(named)?;
                let report = simulator.finish().0;
                (report.counts.memory_reads, report.counts.memory_writes + report.dirty_at_end)
            } else {
                let written = found.flushes.lines.saturating_add(found.nt_stores.lines);
                (found.loads.lines, written)
            };
            let bytes = |lines: u64| lines.saturating_mul(LINE);
            Measured { dram_s, read_bytes: bytes(read), written_bytes: bytes(written) }
        }
    };
    Ok(Measured {
        dram_s: args.time.unwrap_or(of_trace.dram_s),
        read_bytes: args.read.unwrap_or(of_trace.read_bytes),
        written_bytes: args.written.unwrap_or(of_trace.written_bytes),
    })
}
