//! What others do in the directory, as the kernel tells it (`fanotify(7)`).
//!
//! Who may (`CAP_SYS_ADMIN`) marks the whole file system: that sees everybody, by whatever mount, also below what is mounted over
//! the directory. Events of files that are not in the table are dropped by one look at an index of handles. Who may not marks each
//! directory that is entered in the table, and hears of what is in it, by names of that directory only; a directory that
//! cannot be marked (`fs.fanotify.max_user_marks`) is not told of. Other file systems that are mounted below are not told of
//! either.
//!
//! - **behind-D1** What this process does itself is not told: events carry the process, whichever of its threads it was.
//! - **behind-D2** A directory is marked before anything in it is looked at: so what changes after that is told.
//! - **behind-D3** The thread that answers openings opens no file, and waits for no lock that is held while one is opened:
//!   openings by this process are let through by it.
//! - **behind-D4** Guards are marks of single inodes: no opening of another file waits for us. They and all who wait go with the
//!   group, which the kernel closes with the process.
//! - **behind-D5** The group of openings is closed before that of changes: the kernel keeps who closes a group waiting while
//!   somebody waits for an answer whose file has marks of both, whichever group is to answer. So it stands first, and has the
//!   higher descriptor, as what a process has open when it is killed is released from the last to the first.

use super::inode::{key_of, stat, told_key};
use super::{DirFs, lock};
use crate::fanotify::{Event, Group};
use crate::nodes::{Found, Nodes};
use crate::{Change, Opening, Reach, Watch};
use libc::{
    FAN_ATTRIB, FAN_CLASS_CONTENT, FAN_CLOSE_WRITE, FAN_CREATE, FAN_DELETE, FAN_DELETE_SELF,
    FAN_EVENT_ON_CHILD, FAN_MARK_ADD, FAN_MARK_EVICTABLE, FAN_MARK_FILESYSTEM, FAN_MARK_REMOVE,
    FAN_MODIFY, FAN_MOVED_FROM, FAN_MOVED_TO, FAN_ONDIR, FAN_OPEN_PERM, FAN_Q_OVERFLOW,
    FAN_REPORT_DFID_NAME, FAN_REPORT_FID, FAN_REPORT_TARGET_FID, FAN_UNLIMITED_MARKS,
    FAN_UNLIMITED_QUEUE,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use vfs::{Errno, FileKind, Ino, Result};

/// What changes the names in a directory.
const NAMES: u64 = FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO;
/// What changes content; who stores through a mapping is told of when he has closed the file and the mapping.
const CONTENT: u64 = FAN_MODIFY | FAN_CLOSE_WRITE;
/// What changes attributes.
const ATTRIBUTES: u64 = FAN_ATTRIB | FAN_DELETE_SELF;
/// Bytes of events that are read at once.
const BUFFER: usize = 64 << 10;
/// After events that were all of others' files, so long is waited for more of them: then they are merged, and one look does.
const PAUSE: Duration = Duration::from_millis(1);

/// What tells of others.
pub struct Watching {
    // behind-D5: before what is below it.
    openings: Option<Group>,
    changes: Group,
    /// How directories are marked, where they are, one by one.
    directories: Option<u32>,
    buffer: Mutex<Vec<u8>>,
    /// Whether the last events were all of files that are not in the table.
    was_idle: AtomicBool,
    pid: i32,
}

impl DirFs {
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
            // Not a whole subvolume of btrfs either (EXDEV).
            Err(Errno::PERM | Errno::XDEV) if how == Watch::Notify => {
                // The mark does not hold what a descriptor of ours does.
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
        self.nodes().index(told_key);
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

    /// Marks what was found, where directories are marked and it is a new one (behind-D2).
    pub(super) fn mark_directory(&self, found: &Found) {
        let Some(watching) = self.watching.get() else { return };
        let Some(flags) = watching.directories else { return };
        if found.kind == FileKind::Dir && self.nodes().begin_mark(found) {
            // Where it may not be read, or there are too many, it is compared, as without us.
            let _ = mark_directory(&watching.changes, flags, &found.fd);
        }
    }

    pub(super) fn take_changes(&self, limit: Duration, tell: &mut dyn FnMut(Change)) -> Result<()> {
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
            let nodes = self.nodes();
            has_more = watching.changes.read(&mut buffer, |event| {
                // behind-D1.
                if event.pid != watching.pid {
                    note(&nodes, &event, &mut told);
                }
            })?;
        }
        drop(buffer);
        watching.was_idle.store(told.is_empty(), Relaxed);
        if told.contains(&Change::Lost) {
            let nodes = self.nodes();
            told.extend(nodes.numbers().map(Change::Attributes));
            told.extend(nodes.places().map(|(dir, name)| Change::Name(dir, name.to_vec())));
        }
        told.into_iter().for_each(tell);
        Ok(())
    }

    pub(super) fn set_guarded(&self, ino: Ino, is_guarded: bool) -> Result<()> {
        let openings = self.watching.get().and_then(|watching| watching.openings.as_ref());
        let Some(openings) = openings else { return Ok(()) };
        let how = if is_guarded { FAN_MARK_ADD } else { FAN_MARK_REMOVE };
        openings.mark(how, FAN_OPEN_PERM, self.inode(ino)?.fd.as_fd())
    }

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
                // behind-D3. Files of others are never guarded, but one may have been unguarded just now.
                match self.guarded(&fd).filter(|_| event.pid != watching.pid) {
                    Some(ino) => tell(opening(openings, fd, ino, event.pid)),
                    None => answer(openings, &fd, true),
                }
            })
            .map(drop)
    }

    /// The number of what somebody opens, if it is in the table.
    fn guarded(&self, fd: &OwnedFd) -> Option<Ino> {
        let key = key_of(&stat(fd.as_fd()).ok()?);
        let nodes = self.nodes();
        nodes.number(key).filter(|ino| nodes.get(*ino).is_ok())
    }
}

fn mark_directory(changes: &Group, flags: u32, dir: &OwnedFd) -> Result<()> {
    let mask = NAMES | CONTENT | ATTRIBUTES | FAN_ONDIR | FAN_EVENT_ON_CHILD;
    changes.mark(flags, mask, dir.as_fd())
}

/// Waits until there are events, or for so long; whether there are.
fn wait(group: &Group, limit: Duration) -> Result<bool> {
    let fd = group.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
    match poll(&mut fds, Some(&limit)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// What an event means for what is in the table.
fn note(nodes: &Nodes, event: &Event<'_>, told: &mut BTreeSet<Change>) {
    if event.mask & FAN_Q_OVERFLOW != 0 {
        told.insert(Change::Lost);
    }
    if event.mask & NAMES != 0
        && let Some((dir, name)) = event.entry
        && let Some(dir) = nodes.told(dir)
    {
        told.insert(Change::Name(dir, name.to_vec()));
    }
    // What is done to a directory itself is told by its name `.`.
    let itself = event.entry.filter(|(_, name)| *name == b".").map(|(dir, _)| dir);
    let Some(ino) = event.object.or(itself).and_then(|object| nodes.told(object)) else { return };
    if event.mask & CONTENT != 0 {
        told.insert(Change::Content(ino));
    }
    // What a name was given to or taken from has another count of them.
    if event.mask & (ATTRIBUTES | NAMES) != 0 {
        told.insert(Change::Attributes(ino));
    }
}

fn opening(group: &Group, fd: OwnedFd, ino: Ino, pid: i32) -> Opening {
    let group = group.clone();
    Opening::new(ino, u32::try_from(pid).unwrap_or(0), move |may| answer(&group, &fd, may))
}

/// Who waits may have been killed meanwhile, which is no matter.
fn answer(group: &Group, fd: &OwnedFd, may: bool) {
    let _ = group.answer(fd, may);
}
