//! Descriptors on their way between the program and the kernel. A closed descriptor may be *parked*
//! in between.
//!
//! Closing a file and opening another would be two system calls that end where they began. So a
//! closed descriptor may stay open in the kernel, as the placeholder that it is: it is parked, and
//! the next open takes it.
//!
//! - **parked-N1** Below the *bound* every descriptor is open in the kernel. The bound rises when
//!   the kernel gives out its lowest free descriptor, to the number after that, and falls to each
//!   descriptor that is freed.
//! - **parked-N2** A parked descriptor is used again only below the bound, the lowest first. So it
//!   is the lowest that the program does not have, as POSIX demands. Others are closed.
//! - **parked-N3** To the program a parked descriptor is closed. Its table entry is [`PARKED`],
//!   which answers `EBADF`. Before a call on it that only the kernel can make, it is closed there,
//!   too.
//! - **parked-N4** No descriptor is parked when the kernel is asked for one, nor in forked
//!   processes and new programs.
//!
//! Descriptors 0 to 2 are never parked, because programs use them without having opened them. The
//! front end does not see every `close` inside libc. After such a `close` the bound is too high
//! until the kernel gives out the next descriptor, and a descriptor may then not be the lowest.

use crate::Errno;
use crate::family::{FDS, PARKED};
use crate::fd_allocator::FdAllocator;
use crate::mount::ServedMount;
use crate::served::{CallResult, CallStop};
use crate::table::TableLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The most descriptors that are parked at a time. They count against the program's limit.
const PARKED_MAX: usize = 8;

/// Bit of a descriptor's record ([`Segment::descriptors`](crate::family::Segment::descriptors)):
/// the descriptor is a duplicate of the placeholder of a mount. The mount's index is in the bits
/// above.
const KNOWN: u8 = 1;
/// Bit of a descriptor's record: it is close-on-exec.
const CLOEXEC: u8 = 2;

fn record(mount: usize, cloexec: bool) -> u8 {
    (mount as u8) << 2 | if cloexec { CLOEXEC } else { 0 } | KNOWN
}

/// The parked descriptors and the bound. Changes need the table's lock, except that any thread may
/// lower the bound.
#[derive(Default)]
pub(crate) struct Parked {
    /// The bound in the lower half. The upper half counts changes of it, and freed descriptors.
    bound: AtomicU64,
    count: AtomicU32,
    /// The parked descriptors; 0 in a free slot.
    slots: [AtomicU32; PARKED_MAX],
}

impl Parked {
    fn bound(&self) -> u32 {
        self.bound.load(Acquire) as u32
    }

    /// Notes that a descriptor has been freed (parked-N1).
    fn freed(&self, fd: i32) {
        let lower = |word: u64| {
            let (changes, bound) = ((word >> 32) as u32, word as u32);
            Some(u64::from(changes.wrapping_add(1)) << 32 | u64::from(bound.min(fd as u32)))
        };
        let _ = self.bound.fetch_update(AcqRel, Relaxed, lower);
    }

    /// Asks the kernel for its lowest free descriptor (parked-N1).
    pub fn raise(&self, ask: impl FnOnce() -> Result<i32, Errno>) -> Result<i32, Errno> {
        let seen = self.bound.load(Acquire);
        let fd = ask()?;
        let changes = ((seen >> 32) as u32).wrapping_add(1);
        let raised = u64::from(changes) << 32 | (fd as u64 + 1);
        // If a descriptor was freed meanwhile, the bound stays where that has set it.
        let _ = self.bound.compare_exchange(seen, raised, AcqRel, Relaxed);
        Ok(fd)
    }

    fn all(&self) -> impl Iterator<Item = (&AtomicU32, u32)> {
        let slots = self.slots.iter().map(|slot| (slot, slot.load(Relaxed)));
        slots.filter(|(_, fd)| *fd != 0)
    }
}

/// A descriptor without a table entry. It is given back when this is dropped.
pub(crate) struct NewFd<'p> {
    allocator: &'p FdAllocator,
    fd: i32,
}

impl NewFd<'_> {
    /// Returns the descriptor, which the caller has to enter or give back.
    pub fn into_fd(self) -> i32 {
        let fd = self.fd;
        std::mem::forget(self);
        fd
    }
}

impl Drop for NewFd<'_> {
    fn drop(&mut self) {
        let _ = self.allocator.give_fd(&self.allocator.table().lock_table(), self.fd);
    }
}

impl FdAllocator {
    /// Takes the lowest free descriptor, as a duplicate of a mount's placeholder: a parked one, or
    /// one from the kernel. `Kernel` if it is beyond our table.
    pub(crate) fn take_fd(
        &self,
        table: &TableLock<'_>,
        (index, mount): (usize, &ServedMount),
        cloexec: bool,
    ) -> CallResult<NewFd<'_>> {
        let wanted = record(index, cloexec);
        let fd = match self.take_parked(table) {
            Some(fd) => {
                let new = NewFd { allocator: self, fd };
                if self.fd_record(fd) != wanted
                    && let Err(errno) = self.task().kernel.dup3(mount.placeholder(), fd, cloexec)
                {
                    let _ = self.close_fd(new.into_fd());
                    return Err(errno.into());
                }
                new.into_fd()
            }
            None => {
                self.parked.raise(|| self.task().kernel.dup(mount.placeholder(), 0, cloexec))?
            }
        };
        if self.table().entry(fd).is_none() {
            let _ = self.close_fd(fd);
            return Err(CallStop::Kernel);
        }
        self.set_fd_record(fd, wanted);
        Ok(NewFd { allocator: self, fd })
    }

    /// Takes the lowest parked descriptor if it is the lowest free one. Otherwise closes all parked
    /// ones (parked-N2).
    fn take_parked(&self, table: &TableLock<'_>) -> Option<i32> {
        let parked = &self.parked;
        if parked.count.load(Relaxed) == 0 {
            return None;
        }
        let (slot, fd) = parked.all().min_by_key(|(_, fd)| *fd)?;
        if fd >= parked.bound() {
            self.unpark_all(table);
            return None;
        }
        slot.store(0, Relaxed);
        parked.count.store(parked.count.load(Relaxed) - 1, Relaxed);
        self.table().entry(fd as i32)?.store(0, Release);
        Some(fd as i32)
    }

    /// Parks a descriptor whose entry has been emptied, or closes it.
    pub(crate) fn give_fd(&self, table: &TableLock<'_>, fd: i32) -> Result<(), Errno> {
        if self.park(table, fd) { Ok(()) } else { self.close_fd(fd) }
    }

    /// Parks a descriptor. `false` if it is not a placeholder below the bound (parked-N2), or there
    /// is no slot.
    fn park(&self, _table: &TableLock<'_>, fd: i32) -> bool {
        let parked = &self.parked;
        let is_placeholder = self.fd_record(fd) & KNOWN != 0;
        if fd <= 2 || fd as u32 >= parked.bound() || !is_placeholder {
            return false;
        }
        let Some(free) = parked.slots.iter().find(|slot| slot.load(Relaxed) == 0) else {
            return false;
        };
        let Some(entry) = self.table().entry(fd) else { return false };
        entry.store(PARKED, Release);
        free.store(fd as u32, Relaxed);
        parked.count.store(parked.count.load(Relaxed) + 1, Relaxed);
        true
    }

    /// Closes a descriptor in the kernel.
    pub(crate) fn close_fd(&self, fd: i32) -> Result<(), Errno> {
        self.set_fd_record(fd, 0);
        let closed = self.task().kernel.close(fd);
        self.parked.freed(fd);
        closed
    }

    /// Whether any descriptor is parked: one load.
    #[inline]
    pub fn has_parked(&self) -> bool {
        self.parked.count.load(Relaxed) != 0
    }

    /// Closes all parked descriptors (parked-N4), before the kernel gives the program one.
    #[inline]
    pub fn unpark(&self) {
        if self.has_parked() {
            self.unpark_all(&self.table().lock_table());
        }
    }

    /// [`unpark`](Self::unpark) with the table locked.
    #[cold]
    pub(crate) fn unpark_all(&self, _table: &TableLock<'_>) {
        for (slot, fd) in self.parked.all() {
            slot.store(0, Relaxed);
            if let Some(entry) = self.table().entry(fd as i32) {
                entry.store(0, Release);
            }
            let _ = self.close_fd(fd as i32);
        }
        self.parked.count.store(0, Relaxed);
    }

    /// Notes that the kernel has closed a descriptor, or several from `fd` on, by a call that was
    /// not made here.
    pub fn fd_freed(&self, fd: i32) {
        if fd >= 0 {
            self.parked.freed(fd);
        }
    }

    /// Notes that a descriptor has another close-on-exec flag, or has become a duplicate of `from`.
    pub(crate) fn copy_fd_record(&self, from: i32, to: i32, cloexec: bool) {
        let place = self.fd_record(from) & !CLOEXEC;
        self.set_fd_record(to, if cloexec { place | CLOEXEC } else { place });
    }

    /// Clears the records of the descriptors in a range, which then cannot be parked.
    pub(crate) fn forget_fd_records(&self, range: std::ops::Range<i32>) {
        range.for_each(|fd| self.set_fd_record(fd, 0));
    }

    fn fd_record(&self, fd: i32) -> u8 {
        self.table().segment().descriptors.get(fd as usize).map_or(0, |record| record.load(Relaxed))
    }

    fn set_fd_record(&self, fd: i32, to: u8) {
        if let Some(record) = self.table().segment().descriptors.get(fd as usize) {
            record.store(to, Relaxed);
        }
    }
}

const _: () = assert!(crate::mount::MOUNTS <= 1 << 6 && FDS <= 1 << 31);
