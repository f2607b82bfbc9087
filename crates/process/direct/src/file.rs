//! Inodes that are served, and the state that all their descriptions in this process share.

#![allow(unsafe_code)]

use crate::chunk::{CHUNK_BYTES, Chunk, Entry, Leaf};
use crate::slab::Zeroed;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Leaves of a file: 256 GiB of it. The kernel serves bytes beyond.
const LEAVES: usize = 256;
/// Bytes of a file that can be mapped.
pub const MAPPABLE_BYTES: u64 = LEAVES as u64 * 512 * CHUNK_BYTES;

/// The kind of file system of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FileSystemKind {
    Tmpfs,
    /// The kernel's page tables lead to persistent memory (`STATX_ATTR_DAX`).
    Dax,
}

/// Returns an evenly spread number of 32 bits for an inode.
pub fn hash(dev: u64, ino: u64) -> u64 {
    (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// A file.
pub struct File {
    pub dev: AtomicU64,
    pub ino: AtomicU64,
    kind: AtomicU32,
    /// Descriptions that are open.
    pub open: AtomicU32,
    /// Descriptions that refer to it: the open ones, and closed ones that threads may still look
    /// at.
    pub users: AtomicU32,
    /// The next file of the same hash.
    pub next: AtomicU32,
    /// The library's own descriptor to map by, plus one, for a program that can only write. 0: no
    /// descriptor.
    pub mapper: AtomicI32,
    /// Size in bytes when it was last looked at (direct-C1).
    size: AtomicU64,
    /// The tick of the last write by the kernel, and the generation of times then (direct-C4).
    tick: AtomicU64,
    generation: AtomicU64,
    /// End of the last call outside of mapped chunks.
    last_end: AtomicU64,
    /// Number of calls beyond the size known here.
    beyond: AtomicU32,
    leaves: [AtomicPtr<Leaf>; LEAVES],
}

// SAFETY: numbers and null pointers.
unsafe impl Zeroed for File {}

impl File {
    /// Starts over with another inode. No other thread knows the place, or direct-E1.
    pub fn init(&self, dev: u64, ino: u64, kind: FileSystemKind) {
        self.dev.store(dev, Relaxed);
        self.ino.store(ino, Relaxed);
        self.kind.store(kind as u32, Relaxed);
        self.open.store(0, Relaxed);
        self.users.store(0, Relaxed);
        self.mapper.store(0, Relaxed);
        self.tick.store(0, Relaxed);
    }

    pub fn is(&self, dev: u64, ino: u64) -> bool {
        self.ino.load(Relaxed) == ino && self.dev.load(Relaxed) == dev
    }

    #[inline]
    pub fn kind(&self) -> FileSystemKind {
        match self.kind.load(Relaxed) {
            0 => FileSystemKind::Tmpfs,
            _ => FileSystemKind::Dax,
        }
    }

    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    pub fn set_size(&self, size: u64) {
        self.size.store(size, Relaxed);
    }

    /// Notes that the kernel has transferred bytes up to here.
    pub fn reached(&self, end: u64) {
        self.size.fetch_max(end, Relaxed);
    }

    /// Returns how much a call in an unmapped chunk adds to its heat, of the `enough` that maps it.
    /// Sequential calls add nothing, as a mapping costs more than it saves on pages that are used
    /// once. But the call at the beginning of a chunk adds half, so a second pass maps the chunk.
    pub fn evidence(&self, offset: u64, len: usize, enough: u32) -> u32 {
        let goes_on = self.last_end.swap(offset + len as u64, Relaxed) == offset;
        match goes_on {
            false => 1,
            true if offset % CHUNK_BYTES < len as u64 => enough.div_ceil(2),
            true => 0,
        }
    }

    /// Counts a call beyond the size; returns whether to ask for the size now.
    pub fn went_beyond(&self) -> bool {
        self.beyond.fetch_add(1, Relaxed).is_multiple_of(8)
    }

    /// Whether a write by copy would leave the times as they are (direct-C4).
    #[inline]
    pub fn is_stamped(&self, tick: u64, generation: u64) -> bool {
        self.tick.load(Relaxed) == tick && self.generation.load(Relaxed) == generation
    }

    /// Notes the tick in which the kernel has written.
    pub fn stamp(&self, tick: u64, generation: u64) {
        self.generation.store(generation, Relaxed);
        self.tick.store(tick, Relaxed);
    }

    /// Returns the leaf of a chunk.
    #[inline]
    pub fn leaf(&self, index: u64) -> Option<&Leaf> {
        // SAFETY: null, or a place that stays a leaf.
        unsafe { self.leaves[Leaf::of(index)].load(Acquire).as_ref() }
    }

    pub fn leaf_slot(&self, index: u64) -> &AtomicPtr<Leaf> {
        &self.leaves[Leaf::of(index)]
    }

    pub fn leaves(&self) -> &[AtomicPtr<Leaf>] {
        &self.leaves
    }

    /// Returns the entry of a chunk.
    #[inline]
    pub fn entry(&self, index: u64) -> Option<&AtomicUsize> {
        Some(self.leaf(index)?.entry(index))
    }

    /// Returns the mapped chunk, inside (direct-E1).
    #[inline]
    pub fn mapped(&self, index: u64) -> Option<&Chunk> {
        match Entry::of(self.entry(index)?.load(Acquire)) {
            Entry::Mapped(chunk) => Some(chunk),
            Entry::Heat(_) => None,
        }
    }

    /// Notes that holes may have been made from `start` on (direct-C3). The tables are locked, or
    /// the thread is inside (direct-E1).
    pub fn forget_pages(&self, start: u64) {
        if self.kind() != FileSystemKind::Tmpfs {
            return;
        }
        // The page behind a chunk is the first of the next one.
        let first = (start / CHUNK_BYTES).saturating_sub(1);
        for (index, _, chunk) in self.indexed_chunks(Leaf::of(first)) {
            chunk.forget_pages(start.saturating_sub(index * CHUNK_BYTES) as usize);
        }
    }

    /// Notes that a process has set the size.
    pub fn resized(&self, size: u64) {
        self.set_size(size);
        self.forget_pages(size);
    }

    /// Returns all mapped chunks, inside (direct-E1) or with the tables locked.
    pub fn chunks(&self) -> impl Iterator<Item = (&AtomicUsize, &Chunk)> {
        self.indexed_chunks(0).map(|(_, entry, chunk)| (entry, chunk))
    }

    /// Returns the mapped chunks from a leaf on, with their indexes.
    fn indexed_chunks(&self, leaf: usize) -> impl Iterator<Item = (u64, &AtomicUsize, &Chunk)> {
        let leaves = self.leaves.iter().enumerate().skip(leaf);
        // SAFETY: as in `leaf`.
        let leaves =
            leaves.filter_map(|(n, slot)| Some((n, unsafe { slot.load(Acquire).as_ref() }?)));
        let entries = leaves.flat_map(|(n, leaf)| {
            let first = (n * leaf.entries().len()) as u64;
            (first..).zip(leaf.entries())
        });
        entries.filter_map(|(index, entry)| match Entry::of(entry.load(Acquire)) {
            Entry::Mapped(chunk) => Some((index, entry, chunk)),
            Entry::Heat(_) => None,
        })
    }
}
