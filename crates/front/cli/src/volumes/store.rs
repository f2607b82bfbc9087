//! The volumes of a directory. Each has a directory of its name, with its record `volume.json`, the
//! mountpoint `data`, and its pool: `pool`; of a volume with the option `save`, a pool in memory
//! that is copied to `saved` when it is unmounted.
//!
//! - volumes-V1: a volume exists if a directory of its name does. It is made, and removed, under
//!   another name, which begins with a dot.
//! - volumes-V2: a volume is mounted before the first user is recorded, and unmounted before the
//!   last user is forgotten. Users of a volume that is not mounted are those of before a restart of
//!   the machine, and do not count.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use engines::Layout;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{size, trust};

/// The most bytes of a name or of the ID of a user, volumes, and users of a volume.
const NAME_MAX: usize = 128;
const VOLUMES_MAX: usize = 10_000;
const USERS_MAX: usize = 10_000;
/// Bytes of a volume without the option `size`.
const SIZE: u64 = 1 << 30;

/// The options of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeOptions {
    /// Bytes of its pool.
    pub size: u64,
    /// The layout of its pool.
    pub layout: String,
    /// Whether the pool takes space as files need it; `None`: as `mkfs` decides.
    pub thin: Option<bool>,
    /// The pool is in memory, and is copied to a file when it is unmounted.
    pub save: bool,
}

impl VolumeOptions {
    /// Reads the options of `docker volume create --opt NAME=VALUE`.
    fn of(given: &BTreeMap<String, String>) -> Result<Self> {
        let layout = Layout::ALL[0].name().to_owned();
        let mut options = Self { size: SIZE, layout, thin: None, save: false };
        for (name, value) in given {
            let flag = || match &**value {
                "" | "true" | "yes" => Ok(true),
                "false" | "no" => Ok(false),
                _ => bail!("option {name}: true or false, and not {value:?}"),
            };
            match &**name {
                "size" => options.size = size::parse(value).context("option size")?,
                "layout" => match Layout::named(value) {
                    Some(layout) => options.layout = layout.name().to_owned(),
                    None => bail!("option layout: there is no layout {value:?}"),
                },
                "thin" => options.thin = Some(flag()?),
                "save" => options.save = flag()?,
                _ => bail!("option {name:?}: not one of size, layout, thin and save"),
            }
        }
        Ok(options)
    }

    /// Returns the options of `mkfs`, and of `mount --create`.
    fn words(&self) -> Vec<OsString> {
        let (size, layout) = (self.size.to_string(), self.layout.clone());
        let mut words: Vec<OsString> =
            ["--size", &size, "--layout", &layout].map(Into::into).to_vec();
        words.extend(self.thin.map(|thin| if thin { "--thin" } else { "--thick" }.into()));
        words
    }
}

/// The record of a volume.
#[derive(Debug, Serialize, Deserialize)]
struct VolumeRecord {
    options: VolumeOptions,
    /// The IDs of those that have asked for a mount.
    users: BTreeSet<String>,
}

/// Facts about a volume.
pub struct VolumeInfo {
    pub name: String,
    pub options: VolumeOptions,
    /// Its mountpoint, if it is mounted.
    pub mounted: Option<PathBuf>,
    /// The number of its users.
    pub users: usize,
}

/// The volumes of a directory.
pub struct VolumeStore {
    dir: PathBuf,
    memory: PathBuf,
    /// Locks of the volumes that are in use or were.
    locks: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// Keeps other processes from using the directory.
    _alone: File,
}

impl VolumeStore {
    /// Opens the directories, which are made if they do not exist.
    pub fn open(dir: &Path, memory: &Path) -> Result<Self> {
        let [dir, memory] = [dir, memory].map(private_dir);
        let (dir, memory) = (dir?, memory?);
        // It separates mount options, of which one has the path of the saved copy.
        ensure!(!dir.to_string_lossy().contains(','), "{}: a comma in the name", dir.display());
        let alone = File::open(&dir)?;
        flock(&alone, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{}: another process serves it", dir.display()))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            // A process was making it, or removing it (volumes-V1).
            if entry.file_name().to_string_lossy().starts_with('.') {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Self { dir, memory, locks: Mutex::default(), _alone: alone })
    }

    /// Makes a volume. One that exists stays, if it has these options.
    pub fn create(&self, name: &str, given: &BTreeMap<String, String>) -> Result<()> {
        let options = VolumeOptions::of(given)?;
        let lock = self.lock_of(name)?;
        let _lock = held(&lock);
        let place = self.dir.join(name);
        if let Some(record) = read_record(&place)? {
            let is_same = given.is_empty() || record.options == options;
            ensure!(is_same, "volume {name} exists, with other options");
            return Ok(());
        }
        ensure!(fs::read_dir(&self.dir)?.count() < VOLUMES_MAX, "there are {VOLUMES_MAX} volumes");
        let new = self.dir.join(format!(".new-{name}"));
        remove_all(&new)?;
        fs::create_dir(&new)?;
        let made = self.fill(&new, options).and_then(|()| {
            fs::rename(&new, &place)?;
            Ok(File::open(&self.dir)?.sync_all()?)
        });
        if made.is_err() {
            remove_all(&new)?;
        }
        made.with_context(|| format!("volume {name} cannot be made"))
    }

    /// Makes the files of a volume.
    fn fill(&self, new: &Path, options: VolumeOptions) -> Result<()> {
        fs::create_dir(new.join("data"))?;
        if !options.save {
            let mut words: Vec<OsString> = vec!["mkfs".into(), new.join("pool").into()];
            words.extend(options.words());
            keepstone(&words)?;
        }
        write_record(new, &VolumeRecord { options, users: BTreeSet::new() })
    }

    /// Removes a volume that is not in use, with its content.
    pub fn remove(&self, name: &str) -> Result<()> {
        let lock = self.lock_of(name)?;
        let _lock = held(&lock);
        let place = self.dir.join(name);
        self.found(name)?;
        ensure!(!is_mounted(&place)?, "volume {name} is in use");
        let gone = self.dir.join(format!(".gone-{name}"));
        remove_all(&gone)?;
        fs::rename(&place, &gone)?;
        File::open(&self.dir)?.sync_all()?;
        let in_memory = self.memory.join(name);
        if in_memory.exists() {
            fs::remove_file(in_memory)?;
        }
        remove_all(&gone)
    }

    /// Mounts a volume for a user, if it is not mounted yet; returns the mountpoint.
    pub fn mount(&self, name: &str, user: &str) -> Result<PathBuf> {
        ensure!(user.len() <= NAME_MAX && !user.is_empty(), "the ID {user:?} has no valid length");
        let lock = self.lock_of(name)?;
        let _lock = held(&lock);
        let place = self.dir.join(name);
        let mut record = self.found(name)?;
        let data = place.join("data");
        // volumes-V2: users of a volume that is not mounted do not count.
        let was_mounted = is_mounted(&place)?;
        if !was_mounted {
            record.users.clear();
            keepstone(&self.mount_words(name, &place, &record.options))?;
        }
        ensure!(record.users.len() < USERS_MAX, "volume {name} has {USERS_MAX} users");
        record.users.insert(user.to_owned());
        if let Err(err) = write_record(&place, &record) {
            if !was_mounted {
                self.end_mount(name, &place, &record.options)?;
            }
            return Err(err);
        }
        Ok(data)
    }

    fn mount_words(&self, name: &str, place: &Path, options: &VolumeOptions) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["mount".into()];
        if options.save {
            let saved = place.join("saved");
            words.push("--create".into());
            words.extend(options.words());
            words.extend(["--save".into(), saved.clone().into(), "--restore".into(), saved.into()]);
            words.push(self.memory.join(name).into());
        } else {
            words.push(place.join("pool").into());
        }
        words.push(place.join("data").into());
        words
    }

    /// Forgets a user of a volume; unmounts it with the last one.
    pub fn unmount(&self, name: &str, user: &str) -> Result<()> {
        let lock = self.lock_of(name)?;
        let _lock = held(&lock);
        let place = self.dir.join(name);
        let mut record = self.found(name)?;
        record.users.remove(user);
        if record.users.is_empty() && is_mounted(&place)? {
            self.end_mount(name, &place, &record.options)?;
        }
        write_record(&place, &record)
    }

    /// Unmounts a volume, and frees the memory of a pool that was saved.
    fn end_mount(&self, name: &str, place: &Path, options: &VolumeOptions) -> Result<()> {
        keepstone(&["umount".into(), place.join("data").into()])?;
        let in_memory = self.memory.join(name);
        if options.save && place.join("saved").exists() && in_memory.exists() {
            fs::remove_file(in_memory)?;
        }
        Ok(())
    }

    /// Returns facts about a volume.
    pub fn get(&self, name: &str) -> Result<VolumeInfo> {
        let lock = self.lock_of(name)?;
        let _lock = held(&lock);
        let record = self.found(name)?;
        let place = self.dir.join(name);
        let mounted = is_mounted(&place)?.then(|| place.join("data"));
        let users = if mounted.is_some() { record.users.len() } else { 0 };
        Ok(VolumeInfo { name: name.to_owned(), options: record.options, mounted, users })
    }

    /// Returns facts about all volumes, by name.
    pub fn list(&self) -> Result<Vec<VolumeInfo>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)? {
            names.extend(entry?.file_name().into_string().ok().filter(|name| is_name(name)));
        }
        let infos = names.iter().map(|name| self.get(name));
        // A volume may be removed meanwhile.
        Ok(infos.filter_map(Result::ok).collect())
    }

    /// Returns the record of a volume that must exist.
    fn found(&self, name: &str) -> Result<VolumeRecord> {
        read_record(&self.dir.join(name))?.with_context(|| format!("there is no volume {name}"))
    }

    /// Returns the lock of a volume, after a check of its name.
    fn lock_of(&self, name: &str) -> Result<Arc<Mutex<()>>> {
        ensure!(
            is_name(name),
            "{name:?}: names of volumes have up to {NAME_MAX} letters, digits, `_`, `.` and `-`, \
             and begin with a letter or digit"
        );
        let mut locks = held(&self.locks);
        // Locks that no thread holds need not stay.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Ok(locks.entry(name.to_owned()).or_default().clone())
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a text is a name of Docker's volumes. So it is also the name of a file, and not hidden.
fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    name.len() <= NAME_MAX
        && name.starts_with(is_letter)
        && name.chars().all(|c| is_letter(c) || "_.-".contains(c))
}

/// Makes a directory for this user alone, or checks one that exists; returns its path.
fn private_dir(dir: &Path) -> Result<PathBuf> {
    let at = || dir.display().to_string();
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above).with_context(at)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(err) if err.kind() == ErrorKind::AlreadyExists => {}
        made => made.with_context(at)?,
    }
    ensure!(dir.symlink_metadata().with_context(at)?.is_dir(), "{}: no directory", dir.display());
    if let Some(why) = trust::changeable_by(dir)? {
        bail!("{}: other users may change it: {why}", dir.display());
    }
    dir.canonicalize().with_context(at)
}

fn is_mounted(place: &Path) -> Result<bool> {
    Ok(fuse::mount_at(&place.join("data"))?.is_some())
}

/// Returns the record of a volume; `None` if there is no such volume.
fn read_record(place: &Path) -> Result<Option<VolumeRecord>> {
    let path = place.join("volume.json");
    match fs::read(&path) {
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        read => {
            let at = || path.display().to_string();
            Ok(Some(serde_json::from_slice(&read.with_context(at)?).with_context(at)?))
        }
    }
}

/// Replaces the record of a volume, whole and durably.
fn write_record(place: &Path, record: &VolumeRecord) -> Result<()> {
    let (path, new) = (place.join("volume.json"), place.join("volume.json.new"));
    let write = || -> Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(File::open(place)?.sync_all()?)
    };
    write().with_context(|| path.display().to_string())
}

fn remove_all(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| dir.display().to_string()),
    }
}

/// Runs a command of this program; its error is that of the command.
fn keepstone(words: &[OsString]) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(words).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let why = why.lines().take(4).collect::<Vec<_>>().join("; ");
    bail!("keepstone {}: {why}", words[0].display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_docker() {
        for name in ["a", "db-1", "A.b_c", &"x".repeat(NAME_MAX)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".new-a", "-a", "a/b", "a\0", "ä", "a b", &"x".repeat(129)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn options_are_checked() {
        let options = |given: &[(&str, &str)]| {
            let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            VolumeOptions::of(&given.collect())
        };
        let plain = options(&[]).unwrap();
        assert_eq!(
            (plain.size, &*plain.layout, plain.thin, plain.save),
            (SIZE, "bpfs", None, false)
        );
        let all = [("size", "64M"), ("layout", "scmfs"), ("thin", "false"), ("save", "")];
        let all = options(&all).unwrap();
        assert_eq!(
            (all.size, &*all.layout, all.thin, all.save),
            (64 << 20, "scmfs", Some(false), true)
        );
        for wrong in [("size", "much"), ("layout", "ext4"), ("thin", "2"), ("o", "suid"), ("", "")]
        {
            assert!(options(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
