//! Changes that other processes make in the directory, as `fanotify(7)` reports them.
//!
//! A process with `CAP_SYS_ADMIN` marks the whole file system. The mark covers all processes and
//! all mounts, also the directory below what is mounted over it. Events of files that the caller
//! does not know are dropped.
//!
//! A process without that capability marks each directory that enters the table, and gets events of
//! its entries, only by names in that directory. A directory that cannot be marked
//! (`fs.fanotify.max_user_marks`) is not watched. Other file systems mounted below the directory
//! are never watched.
//!
//! - **behind-D1** Changes by this process itself are not reported: each event names the process,
//!   whichever of its threads made the change.
//! - **behind-D2** A directory is marked before anything in it is read, so later changes are
//!   reported.
//! - **behind-D3** Guards are marks of directories, so every opening in them waits for one answer.
//!   The thread that takes openings permits those by this process, whatever file they concern, and
//!   passes the others on. It opens no file, and takes no lock but that of their queue.
//! - **behind-D4** The marks and all waiting openings end with the group, which the kernel closes
//!   with the process.
//! - **behind-D5** The group of openings is closed before that of changes. While an opening waits
//!   for an answer and its file has marks of both groups, the kernel blocks the closing of either
//!   group. So the field of this group comes first, and its descriptor is higher. The kernel closes
//!   the descriptors of a killed process from the last to the first.

use super::{DirFs, lock};
use crate::fanotify::{Event, Group};
use crate::nodes::FoundNode;
use crate::{Change, Opening, Reach, Watch};
use libc::{
    FAN_ATTRIB, FAN_CLASS_CONTENT, FAN_CLOSE_WRITE, FAN_CREATE, FAN_DELETE, FAN_DELETE_SELF,
    FAN_EVENT_ON_CHILD, FAN_MARK_ADD, FAN_MARK_EVICTABLE, FAN_MARK_FILESYSTEM, FAN_MODIFY,
    FAN_MOVED_FROM, FAN_MOVED_TO, FAN_ONDIR, FAN_OPEN_PERM, FAN_Q_OVERFLOW, FAN_REPORT_DFID_NAME,
    FAN_REPORT_FID, FAN_REPORT_TARGET_FID, FAN_UNLIMITED_MARKS, FAN_UNLIMITED_QUEUE,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use vfs::{Errno, FileKind, Ino, Result};

/// Events that change the names in a directory.
const NAMES: u64 = FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO;
/// Events that change content. A store through a mapping is reported when the process has closed
/// the file and the mapping.
const CONTENT: u64 = FAN_MODIFY | FAN_CLOSE_WRITE;
/// Events that change attributes.
const ATTRIBUTES: u64 = FAN_ATTRIB | FAN_DELETE_SELF;
/// The size of the buffer for events, in bytes.
const BUFFER: usize = 64 << 10;
/// The pause after events that all concerned files that the caller does not know. Meanwhile the
/// kernel merges further events, so that one read takes them all.
const PAUSE: Duration = Duration::from_millis(1);

/// The state of a watch.
pub struct Watching {
    // behind-D5: comes before `changes`.
    openings: Option<Group>,
    changes: Group,
    /// The flags for marks of directories, if these are marked one by one.
    directories: Option<u32>,
    buffer: Mutex<Vec<u8>>,
    /// Whether the last events all concerned files that the caller does not know.
    was_idle: AtomicBool,
    pid: i32,
}

impl DirFs {
    /// Starts to watch the directory for changes by other processes, and returns how far that
    /// reaches. `EOPNOTSUPP` if the kernel or the file system cannot report them.
    pub(super) fn begin_watching(&self, how: Watch) -> Result<Reach> {
        if how == Watch::Off {
            return Ok(Reach::default());
        }
        if !self.identities.has_handles() {
            return Err(Errno::OPNOTSUPP);
        }
        let told = FAN_REPORT_FID | FAN_REPORT_DFID_NAME;
        let changes = match Group::new(told | FAN_REPORT_TARGET_FID) {
            // Before Linux 5.17.
            Err(Errno::INVAL) => Group::new(told)?,
            group => group?,
        };
        let mask = NAMES | CONTENT | ATTRIBUTES | FAN_ONDIR;
        let whole = changes.mark(FAN_MARK_ADD | FAN_MARK_FILESYSTEM, mask, self.locked.as_fd());
        let directories = match whole {
            // A whole subvolume of btrfs cannot be marked either (EXDEV).
            Err(Errno::PERM | Errno::XDEV) if how == Watch::Notify => {
                // The mark need not keep an inode in memory that an open descriptor keeps there.
                let held = if self.opens_handles { 0 } else { FAN_MARK_EVICTABLE };
                Some(FAN_MARK_ADD | held)
            }
            Err(Errno::INVAL | Errno::NODEV | Errno::XDEV) => return Err(Errno::OPNOTSUPP),
            whole => whole.map(|()| None)?,
        };
        if let Some(flags) = directories {
            mark_directory(&changes, flags, &self.root)?;
        }
        let openings = (how == Watch::Permission)
            .then(|| Group::new(FAN_CLASS_CONTENT | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS))
            .transpose()?
            .map(|group| group.above(&changes))
            .transpose()?;
        let watching = Watching {
            openings,
            changes,
            directories,
            buffer: Mutex::new(vec![0; BUFFER]),
            was_idle: AtomicBool::new(false),
            pid: rustix::process::getpid().as_raw_nonzero().get(),
        };
        self.watching.set(watching).map_err(|_| Errno::BUSY)?;
        Ok(if directories.is_some() { Reach::Directories } else { Reach::Whole })
    }

    /// Marks a directory that was found, if directories are marked one by one and it is new
    /// (behind-D2).
    pub(super) fn mark_directory(&self, found: &FoundNode) {
        let Some(watching) = self.watching.get() else { return };
        let Some(flags) = watching.directories else { return };
        if found.kind == FileKind::Dir && self.nodes().begin_mark(found) {
            // If it may not be read, or there are too many marks, the cache compares its
            // attributes, as without a watch.
            let _ = mark_directory(&watching.changes, flags, &found.fd);
        }
    }

    /// Waits for events up to `limit`, then calls `tell` once for each different change of inodes
    /// that `number` knows by the [keys](crate::Backing::key) of their identities.
    pub(super) fn take_changes(
        &self,
        limit: Duration,
        number: &dyn Fn(&[u8]) -> Option<Ino>,
        tell: &mut dyn FnMut(Change),
    ) -> Result<()> {
        let number = |handle: &[u8]| number(&self.identities.key_of_told(handle)?);
        let watching = self.watching.get().ok_or(Errno::OPNOTSUPP)?;
        if watching.was_idle.load(Relaxed) {
            std::thread::sleep(PAUSE.min(limit));
        }
        if !wait(&watching.changes, limit)? {
            watching.was_idle.store(false, Relaxed);
            return Ok(());
        }
        let mut buffer = lock(&watching.buffer);
        let mut told = BTreeSet::new();
        let mut has_more = true;
        while has_more {
            has_more = watching.changes.read(&mut buffer, |event| {
                // behind-D1.
                if event.pid != watching.pid {
                    note(&number, &event, &mut told);
                }
            })?;
        }
        watching.was_idle.store(told.is_empty(), Relaxed);
        drop(buffer);
        told.into_iter().for_each(tell);
        Ok(())
    }

    /// Makes openings by names in a directory wait. Does nothing unless openings are watched.
    pub(super) fn guard_directory(&self, dir: Ino) -> Result<()> {
        let openings = self.watching.get().and_then(|watching| watching.openings.as_ref());
        let Some(openings) = openings else { return Ok(()) };
        let mask = FAN_OPEN_PERM | FAN_EVENT_ON_CHILD;
        openings.mark(FAN_MARK_ADD, mask, self.inode(dir)?.fd.as_fd())
    }

    /// Waits for openings by guarded names up to `limit`, and calls `tell` for each by another
    /// process (behind-D3). `EOPNOTSUPP` unless openings are watched.
    pub(super) fn take_openings(
        &self,
        limit: Duration,
        tell: &mut dyn FnMut(Opening),
    ) -> Result<()> {
        let watching = self.watching.get().ok_or(Errno::OPNOTSUPP)?;
        let openings = watching.openings.as_ref().ok_or(Errno::OPNOTSUPP)?;
        if !wait(openings, limit)? {
            return Ok(());
        }
        let mut buffer = [0; 4096];
        openings
            .read(&mut buffer, |event| {
                let Some(fd) = event.fd else { return };
                let is_other = event.pid != watching.pid;
                match is_other.then(|| self.identities.key_of_file(fd.as_fd())) {
                    Some(Ok(key)) => {
                        let (group, pid) =
                            (openings.clone(), u32::try_from(event.pid).unwrap_or(0));
                        tell(Opening::new(key, pid, move || permit(&group, &fd)));
                    }
                    Some(Err(_)) | None => permit(openings, &fd),
                }
            })
            .map(drop)
    }
}

fn mark_directory(changes: &Group, flags: u32, dir: &OwnedFd) -> Result<()> {
    let mask = NAMES | CONTENT | ATTRIBUTES | FAN_ONDIR | FAN_EVENT_ON_CHILD;
    changes.mark(flags, mask, dir.as_fd())
}

/// Waits for events, at most for `limit`. Returns whether there are any.
fn wait(group: &Group, limit: Duration) -> Result<bool> {
    let fd = group.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
    match poll(&mut fds, Some(&limit)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Adds the changes that an event reports of inodes that have a number.
fn note(number: &impl Fn(&[u8]) -> Option<Ino>, event: &Event<'_>, told: &mut BTreeSet<Change>) {
    if event.mask & FAN_Q_OVERFLOW != 0 {
        told.insert(Change::Lost);
    }
    if event.mask & NAMES != 0
        && let Some((dir, name)) = event.entry
        && let Some(dir) = number(dir)
    {
        told.insert(Change::Name(dir, name.to_vec()));
    }
    // Events of a directory itself name it `.`.
    let itself = event.entry.filter(|(_, name)| *name == b".").map(|(dir, _)| dir);
    let Some(ino) = event.object.or(itself).and_then(number) else { return };
    if event.mask & CONTENT != 0 {
        told.insert(Change::Content(ino));
    }
    // An inode that gained or lost a name has another link count.
    if event.mask & (ATTRIBUTES | NAMES) != 0 {
        told.insert(Change::Attributes(ino));
    }
}

/// Permits an opening. The waiting process may have been killed meanwhile; that error does not
/// matter.
fn permit(group: &Group, fd: &OwnedFd) {
    let _ = group.permit(fd);
}
