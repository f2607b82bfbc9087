//! `keepstone simulate memory describe`: the counts of a trace.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use memsim::summary::{Class, Summary};

use crate::{output, size};

/// `keepstone simulate memory describe`
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// A memory trace (docs/format/memory-trace.md).
    pub trace: PathBuf,
}

pub fn run(args: &DescribeArgs, json: bool) -> Result<()> {
    let mut reader = super::open(&args.trace)?;
    let found = Summary::of(&mut reader).with_context(|| args.trace.display().to_string())?;
    if json {
        return output::json(&found);
    }
    let class = |c: Class| format!("{} ({} in {} lines)", c.count, size::show(c.bytes), c.lines);
    let seconds = |ns: u64| format!("{:.6} s", ns as f64 / 1e9);
    output::table([
        ("region", size::show(found.region_bytes)),
        ("events", found.events.to_string()),
        ("threads", found.threads.to_string()),
        ("operations", found.operations.to_string()),
        ("loads", class(found.loads)),
        ("stores", class(found.stores)),
        ("stores past the cache", class(found.nt_stores)),
        ("flushes", class(found.flushes)),
        ("fences", found.fences.to_string()),
        ("barriers", found.barriers.to_string()),
        ("recorded content", size::show(found.data_bytes)),
        ("time of the run", seconds(found.elapsed_ns)),
        ("computation", seconds(found.compute_ns)),
    ]);
    Ok(())
}
