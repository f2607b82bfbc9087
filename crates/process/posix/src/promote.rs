//! Promotion: descriptions that the kernel has, too; and the steps of fork and exec.
//!
//! - **promote-M1** A description is *private*: its descriptors are placeholders, and its offset is
//!   in the family's memory. Or it is *promoted*: every descriptor of it is a duplicate of one
//!   description of the kernel's, whose offset counts. A promoted description stays promoted.
//! - **promote-M2** A regular file's description is promoted before a process can have it that does
//!   not see the family's memory, and before a fork: for locks, for descriptors that exec inherits,
//!   and for each call that only the kernel can make.
//! - **promote-M3** A promoted description is served here as before. A transfer at the offset
//!   reserves its range by `lseek`, which is atomic for all processes that share the description.
//!   Only a descriptor that libc is going to use and close by itself is *left* to the kernel:
//!   its entry is emptied ([`Promotions::leave_to_kernel`]).
//! - **promote-M4** A descriptor is a capability: promoting a regular file asks for no permission
//!   on it ([`mounts::Ticket`]). So the program may do what it could do when it opened the file.
//! - **promote-M5** The kernel drops a process's POSIX locks on a file when any description of the
//!   file is closed in it. In a process of one thread, a description that this module opens lands
//!   on the right descriptor at once. Otherwise the descriptor where it has landed stays open while
//!   the process has locks on the file.
//! - **promote-M6** Each call of the kernel may fail. After any failure, a descriptor is still what
//!   its entry records: a placeholder, or a duplicate of the kernel's description ([`ON_KERNEL`]).
//!   A description that was opened, but not put onto every descriptor, is private as before
//!   (promote-M1), and is not opened a second time.

#![allow(unsafe_code)]

use crate::creds;
use crate::family::{Member, ON_KERNEL, Ofd, OfdHandle, PARKED, PROMOTED, Segment, described};
use crate::fd_allocator::FdAllocator;
use crate::mappings::Mappings;
use crate::mount::ServedMount;
use crate::noted::{NoteReason, Noted};
use crate::served::CallStop;
use crate::table::{OfdRef, TableLock};
use crate::{Errno, Fork};
use mounts::{Opening, Ticket};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering::*};
use vfs::{FileKind, FileSystem, Ino};

/// The time that the parent of a fork waits for the child to hold its inodes before it checks that
/// the child lives, in nanoseconds.
const LOOK_NS: i64 = 5_000_000;
/// Times that the parent of a fork lets other threads run before it sleeps.
const FORK_YIELDS: u32 = 200;

/// Times that an opening is announced. An announcement is valid for a second, and the server may be
/// slower.
const ANNOUNCEMENTS: usize = 3;

/// The most free descriptors below a description's own that are occupied so that it gets its own
/// (promote-M5).
const FILLERS: usize = 64;

/// Placeholders that occupy descriptors, and are closed when this is dropped.
struct Fillers<'p> {
    allocator: &'p FdAllocator,
    fds: SmallVec<[i32; FILLERS]>,
}

impl Drop for Fillers<'_> {
    fn drop(&mut self) {
        for &fd in &self.fds {
            let _ = self.allocator.close_fd(fd);
        }
    }
}

/// Descriptions that the kernel has, too, and inodes that have locks or are mapped.
pub struct Promotions {
    fd_allocator: FdAllocator,
    /// Inodes with POSIX locks of this process, or that the kernel maps into it.
    pub(crate) noted: Noted,
    /// Mappings of files in place.
    pub(crate) mappings: Mappings,
    /// Set before a fork: whether the child inherits anything of this process's segment.
    shares_with_child: AtomicBool,
    /// Set before a fork: whether this thread has the lock of attaching, so that no other thread
    /// attaches.
    fork_holds_attaching: AtomicBool,
}

impl Promotions {
    pub(crate) fn new(fd_allocator: FdAllocator) -> Self {
        Self {
            fd_allocator,
            noted: Noted::default(),
            mappings: Mappings::default(),
            shares_with_child: AtomicBool::new(false),
            fork_holds_attaching: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    pub(crate) fn fd_allocator(&self) -> &FdAllocator {
        &self.fd_allocator
    }

    /// Gives the kernel the description of `fd`, too, before a call that only the kernel can make.
    /// `fd` is served as before. A parked descriptor is closed (parked-N3).
    pub fn promote(&self, fd: i32) -> Result<(), Errno> {
        if self.table().entry(fd).is_some_and(|entry| entry.load(Relaxed) == PARKED) {
            self.fd_allocator().unpark();
        }
        match self.table().get(fd) {
            Ok(ofd) => self.promote_ofd(&ofd),
            Err(CallStop::Kernel) => Ok(()),
            Err(CallStop::Errno(errno)) => Err(errno),
        }
    }

    /// Leaves the descriptor `fd` to the kernel for good, because libc is going to use it, and
    /// perhaps to close it, without a call that this library sees.
    pub fn leave_to_kernel(&self, fd: i32) -> Result<(), Errno> {
        self.promote(fd)?;
        let table = self.table().lock_table();
        let before = self.table().entry(fd).map(|entry| entry.load(Acquire));
        if before.and_then(described).is_some() {
            let ofd = self.table().uninstall(&table, fd);
            drop((table, ofd));
        }
        Ok(())
    }

    /// Promotes a description (promote-M1).
    pub(crate) fn promote_ofd(&self, ofd: &OfdRef<'_>) -> Result<(), Errno> {
        if ofd.is(PROMOTED) {
            return self.adopt(ofd);
        }
        let _position = ofd.hold_position();
        if ofd.is(PROMOTED) {
            return self.adopt(ofd);
        }
        self.open_on_fds(&self.table().lock_table(), ofd.handle)?;
        ofd.mark(PROMOTED);
        Ok(())
    }

    /// Opens a description in this process, at its last known offset, if another process of the
    /// family has promoted it. That happens if it could not be promoted before the fork
    /// (promote-M2).
    pub(crate) fn adopt(&self, ofd: &OfdRef<'_>) -> Result<(), Errno> {
        let entry = self.table().entry(ofd.fd()).map(|entry| entry.load(Acquire));
        if entry.is_some_and(|entry| entry & ON_KERNEL != 0) {
            return Ok(());
        }
        self.open_on_fds(&self.table().lock_table(), ofd.handle)
    }

    /// Opens the kernel's description of a file, and puts it onto every descriptor of this process
    /// that refers to it and is a placeholder. After a failure half-way, the next call continues
    /// from there (promote-M6).
    fn open_on_fds(&self, table: &TableLock<'_>, handle: OfdHandle) -> Result<(), Errno> {
        let mut placeholders = SmallVec::<[i32; 8]>::new();
        let mut on_kernel = None;
        for fd in 0..self.table().fd_end() {
            match self.table().entry(fd).map_or(0, |entry| entry.load(Acquire)) {
                entry if entry == handle => placeholders.push(fd),
                entry if entry == handle | ON_KERNEL => on_kernel = Some(fd),
                _ => {}
            }
        }
        let ofd = self.table().family.ofd(handle);
        let first = match (on_kernel, placeholders.first()) {
            (Some(fd), _) => fd,
            (None, Some(&fd)) => {
                self.open_on_fd(table, ofd, fd)?;
                self.set_on_kernel(fd, handle);
                fd
            }
            (None, None) => return Ok(()),
        };
        let is_new = on_kernel.is_none();
        if ofd.oflags() & libc::O_PATH == 0 && (is_new || !ofd.is(PROMOTED)) {
            self.bring_up_to_date(ofd, first, is_new).inspect_err(|_| {
                if ofd.is(PROMOTED) {
                    // Otherwise the next call would use its offset.
                    self.make_placeholder(table, ofd, first, self.task().kernel.is_cloexec(first));
                }
            })?;
        }
        for &fd in placeholders.iter().filter(|fd| **fd != first) {
            self.task().kernel.dup3(first, fd, self.task().kernel.is_cloexec(fd)?)?;
            self.set_on_kernel(fd, handle);
        }
        Ok(())
    }

    /// Gives the kernel's description the offset that the family knows, and the flags if the
    /// description is not new.
    fn bring_up_to_date(&self, ofd: &Ofd, fd: i32, is_new: bool) -> Result<(), Errno> {
        let flags = ofd.oflags();
        // A user who no longer owns the file may not ask for `O_NOATIME` again.
        let is_set =
            flags & libc::O_NOATIME != 0 && self.task().kernel.set_status(fd, flags).is_ok();
        if !is_new && !is_set {
            self.task().kernel.set_status(fd, flags & !libc::O_NOATIME)?;
        }
        self.task().kernel.seek_to(fd, ofd.offset.load(Relaxed))
    }

    /// Notes that a descriptor is a duplicate of the kernel's description.
    fn set_on_kernel(&self, fd: i32, handle: OfdHandle) {
        self.fd_allocator().forget_fd_records(fd..fd + 1);
        self.table().entry(fd).inspect(|entry| entry.store(handle | ON_KERNEL, Release));
    }

    /// Makes a descriptor a placeholder again. If that fails, closes it, here and in the kernel.
    /// Otherwise it would refer to another file once the kernel gives its number out again.
    fn make_placeholder(
        &self,
        table: &TableLock<'_>,
        ofd: &Ofd,
        fd: i32,
        cloexec: Result<bool, Errno>,
    ) {
        let placeholder = self.task().mount(ofd.mount()).placeholder();
        let made = cloexec.and_then(|cloexec| self.task().kernel.dup3(placeholder, fd, cloexec));
        if made.is_ok() {
            let handle = self.table().entry(fd).map_or(0, |entry| entry.load(Acquire)) & !ON_KERNEL;
            self.table().entry(fd).inspect(|entry| entry.store(handle, Release));
        } else {
            drop(self.table().uninstall(table, fd));
            let _ = self.fd_allocator().close_fd(fd);
        }
    }

    /// Opens the kernel's description of a file onto a placeholder's descriptor. After a failure it
    /// is a placeholder still.
    fn open_on_fd(&self, table: &TableLock<'_>, ofd: &Ofd, fd: i32) -> Result<(), Errno> {
        let mount = self.task().mount(ofd.mount());
        let capability = self.capability(table, mount);
        let cloexec = self.task().kernel.is_cloexec(fd)?;
        let fillers = if os::threads::is_only_one() { self.fill_below(fd, mount) } else { None };
        // First checks that it can be put back, because the limit may have been lowered below it.
        let frees =
            fillers.is_some() && self.task().kernel.dup3(mount.placeholder(), fd, cloexec).is_ok();
        if frees {
            // Whatever `close` returns, the descriptor is free.
            let _ = self.task().kernel.close(fd);
        }
        let landed = self.open_inode(table, ofd, capability, !frees || cloexec);
        drop(fillers);
        let opened = match landed {
            Ok(landed) if landed == fd => return Ok(()),
            Ok(landed) => {
                let put = self.task().kernel.dup3(landed, fd, cloexec);
                self.close_or_keep(ofd, landed);
                put
            }
            Err(errno) => Err(errno),
        };
        opened.inspect_err(|_| {
            if frees {
                self.make_placeholder(table, ofd, fd, Ok(cloexec));
            }
        })
    }

    /// Closes a descriptor that refers to the kernel's description, unless there are locks
    /// (promote-M5).
    fn close_or_keep(&self, ofd: &Ofd, fd: i32) {
        if self.noted.has_locks(ofd.mount(), ofd.ino()) && self.fd_allocator().mark_hidden(fd) {
            self.noted.add(ofd.mount(), ofd.ino(), NoteReason::Kept(fd));
        } else {
            let _ = self.fd_allocator().close_fd(fd);
        }
    }

    /// Ends this process's POSIX locks on an inode, as the kernel does when a description of it is
    /// closed.
    pub(crate) fn end_locks(&self, table: &TableLock<'_>, ofd: &Ofd) {
        // A process with locks usually still has the descriptor by which it took them. It may have
        // no free descriptor.
        let has_it = |fd: &i32| {
            let entry = self.table().entry(*fd).map_or(0, |entry| entry.load(Acquire));
            let other = described(entry).map(|handle| self.table().family.ofd(handle));
            entry & ON_KERNEL != 0
                && other.is_some_and(|other| {
                    (other.mount(), other.ino()) == (ofd.mount(), ofd.ino())
                        && other.oflags() & libc::O_PATH == 0
                })
        };
        // SAFETY: a flock is plain numbers.
        let mut all: libc::flock = unsafe { std::mem::zeroed() };
        (all.l_type, all.l_whence) = (libc::F_UNLCK as i16, libc::SEEK_SET as i16);
        if let Some(fd) = (0..self.table().fd_end()).find(has_it)
            && self.task().kernel.lock(fd, libc::F_SETLK, &mut all).is_ok()
        {
            return;
        }
        let capability = self.capability(table, self.task().mount(ofd.mount()));
        if let Ok(fd) = self.open_inode(table, ofd, capability, true) {
            let _ = self.fd_allocator().close_fd(fd);
        }
    }

    /// Occupies the free descriptors below `fd`, so that `fd` is the lowest when it is closed.
    /// `None` if there are too many.
    fn fill_below(&self, fd: i32, mount: &ServedMount) -> Option<Fillers<'_>> {
        let mut fillers = Fillers { allocator: self.fd_allocator(), fds: SmallVec::new() };
        // Parked descriptors are occupied already.
        while fillers.fds.len() < FILLERS {
            match self.task().kernel.dup(mount.placeholder(), 0, true) {
                Ok(filler) => {
                    fillers.fds.push(filler);
                    if filler > fd {
                        return Some(fillers);
                    }
                }
                Err(Errno::MFILE) => return Some(fillers),
                Err(_) => return None,
            }
        }
        None
    }

    /// Opens the directory below which a name opens an inode whatever its permissions (promote-M4),
    /// as a hidden descriptor. `None` if the mount's server has no such directory.
    fn capability(&self, _table: &TableLock<'_>, mount: &ServedMount) -> Option<i32> {
        if let Some(known) = mount.capability() {
            return known;
        }
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let opened = self.task().kernel.open_at(mount.placeholder(), Ticket::DIR.as_bytes(), flags);
        match opened.and_then(|fd| self.fd_allocator().hide(fd)) {
            Ok(hidden) => {
                mount.set_capability(Some(hidden));
                Some(hidden)
            }
            Err(errno) => {
                if errno == Errno::NOENT {
                    mount.set_capability(None);
                }
                None
            }
        }
    }

    /// Opens the inode of a description through the mount, with its flags, and returns the new
    /// descriptor. `capability` is the directory below which a regular file opens without
    /// permission (promote-M4).
    fn open_inode(
        &self,
        table: &TableLock<'_>,
        ofd: &Ofd,
        capability: Option<i32>,
        cloexec: bool,
    ) -> Result<i32, Errno> {
        // Only owners may ask for `O_NOATIME`. It is set afterwards, if that is permitted.
        let own = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_TMPFILE | libc::O_NOATIME;
        let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
        let flags = ofd.oflags() & !own | cloexec;
        let plain = ofd.kind() == FileKind::File && flags & libc::O_PATH == 0;
        if let (true, Some(dir)) = (plain, capability) {
            match self.open_capability(table, ofd, dir, flags | libc::O_CREAT) {
                // On a read-only mount, the kernel refuses `O_CREAT` even here.
                Err(Errno::ROFS) => {}
                opened => return opened,
            }
        }
        let kind = if ofd.kind() == FileKind::Dir { libc::O_DIRECTORY } else { libc::O_NOFOLLOW };
        self.by_path(table, ofd, |path| self.task().kernel.open(path, flags | kind))
    }

    /// Opens a regular file whatever its permissions are (promote-M4). The kernel takes over the
    /// size in the server's answer, which may be older than the one it knew. Calls that depend on
    /// the size wait meanwhile ([`mounts::MountEvents::begin_opening`]).
    fn open_capability(
        &self,
        table: &TableLock<'_>,
        ofd: &Ofd,
        dir: i32,
        flags: i32,
    ) -> Result<i32, Errno> {
        self.announced(table, ofd, true, |ticket| {
            let opened = self.task().kernel.open_at(dir, ticket.to_string().as_bytes(), flags);
            let fs = &self.task().mount(ofd.mount()).attached().fs;
            if let (Ok(fd), Ok(attr)) = (opened, fs.getattr(ofd.ino())) {
                self.task().kernel.update_kernel_size(fd, attr.size);
            }
            opened
        })
    }

    /// Runs `act`, by which the kernel looks up the inode of a description by a name of the ticket,
    /// while that is announced. One thread at a time, by the table's lock (openings-O1).
    fn announced<T>(
        &self,
        _table: &TableLock<'_>,
        ofd: &Ofd,
        as_new: bool,
        act: impl Fn(Ticket) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let events = &self.task().mount(ofd.mount()).attached().events;
        let opening = Opening { ino: ofd.ino(), generation: ofd.generation(), as_new };
        for attempt in 0..ANNOUNCEMENTS {
            let mut by = creds::requester()?;
            if attempt == 1 {
                // In a user namespace that was entered since, users have other numbers than the
                // server sees.
                by.user = self.task().identity().effective.uid;
            }
            let ticket = events.begin_opening(opening, by)?;
            let done = act(ticket);
            let was_answered = events.end_opening(ticket);
            if was_answered || done.as_ref().err() != Some(&Errno::NOENT) {
                return done;
            }
        }
        Err(Errno::NOENT)
    }

    /// Calls `act` with a path that leads to the inode of a description through the mount. For a
    /// directory that is its own path, unless it was removed; for other inodes it is a name that
    /// leads there once.
    ///
    /// A directory has one name. Opening it by another would move it in the kernel's view.
    pub(crate) fn by_path<T>(
        &self,
        table: &TableLock<'_>,
        ofd: &Ofd,
        act: impl Fn(&[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if ofd.kind() == FileKind::Dir {
            match self.path_of(ofd.mount(), ofd.ino()) {
                Err(Errno::NOENT) => {}
                path => return act(&path?),
            }
        }
        let mountpoint = &self.task().mount(ofd.mount()).spec.mountpoint[..];
        self.announced(table, ofd, false, |ticket| {
            act(&[mountpoint, b"/", ticket.root_name().as_bytes()].concat())
        })
    }

    /// Finds the path of a directory by a search in its parents. `ENOENT` if it was removed.
    pub(crate) fn path_of(&self, mount: usize, dir: Ino) -> Result<Vec<u8>, Errno> {
        let mount = self.task().mount(mount);
        let fs = mount.attached().fs.as_ref();
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        while at != fs.root() {
            let parent = fs.peek(at, b"..")?.ino;
            names.push(name_in(fs, parent, at)?);
            at = parent;
        }
        let mut path = mount.spec.mountpoint.clone();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Promotes every descriptor that is not close-on-exec, because exec inherits it. Returns the
    /// first error, but goes through all.
    pub(crate) fn promote_inherited(&self) -> Result<(), Errno> {
        self.fd_allocator().unpark();
        let mut result = Ok(());
        for fd in 0..self.table().fd_end() {
            let handle = self.table().entry(fd).map_or(0, |entry| entry.load(Acquire));
            if described(handle).is_none() {
                continue;
            }
            match self.task().kernel.is_cloexec(fd) {
                Ok(true) | Err(Errno::BADF) => {}
                Ok(false) => result = result.and(self.promote(fd)),
                Err(errno) => result = result.and(Err(errno)),
            }
        }
        result
    }

    /// Ends mappings by the kernel before another program takes this process over. If that fails,
    /// call [`exec_failed`](Self::exec_failed). (Mappings of files in place end like those of a
    /// dead process. If they ended here and exec failed, other files could use their blocks.)
    pub(crate) fn before_image_ends(&self) {
        for (mount, ino) in self.noted.mapped() {
            self.task().mount(mount).attached().events.end_mapping(ino);
        }
    }

    /// Takes back `before_image_ends`: exec has failed.
    pub(crate) fn exec_failed(&self) {
        for (mount, ino) in self.noted.mapped() {
            // It fails only if the pool does, and then every call fails.
            let _ = self.task().mount(mount).attached().events.begin_mapping(ino);
        }
    }

    /// Prepares a fork, or a vfork made as a fork. Must be followed by
    /// [`after_fork_parent`](Self::after_fork_parent) in this thread and
    /// `Process::after_fork_child` in the child.
    pub(crate) fn before_fork(&self) {
        for fd in 0..self.table().fd_end() {
            if let Ok(ofd) = self.table().get(fd)
                && ofd.kind() == FileKind::File
                && ofd.oflags() & libc::O_PATH == 0
            {
                // promote-M2. A description that cannot be promoted is shared as long as no process
                // promotes it.
                let _ = self.promote_ofd(&ofd);
            }
        }
        let attaching = self.task().mounts.attaching.hold();
        let table = self.table().lock_table();
        self.fd_allocator().unpark_all(&table);
        std::mem::forget(table);
        self.fork_holds_attaching.store(attaching.is_some(), Relaxed);
        std::mem::forget(attaching);
        self.mappings.hold();
        let shares = self.task().mounts().any(|(_, mount)| mount.if_attached().is_some());
        self.shares_with_child.store(shares, Relaxed);
        self.table().member().segment().ready.store(0, Release);
        if shares {
            self.table().family.begin_fork(self.table().member());
            self.tell_pools(Fork::Begins);
        }
    }

    /// Reports a step of a fork to the pools in use.
    fn tell_pools(&self, step: Fork) {
        self.task()
            .mounts()
            .filter_map(|(_, m)| m.if_attached())
            .for_each(|pool| (pool.on_fork)(step));
    }

    /// Waits in the parent of a fork until the child has copied the table and holds its inodes. The
    /// table must not change before, and inodes that the parent closes next stay alive for the
    /// child. `child` is its process ID, or -1 if fork failed.
    pub(crate) fn after_fork_parent(&self, child: i32) {
        use rustix::thread::futex;
        let member = self.table().member();
        let word = &member.segment().ready;
        let shares = self.shares_with_child.load(Relaxed);
        let is_awaited = || child > 0 && shares && word.load(Acquire) == 0;
        // Usually the child has come before this thread could fall asleep and be woken.
        for _ in (0..FORK_YIELDS).take_while(|_| is_awaited()) {
            rustix::thread::sched_yield();
        }
        while is_awaited() {
            let timeout = futex::Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
            let slept = futex::wait(word, futex::Flags::empty(), 0, Some(&timeout));
            if slept == Err(Errno::TIMEDOUT) && has_ended(child) {
                break;
            }
        }
        if shares {
            self.table().family.end_fork(member);
            self.tell_pools(Fork::Ends);
        }
        self.mappings.release();
        if self.fork_holds_attaching.load(Relaxed) {
            drop(self.task().mounts.attaching.take_over());
        }
        self.table().reset_table_lock();
    }

    /// Takes over descriptors and notes of the parent, in a forked child.
    pub(crate) fn become_child(&self) {
        if !self.fork_holds_attaching.load(Relaxed) {
            // A thread that the child does not have was attaching one of them, and may have had
            // locks that attaching needs.
            self.task().mounts().for_each(|(_, mount)| mount.refuse());
        }
        drop(self.task().mounts.attaching.take_over());
        self.table().reset_table_lock();
        self.mappings.release();
        let parent = self.table().member();
        let shares = self.shares_with_child.load(Relaxed);
        let inherits = shares && self.table().family.is_there(parent);
        match self.table().family.claim() {
            Ok(member) => {
                self.table().set_member(member);
                if inherits {
                    self.inherit(parent.segment(), member.segment());
                }
            }
            Err(_) => self.table().set_member(Member::nobody()),
        }
        self.notes_after_fork();
        self.count_inherited_mappings();
        if inherits {
            self.table().family.end_fork(parent);
            self.tell_pools(Fork::Ends);
            let ready = &parent.segment().ready;
            ready.store(1, Release);
            let _ = rustix::thread::futex::wake(ready, rustix::thread::futex::Flags::empty(), 1);
        }
    }

    /// Copies the table of the parent, which waits meanwhile, and holds its descriptions.
    fn inherit(&self, old: &Segment, new: &Segment) {
        let end = old.fd_end.load(Acquire);
        new.fd_end.store(end, Relaxed);
        let hold = |handle: OfdHandle| new.holds(handle).fetch_add(1, Relaxed) == 0;
        let fds = old.fds[..end as usize].iter().zip(&new.fds).map(|(a, b)| (a.load(Acquire), b));
        for (handle, entry) in fds.chain([(old.cwd.load(Acquire), &new.cwd)]) {
            entry.store(handle, Relaxed);
            let Some(handle) = described(handle) else { continue };
            if hold(handle) {
                self.table().family.add_holder(handle);
                let ofd = self.table().family.ofd(handle);
                // The parent still holds the inode, so it exists.
                (self.task().mount(ofd.mount()).attached().on_fork)(Fork::Inherits(ofd.ino()));
            }
        }
    }

    /// Keeps notes of mappings in a forked child, and drops those of the parent's locks.
    fn notes_after_fork(&self) {
        for (mount, ino, why) in self.noted.after_fork() {
            match why {
                NoteReason::Kept(fd) => self.fd_allocator().unhide(fd),
                NoteReason::Mapped => {
                    // It fails only if the pool does, and then every call fails.
                    let _ = self.task().mount(mount).attached().events.begin_mapping(ino);
                }
                NoteReason::Locks => {}
            }
        }
    }

    /// Announces that the kernel is about to map a file. From then on the kernel makes every
    /// process's calls on it ([`mounts::MountEvents::is_mapped`]). `fd` is promoted.
    pub(crate) fn begin_mapping(&self, mount: usize, ino: Ino, fd: i32) -> Result<(), Errno> {
        if !self.noted.add(mount, ino, NoteReason::Mapped) {
            return Ok(());
        }
        let events = &self.task().mount(mount).attached().events;
        let was_mapped = events.is_mapped(ino);
        events.begin_mapping(ino).inspect_err(|_| {
            self.noted.remove(mount, ino, NoteReason::Mapped);
        })?;
        // The caller sets the size. No answer with an older size may come afterwards.
        events.wait_for_openings(ino, false);
        if !was_mapped {
            // From an earlier mapping the kernel may have pages that have changed since by calls
            // that were served here.
            self.task().kernel.drop_cache(fd);
        }
        Ok(())
    }
}

/// Whether a child has ended. Needs no descriptor, and leaves the child for `wait`.
fn has_ended(child: i32) -> bool {
    // SAFETY: room for the answer, which stays zero if the child still runs.
    unsafe {
        let mut ended: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        match libc::waitid(libc::P_PID, child as u32, &raw mut ended, options) {
            0 => ended.si_pid() == child,
            // Another thread has waited for it, or it is the child of a child (`daemon`).
            _ => arena::ProcessId::is_free(child as u32),
        }
    }
}

/// Finds the name of `child` in `dir`.
fn name_in(fs: &dyn FileSystem, dir: Ino, child: Ino) -> Result<Vec<u8>, Errno> {
    let mut found = None;
    fs.readdir(dir, 2, &mut |entry| {
        if entry.ino == child {
            found = Some(entry.name.to_vec());
        }
        found.is_none()
    })?;
    found.ok_or(Errno::NOENT)
}
