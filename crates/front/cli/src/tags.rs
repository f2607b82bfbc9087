//! Names of pools by their recorded tags: `UUID=…` or `LABEL=…`.
//!
//! With such a name, the user trusts a file that the search chooses. So a search considers only
//! files that root or the caller has chosen:
//!
//! - tags-T1: pools that root or the caller has mounted, those of `/etc/fstab`, and devdax devices,
//!   by the paths given there.
//! - tags-T2: in `/dev/shm`, regular files that belong to root or the caller and that not every
//!   user may write. Files of other users are not opened.
//! - tags-T3: no candidate blocks the caller: FIFOs and other special files are not opened. The
//!   search is bounded.
//! - tags-T4: if two pools have the same tag, the search fails and names both paths.
//! - tags-T5: a pool is not mounted for writing while another file with its UUID is mounted: one is
//!   a copy of the other, and the tag could mean either.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ::pool::PoolInfo;
use anyhow::{Result, bail};
use fuse::MountEntry;

use crate::output::wrong_usage;
use crate::pool;

/// Most names in a directory that a search considers, and most pools that it reads (tags-T3).
const LISTED_MAX: usize = 1 << 16;
const READ_MAX: usize = 1024;

/// Prefix of tags, and of paths, in `/etc/fstab`.
const FSTAB_PREFIX: &str = "keepstone:";

/// Removes the prefix of a path in `/etc/fstab`: `keepstone:/dev/shm/pool`. There systemd takes a
/// path in `/dev` for a device, and waits until it appears. `None` for other names.
pub fn path_of_fstab(name: &Path) -> Option<&Path> {
    let path = name.as_os_str().as_bytes().strip_prefix(FSTAB_PREFIX.as_bytes())?;
    path.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(path)))
}

/// A tag, which the pool records and by which users find it.
#[derive(Debug, PartialEq, Eq)]
pub enum Tag {
    /// Its UUID.
    Uuid(String),
    /// Its label.
    Label(String),
}

/// The condition under which a file at a path is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Root or the caller has named it (tags-T1).
    Name,
    /// Its file must belong to root or the caller (tags-T2).
    Owner,
}

impl Tag {
    /// Parses a tag; `None` for a path. In `/etc/fstab` a tag has the prefix `keepstone:`, because
    /// mount(8) and systemd themselves search block devices for other tags.
    pub fn parse(name: &Path) -> Option<Self> {
        let name = name.to_str()?;
        let (tag, value) = name.strip_prefix(FSTAB_PREFIX).unwrap_or(name).split_once('=')?;
        let value = value.trim_matches('"');
        match tag {
            "UUID" => Some(Self::Uuid(value.to_lowercase())),
            "LABEL" => Some(Self::Label(value.to_owned())),
            _ => None,
        }
    }

    fn is(&self, info: &PoolInfo) -> bool {
        match self {
            Self::Uuid(uuid) => *uuid == info.uuid.to_string(),
            Self::Label(label) => *label == info.label,
        }
    }

    /// Finds the path of the only pool with this tag.
    ///
    /// # Errors
    /// If no pool, or more than one, has the tag; [`WrongUsage`](crate::output::WrongUsage) if it
    /// has no value.
    pub fn find(&self) -> Result<PathBuf> {
        let (Self::Uuid(value) | Self::Label(value)) = self;
        if value.is_empty() {
            return Err(wrong_usage(format!("{self}: names no pool; a value is missing")));
        }
        self.find_among(candidates(Path::new("/dev/shm"))?)
    }

    /// Refuses a tag as the name of a new file.
    pub fn refuse(path: &Path) -> Result<()> {
        match Self::parse(path) {
            None => Ok(()),
            Some(_) => Err(wrong_usage(format!(
                "{0}: names a pool that exists. Name a new one by its path, and its label by --label; \
                 a file of this name is ./{0}",
                path.display()
            ))),
        }
    }

    fn find_among(&self, candidates: Vec<(PathBuf, Trust)>) -> Result<PathBuf> {
        let mut found = BTreeSet::new();
        let mut reads = 0;
        for (path, trust) in candidates {
            let Some(info) = read(&path, trust, &mut reads) else { continue };
            if self.is(&info) {
                found.insert(path.canonicalize().unwrap_or(path));
            }
        }
        let names = found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        match found.pop_first() {
            Some(path) if found.is_empty() => Ok(path),
            Some(_) => bail!(
                "{self}: {} have this name; name one of them by its path",
                names.join(" and ")
            ),
            None => bail!(
                "{self}: no such pool is mounted, in /etc/fstab, on /dev/dax* or, as a file of root or this user that \
                 others may not write, in /dev/shm; name its path"
            ),
        }
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(uuid) => write!(f, "UUID={uuid}"),
            Self::Label(label) => write!(f, "LABEL={label}"),
        }
    }
}

/// Refuses a pool if another file with its UUID is mounted (tags-T5).
///
/// # Errors
/// That, with the remedy.
pub fn refuse_twin(pool: &Path, info: &PoolInfo) -> Result<()> {
    let of = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let this = of(pool);
    let mut reads = 0;
    for mount in fuse::mounts()?.into_iter().filter(MountEntry::is_keepstone) {
        let source = pool::of_source(mount.source);
        if of(&source) == this {
            continue;
        }
        if read(&source, Trust::Owner, &mut reads).is_some_and(|other| other.uuid == info.uuid) {
            bail!(
                "{0}: has the UUID of {1}, which is mounted on {2}: one is a copy of the other. \
                 Mount this one read-only (`-o ro`), or mount a copy with a UUID of its own: \
                 `keepstone clone-pool {0} NEW`",
                pool.display(),
                source.display(),
                mount.dir.display()
            );
        }
    }
    Ok(())
}

/// Returns the paths where pools may be (tags-T1, tags-T2).
fn candidates(memory: &Path) -> Result<Vec<(PathBuf, Trust)>> {
    let mounted = fuse::mounts()?.into_iter().filter(MountEntry::is_keepstone);
    // Mounts of other users may claim any source.
    let mut all: Vec<_> = mounted.map(|mount| (mount.source, Trust::Owner)).collect();
    let fstab = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let lines = fstab.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let of_pools = lines.filter(|line| line.get(2) == Some(&"fuse.keepstone"));
    all.extend(of_pools.map(|line| (line[0].into(), Trust::Name)));
    let is_dax = |path: &PathBuf| path.to_string_lossy().starts_with("/dev/dax");
    all.extend(listed(Path::new("/dev")).filter(is_dax).map(|path| (path, Trust::Name)));
    all.extend(listed(memory).map(|path| (path, Trust::Owner)));
    Ok(all)
}

fn listed(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.take(LISTED_MAX).map(|entry| entry.path())
}

/// Reads the tags of the pool at a path; `None` if the file is no pool or cannot be trusted.
fn read(path: &Path, trust: Trust, reads: &mut usize) -> Option<PoolInfo> {
    // These flags neither follow a link nor open the file itself.
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let path = if trust == Trust::Name { path.canonicalize().ok()? } else { path.to_owned() };
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    let is_device = found.file_type().is_char_device() && trust == Trust::Name;
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    let is_trusted = trust == Trust::Name || is_ours && found.mode() & 0o002 == 0;
    if !(found.is_file() || is_device) || !is_trusted || *reads >= READ_MAX {
        return None;
    }
    *reads += 1;
    // Opens the same file that was checked.
    let seen = format!("/proc/self/fd/{}", file.as_raw_fd());
    pool::info(Path::new(&seen)).ok().map(|(info, _)| info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    #[test]
    fn pools_are_named_by_what_they_record() {
        assert_eq!(Tag::parse(Path::new("UUID=AB-1")), Some(Tag::Uuid("ab-1".into())));
        assert_eq!(Tag::parse(Path::new("LABEL=\"My=pool\"")), Some(Tag::Label("My=pool".into())));
        assert_eq!(Tag::parse(Path::new("keepstone:LABEL=a")), Some(Tag::Label("a".into())));
        assert_eq!(Tag::parse(Path::new("/dev/shm/a=b")), None);
    }

    fn make(path: &Path, uid: u32, mode: u32) {
        let region = pmem::Region::create(path, 16 << 20).unwrap();
        let how = ::pool::FormatOptions { label: "backup".into(), ..Default::default() };
        engines::Layout::Bpfs.format(&region, &how).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        chown(path, Some(uid), None).unwrap();
    }

    /// tags-T2 to tags-T4, among files of two users.
    #[test]
    fn files_of_other_users_are_not_believed() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |name: &str| dir.path().join(name);
        let find = || {
            let all = listed(dir.path()).map(|path| (path, Trust::Owner)).collect();
            Tag::Label("backup".into()).find_among(all)
        };
        make(&at("a-stranger"), 12345, 0o600);
        make(&at("b-writable"), 0, 0o666);
        std::os::unix::fs::symlink(at("a-stranger"), at("c-link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("d-fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(find().unwrap_err().to_string().contains("no such pool"));
        make(&at("e-ours"), 0, 0o600);
        assert_eq!(find().unwrap(), at("e-ours"));
        make(&at("f-ours"), 0, 0o660);
        let refused = find().unwrap_err().to_string();
        assert!(refused.contains("e-ours") && refused.contains("f-ours"), "{refused}");
        assert!(refused.contains("by its path"), "{refused}");
    }
}
