//! Deleting a snapshot that servers show below `.snapshots` of their mounts.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::pool::Engine;
use anyhow::{Error, anyhow};
use fuse::MountEntry;
use vfs::{Errno, Result};

use crate::{busy, pool, shown};

/// Attempts to delete a snapshot that programs look at meanwhile.
const ATTEMPTS: u32 = 50;
/// Pause between two attempts, in which requests end that have begun.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time for a server to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Deletes a snapshot. Servers that have it loaded, but not open, unload it first.
///
/// # Errors
/// Those of [`Engine::delete_snapshot`].
pub fn delete(fs: &dyn Engine, pool: &Path, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match fs.delete_snapshot(name) {
            Err(Errno::BUSY) if is_released(pool, name) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    Err(Errno::BUSY)
}

/// Explains why a snapshot is in use, with a remedy for each user.
pub fn explain_busy(pool: &Path, name: &str) -> Error {
    let whole = pool::of_snapshot(pool, name);
    let shown = whole.display();
    let mounted = mount_points(|mount| mount.source == whole);
    if !mounted.is_empty() {
        let dirs = mounted.iter().map(|dir| shown::name(&dir.to_string_lossy()));
        let at = dirs.collect::<Vec<_>>().join(", ");
        return anyhow!("{shown}: is mounted; unmount it first (it is mounted on {at})");
    }
    let below = mounts_of(pool).into_iter().map(|dir| dir.join(mounts::SNAPSHOTS_NAME).join(name));
    let users: Vec<_> = below.flat_map(|dir| busy::users_below(&dir)).collect();
    match users.as_slice() {
        [] => anyhow!("{shown}: is in use by another process, which mounts, reads or sends it"),
        users => anyhow!(
            "{shown}: files of it are open below {}: {}; end these programs, then try again",
            mounts::SNAPSHOTS_NAME,
            users.join(", ")
        ),
    }
}

/// Asks the servers of the pool's own tree to unload a snapshot. Returns whether one of them did,
/// and none has files of it open.
fn is_released(pool: &Path, name: &str) -> bool {
    let mut answers = mounts_of(pool).into_iter().map(|dir| ask(&dir, name));
    answers.try_fold(false, |done, answer| match answer {
        Ok(()) => Some(true),
        Err(Errno::BUSY) => None,
        Err(_) => Some(done),
    }) == Some(true)
}

/// Asks one server.
fn ask(dir: &Path, name: &str) -> Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let attribute = format!("{}{name}", fuse::RELEASE_XATTR);
    let attribute = CString::new(attribute).map_err(|_| Errno::INVAL)?;
    let read = |room: &mut [u8]| rustix::fs::getxattr(&*path, &*attribute, room);
    let answer = fuse::call_apart(ANSWER_WITHIN, 1, read).map_err(|_| Errno::IO)?;
    answer.unwrap_or(Err(Errno::TIMEDOUT)).map(drop)
}

/// Returns the mount points of a pool's own tree.
fn mounts_of(pool: &Path) -> Vec<PathBuf> {
    mount_points(|mount| mount.source == pool)
}

fn mount_points(is_wanted: impl Fn(&MountEntry) -> bool) -> Vec<PathBuf> {
    let all = fuse::mounts().unwrap_or_default().into_iter();
    all.filter(|mount| mount.is_keepstone() && is_wanted(mount)).map(|mount| mount.dir).collect()
}
