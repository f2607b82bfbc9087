//! Inodes of a mounted pool: the functions that [`namespace`] requires from the engine.

use crate::growth::{Growth, is_near};
use crate::journal;
use crate::layout::*;
use crate::map::{Fill, Holes, Maps, Piece, tables_for};
use crate::settings::{CACHE_ATTRIBUTE, policy_of};
use crate::space::{KEEP, Txn};
use crate::volatile::Volatile;
use namespace::layout::{InodeRecord, Word};
use namespace::own_mode;
use namespace::{Attributes, Change, Scan, Storage, Tables, VInode, Words};
use pmem::{LINE, Medium, Pm, PmOff};
use smallvec::SmallVec;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::{Attr, Errno, FileKind, Ino, Limits, Result, Timestamp};

/// Inodes and their content: maps, and the derived state. None of these functions is a whole
/// operation.
pub struct Store<M> {
    pub maps: Maps<M>,
    pub v: Volatile,
    pub read_only: AtomicBool,
    pub clock: fn() -> Timestamp,
    /// Whether the pool records how it was used.
    pub says_usage: bool,
    /// Set by a scan: whether all contents are durable.
    pub is_all_durable: AtomicBool,
}

/// The store uses the methods of the maps as its own.
impl<M> Deref for Store<M> {
    type Target = Maps<M>;

    #[inline]
    fn deref(&self) -> &Maps<M> {
        &self.maps
    }
}

/// The places of the map word and size of an inode, or of the inode table: in one line, the size
/// behind.
#[derive(Clone, Copy)]
pub struct Content {
    pub map: PmOff,
    pub size: PmOff,
}

/// The content of the inode table.
const INODES: Content = Content { map: INODE_MAP, size: INODE_SIZE };

/// The map of a content that grows, and whether it has been stored.
struct Grown {
    map: Map,
    is_stored: bool,
}

impl<M: Medium> Store<M> {
    /// Returns the checked map of an inode's content.
    #[inline]
    pub fn map(&self, v: &VInode) -> Result<Map> {
        self.map_at(self.word_at(v, Word::Root))
    }

    /// Returns the places of an inode's map word and size.
    pub fn content(&self, v: &VInode) -> Content {
        Content { map: self.word_at(v, Word::Root), size: self.word_at(v, Word::Size) }
    }

    // --- what grows -----------------------------------------------------------------------------

    /// Returns the most blocks that a map needs to grow.
    pub fn blocks_to_grow(&self, map: Map, range: &Range<u64>, size: u64) -> Result<u64> {
        let (first, last) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let is_dense = size.div_ceil(BLOCK) <= last;
        let blocks = match map {
            Map::Run(run) if last <= run.count => 0,
            // In place, or all of the content in a longer run.
            Map::Run(run) if is_dense && is_near(run.count, first) => {
                if size <= EXTENT {
                    last
                } else {
                    last - run.count
                }
            }
            Map::Hole if is_dense && is_near(0, first) => last,
            Map::Hole | Map::Run(_) => last - first,
            Map::Table { .. } => self.holes(map, first..last)?,
        };
        let fits = map.virtual_bytes() >= size || map == Map::Hole;
        Ok(if blocks == 0 && fits { 0 } else { blocks + tables_for(last - first) })
    }

    /// Returns the number of these blocks that are holes.
    pub fn holes(&self, map: Map, blocks: Range<u64>) -> Result<u64> {
        let mut holes = 0;
        self.pieces(map, blocks, |_, piece| {
            holes += if let Piece::Hole(n) = piece { n } else { 0 };
            Ok(true)
        })?;
        Ok(holes)
    }

    /// Returns the map of a content after its growth: a run, in place or, if it may move, a longer
    /// one; otherwise a table, which is stored.
    fn grown_map(&self, txn: &mut Txn<'_>, content: Content, growth: &Growth<'_>) -> Result<Grown> {
        let map = self.map_at(content.map)?;
        let (first, last) = (growth.range.start / BLOCK, growth.range.end.div_ceil(BLOCK));
        let blocks = growth.size.div_ceil(BLOCK);
        let is_dense = blocks <= last;
        let grows_to = |run| Ok(Grown { map: Map::Run(run), is_stored: false });
        match map {
            Map::Hole if growth.range.is_empty() => return Ok(Grown { map, is_stored: true }),
            Map::Hole if is_dense && is_near(0, first) => {
                if let Some(run) = txn.take_to_grow(blocks, growth.prealloc, growth.may_move) {
                    return grows_to(run);
                }
            }
            Map::Hole => {}
            _ if map.virtual_bytes() >= growth.size => return Ok(Grown { map, is_stored: true }),
            Map::Run(run) if is_dense && is_near(run.count, first) => {
                if let Some(more) = txn.take_behind(run, blocks - run.count, growth.prealloc) {
                    return grows_to(Run { count: run.count + more, ..run });
                }
                if growth.may_move
                    && growth.size <= EXTENT
                    && let Some(new) = txn.take_to_grow(blocks, growth.prealloc, growth.may_move)
                {
                    let size = self.medium.load_u64(content.size);
                    self.medium.copy_nt(new.at(0), run.at(0), size.min(run.bytes()));
                    txn.free(run);
                    return grows_to(new);
                }
            }
            _ => {}
        }
        let map = self.raise(txn, map, growth.size);
        self.publish_map(content.map, map);
        Ok(Grown { map, is_stored: true })
    }

    /// Maps the range of a growth, and fills its new blocks. Beyond the size, which stays, the
    /// blocks are invisible. Durable after the next fence.
    fn prepare(&self, txn: &mut Txn<'_>, content: Content, growth: &Growth<'_>) -> Result<Grown> {
        let was_hole = self.medium.load_u64(content.map) == 0;
        let grown = self.grown_map(txn, content, growth)?;
        // Mapped blocks beyond the size have unspecified content, and so has a new run.
        let is_new = was_hole && !grown.is_stored;
        let known = if is_new { 0 } else { self.medium.load_u64(content.size) };
        self.mapped(grown.map, known..growth.size, |at, pm, len| {
            self.overwrite(at, pm, len, &growth.fill);
        })?;
        if let Map::Table { block, level } = grown.map
            && !growth.range.is_empty()
        {
            let range = growth.range.start / BLOCK..growth.range.end.div_ceil(BLOCK);
            let is_worth_a_unit = growth.is_worth_a_unit(self.medium.load_u64(content.size));
            let holes = Holes { range, prealloc: growth.prealloc, is_worth_a_unit };
            self.map_holes(txn, (block, level), &holes, &growth.fill)?;
        }
        Ok(grown)
    }

    /// Grows a content, durably. The commit is the size, which lies behind the map word in its
    /// line.
    pub fn grow(&self, txn: &mut Txn<'_>, content: Content, growth: &Growth<'_>) -> Result<()> {
        let grown = self.prepare(txn, content, growth)?;
        let ready = self.medium.fence();
        if !grown.is_stored {
            self.medium.publish_word(content.map, grown.map.pack(), ready.for_another());
        }
        assert_sizes(grown.map, growth.size);
        if growth.size > self.medium.load_u64(content.size) {
            let _ = self.medium.publish(content.size, growth.size, ready);
        } else if !grown.is_stored {
            self.medium.flush(content.map, 8);
            let _ = self.medium.fence();
        }
        Ok(())
    }

    /// Grows the content of an inode ([`grow`](Self::grow)), if there is space. `prepare` runs
    /// before, when the space is certain.
    pub fn extend(
        &self,
        v: &VInode,
        mut growth: Growth<'_>,
        prepare: impl FnOnce(Map) -> Result<()>,
    ) -> Result<()> {
        let content = self.content(v);
        let mut map = self.map_at(content.map)?;
        // A file that begins with more than an extent has no use for a null file into which it does
        // not fit.
        let is_too_short = self.medium.load_u64(content.size) == 0
            && growth.size > EXTENT
            && map.virtual_bytes() < growth.size;
        if is_too_short || self.is_far(map, &growth.range) {
            map = self.drop_preallocated(v, map)?;
        }
        let need = self.blocks_to_grow(map, &growth.range, growth.size)?;
        // Pre-allocation never makes an operation fail for want of space.
        growth.prealloc = if need > 0 { self.blocks_to_preallocate(v, &growth) } else { 0 };
        let is_reserved = growth.prealloc > 0
            && self.v.free.take(&self.v.arena, need + growth.prealloc, self.v.blocks_kept_free());
        if !is_reserved {
            growth.prealloc = 0;
            if !self.v.reserve(need, KEEP) {
                return Err(Errno::NOSPC);
            }
        }
        self.v.transact_reserved(need + growth.prealloc, |txn| {
            prepare(map)?;
            if v.kind() == FileKind::Dir {
                txn.take_apart();
            }
            self.grow(txn, content, &growth)?;
            v.add_blocks(txn.delta());
            Ok::<_, Errno>(())
        })?;
        self.note_preallocated(v)
    }

    // --- pre-allocated blocks (§3.3) -------------------------------------------------------------

    /// Returns the number of blocks beyond its new size that a growing file gets: as many as it has
    /// then, within limits. The first content of a file is mostly all of it, and gets none.
    fn blocks_to_preallocate(&self, v: &VInode, growth: &Growth<'_>) -> u64 {
        let s = &self.v.settings.prealloc;
        let size = self.load(v, Word::Size);
        let is_append = growth.continues(size);
        // A process that maps the file could see them (mapping-D2).
        let is_mapped = v.mappings.are_direct();
        if !s.enabled || !is_append || v.kind() != FileKind::File || is_mapped {
            return 0;
        }
        growth.size.div_ceil(BLOCK).clamp(s.blocks_min, s.blocks_max)
    }

    /// Returns whether a range is so far behind a run that pre-allocated blocks between are better
    /// given back than made part of the file.
    fn is_far(&self, map: Map, range: &Range<u64>) -> bool {
        matches!(map, Map::Run(run) if !is_near(run.count, range.start / BLOCK))
    }

    /// Gives back the blocks of a file beyond its size; returns its map after that.
    fn drop_preallocated(&self, v: &VInode, map: Map) -> Result<Map> {
        if v.kind() != FileKind::File || self.v.preallocated(v) == 0 {
            return Ok(map);
        }
        self.trim(v, self.load(v, Word::Size))?;
        self.map(v)
    }

    /// Updates the number of blocks beyond the size of a file, when its map or its size has
    /// changed: the rest of its run, or of the run with its last block.
    pub fn note_preallocated(&self, v: &VInode) -> Result<()> {
        if v.kind() != FileKind::File {
            return Ok(());
        }
        let (map, size) = (self.map(v)?, self.load(v, Word::Size));
        assert_sizes(map, size);
        let used = size.div_ceil(BLOCK);
        let blocks = match map {
            // They cannot be reclaimed while mapped (mapping-D1).
            _ if v.mappings.are_direct() => 0,
            Map::Hole => 0,
            Map::Run(run) => run.count.saturating_sub(used),
            Map::Table { .. } if used == 0 => 0,
            map => match self.piece(map, used - 1, 1)? {
                Piece::Run(run) => run.count - 1,
                Piece::Hole(_) => 0,
            },
        };
        self.v.set_preallocated(v, blocks);
        Ok(())
    }

    /// Returns whether a file that is cut to a size keeps its blocks, for when it grows again. A
    /// file with a table does not: there are no tables without content.
    fn may_keep(&self, v: &VInode, size: u64) -> Result<bool> {
        let s = &self.v.settings.prealloc;
        let is_file = v.kind() == FileKind::File;
        Ok(match self.map(v)? {
            // A reader without a copy may be reading them (prealloc-A3).
            Map::Run(run) if s.enabled && is_file && !self.v.pins().any(&self.v.arena) => {
                run.count.saturating_sub(size.div_ceil(BLOCK)) <= s.blocks_max
            }
            _ => false,
        })
    }

    /// Adds a block to the inode table: it is invisible until the size includes it.
    fn grow_inode_table(&self) -> Result<()> {
        let size = self.medium.load_u64(INODES.size);
        let map = self.map_at(INODES.map)?;
        let range = size..size + BLOCK;
        self.v.transact(self.blocks_to_grow(map, &range, range.end)?, KEEP, |txn| {
            // Inodes never move.
            let fill = Fill::ZEROS;
            let growth = Growth { size: range.end, range, fill, may_move: false, prealloc: 0 };
            txn.take_apart();
            self.grow(txn, INODES, &growth)?;
            self.v.add_leaf(self.block_at(INODES, size)?, INODE);
            Ok(())
        })
    }

    /// Returns the place of an existing block of a content.
    fn block_at(&self, content: Content, offset: u64) -> Result<PmOff> {
        let map = self.map_at(content.map)?;
        match self.piece(map, offset / BLOCK, 1)? {
            Piece::Run(run) => Ok(run.at(0)),
            Piece::Hole(_) => Err(Errno::UCLEAN),
        }
    }

    /// Changes the size of a file, together with `words`. An added part reads as zeros, and mostly
    /// needs no space.
    fn resize(&self, v: &VInode, size: u64, ino: Ino, words: &[(PmOff, u64)]) -> Result<()> {
        let old = self.load(v, Word::Size);
        if size > old {
            self.make_room(v, old, size)?;
        }
        let mut all = Words::from_slice(words);
        all.push((self.word_at(v, Word::Size), size));
        self.commit_words(ino, &all)?;
        match size < old {
            true if v.mappings.are_direct() => self.clear(v, size..old),
            true if !self.may_keep(v, size)? => self.trim(v, size),
            _ => self.note_preallocated(v),
        }
    }

    /// Prepares a file for a larger size. Durable after the next fence.
    fn make_room(&self, v: &VInode, old: u64, size: u64) -> Result<()> {
        let mut map = self.map(v)?;
        if self.is_far(map, &(size..size)) {
            map = self.drop_preallocated(v, map)?;
        }
        let near = match map {
            Map::Run(run) => is_near(run.count, size.div_ceil(BLOCK)),
            Map::Hole => is_near(0, size.div_ceil(BLOCK)),
            Map::Table { .. } => false,
        };
        let range = if near { old..size } else { size..size };
        self.v.transact(self.blocks_to_grow(map, &range, size)?, KEEP, |txn| {
            if let (Map::Table { block, level }, false) = (map, v.mappings.are_direct()) {
                // Pre-allocated blocks are better given back than zeroed.
                self.unmap(txn, (block, level), &(old.div_ceil(BLOCK)..u64::MAX))?;
                let _ = self.medium.fence();
            }
            self.preallocate(txn, v, &Growth::of(v, range, size, Fill::ZEROS))
        })
    }

    /// Maps the range of a growth without changing the size. A crash before the size is stored
    /// leaves the blocks pre-allocated. Durable after the next fence.
    pub fn preallocate(&self, txn: &mut Txn<'_>, v: &VInode, growth: &Growth<'_>) -> Result<()> {
        let content = self.content(v);
        let grown = self.prepare(txn, content, growth)?;
        if !grown.is_stored {
            self.publish_map(content.map, grown.map);
        }
        v.add_blocks(txn.delta());
        Ok(())
    }

    /// Zeroes the mapped bytes of `range` in place, durably. Callers use it for bytes behind the
    /// end of a file whose blocks programs have mapped, so that they stay.
    pub fn clear(&self, v: &VInode, range: Range<u64>) -> Result<()> {
        self.mapped(self.map(v)?, range, |_, pm, len| self.medium.zero_nt(pm, len))?;
        let _ = self.medium.fence();
        Ok(())
    }

    /// Cuts an inode's content, whose size has been published as `size`: gives back all blocks
    /// beyond it. A crash meanwhile leaves pre-allocated blocks, which the next mount gives back.
    pub fn trim(&self, v: &VInode, size: u64) -> Result<()> {
        let map = self.map(v)?;
        let slot = self.word_at(v, Word::Root);
        let keep = size.div_ceil(BLOCK);
        self.v.transact(0, 0, |txn| {
            match map {
                Map::Run(run) if run.count > keep => {
                    self.medium.store_u64(slot, run.first(keep).map().pack());
                    txn.free(run.skip(keep));
                }
                Map::Table { .. } if keep == 0 => {
                    self.all_blocks(map)?.into_iter().for_each(|run| txn.free(run));
                    self.medium.store_u64(slot, 0);
                }
                Map::Table { block, level } => {
                    self.unmap(txn, (block, level), &(keep..u64::MAX))?;
                }
                _ => return Ok::<_, Errno>(()),
            }
            self.medium.flush(slot, 8);
            // Before these blocks can be claimed again.
            let _ = self.medium.fence();
            v.add_blocks(txn.delta());
            Ok(())
        })?;
        self.note_preallocated(v)
    }

    /// Commits words of an inode, and its new size, if it has one.
    fn commit_inode(
        &self,
        ino: Ino,
        v: &VInode,
        size: Option<u64>,
        words: &[(PmOff, u64)],
    ) -> Result<()> {
        match size {
            Some(size) => self.resize(v, size, ino, words),
            None if words.is_empty() => Ok(()),
            None => self.commit_words(ino, words),
        }
    }

    // --- what is stored whole -------------------------------------------------------------------

    /// Returns the most blocks that storing this number of bytes takes.
    fn blocks_of(bytes: u64) -> u64 {
        match bytes.div_ceil(BLOCK) {
            n @ 0..=1 => n,
            n => n + tables_for(n),
        }
    }

    /// Stores another list of attributes of an inode; `commit` makes it the inode's list, durably.
    fn replace_attributes(
        &self,
        v: &VInode,
        attributes: &Attributes,
        commit: impl FnOnce(Map) -> Result<()>,
    ) -> Result<()> {
        let old = self.all_blocks(self.map_at(self.word_at(v, Word::Xattr))?)?;
        let list = list_bytes(attributes);
        let blocks = Self::blocks_of(list.len() as u64);
        // A list that takes no more blocks than the previous one needs them only until the commit.
        let is_longer = blocks > old.iter().map(|run| run.count).sum();
        self.v.transact(blocks, if is_longer { KEEP } else { KEEP / 2 }, |txn| {
            let new = self.store_whole(txn, &list);
            old.into_iter().for_each(|run| txn.free(run));
            self.touch_changed(v);
            commit(new)?;
            v.add_blocks(txn.delta());
            self.note_attributes(v, attributes);
            Ok(())
        })
    }

    /// Reads the first bytes of a map's content, holes as zeros.
    pub fn read_whole(&self, map: Map, buf: &mut [u8]) -> Result<()> {
        self.mapped(map, 0..buf.len() as u64, |at, pm, len| {
            self.medium.read(pm, &mut buf[at as usize..(at + len) as usize]);
        })
    }
}

/// Asserts the order of the three sizes of a content (§3.3). Virtual ≥ mapped, as a run is all
/// mapped, and words of tables map no more than their range (map-M1). In one run, mapped ≥ size. Of
/// a table, virtual ≥ size (claims-S3).
fn assert_sizes(map: Map, size: u64) {
    let is_within = map == Map::Hole || map.virtual_bytes() >= size;
    debug_assert!(is_within, "{size} bytes are not within {map:?}");
}

/// Returns a list of attributes as it is stored; empty if there are no attributes.
fn list_bytes(attributes: &Attributes) -> Vec<u8> {
    if attributes.is_empty() { Vec::new() } else { attributes.to_bytes() }
}

impl<M: Medium> Storage for Store<M> {
    type Medium = M;
    const INODE: u64 = INODE;
    const LIMITS: &'static Limits = &LIMITS;
    const ATTRIBUTES_MAX: u64 = EXTENT;

    #[inline]
    fn medium(&self) -> Pm<&M> {
        Pm(&self.maps.medium.0)
    }

    #[inline]
    fn tables(&self) -> &Tables {
        &self.v
    }

    #[inline]
    fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    #[inline]
    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn reclaimable(&self) -> u64 {
        self.v.reclaimable()
    }

    fn make_space(&self) -> Result<bool> {
        self.collect_for_space()
    }

    fn clear_deferred(&self) {
        self.v.clear_deferred();
    }

    fn free_kept_blocks(&self) -> Result<()> {
        self.collect(u64::MAX, 0).map(drop)
    }

    fn clear_kept_blocks(&self) {
        self.v.apart.clear(&self.v, |blocks| self.v.free_runs.clear(&self.v.arena, blocks));
    }

    fn claim_free(&self, blocks: Range<u64>) -> bool {
        self.v.free_runs.claim_exactly(&self.v.arena, blocks)
    }

    fn clear_free(&self, blocks: Range<u64>) {
        self.v.free_runs.clear(&self.v.arena, blocks);
    }

    fn vacate_inodes(&self, from: u64) -> Result<bool> {
        self.vacate_map(INODES.map, from, LEVEL_MAX + 1)
    }

    fn vacate_contents(&self, from: u64) -> Result<()> {
        self.vacate_maps(from)
    }

    fn grow_inodes(&self, _leaves: u64) -> Result<()> {
        self.grow_inode_table()
    }

    fn write_new_inode<T>(
        &self,
        v: &VInode,
        mut record: InodeRecord,
        target: &[u8],
        attributes: &Attributes,
        prepare: impl FnOnce() -> Result<T>,
    ) -> Result<(InodeRecord, T)> {
        let list = list_bytes(attributes);
        let need = Self::blocks_of(target.len() as u64) + Self::blocks_of(list.len() as u64);
        self.v.transact(need, KEEP, |txn| {
            record.root = self.store_whole(txn, target).pack().into();
            record.xattr = self.store_whole(txn, &list).pack().into();
            let prepared = prepare()?;
            v.add_blocks(txn.delta());
            if v.kind() == FileKind::File
                && let Some(run) = self.v.take_null(v)
            {
                record.root = Map::Run(run).pack().into();
            }
            self.write_inode(v, &record);
            Ok((record, prepared))
        })
    }

    fn reap(&self, ino: Ino, v: &VInode) {
        let mut runs: SmallVec<[Run; 4]> = SmallVec::new();
        let is_file = v.kind() == FileKind::File;
        if is_file {
            self.v.set_preallocated(v, 0);
        }
        for word in [Word::Xattr, Word::Root] {
            let own = runs.len();
            let map = self.map_at(self.word_at(v, word));
            match map.and_then(|map| self.collect_blocks(map, &mut runs).map(|()| map)) {
                Ok(Map::Run(run)) if is_file && word == Word::Root => {
                    runs.truncate(own);
                    runs.push(self.v.keep_as_null(run));
                }
                Ok(_) => {}
                // A damaged map keeps its blocks: losing them until a repair is better than freeing
                // blocks that are referenced.
                Err(e) => {
                    runs.truncate(own);
                    tracing::error!(%ino, %e, "its blocks stay allocated");
                }
            }
        }
        match v.kind() {
            FileKind::Dir => self.v.drop_dir_state(v),
            FileKind::File => self.v.end_dirty(v),
            _ => {}
        }
        v.end();
        self.v.release(&runs);
        self.v.release_inode(ino);
    }

    #[inline]
    fn prefetch_reap(&self, _v: &VInode) {}

    #[inline]
    fn prefetch_content(&self, v: &VInode, attr: &Attr) {
        if attr.kind != FileKind::File || attr.size == 0 {
            return;
        }
        if let Ok(Map::Run(run)) = self.map(v) {
            self.medium.prefetch(run.at(0), 4 * LINE);
        }
    }

    fn read_target(&self, v: &VInode, buf: &mut [u8]) -> Result<()> {
        self.read_whole(self.map(v)?, buf)
    }

    fn attribute_list(&self, v: &VInode) -> Result<Vec<u8>> {
        let map = self.map_at(self.word_at(v, Word::Xattr))?;
        let Piece::Run(first) = self.piece(map, 0, 1)? else { return Ok(Vec::new()) };
        let len = self.medium.load_u64(first.at(0));
        if len < Attributes::HEADER as u64 || len > EXTENT.min(map.virtual_bytes()) {
            return Err(Errno::UCLEAN);
        }
        let mut bytes = vec![0; len as usize];
        self.read_whole(map, &mut bytes)?;
        Ok(bytes)
    }

    fn attribute_place(&self, v: &VInode, at: u64) -> Result<PmOff> {
        let map = self.map_at(self.word_at(v, Word::Xattr))?;
        match self.piece(map, at / BLOCK, 1)? {
            Piece::Run(run) => Ok(run.at(at % BLOCK)),
            Piece::Hole(_) => Err(Errno::UCLEAN),
        }
    }

    fn note_attributes(&self, v: &VInode, attributes: &Attributes) {
        // A value that does not parse counts as unset.
        let chosen = attributes.get(CACHE_ATTRIBUTE).and_then(|value| policy_of(value).ok());
        self.v.set_write_policy(v, chosen);
    }

    fn check_attribute(&self, _kind: FileKind, name: &[u8], value: &[u8]) -> Result<()> {
        match name {
            CACHE_ATTRIBUTE => policy_of(value).map(drop),
            own_mode::ATTRIBUTE => Err(Errno::OPNOTSUPP),
            _ => Ok(()),
        }
    }

    fn commit_change(
        &self,
        ino: Ino,
        v: &VInode,
        change: &Change,
        size: Option<u64>,
    ) -> Result<()> {
        let at = |(word, value): &(Word, u64)| (self.word_at(v, *word), *value);
        let mut words: Words = change.words.iter().map(at).collect();
        if size.is_some() {
            self.touch_modified(v);
        }
        let Some(attributes) = &change.attributes else {
            return self.commit_inode(ino, v, size, &words);
        };
        self.replace_attributes(v, attributes, |new| {
            words.push((self.word_at(v, Word::Xattr), new.pack()));
            self.commit_inode(ino, v, size, &words)
        })
    }

    fn commit_no_attributes(&self, v: &VInode) -> Result<()> {
        self.replace_attributes(v, &Attributes::default(), |new| {
            self.publish_map(self.word_at(v, Word::Xattr), new);
            Ok(())
        })
    }

    fn note_unknown_stores(&self, v: &VInode) {
        self.v.set_all_dirty(v);
        // mapping-D4.
        let is_dated = self.v.has_set_time(v);
        if !is_dated && !self.is_read_only() && self.date(v, namespace::MODIFIED) {
            self.medium.flush(self.word_at(v, Word::Mtime), 16);
            let _ = self.medium.fence();
        }
    }

    fn note_set_time(&self, v: &VInode) {
        if v.mappings.may_store() {
            self.v.set_has_set_time(v, true);
        }
    }

    fn give_back_preallocated(&self, v: &VInode) -> Result<()> {
        self.trim(v, self.load(v, Word::Size))
    }

    /// Appends a block to a directory of `size` bytes, durably. Returns its place.
    fn append_dir_block(
        &self,
        d: &VInode,
        size: u64,
        content: &[u8; BLOCK as usize],
    ) -> Result<PmOff> {
        let range = size..size + BLOCK;
        let fill = Fill { offset: size, data: content };
        self.extend(d, Growth::of(d, range, size + BLOCK, fill), |_| Ok(()))?;
        self.block_at(self.content(d), size)
    }

    fn visit_dir(
        &self,
        d: &VInode,
        from: u64,
        each: &mut dyn FnMut(PmOff, u64) -> Result<bool>,
    ) -> Result<()> {
        let size = self.load(d, Word::Size);
        self.pieces(self.map(d)?, from / BLOCK..size / BLOCK, |index, piece| {
            let Piece::Run(run) = piece else { return Ok(true) };
            for i in 0..run.count {
                if !each(run.at(i * BLOCK), (index + i) * BLOCK)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn commit_words(&self, hint: Ino, words: &[(PmOff, u64)]) -> Result<()> {
        let ready = self.medium.fence();
        match words {
            [] => {}
            [(at, value)] => drop(self.medium.publish(*at, *value, ready)),
            _ => {
                let (number, _lock) = self.v.records.hold(&self.v, hint.0)?;
                journal::commit(&self.medium, number, words, ready);
            }
        }
        Ok(())
    }

    fn scan_inodes(&self, scan: &Scan) -> bool {
        self.scan_inode_table(scan)
    }

    /// Claims the blocks of the content of an inode, and calls `each` for them. Reports a size
    /// beyond them. Returns their number.
    fn scan_content(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        v: &VInode,
        size: u64,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> u64 {
        if v.kind() == FileKind::File && !self.is_all_durable.load(Relaxed) {
            self.v.set_all_dirty(v);
        }
        let slot = self.word_at(v, Word::Root);
        // A recovery leaves mapped blocks as they are, including pre-allocated ones.
        let mut keep = size;
        if v.mappings.are_direct() {
            self.v.note_direct_mapping();
            keep = LIMITS.file_size;
        }
        let (blocks, _) = self.claim_map(scan, object, slot, keep, each);
        // The size must fit (claims-S3). An impossible map has been reported already.
        let most = match self.load_map(slot) {
            Unverified::Run { count, .. } => count * BLOCK,
            Unverified::Table { level: level @ 1..=LEVEL_MAX, .. } => table_bytes(level),
            _ => u64::MAX,
        };
        if size > most {
            let what = format!("its size {size} is beyond the {most} bytes that its map can hold");
            let fix = Some(((self.word_at(v, Word::Size), most), "cut it there"));
            scan.problem(object, what, fix);
        }
        blocks
    }

    fn scan_attributes(&self, scan: &Scan, object: &dyn Fn() -> String, v: &VInode) -> u64 {
        let at = self.word_at(v, Word::Xattr);
        let (blocks, is_sound) = self.claim_map(scan, object, at, EXTENT, &mut |_, _| {});
        match self.attributes(v) {
            Ok(attributes) => self.note_attributes(v, &attributes),
            Err(_) if is_sound => {
                let fix = Some(((at, 0), "drop the attributes"));
                scan.problem(object, "its attributes cannot be read".into(), fix);
            }
            Err(_) => {}
        }
        blocks
    }
}
