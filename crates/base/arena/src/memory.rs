//! The memory of an arena: mapped, zeroed, and reached by spans only.

#![allow(unsafe_code)]

use crate::{Shared, Span};
use rustix::fd::OwnedFd;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Arenas from this size on ask for huge pages; in smaller ones clearing them would cost more.
const HUGE_FROM: usize = 64 << 20;
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Where a memory is. Whoever keeps one keeps the [`Memory`] too.
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
    /// Where it is.
    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has huge pages take the place of small ones wherever part of `bytes` lies, as far as there are any and
    /// the kernel knows how (Linux 6.1); so processors need not look up where many small pages are.
    ///
    /// # Safety
    /// The memory is mapped.
    pub(crate) unsafe fn collapse(&self, bytes: Range<usize>) {
        let end = bytes.end.next_multiple_of(HUGE_PAGE).min(self.len - self.len % HUGE_PAGE);
        for at in (bytes.start - bytes.start % HUGE_PAGE..end).step_by(HUGE_PAGE) {
            // SAFETY: inside the mapping (the caller); neither call changes what the memory holds.
            unsafe {
                let at = self.base.as_ptr().add(at).cast();
                // One small page must be there to be replaced.
                let _ = mm::madvise(at, rustix::param::page_size(), Advice::LinuxPopulateRead);
                libc::madvise(at, HUGE_PAGE, libc::MADV_COLLAPSE);
            }
        }
    }

    /// The table at `span`.
    ///
    /// # Safety
    /// 1. The memory stays mapped while the table is borrowed.
    /// 2. The span was planned for this memory.
    #[inline]
    pub(crate) unsafe fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        debug_assert!(span.offset + span.len * size_of::<T>() <= self.len);
        // SAFETY: `Layout` placed the span inside the memory's length (2), aligned for `T`; the memory
        // is initialised to zero, which `Shared` 2 makes valid, and is only ever reached through `&T`
        // of `Shared` 1. It stays mapped (1).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(span.offset).cast(), span.len) }
    }
}

/// Brings the line of a value into the cache, if the CPU has nothing better to do.
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
    /// Private memory.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Self::without_file(len, MapFlags::PRIVATE)
    }

    /// Memory that a process shares with those it forks.
    pub(crate) fn inherited(len: usize) -> io::Result<Self> {
        Self::without_file(len, MapFlags::SHARED)
    }

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
            // SAFETY: the range was mapped just above. Huge pages are a hint: failure changes nothing.
            let _ = unsafe { mm::madvise(base, len, Advice::LinuxHugepage) };
        }
        Ok(Self::mapped(base, len))
    }

    /// The first `len` bytes of a file, shared with whoever maps it. They lie so that huge pages can back
    /// them.
    pub(crate) fn file(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let total = len + HUGE_PAGE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing. The file is mapped
        // into it, and what lies before and behind goes back. Others store to the file by atomics only,
        // as we do.
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
