//! Shared arenas by name.
//!
//! An arena is a file in a directory of `/dev/shm` ([`crate::directory`]) that lives as long as a
//! process uses it:
//!
//! - attach-A1: every user holds a shared `flock` on the file and a process slot in it.
//! - attach-A2: a process that gets the lock exclusively, and finds no living process in the slots,
//!   is the first user. The content of the file is a leftover, so it builds the arena again before
//!   it lets others in.
//! - attach-A3: a process that has waited for the lock checks that the name still leads to the same
//!   file.
//! - attach-A4: the last user removes the file when it detaches. If it was killed, the next user
//!   rebuilds the arena (attach-A2), or [`remove_abandoned`] removes the file.
//! - attach-A5: the object that the arena describes (a pool) has a lock of its own, which every
//!   user holds shared. A process that is about to build the arena holds the file's lock, which
//!   keeps others out, and first tries to get the object's lock exclusively. So no second arena is
//!   built while one is in use that cannot be found: its file was removed, its users have another
//!   `/dev/shm`, or a user made it who may not make the directory of the owner.
//! - attach-A6: the file is mapped only after the caller has decided to use it. Until then its
//!   words are read by system calls, which fail if it is too short.

#![allow(unsafe_code)]

use crate::directory::{self, Directory};
use crate::session::{Header, Session, Tables};
use crate::{Arena, ArenaKind, Layout, Memory, room};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::*;

/// Attempts to attach while others build or remove the arena.
const TRIES: u32 = 400;
/// The sleep between attempts.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// Naps to wait for another process that builds the arena: the scan of a large pool takes a while.
const PATIENT_TRIES: u32 = 24_000;
/// Attempts to get the object's lock exclusively (attach-A5).
const ALONE_TRIES: u32 = 100;

/// The place of an arena, and the users that may open it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The tmpfs that has a directory for the owner's arenas.
    pub root: PathBuf,
    /// The name of its file.
    pub name: String,
    /// The arena's owner, group (`group`) and permission bits (`mode`). They are those of the
    /// object that it describes, so that the same users can open both.
    pub owner: u32,
    /// See `owner`.
    pub group: u32,
    /// See `owner`.
    pub mode: u32,
    /// The format of the arena: a user with another format is refused.
    pub format: u64,
}

/// A place with the directory in which the arena was found or made.
pub(crate) struct Located {
    place: Place,
    path: PathBuf,
    /// The path to which this process has moved the file ([`Arena::follow_owner`]).
    moved: OnceLock<PathBuf>,
}

/// How a process holds the lock of the object that an arena describes (attach-A5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Not at all: another process may hold it exclusively.
    Nothing,
    /// Shared, together with other users.
    Shared,
    /// Exclusively: no other process uses the object.
    Alone,
}

/// An arena that [`Place::attach`] has made or found.
pub enum Attached {
    /// An empty one. The caller is its first user: it fills the arena and then calls
    /// [`Arena::publish`], which lets others in.
    Fresh(Arena),
    /// An arena that others use.
    Joined(Arena),
}

impl Arena {
    /// Lets others into a fresh arena.
    ///
    /// # Errors
    /// If there was no room for its content. Then the arena cannot be used, and its file is removed
    /// when it is dropped.
    pub fn publish(&self) -> io::Result<()> {
        let ArenaKind::Shared(session, at) = &self.kind else { return Ok(()) };
        if room::was_short(self.view.address()) {
            return Err(at.place.lacks(&session.file));
        }
        session.header().ready.store(at.place.format | 1, Release);
        // The conversion is not atomic: another process may get the lock in between, but then it
        // finds our slot (attach-A2).
        Ok(rustix::fs::flock(&session.file, FlockOperation::LockShared)?)
    }

    /// Gives the arena the new owner, group and mode of the object that it describes, as `place`
    /// has them. If the owner has changed and the caller is root, moves the file to the directory
    /// of the new owner.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn follow_owner(&self, place: &Place) -> io::Result<()> {
        let ArenaKind::Shared(session, at) = &self.kind else { return Ok(()) };
        let rights = place.rights();
        let follow = |file: BorrowedFd<'_>| {
            let stat = rustix::fs::fstat(file)?;
            if (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) != rights
                && [0, stat.st_uid].contains(&directory::caller())
            {
                directory::give(file, rights)?;
            }
            Ok(())
        };
        at.with_file(session, follow)?;
        if place.owner != at.place.owner && directory::caller() == 0 && at.moved.get().is_none() {
            let to = Directory::make(&place.root, place.owner)?.path.join(&place.name);
            let how = rustix::fs::RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(rustix::fs::CWD, &at.path, rustix::fs::CWD, &to, how)?;
            let _ = at.moved.set(to);
        }
        Ok(())
    }
}

impl Place {
    /// Makes a place that only the calling user can open.
    pub fn private(root: impl Into<PathBuf>, name: &str, format: u64) -> Self {
        let (root, name) = (root.into(), name.to_owned());
        let group = rustix::process::getegid().as_raw();
        Self { root, name, owner: directory::caller(), group, mode: 0o600, format }
    }

    /// Opens the arena of this name with these tables, or makes it. `hold` converts the caller's
    /// lock on the object that the arena describes (attach-A5). It does not wait, but fails with
    /// `WouldBlock`. Afterwards the caller holds that lock shared.
    ///
    /// # Errors
    /// If the file cannot be trusted; if its users have another format, are in another PID or time
    /// namespace, or cannot be found; if it has too many users; if it was damaged; or the error of
    /// a system call.
    pub fn attach(
        &self,
        layout: &Layout,
        hold: &dyn Fn(Hold) -> io::Result<()>,
    ) -> io::Result<Attached> {
        let tables = layout.session.expect("the layout was begun with `Layout::shared`");
        let nap = |file: OwnedFd| {
            drop(file);
            let _ = rustix::thread::nanosleep(&NAP);
        };
        let mut was_lost = false;
        for _ in 0..TRIES {
            let (at, file, stat) = self.open()?;
            let alone = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => true,
                Err(Errno::WOULDBLOCK) => {
                    // Wait while the first user builds the arena. It needs the object's lock
                    // exclusively, so give ours up.
                    hold(Hold::Nothing)?;
                    self.wait_for(&file)?;
                    false
                }
                Err(e) => return Err(e.into()),
            };
            if !at.is_current(&stat) {
                continue;
            }
            let header = tables.read_header(&file)?;
            let is_whole = stat_size(&file)? == layout.bytes() as u64;
            let ready = header.ready.load(Relaxed);
            let is_ready = is_whole && !header.is_lost() && ready == self.format | 1;
            was_lost = !is_ready && [0, self.format | 1].contains(&ready);
            if is_ready && (!alone || tables.is_used_in(&file)?) {
                match hold(Hold::Shared) {
                    // The users of the arena have left meanwhile, and another process holds the
                    // object exclusively.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => nap(file),
                    held => {
                        held?;
                        let memory = self.map(&file, layout)?;
                        return at.join(memory, file, layout, tables).map(Attached::Joined);
                    }
                }
            } else if alone {
                at.be_alone(&file, hold)?;
                return at.build(file, layout, tables).map(Attached::Fresh);
            } else {
                // The builder died while several processes waited for it; or the users of the arena
                // have another format.
                nap(file);
            }
        }
        Err(if was_lost { self.damaged() } else { self.other_version() })
    }

    /// Waits until the process that builds or removes the file has released its lock.
    fn wait_for(&self, file: &OwnedFd) -> io::Result<()> {
        for _ in 0..PATIENT_TRIES {
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
                Err(Errno::WOULDBLOCK) => {
                    let _ = rustix::thread::nanosleep(&NAP);
                }
                taken => return Ok(taken?),
            }
        }
        let what = "somebody has been building this state for two minutes (`fuser` on it names who): is that \
                    process stopped?";
        Err(self.says(io::ErrorKind::TimedOut, what))
    }

    /// Returns an error whose message begins with the place.
    fn says(&self, kind: io::ErrorKind, what: &str) -> io::Error {
        io::Error::new(kind, format!("{}: {what}", self.root.join(&self.name).display()))
    }

    /// Makes the error for an arena with users of another version or namespace.
    fn other_version(&self) -> io::Error {
        let what = "those who use this state have another version of Keepstone, are in another PID or time \
                    namespace, or have it alone";
        self.says(io::ErrorKind::Unsupported, what)
    }

    /// Makes the error for an arena whose file was truncated or overwritten, and still has users.
    fn damaged(&self) -> io::Error {
        let what = "this state was truncated or overwritten, and programs still have it. End them (`fuser` on the pool \
                    names them), unmount the pool, then mount it again";
        self.says(io::ErrorKind::ResourceBusy, what)
    }

    /// Maps the file of an arena. If address space is short, the error names the limit to raise.
    fn map(&self, file: &OwnedFd, layout: &Layout) -> io::Result<Memory> {
        Memory::file(file, layout.bytes()).map_err(|err| match err.kind() {
            io::ErrorKind::OutOfMemory => {
                let mib = layout.bytes() >> 20;
                let what = format!(
                    "this state takes {mib} MiB of address space; raise its limit (`ulimit -v`)"
                );
                self.says(io::ErrorKind::OutOfMemory, &what)
            }
            _ => err,
        })
    }

    /// Returns owner, group and mode for the file.
    fn rights(&self) -> (u32, u32, u32) {
        (self.owner, self.group, self.mode & 0o666 | 0o600)
    }

    /// Returns the error for a full tmpfs; `more` continues the message after "this state".
    fn no_room(&self, more: &str) -> io::Error {
        let what = format!(
            "there is no room in the file system of this state{more}: remove what fills it, or make it larger \
             (`mount -o remount,size=1G /dev/shm`; for a container `--shm-size 1g`)"
        );
        self.says(io::ErrorKind::StorageFull, &what)
    }

    /// Returns the error for an arena that was built, but did not fit into its tmpfs.
    fn lacks(&self, file: &OwnedFd) -> io::Error {
        let there = rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
        let mib = (there + room::RESERVE).div_ceil(1 << 20);
        self.no_room(&format!(", which takes more than the {mib} MiB that there were"))
    }

    /// Returns the error for a file that cannot be trusted (directory-S3), or that the caller may
    /// not open.
    fn is_blocked(&self, directory: &Directory) -> io::Error {
        let path = directory.path.join(&self.name);
        let why = match directory.stat(&self.name) {
            Ok(stat) => format!(
                "this file of user {} (mode {:04o}, {} links) has the name of the pool's shared state",
                stat.st_uid,
                stat.st_mode & 0o7777,
                stat.st_nlink
            ),
            Err(err) => format!("the shared state of the pool cannot be opened ({err})"),
        };
        let text = format!("{}: {why}: remove it, or have its owner do so", path.display());
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    }

    /// Opens the file in the directory of the owner, or in that of the caller. Creates it if it is
    /// missing.
    fn open(&self) -> io::Result<(Located, OwnedFd, Stat)> {
        let me = directory::caller();
        for _ in 0..TRIES {
            let others = (me != self.owner).then_some(me);
            for uid in [self.owner].into_iter().chain(others) {
                for directory in Directory::find(&self.root, uid)? {
                    if let Some(found) = self.open_in(&directory, OFlags::empty())? {
                        return Ok(found);
                    }
                }
            }
            // Only the owner and root may create files in the owner's directory (directory-S1).
            let uid = if me == 0 { self.owner } else { me };
            let directory = Directory::make(&self.root, uid)?;
            if let Some(made) = self.open_in(&directory, OFlags::CREATE | OFlags::EXCL)? {
                return Ok(made);
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Opens or creates the file in this directory. `None` if it does not exist (any more), or if
    /// it exists although it is to be created.
    fn open_in(
        &self,
        directory: &Directory,
        more: OFlags,
    ) -> io::Result<Option<(Located, OwnedFd, Stat)>> {
        let file = match directory.open_file(&self.name, more) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::EXIST) => return Ok(None),
            Err(Errno::LOOP | Errno::ACCESS | Errno::PERM | Errno::ISDIR | Errno::NXIO) => {
                return Err(self.is_blocked(directory));
            }
            Err(err) => return Err(self.says(io::Error::from(err).kind(), &err.to_string())),
        };
        let mut stat = rustix::fs::fstat(&file)?;
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        let is_narrower = |stat: &Stat| directory::is_sound(stat, self.rights());
        let is_file_of_ours = directory::is_sound(&stat, (self.owner, stat.st_gid, 0o7777));
        if !is_narrower(&stat) && is_file_of_ours && [0, stat.st_uid].contains(&directory::caller())
        {
            // The pool's mode has been narrowed, and the arena's has not been yet.
            directory::give(file.as_fd(), self.rights())?;
            stat = rustix::fs::fstat(&file)?;
        }
        if !is_narrower(&stat) {
            return Err(self.is_blocked(directory));
        }
        let path = directory.path.join(&self.name);
        let at = Located { place: self.clone(), path, moved: OnceLock::new() };
        Ok(Some((at, file, stat)))
    }
}

impl Located {
    /// Returns an empty place, for models: they have no files.
    #[cfg(loom)]
    pub(crate) fn nowhere() -> Self {
        let (root, name) = (PathBuf::new(), String::new());
        let place = Place { root, name, owner: 0, group: 0, mode: 0, format: 0 };
        Self { place, path: PathBuf::new(), moved: OnceLock::new() }
    }

    fn path(&self) -> &Path {
        self.moved.get().unwrap_or(&self.path)
    }

    /// Removes the file, and its directory if it was the last one there.
    fn remove(&self) {
        let path = self.path();
        let _ = rustix::fs::unlink(path);
        path.parent().into_iter().for_each(directory::remove_if_empty);
    }

    /// Whether the name still leads to this file (attach-A3).
    fn is_current(&self, stat: &Stat) -> bool {
        rustix::fs::lstat(self.path())
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino))
    }

    /// Makes sure that no other process uses the object that the arena describes (attach-A5).
    /// Processes that have just come release its lock, as they find the lock of the arena taken.
    fn be_alone(&self, file: &OwnedFd, hold: &dyn Fn(Hold) -> io::Result<()>) -> io::Result<()> {
        for _ in 0..ALONE_TRIES {
            match hold(Hold::Alone) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let _ = rustix::thread::nanosleep(&NAP);
                }
                held => {
                    held?;
                    return hold(Hold::Shared);
                }
            }
        }
        // Remove the empty file, so that the next process does not find it.
        if rustix::fs::fstat(file).is_ok_and(|stat| self.is_current(&stat)) {
            self.remove();
        }
        let what = "this state is gone, but others still use it: it was removed (by hand, or by systemd-logind, \
                    unless RemoveIPC=no), they have another /dev/shm, or a user made it who is neither root nor the \
                    owner of the pool. End them (`fuser` on the pool names them), then try again";
        Err(self.place.says(io::ErrorKind::ResourceBusy, what))
    }

    /// Joins the arena in a file that other processes use: claims a slot for this process, and
    /// takes the lock of the file shared.
    fn join(
        self,
        memory: Memory,
        file: OwnedFd,
        layout: &Layout,
        tables: Tables,
    ) -> io::Result<Arena> {
        let session = Session::new(memory, tables, file)?;
        room::watch(&session, false);
        if session.header().namespaces.load(Acquire) != namespaces() {
            return Err(self.place.other_version());
        }
        if session.header().short.load(Acquire) != 0 {
            return Err(self.place.no_room(""));
        }
        session.process().map_err(Errno::from)?;
        if session.header().is_lost() {
            return Err(self.place.damaged());
        }
        rustix::fs::flock(&session.file, FlockOperation::LockShared)?;
        Ok(Arena::shared(session, self, layout.derived))
    }

    /// Makes an empty arena in a file that the caller has locked exclusively, and claims a slot in
    /// it.
    fn build(self, file: OwnedFd, layout: &Layout, tables: Tables) -> io::Result<Arena> {
        let owner = rustix::fs::fstat(&file)?.st_uid;
        if [0, owner].contains(&directory::caller()) {
            directory::give(file.as_fd(), self.place.rights())?;
        }
        rustix::fs::ftruncate(&file, 0)?;
        rustix::fs::ftruncate(&file, layout.bytes() as u64)?;
        if let Err(err) = room::take_reserve(file.as_fd(), layout.bytes() as u64) {
            self.remove();
            return Err(if err == Errno::NOSPC { self.place.no_room("") } else { err.into() });
        }
        let session = Session::new(self.place.map(&file, layout)?, tables, file)?;
        room::watch(&session, true);
        session.header().namespaces.store(namespaces(), Relaxed);
        session.process().map_err(Errno::from)?;
        Ok(Arena::shared(session, self, layout.derived))
    }

    /// Calls `look` with the file of a session: with the kept descriptor, if that still is the
    /// file.
    pub(crate) fn look_at_file<T>(
        &self,
        session: &Session,
        look: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let kept = session.file.as_fd();
        if session.is_file(kept) { Ok(look(kept)?) } else { self.with_file(session, look) }
    }

    /// Calls `f` with the file of a session, opened again. Some programs close descriptors that
    /// they do not know, so the kept one may belong to another file, even from one call to the
    /// next. If the file cannot be opened (no descriptor is free, or its name is gone), uses the
    /// kept descriptor, if that still is the file.
    pub(crate) fn with_file<T>(
        &self,
        session: &Session,
        f: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        // Open no other file (directory-S4).
        let opened = match rustix::fs::lstat(self.path()) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == session.id => {
                rustix::fs::open(self.path(), flags, Mode::empty())
            }
            _ => Err(Errno::NOENT),
        };
        let file = match &opened {
            Ok(file) if session.is_file(file.as_fd()) => file.as_fd(),
            _ if session.is_file(session.file.as_fd()) => session.file.as_fd(),
            _ => return Err(Errno::STALE.into()),
        };
        Ok(f(file)?)
    }

    /// Detaches this process, and removes the file if no other process uses it (attach-A4).
    pub(crate) fn leave(&self, session: &Session) {
        if !session.detach() {
            // Inherited over a fork and never used: lock and file belong to the parent.
            return;
        }
        let file = &session.file;
        if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && rustix::fs::fstat(file).is_ok_and(|stat| self.is_current(&stat))
            && !session.tables.is_used(session.memory())
        {
            self.remove();
        }
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
}

/// Removes the arenas of these formats in the directories of `root` whose users have all been
/// killed: they take memory until a process attaches again. Returns the number of bytes freed.
///
/// # Errors
/// If `root` cannot be listed. Files that cannot be read, or cannot be trusted, stay
/// (directory-S4).
pub fn remove_abandoned(root: &Path, formats: &[u64]) -> io::Result<u64> {
    let mut bytes = 0;
    directory::for_each_file(root, |directory, name| {
        // One file that fails does not keep the others from being removed.
        bytes += remove_if_abandoned(directory, name, formats).unwrap_or(0);
    })?;
    Ok(bytes)
}

/// Removes an arena if it has one of these formats and all its users are dead (attach-A2,
/// attach-A3).
fn remove_if_abandoned(directory: &Directory, name: &str, formats: &[u64]) -> io::Result<u64> {
    // Only the tables of the session are read.
    let layout = Layout::shared();
    let tables = layout.session.expect("the layout was begun with `Layout::shared`");
    let found = directory.stat(name)?;
    // The pool may have any owner and mode: only users who may write in the directory can have
    // created the file.
    if !directory::is_sound(&found, (found.st_uid, found.st_gid, 0o666)) {
        return Ok(0);
    }
    let file = directory.open_file(name, OFlags::empty())?;
    let is_ours = |header: &Header| {
        let ready = header.ready.load(Relaxed);
        formats.iter().any(|format| ready == format | 1)
            && header.namespaces.load(Relaxed) == namespaces()
    };
    // A foreign file is never locked: it may be a pool, and its user would be refused meanwhile.
    if !is_ours(&tables.read_header(&file)?) {
        return Ok(0);
    }
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (stat, now) = (rustix::fs::fstat(&file)?, directory.stat(name)?);
    if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino)
        || (stat.st_size as usize) < layout.bytes()
        || !is_ours(&tables.read_header(&file)?)
        || tables.is_used_in(&file)?
    {
        return Ok(0);
    }
    rustix::fs::unlink(directory.path.join(name))?;
    directory::remove_if_empty(&directory.path);
    Ok(stat.st_blocks as u64 * 512)
}

fn stat_size(file: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_size as u64)
}

/// Identifies the PID and time namespaces of this process, on which process numbers and start times
/// depend. Kernels number namespaces with 32 bits.
fn namespaces() -> u64 {
    let id = |path| rustix::fs::stat(path).map_or(0, |s| s.st_ino);
    id(c"/proc/self/ns/pid") << 32 | id(c"/proc/self/ns/time") & 0xffff_ffff
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Span;
    use crate::sync::AtomicU64;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn what_the_killed_leave_is_removed_and_nothing_else() {
        let root = PathBuf::from(format!("/dev/shm/arena-left-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let place = |name: &str, format| Place::private(&root, name, format);
        let mut layout = Layout::shared();
        layout.table::<AtomicU64>(1 << 16);
        let make = |name: &str, format| {
            let Attached::Fresh(arena) = place(name, format).attach(&layout, &|_| Ok(())).unwrap()
            else {
                panic!("nobody else has this name");
            };
            arena.publish().unwrap();
            arena
        };
        let used = make("used", 2);
        // SAFETY: the child makes files and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::mem::forget((make("left", 2), make("others", 4)));
            // SAFETY: ends the process without running anything of it, as a kill would.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        let dir = root.join(format!("keepstone-{}", directory::caller()));
        assert!(remove_abandoned(&root, &[2, 6]).unwrap() > 0);
        let exists = |name: &str| dir.join(name).exists();
        assert_eq!(["used", "left", "others"].map(exists), [true, false, true]);
        assert!(remove_abandoned(&root, &[2, 4]).unwrap() > 0);
        assert_eq!(remove_abandoned(&root, &[2, 4]).unwrap(), 0);
        // A file of another kind is not even locked: its user's lock does no harm, and its user is
        // not disturbed.
        let pool = dir.join("pool");
        std::fs::write(&pool, b"KSTNBPFS, and more than a header").unwrap();
        let held = std::fs::File::open(&pool).unwrap();
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared).unwrap();
        let removed = remove_abandoned(&root, &[2]);
        assert_eq!((removed.unwrap(), pool.exists()), (0, true));
        std::fs::remove_file(&pool).unwrap();
        drop(used);
        assert!(!dir.exists(), "the last one takes it away");
        std::fs::remove_dir(&root).unwrap();
    }

    /// Makes an arena with one table of 64 MiB, whose path ends with `name`. Returns its file, and
    /// a function that returns the bytes that the file takes.
    fn with_a_table(name: &str) -> (Arena, Span<AtomicU64>, String, impl Fn() -> u64) {
        let name = format!("arena-{name}-{}", std::process::id());
        let path = format!("/dev/shm/keepstone-{}/{name}", directory::caller());
        let place = Place::private("/dev/shm", &name, 2);
        let mut layout = Layout::shared();
        let table = layout.table::<AtomicU64>(8 << 20);
        let Attached::Fresh(arena) = place.attach(&layout, &|_| Ok(())).unwrap() else {
            panic!("nobody else has this name");
        };
        let file = path.clone();
        let used = move || std::fs::metadata(&file).unwrap().blocks() * 512;
        (arena, table, path, used)
    }

    #[test]
    fn a_session_that_detaches_leaves_threads_of_others_their_slots() {
        let name = format!("arena-two-sessions-{}", std::process::id());
        let place = Place::private("/dev/shm", &name, 2);
        let layout = Layout::shared();
        let Attached::Fresh(first) = place.attach(&layout, &|_| Ok(())).unwrap() else {
            panic!("nobody else has this name");
        };
        first.publish().unwrap();
        let Attached::Joined(second) = place.attach(&layout, &|_| Ok(())).unwrap() else {
            panic!("the first is there");
        };
        drop(first.enter().unwrap());
        drop(second.enter().unwrap());
        assert_ne!(first.owner(), second.owner());
        assert_ne!(first.process(), second.process());
        let (owner, others) = (first.owner(), second.owner());
        drop(second);
        assert!(!first.is_owner_dead(owner) && first.is_owner_dead(others));
        std::thread::scope(|s| {
            assert_ne!(s.spawn(|| first.owner()).join().unwrap(), owner);
        });
    }

    #[test]
    fn looking_for_what_is_set_fills_no_holes() {
        let (arena, table, path, used) = with_a_table("test");
        arena.publish().unwrap();
        for i in [5, 4 << 20, (8 << 20) - 1] {
            arena.table(table)[i].store(i as u64, Relaxed);
        }
        let before = used();
        let mut found = Vec::new();
        arena.for_each_backed(table, 5..8 << 20, |i, word| match word.load(Relaxed) {
            0 => {}
            word => found.push((i, word)),
        });
        assert_eq!(found, [5, 4 << 20, (8 << 20) - 1].map(|i| (i, i as u64)));
        assert_eq!(used(), before);
        arena.clear(table, 6..8 << 20).unwrap();
        assert!(used() < before);
        assert_eq!(arena.table(table)[5].load(Relaxed), 5);
        drop(arena);
        assert!(!std::path::Path::new(&path).exists(), "the last one takes it away");
    }

    #[test]
    fn huge_pages_hold_what_was_there_and_no_more_of_the_table() {
        let (arena, table, _, used) = with_a_table("huge");
        for i in [0, 1 << 18, 4 << 20] {
            arena.table(table)[i].store(7, Relaxed);
        }
        let before = used();
        arena.back(table, 0..1 << 18);
        arena.back(table, (8 << 20) - 1..8 << 20);
        // 2 MiB of the table touch two huge pages; its last word is in a third, if that is whole.
        assert!(used() <= before + (3 << 21), "{} of {before}", used());
        for i in [0, 1 << 18, 4 << 20] {
            assert_eq!(arena.table(table)[i].load(Relaxed), 7);
        }
        assert_eq!(arena.table(table)[1].load(Relaxed), 0);
    }
}
