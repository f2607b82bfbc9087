//! Changed chunks before their upload: slots of a nameless temporary file.
//!
//! - **staging-S1** Only blocks of a slot are read that were written since it was allocated, so its
//!   earlier content never appears.

use crate::format::BLOCK;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::{Errno, Result};

/// The most blocks of a slot that keeps its space when it is freed.
const KEPT: u64 = 16;

/// A temporary file with slots, each for a chunk.
pub struct Staging {
    file: File,
    chunk_bytes: u64,
    slots: Mutex<Slots>,
    /// The number of blocks that chunks have in the file.
    blocks: AtomicU64,
}

#[derive(Default)]
struct Slots {
    free: Vec<u64>,
    count: u64,
}

/// Space for a chunk, until dropped.
pub struct Slot {
    staging: Arc<Staging>,
    index: u64,
    /// A bit for each block of the chunk: whether the slot has it.
    has: Vec<u64>,
}

impl Staging {
    /// Makes an empty file in a directory.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn new(dir: &Path, chunk_bytes: u64) -> io::Result<Arc<Self>> {
        let file = tempfile::tempfile_in(dir)?;
        Ok(Arc::new(Self { file, chunk_bytes, slots: Mutex::default(), blocks: AtomicU64::new(0) }))
    }

    /// Returns the bytes that chunks have in the file.
    pub fn bytes(&self) -> u64 {
        self.blocks.load(Relaxed) * BLOCK
    }

    /// Allocates a slot, without blocks.
    pub fn slot(self: &Arc<Self>) -> Slot {
        let mut slots = crate::lock(&self.slots);
        let index = slots.free.pop().unwrap_or(slots.count);
        slots.count = slots.count.max(index + 1);
        let words = self.chunk_bytes.div_ceil(BLOCK).div_ceil(64);
        Slot { staging: self.clone(), index, has: vec![0; words as usize] }
    }
}

impl Slot {
    /// Returns whether the slot has a block, counted from the start of the chunk.
    pub fn has(&self, block: u64) -> bool {
        self.has[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Whether the slot has all blocks of the chunk.
    pub fn is_full(&self) -> bool {
        self.count() == self.staging.chunk_bytes / BLOCK
    }

    fn count(&self) -> u64 {
        self.has.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the range from the first to the last block that the slot has.
    pub fn bounds(&self) -> Option<Range<u64>> {
        let blocks = self.staging.chunk_bytes / BLOCK;
        let first = (0..blocks).find(|block| self.has(*block))?;
        let last = (first..blocks).rfind(|block| self.has(*block))?;
        Some(first..last + 1)
    }

    /// Allocates space in the file for a write to `within`, in bytes of the chunk. Does nothing if
    /// the file system cannot allocate.
    ///
    /// # Errors
    /// `ENOSPC`, and others of `fallocate`.
    pub fn reserve(&self, within: Range<u64>) -> Result<()> {
        let len = within.end - within.start;
        match fallocate(&self.staging.file, FallocateFlags::empty(), self.at(within.start), len) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            reserved => reserved,
        }
    }

    /// Writes at byte `at` of the chunk: whole blocks, or parts of blocks that the slot has.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.staging.file.write_all_at(bytes, self.at(at)).map_err(errno)?;
        self.add(at..at + bytes.len() as u64);
        Ok(())
    }

    /// Zeroes bytes, with the conditions of [`write`](Self::write).
    pub fn zero(&mut self, within: Range<u64>) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.staging.file, flags, self.at(within.start), within.end - within.start)?;
        self.add(within);
        Ok(())
    }

    /// Reads from blocks that the slot has (staging-S1).
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            let from = self.at(at) + filled as u64;
            match self.staging.file.read_at(&mut buf[filled..], from) {
                // Bytes beyond the end of the file are zeros, too.
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(errno(err)),
            }
        }
        buf[filled..].fill(0);
        Ok(())
    }

    /// Marks the blocks of a range as present.
    fn add(&mut self, within: Range<u64>) {
        let mut added = 0;
        for block in within.start / BLOCK..within.end.div_ceil(BLOCK) {
            added += u64::from(!self.has(block));
            self.has[(block / 64) as usize] |= 1 << (block % 64);
        }
        self.staging.blocks.fetch_add(added, Relaxed);
    }

    fn at(&self, within: u64) -> u64 {
        self.index * self.staging.chunk_bytes + within
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let blocks = self.count();
        self.staging.blocks.fetch_sub(blocks, Relaxed);
        if blocks > KEPT {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Give the space back. If that fails, the slot can be used all the same (staging-S1).
            let _ = fallocate(&self.staging.file, flags, self.at(0), self.staging.chunk_bytes);
        }
        crate::lock(&self.staging.slots).free.push(self.index);
    }
}

fn errno(err: io::Error) -> Errno {
    Errno::from_io_error(&err).unwrap_or(Errno::IO)
}
