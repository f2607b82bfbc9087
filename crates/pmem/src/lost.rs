//! Memory that is gone while it is mapped: its file was truncated, or it is broken.
//!
//! The kernel raises SIGBUS in whoever touches it. So that nobody need end by that:
//!
//! - G1: a handler of SIGBUS calls [`handle_fault`]. It maps private zeros in the place of what is gone, and
//!   shortens the region to what is there.
//! - G2: whoever accesses what is gone, then or later, reads zeros, stores to nowhere, and finds out by
//!   [`take_met_loss`]: nothing that a thread did since it asked before counts then.
//!   What a truncation cut off the last page reads as zeros, too, but nobody is told.
//! - G3: a region that has lost something ([`Medium::is_lost`](crate::Medium::is_lost)) gets nothing back: not by
//!   growing either.

use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

const PAGE: u64 = 4096;

/// How far a region can be accessed. It stays where it is as long as the region lives.
#[derive(Debug)]
pub(crate) struct Reach {
    /// While the region is shared this only grows, and never beyond what is mapped, until something is lost (G1).
    pub(crate) len: AtomicU64,
    /// Whether something is (G3).
    pub(crate) lost: AtomicBool,
}

/// What a handler of SIGBUS has to know of a region that is mapped.
struct Mapped {
    /// 0: nothing.
    base: AtomicUsize,
    len: AtomicUsize,
    file: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    reach: AtomicPtr<Reach>,
}

static MAPPED: [Mapped; 64] = [const {
    Mapped {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        file: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        reach: AtomicPtr::new(null_mut()),
    }
}; 64];

/// A base that is none yet.
const CLAIMED: usize = 1;

thread_local! {
    static MET: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has accessed what is gone since it asked last (G2).
pub fn take_met_loss() -> bool {
    MET.replace(false)
}

/// Notes that this thread accesses what is gone.
pub(crate) fn meet() {
    MET.set(true);
}

/// As long as it lives, [`handle_fault`] knows of a region.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Of the `len` bytes at `base`, which are mapped from a file. `None` where too many are watched.
    pub(crate) fn begin(base: *mut u8, len: u64, file: &OwnedFd, reach: &Reach) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        let free = |m: &Mapped| m.base.compare_exchange(0, CLAIMED, AcqRel, Relaxed).is_ok();
        let index = MAPPED.iter().position(free)?;
        let m = &MAPPED[index];
        m.len.store(len as usize, Relaxed);
        m.file.store(file.as_raw_fd(), Relaxed);
        m.device.store(stat.st_dev, Relaxed);
        m.inode.store(stat.st_ino, Relaxed);
        m.reach.store(std::ptr::from_ref(reach).cast_mut(), Relaxed);
        m.base.store(base.addr(), Release);
        Some(Self(index))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        MAPPED[self.0].base.store(0, Release);
    }
}

/// To be called in a handler of SIGBUS with the address that was touched: whether that was in a region, and zeros
/// are there now (G1), so that the instruction can be executed again. Makes system calls only.
pub fn handle_fault(address: usize) -> bool {
    let at = |m: &&Mapped| {
        let base = m.base.load(Acquire);
        base > CLAIMED && (base..base + m.len.load(Relaxed)).contains(&address)
    };
    let Some(m) = MAPPED.iter().find(at) else { return false };
    let (base, len) = (m.base.load(Relaxed), m.len.load(Relaxed) as u64);
    let page = (address - base) as u64 / PAGE * PAGE;
    // SAFETY: it stays open while the region is watched, or is another file's, which is seen next.
    let file = unsafe { BorrowedFd::borrow_raw(m.file.load(Relaxed)) };
    let id = (m.device.load(Relaxed), m.inode.load(Relaxed));
    let size = match rustix::fs::fstat(file) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == id => stat.st_size.cast_unsigned(),
        _ => u64::MAX,
    };
    // The file ends before this page; or the page is broken, and what follows is given up with it.
    let there = size.min(page);
    let gone = there.next_multiple_of(PAGE)..if size <= page { len } else { page + PAGE };
    // SAFETY: the region lives while it is watched, and with it its reach, which does not move.
    let reach = unsafe { &*m.reach.load(Relaxed) };
    reach.len.fetch_min(there, AcqRel);
    reach.lost.store(true, Release);
    meet();
    let zeros = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = (base + gone.start as usize) as *mut c_void;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: within the region's mapping, which goes as a whole. Only raw accesses go to it (I3 of `region`).
    unsafe {
        rustix::mm::mmap_anonymous(start, (gone.end - gone.start) as usize, prot, zeros).is_ok()
    }
}
