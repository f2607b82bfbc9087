//! The snapshots of a pool below `.snapshots` of its mount.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ::pool::{Engine, MountOptions};
use fuse::{ListedSnapshot, SnapshotDir, SnapshotRoot, SnapshotSource};
use pmem::Region;
use vfs::{Errno, FileSystem, Result};

use crate::pool;

/// Period at which snapshots that are not used are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The value of the option `snapdir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapDir {
    /// The directory can be entered by its name, and is not listed.
    #[default]
    Hidden,
    /// The mount has no such directory.
    Off,
}

impl FromStr for SnapDir {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "hidden" => Ok(Self::Hidden),
            "off" => Ok(Self::Off),
            _ => Err("must be hidden or off".to_owned()),
        }
    }
}

/// The snapshots of a pool that this process serves.
struct PoolSnapshots {
    fs: Arc<dyn Engine>,
    pool: PathBuf,
    threads: usize,
}

impl PoolSnapshots {
    /// Opens the pool another time, only to read it.
    fn region(&self) -> Result<Region> {
        pool::open_to_look(&self.pool).map_err(|err| failed("cannot open the pool", &err))
    }
}

/// Logs an error of another type, and returns that of the call.
fn failed(what: &str, err: &dyn Display) -> Errno {
    tracing::warn!("snapshots: {what}: {err:#}");
    Errno::IO
}

impl SnapshotSource for PoolSnapshots {
    fn list(&self) -> Result<Vec<ListedSnapshot>> {
        let mut all = self.fs.snapshots(false)?.list;
        all.retain(|snapshot| !snapshot.is_incomplete);
        let listed = |one: ::pool::Snapshot| {
            let (name, created_ns) = (one.name, one.created_ns);
            ListedSnapshot { name, created_ns }
        };
        Ok(all.into_iter().map(listed).collect())
    }

    fn root(&self, name: &str) -> Result<SnapshotRoot> {
        let found = engines::root_of_snapshot(&self.region()?, name).map_err(|err| match err {
            ::pool::stream::SendError::Pool(::pool::Error::Errno(errno)) => errno,
            ::pool::stream::SendError::NoSnapshot(_) => Errno::NOENT,
            err => failed(name, &err),
        });
        found.map(|(attr, has_xattrs)| SnapshotRoot { attr, has_xattrs })
    }

    fn open(&self, name: &str) -> Result<Arc<dyn FileSystem>> {
        let options = MountOptions { threads: Some(self.threads), ..MountOptions::default() };
        let opened = engines::mount_snapshot(self.region()?, name, &options);
        let fs = opened.map_err(|err| match err {
            ::pool::Error::Errno(errno) => errno,
            err => failed(name, &err),
        })?;
        Ok(fs)
    }
}

/// Returns a file system with the snapshots of a pool below its root. They are unloaded when they
/// are not used.
pub fn below(fs: Arc<dyn Engine>, pool: PathBuf, threads: usize) -> Arc<dyn FileSystem> {
    let source = PoolSnapshots { fs: fs.clone(), pool, threads };
    let dir = Arc::new(SnapshotDir::new(fs, Box::new(source)));
    let idle = Arc::downgrade(&dir);
    crate::background::maintain(idle, LOOK_EVERY, LOOK_EVERY, |dir| {
        dir.unload_idle();
        false
    });
    dir
}
