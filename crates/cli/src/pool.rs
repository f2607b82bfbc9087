//! What all commands do with pools.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use pmem::{Access, Domain, Lock, Medium as _, OpenOptions, Region};
use serde::{Deserialize, Serialize};

use crate::busy;

/// A persistence domain in a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DomainReport {
    /// Its name.
    pub name: String,
    /// Whether what is fenced survives a power failure.
    pub durable: bool,
    /// What it means, in a sentence.
    pub explanation: String,
}

impl From<Domain> for DomainReport {
    fn from(domain: Domain) -> Self {
        Self {
            name: domain.name().to_owned(),
            durable: domain.durable(),
            explanation: domain.explain().to_owned(),
        }
    }
}

impl std::fmt::Display for DomainReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.explanation)
    }
}

/// The absolute path of a pool, for messages and `/proc/mounts`.
pub fn absolute(pool: &Path) -> Result<PathBuf> {
    pool.canonicalize().with_context(|| {
        format!(
            "{}: no such pool; create it with `keepstone mkfs {0} --size 4G`, or check the path",
            pool.display()
        )
    })
}

/// Opens a pool. Where it is in use, the error names by whom.
pub fn open(pool: &Path, options: &OpenOptions, access: Access) -> Result<Region> {
    options.open(pool, access).map_err(|err| match err {
        pmem::Error::InUse(_) => match busy::holders(pool).as_slice() {
            [] => err.into(),
            holders => anyhow!("{}: in use by {}", pool.display(), holders.join("; by ")),
        },
        err => err.into(),
    })
}

/// Opens a pool to look at it, mounted or not.
pub fn open_to_look(pool: &Path) -> Result<Region> {
    let options = OpenOptions { lock: Some(Lock::None), ..OpenOptions::default() };
    Ok(options.open(pool, Access::ReadOnly)?)
}

/// What a pool says about itself; mounted or not.
pub fn info(pool: &Path) -> Result<(bpfs::PoolInfo, Domain)> {
    let region = open_to_look(pool)?;
    let info = bpfs::info(&region).with_context(|| pool.display().to_string())?;
    Ok((info, region.domain()))
}

/// One per CPU, within reason.
pub fn threads(asked: Option<u16>) -> usize {
    match asked {
        Some(n) => n.into(),
        None => std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16)),
    }
}
