//! Shared arenas by name.
//!
//! An arena is a file in `/dev/shm` that lives as long as somebody uses it:
//!
//! - attach-A1: every user holds a shared `flock` on the file and a process slot in it.
//! - attach-A2: who gets the lock exclusively, and finds no living process in the slots, is the first: what
//!   the file holds is left over, and it builds the arena anew before it lets others in.
//! - attach-A3: who waits for the lock looks again whether the file is still the one of that name.
//! - attach-A4: the last to leave removes the file. One that was killed leaves it to the next user (attach-A2), or to
//!   whoever tidies up ([`remove_abandoned`]).
//! - attach-A5: what the arena describes has a lock of its own, which every user holds shared. Who is about to build,
//!   and so keeps others from it by the lock of the file, tries to get it alone first. So no second arena is built
//!   beside one that is in use and cannot be found: its file
//!   was removed, or its users have another `/dev/shm`.

#![allow(unsafe_code)]

use crate::session::{Session, Tables};
use crate::{Arena, Kind, Layout, Memory, room};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::*;

/// How often, and how long in between, to look again at an arena that is being built or given up.
const TRIES: u32 = 400;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// How often to look again at one that is being built: the scan of a large pool takes a while.
const PATIENT_TRIES: u32 = 24_000;
/// How often to try to be alone (attach-A5).
const ALONE_TRIES: u32 = 100;

/// Where and for whom an arena is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path of the file, in a tmpfs.
    pub path: CString,
    /// Its owner, group and permission bits: those of what it describes, so that the same users can
    /// open both.
    pub owner: u32,
    /// See `owner`.
    pub group: u32,
    /// See `owner`.
    pub mode: u32,
    /// Tells formats apart: a user with another one is refused.
    pub format: u64,
}

/// How much of what an arena describes one has for oneself (attach-A5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: others may have it all.
    Nothing,
    /// It is used together with others.
    Shared,
    /// Nobody else uses it.
    Alone,
}

/// What attaching found.
pub enum Attached {
    /// An empty one: the caller is the first to use it, fills it, and then calls
    /// [`Arena::publish`]; nobody else gets in before.
    Fresh(Arena),
    /// One that others use.
    Joined(Arena),
}

impl Arena {
    /// Lets others into a fresh arena.
    ///
    /// # Errors
    /// Where there was no room for what it was filled with: it is of no use, and goes when it is dropped.
    pub fn publish(&self) -> io::Result<()> {
        let Kind::Shared(session, place) = &self.kind else { return Ok(()) };
        if room::was_short(self.view.address()) {
            return Err(place.lacks(&session.file));
        }
        session.header().ready.store(place.format | 1, Release);
        // Not atomic: the lock may be another's for a moment, who then finds our slot (attach-A2).
        Ok(rustix::fs::flock(&session.file, FlockOperation::LockShared)?)
    }
}

impl Place {
    /// A place for the calling user alone.
    pub fn private(path: CString, format: u64) -> Self {
        let owner = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        Self { path, owner, group, mode: 0o600, format }
    }

    /// Opens the arena of this name with these tables, or makes it. `hold` takes the lock of what it describes
    /// (attach-A5), at once or not at all (`WouldBlock`), in exchange for what the caller had of it. Afterwards it is
    /// held shared.
    ///
    /// # Errors
    /// Where the file belongs to somebody else; where those who use it have another format, are in another PID
    /// or time namespace, or cannot be found; where too many use it; or what a system call gave.
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
        for _ in 0..TRIES {
            let (file, stat) = self.open()?;
            let alone = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => true,
                Err(Errno::WOULDBLOCK) => {
                    // Waits while the first user builds it, who has to be alone.
                    hold(Hold::Nothing)?;
                    self.wait_for(&file)?;
                    false
                }
                Err(e) => return Err(e.into()),
            };
            if !self.is_current(&stat) {
                continue;
            }
            let memory = if stat_size(&file)? == layout.bytes() as u64 {
                Some(Memory::file(&file, layout.bytes())?)
            } else {
                None
            };
            let is_ready =
                |m: &Memory| m.table(tables.header)[0].ready.load(Acquire) == self.format | 1;
            match memory.filter(is_ready) {
                Some(memory) if !alone || tables.is_used(&memory) => match hold(Hold::Shared) {
                    // The state's users have gone meanwhile, and somebody has it alone.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => nap(file),
                    held => {
                        held?;
                        return self.join(memory, file, layout, tables).map(Attached::Joined);
                    }
                },
                _ if alone => {
                    self.be_alone(&file, hold)?;
                    return self.build(file, layout, tables).map(Attached::Fresh);
                }
                // Its builder died while we waited, and we are not the only one who did; or those
                // who use it have another format.
                _ => nap(file),
            }
        }
        Err(self.other_version())
    }

    /// Waits for others to let go of the file, who build it or take it away.
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

    /// What this is about, for messages.
    fn says(&self, kind: io::ErrorKind, what: &str) -> io::Error {
        io::Error::new(kind, format!("{}: {what}", self.path.to_string_lossy()))
    }

    fn other_version(&self) -> io::Error {
        let what = "those who use this state have another version of Keepstone, are in another PID or time \
                    namespace, or have it alone";
        self.says(io::ErrorKind::Unsupported, what)
    }

    /// Makes sure that nobody else uses what the arena describes (attach-A5). Others who have just come let go of it,
    /// as they find the lock of the arena taken.
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
        // What is there now is of no use to those who come next.
        if rustix::fs::fstat(file).is_ok_and(|stat| self.is_current(&stat)) {
            let _ = rustix::fs::unlink(&self.path);
        }
        let what = "this state is gone, but others still use it: it was removed (by hand, or by systemd-logind, \
                    unless RemoveIPC=no), or they have another /dev/shm. End them (`fuser` on the pool names \
                    them), then try again";
        Err(self.says(io::ErrorKind::ResourceBusy, what))
    }

    /// Removes the arena of this name if it has one of these formats and all its users are dead (attach-A2, attach-A3).
    fn remove_if_abandoned(&self, layout: &Layout, formats: &[u64]) -> io::Result<u64> {
        let tables = layout.session.expect("the layout was begun with `Layout::shared`");
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let is_ours = |ready, found| {
            formats.iter().any(|format| ready == format | 1) && found == namespaces()
        };
        let stat = rustix::fs::fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // What is none of ours is not locked, not even for a moment: it may be a pool, whose user would be refused.
        let mut first = [0; 16];
        let read = if is_file { rustix::io::pread(&file, &mut first, 0)? } else { 0 };
        let word = |i: usize| u64::from_ne_bytes(first[i..i + 8].try_into().expect("eight bytes"));
        if read < first.len() || !is_ours(word(0), word(8)) {
            return Ok(0);
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let stat = rustix::fs::fstat(&file)?;
        if !self.is_current(&stat) || (stat.st_size as usize) < layout.bytes() {
            return Ok(0);
        }
        let memory = Memory::file(&file, layout.bytes())?;
        let header = &memory.table(tables.header)[0];
        let ready = header.ready.load(Acquire);
        if !is_ours(ready, header.namespaces.load(Acquire)) || tables.is_used(&memory) {
            return Ok(0);
        }
        rustix::fs::unlink(&self.path)?;
        Ok(stat.st_blocks as u64 * 512)
    }

    fn join(
        &self,
        memory: Memory,
        file: OwnedFd,
        layout: &Layout,
        tables: Tables,
    ) -> io::Result<Arena> {
        let session = Session::new(memory, tables, file)?;
        if session.header().namespaces.load(Acquire) != namespaces() {
            return Err(self.other_version());
        }
        if session.header().short.load(Acquire) != 0 {
            return Err(self.no_room(""));
        }
        room::watch(&session, false);
        session.process().map_err(Errno::from)?;
        rustix::fs::flock(&session.file, FlockOperation::LockShared)?;
        Ok(Arena::shared(session, self, layout.derived))
    }

    /// `more`: of the state.
    fn no_room(&self, more: &str) -> io::Error {
        let what = format!(
            "there is no room in the file system of this state{more}: remove what fills it, or make it larger \
             (`mount -o remount,size=1G /dev/shm`; for a container `--shm-size 1g`)"
        );
        self.says(io::ErrorKind::StorageFull, &what)
    }

    /// The state was built, but its file system had no room for all of it.
    fn lacks(&self, file: &OwnedFd) -> io::Error {
        let there = rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
        let mib = (there + room::RESERVE).div_ceil(1 << 20);
        self.no_room(&format!(", which takes more than the {mib} MiB that there were"))
    }

    /// The name is taken.
    fn is_blocked(&self, owner: u32) -> io::Error {
        let what = format!(
            "this file of user {owner} has the name of the pool's shared state: remove it, or have its owner do so"
        );
        self.says(io::ErrorKind::PermissionDenied, &what)
    }

    fn open(&self) -> io::Result<(OwnedFd, Stat)> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        // Not with CREATE at once: in a sticky directory that is refused for a stranger's file
        // (`fs.protected_regular`).
        let file = match rustix::fs::open(&self.path, flags, mode) {
            Err(Errno::NOENT) => {
                match rustix::fs::open(&self.path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
                    Err(Errno::EXIST) => rustix::fs::open(&self.path, flags, mode),
                    made => made,
                }
            }
            found => found,
        };
        let file = file.map_err(|err| match (err, rustix::fs::lstat(&self.path)) {
            (Errno::LOOP | Errno::ACCESS | Errno::PERM | Errno::ISDIR | Errno::NXIO, Ok(stat)) => {
                self.is_blocked(stat.st_uid)
            }
            _ => self.says(io::Error::from(err).kind(), &err.to_string()),
        })?;
        let stat = rustix::fs::fstat(&file)?;
        let me = rustix::process::geteuid().as_raw();
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Everybody may make files in /dev/shm: one of a stranger is a trap.
        if !is_file || ![me, self.owner, 0].contains(&stat.st_uid) {
            return Err(self.is_blocked(stat.st_uid));
        }
        Ok((file, stat))
    }

    /// Whether the name still leads to this file (attach-A3).
    fn is_current(&self, stat: &Stat) -> bool {
        rustix::fs::stat(&self.path)
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino))
    }

    fn build(&self, file: OwnedFd, layout: &Layout, tables: Tables) -> io::Result<Arena> {
        self.open_to_users(&file)?;
        rustix::fs::ftruncate(&file, 0)?;
        rustix::fs::ftruncate(&file, layout.bytes() as u64)?;
        if let Err(err) = room::take_reserve(file.as_fd(), layout.bytes() as u64) {
            let _ = rustix::fs::unlink(&self.path);
            return Err(if err == Errno::NOSPC { self.no_room("") } else { err.into() });
        }
        let session = Session::new(Memory::file(&file, layout.bytes())?, tables, file)?;
        room::watch(&session, true);
        session.header().namespaces.store(namespaces(), Relaxed);
        session.process().map_err(Errno::from)?;
        Ok(Arena::shared(session, self, layout.derived))
    }

    /// Lets those into `file` who may open what it describes.
    fn open_to_users(&self, file: &OwnedFd) -> rustix::io::Result<()> {
        let uid = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == self.owner {
            let owner = rustix::fs::Uid::from_raw(self.owner);
            let group = rustix::fs::Gid::from_raw(self.group);
            let _ = rustix::fs::fchown(file, Some(owner), Some(group));
            rustix::fs::fchmod(file, self.file_mode())?;
        }
        Ok(())
    }

    fn file_mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o666 | 0o600)
    }

    /// Follows a change of owner, group or mode of what the arena describes.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), where the file cannot be opened or is not to be trusted.
    pub fn follow_owner(&self) -> io::Result<()> {
        let (file, stat) = self.open()?;
        let found = (stat.st_uid, stat.st_gid, Mode::from_raw_mode(stat.st_mode));
        if found != (self.owner, self.group, self.file_mode()) {
            self.open_to_users(&file)?;
        }
        Ok(())
    }

    /// Looks at the file of a session, by the descriptor that was kept, if it still is that file.
    pub(crate) fn look_at_file<T>(
        &self,
        session: &Session,
        look: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let kept = session.file.as_fd();
        if session.is_file(kept) { Ok(look(kept)?) } else { self.with_file(session, look) }
    }

    /// Does something with the file of a session, opened once more: inside a program that closes what it does
    /// not know, a descriptor that was kept for long may be another file's, even from one call to the next. Where
    /// it cannot be opened (no descriptor is left, or its name is gone), the kept one has to do, if it still is
    /// that file.
    pub(crate) fn with_file<T>(
        &self,
        session: &Session,
        f: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::open(&self.path, flags, Mode::empty());
        let file = match &opened {
            Ok(file) if session.is_file(file.as_fd()) => file.as_fd(),
            _ if session.is_file(session.file.as_fd()) => session.file.as_fd(),
            _ => return Err(Errno::STALE.into()),
        };
        Ok(f(file)?)
    }

    /// Removes the file if nobody uses it any more (attach-A4).
    pub(crate) fn leave(&self, session: &Session) {
        if !session.detach() {
            // Inherited over a fork and never used: lock and name are the parent's.
            return;
        }
        let file = &session.file;
        if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && rustix::fs::fstat(file).is_ok_and(|stat| self.is_current(&stat))
            && !session.tables.is_used(session.memory())
        {
            let _ = rustix::fs::unlink(&self.path);
        }
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
}

/// Removes the arenas of these formats in `dir` whose names begin with `prefix` and whose users have all
/// been killed: they take memory until somebody attaches again. Returns how many bytes that gave back.
///
/// # Errors
/// If `dir` cannot be listed. What cannot be looked at is left alone.
pub fn remove_abandoned(dir: &Path, prefix: &str, formats: &[u64]) -> io::Result<u64> {
    // What lies behind the tables of the session is not looked at.
    let layout = Layout::shared();
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().as_bytes();
        if !name.starts_with(prefix.as_bytes()) {
            continue;
        }
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { continue };
        // Whichever format it has.
        bytes += Place::private(path, 0).remove_if_abandoned(&layout, formats).unwrap_or(0);
    }
    Ok(bytes)
}

fn stat_size(file: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_size as u64)
}

/// Who says what processes are called, and since when they run: kernels number namespaces with 32 bits.
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
        let prefix = format!("keepstone-arena-left-{}-", std::process::id());
        let place = |name: &str, format| {
            Place::private(CString::new(format!("/dev/shm/{prefix}{name}")).unwrap(), format)
        };
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
        let dir = Path::new("/dev/shm");
        assert!(remove_abandoned(dir, &prefix, &[2, 6]).unwrap() > 0);
        let exists = |name: &str| dir.join(format!("{prefix}{name}")).exists();
        assert_eq!(["used", "left", "others"].map(exists), [true, false, true]);
        assert!(remove_abandoned(dir, &prefix, &[2, 4]).unwrap() > 0);
        assert_eq!(remove_abandoned(dir, &prefix, &[2, 4]).unwrap(), 0);
        drop(used);
        // A file of another kind is not even locked: who has it does not get in the way, nor does who looks.
        let pool = dir.join(format!("{prefix}pool"));
        std::fs::write(&pool, b"KSTNBPFS, and more than a header").unwrap();
        let held = std::fs::File::open(&pool).unwrap();
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared).unwrap();
        let removed = place("pool", 2).remove_if_abandoned(&Layout::shared(), &[2]);
        assert_eq!((removed.unwrap(), pool.exists()), (0, true));
        std::fs::remove_file(&pool).unwrap();
    }

    /// An arena with one table of 64 MiB, at a path that ends with `name`; its file, and the bytes that takes.
    fn with_a_table(name: &str) -> (Arena, Span<AtomicU64>, String, impl Fn() -> u64) {
        let path = format!("/dev/shm/keepstone-arena-{name}-{}", std::process::id());
        let place = Place::private(CString::new(path.clone()).unwrap(), 2);
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
        let path = format!("/dev/shm/keepstone-arena-two-sessions-{}", std::process::id());
        let place = Place::private(CString::new(path).unwrap(), 2);
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
