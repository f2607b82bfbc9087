//! Memory that is gone while it is mapped: its file was truncated, or it is broken.
//!
//! The kernel raises SIGBUS in whoever touches it. So that nobody need end by that:
//!
//! - lost-G1: a handler of SIGBUS calls [`handle_fault`]. It notes that the region is lost, and then maps private zeros in
//!   the place of what is gone.
//! - lost-G2: whoever accesses what is gone, then or later, reads zeros and stores to nowhere. So what an operation has read
//!   counts only if the region is not lost ([`Medium::is_lost`](crate::Medium::is_lost)) afterwards.
//!   What a truncation cut off the last page reads as zeros, too, but nobody is told.
//! - lost-G3: a region that is lost stays so, also when it should grow.

#![allow(unsafe_code)]

use os::mapped::{ENTRIES, Entry, Table};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::*};

const PAGE: u64 = 4096;

/// Regions that are mapped, and whether each is lost.
static MAPPED: Table<AtomicBool> =
    Table::new([const { Entry::new(AtomicBool::new(false)) }; ENTRIES]);

/// Whether any region of this process has ever been lost: what operations ask, without following a pointer.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// As long as it lives, [`handle_fault`] knows of a region.
#[derive(Debug)]
pub(crate) struct Watch(&'static Entry<AtomicBool>);

impl Watch {
    /// Of the `len` bytes at `base`, which are mapped from a file. `None` where too many are watched.
    pub(crate) fn begin(base: *mut u8, len: u64, file: &OwnedFd) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        let (range, id) = (base.addr()..base.addr() + len as usize, (stat.st_dev, stat.st_ino));
        MAPPED.begin(range, file.as_fd(), id, |is_lost| is_lost.store(false, Relaxed)).map(Self)
    }

    #[inline]
    pub(crate) fn is_lost(watch: Option<&Self>) -> bool {
        ANY_LOST.load(Acquire) && watch.is_some_and(|watch| watch.0.more.load(Acquire))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Whether a region is mapped there.
pub fn is_mapped(address: usize) -> bool {
    MAPPED.find(address).is_some()
}

/// To be called in a handler of SIGBUS with the address that was touched: whether that was in a region, and zeros
/// are there now (lost-G1), so that the instruction can be executed again. Makes system calls only.
pub fn handle_fault(address: usize) -> bool {
    let Some(region) = MAPPED.find(address) else { return false };
    let (base, len) = (region.range().start, region.range().len() as u64);
    let page = (address - base) as u64 / PAGE * PAGE;
    let size = region.file().map_or(u64::MAX, |(_, size)| size);
    // The file ends before this page; or the page is broken.
    let gone =
        if size <= page { size.next_multiple_of(PAGE)..len } else { page..(page + PAGE).min(len) };
    region.more.store(true, Release);
    ANY_LOST.store(true, Release);
    let zeros = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = (base + gone.start as usize) as *mut c_void;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: within the region's mapping, which goes as a whole. Only raw accesses go to it (region-I3 of `region`).
    unsafe {
        rustix::mm::mmap_anonymous(start, (gone.end - gone.start) as usize, prot, zeros).is_ok()
    }
}
