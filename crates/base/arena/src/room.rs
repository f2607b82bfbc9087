//! Space in the tmpfs in which shared arenas lie.
//!
//! An arena is sparse: the kernel allocates a page when it is touched, and raises SIGBUS if the
//! tmpfs is full (a container's `/dev/shm` has 64 MiB). Reserving the whole arena would take a
//! thousand times the memory in use. So:
//!
//! - room-O1: the process that builds an arena also allocates a *reserve* behind its tables, or
//!   fails.
//! - room-O2: a thread that touches a page that cannot be allocated frees the reserve, allocates
//!   the page and goes on ([`handle_fault`], in a handler of SIGBUS). From then on the arena is
//!   [short](Arena::is_short): no operation makes anything that takes more memory, and no other
//!   process may attach. A process that is still building the arena, and so is its only user, gets
//!   private memory instead and goes on. When it has finished, it finds that out and fails
//!   ([`was_short`]).
//! - room-O3: processes that stay attached allocate a reserve again as soon as there is room
//!   ([`Arena::take_reserve`]).
//! - room-O4: if the file has been truncated, private zeros replace the whole arena, and the gate
//!   is closed for good ([`LOST`]): operations fail with `EIO`, and no process ends by the signal.

#![allow(unsafe_code)]

use crate::attach::Located;
use crate::session::{LOST, Session};
use crate::{Arena, ArenaKind};
use os::mapped::{ENTRIES, Entry, Table};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

/// Bytes of the reserve (room-O1), for pages that operations touch without a check beforehand.
pub(crate) const RESERVE: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// A mapped arena, as the handler of SIGBUS needs it.
struct RoomKnown {
    /// The word of the header that is 1 if the arena is short (room-O2).
    short: AtomicPtr<AtomicU32>,
    /// The gate in the header, which is closed for good once memory is gone (room-O4).
    gate: AtomicPtr<AtomicU32>,
    /// Whether the arena is being built.
    building: AtomicBool,
    /// Whether private memory has taken the place of the file's (room-O2).
    is_private: AtomicBool,
}

static MAPPED: Table<RoomKnown> = Table::new(
    [const {
        Entry::new(RoomKnown {
            short: AtomicPtr::new(std::ptr::null_mut()),
            gate: AtomicPtr::new(std::ptr::null_mut()),
            building: AtomicBool::new(false),
            is_private: AtomicBool::new(false),
        })
    }; ENTRIES],
);

/// Whether memory of any arena of this process is gone. Operations check that without following a
/// pointer.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// See [`ANY_LOST`].
#[inline]
pub(crate) fn is_any_lost() -> bool {
    ANY_LOST.load(Acquire)
}

/// Registers a session with [`handle_fault`]. If the table is full, the session is not registered.
pub(crate) fn watch(session: &Session, building: bool) {
    let view = session.memory().view();
    let range = view.address()..view.address() + view.len();
    MAPPED.begin(range, session.file.as_fd(), session.id, |known| {
        known.building.store(building, Relaxed);
        known.is_private.store(false, Relaxed);
        let header = session.header();
        known.short.store(std::ptr::from_ref(&header.short).cast_mut(), Relaxed);
        known.gate.store(std::ptr::from_ref(&header.gate).cast_mut(), Relaxed);
    });
}

/// Removes the arena at `base` from the table, before it is unmapped.
pub(crate) fn unwatch(base: usize) {
    if let Some(arena) = MAPPED.find(base) {
        arena.end();
    }
}

/// Whether a shared arena is mapped at this address.
pub fn is_mapped(address: usize) -> bool {
    MAPPED.find(address).is_some()
}

/// Ends the building of the arena at `base`. Returns whether there was no room for all of it.
pub(crate) fn was_short(base: usize) -> bool {
    MAPPED.find(base).is_some_and(|arena| {
        // A failed arena still touches memory until it is dropped, so it counts as being built.
        let was_short = arena.more.is_private.load(Relaxed);
        arena.more.building.store(was_short, Relaxed);
        was_short
    })
}

/// Handles a SIGBUS at an address. Returns whether it was in an arena and the page exists now
/// (room-O2, room-O4), so that the instruction can be executed again. Makes system calls only.
pub fn handle_fault(address: usize) -> bool {
    let Some(arena) = MAPPED.find(address) else { return false };
    let (base, len) = (arena.range().start, arena.range().len() as u64);
    let page = (address - base) as u64 / PAGE * PAGE;
    let file = match arena.file() {
        Some((file, size)) if size >= len => file,
        Some((file, _)) => return lose(arena, Some(file)),
        // A program has closed the descriptor.
        None => return lose(arena, None),
    };
    let take = || rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, page, PAGE).is_ok();
    if take() {
        return true;
    }
    mark(arena, file, arena.more.short.load(Relaxed).addr(), 1);
    let give = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let given = rustix::fs::fallocate(file, give, reserve_at(len), RESERVE);
    given.is_ok() && take() || take_private(arena, file, page) || lose(arena, Some(file))
}

/// Replaces the whole arena by private zeros, and marks it as lost for this process and others
/// (room-O4). A second thread may erase what another has just stored: operations discard what they
/// read from now on.
fn lose(arena: &Entry<RoomKnown>, file: Option<BorrowedFd<'_>>) -> bool {
    let gate = arena.more.gate.load(Relaxed);
    if let Some(file) = file {
        mark(arena, file, gate.addr(), LOST);
    }
    let (base, len) = (arena.range().start, arena.range().len());
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the pages of the arena, which is unmapped as a whole and accessed by atomics only.
    let is_there = unsafe { mm::mmap_anonymous(base as *mut _, len, prot, flags).is_ok() };
    ANY_LOST.store(true, Release);
    if is_there {
        // SAFETY: in the header of the arena, in whose place zeros are mapped.
        unsafe { (*gate).store(LOST, Release) };
    }
    is_there
}

/// Writes the word of the header that is mapped at `address` by a system call. If its page is gone,
/// too, a store would end the process, as the signal is blocked here.
fn mark(arena: &Entry<RoomKnown>, file: BorrowedFd<'_>, address: usize, word: u32) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    // Below that limit the call would raise SIGXFSZ.
    if limit.is_none_or(|limit| limit >= PAGE) {
        let _ =
            rustix::io::pwrite(file, &word.to_ne_bytes(), (address - arena.range().start) as u64);
    }
}

/// Replaces a hole of the file, from `page` on, by private memory, if no other process has the
/// arena yet (room-O2).
fn take_private(arena: &Entry<RoomKnown>, file: BorrowedFd<'_>, page: u64) -> bool {
    if !arena.more.building.load(Relaxed) {
        return false;
    }
    // Another thread may have replaced it since this one had the fault: its stores must stay.
    static BUSY: AtomicBool = AtomicBool::new(false);
    while BUSY.swap(true, Acquire) {
        std::hint::spin_loop();
    }
    let (base, len) = (arena.range().start, arena.range().len() as u64);
    let end = match rustix::fs::seek(file, SeekFrom::Data(page)) {
        Ok(data) => data.min(len),
        Err(_) => len,
    };
    let at = (base + page as usize) as *mut std::ffi::c_void;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    arena.more.is_private.store(true, Relaxed);
    // SAFETY: pages of the arena, which is unmapped as a whole. They are replaced only in a hole of
    // the file that has no room for a page: they are still all zeros.
    let is_there = unsafe {
        mm::madvise(at, PAGE as usize, Advice::LinuxPopulateWrite).is_ok()
            || mm::mmap_anonymous(at, (end - page) as usize, prot, flags).is_ok()
    };
    BUSY.store(false, Release);
    is_there
}

fn reserve_at(len: u64) -> u64 {
    len.next_multiple_of(PAGE)
}

/// Allocates the reserve of an arena of `len` bytes (room-O1).
pub(crate) fn take_reserve(file: BorrowedFd<'_>, len: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, reserve_at(len), RESERVE)
}

impl Arena {
    /// Whether the tmpfs had no room for more (room-O2). Operations that make something check it
    /// first.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.session().is_some_and(|s| s.header().short.load(Relaxed) != 0)
    }

    /// Allocates the reserve again, if the arena is short and there is room. A process that stays
    /// attached calls it from time to time (room-O3).
    pub fn take_reserve(&self) {
        let ArenaKind::Shared(session, at) = &self.kind else { return };
        if self.is_short() && self.try_reserve(session, at).is_ok() {
            session.header().short.store(0, Release);
        }
    }

    fn try_reserve(&self, session: &Session, at: &Located) -> std::io::Result<()> {
        at.with_file(session, |file| take_reserve(file, self.view.len() as u64))
    }
}
