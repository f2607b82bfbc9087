//! Mapped pieces of files: 2 MiB each, and a page more (direct-C1).

#![allow(unsafe_code)]

use crate::file::FileSystemKind;
use crate::slab::Zeroed;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use vfs::Errno;

pub const CHUNK_BYTES: u64 = 2 << 20;
pub const PAGE_BYTES: u64 = 4096;
/// Pages mapped for a chunk: the last one is only loaded from, as the witness of direct-C1.
const PAGES: usize = (CHUNK_BYTES / PAGE_BYTES) as usize + 1;
const MAPPED_BYTES: usize = PAGES * PAGE_BYTES as usize;
/// Chunks of a leaf: 1 GiB of a file.
const LEAF_CHUNKS: usize = 512;
/// Calls on pages that seem to be holes before the kernel is asked about the pages.
const LOOK_AGAIN_AFTER: u32 = 8;
/// Pages around them that are looked at, too.
const LOOK_AROUND: usize = 64;

/// A mapped chunk.
pub struct Chunk {
    base: AtomicPtr<u8>,
    writable: AtomicBool,
    /// Whether it was used since the last search for one to unmap.
    used: AtomicBool,
    /// The description by which it was mapped (direct-E2); 0 if that was closed and left it.
    pub owner: AtomicU32,
    /// The entry that leads here; null for a chunk that is being removed.
    pub entry: AtomicPtr<AtomicUsize>,
    /// The next one that is being removed.
    pub next: AtomicU32,
    /// Number of loans (`buffers`).
    pub lent: AtomicU32,
    misses: AtomicU32,
    /// Pages that may be touched (direct-C3), a bit each.
    present: [AtomicU64; PAGES.div_ceil(64)],
}

// SAFETY: numbers, null pointers and `false`.
unsafe impl Zeroed for Chunk {}

impl Chunk {
    /// Maps a chunk of the file that `fd` refers to.
    pub fn map(
        &self,
        fd: rustix::fd::BorrowedFd<'_>,
        kind: FileSystemKind,
        index: u64,
        writable: bool,
    ) -> Result<(), Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // Stores to DAX must be durable by flushing alone, or the kernel refuses the mapping.
        let flags = match kind {
            FileSystemKind::Dax if writable => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            FileSystemKind::Dax | FileSystemKind::Tmpfs => MapFlags::SHARED,
        };
        let offset = index * CHUNK_BYTES;
        // SAFETY: a new mapping, which only `copy` touches.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), MAPPED_BYTES, prot, flags, fd, offset)?
        };
        self.base.store(base.cast(), Relaxed);
        self.writable.store(writable, Relaxed);
        self.used.store(true, Relaxed);
        self.misses.store(0, Relaxed);
        let present = if kind == FileSystemKind::Tmpfs { 0 } else { u64::MAX };
        self.present.iter().for_each(|word| word.store(present, Relaxed));
        if kind == FileSystemKind::Tmpfs {
            self.look(0, PAGES - 1);
        }
        Ok(())
    }

    /// Unmaps it. After direct-E1, or before another thread knows it.
    pub fn unmap(&self) {
        let base = self.base.swap(std::ptr::null_mut(), Relaxed);
        if !base.is_null() {
            // SAFETY: mapped by `map`; no thread copies from or to it any more.
            let _ = unsafe { rustix::mm::munmap(base.cast(), MAPPED_BYTES) };
        }
    }

    /// Returns its address.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.load(Relaxed)
    }

    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable.load(Relaxed)
    }

    /// Notes a use.
    #[inline]
    pub fn touch(&self) {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Returns whether it was used since the last call.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    pub fn is_mapped(&self) -> bool {
        !self.base().is_null()
    }

    /// Whether the pages of `len` bytes from `at` on, and the one behind, may be touched.
    #[inline]
    pub fn has(&self, at: usize, len: usize) -> bool {
        self.has_pages(at, len + PAGE_BYTES as usize)
    }

    /// Whether the pages of `len` bytes from `at` on may be touched.
    #[inline]
    pub fn has_pages(&self, at: usize, len: usize) -> bool {
        let (first, last) = (at / PAGE_BYTES as usize, (at + len - 1) / PAGE_BYTES as usize);
        let (word, end) = (first / 64, last / 64);
        let head = u64::MAX << (first % 64);
        let tail = u64::MAX >> (63 - last % 64);
        let all = |word: usize, mask: u64| self.present[word].load(Relaxed) & mask == mask;
        if word == end {
            return all(word, head & tail);
        }
        all(word, head) && all(end, tail) && (word + 1..end).all(|word| all(word, u64::MAX))
    }

    /// Notes that the kernel has written there: the pages are allocated.
    pub fn written(&self, at: usize, len: usize) {
        for page in at / PAGE_BYTES as usize..=(at + len - 1) / PAGE_BYTES as usize {
            self.present[page / 64].fetch_or(1 << (page % 64), Relaxed);
        }
    }

    /// Notes that holes may have been made, from a byte on.
    pub fn forget_pages(&self, at: usize) {
        for page in at / PAGE_BYTES as usize..PAGES {
            self.present[page / 64].fetch_and(!(1 << (page % 64)), Relaxed);
        }
    }

    /// Notes that a call needed pages that are not known to be allocated; now and then, looks for
    /// them.
    #[cold]
    pub fn missed(&self, at: usize, len: usize) {
        if self.misses.fetch_add(1, Relaxed) % LOOK_AGAIN_AFTER == LOOK_AGAIN_AFTER - 1 {
            self.look_at(at, len);
        }
    }

    /// Looks which pages are allocated, in a range and around it.
    pub fn look_at(&self, at: usize, len: usize) {
        let (first, last) = (at / PAGE_BYTES as usize, (at + len) / PAGE_BYTES as usize);
        self.look(first.saturating_sub(LOOK_AROUND), (last + LOOK_AROUND).min(PAGES - 1));
    }

    /// Whether an address lies in it.
    pub fn holds(&self, address: usize) -> bool {
        let base = self.base().addr();
        base != 0 && (base..base + CHUNK_BYTES as usize).contains(&address)
    }

    /// Asks the kernel which pages are in memory: in tmpfs, those are allocated.
    fn look(&self, first: usize, last: usize) {
        let mut resident = [0u8; PAGES];
        let at = self.base().addr() + first * PAGE_BYTES as usize;
        let pages = last - first + 1;
        let args = [at, pages * PAGE_BYTES as usize, resident.as_mut_ptr().addr(), 0, 0];
        // SAFETY: 1: mapped, with a byte for each page; 2: it takes nothing away.
        if unsafe { os::syscalls::syscall(libc::SYS_mincore, args) }.is_err() {
            return;
        }
        for (page, _) in (first..=last).zip(&resident).filter(|(_, byte)| **byte & 1 == 1) {
            self.present[page / 64].fetch_or(1 << (page % 64), Relaxed);
        }
    }
}

/// The state of an entry of a [`Leaf`].
#[derive(Clone, Copy)]
pub enum Entry<'c> {
    /// Not mapped; the heat is the number of calls that speak for mapping it.
    Heat(u32),
    Mapped(&'c Chunk),
}

/// The heat of a chunk that cannot be mapped.
const NEVER: usize = usize::MAX;

/// Chunks by offset: each entry is the address of a [`Chunk`], or odd, twice the heat and one, or
/// 0.
pub struct Leaf {
    entries: [AtomicUsize; LEAF_CHUNKS],
}

// SAFETY: zero is an empty entry.
unsafe impl Zeroed for Leaf {}

impl Leaf {
    #[inline]
    pub fn entry(&self, index: u64) -> &AtomicUsize {
        &self.entries[index as usize % LEAF_CHUNKS]
    }

    pub fn entries(&self) -> &[AtomicUsize] {
        &self.entries
    }

    /// Returns the index of a chunk's leaf, by the chunk's index.
    #[inline]
    pub fn of(index: u64) -> usize {
        index as usize / LEAF_CHUNKS
    }
}

impl Entry<'_> {
    /// Reads an entry, inside (direct-E1).
    #[inline]
    pub fn of<'c>(word: usize) -> Entry<'c> {
        if word & 1 == 1 || word == 0 {
            return Entry::Heat((word >> 1) as u32);
        }
        // SAFETY: the address of a chunk, whose place stays a chunk.
        Entry::Mapped(unsafe { &*(word as *const Chunk) })
    }

    /// Adds to the heat of a chunk that is not mapped; returns the sum, 0 if it must not be mapped.
    #[cold]
    pub fn heat(entry: &AtomicUsize, more: u32) -> u32 {
        let word = entry.load(Relaxed);
        if word == NEVER || word != 0 && word & 1 == 0 {
            return 0;
        }
        let heat = (word >> 1) as u32 + more;
        let _ = entry.compare_exchange(word, (heat as usize) << 1 | 1, Relaxed, Relaxed);
        heat
    }

    /// Notes that it cannot be mapped, or not with the wanted access.
    pub fn refuse(entry: &AtomicUsize) {
        let word = entry.load(Relaxed);
        if word == 0 || word & 1 == 1 {
            let _ = entry.compare_exchange(word, NEVER, Relaxed, Relaxed);
        }
    }
}
