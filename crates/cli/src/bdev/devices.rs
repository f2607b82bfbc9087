//! Opening pools as block devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use nbd::{Export, Exports};
use pmbd::BlockDevice;
use pmem::Medium as _;
use serde::{Deserialize, Serialize};

use super::args::DeviceArgs;
use crate::pool::{self, DomainReport};

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
}

/// Opens `path`; creates it, if that is asked for and it is not there.
pub fn open(name: &str, description: &str, path: &Path, args: &DeviceArgs) -> Result<Opened> {
    if let Some(size) = args.size.filter(|_| args.create && !path.exists()) {
        create(path, size, args)
            .with_context(|| format!("{}: cannot be created", path.display()))?;
    }
    let path = absolute(path)?;
    let domain = pool::open_to_look(&path)?.domain();
    let device = open_as(&path, &options(args))?;
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
    Ok(Opened { device, report })
}

/// Opens what has been open before, until a process died in it.
pub fn open_after_death(report: DeviceReport, args: &DeviceArgs) -> Result<Opened> {
    let options = pmbd::Options { after_death: true, ..options(args) };
    let device = open_as(Path::new(&report.path), &options)?;
    Ok(Opened { device, report })
}

/// The devices under their names.
pub fn exports(opened: &[Opened]) -> Result<Exports> {
    let export = |Opened { device, report }: &Opened| {
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
        after_death: false,
    }
}

fn open_as(path: &Path, options: &pmbd::Options) -> Result<Arc<dyn BlockDevice>> {
    pmbd::open(path, options)
        .with_context(|| format!("{}: cannot be opened as a block device", path.display()))
}

fn absolute(path: &Path) -> Result<PathBuf> {
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
