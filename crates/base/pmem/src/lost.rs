//! Mapped memory that is gone: its file was truncated, or it is broken.
//!
//! The kernel raises SIGBUS in a thread that touches it. So that this does not end the process:
//!
//! - lost-G1: a handler of SIGBUS calls [`handle_fault`]. It marks the region as lost, and then
//!   maps private zeros in place of the missing memory.
//! - lost-G2: from then on, loads from the missing memory return zeros, and stores to it have no
//!   effect. So an operation may use what it has read only if the region is not lost
//!   ([`Medium::is_lost`](crate::Medium::is_lost)) afterwards. The part of the last page that a
//!   truncation cut off reads as zeros, too, but is not detected.
//! - lost-G3: a lost region stays lost, also when it should grow.

#![allow(unsafe_code)]

use os::mapped::{ENTRIES, Entry, Table};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::*};

const PAGE: u64 = 4096;

/// The mapped regions, and whether each is lost.
static MAPPED: Table<AtomicBool> =
    Table::new([const { Entry::new(AtomicBool::new(false)) }; ENTRIES]);

/// Whether any region of this process has ever been lost. Operations check that without following a
/// pointer.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// The entry of a region in the table of [`handle_fault`], until dropped.
#[derive(Debug)]
pub(crate) struct RegionWatch(&'static Entry<AtomicBool>);

impl RegionWatch {
    /// Registers the `len` bytes at `base`, which are mapped from a file. `None` if the table is
    /// full.
    pub(crate) fn begin(base: *mut u8, len: u64, file: &OwnedFd) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        let (range, id) = (base.addr()..base.addr() + len as usize, (stat.st_dev, stat.st_ino));
        MAPPED.begin(range, file.as_fd(), id, |is_lost| is_lost.store(false, Relaxed)).map(Self)
    }

    /// Returns the descriptor of the mapped file, unless the program has closed it, or has opened
    /// another file with the same number.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file().map(|(file, _)| file)
    }

    #[inline]
    pub(crate) fn is_lost(watch: Option<&Self>) -> bool {
        ANY_LOST.load(Acquire) && watch.is_some_and(|watch| watch.0.more.load(Acquire))
    }
}

impl Drop for RegionWatch {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Whether a region is mapped at this address.
pub fn is_mapped(address: usize) -> bool {
    MAPPED.find(address).is_some()
}

/// Handles a SIGBUS at an address. Returns whether it was in a region and zeros are mapped there
/// now (lost-G1), so that the instruction can be executed again. Makes system calls only.
pub fn handle_fault(address: usize) -> bool {
    let Some(region) = MAPPED.find(address) else { return false };
    let (base, len) = (region.range().start, region.range().len() as u64);
    let page = (address - base) as u64 / PAGE * PAGE;
    let size = region.file().map_or(u64::MAX, |(_, size)| size);
    // Either the file ends before this page, or the page is broken.
    let gone =
        if size <= page { size.next_multiple_of(PAGE)..len } else { page..(page + PAGE).min(len) };
    region.more.store(true, Release);
    ANY_LOST.store(true, Release);
    let zeros = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = (base + gone.start as usize) as *mut c_void;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: within the region's mapping, which is unmapped as a whole. It is accessed only by raw
    // pointers (region-I3 of `region`).
    unsafe {
        rustix::mm::mmap_anonymous(start, (gone.end - gone.start) as usize, prot, zeros).is_ok()
    }
}
