//! Room in the tmpfs that shared arenas lie in.
//!
//! An arena is sparse: its pages are taken as they are touched, and the kernel raises SIGBUS where it has none
//! (a container's `/dev/shm` has 64 MiB). Reserving all of it would take a thousand times what is used. So:
//!
//! - room-O1: who builds an arena also takes a *reserve*, behind its tables, or fails.
//! - room-O2: who touches a page that cannot be had gives the reserve back, takes the page and goes on
//!   ([`handle_fault`], in a handler of SIGBUS). From then on the arena is [short](Arena::is_short): nothing is
//!   made that would take more, and nobody else may attach.
//!   Who is still building the arena, and so is alone with it, gets private memory instead and goes on: in the end it
//!   is told, and fails ([`was_short`]).
//! - room-O3: whoever stays takes a reserve again as soon as there is room ([`Arena::take_reserve`]).
//! - room-O4: if the file has been truncated, private zeros take the place of all of it, and the gate is closed for good
//!   ([`LOST`]): operations fail with `EIO`, and no process ends by the signal.

#![allow(unsafe_code)]

use crate::attach::Located;
use crate::session::{LOST, Session};
use crate::{Arena, Kind};
use os::mapped::{ENTRIES, Entry, Table};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

/// Bytes of the reserve (room-O1): pages for what is not asked about beforehand.
pub(crate) const RESERVE: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// What a handler of SIGBUS has to know of an arena that is mapped.
struct Known {
    /// In the header: whether it is short (room-O2).
    short: AtomicPtr<AtomicU32>,
    /// In the header: the gate, which is closed for good once memory is gone (room-O4).
    gate: AtomicPtr<AtomicU32>,
    /// Whether it is being built.
    building: AtomicBool,
    /// Whether private memory has taken the place of the file's (room-O2).
    is_private: AtomicBool,
}

static MAPPED: Table<Known> = Table::new(
    [const {
        Entry::new(Known {
            short: AtomicPtr::new(std::ptr::null_mut()),
            gate: AtomicPtr::new(std::ptr::null_mut()),
            building: AtomicBool::new(false),
            is_private: AtomicBool::new(false),
        })
    }; ENTRIES],
);

/// Whether memory of any arena of this process is gone: what operations ask, without following a pointer.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// See [`ANY_LOST`].
#[inline]
pub(crate) fn is_any_lost() -> bool {
    ANY_LOST.load(Acquire)
}

/// Lets [`handle_fault`] know of a session. One for which there is no place does without.
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

/// Before the memory at `base` is unmapped.
pub(crate) fn unwatch(base: usize) {
    if let Some(arena) = MAPPED.find(base) {
        arena.end();
    }
}

/// Whether a shared arena is mapped there.
pub fn is_mapped(address: usize) -> bool {
    MAPPED.find(address).is_some()
}

/// The arena at `base` has been built: whether there was no room for all of it.
pub(crate) fn was_short(base: usize) -> bool {
    MAPPED.find(base).is_some_and(|arena| {
        // What is of no use needs memory until it is dropped.
        let was_short = arena.more.is_private.load(Relaxed);
        arena.more.building.store(was_short, Relaxed);
        was_short
    })
}

/// To be called in a handler of SIGBUS with the address that was touched: whether that was in an arena, and the
/// page is there now (room-O2, room-O4), so that the instruction can be executed again. Makes system calls only.
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

/// Has private zeros take the place of the whole arena, and marks it as lost, here and for others (room-O4). A second thread may
/// replace what another has just stored: what is read from now on counts for nothing.
fn lose(arena: &Entry<Known>, file: Option<BorrowedFd<'_>>) -> bool {
    let gate = arena.more.gate.load(Relaxed);
    if let Some(file) = file {
        mark(arena, file, gate.addr(), LOST);
    }
    let (base, len) = (arena.range().start, arena.range().len());
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the pages of the arena, which is unmapped as a whole and reached by atomics only.
    let is_there = unsafe { mm::mmap_anonymous(base as *mut _, len, prot, flags).is_ok() };
    ANY_LOST.store(true, Release);
    if is_there {
        // SAFETY: in the header of the arena, in whose place zeros are mapped.
        unsafe { (*gate).store(LOST, Release) };
    }
    is_there
}

/// Stores a word of the header that is mapped at `address`, by a system call: a store would end the process if that page is gone,
/// too, as the signal is blocked here.
fn mark(arena: &Entry<Known>, file: BorrowedFd<'_>, address: usize, word: u32) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    // Below that the call would raise a signal of its own.
    if limit.is_none_or(|limit| limit >= PAGE) {
        let _ =
            rustix::io::pwrite(file, &word.to_ne_bytes(), (address - arena.range().start) as u64);
    }
}

/// Has private memory take the place of a hole of the file, from `page` on, if nobody else has the arena yet (room-O2).
fn take_private(arena: &Entry<Known>, file: BorrowedFd<'_>, page: u64) -> bool {
    if !arena.more.building.load(Relaxed) {
        return false;
    }
    // Another thread may have done so since this one met the fault: what that has stored must stay.
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
    // SAFETY: pages of the arena, which is unmapped as a whole. They are replaced where the file has none, and no room
    // for one: they are still all zeros.
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

/// Takes the reserve of an arena of `len` bytes (room-O1).
pub(crate) fn take_reserve(file: BorrowedFd<'_>, len: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, reserve_at(len), RESERVE)
}

impl Arena {
    /// Whether there was no room for more (room-O2): for those who are about to make something.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.session().is_some_and(|s| s.header().short.load(Relaxed) != 0)
    }

    /// To be called now and then by somebody who stays (room-O3).
    pub fn take_reserve(&self) {
        let Kind::Shared(session, at) = &self.kind else { return };
        if self.is_short() && self.try_reserve(session, at).is_ok() {
            session.header().short.store(0, Release);
        }
    }

    fn try_reserve(&self, session: &Session, at: &Located) -> std::io::Result<()> {
        at.with_file(session, |file| take_reserve(file, self.view.len() as u64))
    }
}
