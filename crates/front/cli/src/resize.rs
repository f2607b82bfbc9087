//! `keepstone resize`
//!
//! The pool's file gets longer before the pool does, and shorter after it. So whatever fails in
//! between, the file holds all of the pool. A pool that programs use becomes longer by joining them
//! ([`pool::attached`]).

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use pmem::{Access, Medium as _, OpenOptions, Region};
use serde::Serialize;
use vfs::Errno;

use crate::args::ResizeArgs;
use crate::{output, pool, size};

/// Sizes of pools are multiples of this number of bytes.
const STEP: u64 = 64 << 10;

#[derive(Serialize)]
struct Resized {
    pool: String,
    size_before: u64,
    size_bytes: u64,
}

pub fn run(args: &ResizeArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let shown = path.display();
    let (info, _) = pool::info(&path)?;
    // The lock taken here proves that no process uses the pool.
    let options = OpenOptions { reserve: args.size, ..OpenOptions::default() };
    if args.size >= info.size_bytes
        && let Err(pmem::Error::InUse(_)) = options.open(&path, Access::ReadWrite)
    {
        let is_as_long = args.size - args.size % STEP == info.size_bytes;
        let size_bytes = if is_as_long { info.size_bytes } else { lengthen(&path, args.size)? };
        return report(&path, (info.size_bytes, size_bytes), json);
    }
    let region = pool::open(&path, &options, Access::ReadWrite).context(
        "a pool becomes shorter only while no process uses it (longer also while it is in use)",
    )?;
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
    report(&path, (info.size_bytes, size_bytes), json)
}

/// Makes a pool longer while programs use it. Returns its size.
fn lengthen(path: &Path, size: u64) -> Result<u64> {
    let shown = path.display();
    pool::attached(path, |fs| {
        fs.lengthen(size).map_err(|err| match err {
            ::pool::Error::Errno(Errno::INVAL) => anyhow!("{shown}: is longer already"),
            ::pool::Error::Errno(Errno::BUSY) => {
                anyhow!("{shown}: another command makes it longer")
            }
            ::pool::Error::Errno(Errno::NOSPC) => {
                anyhow!("{shown}: the file system below has no space for it")
            }
            ::pool::Error::Unformattable(why) => anyhow!("{shown}: {why}"),
            err => anyhow::Error::new(err).context(shown.to_string()),
        })
    })
    .context("the pool is in use")
}

/// Reports the sizes before and after.
fn report(path: &Path, (size_before, size_bytes): (u64, u64), json: bool) -> Result<ExitCode> {
    let shown = path.display();
    let resized = Resized { pool: shown.to_string(), size_before, size_bytes };
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
