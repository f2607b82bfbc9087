//! Content of files in a pool with a backing store ([`vfs::Backed`]): loaded, marked clean, and
//! evicted.
//!
//! - absent-F1: an absent pointer means the same as a block of absent pointers in its place, as far
//!   as they lie before the end of the file. So a subtree is expanded by one word, at any time.
//! - absent-F2: behind the end of a file no pointer is absent. What makes a file shorter or longer needs
//!   the block before that place, so no absent subtree reaches across it.
//! - absent-F3: a block that is marked clean does not change in place: the mark goes first.

use crate::blocks::KEEP;
use crate::crawler::Node;
use crate::extent::FileExtent as _;
use crate::fs::Files;
use crate::layout::*;
use crate::store::Store;
use namespace::{Storage as _, VInode};
use pmem::{LINE, Medium, PmOff};
use std::ops::Range;
use vfs::{Errno, Ino, Result};
use zerocopy::IntoBytes as _;

/// The pointers to blocks of data that lie together: of one pointer block, or the root of a tree of height 0.
struct Leaves {
    /// Where the first pointer lies.
    slot: PmOff,
    /// The range of the file that they cover.
    range: Range<u64>,
}

/// What lies at a byte of a file.
enum Place {
    Leaves(Leaves),
    /// An absent subtree: where its pointer lies, its height, and its range of the file.
    Absent(PmOff, u8, Range<u64>),
    /// A hole up to this byte.
    Hole(u64),
}

impl<M: Medium> Store<M> {
    /// Finds what lies at byte `at` of a file, which is smaller than the size.
    fn place_of(&self, v: &VInode, at: u64) -> Result<Place> {
        let root_off = self.word_at(v, Word::Root);
        let (mut pointer, mut height) = split_root(self.medium.load_u64(root_off));
        if height > HEIGHT_MAX {
            return Err(Errno::UCLEAN);
        }
        let (mut slot, mut base) = (root_off, 0);
        if at >= span(height) {
            return Ok(Place::Hole(u64::MAX));
        }
        loop {
            let range = base..base + span(height);
            if pointer == Pointer::ABSENT {
                return Ok(Place::Absent(slot, height, range));
            }
            if height == 0 {
                return Ok(Place::Leaves(Leaves { slot, range }));
            }
            let Some(block) = self.check_block(pointer)? else { return Ok(Place::Hole(range.end)) };
            height -= 1;
            if height == 0 {
                return Ok(Place::Leaves(Leaves { slot: block.at(0), range }));
            }
            let i = at / span(height) % FANOUT;
            (slot, base) = (block.at(i * 8), base + i * span(height));
            pointer = Pointer::read(self.medium.load_u64(slot));
        }
    }

    /// The first range of blocks at or after `from` of which the pointers are as wanted; `whole` is for absent subtrees.
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
                Place::Absent(_, _, range) => (is_wanted(Pointer::ABSENT), range.end),
                Place::Hole(end) => (is_wanted(Pointer::NULL), end),
                Place::Leaves(leaves) => {
                    let slot = leaves.slot + (at - leaves.range.start) / BLOCK * 8;
                    let pointer = Pointer::read(self.medium.load_u64(slot) & !7);
                    (is_wanted(pointer), at + BLOCK)
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

    /// The first range at or after `from` whose blocks are in the pool and not marked clean.
    pub fn dirty_blocks(&self, v: &VInode, from: u64) -> Result<Option<Range<u64>>> {
        let is_dirty = |p: Pointer| !p.is_null() && !p.is_absent() && !p.is_clean();
        self.find_blocks(v, from, is_dirty)
    }

    /// Takes the mark off the block with byte `at`, which is about to change in place (absent-F3). Durable on return.
    pub fn soil_block(&self, v: &VInode, root: Root, at: u64) -> Result<()> {
        if !self.is_backed() {
            return Ok(());
        }
        let slot = self.find_slot(root, self.word_at(v, Word::Root), at)?;
        let Some((slot, Some(_))) = slot else { return Ok(()) };
        let word = self.medium.load_u64(slot);
        if word & Pointer::CLEAN != 0 {
            self.commit(slot, word & !Pointer::CLEAN);
        }
        Ok(())
    }

    /// Replaces an absent subtree by a block of absent pointers (absent-F1).
    fn expand(&self, v: &VInode, (slot, height, base): (PmOff, u8, u64), size: u64) -> Result<()> {
        let below = span(height - 1);
        let mut pointers = [Pointer::NULL; FANOUT as usize];
        let count = (size - base).div_ceil(below).min(FANOUT);
        pointers[..count as usize].fill(Pointer::ABSENT);
        self.v.transact(1, KEEP, |txn| {
            let block = txn.take_pointers();
            self.medium.write_nt(block.at(0), pointers.as_bytes());
            let is_root = slot == self.word_at(v, Word::Root);
            let tag = if is_root { u64::from(height) } else { 0 };
            self.commit(slot, Pointer::to(block).word() | tag);
            v.add_blocks(1);
            Ok::<(), Errno>(())
        })
    }

    /// Puts data where the pointers are absent; returns the number of bytes.
    fn load_leaves(&self, v: &VInode, leaves: &Leaves, offset: u64, data: &[u8]) -> Result<u64> {
        let start = offset.max(leaves.range.start);
        let end = (offset + data.len() as u64).min(leaves.range.end);
        let slot_of = |at: u64| leaves.slot + (at - leaves.range.start) / BLOCK * 8;
        // The root of a tree has its height in the low bits: 0 here.
        let is_absent = |at: &u64| self.medium.load_u64(slot_of(*at)) == Pointer::ABSENT.word();
        let absent: Vec<u64> =
            (start..end).step_by(BLOCK as usize).filter(|at| is_absent(at)).collect();
        if absent.is_empty() {
            return Ok(0);
        }
        self.v.transact(absent.len() as u64, KEEP, |txn| {
            for (i, &at) in (0..).zip(&absent) {
                let block = txn.take();
                debug_assert_eq!(txn.taken(i), block);
                let from = (at - offset) as usize;
                let bytes = &data[from..data.len().min(from + BLOCK as usize)];
                let whole = bytes.len() - bytes.len() % LINE as usize;
                self.medium.write_nt(block.at(0), &bytes[..whole]);
                if whole < bytes.len() {
                    let mut last = [0; LINE as usize];
                    last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
                    self.medium.write_nt(block.at(whole as u64), &last);
                }
            }
            // crawler-T1.
            let ready = self.medium.fence();
            for (i, &at) in (0..).zip(&absent) {
                let (slot, pointer) = (slot_of(at), Pointer::clean(txn.taken(i)));
                self.medium.publish_word(slot, pointer.word(), ready.for_another());
                self.medium.flush(slot, 8);
            }
            let _ = self.medium.fence();
            v.add_blocks(txn.delta());
            Ok::<(), Errno>(())
        })?;
        Ok(absent.iter().map(|at| BLOCK.min(end - at)).sum())
    }
}

impl<M: Medium> Files<M> {
    /// [`vfs::Backed::absent_range`].
    pub fn absent_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        self.find_blocks(v, from, Pointer::is_absent)
    }

    /// [`vfs::Backed::dirty_range`].
    pub fn dirty_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        self.dirty_blocks(v, from)
    }

    /// [`vfs::Backed::load_content`].
    pub fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64> {
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        let v = self.live_file(ino)?;
        let size = self.load(v, Word::Size);
        let end = size.min(offset.saturating_add(data.len() as u64));
        if !self.is_backed() || !offset.is_multiple_of(BLOCK) {
            return Err(Errno::INVAL);
        }
        // A part of a block that is not the last would take the rest for zeros.
        let end = if end == size { end } else { end - end % BLOCK };
        let (mut at, mut loaded) = (offset, 0);
        while at < end {
            match self.place_of(v, at)? {
                Place::Hole(next) => at = next,
                Place::Absent(slot, height, range) if height > 0 => {
                    self.expand(v, (slot, height, range.start), size)?;
                }
                Place::Absent(slot, _, range) => {
                    // The only block of a tree of height 0: other leaves are found with their neighbours.
                    let leaves = Leaves { slot, range };
                    at = leaves.range.end;
                    loaded +=
                        self.load_leaves(v, &leaves, offset, &data[..(end - offset) as usize])?;
                }
                Place::Leaves(leaves) => {
                    at = leaves.range.end;
                    loaded +=
                        self.load_leaves(v, &leaves, offset, &data[..(end - offset) as usize])?;
                }
            }
        }
        Ok(loaded)
    }

    /// [`vfs::Backed::clean_content`].
    pub fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> Result<bool> {
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        let v = self.live_file(ino)?;
        if !self.is_backed() || !v.lock.is_first_since_version(version as u32) {
            return Ok(false);
        }
        let is_dirty = |p: Pointer| !p.is_null() && !p.is_absent() && !p.is_clean();
        self.each_leaf(v, &range, &mut |slot, word| {
            if is_dirty(Pointer::read(word & !7)) {
                self.medium.store_u64(slot, word | Pointer::CLEAN);
                self.medium.flush(slot, 8);
            }
        })?;
        let _ = self.medium.fence();
        Ok(true)
    }

    /// Calls `each` with place and word of every pointer to a block of data in a range.
    fn each_leaf(
        &self,
        v: &VInode,
        range: &Range<u64>,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> Result<()> {
        let end = range.end.min(self.load(v, Word::Size));
        let mut at = range.start - range.start % BLOCK;
        while at < end {
            match self.place_of(v, at)? {
                Place::Hole(next) => at = next,
                Place::Absent(_, _, range) => at = range.end,
                Place::Leaves(leaves) => {
                    let last = end.min(leaves.range.end);
                    while at < last {
                        let slot = leaves.slot + (at - leaves.range.start) / BLOCK * 8;
                        each(slot, self.medium.load_u64(slot));
                        at += BLOCK;
                    }
                }
            }
        }
        Ok(())
    }

    /// [`vfs::Backed::evict_content`].
    pub fn evict_content(&self, ino: Ino, range: Range<u64>) -> Result<u64> {
        self.check_writable()?;
        let _lock = self.v.lock_exclusive(&[ino])?;
        let v = self.live_file(ino)?;
        if !self.is_backed() {
            return Err(Errno::OPNOTSUPP);
        }
        // extent-U2.
        v.cut_extent(&range);
        let mut freed = Vec::new();
        let mut damage = Ok(());
        self.each_leaf(v, &range, &mut |slot, word| {
            let pointer = Pointer::read(word & !7);
            if !pointer.is_clean() {
                return;
            }
            match self.check_block(pointer) {
                Ok(Some(block)) => {
                    self.medium.store_u64(slot, Pointer::ABSENT.word());
                    self.medium.flush(slot, 8);
                    freed.push(block);
                }
                Ok(None) => {}
                Err(e) => damage = Err(e),
            }
        })?;
        damage?;
        let _ = self.medium.fence();
        self.collapse(v, &mut freed)?;
        v.add_blocks(-(freed.len() as i64));
        self.v.release(&freed);
        Ok(freed.len() as u64 * BLOCK)
    }

    /// Makes a tree absent as a whole if no block of data is left in it (absent-F1).
    fn collapse(&self, v: &VInode, freed: &mut Vec<BlockNo>) -> Result<()> {
        let root_off = self.word_at(v, Word::Root);
        let word = self.medium.load_u64(root_off);
        let root = self.root_if_present(word)?;
        if root.height() == 0
            || root.block().is_none()
            || self.find_blocks(v, 0, |p| !p.is_absent())?.is_some()
        {
            return Ok(());
        }
        let mut interior = Vec::new();
        self.visit_all(Node::top(root), &mut |block| interior.push(block))?;
        self.commit(root_off, Pointer::ABSENT.word() | u64::from(root.height()));
        freed.extend(interior);
        Ok(())
    }
}
