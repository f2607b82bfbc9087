//! Content of files in a pool with a backing store ([`vfs::Backed`]): loaded, marked clean, and
//! evicted.
//!
//! - backed-F1: an absent pointer means the same as a block of absent pointers, as far as those lie
//!   before the end of the file. So one word expands an absent subtree, or makes a subtree absent.
//! - backed-F2: no pointer behind the end of a file is absent, and the end moves only if no absent
//!   subtree reaches across it. Otherwise a longer file would have absent content there.
//! - backed-F3: a block that is marked clean does not change in place: the mark goes durably
//!   before. A new pointer has no mark.
//! - backed-F4: a block of data is used again only after the pointer without it is durable.
//! - backed-F5: a load needs no durability. As long as its pointers, or nulls, are not durable, the
//!   content is absent after a crash, and that is the same.
//!
//! | call | prepared | stored | fences |
//! |---|---|---|---:|
//! | load | the blocks | their pointers, marked clean | 1 |
//! | expand an absent subtree | a block of absent pointers | its pointer | 2 |
//! | mark clean | – | the pointers | 1 |
//! | take a mark off | – | the pointer | 1 |
//! | evict | – | the pointers, or that of the subtree which is absent then | 1 |
//! | reload | the attributes | a record of the words of the inode | 4 |

use crate::blocks::{KEEP, Txn};
use crate::crawler::Node;
use crate::extent::FileExtent as _;
use crate::fs::Files;
use crate::layout::*;
use crate::store::Store;
use crate::xattr::blocks_of;
use namespace::{CLEAN, MAY_BE_ABSENT, Storage as _, VInode, Words, loaded_attributes};
use pmem::{Fenced, LINE, Medium, PmOff};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{ABSENT, Errno, FileKind, Ino, LoadedObject, Result};
use zerocopy::IntoBytes as _;

/// Pointers to blocks of data that lie together: those of one pointer block, or the root word of a
/// tree of height 0.
struct Leaves {
    /// The place of the first pointer.
    slot: PmOff,
    /// The range of the file that they cover.
    range: Range<u64>,
}

impl Leaves {
    /// Returns the place of the pointer to the block with byte `at`.
    fn slot_of(&self, at: u64) -> PmOff {
        self.slot + (at - self.range.start) / BLOCK * 8
    }

    /// Returns the start of each block that begins in `range`, as far as there are pointers here.
    fn blocks(&self, range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let (start, end) = (range.start.max(self.range.start), range.end.min(self.range.end));
        (start.next_multiple_of(BLOCK)..end).step_by(BLOCK as usize)
    }
}

/// The pointers that lead to a byte of a file, or to nothing there.
enum Reached {
    Leaves(Leaves),
    /// An absent subtree, with children: the place of its pointer, its height, and its range.
    Absent(PmOff, u8, Range<u64>),
    /// A hole up to this byte.
    Hole(u64),
}

impl<M: Medium> Store<M> {
    /// Finds the pointers for a byte of a file.
    fn place_of(&self, v: &VInode, at: u64) -> Result<Reached> {
        let mut slot = self.word_at(v, Word::Root);
        let (mut pointer, mut height) = split_root(self.medium.load_u64(slot));
        if height > HEIGHT_MAX {
            return Err(Errno::UCLEAN);
        }
        let mut base = 0;
        if at >= span(height) {
            return Ok(Reached::Hole(u64::MAX));
        }
        loop {
            let range = base..base + span(height);
            if height == 0 {
                return Ok(Reached::Leaves(Leaves { slot, range }));
            }
            if pointer.is_absent() {
                return Ok(Reached::Absent(slot, height, range));
            }
            let Some(block) = self.check_block(pointer)? else {
                return Ok(Reached::Hole(range.end));
            };
            height -= 1;
            if height == 0 {
                return Ok(Reached::Leaves(Leaves { slot: block.at(0), range }));
            }
            let i = at / span(height) % FANOUT;
            (slot, base) = (block.at(i * 8), base + i * span(height));
            pointer = Pointer::read(self.medium.load_u64(slot));
        }
    }

    /// Loads the pointer to a block of data, or the root word of a tree of height 0.
    fn load_leaf(&self, slot: PmOff) -> Pointer {
        Pointer::read(self.medium.load_u64(slot))
    }

    /// Returns the first range of blocks at or after `from` whose pointers are `wanted`.
    fn find_blocks(
        &self,
        v: &VInode,
        from: u64,
        is_wanted: impl Fn(Pointer) -> bool,
    ) -> Result<Option<Range<u64>>> {
        let size = self.load(v, Word::Size);
        let mut at = from - from % BLOCK;
        let mut found: Option<Range<u64>> = None;
        while at < size {
            let (is_same, end) = match self.place_of(v, at)? {
                Reached::Absent(_, _, range) => (is_wanted(Pointer::ABSENT), range.end),
                Reached::Hole(end) => (is_wanted(Pointer::NULL), end),
                Reached::Leaves(leaves) => {
                    let slots = leaves.blocks(&(at..size)).map(|at| leaves.slot_of(at));
                    let is_first = is_wanted(self.load_leaf(leaves.slot_of(at)));
                    let is_same = |slot: &PmOff| is_wanted(self.load_leaf(*slot)) == is_first;
                    (is_first, at + slots.take_while(is_same).count() as u64 * BLOCK)
                }
            };
            match (&mut found, is_same) {
                (Some(range), true) => range.end = end,
                (Some(_), false) => break,
                (None, true) => found = Some(at..end),
                (None, false) => {}
            }
            at = end;
        }
        Ok(found.map(|range| range.start..range.end.min(size)))
    }

    /// Returns the first range at or after `from` whose blocks are in the pool without a mark.
    pub fn dirty_blocks(&self, v: &VInode, from: u64) -> Result<Option<Range<u64>>> {
        self.find_blocks(v, from, Pointer::is_dirty)
    }

    /// Makes a change of content, within `range` of a file whose lock is held, and counts the
    /// blocks that it makes dirty, and those that it marks clean or removes (dirty-N2 in
    /// `namespace`).
    #[inline]
    pub fn counted<T>(&self, v: &VInode, range: Range<u64>, change: impl FnOnce() -> T) -> T {
        if !self.is_backed() || v.kind() != FileKind::File {
            return change();
        }
        // A tree of one block that becomes taller loses the mark of that block.
        let is_block = split_root(self.load(v, Word::Root)).1 == 0;
        let range = if is_block { 0..range.end } else { range };
        let count = || self.count_dirty(v, &range) as i64;
        let before = count();
        let done = change();
        self.v.count_blocks(v, count() - before);
        done
    }

    /// Returns the number of blocks of data that are not marked clean in the blocks of a range. The
    /// part of a damaged tree behind the damage does not count.
    fn count_dirty(&self, v: &VInode, range: &Range<u64>) -> u64 {
        let end = range.end.min(self.load(v, Word::Size));
        let (mut at, mut count) = (range.start - range.start % BLOCK, 0);
        while at < end
            && let Ok(reached) = self.place_of(v, at)
        {
            at = match reached {
                Reached::Absent(_, _, range) => range.end,
                Reached::Hole(end) => end,
                Reached::Leaves(leaves) => {
                    let is_dirty = |at: &u64| self.load_leaf(leaves.slot_of(*at)).is_dirty();
                    count += leaves.blocks(&(at..end)).filter(is_dirty).count() as u64;
                    leaves.range.end
                }
            };
        }
        count
    }

    /// Whether a file has content that is absent or marked clean.
    pub fn has_marked_blocks(&self, v: &VInode) -> Result<bool> {
        let is_marked = |p: Pointer| p.is_absent() || p.is_clean();
        Ok(self.find_blocks(v, 0, is_marked)?.is_some())
    }

    /// Fails with [`ABSENT`] if `range` of a file, as far as it lies before the end, is not all in
    /// the pool; if the range reaches across the end, also as [`check_end`](Self::check_end) does.
    pub fn check_range(&self, v: &VInode, range: &Range<u64>) -> Result<()> {
        let size = self.load(v, Word::Size);
        let inside = range.start..range.end.min(size);
        if !inside.is_empty() {
            self.visit(Node::top(self.root(v)?), &inside, &mut |_, _| Ok(true))?;
        }
        if range.end > size { self.check_end(v, size) } else { Ok(()) }
    }

    /// Fails with [`ABSENT`] if the end of a file may not move to `end`, or from there (backed-F2),
    /// or if the bytes behind it in its block cannot be stored.
    pub fn check_end(&self, v: &VInode, end: u64) -> Result<()> {
        if end == 0 {
            return Ok(());
        }
        let root = self.root(v)?;
        match self.place_of(v, end - 1)? {
            Reached::Absent(_, _, range) if range.end > end => Err(ABSENT),
            Reached::Leaves(_) if !end.is_multiple_of(BLOCK) => {
                self.find_block(root, end).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Counts blocks that a change added to an inode. Those of files are space that the backing
    /// store has to have.
    #[inline]
    pub fn gain(&self, v: &VInode, blocks: i64) {
        v.add_blocks(blocks);
        if blocks > 0 && self.is_backed() && v.kind() == FileKind::File {
            self.v.growth().gain(blocks as u64 * BLOCK);
        }
    }

    /// Takes the mark off the block with byte `at`, which is about to change in place (backed-F3).
    /// Durable on return.
    pub fn unmark_block(&self, v: &VInode, root: Root, at: u64) -> Result<()> {
        if !self.is_backed() {
            return Ok(());
        }
        let slot = self.find_slot(root, self.word_at(v, Word::Root), at)?;
        let Some((slot, Some(_))) = slot else { return Ok(()) };
        let word = self.medium.load_u64(slot);
        if word & Pointer::CLEAN != 0 {
            let ready = Fenced::not_needed("the block stays");
            let _ = self.medium.publish(slot, word & !Pointer::CLEAN, ready);
        }
        Ok(())
    }

    /// Replaces an absent subtree by a block of absent pointers (backed-F1).
    fn expand(&self, v: &VInode, (slot, height, base): (PmOff, u8, u64), size: u64) -> Result<()> {
        let below = span(height - 1);
        let mut pointers = [Pointer::NULL; FANOUT as usize];
        let count = (size - base).div_ceil(below).min(FANOUT);
        pointers[..count as usize].fill(Pointer::ABSENT);
        self.transact(1, KEEP, |txn| {
            let block = txn.take_pointers();
            self.medium.write_nt(block.at(0), pointers.as_bytes());
            let is_root = slot == self.word_at(v, Word::Root);
            let tag = if is_root { u64::from(height) } else { 0 };
            self.commit(slot, Pointer::to(block).word() | tag);
            v.add_blocks(1);
            Ok::<(), Errno>(())
        })
    }

    /// Stores the content that begins at `offset` where pointers are absent; returns the number of
    /// bytes.
    fn load_leaves(&self, v: &VInode, leaves: &Leaves, offset: u64, data: &[u8]) -> Result<u64> {
        let end = offset + data.len() as u64;
        let is_absent = |at: &u64| self.load_leaf(leaves.slot_of(*at)).is_absent();
        let absent: Vec<u64> = leaves.blocks(&(offset..end)).filter(is_absent).collect();
        if absent.is_empty() {
            return Ok(0);
        }
        self.transact(absent.len() as u64, KEEP, |txn| {
            for at in &absent {
                let from = (at - offset) as usize;
                let bytes = &data[from..data.len().min(from + BLOCK as usize)];
                self.write_last(txn.take().at(0), bytes);
            }
            // crawler-T1.
            let ready = self.medium.fence();
            for (i, at) in (0..).zip(&absent) {
                let pointer = Pointer::clean(txn.taken(i));
                let slot = leaves.slot_of(*at);
                // backed-F5.
                self.medium.publish_word(slot, pointer.word(), ready.for_another());
            }
            v.add_blocks(txn.delta());
            Ok::<(), Errno>(())
        })?;
        Ok(absent.iter().map(|at| BLOCK.min(end - at)).sum())
    }

    /// Makes the blocks of a subtree absent that lie in `range` and are marked clean; durable after
    /// the next fence. Adds the blocks that become free to `freed`. Returns whether the whole
    /// subtree is absent then, as far as it lies before the end: so its own pointer has to be, and
    /// no pointer in it is stored.
    fn evict_subtree(
        &self,
        node: Node,
        (range, size): (&Range<u64>, u64),
        freed: &mut Vec<BlockNo>,
    ) -> Result<bool> {
        let below = span(node.height - 1);
        let block = node.block.ok_or(Errno::UCLEAN)?;
        let mut evicted = Vec::new();
        let mut is_whole = true;
        for (i, pointer) in (0..).zip(self.load_pointers(node.block)) {
            let base = node.base + i * below;
            if base >= size {
                break;
            }
            let is_inside = base < range.end && base + below > range.start;
            let child = self.block_if_present(pointer)?.filter(|_| is_inside);
            let is_evicted = match child {
                None => false,
                // Both ends of the range are between blocks, or behind the file.
                Some(_) if node.height == 1 => pointer.is_clean(),
                _ => self.evict_subtree(node.child(i, child), (range, size), freed)?,
            };
            if is_evicted {
                evicted.push(block.at(i * 8));
                freed.extend(child);
            }
            is_whole &= is_evicted || pointer.is_absent();
        }
        if let (Some(first), Some(last), false) = (evicted.first(), evicted.last(), is_whole) {
            for slot in &evicted {
                self.medium.store_u64(*slot, Pointer::ABSENT.word());
            }
            self.medium.flush(*first, *last + 8 - *first);
        }
        Ok(is_whole)
    }

    /// As [`evict_subtree`](Self::evict_subtree), for a whole tree.
    fn evict_tree(&self, v: &VInode, range: &Range<u64>, freed: &mut Vec<BlockNo>) -> Result<()> {
        let (at, size) = (self.word_at(v, Word::Root), self.load(v, Word::Size));
        let word = self.medium.load_u64(at);
        let root = self.root_if_present(word)?;
        let Some(top) = root.block() else { return Ok(()) };
        // An absent tree is as high as its file is long: what lies behind a short one (§3.1) would
        // have no place. The object has that, too, if the inode is clean.
        let height = root.height().max(height_for(size));
        if height > root.height() && v.state.load(Relaxed) & CLEAN == 0 {
            return Ok(());
        }
        let is_evicted = match root.height() {
            0 => word & Pointer::CLEAN != 0 && range.contains(&0),
            _ => self.evict_subtree(Node::top(root), (range, size), freed)?,
        };
        if is_evicted {
            freed.push(top);
            self.medium.store_u64(at, Pointer::ABSENT.word() | u64::from(height));
            self.medium.flush(at, 8);
        }
        Ok(())
    }

    /// Frees the blocks of a directory that has no entry.
    ///
    /// | stored | fences |
    /// |---|---:|
    /// | the size, then the root: in one line | 1 |
    pub fn empty_dir(&self, dir: Ino, d: &VInode) {
        let mut blocks = Vec::new();
        let mut note = |block| blocks.push(block);
        let all = self.root(d).map(Node::top);
        if let Err(e) = all.and_then(|top| self.visit_most(top, &mut d.block_count(), &mut note)) {
            tracing::error!(%dir, %e, "its blocks stay allocated");
            return;
        }
        // Blocks behind the end are not in use (scan-S5).
        let ready = Fenced::not_needed("it has no entries");
        self.medium.publish_word(self.word_at(d, Word::Size), 0, ready);
        self.medium.store_u64(self.word_at(d, Word::Root), 0);
        self.medium.flush(d.at(), LINE);
        // backed-F4, for blocks of entries.
        let _ = self.medium.fence();
        self.v.drop_dir_state(d);
        d.add_blocks(-(blocks.len() as i64));
        self.v.release(&blocks);
    }
}

impl<M: Medium> Files<M> {
    fn check_backed(&self) -> Result<()> {
        if self.is_backed() { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    /// Checks the content that a change of a file needs, before the change (backed-K1); `needed`
    /// returns the range for the file's size. Leaves other errors to the change.
    pub fn check_present(&self, ino: Ino, needed: impl FnOnce(u64) -> Range<u64>) -> Result<()> {
        let Ok(v) = self.live_file(ino) else { return Ok(()) };
        self.check_range(v, &needed(self.load(v, Word::Size)))
    }

    /// Fails with `ENOSPC` if the blocks that a file lacks in a range exceed what it may gain
    /// (growth-G1).
    #[inline]
    pub fn check_growth(&self, v: &VInode, range: &Range<u64>) -> Result<()> {
        if !self.is_backed() {
            return Ok(());
        }
        let blocks = range.start - range.start % BLOCK..range.end.next_multiple_of(BLOCK);
        match self.v.growth().left() {
            Some(left) if left < blocks.end.saturating_sub(blocks.start) => {
                self.count_growth(v, blocks, left)
            }
            _ => Ok(()),
        }
    }

    /// Counts what [`check_growth`](Self::check_growth) compares with what is `left`.
    #[cold]
    fn count_growth(&self, v: &VInode, blocks: Range<u64>, left: u64) -> Result<()> {
        let end = self.load(v, Word::Size).next_multiple_of(BLOCK);
        let mut lacking = blocks.end.saturating_sub(end.max(blocks.start));
        let mut at = blocks.start;
        let inside = blocks.end.min(end);
        while at < inside
            && let Some(hole) = self.find_blocks(v, at, Pointer::is_null)?
            && hole.start < inside
        {
            lacking += hole.end.min(inside) - hole.start.max(at);
            at = hole.end;
        }
        if lacking > left { Err(Errno::NOSPC) } else { Ok(()) }
    }

    /// Returns the part of a range that consists of whole blocks; the last block of a file is whole
    /// if the range reaches its end.
    fn whole_blocks(&self, v: &VInode, range: &Range<u64>) -> Range<u64> {
        let size = self.load(v, Word::Size);
        let end = if range.end >= size { size } else { range.end - range.end % BLOCK };
        range.start.next_multiple_of(BLOCK)..end
    }

    /// Implements [`vfs::Backed::absent_range`].
    pub fn absent_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.check_backed()?;
        let _lock = self.v.lock_shared(ino)?;
        self.find_blocks(self.live_file(ino)?, from, Pointer::is_absent)
    }

    /// Implements [`vfs::Backed::dirty_range`].
    pub fn dirty_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.check_backed()?;
        let _lock = self.v.lock_shared(ino)?;
        self.dirty_blocks(self.live_file(ino)?, from)
    }

    /// Implements [`vfs::Backed::clean_range`].
    pub fn clean_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.check_backed()?;
        let _lock = self.v.lock_shared(ino)?;
        self.find_blocks(self.live_file(ino)?, from, Pointer::is_clean)
    }

    /// Implements [`vfs::Backed::hole_range`].
    pub fn hole_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.check_backed()?;
        let _lock = self.v.lock_shared(ino)?;
        self.find_blocks(self.live_file(ino)?, from, Pointer::is_null)
    }

    /// Implements [`vfs::Backed::load_content`].
    pub fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64> {
        self.check_backed()?;
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live_file(ino)?;
        let size = self.load(v, Word::Size);
        if !offset.is_multiple_of(BLOCK) {
            return Err(Errno::INVAL);
        }
        let end = self.whole_blocks(v, &(offset..offset.saturating_add(data.len() as u64))).end;
        let data = &data[..end.saturating_sub(offset) as usize];
        let (mut at, mut loaded) = (offset, 0);
        while at < end {
            match self.place_of(v, at)? {
                Reached::Hole(next) => at = next,
                Reached::Absent(slot, height, range) => {
                    self.expand(v, (slot, height, range.start), size)?;
                }
                Reached::Leaves(leaves) => {
                    at = leaves.range.end;
                    loaded += self.load_leaves(v, &leaves, offset, data)?;
                }
            }
        }
        self.note_whole(v, end, size)?;
        Ok(loaded)
    }

    /// Implements [`vfs::Backed::clean_content`].
    pub fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> Result<Option<u64>> {
        self.check_backed()?;
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live_file(ino)?;
        if !self.has_identity(v) {
            return Err(Errno::INVAL);
        }
        let Some(next) = self.v.version_after(ino, version)? else { return Ok(None) };
        let range = self.whole_blocks(v, &range);
        let mark = |word| Pointer::read(word).is_dirty().then_some(word | Pointer::CLEAN);
        self.counted(v, range.clone(), || self.mark_blocks(v, &range, mark))?;
        Ok(Some(next))
    }

    /// Stores the pointers to blocks of data that `new` returns for those in a range, durably.
    fn mark_blocks(
        &self,
        v: &VInode,
        range: &Range<u64>,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            match self.place_of(v, at)? {
                Reached::Hole(end) => at = end,
                Reached::Absent(_, _, range) => at = range.end,
                Reached::Leaves(leaves) => {
                    if let Some(slots) = self.change_leaves(&leaves, &(at..range.end), &new) {
                        self.medium.flush(slots.start, slots.end - slots.start);
                    }
                    at = leaves.range.end;
                }
            }
        }
        let _ = self.medium.fence();
        Ok(())
    }

    /// Implements [`vfs::Backed::load_hole`].
    pub fn load_hole(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        self.check_backed()?;
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live_file(ino)?;
        let (size, range) = (self.load(v, Word::Size), self.whole_blocks(v, &range));
        let root_at = self.word_at(v, Word::Root);
        let mut at = range.start;
        while at < range.end {
            match self.place_of(v, at)? {
                Reached::Hole(end) => at = end,
                // backed-F5: the backing store has a hole there.
                Reached::Absent(slot, height, absent)
                    if range.start <= absent.start && absent.end.min(size) <= range.end =>
                {
                    let tag = if slot == root_at { u64::from(height) } else { 0 };
                    self.medium.store_u64(slot, Pointer::NULL.word() | tag);
                    at = absent.end;
                }
                Reached::Absent(slot, height, absent) => {
                    self.expand(v, (slot, height, absent.start), size)?;
                }
                Reached::Leaves(leaves) => {
                    let hole = |word| Pointer::read(word).is_absent().then_some(0);
                    self.change_leaves(&leaves, &(at..range.end), hole);
                    at = leaves.range.end;
                }
            }
        }
        self.note_whole(v, range.end, size)
    }

    /// After a load up to `end`: if that is the end of the file, notes whether all of it is in the
    /// pool. Other loads do not look, as this looks at all pointers.
    fn note_whole(&self, v: &VInode, end: u64, size: u64) -> Result<()> {
        let may_be = v.state.load(Relaxed) & MAY_BE_ABSENT != 0;
        if end == size && may_be && self.find_blocks(v, 0, Pointer::is_absent)?.is_none() {
            v.state.fetch_and(!MAY_BE_ABSENT, Relaxed);
        }
        Ok(())
    }

    /// Stores the pointers that `new` returns for those that lie in `range`. Returns their places.
    fn change_leaves(
        &self,
        leaves: &Leaves,
        range: &Range<u64>,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Option<Range<PmOff>> {
        let mut stored: Option<Range<PmOff>> = None;
        for slot in leaves.blocks(range).map(|at| leaves.slot_of(at)) {
            if let Some(word) = new(self.medium.load_u64(slot)) {
                self.medium.store_u64(slot, word);
                stored = Some(stored.map_or(slot, |stored| stored.start)..slot + 8);
            }
        }
        stored
    }

    /// Implements [`vfs::Backed::evict_content`].
    pub fn evict_content(&self, ino: Ino, range: Range<u64>) -> Result<u64> {
        self.check_backed()?;
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live_file(ino)?;
        let range = self.whole_blocks(v, &range);
        // extent-U2.
        v.cut_extent(&range);
        v.state.fetch_or(MAY_BE_ABSENT, Relaxed);
        let mut freed = Vec::new();
        // A damaged tree keeps its blocks.
        self.evict_tree(v, &range, &mut freed)?;
        // backed-F4.
        let _ = self.medium.fence();
        v.add_blocks(-(freed.len() as i64));
        self.v.release(&freed);
        Ok(freed.len() as u64 * BLOCK)
    }

    /// Implements [`vfs::Backed::make_dirty`].
    pub fn make_dirty(&self, ino: Ino) -> Result<()> {
        self.check_backed()?;
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live(ino)?;
        self.unmark(v);
        let size = if v.kind() == FileKind::File { self.load(v, Word::Size) } else { 0 };
        let unmark = |word| Pointer::read(word).is_clean().then_some(word & !Pointer::CLEAN);
        self.counted(v, 0..size, || self.mark_blocks(v, &(0..size), unmark))
    }

    /// Implements [`vfs::Backed::reload`], and with `is_forced` [`vfs::Backed::replace`].
    pub fn reload(
        &self,
        ino: Ino,
        object: &LoadedObject<'_>,
        was: u32,
        is_forced: bool,
    ) -> Result<bool> {
        self.check_backed()?;
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        let v = self.live(ino)?;
        if !self.is_reloadable(v, object, was, is_forced)? {
            return Ok(false);
        }
        let mut content = Vec::new();
        if v.kind() == FileKind::File {
            let root = self.root_if_present(self.load(v, Word::Root))?;
            self.visit_all(Node::top(root), &mut |block| content.push(block))?;
            // extent-U2.
            v.cut_extent(&(0..u64::MAX));
        }
        let list = loaded_attributes(object);
        let old = self.attributes(v)?;
        let need = if list == old { 0 } else { blocks_of(&list) };
        let keep = self.keep_for(v, &list)?;
        let commit = |txn: &mut Txn<'_>| {
            let mut words = self.reloaded_words(v, object);
            if list != old {
                words.push((Word::Xattr, self.replace_attributes(txn, v, &list)?));
            }
            let placed: Words =
                words.iter().map(|(word, value)| (self.word_at(v, *word), *value)).collect();
            // The record is the only commit: a crash leaves the old state or the new one.
            if !placed.is_empty() {
                self.mark_by(v, || self.commit_words(ino, &placed))?;
            }
            // backed-F4: the blocks become free when the record is durably done.
            content.iter().for_each(|block| txn.free(*block));
            v.add_blocks(txn.delta());
            Ok::<(), Errno>(())
        };
        self.counted(v, 0..u64::MAX, || self.transact(need, keep, commit))?;
        self.note_reloaded(v, &list);
        Ok(true)
    }
}
