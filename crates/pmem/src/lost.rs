//! Memory that is gone while it is mapped: its file was truncated, or it is broken.
//!
//! The kernel raises SIGBUS in whoever touches it. So that nobody need end by that:
//!
//! - G1: a handler of SIGBUS calls [`handle_fault`]. It notes that the region is lost, and then maps private zeros in
//!   the place of what is gone.
//! - G2: whoever accesses what is gone, then or later, reads zeros and stores to nowhere. So what an operation has read
//!   counts only if the region is not lost ([`Medium::is_lost`](crate::Medium::is_lost)) afterwards.
//!   What a truncation cut off the last page reads as zeros, too, but nobody is told.
//! - G3: a region that is lost stays so, also when it should grow.

use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

const PAGE: u64 = 4096;

/// What a handler of SIGBUS has to know of a region that is mapped.
struct Mapped {
    /// 0: nothing.
    base: AtomicUsize,
    len: AtomicUsize,
    file: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    is_lost: AtomicBool,
}

static MAPPED: [Mapped; 64] = [const {
    Mapped {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        file: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        is_lost: AtomicBool::new(false),
    }
}; 64];

/// A base that is none yet.
const CLAIMED: usize = 1;

/// Whether any region of this process has ever been lost: what operations ask, without following a pointer.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// As long as it lives, [`handle_fault`] knows of a region.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Of the `len` bytes at `base`, which are mapped from a file. `None` where too many are watched.
    pub(crate) fn begin(base: *mut u8, len: u64, file: &OwnedFd) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        let free = |m: &Mapped| m.base.compare_exchange(0, CLAIMED, AcqRel, Relaxed).is_ok();
        let index = MAPPED.iter().position(free)?;
        let m = &MAPPED[index];
        m.len.store(len as usize, Relaxed);
        m.file.store(file.as_raw_fd(), Relaxed);
        m.device.store(stat.st_dev, Relaxed);
        m.inode.store(stat.st_ino, Relaxed);
        m.is_lost.store(false, Relaxed);
        m.base.store(base.addr(), Release);
        Some(Self(index))
    }

    #[inline]
    pub(crate) fn is_lost(watch: Option<&Self>) -> bool {
        ANY_LOST.load(Acquire) && watch.is_some_and(|w| MAPPED[w.0].is_lost.load(Acquire))
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
    // The file ends before this page; or the page is broken.
    let gone =
        if size <= page { size.next_multiple_of(PAGE)..len } else { page..(page + PAGE).min(len) };
    m.is_lost.store(true, Release);
    ANY_LOST.store(true, Release);
    let zeros = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = (base + gone.start as usize) as *mut c_void;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: within the region's mapping, which goes as a whole. Only raw accesses go to it (I3 of `region`).
    unsafe {
        rustix::mm::mmap_anonymous(start, (gone.end - gone.start) as usize, prot, zeros).is_ok()
    }
}
