//! File contents: blocks that exist once written, and holes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attrs::CAPABILITY;
use super::{Node, State, saved};
use crate::{Errno, Fallocate, Ino, Result, Timestamp};

/// Granularity of holes and of collapse and insert, in bytes.
pub(super) const BLOCK_SIZE: u64 = 4096;

/// Contents of a file. An absent block reads as zeros and is a hole. Space that `fallocate` sets
/// aside stays a hole here: it differs from a hole only in what `seek` may report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sparse {
    size: u64,
    #[serde(serialize_with = "saved::save_blocks", deserialize_with = "saved::load_blocks")]
    blocks: BTreeMap<u64, Arc<[u8; BLOCK_SIZE as usize]>>,
}

impl Sparse {
    /// Returns the size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of blocks that exist.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64);
        let buf = &mut buf[..len as usize];
        buf.fill(0);
        for (start, bytes) in self.pieces(offset..offset + len) {
            buf[(start - offset) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        buf.len()
    }

    /// Returns the parts of `range` that lie in blocks that exist, in order.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let blocks = range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE);
        self.blocks.range(blocks).filter_map(move |(&index, block)| {
            let within = clip(index, &range)?;
            Some((index * BLOCK_SIZE + within.start as u64, &block[within]))
        })
    }

    /// Returns whether model-M5 holds.
    pub(super) fn is_zero_beyond_end(&self) -> bool {
        let is_empty = self.blocks.range(self.size.div_ceil(BLOCK_SIZE)..).next().is_none();
        let end = self.size.next_multiple_of(BLOCK_SIZE);
        is_empty && self.pieces(self.size..end).all(|(_, bytes)| bytes.iter().all(|b| *b == 0))
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        for index in range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE) {
            let Some(within) = clip(index, &range) else { continue };
            let start = (index * BLOCK_SIZE + within.start as u64 - offset) as usize;
            let block =
                self.blocks.entry(index).or_insert_with(|| Arc::new([0; BLOCK_SIZE as usize]));
            let len = within.len();
            Arc::make_mut(block)[within].copy_from_slice(&data[start..][..len]);
        }
        self.grow(range.end);
    }

    fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Frees whole blocks of `range` and zeroes the rest of it.
    fn punch(&mut self, range: Range<u64>) {
        let blocks = range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE);
        let touched: Vec<u64> = self.blocks.range(blocks).map(|(&index, _)| index).collect();
        for index in touched {
            match (clip(index, &range), self.blocks.get_mut(&index)) {
                (Some(within), Some(block)) if within.len() < BLOCK_SIZE as usize => {
                    Arc::make_mut(block)[within].fill(0);
                }
                (Some(_), _) => {
                    self.blocks.remove(&index);
                }
                (None, _) => {}
            }
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.punch(size..self.size.next_multiple_of(BLOCK_SIZE));
        }
        self.size = size;
    }

    /// Removes a range of whole blocks; the content behind it moves down.
    fn collapse(&mut self, range: Range<u64>) {
        self.punch(range.clone());
        let blocks = (range.end - range.start) / BLOCK_SIZE;
        let moved = self.blocks.split_off(&(range.start / BLOCK_SIZE));
        self.blocks.extend(moved.into_iter().map(|(index, block)| (index - blocks, block)));
        self.size -= range.end - range.start;
    }

    /// Makes room for `len` bytes of whole blocks at `offset`; the content behind it moves up.
    fn insert(&mut self, offset: u64, len: u64) {
        let moved = self.blocks.split_off(&(offset / BLOCK_SIZE));
        let shift = len / BLOCK_SIZE;
        self.blocks.extend(moved.into_iter().map(|(index, block)| (index + shift, block)));
        self.size += len;
    }

    /// Returns the start of the next data at or after `offset`, which lies inside the file.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let (&index, _) = self.blocks.range(offset / BLOCK_SIZE..).next()?;
        Some(offset.max(index * BLOCK_SIZE))
    }

    /// Returns the start of the next hole at or after `offset`, which lies inside the file.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let first = offset / BLOCK_SIZE;
        let present = self.blocks.range(first..).zip(first..);
        let run = present.take_while(|((index, _), expected)| **index == *expected).count() as u64;
        offset.max((first + run) * BLOCK_SIZE).min(self.size)
    }
}

/// Returns the part of block `index` that `range` covers.
fn clip(index: u64, range: &Range<u64>) -> Option<Range<usize>> {
    let base = index * BLOCK_SIZE;
    let start = range.start.max(base);
    let end = range.end.min(base + BLOCK_SIZE);
    (start < end).then(|| (start - base) as usize..(end - base) as usize)
}

impl State {
    /// Returns the end of `len` bytes at `offset`; `EFBIG` beyond the largest file.
    fn end_of(&self, offset: u64, len: u64) -> Result<u64> {
        offset.checked_add(len).filter(|&end| end <= self.limits.file_size).ok_or(Errno::FBIG)
    }

    pub(super) fn file(&self, ino: Ino) -> Result<&Sparse> {
        match &self.inode(ino)?.node {
            Node::File(data) => Ok(data),
            Node::Dir(_) => Err(Errno::ISDIR),
            Node::Symlink(_) | Node::Special(..) => Err(Errno::INVAL),
        }
    }

    /// Changes the contents of a file, removes its capability, and sets the times.
    fn modify(&mut self, now: Timestamp, ino: Ino, change: impl FnOnce(&mut Sparse)) -> Result<()> {
        self.file(ino)?;
        let inode = self.inode_mut(ino)?;
        if let Node::File(data) = &mut inode.node {
            change(data);
        }
        inode.xattrs.remove(CAPABILITY);
        inode.modified(now);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        now: Timestamp,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        self.file(ino)?;
        if data.is_empty() {
            return Ok(());
        }
        self.end_of(offset, data.len() as u64)?;
        self.modify(now, ino, |file| file.write(offset, data))
    }

    pub(super) fn fallocate(
        &mut self,
        now: Timestamp,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let size = match &self.inode(ino)?.node {
            Node::File(data) => data.size,
            Node::Dir(_) => return Err(Errno::ISDIR),
            Node::Symlink(_) | Node::Special(..) => return Err(Errno::NODEV),
        };
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = self.end_of(offset, len)?;
        let aligned = offset.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE);
        match mode {
            Fallocate::Collapse if !aligned || end >= size => return Err(Errno::INVAL),
            Fallocate::Insert if !aligned || offset >= size => return Err(Errno::INVAL),
            Fallocate::Insert => self.end_of(size, len).map(|_| ())?,
            _ => {}
        }
        self.modify(now, ino, |file| match mode {
            Fallocate::Allocate { keep_size: true } => {}
            Fallocate::Allocate { keep_size: false } => file.grow(end),
            Fallocate::PunchHole | Fallocate::ZeroRange { keep_size: true } => {
                file.punch(offset..end);
            }
            Fallocate::ZeroRange { keep_size: false } => {
                file.punch(offset..end);
                file.grow(end);
            }
            Fallocate::Collapse => file.collapse(offset..end),
            Fallocate::Insert => file.insert(offset, len),
        })
    }

    pub(super) fn copy_range(
        &mut self,
        now: Timestamp,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<u64> {
        let source = self.file(from)?;
        self.file(to)?;
        let len = len.min(source.size.saturating_sub(from_offset));
        if len == 0 {
            return Ok(0);
        }
        let to_end = self.end_of(to_offset, len)?;
        if from == to && from_offset < to_end && to_offset < from_offset + len {
            return Err(Errno::INVAL);
        }
        self.put(now, (from, from_offset), (to, to_offset), len)?;
        Ok(len)
    }

    pub(super) fn clone_range(
        &mut self,
        now: Timestamp,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<()> {
        if !self.limits.clones {
            return Err(Errno::OPNOTSUPP);
        }
        let (source, sink) = (self.file(from)?, self.file(to)?);
        let (source, sink) = ((from_offset, source.size), (to_offset, sink.size));
        match self.limits.check_clone(from == to, source, sink, len)? {
            0 => Ok(()),
            len => self.put(now, (from, from_offset), (to, to_offset), len),
        }
    }

    /// Replaces `len` bytes of one file by those of another, or of itself.
    fn put(
        &mut self,
        now: Timestamp,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<()> {
        let (from_end, to_end) = (from_offset + len, to_offset + len);
        let source = self.file(from)?;
        let pieces: Vec<(u64, Vec<u8>)> = source
            .pieces(from_offset..from_end)
            .map(|(start, bytes)| (start - from_offset + to_offset, bytes.to_vec()))
            .collect();
        self.modify(now, to, |file| {
            file.punch(to_offset..to_end);
            file.grow(to_end);
            for (start, bytes) in &pieces {
                file.write(*start, bytes);
            }
        })
    }
}
