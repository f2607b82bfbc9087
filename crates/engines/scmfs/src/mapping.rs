//! Mappings to where contents lie: `map_range`, `sync_range`.
//!
//! - mapping-D1: while anybody maps a file so ([`namespace::derived::Mappings`], which is counted under the file's exclusive lock), its blocks
//!   neither move nor become free: it grows where it is or by a table, what is cut off or punched out is zeroed in place, and
//!   stays as pre-allocated blocks until the last mapping is gone.
//! - mapping-D2: what is mapped exists, and is the file's own: when a mapping is counted, all blocks of its range are mapped,
//!   and all that the file has beyond its size is zeros, or what was stored there through mappings since. So the first mapping
//!   begins with what is pre-allocated given back, as that is anybody's old bytes (prealloc-A2); holes, and blocks behind the end,
//!   come filled with zeros, durably; and as long as there are mappings, none are pre-allocated
//!   ([`Store::extend`](crate::store::Store::extend)).
//! - mapping-D3: as long as a mapping stores, all of the file counts as not durable; when one goes, that is noted first.

use crate::fs::Files;
use crate::growth::Growth;
use crate::layout::{BLOCK, LIMITS};
use crate::map::{Fill, Piece};
use crate::space::KEEP;
use namespace::derived::Mapper;
use namespace::layout::Word;
use namespace::{Storage, VInode};
use pmem::Medium;
use std::ops::Range;
use vfs::{Errno, Extent, Ino, Result};

/// So many blocks may be allocated for a mapping, or a quarter of what it maps: 64 MiB.
const FILL_MAX: u64 = (64 << 20) / BLOCK;
/// A range in more extents is not worth it: each takes one of the 65 530 mappings that a process can have.
const EXTENTS_MAX: usize = 1024;

impl<M: Medium> Files<M> {
    /// `FileSystem::map_range`.
    pub fn map_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<Vec<Extent>> {
        if !range.start.is_multiple_of(BLOCK) || range.is_empty() {
            return Err(Errno::INVAL);
        }
        if range.end > LIMITS.file_size {
            return Err(Errno::OPNOTSUPP);
        }
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        self.change(&[ino], || {
            let v = self.live_file(ino)?;
            if v.mappings.are_kernels() {
                return Err(Errno::BUSY);
            }
            if stores {
                self.revoke_capability(v)?;
            }
            self.back(v, &blocks)?;
            let extents = self.extents(v, &blocks)?;
            self.v.note_direct_mapping();
            self.v.add_mapping(ino, v, Mapper::direct(stores))?;
            self.note_preallocated(v)?;
            Ok(extents)
        })
    }

    /// Allocates what of these blocks is not, and zeroes what lies behind the end in the last block of the file (mapping-D2).
    fn back(&self, v: &VInode, blocks: &Range<u64>) -> Result<()> {
        let size = self.load(v, Word::Size);
        if !v.mappings.are_direct() {
            self.trim(v, size)?;
        }
        let map = self.map(v)?;
        let missing = self.holes(map, blocks.clone())?;
        let count = blocks.end - blocks.start;
        let most = FILL_MAX.max(count / 4).min(self.v.free_blocks() / 4);
        // What others map is not mapped otherwise (by the kernel), so there is no choice.
        if missing > most && !v.mappings.are_direct() {
            return Err(Errno::OPNOTSUPP);
        }
        if missing > 0 {
            let range = blocks.start * BLOCK..blocks.end * BLOCK;
            let grown = size.max(range.end);
            self.v.transact(self.blocks_to_grow(map, &range, grown)?, KEEP, |txn| {
                self.preallocate(txn, v, &Growth::of(v, range, grown, Fill::ZEROS))
            })?;
            // Before anybody syncs what is stored there.
            let _ = self.medium.fence();
        }
        let end = size..size.next_multiple_of(BLOCK);
        if end.is_empty() || !blocks.contains(&(size / BLOCK)) {
            return Ok(());
        }
        self.clear(v, end)
    }

    /// Where these blocks lie, of which none is a hole.
    fn extents(&self, v: &VInode, blocks: &Range<u64>) -> Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        self.pieces(self.map(v)?, blocks.clone(), |_, piece| {
            let Piece::Run(run) = piece else { return Err(Errno::UCLEAN) };
            match extents.last_mut() {
                Some(last) if last.start + last.len == run.at(0).get() => last.len += run.bytes(),
                _ => extents.push(Extent { start: run.at(0).get(), len: run.bytes() }),
            }
            Ok(true)
        })?;
        let is_worth_it = extents.len() <= EXTENTS_MAX || v.mappings.are_direct();
        if is_worth_it { Ok(extents) } else { Err(Errno::OPNOTSUPP) }
    }

    /// `FileSystem::sync_range`.
    pub fn sync_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<()> {
        let lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let end = self.load(v, Word::Size).min(range.end);
        let map = self.map(v)?;
        self.mapped(map, range.start.min(end)..end, |_, pm, len| self.medium.flush(pm, len))?;
        let _ = self.medium.fence();
        drop(lock);
        if !stores {
            return Ok(());
        }
        self.change(&[ino], || {
            self.date_overwrite(self.live_file(ino)?, false);
            Ok(())
        })
    }
}
