//! `keepstone resize`
//!
//! The pool's file gets longer before the pool does, and shorter after it. So whatever fails in
//! between, the file holds all of the pool.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use pmem::{Access, Medium as _, OpenOptions, Region};
use serde::Serialize;

use crate::args::ResizeArgs;
use crate::{output, pool, size};

#[derive(Serialize)]
struct Resized {
    pool: String,
    size_before: u64,
    size_bytes: u64,
}

pub fn run(args: &ResizeArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let shown = path.display();
    // The lock taken here proves that no process uses the pool.
    let options = OpenOptions { reserve: args.size, ..OpenOptions::default() };
    let region = pool::open(&path, &options, Access::ReadWrite)
        .context("a pool can get another size only while no process uses it")?;
    let info = engines::info(&region).with_context(|| shown.to_string())?;
    let old = region.len();
    if args.size > old {
        if !region.is_file() {
            bail!("{shown}: the device has {}", size::show(old));
        }
        grow(&region, args.size, info.is_thin)
            .inspect_err(|_| drop(pool::set_len(&region, old)))?;
    }
    let size_bytes = engines::resize(&region, args.size)
        .inspect_err(|_| drop(pool::set_len(&region, old)))
        .with_context(|| shown.to_string())?;
    pool::set_len(&region, size_bytes).with_context(|| shown.to_string())?;
    let resized = Resized { pool: shown.to_string(), size_before: info.size_bytes, size_bytes };
    if json {
        output::json(&resized)?;
    } else {
        let sizes = [resized.size_before, size_bytes].map(size::show);
        say!("{shown}: {} instead of {}", sizes[1], sizes[0]);
    }
    Ok(ExitCode::SUCCESS)
}

/// Extends the file, which takes no space if the pool is thin.
fn grow(region: &Region, len: u64, is_thin: bool) -> Result<()> {
    if is_thin {
        region.grow_sparse(len)?;
    } else {
        region.grow(len)?;
        region.allocate()?;
    }
    Ok(())
}
