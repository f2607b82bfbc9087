//! The directories of shared arenas, in a tmpfs in which every user may make files.
//!
//! - directory-S1: the arenas of pools that user UID owns lie in `keepstone-UID`. It is believed
//!   only if it is a directory (no symbolic link) of UID or root in which no other user may write.
//!   Root makes it for UID; a user makes only its own.
//! - directory-S2: if another user has taken that name, the arenas lie in `keepstone-UID.SUFFIX`,
//!   with a random suffix. A process finds it by listing a bounded number of entries of the tmpfs,
//!   and believes it by the same rule.
//! - directory-S3: a file in a believed directory is used only if it is a regular file with one
//!   link, of the owner, root or the caller. Its mode must give no user more rights than the mode
//!   of the object that it describes.
//! - directory-S4: a file or directory that is not believed is not opened for writing, locked,
//!   mapped or read.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};

/// The beginning of the names of all directories.
const PREFIX: &str = "keepstone-";
/// Mode of a directory: any user may reach a file in it by its name.
const MODE: u32 = 0o711;
/// The most entries of the tmpfs that a search reads (directory-S2).
const LISTED_MAX: usize = 1 << 16;
/// Attempts to make a directory while others make and remove it.
const ATTEMPTS: u32 = 16;

/// A directory that was believed when it was opened.
#[derive(Debug)]
pub(crate) struct Directory {
    file: OwnedFd,
    pub(crate) path: PathBuf,
}

/// Returns the effective user of this process.
pub(crate) fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn name_of(uid: u32) -> String {
    format!("{PREFIX}{uid}")
}

/// Whether a directory of this status is believed to be one for `uid` (directory-S1).
fn is_believed(stat: &Stat, uid: u32) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_dir()
        && [uid, 0].contains(&stat.st_uid)
        && stat.st_mode & 0o022 == 0
}

impl Directory {
    /// Opens a directory; `None` if it is missing or cannot be trusted.
    fn open(path: PathBuf, uid: u32) -> rustix::io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(e) => return Err(e),
        };
        let stat = rustix::fs::fstat(&file)?;
        Ok(is_believed(&stat, uid).then_some(Self { file, path }))
    }

    /// Returns the directories for `uid` that are believed: the one of its name, or else those with
    /// a suffix (directory-S2).
    pub(crate) fn find(root: &Path, uid: u32) -> io::Result<Vec<Self>> {
        if let Some(found) = Self::open(root.join(name_of(uid)), uid)? {
            return Ok(vec![found]);
        }
        let mut found = Vec::new();
        for (path, of) in listed(root)?.into_iter().filter(|(_, of)| *of == uid) {
            found.extend(Self::open(path, of)?);
        }
        Ok(found)
    }

    /// Finds a directory for `uid`, or makes one. The caller is that user, or root.
    pub(crate) fn make(root: &Path, uid: u32) -> io::Result<Self> {
        let mut path = root.join(name_of(uid));
        for _ in 0..ATTEMPTS {
            if let Some(found) = Self::find(root, uid)?.into_iter().next() {
                return Ok(found);
            }
            match rustix::fs::mkdir(&path, Mode::from_raw_mode(MODE)) {
                // The last user of another arena may remove it meanwhile, as it is empty.
                Ok(()) => match open_to_users(&path, uid) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => return Err(e.into()),
                },
                // Another user has taken the name (directory-S2).
                Err(Errno::EXIST) => {
                    let suffix = RandomState::new().build_hasher().finish();
                    path.set_file_name(format!("{}.{suffix:016x}", name_of(uid)));
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Opens a file in it by name, without following a link or waiting for the other end of a FIFO.
    pub(crate) fn open_file(&self, name: &str, more: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
        rustix::fs::openat(&self.file, name, flags, Mode::from_raw_mode(0o600))
    }

    /// Returns the status of a file in it.
    pub(crate) fn stat(&self, name: &str) -> rustix::io::Result<Stat> {
        rustix::fs::statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Sets the mode of a directory that the caller has just made, and gives it to `uid`.
fn open_to_users(path: &Path, uid: u32) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let me = caller();
    if rustix::fs::fstat(&file)?.st_uid != me {
        return Err(Errno::EXIST);
    }
    rustix::fs::fchmod(&file, Mode::from_raw_mode(MODE))?;
    if me != uid {
        // This fails for a user that this namespace does not know; then root keeps the directory.
        let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), None);
    }
    Ok(())
}

/// Removes a directory if it is empty. A process that is about to make a file there finds that out
/// and makes the directory again.
pub(crate) fn remove_if_empty(path: &Path) {
    let _ = rustix::fs::rmdir(path);
}

/// Lists the entries of a tmpfs that have names of such directories, each with its UID. Opens none
/// of them.
pub(crate) fn listed(root: &Path) -> io::Result<Vec<(PathBuf, u32)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root_dir = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
    let mut found = Vec::new();
    for name in names(&root_dir)? {
        let uid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('.').next())
            .and_then(|uid| uid.parse::<u32>().ok().filter(|parsed| parsed.to_string() == uid));
        found.extend(uid.map(|uid| (root.join(&name), uid)));
    }
    found.sort();
    Ok(found)
}

/// Lists up to [`LISTED_MAX`] names in a directory, without those that are not UTF-8.
fn names(dir: impl AsFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)?.take(LISTED_MAX) {
        let entry = entry?;
        names.extend(entry.file_name().to_str().map(str::to_owned).ok());
    }
    Ok(names)
}

/// Calls `each` for every name in the directories of a tmpfs that are believed and that the caller
/// may list.
pub(crate) fn for_each_file(root: &Path, mut each: impl FnMut(&Directory, &str)) -> io::Result<()> {
    for (path, uid) in listed(root)? {
        let Ok(Some(directory)) = Directory::open(path, uid) else { continue };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(dir) = rustix::fs::openat(&directory.file, c".", flags, Mode::empty()) else {
            continue;
        };
        let all = names(&dir).unwrap_or_default();
        for name in all.iter().filter(|name| ![".", ".."].contains(&name.as_str())) {
            each(&directory, name);
        }
    }
    Ok(())
}

/// Whether a file may be used for a pool of `owner`, with permission bits `mode` and group `group`
/// (directory-S3).
pub(crate) fn is_sound(stat: &Stat, (owner, group, mode): (u32, u32, u32)) -> bool {
    let allowed = if stat.st_gid == group { mode } else { mode & !0o060 };
    FileType::from_raw_mode(stat.st_mode).is_file()
        && stat.st_nlink == 1
        && [owner, 0, caller()].contains(&stat.st_uid)
        && stat.st_mode & 0o7777 & !allowed == 0
}

/// Sets owner, group and mode of an open file. If the caller may not change the owner, the file
/// keeps it. If the file then has another group, that group gets no permissions.
pub(crate) fn give(
    file: BorrowedFd<'_>,
    (owner, group, mode): (u32, u32, u32),
) -> rustix::io::Result<()> {
    let (owner, group) = (Uid::from_raw(owner), Gid::from_raw(group));
    if rustix::fs::fchown(file, Some(owner), Some(group)).is_err() {
        let _ = rustix::fs::fchown(file, None, Some(group));
    }
    // If the group could not be changed, grant no permissions to the one that the file has.
    let is_of_group = rustix::fs::fstat(file)?.st_gid == group.as_raw();
    let mode = if is_of_group { mode } else { mode & !0o060 };
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

    const USER: u32 = 12345;
    const STRANGER: u32 = 54321;

    fn chown(path: &Path, uid: u32) {
        std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
    }

    /// A directory in which every user may make files, as /dev/shm.
    fn root(name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/dev/shm/arena-{name}-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        std::fs::set_permissions(&root, PermissionsExt::from_mode(0o1777)).unwrap();
        root
    }

    #[test]
    fn a_directory_is_believed_only_if_no_stranger_can_write_there() {
        let root = root("believed");
        let main = root.join(format!("keepstone-{USER}"));
        assert!(Directory::find(&root, USER).unwrap().is_empty());
        let made = Directory::make(&root, USER).unwrap();
        let stat = std::fs::metadata(&main).unwrap();
        assert_eq!((made.path.as_path(), stat.uid(), stat.mode() & 0o7777), (&*main, USER, MODE));
        for mode in [0o731, 0o713, 0o1777] {
            std::fs::set_permissions(&main, PermissionsExt::from_mode(mode)).unwrap();
            assert!(Directory::find(&root, USER).unwrap().is_empty(), "{mode:o}");
        }
        std::fs::remove_dir(&main).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// directory-S2: with each kind of file in the place of the directory.
    #[test]
    fn a_name_that_a_stranger_has_denies_no_service() {
        let root = root("squatted");
        let main = root.join(format!("keepstone-{USER}"));
        let squat: [&dyn Fn(); 3] = [
            &|| std::fs::create_dir(&main).unwrap(),
            &|| std::fs::write(&main, b"").unwrap(),
            &|| symlink("/", &main).unwrap(),
        ];
        for make in squat {
            make();
            std::os::unix::fs::lchown(&main, Some(STRANGER), Some(STRANGER)).unwrap();
            // One more that only looks like ours.
            let false_one = root.join(format!("keepstone-{USER}.0"));
            std::fs::create_dir(&false_one).unwrap();
            chown(&false_one, STRANGER);
            let made = Directory::make(&root, USER).unwrap();
            assert_ne!(made.path, main);
            let found = Directory::find(&root, USER).unwrap();
            assert_eq!(found.iter().map(|d| &d.path).collect::<Vec<_>>(), [&made.path]);
            assert_eq!(Directory::make(&root, USER).unwrap().path, made.path, "it is found again");
            remove_if_empty(&made.path);
            remove_if_empty(&false_one);
            let _ = std::fs::remove_dir(&main).or_else(|_| std::fs::remove_file(&main));
            assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_file_is_used_only_if_it_gives_no_user_more_than_what_it_describes() {
        let root = root("sound");
        let path = root.join("file");
        std::fs::write(&path, b"").unwrap();
        let is_sound = |uid, mode| {
            chown(&path, uid);
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let directory = Directory::open(root.clone(), 0).unwrap();
            assert!(directory.is_none(), "every user may write there");
            is_sound(&rustix::fs::stat(&path).unwrap(), (USER, USER, 0o660))
        };
        assert!(is_sound(USER, 0o660) && is_sound(USER, 0o600) && is_sound(0, 0o600));
        assert!(!is_sound(STRANGER, 0o600) && !is_sound(USER, 0o666) && !is_sound(0, 0o660));
        assert!(!is_sound(USER, 0o4600));
        assert!(is_sound(USER, 0o600));
        std::fs::hard_link(&path, root.join("other")).unwrap();
        assert!(!is_sound(USER, 0o600), "another name leads to it");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
