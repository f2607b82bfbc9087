//! One linear mapping of a region, aligned so that huge pages can back it.

#![allow(unsafe_code)]

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, Result};
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use std::ops::Range;
use std::ptr;

/// Bytes of the huge pages for which mappings are aligned.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;

/// Memory mapped at `addr` and unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: *mut u8,
    /// A multiple of the page size.
    len: usize,
    flags: MapFlags,
}

// SAFETY: the mapping belongs to this value alone; it is memory, bound to no thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access yields only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps anonymous, zeroed, private memory of `len` bytes.
    pub(crate) fn anonymous(len: u64, flags: MapFlags) -> Result<Self> {
        Self::place(len, HUGE_PAGE, flags, |addr, len| {
            // SAFETY: `place` passes a range that it has reserved.
            unsafe {
                let flags = flags | MapFlags::PRIVATE | MapFlags::FIXED;
                mm::mmap_anonymous(addr.cast(), len, rw(true), flags).map(|_| ())
            }
        })
    }

    /// Maps the first `len` bytes of a file or device, rounded up to `page`: the size of its pages,
    /// a power of two.
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        len: u64,
        page: u64,
        writable: bool,
        flags: MapFlags,
    ) -> Result<Self> {
        let len = len.checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        Self::place(len, page.max(HUGE_PAGE), flags, |addr, len| {
            // SAFETY: `place` passes a range that it has reserved.
            unsafe {
                mm::mmap(addr.cast(), len, rw(writable), flags | MapFlags::FIXED, fd, 0).map(|_| ())
            }
        })
    }

    /// Reserves `len` bytes at a multiple of `align`, calls `map` for them, and unmaps the rest of
    /// the reservation.
    fn place(
        len: u64,
        align: u64,
        flags: MapFlags,
        map: impl FnOnce(*mut u8, usize) -> Result<()>,
    ) -> Result<Self> {
        let page = rustix::param::page_size();
        let to_usize = |n: u64| usize::try_from(n).map_err(|_| Errno::NOMEM);
        let align = to_usize(align)?;
        let len = to_usize(len)?.checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        // A mapping shorter than a huge page does not profit from the alignment. If the kernel
        // demands it, the length is a multiple of it.
        let slack = if len < align { 0 } else { align };
        let total = len.checked_add(slack).ok_or(Errno::NOMEM)?;
        // SAFETY: the kernel chooses a free range.
        let reserved = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mm::mmap_anonymous(ptr::null_mut(), total, ProtFlags::empty(), flags)?
        }
        .cast::<u8>();
        let head = if slack == 0 { 0 } else { reserved.addr().wrapping_neg() % align };
        let addr = reserved.wrapping_add(head);
        let mapped = map(addr, len);
        // Unmap the slack, or on failure everything.
        let whole = mapped.is_err();
        let spare =
            if whole { [(0, total), (0, 0)] } else { [(0, head), (head + len, slack - head)] };
        for (at, n) in spare {
            if n > 0 {
                // SAFETY: within the reservation, which no other code knows, and not in use.
                unsafe { mm::munmap(reserved.wrapping_add(at).cast(), n)? };
            }
        }
        mapped.map(|()| Mapping { addr, len, flags })
    }

    /// Returns the address of the first byte.
    pub(crate) fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Returns the flags of `mmap`, without those for its address.
    pub(crate) fn flags(&self) -> MapFlags {
        self.flags
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Changes the allowed accesses. The mapping is accessed only by raw pointers, whose users must
    /// know the allowed accesses.
    pub(crate) fn protect(&self, prot: MprotectFlags) -> Result<()> {
        // SAFETY: the range is ours; no reference to it exists that the change could invalidate.
        unsafe { mm::mprotect(self.addr.cast(), self.len, prot) }
    }

    /// Puts the mapping under a protection key.
    pub(crate) fn set_key(&self, key: u32) -> std::io::Result<()> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: as above.
        let done =
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, self.addr, self.len, prot, key) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Asks for transparent huge pages; a hint that may fail.
    pub(crate) fn advise_huge(&self) -> Result<()> {
        // SAFETY: the range is ours; the advice does not change its content.
        unsafe { mm::madvise(self.addr.cast(), self.len, mm::Advice::LinuxHugepage) }
    }

    /// Replaces small pages by huge ones in a range of whole huge pages. Small pages stay if no
    /// huge page is free, or if the kernel is older than 6.1. Returns the number of huge pages.
    pub(crate) fn collapse(&self, range: Range<u64>) -> usize {
        let collapse = |at: &u64| {
            let start = self.addr.wrapping_add(*at as usize);
            // SAFETY: the range is ours; the advice does not change its content.
            let done =
                unsafe { libc::madvise(start.cast(), HUGE_PAGE as usize, libc::MADV_COLLAPSE) };
            done == 0
        };
        range.step_by(HUGE_PAGE as usize).filter(collapse).count()
    }

    /// Faults in the pages of the first `len` bytes.
    pub(crate) fn populate(&self, len: u64, writable: bool) -> Result<()> {
        let advice =
            if writable { mm::Advice::LinuxPopulateWrite } else { mm::Advice::LinuxPopulateRead };
        let len = self.len.min(len.next_multiple_of(rustix::param::page_size() as u64) as usize);
        // SAFETY: as above.
        unsafe { mm::madvise(self.addr.cast(), len, advice) }
    }

    /// Faults in the pages of a range for stores. Rounds outwards to pages.
    pub(crate) fn populate_range(&self, range: Range<u64>) -> Result<()> {
        let page = rustix::param::page_size() as u64;
        let start = range.start - range.start % page;
        let end = (range.end.next_multiple_of(page) as usize).min(self.len);
        let at = self.addr.wrapping_add(start as usize).cast();
        // SAFETY: the range lies within the mapping; the advice does not change its content.
        unsafe { mm::madvise(at, end - start as usize, mm::Advice::LinuxPopulateWrite) }
    }

    /// Writes bytes `start..end` back to the file and waits. Rounds outwards to pages.
    pub(crate) fn sync(&self, start: u64, end: u64) -> Result<()> {
        let page = rustix::param::page_size() as u64;
        let start = (start - start % page) as usize;
        let end = (end.next_multiple_of(page) as usize).min(self.len);
        // SAFETY: the range lies within the mapping; msync changes no memory.
        unsafe {
            mm::msync(self.addr.wrapping_add(start).cast(), end - start, mm::MsyncFlags::SYNC)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours and its address is no longer in use.
        let unmapped = unsafe { mm::munmap(self.addr.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

fn rw(writable: bool) -> ProtFlags {
    if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
}
