//! Functions on pools that all commands use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::pool::{Engine, MountOptions, PoolInfo};
use anyhow::{Context as _, Result, anyhow, bail};
use fuse::MountEntry;
use os::ending::after_ending;
use pmem::{Access, Domain, Lock, Medium as _, OpenOptions, Region};
use serde::{Deserialize, Serialize};

use crate::busy;
use crate::tags::Tag;

/// A persistence domain in a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DomainReport {
    /// The name of the domain.
    pub name: String,
    /// Whether fenced stores survive a power failure.
    pub durable: bool,
    /// A sentence that explains it.
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

/// Returns the absolute path of the pool with this `name`: a path, its mount point, `UUID=…` or
/// `LABEL=…`.
pub fn absolute(name: &Path) -> Result<PathBuf> {
    if let Some(tag) = Tag::parse(name) {
        return tag.find();
    }
    let mounted_at = |dir: &Path| -> Result<Option<MountEntry>> {
        Ok(fuse::mount_at(dir)?.filter(MountEntry::is_keepstone))
    };
    // Compares the unresolved path first, because the server of a mount may not answer.
    if let Some(mount) = mounted_at(&std::path::absolute(name)?)? {
        return Ok(of_source(mount.source));
    }
    let path = name.canonicalize().with_context(|| {
        format!(
            "{}: no such pool; create it with `keepstone mkfs {0} --size 1G`, or check the path",
            name.display()
        )
    })?;
    Ok(mounted_at(&path)?.map_or(path, |mount| of_source(mount.source)))
}

/// As [`absolute`], for a pool or a snapshot of it: POOL@NAME. A pool that exists under the whole
/// name is meant.
pub fn absolute_with_snapshot(name: &Path) -> Result<(PathBuf, Option<String>)> {
    let whole = absolute(name);
    if whole.is_ok() {
        return Ok((whole?, None));
    }
    match split_snapshot(name) {
        Some((pool, snapshot)) => Ok((absolute(&pool)?, Some(snapshot))),
        None => Ok((whole?, None)),
    }
}

/// As [`absolute`], for a command on the pool's own tree: the mount point of a snapshot or branch
/// is refused.
pub fn absolute_of_tree(name: &Path) -> Result<PathBuf> {
    let path = absolute(name)?;
    match fuse::mount_at(&std::path::absolute(name)?)? {
        Some(mount) if mount.is_keepstone() && mount.source != path => bail!(
            "{}: {} is mounted there; the command works on the tree of a pool, so name {}",
            name.display(),
            mount.source.display(),
            path.display()
        ),
        _ => Ok(path),
    }
}

/// Splits POOL@NAME.
fn split_snapshot(name: &Path) -> Option<(PathBuf, String)> {
    let (pool, snapshot) = name.to_str()?.rsplit_once('@')?;
    let is_name = !pool.is_empty() && ::pool::check_snapshot_name(snapshot).is_ok();
    is_name.then(|| (pool.into(), snapshot.to_owned()))
}

/// Returns POOL@NAME.
pub fn of_snapshot(pool: &Path, name: &str) -> PathBuf {
    let mut whole = pool.as_os_str().to_owned();
    whole.push("@");
    whole.push(name);
    whole.into()
}

/// Returns the pool of a mount with this source: of the pool, or of a snapshot.
pub fn of_source(source: PathBuf) -> PathBuf {
    match split_snapshot(&source) {
        Some((pool, _)) if !source.exists() => pool,
        _ => source,
    }
}

/// Opens a pool. If it is in use, the error names the processes. Waits for a process that is
/// ending.
pub fn open(pool: &Path, options: &OpenOptions, access: Access) -> Result<Region> {
    let is_taken = |err: &pmem::Error| matches!(err, pmem::Error::InUse(_));
    let is_ending = || busy::is_about_to_be_free(pool);
    let opened = after_ending(is_taken, is_ending, || options.open(pool, access));
    opened.map_err(|err| match (is_taken(&err), busy::holders(pool).as_slice()) {
        (false, _) | (true, []) => err.into(),
        (true, holders) => anyhow!("{}: in use by {}", pool.display(), holders.join("; by ")),
    })
}

/// Joins the processes that use a pool, as a program under `keepstone run` does, by the source of
/// a mount: a pool, or a branch of it.
pub fn attach(source: &Path) -> Result<Arc<dyn Engine>> {
    let pool = of_source(source.to_owned());
    let region = open_shared(&pool)?;
    let mounting = MountOptions::default();
    let attached = match split_snapshot(source).filter(|(of, _)| *of == pool) {
        Some((_, branch)) => engines::attach_branch(region, &branch, &mounting),
        None => engines::attach(region, &mounting),
    };
    attached.with_context(|| source.display().to_string())
}

/// Attaches a pool ([`attach`]), runs a function on it, and makes its effect durable.
pub fn attached<T>(path: &Path, body: impl FnOnce(&Arc<dyn Engine>) -> Result<T>) -> Result<T> {
    let fs = attach(path)?;
    let done = body(&fs);
    let synced = fs.sync();
    fs.close()?;
    let done = done?;
    synced?;
    Ok(done)
}

/// Opens a pool that other processes may use, too.
pub fn open_shared(pool: &Path) -> Result<Region> {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    open(pool, &options, Access::ReadWrite)
}

/// Opens a pool read-only and without a lock, mounted or not.
pub fn open_to_look(pool: &Path) -> Result<Region> {
    let options = OpenOptions { lock: Some(Lock::None), ..OpenOptions::default() };
    Ok(options.open(pool, Access::ReadOnly)?)
}

/// Sets the length of a file. A device keeps its length.
pub fn set_len(region: &Region, len: u64) -> io::Result<()> {
    match region.descriptor() {
        Some(file) if region.is_file() => Ok(rustix::fs::ftruncate(file, len)?),
        _ => Ok(()),
    }
}

/// Reads the description that a pool records of itself, mounted or not.
pub fn info(pool: &Path) -> Result<(PoolInfo, Domain)> {
    let region = open_to_look(pool)?;
    let info = engines::info(&region).with_context(|| pool.display().to_string())?;
    Ok((info, region.domain()))
}

/// Returns the number of threads: as asked, else one per CPU, within limits.
pub fn threads(asked: Option<u16>) -> usize {
    match asked {
        Some(n) => n.into(),
        None => std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16)),
    }
}
