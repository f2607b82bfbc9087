//! The process: its descriptors, mounts, credentials and limits.
//!
//! A call takes a descriptor in three steps, as the kernel's `fget`: load the table entry, add a
//! hold to the description unless it has none, load the entry again. So a description in use stays,
//! whatever other threads close.

#![allow(unsafe_code)]

use crate::creds::Identity;
use crate::cwd::Cwd;
use crate::family::{
    FDS, Family, HIDDEN, Handle, ON_KERNEL, Ofd, OfdInit, PARKED, PROMOTED, Place, Position,
    Segment, described, raise,
};
use crate::known::Known;
use crate::mount::Mount;
use crate::offset::Offset;
use crate::parked::Parked;
use crate::path_cache::PathCache;
use crate::served::{Call, Stop};
use crate::sys::{Kernel, Raw};
use crate::{Attached, MountSpec};
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use threads::OwnU32;
use vfs::{Attr, Errno, FileKind, FileSystem};

/// Mounts of a process.
pub(crate) const MOUNTS: usize = 16;
/// How many of the numbers below the descriptor limit are for descriptors of our own.
const HIDDEN_FDS: i32 = 256;
/// Descriptors of our own stay below this, so that the kernel's table stays small.
const HIDDEN_BELOW: i32 = 1024;

/// What this process knows of its descriptors and mounts. Any number of threads may call it.
///
/// The methods by the names of libc are the calls; the others prepare and follow what happens to
/// the process (start, fork, exec, other users and limits).
pub struct Process {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) family: Family,
    segment: AtomicPtr<Segment>,
    token: AtomicU32,
    /// Held while entries of the table change; see [`TableLock`].
    table: OwnU32,
    /// What is parked of them.
    pub(crate) parked: Parked,
    mounts: [AtomicPtr<Mount>; MOUNTS],
    pub(crate) identity: Known<Identity>,
    /// `RLIMIT_FSIZE`.
    pub(crate) file_size_max: AtomicU64,
    /// `RLIMIT_NOFILE`.
    fd_limit: AtomicU32,
    pub(crate) umask: AtomicU32,
    /// Paths are the kernel's.
    pub(crate) foreign_namespace: AtomicBool,
    /// Inodes with POSIX locks of this process, or that it maps.
    pub(crate) noted: crate::noted::Noted,
    /// What is mapped where it lies.
    pub(crate) mappings: crate::mappings::Mappings,
    /// Where paths have led.
    pub(crate) path_cache: PathCache,
    /// Where relative ones start.
    pub(crate) cwd: Cwd,
    /// Set before a fork: whether the child has anything to take over from this process's segment.
    pub(crate) shares_with_child: AtomicBool,
}

/// The right to change the table of descriptors. Mutators follow one another, as in the kernel;
/// lookups do not wait for them.
pub(crate) struct TableLock<'p> {
    word: &'p OwnU32,
}

impl Drop for TableLock<'_> {
    fn drop(&mut self) {
        if !self.word.exchange(1, 0) && self.word.swap(0, Release) == 2 {
            let _ =
                rustix::thread::futex::wake(self.word, rustix::thread::futex::Flags::PRIVATE, 1);
        }
    }
}

/// A description in use by a call.
pub(crate) struct OfdRef<'p> {
    process: &'p Process,
    pub handle: Handle,
    /// The number by which it was taken, if it was by one; else -1.
    fd: i32,
}

impl std::ops::Deref for OfdRef<'_> {
    type Target = Ofd;
    #[inline]
    fn deref(&self) -> &Ofd {
        self.process.family.ofd(self.handle)
    }
}

impl Drop for OfdRef<'_> {
    #[inline]
    fn drop(&mut self) {
        self.process.put(self.handle);
    }
}

impl OfdRef<'_> {
    /// Its mount.
    #[inline]
    pub fn mount(&self) -> &Mount {
        self.process.mount(self.mount_index())
    }

    /// Index of its mount.
    #[inline]
    pub fn mount_index(&self) -> usize {
        Ofd::mount(self)
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &dyn FileSystem {
        self.mount().attached().fs.as_ref()
    }

    /// The inode's attributes.
    pub fn attr(&self) -> Result<Attr, Errno> {
        self.fs().getattr(self.ino())
    }

    /// The number by which it was taken; -1 where it was not by one.
    #[inline]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The offset in the family's memory, held: it counts unless the description is promoted.
    pub fn hold_position(&self) -> Position<'_> {
        let process = self.process;
        self.position(process.place().token, |token| process.family.is_dead(token))
    }

    /// The offset, wherever it is kept. `Kernel` where the kernel keeps that of something else than a regular file.
    #[inline]
    pub fn lock_offset(&self) -> Call<Offset<'_>> {
        let position = self.hold_position();
        if self.is(PROMOTED) {
            return self.lock_promoted_offset(position);
        }
        Ok(Offset::private(position))
    }

    #[cold]
    fn lock_promoted_offset<'a>(&'a self, position: Position<'a>) -> Call<Offset<'a>> {
        let process = self.process;
        // Where it has been promoted since it was taken, the number may be a placeholder still.
        process.adopt(self)?;
        if self.kind() != FileKind::File || self.fd < 0 {
            return Err(Stop::Kernel);
        }
        Ok(Offset::promoted(position, process.kernel.as_ref(), self.fd))
    }

    /// `Kernel` where the file's data is the kernel's to read and write ([`Mount::check_unmapped`]).
    #[inline]
    pub fn check_unmapped(&self) -> Call<()> {
        self.mount().check_unmapped(self.ino())
    }
}

impl Process {
    /// Makes the shared memory of the family and claims its first segment. Opens no descriptor that
    /// stays.
    pub fn start() -> Result<Self, Errno> {
        Self::with_kernel(Box::new(Raw))
    }

    /// [`start`](Self::start) on another kernel.
    pub fn with_kernel(kernel: Box<dyn Kernel>) -> Result<Self, Errno> {
        arena::prepare();
        let family = Family::new()?;
        let place = family.claim()?;
        let process = Self {
            kernel,
            family,
            segment: AtomicPtr::new(place.as_ptr()),
            token: AtomicU32::new(place.token),
            table: OwnU32::new(0),
            parked: Parked::default(),
            mounts: Default::default(),
            identity: Known::new(Identity::read()?),
            file_size_max: AtomicU64::new(u64::MAX),
            fd_limit: AtomicU32::new(0),
            umask: AtomicU32::new(rustix::process::umask(rustix::fs::Mode::empty()).bits()),
            foreign_namespace: AtomicBool::new(false),
            path_cache: PathCache::default(),
            cwd: Cwd::default(),
            noted: crate::noted::Noted::default(),
            mappings: crate::mappings::Mappings::default(),
            shares_with_child: AtomicBool::new(false),
        };
        rustix::process::umask(rustix::fs::Mode::from_bits_retain(process.umask.load(Relaxed)));
        process.limits_changed();
        Ok(process)
    }

    /// Adds a mount; it is attached at its first use. `ENOSPC` beyond 16 mounts.
    pub fn add_mount(&self, spec: MountSpec) -> Result<(), Errno> {
        let mount = Box::into_raw(Box::new(Mount::new(spec)));
        for slot in &self.mounts {
            if slot.compare_exchange(std::ptr::null_mut(), mount, AcqRel, Relaxed).is_ok() {
                // What they have led to may lie behind it.
                self.forget_paths();
                self.cwd.forget();
                return Ok(());
            }
        }
        // SAFETY: it came from a box above and nobody else has seen it.
        drop(unsafe { Box::from_raw(mount) });
        Err(Errno::NOSPC)
    }

    /// The mounts, with their indexes.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = (usize, &Mount)> {
        let slots = self.mounts.iter().map(|slot| slot.load(Acquire));
        // SAFETY: a mount, once added, stays until the process layer is dropped.
        slots.enumerate().map_while(|(i, m)| Some((i, unsafe { m.as_ref()? })))
    }

    /// A mount that is known to be there.
    #[inline]
    pub(crate) fn mount(&self, index: usize) -> &Mount {
        // SAFETY: as above; indexes come from descriptions, which are opened below mounts.
        unsafe { &*self.mounts[index % MOUNTS].load(Acquire) }
    }

    /// The pool of a mount, attached at the first use; `Kernel` where that failed.
    pub(crate) fn attach<'m>(&self, mount: &'m Mount) -> Call<&'m Attached> {
        let placeholder = || {
            self.check_user_namespace()?;
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
            let fd = self.kernel.open(&mount.spec.mountpoint, flags)?;
            self.hide(fd)
        };
        mount.attach(placeholder, |fd| self.unhide(fd))
    }

    /// `EPERM` in a user namespace that renames users: the pool's IDs are those of the first one.
    fn check_user_namespace(&self) -> Result<(), Errno> {
        let mut map = [0; 64];
        let len = self.kernel.slurp(b"/proc/self/uid_map", &mut map)?;
        let mut words = map[..len].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let identity: [&[u8]; 3] = [b"0", b"0", b"4294967295"];
        if words.by_ref().take(3).eq(identity) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Whether calls on `fd` may be answered here: one load. (True for hidden descriptors, too:
    /// those answer `EBADF`.)
    #[inline]
    pub fn owns(&self, fd: i32) -> bool {
        self.entry(fd).is_some_and(|entry| entry.load(Relaxed) != 0)
    }

    /// Whether the memory at an address is what forked processes share.
    pub fn shares(&self, address: usize) -> bool {
        self.family.range().contains(&address)
    }

    /// The place of this process in its family.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        let segment = NonNull::new(self.segment.load(Acquire)).expect("set at start");
        Place::from_raw(segment, self.token.load(Relaxed))
    }

    /// After fork: the child's place.
    pub(crate) fn set_place(&self, place: Place) {
        self.segment.store(place.as_ptr(), Release);
        self.token.store(place.token, Relaxed);
    }

    /// What this process has of its own in the family's memory.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        // SAFETY: segments stay mapped as long as `self`.
        unsafe { &*self.segment.load(Relaxed) }
    }

    #[inline]
    pub(crate) fn entry(&self, fd: i32) -> Option<&OwnU32> {
        self.segment().fds.get(fd as usize)
    }

    /// Takes the description of a descriptor. `Kernel` where it is not ours (any more).
    #[inline]
    pub(crate) fn get(&self, fd: i32) -> Call<OfdRef<'_>> {
        let Some(entry) = self.entry(fd) else { return Err(Stop::Kernel) };
        if entry.load(Relaxed) == 0 {
            return Err(Stop::Kernel);
        }
        let mut ofd = self.get_entry(entry)?;
        ofd.fd = fd;
        Ok(ofd)
    }

    /// Takes the description that an entry refers to.
    #[inline]
    pub(crate) fn get_entry(&self, entry: &AtomicU32) -> Call<OfdRef<'_>> {
        loop {
            let word = entry.load(Acquire);
            match word {
                0 => return Err(Stop::Kernel),
                HIDDEN | PARKED => return Err(Errno::BADF.into()),
                _ => {}
            }
            let handle = word & !ON_KERNEL;
            if !self.hold(handle) {
                continue;
            }
            let ofd = OfdRef { process: self, handle, fd: -1 };
            if entry.load(Acquire) & !ON_KERNEL != handle {
                continue;
            }
            return Ok(ofd);
        }
    }

    /// The description that an entry refers to, for the time of a call that does not close anything, by the
    /// only thread of a process: who else could give it up meanwhile? (Signals wait until the call is
    /// over.) Else, and where anything is not as usual, it has to be taken.
    #[inline(always)]
    pub(crate) fn borrow_entry(&self, entry: &AtomicU32) -> Option<&Ofd> {
        let word = entry.load(Acquire);
        if !threads::is_only_one() || matches!(word, 0 | HIDDEN | PARKED) {
            return None;
        }
        Some(self.family.ofd(word & !ON_KERNEL))
    }

    /// As [`get`](Self::get), but not for descriptions of `O_PATH`: `EBADF`.
    #[inline]
    pub(crate) fn get_open(&self, fd: i32) -> Call<OfdRef<'_>> {
        let ofd = self.get(fd)?;
        if ofd.oflags() & libc::O_PATH != 0 { Err(Errno::BADF.into()) } else { Ok(ofd) }
    }

    /// Adds a hold (family-F1); `false` where there is none to add to.
    #[inline]
    fn hold(&self, handle: Handle) -> bool {
        let more = |have: u32| (have > 0).then_some(have + 1);
        self.segment().holds(handle).modify(more).is_ok()
    }

    /// Gives a hold back.
    #[inline]
    pub(crate) fn put(&self, handle: Handle) {
        if self.segment().holds(handle).modify(|have| Some(have - 1)) == Ok(1) {
            self.release(handle);
        }
    }

    /// The last hold of this process is gone (family-F1).
    #[cold]
    fn release(&self, handle: Handle) {
        let ofd = self.family.ofd(handle);
        let (mount, ino) = (ofd.mount(), ofd.ino());
        self.family.drop_holder(handle);
        self.mount(mount).attached().fs.forget(ino, 1);
    }

    /// Makes a description with one hold, which the caller gives to a table entry or back. It takes
    /// over one engine reference.
    pub(crate) fn describe(&self, init: &OfdInit) -> Result<OfdRef<'_>, Errno> {
        let handle = self.family.open(self.place(), init)?;
        Ok(OfdRef { process: self, handle, fd: -1 })
    }

    /// Waits for the right to change the table.
    pub(crate) fn lock_table(&self) -> TableLock<'_> {
        use rustix::thread::futex;
        let word = &self.table;
        if !word.exchange(0, 1) {
            while word.swap(2, Acquire) != 0 {
                let _ = futex::wait(word, futex::Flags::PRIVATE, 2, None);
            }
        }
        TableLock { word }
    }

    /// After a fork, in parent and child: the right that was taken before it is given back.
    pub(crate) fn reset_table_lock(&self) {
        drop(TableLock { word: &self.table });
    }

    /// Lets an entry refer to a description, on the kernel's if its number is a duplicate of that, whose hold the
    /// entry takes over. What it referred to
    /// before is for the caller to drop, best without the lock: the inode may go with it.
    #[must_use]
    pub(crate) fn install(
        &self,
        _table: &TableLock<'_>,
        fd: i32,
        ofd: OfdRef<'_>,
        on_kernel: Handle,
    ) -> Option<OfdRef<'_>> {
        let place = self.place();
        raise(&place.segment().fd_end, fd as u32 + 1);
        let old = place.segment().fds[fd as usize].replace(ofd.handle | on_kernel);
        std::mem::forget(ofd);
        self.released(old)
    }

    /// Empties an entry. What it referred to is for the caller to drop.
    #[must_use]
    pub(crate) fn uninstall(&self, _table: &TableLock<'_>, fd: i32) -> Option<OfdRef<'_>> {
        self.released(self.entry(fd)?.replace(0))
    }

    /// The hold that an entry had.
    fn released(&self, handle: Handle) -> Option<OfdRef<'_>> {
        described(handle).map(|handle| OfdRef { process: self, handle, fd: -1 })
    }

    /// Moves a descriptor of the caller's own (a pool file, say) to a high number that the program
    /// neither sees nor can close; returns that number. Where that fails, it is closed.
    pub fn hide(&self, fd: i32) -> Result<i32, Errno> {
        let hidden = self.hidden_duplicate(fd);
        let _ = self.close_fd(fd);
        hidden
    }

    /// [`hide`](Self::hide)s several descriptors, or none: those then stay as they are. Returns their numbers.
    pub fn hide_all(&self, fds: &[i32]) -> Result<SmallVec<[i32; 4]>, Errno> {
        let mut hidden = SmallVec::<[i32; 4]>::new();
        for &fd in fds {
            match self.hidden_duplicate(fd) {
                Ok(fd) => hidden.push(fd),
                Err(errno) => {
                    hidden.into_iter().for_each(|fd| self.unhide(fd));
                    return Err(errno);
                }
            }
        }
        for &fd in fds {
            let _ = self.close_fd(fd);
        }
        Ok(hidden)
    }

    fn hidden_duplicate(&self, fd: i32) -> Result<i32, Errno> {
        let limit = self.fd_limit.load(Relaxed).clamp(1, HIDDEN_BELOW as u32) as i32;
        let min = (limit - HIDDEN_FDS).max(limit / 2);
        let hidden = match self.kernel.dup(fd, min, true) {
            Err(Errno::INVAL | Errno::MFILE) => self.kernel.dup(fd, limit / 2, true),
            done => done,
        }?;
        if self.mark_hidden(hidden) {
            return Ok(hidden);
        }
        let _ = self.close_fd(hidden);
        Err(Errno::MFILE)
    }

    /// From now on the program does not see that `fd` is open; `false` where it is beyond our table.
    pub(crate) fn mark_hidden(&self, fd: i32) -> bool {
        let Some(entry) = self.entry(fd) else { return false };
        raise(&self.place().segment().fd_end, fd as u32 + 1);
        entry.store(HIDDEN, Release);
        true
    }

    /// Closes a hidden descriptor.
    pub(crate) fn unhide(&self, fd: i32) {
        if let Some(entry) = self.entry(fd) {
            entry.store(0, Release);
        }
        let _ = self.close_fd(fd);
    }

    /// User, groups and capabilities.
    #[inline]
    pub(crate) fn identity(&self) -> &Identity {
        self.identity.current()
    }

    /// Reads user, groups and capabilities again: after each set*id, setgroups, capset.
    pub fn credentials_changed(&self) {
        let Ok(new) = Identity::read() else { return };
        if self.identity.change(new) {
            self.mounts().for_each(|(_, mount)| mount.forget_reach());
            self.cwd.forget();
        }
    }

    /// Reads `RLIMIT_FSIZE` and `RLIMIT_NOFILE` again: after each setrlimit, prlimit.
    pub fn limits_changed(&self) {
        use rustix::process::{Resource, getrlimit};
        let size = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        self.file_size_max.store(size, Relaxed);
        let fds = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.fd_limit.store(fds.min(u64::from(u32::MAX)) as u32, Relaxed);
        // What is parked may be above the limit now.
        self.unpark();
    }

    /// After a successful mount or umount by this process: what it and others find next is as it has
    /// made it.
    pub fn mounts_changed(&self) {
        let pools = self.mounts().filter_map(|(_, mount)| self.attach(mount).ok());
        pools.for_each(|pool| pool.events.post_mount_change());
    }

    /// After a successful chroot, pivot_root, unshare or setns: paths are the kernel's from now on;
    /// open descriptors stay.
    pub fn namespace_changed(&self) {
        self.foreign_namespace.store(true, Relaxed);
    }

    /// To be called with what the kernel's `umask` was given (that call must be made, too).
    pub fn umask(&self, mask: u32) {
        self.umask.store(mask & 0o777, Relaxed);
    }

    /// At a quiet exit: gives up everything that others would otherwise sweep. Descriptors answer
    /// `Kernel` from then on.
    pub fn detach(&self) {
        let place = self.place();
        self.set_place(Place::nowhere());
        self.family.leave(place);
    }

    /// A number below `/proc/sys/fs`: how the kernel protects links and files in directories that
    /// everybody may write to. 0 where it cannot be read. For rare cases: it is read each time.
    pub(crate) fn protection(&self, name: &str) -> u8 {
        let mut path = [0; 64];
        let path = crate::text::format(&mut path, format_args!("/proc/sys/fs/{name}"));
        let mut value = [b'0'; 4];
        let _ = self.kernel.slurp(path, &mut value);
        value[0].wrapping_sub(b'0')
    }

    /// The highest descriptor that was ever ours, + 1.
    pub(crate) fn fd_end(&self) -> i32 {
        self.place().segment().fd_end.load(Acquire).min(FDS as u32) as i32
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.forget_paths();
        let table = self.lock_table();
        for fd in 0..self.fd_end() {
            match self.entry(fd).map_or(0, |entry| entry.load(Acquire)) {
                0 => {}
                HIDDEN => self.unhide(fd),
                PARKED => drop(self.kernel.close(fd)),
                _ => {
                    drop(self.uninstall(&table, fd));
                    let _ = self.kernel.close(fd);
                }
            }
        }
        drop(table);
        self.set_cwd(None);
        self.detach();
        for slot in &self.mounts {
            let mount = slot.swap(std::ptr::null_mut(), AcqRel);
            if !mount.is_null() {
                // SAFETY: it came from a box in `add_mount`; `&mut self` says that nobody uses it.
                drop(unsafe { Box::from_raw(mount) });
            }
        }
    }
}
