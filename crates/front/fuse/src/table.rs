//! The kernel's table of mounts.

use mounts::{FS_TYPE, Line, unescape};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::mount::{MountFlags, SHOWN};

/// Path of the table.
pub const TABLE: &str = "/proc/self/mountinfo";

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of the mounted file system's anonymous device.
    pub device: (u32, u32),
    /// The mount point.
    pub dir: PathBuf,
    /// Per-mount options, such as `ro`.
    pub options: String,
    /// Type, such as `fuse.keepstone`.
    pub fs_type: String,
    /// The source: the pool.
    pub source: PathBuf,
    /// The user that made the mount, by FUSE.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Whether root or this user has made it, as a Keepstone mount, alive or not. Any user can make
    /// a mount of any type and source. Its server could answer anything, or nothing, so only mounts
    /// of these two users are asked.
    pub fn is_keepstone(&self) -> bool {
        let users = [0, rustix::process::geteuid().as_raw()];
        self.claims_keepstone() && self.user.is_some_and(|user| users.contains(&user))
    }

    /// Whether it has the type of a Keepstone mount.
    pub fn claims_keepstone(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Whether the mount itself has an option, such as `ro`.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    /// Returns those of its flags that the table shows.
    pub fn flags(&self) -> MountFlags {
        SHOWN.iter().filter(|(_, name)| self.has_option(name)).map(|(flag, _)| *flag).collect()
    }

    /// Whether another user has made it as a Keepstone mount, so that its server is not asked.
    pub fn is_of_another(&self) -> bool {
        self.claims_keepstone() && !self.is_keepstone()
    }
}

/// Returns all mounts that this process sees, later ones on top.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let without =
        |err: io::Error| io::Error::new(err.kind(), format!("{TABLE}: {err}; is /proc mounted?"));
    Ok(mounts_in(&std::fs::read(TABLE).map_err(without)?))
}

/// Returns the mounts in a table of some process, later ones on top.
pub fn mounts_in(table: &[u8]) -> Vec<MountEntry> {
    let lines = table.split(|&b| b == b'\n').filter_map(Line::parse);
    lines.map(|line| MountEntry::of(&line)).collect()
}

/// Returns the mounts below `dir`, an absolute path.
pub fn mounts_within(dir: &Path) -> io::Result<impl Iterator<Item = MountEntry>> {
    let is_within = move |entry: &MountEntry| entry.dir != dir && entry.dir.starts_with(dir);
    Ok(mounts()?.into_iter().filter(is_within))
}

/// Returns the topmost mount at exactly `dir`, an absolute path.
pub fn mount_at(dir: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|entry| entry.dir == dir))
}

impl MountEntry {
    fn of(line: &Line<'_>) -> Self {
        let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
        Self {
            device: line.device,
            dir: path(line.dir),
            options: String::from_utf8_lossy(line.options).into_owned(),
            fs_type: String::from_utf8_lossy(line.fs_type).into_owned(),
            source: path(line.source),
            user: line.user(),
        }
    }
}
