//! Contents of files: read, write, append, copy.
//!
//! | write | update | cost |
//! |---|---|---|
//! | inside the file, mapped | in place, through the cache; durable on fsync | the copy; a line and a fence if the times change |
//! | the same, from 4 KiB on in files of 4 MiB, or if that was chosen (`settings`) | in place, past the cache | the copy, 1 fence |
//! | into a hole | new blocks, then the map word | blocks + 1 line, 2 fences |
//! | from the end of the file on | past the cache, then the size | data + 1 line, 2 fences |
//!
//! A write is not atomic in a crash: each unsynced byte has its old or its new value.

use crate::fs::ScmfsFiles;
use crate::growth::Growth;
use crate::layout::*;
use crate::map::Fill;
use crate::settings::goes_past_cache;
use namespace::layout::Word;
use namespace::{MODIFIED, Storage, VInode};
use pmem::{Medium, PmOff};
use std::ops::Range;
use vfs::{Errno, Ino, Result};

impl<M: Medium> ScmfsFiles<M> {
    /// Implements `FileSystem::read`.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let v = self.v.vinode(ino)?;
        self.read_by(ino, v, |v| self.read_content(v, offset, buf))
    }

    /// Copies content out, holes as zeros; returns the number of bytes.
    fn read_content(&self, v: &VInode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let size = self.load(v, Word::Size);
        if offset >= size || buf.is_empty() {
            return Ok(0);
        }
        let len = (size - offset).min(buf.len() as u64);
        let buf = &mut buf[..len as usize];
        let map = self.map(v)?;
        // A file in a single run needs one copy.
        if let Map::Run(run) = map
            && offset + len <= run.bytes()
        {
            self.medium.read(run.at(offset), buf);
            return Ok(len as usize);
        }
        let mut done = 0;
        self.mapped(map, offset..offset + len, |at, pm, len| {
            let (start, end) = ((at - offset) as usize, (at - offset + len) as usize);
            buf[done..start].fill(0);
            self.medium.read(pm, &mut buf[start..end]);
            done = end;
        })?;
        buf[done..].fill(0);
        Ok(len as usize)
    }

    /// Implements `FileSystem::write`.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.change(&[ino], || {
            let v = self.live_file(ino)?;
            self.write_content(v, offset, data)
        })
    }

    /// Implements `ScmfsFiles::append`.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.change(&[ino], || {
            let v = self.live_file(ino)?;
            let offset = self.load(v, Word::Size);
            self.write_content(v, offset, data)?;
            Ok(offset)
        })
    }

    /// Writes under the file's lock.
    fn write_content(&self, v: &VInode, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = LIMITS.end_of(offset, data.len() as u64)?;
        self.revoke_capability(v)?;
        let size = self.load(v, Word::Size);
        let map = self.map(v)?;
        let inside = offset..end.min(size);
        let policy = self.v.write_policy(v).unwrap_or(self.v.settings.write_policy);
        let past_cache = goes_past_cache(policy, data.len(), size, self.v.settings.past_cache);
        if end <= size && self.holes_in(map, &inside)? == 0 {
            self.overwrite_mapped(v, map, inside, (offset, data), past_cache)?;
            self.date_overwrite(v, past_cache);
            return Ok(());
        }
        let range = offset..end;
        let size = size.max(end);
        self.extend(v, Growth::of(v, range, size, Fill { offset, data }), |map| {
            // Before a run may be copied to a longer one.
            self.overwrite_mapped(v, map, inside, (offset, data), past_cache)?;
            self.touch_growth(v, size);
            Ok(())
        })
    }

    /// Records a change of content whose commit may be the size, which lies in the line of the
    /// times.
    pub fn touch_growth(&self, v: &VInode, size: u64) {
        if size > self.load(v, Word::Size) {
            self.date(v, MODIFIED);
        } else {
            self.touch_modified(v);
        }
    }

    /// Returns the number of blocks in a range of bytes that are holes.
    fn holes_in(&self, map: Map, range: &Range<u64>) -> Result<u64> {
        match map {
            Map::Run(run) if range.end <= run.bytes() => Ok(0),
            _ => self.holes(map, range.start / BLOCK..range.end.div_ceil(BLOCK)),
        }
    }

    /// Records a change of content in place. Changed times are durable on return. With
    /// `is_past_cache`, so are bytes that were stored past the cache before: one fence serves both.
    pub fn date_overwrite(&self, v: &VInode, is_past_cache: bool) {
        self.v.set_has_set_time(v, false);
        let is_dated = self.date(v, MODIFIED);
        if is_dated {
            self.medium.flush(self.word_at(v, Word::Mtime), 16);
        }
        if is_dated || is_past_cache {
            let _ = self.medium.fence();
        }
    }

    /// Stores the part of `data`, which is for `offset`, that lies in mapped blocks of a range.
    /// Stores go through the cache, or past it, so that they are durable after the next fence.
    fn overwrite_mapped(
        &self,
        v: &VInode,
        map: Map,
        range: Range<u64>,
        (offset, data): (u64, &[u8]),
        past_cache: bool,
    ) -> Result<()> {
        self.mapped(map, range, |at, pm, len| {
            let from = (at - offset) as usize;
            let piece = &data[from..from + len as usize];
            if past_cache {
                return self.medium.write_nt(pm, piece);
            }
            self.v.mark_dirty(v, at / BLOCK, blocks_of(pm, len));
            self.medium.write(pm, piece);
        })
    }

    /// Implements `FileSystem::copy_range`: reads, then writes, as one operation.
    pub fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        const AT_ONCE: u64 = 16 << 20;
        let ((src, src_off), (dst, dst_off)) = (from, to);
        let inos = if src == dst { &[src][..] } else { &[src, dst][..] };
        self.change(inos, || {
            let (s, d) = (self.live_file(src)?, self.live_file(dst)?);
            let have = self.load(s, Word::Size).saturating_sub(src_off).min(len);
            if have == 0 {
                return Ok(0);
            }
            let dst_end = LIMITS.end_of(dst_off, have)?;
            if src == dst && src_off < dst_end && dst_off < src_off + have {
                return Err(Errno::INVAL);
            }
            let have = have.min(AT_ONCE);
            let mut data = vec![0; have as usize];
            self.read_content(s, src_off, &mut data)?;
            self.write_content(d, dst_off, &data)?;
            Ok(have)
        })
    }
}

/// Returns the bits of the blocks that contain these bytes.
fn blocks_of(pm: PmOff, len: u64) -> Range<u64> {
    pm.get() / BLOCK..(pm.get() + len).div_ceil(BLOCK)
}
