//! Discovery of servers, and matching of targets on the command line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fuse::MountEntry;
use serde_json::Value;

use crate::bdev::control::{self, BdevServer};
use crate::pool;
use crate::tags::Tag;

/// The place at which a server is queried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The mount of a pool or of a cache.
    Mount {
        /// The mount point.
        dir: PathBuf,
        /// The pool.
        pool: PathBuf,
    },
    /// The control socket of a server of block devices.
    Socket(PathBuf),
}

impl Source {
    /// Returns the process ID, if the name of the socket contains it.
    pub fn pid(&self) -> Option<u64> {
        match self {
            Self::Mount { .. } => None,
            Self::Socket(path) => path.file_stem()?.to_str()?.parse().ok(),
        }
    }
}

/// Finds all servers of this machine that are visible to this process, without asking any server.
pub fn find() -> Result<BTreeSet<Source>> {
    let mounts = fuse::mounts().with_context(|| fuse::TABLE)?;
    let sockets = control::sockets().into_iter().map(Source::Socket);
    Ok(visible(&mounts).chain(sockets).collect())
}

/// Returns the mounts of Keepstone that no other mount hides. Of a mount that is bound to several
/// places, returns the first.
fn visible(mounts: &[MountEntry]) -> impl Iterator<Item = Source> {
    let mut devices = BTreeSet::new();
    let on_top = move |at: usize| mounts[at + 1..].iter().all(|later| later.dir != mounts[at].dir);
    let ours = mounts.iter().enumerate().filter(|(_, mount)| mount.is_keepstone());
    ours.filter(move |(at, mount)| on_top(*at) && devices.insert(mount.device))
        .map(|(_, mount)| Source::Mount { dir: mount.dir.clone(), pool: mount.source.clone() })
}

/// A target on the command line.
#[derive(Debug)]
pub struct Target {
    /// The name as given.
    pub name: String,
    /// The paths that it may mean.
    paths: Vec<PathBuf>,
}

impl Target {
    /// Parses a target: a mount point, a device, a socket, the name of an export, a process ID or a
    /// pool.
    pub fn new(name: &str) -> Result<Self> {
        let path = Path::new(name);
        let mut paths = vec![std::path::absolute(path).with_context(|| format!("`{name}`"))?];
        if Tag::parse(path).is_some() {
            paths.push(pool::absolute(path)?);
        } else if fuse::mount_at(&paths[0])?.is_none() {
            // Not for a mount point, because the server of a mount may not answer.
            paths.extend(path.canonicalize());
        }
        Ok(Self { name: name.to_owned(), paths })
    }

    /// Returns whether the target means this path.
    pub fn is_path(&self, path: &Path) -> bool {
        self.paths.iter().any(|known| known == path)
    }

    /// Returns whether the target means this process.
    pub fn is_pid(&self, pid: Option<u64>) -> bool {
        pid.is_some_and(|pid| self.name.parse() == Ok(pid))
    }

    /// Returns whether the target means this export of a server.
    pub fn is_export(&self, server: &BdevServer, export: &Value) -> bool {
        let path = export["path"].as_str().map(Path::new);
        server.is_named(&self.name)
            || control::is_export(&self.name, export)
            || path.is_some_and(|path| self.is_path(path))
    }

    /// Returns whether the target means this server, as far as that is known before the server
    /// answers.
    pub fn is_source(&self, source: &Source) -> bool {
        match source {
            Source::Mount { dir, pool } => self.is_path(dir) || self.is_path(pool),
            Source::Socket(_) => self.is_pid(source.pid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(device: u32, dir: &str, fs_type: &str) -> MountEntry {
        MountEntry {
            device: (0, device),
            dir: dir.into(),
            options: "rw".into(),
            fs_type: fs_type.into(),
            source: "/pool".into(),
            user: Some(0),
        }
    }

    #[test]
    fn a_mount_is_found_once_and_where_it_is_seen() {
        let ours = "fuse.keepstone";
        let mounts = [
            mount(1, "/hidden", ours),
            mount(2, "/hidden", "tmpfs"),
            mount(3, "/a", ours),
            mount(3, "/bound", ours),
            mount(4, "/below", ours),
            mount(5, "/below", ours),
            mount(6, "/other", "fuse.other"),
        ];
        let source = |dir: &str| Source::Mount { dir: dir.into(), pool: "/pool".into() };
        let found: Vec<_> = visible(&mounts).collect();
        assert_eq!(found, [source("/a"), source("/below")]);
    }

    #[test]
    fn targets_are_paths_names_and_processes() {
        let socket = Source::Socket("/run/keepstone/bdev/42.control".into());
        let at = Source::Mount { dir: "/no/such".into(), pool: "/no/pool".into() };
        for (name, is_socket, is_mount) in [
            ("42", true, false),
            ("43", false, false),
            ("/no/such/", false, true),
            ("/no/pool", false, true),
        ] {
            let target = Target::new(name).unwrap();
            assert_eq!(target.is_source(&socket), is_socket, "{name}");
            assert_eq!(target.is_source(&at), is_mount, "{name}");
        }
    }
}
