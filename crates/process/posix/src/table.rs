//! The table of descriptors, and the open file descriptions that it refers to.
//!
//! A call takes a descriptor in three steps, as the kernel's `fget`: load the table entry, add a
//! hold to the description unless it has none, load the entry again. So a description in use stays,
//! whatever other threads close.

#![allow(unsafe_code)]

use crate::family::{
    FDS, Family, HIDDEN, Member, ON_KERNEL, Ofd, OfdHandle, OfdInit, PARKED, Position, Segment,
    described, raise,
};
use crate::mount::ServedMount;
use crate::served::{CallResult, CallStop};
use crate::task::Task;
use os::threads::OwnU32;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use vfs::{Attr, Errno, FileSystem};

/// The table of descriptors of a process and its open file descriptions, in the memory that its
/// family shares.
pub struct DescriptorTable {
    task: Task,
    pub(crate) family: Family,
    segment: AtomicPtr<Segment>,
    token: AtomicU32,
    /// Held while entries of the table change; see [`TableLock`].
    lock: OwnU32,
}

/// The right to change the table of descriptors. Only one thread has it at a time, as in the
/// kernel; lookups do not wait.
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
    table: &'p DescriptorTable,
    pub handle: OfdHandle,
    /// The descriptor by which it was taken, or -1.
    fd: i32,
}

impl Deref for OfdRef<'_> {
    type Target = Ofd;
    #[inline]
    fn deref(&self) -> &Ofd {
        self.table.family.ofd(self.handle)
    }
}

impl Drop for OfdRef<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.put(self.handle);
    }
}

fn wants_read(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
}

fn wants_write(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

impl OfdRef<'_> {
    /// The mount of its inode.
    #[inline]
    pub fn mount(&self) -> &ServedMount {
        self.table.task().mount(self.mount_index())
    }

    /// Index of the mount.
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

    /// The descriptor by which it was taken, or -1.
    #[inline]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Locks the offset in the family's memory. It counts unless the description is promoted.
    pub fn hold_position(&self) -> Position<'_> {
        let table = self.table;
        self.position(table.member().token, |token| table.family.is_dead(token))
    }

    /// Returns `Kernel` if only the kernel may read and write the file's data
    /// ([`ServedMount::check_unmapped`]).
    #[inline]
    pub fn check_unmapped(&self) -> CallResult<()> {
        self.mount().check_unmapped(self.ino())
    }

    /// Whether it was opened for reading.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.oflags() & libc::O_PATH == 0 && wants_read(self.oflags())
    }

    /// Whether it was opened for writing.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.oflags() & libc::O_PATH == 0 && wants_write(self.oflags())
    }

    /// Whether written data must be durable when the call returns (`O_DSYNC`, which `O_SYNC`
    /// includes).
    #[inline]
    pub fn writes_durably(&self) -> bool {
        self.oflags() & libc::O_DSYNC != 0
    }
}

impl DescriptorTable {
    pub(crate) fn new(task: Task) -> Result<Self, Errno> {
        let family = Family::new()?;
        let member = family.claim()?;
        Ok(Self {
            task,
            family,
            segment: AtomicPtr::new(member.as_ptr()),
            token: AtomicU32::new(member.token),
            lock: OwnU32::new(0),
        })
    }

    #[inline(always)]
    pub(crate) fn task(&self) -> &Task {
        &self.task
    }

    /// Whether calls on `fd` may be answered here: one load. (`true` for hidden descriptors, too,
    /// whose answer is `EBADF`.)
    #[inline]
    pub fn owns(&self, fd: i32) -> bool {
        self.entry(fd).is_some_and(|entry| entry.load(Relaxed) != 0)
    }

    /// Whether an address is in the memory that forked processes share.
    pub fn shares(&self, address: usize) -> bool {
        self.family.range().contains(&address)
    }

    /// This process as a member of its family.
    #[inline]
    pub(crate) fn member(&self) -> Member {
        let segment = NonNull::new(self.segment.load(Acquire)).expect("set at start");
        Member::from_raw(segment, self.token.load(Relaxed))
    }

    /// Makes a forked child another member than its parent.
    pub(crate) fn set_member(&self, member: Member) {
        self.segment.store(member.as_ptr(), Release);
        self.token.store(member.token, Relaxed);
    }

    /// The part of the family's memory that belongs to this process.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        // SAFETY: segments stay mapped as long as `self`.
        unsafe { &*self.segment.load(Relaxed) }
    }

    #[inline]
    pub(crate) fn entry(&self, fd: i32) -> Option<&OwnU32> {
        self.segment().fds.get(fd as usize)
    }

    /// Takes the description of a descriptor. `Kernel` if it is not ours.
    #[inline]
    pub(crate) fn get(&self, fd: i32) -> CallResult<OfdRef<'_>> {
        let Some(entry) = self.entry(fd) else { return Err(CallStop::Kernel) };
        if entry.load(Relaxed) == 0 {
            return Err(CallStop::Kernel);
        }
        let mut ofd = self.get_entry(entry)?;
        ofd.fd = fd;
        Ok(ofd)
    }

    /// Takes the description that an entry refers to.
    #[inline]
    pub(crate) fn get_entry(&self, entry: &AtomicU32) -> CallResult<OfdRef<'_>> {
        loop {
            let word = entry.load(Acquire);
            match word {
                0 => return Err(CallStop::Kernel),
                HIDDEN | PARKED => return Err(Errno::BADF.into()),
                _ => {}
            }
            let handle = word & !ON_KERNEL;
            if !self.hold(handle) {
                continue;
            }
            let ofd = OfdRef { table: self, handle, fd: -1 };
            if entry.load(Acquire) & !ON_KERNEL != handle {
                continue;
            }
            return Ok(ofd);
        }
    }

    /// Borrows the description that an entry refers to, for a call that does not close anything, in
    /// a process of one thread. No other thread can then give it up, and signals wait until the
    /// call is over. `None` in any other case: the caller then has to take it.
    #[inline(always)]
    pub(crate) fn borrow_entry(&self, entry: &AtomicU32) -> Option<&Ofd> {
        let word = entry.load(Acquire);
        if !os::threads::is_only_one() || matches!(word, 0 | HIDDEN | PARKED) {
            return None;
        }
        Some(self.family.ofd(word & !ON_KERNEL))
    }

    /// As [`get`](Self::get), but `EBADF` for descriptions of `O_PATH`.
    #[inline]
    pub(crate) fn get_open(&self, fd: i32) -> CallResult<OfdRef<'_>> {
        let ofd = self.get(fd)?;
        if ofd.oflags() & libc::O_PATH != 0 { Err(Errno::BADF.into()) } else { Ok(ofd) }
    }

    /// Adds a hold (family-F1). `false` if the process has no hold yet.
    #[inline]
    fn hold(&self, handle: OfdHandle) -> bool {
        let more = |have: u32| (have > 0).then_some(have + 1);
        self.segment().holds(handle).modify(more).is_ok()
    }

    /// Gives a hold back.
    #[inline]
    pub(crate) fn put(&self, handle: OfdHandle) {
        if self.segment().holds(handle).modify(|have| Some(have - 1)) == Ok(1) {
            self.release(handle);
        }
    }

    /// Gives up the description after this process's last hold (family-F1).
    #[cold]
    fn release(&self, handle: OfdHandle) {
        let ofd = self.family.ofd(handle);
        let (mount, ino) = (ofd.mount(), ofd.ino());
        self.family.drop_holder(handle);
        self.task().mount(mount).attached().fs.forget(ino, 1);
    }

    /// Makes a description with one hold, and takes over a reference of the engine. The caller
    /// gives the hold to a table entry, or back.
    pub(crate) fn describe(&self, init: &OfdInit) -> Result<OfdRef<'_>, Errno> {
        let handle = self.family.open(self.member(), init)?;
        Ok(OfdRef { table: self, handle, fd: -1 })
    }

    /// Waits for the right to change the table.
    pub(crate) fn lock_table(&self) -> TableLock<'_> {
        use rustix::thread::futex;
        let word = &self.lock;
        if !word.exchange(0, 1) {
            while word.swap(2, Acquire) != 0 {
                let _ = futex::wait(word, futex::Flags::PRIVATE, 2, None);
            }
        }
        TableLock { word }
    }

    /// Gives back the right to change the table, which was taken before a fork. In parent and
    /// child.
    pub(crate) fn reset_table_lock(&self) {
        drop(TableLock { word: &self.lock });
    }

    /// Makes an entry refer to a description, and takes over its hold. `on_kernel` is set if the
    /// descriptor is a duplicate of the kernel's description. Returns the entry's earlier
    /// description. The caller drops it, best without the lock, because the inode may be freed with
    /// it.
    #[must_use]
    pub(crate) fn install(
        &self,
        _table: &TableLock<'_>,
        fd: i32,
        ofd: OfdRef<'_>,
        on_kernel: OfdHandle,
    ) -> Option<OfdRef<'_>> {
        let member = self.member();
        raise(&member.segment().fd_end, fd as u32 + 1);
        let old = member.segment().fds[fd as usize].replace(ofd.handle | on_kernel);
        std::mem::forget(ofd);
        self.released(old)
    }

    /// Empties an entry. Returns its description, which the caller drops.
    #[must_use]
    pub(crate) fn uninstall(&self, _table: &TableLock<'_>, fd: i32) -> Option<OfdRef<'_>> {
        self.released(self.entry(fd)?.replace(0))
    }

    /// The hold that an entry had.
    fn released(&self, handle: OfdHandle) -> Option<OfdRef<'_>> {
        described(handle).map(|handle| OfdRef { table: self, handle, fd: -1 })
    }

    /// The highest descriptor that was ever ours, + 1.
    pub(crate) fn fd_end(&self) -> i32 {
        self.member().segment().fd_end.load(Acquire).min(FDS as u32) as i32
    }

    /// Whether a descriptor is our own. A process that shares this one's table of
    /// descriptors may ask as long as this process lives. After that, none is.
    pub fn hides(&self, fd: i32) -> bool {
        self.entry(fd).is_some_and(|entry| entry.load(Acquire) == HIDDEN)
            && self.family.is_own(self.member())
    }
}
