//! `keepstone trim`
//!
//! The command joins the processes that use the pool, as a program under `keepstone run` does. So
//! it needs no server, and may be used by all users who may open the pool.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::args::PoolArgs;
use crate::{output, pool, size};

#[derive(Serialize)]
struct Trimmed {
    pool: String,
    /// Bytes that the file took before.
    taken_before: u64,
    /// Bytes that it takes now.
    taken: u64,
}

pub fn run(args: &PoolArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (info, _) = pool::info(&path)?;
    if !info.is_thin {
        bail!("{}: was formatted to take all of its space (`mkfs --thick`)", path.display());
    }
    let taken_before = taken(&path)?;
    trim(&path).with_context(|| path.display().to_string())?;
    let trimmed = Trimmed { pool: path.display().to_string(), taken_before, taken: taken(&path)? };
    if json {
        output::json(&trimmed)?;
    } else {
        let given = trimmed.taken_before.saturating_sub(trimmed.taken);
        say!(
            "{}: {} given back, {} taken",
            trimmed.pool,
            size::show(given),
            size::show(trimmed.taken)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Trims a pool that is in use, or not.
pub fn trim(path: &Path) -> Result<()> {
    let fs = engines::attach(pool::open_shared(path)?, &::pool::MountOptions::default())?;
    let trimmed = fs.trim();
    fs.close()?;
    Ok(trimmed?)
}

/// Returns the bytes that a file takes.
fn taken(path: &Path) -> Result<u64> {
    let found = path.metadata().with_context(|| path.display().to_string())?;
    Ok(found.blocks() * 512)
}
