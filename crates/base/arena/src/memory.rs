//! The memory of an arena: mapped, zeroed, and accessed through spans only.

#![allow(unsafe_code)]

use crate::{Shared, Span};
use rustix::fd::OwnedFd;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// The size in bytes from which on an arena asks for huge pages. In smaller ones, clearing huge
/// pages would cost more than they save.
const HUGE_FROM: usize = 64 << 20;
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Address and length of a [`Memory`]. The holder of a view must keep the memory, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: memory hands out only `&T` where `T: Shared`, which is `Send + Sync`.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Returns the address.
    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Replaces the small pages that hold part of `bytes` by huge pages, if any are free and the
    /// kernel can (Linux 6.1). Processors then have fewer translations of addresses to look up.
    ///
    /// # Safety
    /// The memory is mapped.
    pub(crate) unsafe fn collapse(&self, bytes: Range<usize>) {
        let end = bytes.end.next_multiple_of(HUGE_PAGE).min(self.len - self.len % HUGE_PAGE);
        for at in (bytes.start - bytes.start % HUGE_PAGE..end).step_by(HUGE_PAGE) {
            // SAFETY: inside the mapping (the caller); neither call changes what the memory holds.
            unsafe {
                let at = self.base.as_ptr().add(at).cast();
                // At least one small page must exist for the kernel to replace.
                let _ = mm::madvise(at, rustix::param::page_size(), Advice::LinuxPopulateRead);
                libc::madvise(at, HUGE_PAGE, libc::MADV_COLLAPSE);
            }
        }
    }

    /// Returns the table at `span`.
    ///
    /// # Safety
    /// 1. The memory stays mapped while the table is borrowed.
    /// 2. The span was planned for this memory.
    #[inline]
    pub(crate) unsafe fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        debug_assert!(span.offset + span.len * size_of::<T>() <= self.len);
        // SAFETY: `Layout` placed the span inside the memory's length (2), aligned for `T`; the
        // memory is initialised to zero, which `Shared` 2 makes valid, and is only ever reached
        // through `&T` of `Shared` 1. It stays mapped (1).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(span.offset).cast(), span.len) }
    }
}

/// Prefetches the line of a value into the cache; a hint to the CPU.
#[inline]
pub(crate) fn prefetch<T: Shared>(value: &T) {
    // SAFETY: a prefetch cannot fault, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
}

/// Zeroed memory, mapped until dropped, that is committed page by page as it is touched.
#[derive(Debug)]
pub(crate) struct Memory(View);

impl Memory {
    /// Maps private memory.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Self::without_file(len, MapFlags::PRIVATE)
    }

    /// Maps memory that a process shares with its forked children.
    pub(crate) fn inherited(len: usize) -> io::Result<Self> {
        Self::without_file(len, MapFlags::SHARED)
    }

    /// Maps anonymous memory that is allocated at first use; rounds `len` up to whole huge pages.
    fn without_file(len: usize, flags: MapFlags) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(HUGE_PAGE);
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags | MapFlags::NORESERVE,
            )?
        };
        if len >= HUGE_FROM {
            // SAFETY: the range was mapped just above. Huge pages are a hint: failure changes
            // nothing.
            let _ = unsafe { mm::madvise(base, len, Advice::LinuxHugepage) };
        }
        Ok(Self::mapped(base, len))
    }

    /// Maps the first `len` bytes of a file, shared with other processes that map it. The address
    /// is aligned for huge pages.
    pub(crate) fn file(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let total = len + HUGE_PAGE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing. The file is
        // mapped into it, and the parts before and behind are unmapped. Others store to the file by
        // atomics only, as we do.
        unsafe {
            let room =
                mm::mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::empty(), reserve)?;
            let head = room.addr().wrapping_neg() % HUGE_PAGE;
            let base = room.wrapping_byte_add(head);
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            let mapped = mm::mmap(base, len, prot, flags, file, 0);
            let end = head + len.next_multiple_of(rustix::param::page_size());
            let spare = match mapped {
                Ok(_) => [0..head, end..total],
                Err(_) => [0..total, 0..0],
            };
            for range in spare.into_iter().filter(|range| !range.is_empty()) {
                mm::munmap(room.wrapping_byte_add(range.start), range.len())?;
            }
            Ok(Self::mapped(mapped?, len))
        }
    }

    fn mapped(base: *mut std::ffi::c_void, len: usize) -> Self {
        let base = NonNull::new(base.cast()).expect("mmap returns no null mapping");
        Self(View { base, len })
    }

    pub(crate) fn view(&self) -> View {
        self.0
    }

    #[inline]
    pub(crate) fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        // SAFETY: 1: `self` is borrowed. 2: spans have no source but the layout of the memory.
        unsafe { self.0.table(span) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made at construction; no slice outlives `self`.
        let _ = unsafe { mm::munmap(self.0.base.as_ptr().cast(), self.0.len) };
    }
}
