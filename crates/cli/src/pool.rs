//! What all commands do with pools.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::pool::PoolInfo;
use anyhow::{Context as _, Result, anyhow, bail};
use fuse::MountEntry;
use pmem::{Access, Domain, Lock, Medium as _, OpenOptions, Region};
use serde::{Deserialize, Serialize};

use crate::busy;

/// How long a killed server may take to give its pool back.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

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

/// The absolute path of the pool that `name` is: a path, the directory where it is mounted, `UUID=…` or `LABEL=…`.
pub fn absolute(name: &Path) -> Result<PathBuf> {
    if let Some(wanted) = Wanted::parse(name) {
        return wanted.find();
    }
    let mounted_at = |dir: &Path| -> Result<Option<MountEntry>> {
        Ok(fuse::mount_at(dir)?.filter(MountEntry::is_keepstone))
    };
    // By its name first: the server of a mount need not answer.
    if let Some(mount) = mounted_at(&std::path::absolute(name)?)? {
        return Ok(mount.source);
    }
    let path = name.canonicalize().with_context(|| {
        format!(
            "{}: no such pool; create it with `keepstone mkfs {0} --size 1G`, or check the path",
            name.display()
        )
    })?;
    Ok(mounted_at(&path)?.map_or(path, |mount| mount.source))
}

/// Whether a pool is named by what it says of itself, not by a path.
pub fn is_tag(name: &Path) -> bool {
    Wanted::parse(name).is_some()
}

/// What a pool says of itself, to find it by.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Uuid(String),
    Label(String),
}

impl Wanted {
    fn parse(name: &Path) -> Option<Self> {
        let (tag, value) = name.to_str()?.split_once('=')?;
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

    /// Looks among the pools that are mounted, those of fstab, devdax devices, and files in /dev/shm.
    fn find(&self) -> Result<PathBuf> {
        let mounted = fuse::mounts()?.into_iter().filter(MountEntry::is_keepstone);
        let mut places: BTreeSet<PathBuf> = mounted.map(|mount| mount.source).collect();
        let fstab = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
        let lines = fstab.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        places.extend(
            lines.filter(|line| line.get(2) == Some(&"fuse.keepstone")).map(|l| l[0].into()),
        );
        let listed = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let is_dax = |path: &PathBuf| path.to_string_lossy().starts_with("/dev/dax");
        places.extend(listed("/dev").map(|entry| entry.path()).filter(is_dax));
        places.extend(listed("/dev/shm").map(|entry| entry.path()));
        places.retain(|path| info(path).is_ok_and(|(found, _)| self.is(&found)));
        let names =
            || places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match places.len() {
            1 => Ok(places.into_iter().next().expect("there is one")),
            0 => bail!(
                "{self}: no such pool is mounted, in /etc/fstab, on /dev/dax* or in /dev/shm; name its path"
            ),
            _ => bail!("{self}: {} are; name one by its path", names()),
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(uuid) => write!(f, "UUID={uuid}"),
            Self::Label(label) => write!(f, "LABEL={label}"),
        }
    }
}

/// Opens a pool. Where it is in use, the error names by whom; who is ending is waited for.
pub fn open(pool: &Path, options: &OpenOptions, access: Access) -> Result<Region> {
    let deadline = Instant::now() + ENDS_WITHIN;
    loop {
        let err = match options.open(pool, access) {
            Ok(region) => return Ok(region),
            Err(err @ pmem::Error::InUse(_)) => err,
            Err(err) => return Err(err.into()),
        };
        if Instant::now() >= deadline || !busy::is_about_to_be_free(pool) {
            return Err(match busy::holders(pool).as_slice() {
                [] => err.into(),
                holders => anyhow!("{}: in use by {}", pool.display(), holders.join("; by ")),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Opens a pool to look at it, mounted or not.
pub fn open_to_look(pool: &Path) -> Result<Region> {
    let options = OpenOptions { lock: Some(Lock::None), ..OpenOptions::default() };
    Ok(options.open(pool, Access::ReadOnly)?)
}

/// What a pool says about itself; mounted or not.
pub fn info(pool: &Path) -> Result<(PoolInfo, Domain)> {
    let region = open_to_look(pool)?;
    let info = engines::info(&region).with_context(|| pool.display().to_string())?;
    Ok((info, region.domain()))
}

/// One per CPU, within reason.
pub fn threads(asked: Option<u16>) -> usize {
    match asked {
        Some(n) => n.into(),
        None => std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_wanted_by_what_they_say() {
        assert_eq!(Wanted::parse(Path::new("UUID=AB-1")), Some(Wanted::Uuid("ab-1".into())));
        assert_eq!(
            Wanted::parse(Path::new("LABEL=\"My=pool\"")),
            Some(Wanted::Label("My=pool".into()))
        );
        assert_eq!(Wanted::parse(Path::new("/dev/shm/a=b")), None);
    }
}
