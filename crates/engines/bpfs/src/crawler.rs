//! The crawler (§3.4): walks a tree over a range and, for changes, passes the commit mode down.
//!
//! - crawler-T1: a shadow block is durable before the word that names it is stored
//!   ([`Trees::commit`]).
//! - crawler-T2: in [`CommitMode::Atomic`] at most one word of the visible tree is stored, as the
//!   last store. Alternatively several contiguous words are stored as one
//!   ([`Edit::commit_pointers`]).
//! - crawler-T3: no pointer beyond the end of a file survives an operation: the tree is null there
//!   (mount restores this after a crash). So a tree may be extended in place, invisibly.
//! - crawler-T4: every pointer is checked against the region before it is followed. A word that was
//!   read is a [`Pointer`], and only [`Trees::check_block`] makes a [`BlockNo`] of it.

use crate::blocks::Txn;
use crate::layout::*;
use pmem::{Medium, Pm, PmOff};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use vfs::{ABSENT, Errno, Result};
use zerocopy::IntoBytes;

/// The places at which a change to a subtree may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// Here or below, by storing one word.
    Atomic,
    /// Only above: return a shadow.
    Copy,
    /// Only above, and other trees keep the old blocks: the children of a copied block have a
    /// parent more (parents-P2).
    Shared,
}

impl CommitMode {
    /// Returns the mode for the children of a node that may change in several places.
    fn below(self) -> Self {
        if self == Self::Shared { Self::Shared } else { Self::Copy }
    }
}

/// The result of a change for a subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrawlChange {
    /// Nothing to do for the parent: unchanged, or committed below.
    Done,
    /// The parent must point here instead, or to a hole.
    Shadow(Option<BlockNo>),
}

/// A change to the leaves of a tree.
pub trait Edit {
    /// Returns the file ranges to visit: ascending, disjoint, not empty.
    fn ranges(&self) -> &[Range<u64>];

    /// Returns whether a subtree inside the ranges becomes a hole without a visit to its leaves.
    fn prunes(&self) -> bool {
        false
    }

    /// Returns whether blocks of pointers with several parents are copied even if nothing below
    /// them changes.
    fn copies_path(&self) -> bool {
        false
    }

    /// Replaces a whole subtree; `None` if its leaves have to be visited.
    fn subtree(&mut self, _txn: &mut Txn<'_>, _old: Node) -> Result<Option<CrawlChange>> {
        Ok(None)
    }

    /// Changes the leaf that covers `base..base + BLOCK`; `old` is its block, `None` for a hole. In
    /// `CommitMode::Atomic` it may store one word in place and return [`CrawlChange::Done`].
    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        mode: CommitMode,
    ) -> Result<CrawlChange>;

    /// Commits pointers that lie together in a block of the visible tree, all at once and durably.
    /// The blocks they lead to are written but not fenced. `false` if it cannot: then the pointer
    /// block is copied.
    fn commit_pointers(
        &mut self,
        _txn: &mut Txn<'_>,
        _at: PmOff,
        _pointers: &[Pointer],
    ) -> Result<bool> {
        Ok(false)
    }
}

/// A pointer block in DRAM.
type Pointers = [Pointer; FANOUT as usize];

/// A subtree: its topmost block (`None`: a hole), height, and the first byte of the file it covers.
#[derive(Clone, Copy)]
pub struct Node {
    pub block: Option<BlockNo>,
    pub height: u8,
    pub base: u64,
}

impl Node {
    /// Makes the whole tree under a root word.
    pub fn top(root: Root) -> Self {
        Self { block: root.block(), height: root.height(), base: 0 }
    }

    pub fn child(self, i: u64, block: Option<BlockNo>) -> Self {
        let height = self.height - 1;
        Self { block, height, base: self.base + i * span(height) }
    }

    fn end(self) -> u64 {
        self.base + span(self.height)
    }
}

/// The trees of a pool: its medium, and the functions that follow and change trees. It does not
/// know inodes or names.
pub struct Trees<M> {
    pub medium: Pm<M>,
    /// Length of the formatted part of the region.
    pub bytes: u64,
    /// The bits that a pointer to a block of data may have: [`Pointer::CLEAN`] in pools with a
    /// backing store, else 0.
    pub marks: u64,
}

impl<M: Medium> Trees<M> {
    /// Returns the block that a pointer leads to, if it is valid; `None` for a hole (crawler-T4).
    #[inline]
    pub fn check_block(&self, pointer: Pointer) -> Result<Option<BlockNo>> {
        let offset = pointer.word() & !self.marks;
        if offset >= self.bytes || !offset.is_multiple_of(BLOCK) {
            return Err(self.no_block(pointer));
        }
        // Only null has no block number.
        Ok(BlockNo::new(offset / BLOCK))
    }

    /// The error of a pointer that leads to no block of the pool.
    #[cold]
    fn no_block(&self, pointer: Pointer) -> Errno {
        match pointer {
            Pointer::ABSENT if self.is_backed() => ABSENT,
            _ => Errno::UCLEAN,
        }
    }

    /// Returns whether the pool has a backing store.
    #[inline]
    pub fn is_backed(&self) -> bool {
        self.marks != 0
    }

    /// As [`check_block`](Self::check_block); an absent subtree has no block.
    pub fn block_if_present(&self, pointer: Pointer) -> Result<Option<BlockNo>> {
        match pointer {
            Pointer::ABSENT if self.is_backed() => Ok(None),
            _ => self.check_block(pointer),
        }
    }

    /// As [`check_root`](Self::check_root); an absent tree has no block.
    pub fn root_if_present(&self, word: u64) -> Result<Root> {
        match split_root(word) {
            (Pointer::ABSENT, height) if self.is_backed() && height <= HEIGHT_MAX => {
                Ok(Root::new(None, height))
            }
            _ => self.check_root(word),
        }
    }

    /// Returns the block that the pointer at `slot` leads to.
    #[inline]
    pub fn load_child(&self, slot: PmOff) -> Result<Option<BlockNo>> {
        self.check_block(Pointer::read(self.medium.load_u64(slot)))
    }

    /// Checks a root word that was read from PM.
    #[inline]
    pub fn check_root(&self, word: u64) -> Result<Root> {
        let (block, height) = split_root(word);
        if height > HEIGHT_MAX {
            return Err(Errno::UCLEAN);
        }
        Ok(Root::new(self.check_block(block)?, height))
    }

    /// Returns the block that holds byte `at`; `None` in a hole.
    #[inline]
    pub fn find_block(&self, root: Root, at: u64) -> Result<Option<BlockNo>> {
        let mut height = root.height();
        let mut block = root.block();
        if at >= span(height) {
            return Ok(None);
        }
        while height > 0
            && let Some(pointers) = block
        {
            height -= 1;
            block = self.load_child(pointers.at(at / span(height) % FANOUT * 8))?;
        }
        Ok(block)
    }

    /// Returns the slot of the pointer to the leaf with byte `at`, and the block that it leads to.
    /// `None` if the tree is too low for `at`, or a pointer block on the way is missing.
    pub fn find_slot(
        &self,
        root: Root,
        root_off: PmOff,
        at: u64,
    ) -> Result<Option<(PmOff, Option<BlockNo>)>> {
        let mut height = root.height();
        if at >= span(height) {
            return Ok(None);
        }
        let (mut slot, mut block) = (root_off, root.block());
        while height > 0 {
            let Some(pointers) = block else { return Ok(None) };
            height -= 1;
            slot = pointers.at(at / span(height) % FANOUT * 8);
            block = self.load_child(slot)?;
        }
        Ok(Some((slot, block)))
    }

    /// Loads pointers to consecutive blocks of data into `pointers`, from byte `at` on; null for
    /// holes. Stops after `pointers.len()`, or at the end of a pointer block. Returns those loaded,
    /// at least one, unchecked (crawler-T4).
    pub fn leaf_pointers<'w>(
        &self,
        root: Root,
        at: u64,
        pointers: &'w mut [Pointer],
    ) -> Result<&'w [Pointer]> {
        let here = if root.height() == 0 { 1 } else { FANOUT - at / BLOCK % FANOUT };
        let here = pointers.len().min(here as usize);
        let pointers = &mut pointers[..here];
        match self.find_slot(root, PmOff::new(0), at)? {
            None => pointers.fill(Pointer::NULL),
            Some((_, block)) if root.height() == 0 => pointers[0] = Pointer::to(block),
            Some((slot, _)) => self.medium.read(slot, pointers.as_mut_bytes()),
        }
        if self.is_backed() {
            pointers.iter_mut().for_each(|pointer| *pointer = pointer.without_marks());
        }
        Ok(pointers)
    }

    /// Calls `leaf(block, base)` for every block of data in `range`, in order, until it returns
    /// `false`. Skips holes.
    pub fn visit(
        &self,
        node: Node,
        range: &Range<u64>,
        leaf: &mut dyn FnMut(BlockNo, u64) -> Result<bool>,
    ) -> Result<bool> {
        let Some(block) = node.block else { return Ok(true) };
        if node.base >= range.end || node.end() <= range.start {
            return Ok(true);
        }
        if node.height == 0 {
            return leaf(block, node.base);
        }
        let below = span(node.height - 1);
        let first = range.start.saturating_sub(node.base) / below;
        let last = (range.end - node.base).div_ceil(below).min(FANOUT);
        for i in first..last {
            let child = self.load_child(block.at(i * 8))?;
            if child.is_some() && !self.visit(node.child(i, child), range, leaf)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Calls `each` for every block of a subtree, pointers included.
    pub fn visit_all(&self, node: Node, each: &mut dyn FnMut(BlockNo)) -> Result<()> {
        self.visit_most(node, &mut { u64::MAX }, each)
    }

    /// As [`visit_all`](Self::visit_all), until there have been `most` blocks, which counts down. A
    /// caller that knows the number of blocks need not read all null pointers: most pointer blocks
    /// have few others.
    pub fn visit_most(
        &self,
        node: Node,
        most: &mut u64,
        each: &mut dyn FnMut(BlockNo),
    ) -> Result<()> {
        let Some(block) = node.block.filter(|_| *most > 0) else { return Ok(()) };
        *most -= 1;
        if node.height > 0 {
            let mut line = [Pointer::NULL; LINE_POINTERS as usize];
            for first in (0..FANOUT).step_by(line.len()) {
                if *most == 0 {
                    break;
                }
                self.medium.read(block.at(first * 8), line.as_mut_bytes());
                for (i, &pointer) in (first..).zip(&line) {
                    if !pointer.is_null() {
                        let child = node.child(i, self.block_if_present(pointer)?);
                        self.visit_most(child, most, each)?;
                    }
                }
            }
        }
        each(block);
        Ok(())
    }

    /// Loads a pointer block; for a hole, all pointers are null.
    pub fn load_pointers(&self, block: Option<BlockNo>) -> Pointers {
        let mut p = [Pointer::NULL; FANOUT as usize];
        if let Some(block) = block {
            self.medium.read(block.at(0), p.as_mut_bytes());
        }
        p
    }

    /// Fences the shadow blocks, then stores the word that names them and makes it durable
    /// (crawler-T1).
    pub fn commit(&self, word_off: PmOff, value: u64) {
        debug_assert!(word_off.get() + 8 <= self.bytes, "crawler-T4: a word behind the pool");
        let ready = self.medium.fence();
        let _ = self.medium.publish(word_off, value, ready);
    }

    /// Applies `edit` to a tree by copy-on-write, committing inside it if `mode` allows.
    pub fn edit(
        &self,
        txn: &mut Txn<'_>,
        node: Node,
        mode: CommitMode,
        edit: &mut dyn Edit,
    ) -> Result<CrawlChange> {
        let is_shared = node.block.is_some_and(|block| txn.tables().is_shared(block));
        let mode = if is_shared { CommitMode::Shared } else { mode };
        if node.height == 0 {
            return edit.leaf(txn, node.block, node.base, mode);
        }
        let below = span(node.height - 1);
        let inside: SmallVec<[Range<u64>; 4]> = edit
            .ranges()
            .iter()
            .filter(|r| r.start < node.end() && r.end > node.base)
            .map(|r| {
                let first = r.start.saturating_sub(node.base) / below;
                first..(r.end - node.base).div_ceil(below).min(FANOUT)
            })
            .collect();
        let (first, end) = (inside[0].start, inside[inside.len() - 1].end);

        if end - first == 1 {
            let slot = node.block.map(|block| block.at(first * 8));
            let child = slot.map_or(Ok(None), |slot| self.load_child(slot))?;
            let change = self.edit_child(txn, node.child(first, child), mode, edit)?;
            let new = match change {
                CrawlChange::Done => child,
                CrawlChange::Shadow(new) => new,
            };
            let copies = mode == CommitMode::Shared && edit.copies_path() && node.block.is_some();
            if new == child && !copies {
                return Ok(CrawlChange::Done);
            }
            if let (Some(slot), CommitMode::Atomic) = (slot, mode) {
                txn.commit(&self.medium, slot, Pointer::to(new).word());
                return Ok(CrawlChange::Done);
            }
            let mut pointers = self.load_pointers(node.block);
            self.leave_pointers(txn, node, mode, &pointers)?;
            pointers[first as usize] = Pointer::to(new);
            return Ok(self.shadow_pointers(txn, &pointers));
        }

        let mut pointers: SmallVec<[Pointer; 16]> =
            smallvec![Pointer::NULL; (end - first) as usize];
        if let Some(block) = node.block {
            self.medium.read(block.at(first * 8), pointers.as_mut_bytes());
        }
        let mut changed: Option<Range<u64>> = None;
        let mut next = first;
        for r in inside {
            for i in r.start.max(next)..r.end {
                let pointer = &mut pointers[(i - first) as usize];
                let child = self.check_block(*pointer)?;
                if let CrawlChange::Shadow(new) =
                    self.edit_child(txn, node.child(i, child), mode.below(), edit)?
                    && new != child
                {
                    *pointer = Pointer::to(new);
                    changed = Some(changed.map_or(i, |before| before.start)..i + 1);
                }
            }
            next = next.max(r.end);
        }
        let Some(changed) = changed else { return Ok(CrawlChange::Done) };
        if let (Some(block), CommitMode::Atomic) = (node.block, mode) {
            let at = block.at(changed.start * 8);
            let new = &pointers[(changed.start - first) as usize..(changed.end - first) as usize];
            if let [pointer] = new {
                txn.commit(&self.medium, at, pointer.word());
                return Ok(CrawlChange::Done);
            }
            if edit.commit_pointers(txn, at, new)? {
                return Ok(CrawlChange::Done);
            }
        }
        let mut all = self.load_pointers(node.block);
        self.leave_pointers(txn, node, mode, &all)?;
        all[first as usize..end as usize].copy_from_slice(&pointers);
        Ok(self.shadow_pointers(txn, &all))
    }

    /// As [`edit`](Self::edit), for a child. Frees it as a whole if `edit` prunes and its ranges
    /// cover it.
    fn edit_child(
        &self,
        txn: &mut Txn<'_>,
        child: Node,
        mode: CommitMode,
        edit: &mut dyn Edit,
    ) -> Result<CrawlChange> {
        if edit.prunes() {
            if child.block.is_none() {
                return Ok(CrawlChange::Done);
            }
            if edit.ranges().iter().any(|r| r.start <= child.base && r.end >= child.end()) {
                self.drop_subtree(txn, child)?;
                return Ok(CrawlChange::Shadow(None));
            }
        }
        if let Some(change) = edit.subtree(txn, child)? {
            return Ok(change);
        }
        self.edit(txn, child, mode, edit)
    }

    /// Leaves an old pointer block that is about to be copied: frees it, or if other trees keep it,
    /// counts the copy as another parent of its children.
    fn leave_pointers(
        &self,
        txn: &mut Txn<'_>,
        node: Node,
        mode: CommitMode,
        pointers: &Pointers,
    ) -> Result<()> {
        let Some(old) = node.block else { return Ok(()) };
        if mode != CommitMode::Shared {
            txn.free(old);
            return Ok(());
        }
        let mut children = [None; FANOUT as usize];
        for (child, pointer) in children.iter_mut().zip(pointers) {
            *child = self.check_block(*pointer)?;
        }
        txn.share_children((old, node.height), &children)?;
        txn.drop_tree(old, node.height, 1);
        Ok(())
    }

    /// Writes the pointers to a new block; without any pointer, makes a hole. Not durable yet.
    pub fn shadow_pointers(&self, txn: &mut Txn<'_>, pointers: &Pointers) -> CrawlChange {
        if pointers.iter().all(|p| p.is_null()) {
            return CrawlChange::Shadow(None);
        }
        let new = txn.take_pointers();
        self.medium.write_nt(new.at(0), pointers.as_bytes());
        CrawlChange::Shadow(Some(new))
    }

    /// Makes a tree at least as tall as `end` bytes need: the old tree becomes the first subtree of
    /// the new one. Changes nothing that is visible, so it commits on its own (§3.4). The caller
    /// has reserved one block for each level.
    pub fn grow(&self, txn: &mut Txn<'_>, root_off: PmOff, root: Root, end: u64) -> Root {
        let height = height_for(end);
        if height <= root.height() {
            return root;
        }
        let Some(mut block) = root.block() else {
            // A hole is the same at any height; the operation that fills it stores the height, too.
            return Root::new(None, height);
        };
        for _ in root.height()..height {
            let mut pointers = [Pointer::NULL; FANOUT as usize];
            pointers[0] = Pointer::to(block);
            block = txn.take_pointers();
            self.medium.write_nt(block.at(0), pointers.as_bytes());
        }
        let tall = Root::new(Some(block), height);
        self.commit(root_off, tall.word());
        tall
    }
}

/// Returns the most blocks that changing `ranges` of a tree of this height can take.
pub fn blocks_for(height: u8, ranges: &[Range<u64>]) -> u64 {
    ranges
        .iter()
        .map(|r| (0..=height).map(|h| r.end.div_ceil(span(h)) - r.start / span(h)).sum::<u64>())
        .sum()
}
