//! Chunks on their way to the store: slots of a temporary file without a name.
//!
//! - **staging-S1** Of a slot only blocks are read that were written since it was given out: what it had before is not seen.

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

/// Slots of no more blocks keep their space when they are free.
const KEPT: u64 = 16;

/// A temporary file of slots, each for a chunk.
pub struct Staging {
    file: File,
    chunk_bytes: u64,
    slots: Mutex<Slots>,
    /// Blocks that chunks have in it.
    blocks: AtomicU64,
}

#[derive(Default)]
struct Slots {
    free: Vec<u64>,
    count: u64,
}

/// Room for a chunk. It is given back when this is dropped.
pub struct Slot {
    staging: Arc<Staging>,
    index: u64,
    /// Which blocks of the chunk are in it, a bit for each.
    has: Vec<u64>,
}

impl Staging {
    /// An empty one in a directory.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(dir: &Path, chunk_bytes: u64) -> io::Result<Arc<Self>> {
        let file = tempfile::tempfile_in(dir)?;
        Ok(Arc::new(Self { file, chunk_bytes, slots: Mutex::default(), blocks: AtomicU64::new(0) }))
    }

    /// Bytes that chunks have in it.
    pub fn bytes(&self) -> u64 {
        self.blocks.load(Relaxed) * BLOCK
    }

    /// A new slot, without blocks.
    pub fn slot(self: &Arc<Self>) -> Slot {
        let mut slots = crate::lock(&self.slots);
        let index = slots.free.pop().unwrap_or(slots.count);
        slots.count = slots.count.max(index + 1);
        let words = self.chunk_bytes.div_ceil(BLOCK).div_ceil(64);
        Slot { staging: self.clone(), index, has: vec![0; words as usize] }
    }
}

impl Slot {
    /// Whether it has a block.
    pub fn has(&self, block: u64) -> bool {
        self.has[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Whether it has all blocks of the chunk.
    pub fn is_full(&self) -> bool {
        self.count() == self.staging.chunk_bytes / BLOCK
    }

    fn count(&self) -> u64 {
        self.has.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first block it has, and the one behind the last.
    pub fn bounds(&self) -> Option<Range<u64>> {
        let blocks = self.staging.chunk_bytes / BLOCK;
        let first = (0..blocks).find(|block| self.has(*block))?;
        let last = (first..blocks).rfind(|block| self.has(*block))?;
        Some(first..last + 1)
    }

    /// Sees to it that a write to `within` finds space.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn reserve(&self, within: Range<u64>) -> Result<()> {
        let len = within.end - within.start;
        match fallocate(&self.staging.file, FallocateFlags::empty(), self.at(within.start), len) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            reserved => reserved,
        }
    }

    /// Writes whole blocks, or parts of such as it has.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.staging.file.write_all_at(bytes, self.at(at)).map_err(errno)?;
        self.add(at..at + bytes.len() as u64);
        Ok(())
    }

    /// Makes these bytes zeros; as [`write`](Self::write).
    pub fn zero(&mut self, within: Range<u64>) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.staging.file, flags, self.at(within.start), within.end - within.start)?;
        self.add(within);
        Ok(())
    }

    /// Reads of blocks that it has (staging-S1).
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            let from = self.at(at) + filled as u64;
            match self.staging.file.read_at(&mut buf[filled..], from) {
                // Beyond the end of the file are holes, too.
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(errno(err)),
            }
        }
        buf[filled..].fill(0);
        Ok(())
    }

    /// Notes that it has the blocks of a range.
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
            // The space is wanted back. Without that, the slot is as good (staging-S1).
            let _ = fallocate(&self.staging.file, flags, self.at(0), self.staging.chunk_bytes);
        }
        crate::lock(&self.staging.slots).free.push(self.index);
    }
}

fn errno(err: io::Error) -> Errno {
    Errno::from_io_error(&err).unwrap_or(Errno::IO)
}
