//! Opening pools as block devices.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use engines::Layout;
use nbd::{Export, Exports};
use pmbd::BlockDevice;
use pmem::{Medium as _, SharedObserver};
use serde::{Deserialize, Serialize};

use super::args::DeviceArgs;
use super::holder;
use crate::mount::recording::Recording;
use crate::pool::{self, DomainReport};
use crate::{size, trust};

/// Facts about a device that do not change while it is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Name of the export.
    pub name: String,
    pub description: String,
    /// Path of the pool.
    pub path: String,
    pub domain: DomainReport,
    pub protection: String,
    pub scheme: String,
    /// Size of atomic blocks in bytes; 0 without atomic blocks.
    pub atomic: u32,
    pub checksums: bool,
    pub read_only: bool,
    pub emulation: Option<String>,
    /// Write buffers in DRAM.
    pub buffers: Option<String>,
    /// Whether discarding blocks frees their space.
    pub thin: bool,
}

/// A pool as a block device.
pub struct Opened {
    pub device: Arc<dyn BlockDevice>,
    pub report: DeviceReport,
    /// The file, if this command created it.
    pub created: Option<Created>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The recording of accesses to the pool.
    pub recording: Option<Recording>,
}

/// A new file, which is removed on drop unless [`keep`](Self::keep) was called: a command that
/// fails leaves no pool behind.
pub struct Created(Cell<Option<PathBuf>>);

impl Created {
    /// Keeps the file.
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

/// Opens `path`. Creates it first if `args` ask for that and it does not exist.
pub fn open(name: &str, description: &str, path: &Path, args: &DeviceArgs) -> Result<Opened> {
    if args.create {
        trust::refuse_planted(path, "remove it, or name another file")?;
    }
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
    // A pool with a file system must not change while it is served. A shared lock would admit its
    // mount, so this one is exclusive.
    let alone = args.read_only && Layout::of(&region).is_some();
    drop(region);
    let recording = args.record.clone().map(Recording::to).transpose()?;
    let observer = recording.as_ref().map(Recording::observer);
    let device = open_as(&path, &pmbd::Options { alone, ..options(args) }, observer)?;
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
    let warnings = warnings.into_iter().collect();
    Ok(Opened { device, report, created, warnings, recording })
}

/// Returns a warning if `--create` asks for `size` bytes and an existing pool has another size.
fn other_size(path: &Path, device: &dyn BlockDevice, size: u64) -> Option<String> {
    let block = u64::from(device.block_sizes().atomic.max(1));
    let (has, wanted) = (device.size(), size.div_ceil(block).saturating_mul(block));
    (has != wanted).then(|| {
        let path = path.display();
        let [has, wanted] = [has, wanted].map(size::show);
        format!("{path}: is there already, with {has}, and keeps that size, not {wanted}")
    })
}

/// Opens a device again after a process has died that had it open.
pub fn open_after_death(report: DeviceReport, args: &DeviceArgs) -> Result<Opened> {
    let device = open_as(Path::new(&report.path), &options(args), None)?;
    Ok(Opened { device, report, created: None, warnings: Vec::new(), recording: None })
}

/// Fails if `path` is a pool with a file system. `why` is the reason and the remedy.
pub fn refuse_pool(path: &Path, why: &str) -> Result<()> {
    ensure!(
        Layout::of(&pool::open_to_look(path)?).is_none(),
        "{}: holds a file system, made by `keepstone mkfs`: {why}",
        path.display()
    );
    Ok(())
}

/// Returns the devices as exports under their names.
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

fn open_as(
    path: &Path,
    options: &pmbd::Options,
    observer: Option<SharedObserver>,
) -> Result<Arc<dyn BlockDevice>> {
    let opened = pmbd::open_observed(path, options, observer);
    told(path, opened, "cannot be opened as a block device")
}

/// Adds context to a failed operation on a pool: what failed, and which process has the pool open.
pub fn told<T>(path: &Path, done: Result<T, pmbd::Error>, what: &str) -> Result<T> {
    let shown = path.display();
    done.map_err(|err| {
        let in_use = matches!(err, pmbd::Error::Region(pmem::Error::InUse(_)));
        match in_use.then(|| holder::of(path)).flatten() {
            Some(who) => anyhow!("{shown}: {what}: it is in use by {who}"),
            // The text of these errors names the pool.
            None if matches!(err, pmbd::Error::Region(_) | pmbd::Error::Mismatch { .. }) => {
                err.into()
            }
            None => anyhow::Error::from(err).context(format!("{shown}: {what}")),
        }
    })
}

/// Grows a pool that no server has open. Returns its new size in bytes.
pub fn grow(path: &Path, size: u64) -> Result<u64> {
    let path = path.canonicalize().with_context(|| {
        let shown = path.display();
        format!(
            "{shown}: no such server (`keepstone bdev list` shows those that run), and no such pool"
        )
    })?;
    refuse_pool(&path, "`keepstone resize` gives it another size")?;
    told(&path, pmbd::grow(&path, size), "cannot be made longer")
}

/// Returns the absolute path of an existing pool.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| {
        format!("{}: no such pool; --create --size 1G makes one there", path.display())
    })
}

/// Returns the error number for the kernel when a request fails.
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
