//! `keepstone mkfs`
//!
//! A file or device that exists is formatted in place, as every other mkfs does: it keeps its
//! owner, mode and names. The command makes all checks before it changes the file, and if growing a
//! file fails, it restores the old length. A new file gets its name when it is formatted.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::ExitCode;

use ::pool::{FormatOptions, LABEL_MAX, PoolInfo, length_for};
use anyhow::{Context as _, Result, bail};
use engines::Layout;
use pmem::{Access, Domain, Lock, Medium as _, OpenOptions, Region};
use serde::Serialize;

use crate::args::MkfsArgs;
use crate::output::wrong_usage;
use crate::pool::{self, DomainReport};
use crate::tags::Tag;
use crate::{output, shown, signatures, size, trim, trust};

/// The reason why a pool has no `--max-size`.
const ONLY_THIN: &str =
    "--max-size: only a thin pool, and no cache, can get another size while it is used";

/// A pool that was formatted.
#[derive(Serialize)]
pub struct Made {
    pool: String,
    #[serde(flatten)]
    info: PoolInfo,
    domain: DomainReport,
}

pub fn run(args: &MkfsArgs, json: bool) -> Result<ExitCode> {
    let made = make(args)?;
    if json {
        output::json(&made)?;
    } else {
        let PoolInfo { layout, size_bytes, uuid, .. } = &made.info;
        let thin = if made.info.is_thin { ", thin" } else { "" };
        say!("{}: {layout}, {}{thin}, {uuid}", made.pool, size::show(*size_bytes));
        say!("domain {}", made.domain);
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a pool.
pub fn make(args: &MkfsArgs) -> Result<Made> {
    Tag::refuse(&args.pool)?;
    check_args(args)?;
    let found = look(&args.pool)?;
    let region = match &found {
        Some(found) => open(args, found)?,
        None => create(args)?,
    };
    let is_thin = is_thin(args, &region)?;
    if !is_thin {
        allocate(&region, args, found.as_ref())?;
    }
    let info = lengthen(&region, args, found.as_ref(), is_thin)
        .and_then(|size| format(&region, args, is_thin, size))
        .inspect_err(|_| {
            if found.is_none() {
                remove_new(&region, args);
            }
        })
        .with_context(|| args.pool.display().to_string())?;
    if found.is_none() {
        region.name_file(&args.pool)?;
    }
    let domain = region.domain();
    drop(region);
    if is_thin && found.is_some() {
        // The old content took space.
        trim::trim(&args.pool)?;
    }
    Ok(Made {
        pool: pool::absolute(&args.pool)?.display().to_string(),
        info,
        domain: domain.into(),
    })
}

/// Makes the file of a resizable pool longer than the pool. Returns the size of such a pool.
fn lengthen(
    region: &Region,
    args: &MkfsArgs,
    found: Option<&Metadata>,
    is_thin: bool,
) -> Result<Option<u64>> {
    let size = region.len();
    match args.max_size {
        _ if is_thin && !args.cache => {}
        None => return Ok(None),
        Some(_) => bail!(ONLY_THIN),
    }
    match args.max_size {
        Some(max) => region.grow_sparse(max)?,
        // A file that was there keeps its length, unless a size is given.
        None => {
            let kept = found.filter(|_| args.size.is_none()).map(Metadata::len);
            let max = kept.unwrap_or_else(|| length_for(size)).min(*args.layout.limits().end());
            // Not all file systems, and limits of processes, allow so long a file.
            let _ = region.grow_sparse(max.max(size));
        }
    }
    Ok(Some(size))
}

fn format(region: &Region, args: &MkfsArgs, is_thin: bool, size: Option<u64>) -> Result<PoolInfo> {
    let maker = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (label, is_backed) = (args.label.clone(), args.cache);
    let options = FormatOptions { label, owner: maker, is_backed, is_thin, size };
    let info = args.layout.format(region, &options)?;
    // Cuts off the part of the file beyond the pool.
    pool::set_len(region, region.len())?;
    Ok(info)
}

/// Refuses a label that is too long, or that a terminal would not simply show.
pub fn check_label(label: &str) -> Result<()> {
    let len = label.len();
    if len > LABEL_MAX {
        return Err(wrong_usage(format!("--label: at most {LABEL_MAX} bytes, this one has {len}")));
    }
    if label.contains(shown::is_treacherous) {
        return Err(wrong_usage("--label: no control characters, and none that a terminal hides"));
    }
    Ok(())
}

/// Refuses arguments that no pool can have.
fn check_args(args: &MkfsArgs) -> Result<()> {
    check_label(&args.label)?;
    if args.cache && args.layout != Layout::Bpfs {
        let layout = args.layout.name();
        return Err(wrong_usage(format!("--cache: only of the layout bpfs, not of {layout}")));
    }
    if args.max_size.is_some() && (args.thick || args.cache) {
        return Err(wrong_usage(ONLY_THIN));
    }
    if let (Some(size), Some(max)) = (args.size, args.max_size)
        && max < size
    {
        return Err(wrong_usage(format!(
            "--max-size {}: is less than --size {}",
            size::show(max),
            size::show(size)
        )));
    }
    for (option, size) in [("--size", args.size), ("--max-size", args.max_size)] {
        if let Some(size) = size {
            check_size(args.layout, size).with_context(|| option)?;
        }
    }
    Ok(())
}

/// Refuses a size that no pool of a layout can have, as wrong usage.
pub fn check_size(layout: Layout, size: u64) -> Result<()> {
    let limits = layout.limits();
    if limits.contains(&size) {
        return Ok(());
    }
    Err(wrong_usage(format!(
        "{}: a pool of the layout {} has at least {} and at most {}",
        size::show_exactly(size),
        layout.name(),
        size::show_exactly(*limits.start()),
        size::show_exactly(*limits.end())
    )))
}

/// Returns the metadata of the file at the path; `None` if there is no file yet.
fn look(pool: &Path) -> Result<Option<Metadata>> {
    let failed = |err| Err(err).with_context(|| pool.display().to_string());
    match std::fs::metadata(pool) {
        Ok(found) => Ok(Some(found)),
        Err(err) if err.kind() != io::ErrorKind::NotFound => failed(err),
        Err(_) => match std::fs::read_link(pool) {
            Ok(target) => bail!(
                "{}: is a symbolic link to {}, which does not exist; name the file itself",
                pool.display(),
                target.display()
            ),
            Err(_) => Ok(None),
        },
    }
}

/// Opens an existing file or device, if it may be overwritten, at the length of the new pool. Its
/// content is intact until the format is stored.
fn open(args: &MkfsArgs, found: &Metadata) -> Result<Region> {
    let is_device = found.file_type().is_char_device();
    let reserve = if is_device { 0 } else { longest(args) };
    let options = OpenOptions { reserve, may_be_empty: true, ..OpenOptions::default() };
    // The lock taken here proves that no process uses the pool.
    let mut region = pool::open(&args.pool, &options, Access::ReadWrite)?;
    if !region.lock_part(::pool::ALL_SNAPSHOTS, Lock::Exclusive)? {
        bail!("{}: a snapshot of it is mounted; unmount it first", args.pool.display());
    }
    if !args.force {
        trust::refuse_planted(&args.pool, "remove it, name another file, or use --force")?;
        refuse(&args.pool, &region, is_device)?;
    }
    let old = region.len();
    let present = engines::info(&region).ok().map(|info| info.size_bytes);
    let Some(size) = args.size.or(present).or(Some(old).filter(|&len| len > 0)) else {
        return Err(how_large(&args.pool));
    };
    let least = *args.layout.limits().start();
    if size < least {
        bail!(
            "{}: has {}, and a pool at least {}; give it a --size",
            args.pool.display(),
            size::show(size),
            size::show(least)
        );
    }
    if is_device && size > old {
        bail!("{}: has {}, less than --size", args.pool.display(), size::show(old));
    }
    region.shorten(size);
    if size > old
        && let Err(err) = region.grow_sparse(size)
    {
        let _ = pool::set_len(&region, old);
        return Err(err.into());
    }
    Ok(region)
}

/// Returns whether the pool is to take its space when it needs it.
fn is_thin(args: &MkfsArgs, region: &Region) -> Result<bool> {
    let can_be = args.layout.can_be_thin() && region.can_be_thin();
    if args.thin && !can_be {
        bail!(
            "{}: --thin: this kind of file, or of pool, takes all of its space at once",
            args.pool.display()
        );
    }
    // DAX files and devices are bought to be filled.
    let is_usual = matches!(region.domain(), Domain::Volatile | Domain::PageCache);
    Ok(args.thin || !args.thick && can_be && is_usual)
}

/// Removes the file that the command has made, if it has its name already.
fn remove_new(region: &Region, args: &MkfsArgs) {
    if region.has_name() {
        let _ = std::fs::remove_file(&args.pool);
    }
}

/// Takes all of the pool's space. If that fails, the file has its old length, or is removed if it
/// is new.
fn allocate(region: &Region, args: &MkfsArgs, found: Option<&Metadata>) -> Result<()> {
    let Err(err) = region.allocate() else { return Ok(()) };
    match found {
        Some(found) if found.len() < region.len() => drop(pool::set_len(region, found.len())),
        Some(_) => {}
        None => remove_new(region, args),
    }
    Err(err.into())
}

/// Refuses to overwrite data that may be valuable.
fn refuse(pool: &Path, region: &Region, is_device: bool) -> Result<()> {
    let holds = match engines::info(region) {
        Ok(info) if info.label.is_empty() => format!("the pool {}", info.uuid),
        Ok(info) => format!("the pool {} ({})", info.uuid, info.label),
        Err(_) => match (signatures::find(region), signatures::first_data(region, is_device)) {
            (Some(found), _) => found.to_owned(),
            (None, Some(at)) => format!("data that is no pool, from byte {at} on"),
            // Only zeros: a file set aside for a pool, or a device never used.
            (None, None) => return Ok(()),
        },
    };
    bail!("{}: holds {holds}; choose another name, or replace it with --force", pool.display());
}

fn create(args: &MkfsArgs) -> Result<Region> {
    let size = args.size.ok_or_else(|| how_large(&args.pool))?;
    let options = OpenOptions { sparse: true, reserve: longest(args), ..OpenOptions::default() };
    Ok(options.create_nameless(&args.pool, size)?)
}

/// Returns the most bytes that the file may get.
fn longest(args: &MkfsArgs) -> u64 {
    args.max_size.unwrap_or_else(|| length_for(args.size.unwrap_or(0)))
}

fn how_large(pool: &Path) -> anyhow::Error {
    wrong_usage(format!("{}: how large? Give for example --size 4G", pool.display()))
}
