//! `keepstone resize`
//!
//! A resizable pool gets another size while programs use it, up to its length: the command joins
//! its users. The length of a pool, and the size of others, change while no process uses it. Then
//! the pool's file gets longer before the pool does, and shorter after it. So whatever fails in
//! between, the file holds all of the pool.

use std::path::Path;
use std::process::ExitCode;

use ::pool::{PoolInfo, length_for};
use anyhow::{Context as _, Result, bail};
use engines::Layout;
use pmem::{Access, Medium as _, OpenOptions, Region};
use serde::Serialize;
use vfs::Errno;

use crate::args::ResizeArgs;
use crate::{mkfs, output, pool, size, trim};

#[derive(Serialize)]
struct Resized {
    pool: String,
    size_before: u64,
    size_bytes: u64,
}

pub fn run(args: &ResizeArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (info, _) = pool::info(&path)?;
    if let Some(layout) = Layout::named(info.layout) {
        mkfs::check_size(layout, args.size)?;
    }
    let size_bytes = resize(&path, &info, args.size).with_context(|| path.display().to_string())?;
    let pool = path.display().to_string();
    let resized = Resized { pool, size_before: info.size_bytes, size_bytes };
    if json {
        output::json(&resized)?;
    } else {
        let sizes = [resized.size_before, size_bytes].map(size::show);
        say!("{}: {} instead of {}", resized.pool, sizes[1], sizes[0]);
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives a pool another size; returns it.
fn resize(path: &Path, info: &PoolInfo, bytes: u64) -> Result<u64> {
    let why = match info.max_size_bytes {
        None => {
            "a pool can get another size while it is used only if it is thin, and made by this version of keepstone"
                .to_owned()
        }
        Some(max) if bytes > max => {
            format!("while it is used, the pool can have at most {}", size::show(max))
        }
        Some(_) => {
            let fs = pool::attach(path)?;
            let resized = fs.resize(bytes);
            fs.close()?;
            match resized {
                Ok(size) => return Ok(size),
                Err(Errno::NOSPC) => {}
                Err(Errno::INVAL) => bail!("no pool can have a size of {}", size::show(bytes)),
                Err(err) => return Err(err.into()),
            }
            "what it holds does not fit, or has to be moved, which is not possible while it is used"
                .to_owned()
        }
    };
    let length = if info.max_size_bytes.is_some() { length_for(bytes) } else { bytes };
    // The lock taken here proves that no process uses the pool.
    let options = OpenOptions { reserve: length, ..OpenOptions::default() };
    let region = pool::open(path, &options, Access::ReadWrite).context(why)?;
    resize_unused(path, region, info, (bytes, length))
}

/// Gives a pool that no process uses another size, and its file a length that suits a larger one.
/// Returns the size.
fn resize_unused(
    path: &Path,
    region: Region,
    info: &PoolInfo,
    (bytes, length): (u64, u64),
) -> Result<u64> {
    let old = region.len();
    if bytes > old {
        if !region.is_file() {
            bail!("the device has {}", size::show(old));
        }
        grow(&region, length, info.is_thin).inspect_err(|_| drop(pool::set_len(&region, old)))?;
    }
    let size =
        engines::resize(&region, bytes).inspect_err(|_| drop(pool::set_len(&region, old)))?;
    if info.max_size_bytes.is_some() {
        drop(region);
        // The places from which blocks were moved have space.
        trim::trim(path)?;
    } else {
        pool::set_len(&region, size)?;
    }
    Ok(size)
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
