//! Allocation, holes and shifts: `fallocate` and `seek`.

use crate::fs::ScmfsFiles;
use crate::growth::Growth;
use crate::layout::*;
use crate::map::{Fill, Piece};
use namespace::layout::Word;
use namespace::{Storage, VInode};
use pmem::Medium;
use std::ops::Range;
use vfs::{Errno, Fallocate, Ino, Result, Seek};

impl<M: Medium> ScmfsFiles<M> {
    /// Implements `FileSystem::fallocate`.
    pub fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.change(&[ino], || {
            let v = self.live(ino)?;
            let size = self.load(v, Word::Size);
            let range = LIMITS.check_fallocate((v.kind(), size), mode, offset, len)?;
            let end = range.end;
            let new_size = |keep: bool| if keep { size } else { size.max(end) };
            self.revoke_capability(v)?;
            match mode {
                Fallocate::Allocate { keep_size } => self.allocate(v, range, new_size(keep_size)),
                Fallocate::PunchHole => self.punch(v, size, range),
                Fallocate::ZeroRange { keep_size } => {
                    self.zero(v, size, range, new_size(keep_size))
                }
                Fallocate::Collapse => self.shift(ino, v, size, range, true),
                Fallocate::Insert => self.shift(ino, v, size, range, false),
            }
        })
    }

    /// Maps the part of `range` below `size`, the new size of the file. Space beyond the end of a
    /// file is not kept, so nothing is done for it.
    fn allocate(&self, v: &VInode, range: Range<u64>, size: u64) -> Result<()> {
        let range = range.start.min(size)..range.end.min(size);
        self.extend(v, Growth::of(v, range, size, Fill::ZEROS), |_| {
            self.touch_growth(v, size);
            Ok(())
        })
    }

    /// Zeroes the part of `range` inside the file: whole blocks of tables become holes, the rest is
    /// zeroed in place.
    fn punch(&self, v: &VInode, size: u64, range: Range<u64>) -> Result<()> {
        // Bytes of the last block beyond the end of the file do not count.
        let end = if range.end >= size { size.next_multiple_of(BLOCK) } else { range.end };
        let range = range.start.min(end)..end;
        let whole = range.start.next_multiple_of(BLOCK)..range.end - range.end % BLOCK;
        let content = self.content(v);
        // A big hole is worth a table. Directly mapped blocks stay.
        let may_free = !v.mappings.are_direct();
        let is_big = may_free && whole.start < whole.end && whole.end - whole.start >= EXTENT;
        self.v.transact(if is_big { 1 } else { 0 }, 0, |txn| {
            self.touch_modified(v);
            let mut map = self.map(v)?;
            if let (Map::Run(run), true) = (map, is_big) {
                // The table does not include pre-allocated blocks.
                let used = run.first(size.div_ceil(BLOCK));
                map = self.raise(txn, used.map(), used.bytes());
                self.publish_map(content.map, map);
                txn.free(run.skip(used.count));
            }
            let frees = may_free && whole.start < whole.end;
            if let (Map::Table { block, level }, true) = (map, frees) {
                let ragged = [range.start..whole.start, whole.end..range.end];
                for range in ragged {
                    self.mapped(map, range, |_, pm, len| self.medium.zero_nt(pm, len))?;
                }
                self.unmap(txn, (block, level), &(whole.start / BLOCK..whole.end / BLOCK))?;
            } else {
                self.mapped(map, range, |_, pm, len| self.medium.zero_nt(pm, len))?;
            }
            // Before these blocks can be claimed again.
            let _ = self.medium.fence();
            v.add_blocks(txn.delta());
            self.note_preallocated(v)
        })
    }

    /// Zeroes `range`, and allocates its holes, up to `size`, the new size of the file. `old` is
    /// its present size. The caller holds the exclusive lock.
    fn zero(&self, v: &VInode, old: u64, range: Range<u64>, size: u64) -> Result<()> {
        let range = range.start.min(size)..range.end.min(size);
        let inside = range.start..range.end.min(old);
        self.extend(v, Growth::of(v, range, size, Fill::ZEROS), |map| {
            self.touch_growth(v, size);
            self.mapped(map, inside, |_, pm, len| self.medium.zero_nt(pm, len))
        })
    }

    /// Removes `range` (`collapse`) or makes room for it, by new tables over the same blocks.
    fn shift(
        &self,
        ino: Ino,
        v: &VInode,
        size: u64,
        range: Range<u64>,
        collapse: bool,
    ) -> Result<()> {
        if v.mappings.are_direct() {
            return Err(Errno::BUSY);
        }
        // New maps need durable blocks (map-M2), and the dirty range is by file offset.
        self.flush_dirty(v)?;
        let len = (range.end - range.start) / BLOCK;
        let new_size = if collapse { size - len * BLOCK } else { size + len * BLOCK };
        let map = self.map(v)?;
        let (first, last) = (range.start / BLOCK, range.end / BLOCK);
        let mut pieces: Vec<(u64, Run)> = Vec::new();
        self.pieces(map, 0..size.div_ceil(BLOCK), |at, piece| {
            let Piece::Run(run) = piece else { return Ok(true) };
            let before = run.first(first.saturating_sub(at));
            let behind = if collapse { last } else { first };
            let skipped = behind.saturating_sub(at).min(run.count);
            let after = run.skip(skipped);
            if before.count > 0 {
                pieces.push((at, before));
            }
            if after.count > 0 {
                let at = at + skipped;
                pieces.push((if collapse { at - len } else { at + len }, after));
            }
            Ok(true)
        })?;
        // Pre-allocated blocks go as well.
        let all = self.all_blocks(map)?;
        let level = level_for(new_size);
        let tables: u64 = (1..=level).map(|level| tables_of(&pieces, level)).sum();
        self.v.transact(tables, 0, |txn| {
            self.date(v, namespace::MODIFIED);
            let new = self.build(txn, level, &pieces);
            let kept: u64 = pieces.iter().map(|(_, run)| run.count).sum();
            let had: u64 = all.iter().map(|run| run.count).sum();
            let content = self.content(v);
            // Both words together: otherwise bytes of the last block behind the end would show at
            // their new place.
            self.commit_words(ino, &[(content.map, new.pack()), (content.size, new_size)])?;
            v.add_blocks(txn.delta() + kept as i64 - had as i64);
            for run in without(&all, &pieces) {
                txn.free(run);
            }
            self.note_preallocated(v)
        })
    }

    /// Implements `FileSystem::seek`.
    pub fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let size = self.load(v, Word::Size);
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let mut found = None;
        self.pieces(self.map(v)?, offset / BLOCK..size.div_ceil(BLOCK), |at, piece| {
            let wanted = match piece {
                Piece::Run(_) => Seek::Data,
                Piece::Hole(_) => Seek::Hole,
            };
            found = (wanted == whence).then(|| (at * BLOCK).max(offset));
            Ok(found.is_none())
        })?;
        match whence {
            Seek::Data => found.ok_or(Errno::NXIO),
            Seek::Hole => Ok(found.unwrap_or(size)),
        }
    }
}

/// Returns the number of tables of a level that map these pieces; at least one.
fn tables_of(pieces: &[(u64, Run)], level: u8) -> u64 {
    let each = table_bytes(level) / BLOCK;
    let mut next = 0;
    let mut count = 0;
    for (at, run) in pieces {
        let (first, last) = (at / each, (at + run.count - 1) / each);
        count += (last + 1).saturating_sub(first.max(next));
        next = last + 1;
    }
    count.max(1)
}

/// Returns the parts of `all` blocks that are in no piece.
fn without(all: &[Run], pieces: &[(u64, Run)]) -> Vec<Run> {
    let mut kept: Vec<Run> = pieces.iter().map(|(_, run)| *run).collect();
    kept.sort_unstable_by_key(|run| run.start.get());
    let mut rest = Vec::new();
    for run in all {
        let (mut at, end) = (run.bits().start, run.bits().end);
        let from = kept.partition_point(|kept| kept.bits().end <= at);
        for kept in kept[from..].iter().map(|kept| kept.bits()).take_while(|kept| kept.start < end)
        {
            if kept.start > at {
                rest.push(Run::claimed(at, kept.start - at));
            }
            at = kept.end;
        }
        if at < end {
            rest.push(Run::claimed(at, end - at));
        }
    }
    rest
}
