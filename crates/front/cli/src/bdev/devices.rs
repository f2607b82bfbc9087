//! Opening pools as block devices.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use engines::Layout;
use nbd::{Export, Exports};
use pmbd::BlockDevice;
use pmem::Medium as _;
use serde::{Deserialize, Serialize};

use super::args::DeviceArgs;
use super::holder;
use crate::pool::{self, DomainReport};
use crate::size;

/// What does not change while a device is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Of the export.
    pub name: String,
    pub description: String,
    /// Of the pool.
    pub path: String,
    pub domain: DomainReport,
    pub protection: String,
    pub scheme: String,
    /// Bytes that are never torn; 0 where there are none.
    pub atomic: u32,
    pub checksums: bool,
    pub read_only: bool,
    pub emulation: Option<String>,
    /// Of writes, in DRAM.
    pub buffers: Option<String>,
    /// Whether what is discarded gives its space back.
    pub thin: bool,
}

/// A pool as a block device.
pub struct Opened {
    pub device: Arc<dyn BlockDevice>,
    pub report: DeviceReport,
    /// The file, if it was created for it.
    pub created: Option<Created>,
    /// What its user should know.
    pub warnings: Vec<String>,
}

/// A file that is removed when this is dropped, unless it was kept: nobody wants what a command made that then failed.
pub struct Created(Cell<Option<PathBuf>>);

impl Created {
    /// All went well.
    pub fn keep(&self) {
        self.0.take();
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens `path`; creates it, if that is asked for and it is not there.
pub fn open(name: &str, description: &str, path: &Path, args: &DeviceArgs) -> Result<Opened> {
    let created = match args.size.filter(|_| args.create && !path.exists()) {
        None => None,
        Some(size) => {
            create(path, size, args)
                .with_context(|| format!("{}: cannot be created", path.display()))?;
            Some(Created(Cell::new(Some(absolute(path)?))))
        }
    };
    let path = absolute(path)?;
    if !args.read_only {
        refuse_pool(
            &path,
            "serving it as a disk would destroy that; `keepstone mount` it, serve it --read-only to copy it, or \
             remove the file",
        )?;
    }
    let region = pool::open_to_look(&path)?;
    let domain = region.domain();
    // Who shares a pool lets others in who only read; they would see it change.
    let alone = args.read_only && Layout::of(&region).is_some();
    drop(region);
    let device = open_as(&path, &pmbd::Options { alone, ..options(args) })?;
    let warnings = match args.size {
        Some(size) if args.create && created.is_none() => other_size(&path, &*device, size),
        _ => None,
    };
    let report = DeviceReport {
        name: name.to_owned(),
        description: description.to_owned(),
        path: path.display().to_string(),
        domain: domain.into(),
        protection: args.protect.to_string(),
        scheme: args.scheme.to_string(),
        atomic: device.block_sizes().atomic,
        checksums: args.checksums,
        read_only: device.is_read_only(),
        emulation: args.emulate.map(|e| e.to_string()),
        buffers: args.buffering().map(|how| how.to_string()),
        thin: args.thin,
    };
    Ok(Opened { device, report, created, warnings: warnings.into_iter().collect() })
}

/// What to tell whoever wants `size` bytes created where there is a pool already.
fn other_size(path: &Path, device: &dyn BlockDevice, size: u64) -> Option<String> {
    let block = u64::from(device.block_sizes().atomic.max(1));
    let (has, wanted) = (device.size(), size.div_ceil(block).saturating_mul(block));
    (has != wanted).then(|| {
        let path = path.display();
        let [has, wanted] = [has, wanted].map(size::show);
        format!("{path}: is there already, with {has}, and keeps that size, not {wanted}")
    })
}

/// Opens what has been open before, until a process died in it.
pub fn open_after_death(report: DeviceReport, args: &DeviceArgs) -> Result<Opened> {
    let device = open_as(Path::new(&report.path), &options(args))?;
    Ok(Opened { device, report, created: None, warnings: Vec::new() })
}

/// Fails where `path` is a pool with a file system; `why` says what to do instead.
pub fn refuse_pool(path: &Path, why: &str) -> Result<()> {
    ensure!(
        Layout::of(&pool::open_to_look(path)?).is_none(),
        "{}: holds a file system, made by `keepstone mkfs`: {why}",
        path.display()
    );
    Ok(())
}

/// The devices under their names.
pub fn exports(opened: &[Opened]) -> Result<Exports> {
    let export = |Opened { device, report, .. }: &Opened| {
        Export::new(&*report.name, &*report.description, device.clone(), report.read_only)
    };
    Ok(Exports::new(opened.iter().map(export).collect::<Result<Vec<_>, _>>()?)?)
}

fn create(path: &Path, size: u64, args: &DeviceArgs) -> Result<()> {
    if args.thin {
        pmem::OpenOptions { sparse: true, ..pmem::OpenOptions::default() }.create(path, size)?;
    } else {
        pmbd::create(path, size, args.atomic)?;
    }
    Ok(())
}

fn options(args: &DeviceArgs) -> pmbd::Options {
    pmbd::Options {
        protection: args.protect,
        scheme: args.scheme,
        emulation: args.emulate.unwrap_or_default(),
        read_only: args.read_only,
        atomic: args.atomic,
        checksums: args.checksums,
        buffering: args.buffering(),
        thin: args.thin,
        alone: false,
    }
}

fn open_as(path: &Path, options: &pmbd::Options) -> Result<Arc<dyn BlockDevice>> {
    told(path, pmbd::open(path, options), "cannot be opened as a block device")
}

/// What was done with a pool. An error says what could not be done, and who has the pool if somebody else does.
pub fn told<T>(path: &Path, done: Result<T, pmbd::Error>, what: &str) -> Result<T> {
    let shown = path.display();
    done.map_err(|err| {
        let in_use = matches!(err, pmbd::Error::Region(pmem::Error::InUse(_)));
        match in_use.then(|| holder::of(path)).flatten() {
            Some(who) => anyhow!("{shown}: {what}: it is in use by {who}"),
            // These name it.
            None if matches!(err, pmbd::Error::Region(_) | pmbd::Error::Mismatch { .. }) => {
                err.into()
            }
            None => anyhow::Error::from(err).context(format!("{shown}: {what}")),
        }
    })
}

/// Makes a pool longer that nobody serves; its size then.
pub fn grow(path: &Path, size: u64) -> Result<u64> {
    let path = path.canonicalize().with_context(|| {
        let shown = path.display();
        format!(
            "{shown}: no such server (`keepstone bdev list` shows those that run), and no such pool"
        )
    })?;
    refuse_pool(&path, "it keeps its size; copy its files to a larger one")?;
    told(&path, pmbd::grow(&path, size), "cannot be made longer")
}

/// The path of a pool that is there.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| {
        format!("{}: no such pool; --create --size 1G makes one there", path.display())
    })
}

/// What the kernel is told when a request fails.
pub fn errno(err: &pmbd::Error) -> i32 {
    match err {
        pmbd::Error::OutOfRange { .. } => libc::ENOSPC,
        pmbd::Error::Misaligned { .. } => libc::EINVAL,
        pmbd::Error::ReadOnly => libc::EROFS,
        pmbd::Error::NotSupported => libc::EOPNOTSUPP,
        _ => {
            tracing::error!("{err}");
            libc::EIO
        }
    }
}
