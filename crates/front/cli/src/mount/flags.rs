//! Flags that a mount gets in addition to the requested flags.
//!
//! - **flags-F1** A mount honours set-user-ID and device files only if root alone may write its
//!   pool, or if the options `suid` and `dev` request it. Otherwise a user with write permission on
//!   the pool could make such a file.
//! - **flags-F2** If the owner or the mode of the pool changes later, the server sets the flags
//!   then. It does not change flags that were requested by name, or that root sets later (`mount -o
//!   remount,suid`).

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Weak;

use ::pool::Engine;
use anyhow::{Result, bail};
use fuse::{MountFlags, MountPoint};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use super::options::{LIFTABLE, Options};
use crate::{pool, trust};

/// Flags that flags-F1 sets.
pub const GUARDED: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Longest wait for a notification of a change before the pool is checked without one.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Returns the flags of a mount of `pool`, and a notice for the user if they were not requested.
///
/// # Errors
/// If a user other than root requests `suid` or `dev`: the kernel allows neither on such a mount.
pub fn of_mount(pool: &Path, options: &Options) -> Result<(MountFlags, Option<String>)> {
    let asked = options.flags & !MountFlags::SILENT;
    if !rustix::process::geteuid().is_root() {
        if options.lifted.intersects(GUARDED) {
            bail!("mount options `suid` and `dev`: only root's mounts can have them");
        }
        return Ok((asked | GUARDED, None));
    }
    let missing = GUARDED - options.lifted - asked;
    match trust::changeable_by(pool)? {
        Some(why) if !missing.is_empty() => {
            let notice = format!(
                "mounted nosuid,nodev, as users other than root may write the pool ({why}); `-o suid,dev` lifts that"
            );
            Ok((asked | missing, Some(notice)))
        }
        _ => Ok((asked, None)),
    }
}

/// Returns the flags of a mount of `pool` that has the flags `kept` and is mounted again with these
/// options, as [`of_mount`]. A cache keeps those of its directory that are not lifted.
pub fn of_remount(
    pool: &Path,
    kept: MountFlags,
    options: &Options,
) -> Result<(MountFlags, Option<String>)> {
    // A mount whose pool cannot be read may be a cache.
    let is_cache = pool::info(pool).map_or(true, |(info, _)| info.has_backing_store);
    match is_cache {
        true => Ok((of_cache(kept & LIFTABLE, options)? - MountFlags::SILENT, None)),
        false => of_mount(pool, options),
    }
}

/// Returns the flags of the mount of a cache whose files lie on a mount with the flags `below`.
/// Those flags apply as well, unless root lifts them.
///
/// # Errors
/// If a user other than root tries to lift a flag.
pub fn of_cache(below: MountFlags, options: &Options) -> Result<MountFlags> {
    let forbidden = below & (LIFTABLE | MountFlags::RDONLY);
    if rustix::process::geteuid().is_root() {
        return Ok(options.flags | (forbidden - options.lifted));
    }
    if options.lifted.intersects(below | GUARDED) {
        bail!("mount options `suid`, `dev`, `exec` and `symfollow`: only root can lift a flag");
    }
    Ok(options.flags | forbidden | GUARDED)
}

/// Follows changes of the pool's owner and mode for as long as its engine exists: flags-F2. `flags`
/// are those of the mount at its start: a change before the first check counts as well.
pub fn follow(
    pool: PathBuf,
    mount_point: MountPoint,
    flags: MountFlags,
    options: &Options,
    fs: Weak<dyn Engine>,
) {
    let guarded = GUARDED - options.lifted;
    if guarded.is_empty() || !rustix::process::geteuid().is_root() {
        return;
    }
    std::thread::spawn(move || {
        let events = watch(&pool);
        let mut was_shared = flags.contains(guarded);
        while fs.strong_count() > 0 {
            let shared = trust::changeable_by(&pool).is_ok_and(|why| why.is_some());
            if shared && !was_shared {
                match mount_point.add_flags(guarded) {
                    Ok(()) => tracing::warn!(
                        "other users may write the pool now: the mount is nosuid,nodev"
                    ),
                    Err(err) => tracing::error!(
                        "other users may write the pool now, and the mount cannot be made nosuid,nodev: {err}"
                    ),
                }
            }
            was_shared = shared;
            wait(events.as_ref());
        }
    });
}

/// Starts to watch the owner and mode of a file. `None` if the kernel cannot: then the file is only
/// checked once a second.
fn watch(pool: &Path) -> Option<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let events = inotify::init(flags).ok()?;
    inotify::add_watch(&events, pool, inotify::WatchFlags::ATTRIB).ok()?;
    Some(events)
}

fn wait(events: Option<&OwnedFd>) {
    let mut fds: Vec<_> = events.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&LOOK_EVERY));
    if let Some(events) = events {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut reader = inotify::Reader::new(events, &mut buffer);
        while reader.next().is_ok() {}
    }
}
