//! Direct mappings of contents: `map_range`, `sync_range`.
//!
//! - mapping-D1: while a process maps a file directly ([`namespace::derived::MappingCount`], which
//!   is counted under the file's exclusive lock), its blocks neither move nor become free. It grows
//!   in place or by a table. Blocks that are cut off or punched out are zeroed in place, and stay
//!   pre-allocated until the last mapping is gone.
//! - mapping-D2: mapped blocks exist, and show only bytes of the file itself. When a mapping is
//!   counted, all blocks of its range are allocated. The file's blocks beyond its size contain
//!   zeros, or bytes that were stored there through mappings since. So the first mapping starts by
//!   giving back pre-allocated blocks, which may hold old bytes of any file (prealloc-A2). Holes,
//!   and blocks behind the end, are filled with zeros, durably. While there are mappings, no blocks
//!   are pre-allocated ([`Store::extend`](crate::store::Store::extend)).
//! - mapping-D3: while a mapping stores, all of the file counts as not durable. When such a mapping
//!   ends, that is recorded first.
//! - mapping-D4: stores through a mapping are not seen. So the end of a mapping that stores, and
//!   `msync`, count as a change of content. If a program has set the time of modification since the
//!   last known change, the end of a mapping does not replace that time: for a page that was stored
//!   to before, Linux does not either.

use crate::fs::ScmfsFiles;
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

/// The most blocks that are allocated for a mapping, unless a quarter of its range is more: 64 MiB.
const FILL_MAX: u64 = (64 << 20) / BLOCK;
/// A range in more extents is not worth it: each takes one of the 65 530 mappings that a process
/// can have.
const EXTENTS_MAX: usize = 1024;

impl<M: Medium> ScmfsFiles<M> {
    /// Implements `vfs::Mappings::map_range`.
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
            if stores && !v.mappings.may_store() {
                self.v.set_has_set_time(v, false);
            }
            self.back(v, &blocks)?;
            let extents = self.extents(v, &blocks)?;
            self.v.note_direct_mapping();
            self.v.add_mapping(ino, v, Mapper::direct(stores))?;
            self.note_preallocated(v)?;
            Ok(extents)
        })
    }

    /// Allocates the missing blocks, and zeroes the bytes behind the end in the last block of the
    /// file (mapping-D2).
    fn back(&self, v: &VInode, blocks: &Range<u64>) -> Result<()> {
        let size = self.load(v, Word::Size);
        if !v.mappings.are_direct() {
            self.trim(v, size)?;
        }
        let map = self.map(v)?;
        let missing = self.holes(map, blocks.clone())?;
        let count = blocks.end - blocks.start;
        let most = FILL_MAX.max(count / 4).min(self.v.free_blocks() / 4);
        // A file that others map directly cannot be mapped by the kernel, so there is no choice.
        if missing > most && !v.mappings.are_direct() {
            return Err(Errno::OPNOTSUPP);
        }
        if missing > 0 {
            let range = blocks.start * BLOCK..blocks.end * BLOCK;
            let grown = size.max(range.end);
            self.v.transact(self.blocks_to_grow(map, &range, grown)?, KEEP, |txn| {
                self.preallocate(txn, v, &Growth::of(v, range, grown, Fill::ZEROS))
            })?;
            // Before a sync of bytes that are stored there.
            let _ = self.medium.fence();
        }
        let end = size..size.next_multiple_of(BLOCK);
        if end.is_empty() || !blocks.contains(&(size / BLOCK)) {
            return Ok(());
        }
        self.clear(v, end)
    }

    /// Returns the places of these blocks, none of which is a hole.
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

    /// Implements `vfs::Mappings::sync_range`.
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
