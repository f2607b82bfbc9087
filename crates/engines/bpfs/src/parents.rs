//! Shared blocks: more than one pointer leads to them ([`Files::clone_range`](crate::Files)), of
//! contents and of inode files ([`mod@crate::leaves`]).
//!
//! - parents-P1: a block has as many *parents* as pointers on the media lead to it. The number is
//!   derived, never stored. Only blocks with several parents have an entry here, which is not 0.
//! - parents-P2: a pointer of a copied block is another parent of the block that it leads to. It is
//!   counted before the copy is committed, and a parent is discounted after the commit without
//!   it is durable. So a block that counts as unshared has one parent, also after a crash.
//! - parents-P3: an inode owns a block if every block from its root to there has one parent. Only
//!   such a block changes in place; else the path to it is copied ([`CommitMode::Shared`],
//!   [`Store::own`]). Only an operation that holds the inode's lock can take that away.
//! - parents-P4: the thread that discounts the last parent frees the block. If it is a block of
//!   pointers, it is then no parent any more of the blocks that it leads to.
//! - parents-P5: a shared block of pointers has none that lies beyond the end of any of its files.
//!   So what a crash leaves (crawler-T3) is cleared in one file only.
//! - parents-P6: the parents of a block beyond one are its own count, which may be negative, plus
//!   the count of its line of [`IN_LINE`] blocks. So a copied block of pointers adds one to each
//!   line of blocks that it leads to. Only a thread with a pointer to each block of a line adds to
//!   the line, and nothing is subtracted there. A thread reads the block's own count first: so the
//!   sum is at least the number at that moment, and 0 only if the block has a single parent.
//!
//! A pool without shared blocks pays for one load ([`Volatile::shares`]).
//!
//! [`CommitMode::Shared`]: crate::crawler::CommitMode::Shared

use crate::blocks::Txn;
use crate::crawler::{CommitMode, CrawlChange, Edit, Node, Trees};
use crate::extent::FileExtent as _;
use crate::layout::*;
use crate::store::Store;
use crate::volatile::Volatile;
use arena::atomic::{AtomicU32, AtomicU64};
use arena::{Layout, Span};
use namespace::VInode;
use pmem::{Fenced, Medium};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use vfs::{Errno, Result};

/// Blocks whose words lie in one line.
const IN_LINE: u64 = 15;

/// The words of [`IN_LINE`] blocks, then the count of the line (parents-P6).
type ParentsLine = [AtomicU32; IN_LINE as usize + 1];

/// The parents of shared blocks.
#[derive(Clone, Copy)]
pub struct Parents {
    /// For each block: its own count of parents beyond one, and for the scan its [`BlockUse`].
    lines: Span<ParentsLine>,
    /// Not 0 if blocks may be shared; the second: if blocks of the inode file may be.
    in_use: Span<AtomicU64>,
}

/// The bits of a word that count parents beyond one, a signed number. The others are its
/// [`BlockUse`].
const COUNT: u32 = (1 << USE_SHIFT) - 1;
const USE_SHIFT: u32 = 28;

/// The most that a block counts by itself.
const OWN_MAX: i32 = (COUNT >> 1) as i32;

/// The most that a line counts: each of its blocks can subtract as much.
const LINE_MAX: u32 = COUNT >> 2;

/// Returns the block's own count in a word.
fn own_count(word: u32) -> i32 {
    (word << (u32::BITS - USE_SHIFT)) as i32 >> (u32::BITS - USE_SHIFT)
}

/// Returns the word with another count.
fn with_count(word: u32, count: i32) -> u32 {
    word & !COUNT | count as u32 & COUNT
}

/// The use of a block, as the scan of a pool with shared blocks has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// The content of a file or of a symbolic link.
    Content,
    /// An inode file, of the pool or of a snapshot.
    Inodes,
    /// Anything else: these blocks are never shared.
    Other,
}

impl BlockUse {
    /// Returns the word of the top of a subtree of this height.
    fn word(self, height: u8) -> u32 {
        let number = match self {
            Self::Content => u32::from(height) + 1,
            Self::Inodes => u32::from(height) + u32::from(HEIGHT_MAX) + 2,
            Self::Other => COUNT >> (USE_SHIFT - 4),
        };
        number << USE_SHIFT
    }
}

/// The result of a claim by the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The block had no owner.
    First,
    /// It has another parent, of the same kind.
    Shared,
    /// It is something else already, or has too many parents.
    Refused,
}

impl Parents {
    /// Plans the table. Memory is taken only for parts of the pool with shared blocks.
    pub fn plan(l: &mut Layout, blocks: u64) -> Self {
        Self { lines: l.table(blocks.div_ceil(IN_LINE) as usize), in_use: l.table(8) }
    }
}

impl Volatile {
    /// Returns whether blocks may be shared. If not, the blocks of an inode whose lock the caller
    /// holds are not shared before it gives that back.
    #[inline]
    pub fn shares(&self) -> bool {
        self.arena.table(self.parents.in_use)[0].load(Relaxed) != 0
    }

    /// Records that blocks may be shared.
    pub fn set_sharing(&self) {
        self.arena.table(self.parents.in_use)[0].store(1, SeqCst);
    }

    /// Returns whether snapshots may share leaves of the inode file ([`mod@crate::leaves`]).
    #[inline]
    pub fn shares_inodes(&self) -> bool {
        self.arena.table(self.parents.in_use)[1].load(Relaxed) != 0
    }

    /// Records that snapshots may share leaves of the inode file.
    pub fn set_sharing_inodes(&self) {
        self.arena.table(self.parents.in_use)[1].store(1, SeqCst);
    }

    /// Returns the word of a block, and the count of its line.
    #[inline]
    fn parents_of(&self, block: BlockNo) -> (&AtomicU32, &AtomicU32) {
        let line = &self.arena.table(self.parents.lines)[(block.get() / IN_LINE) as usize];
        (&line[(block.get() % IN_LINE) as usize], &line[IN_LINE as usize])
    }

    /// Returns the number of parents beyond one (parents-P6).
    #[inline]
    fn parents_beyond_one(&self, block: BlockNo) -> u32 {
        let (word, line) = self.parents_of(block);
        sum(word.load(Acquire), line)
    }

    /// Returns whether a block has more than one parent.
    #[inline]
    pub fn is_shared(&self, block: BlockNo) -> bool {
        self.shares() && self.parents_beyond_one(block) != 0
    }

    /// Counts a parent more. `ENOSPC` if there are too many to count.
    pub fn add_parent(&self, block: BlockNo) -> Result<()> {
        let more = |word| {
            let count = own_count(word);
            (count < OWN_MAX).then(|| with_count(word, count + 1))
        };
        let (word, _) = self.parents_of(block);
        word.fetch_update(AcqRel, Acquire, more).map_err(|_| Errno::NOSPC)?;
        Ok(())
    }

    /// Counts a parent more of the first of these children, or of all in its line if they are the
    /// next ones. Returns the number of children that it has dealt with.
    fn add_parents(&self, children: &[Option<BlockNo>]) -> Result<usize> {
        let Some(Some(first)) = children.first().copied() else { return Ok(1) };
        let whole = children.get(..IN_LINE as usize).filter(|line| {
            let are_next = |(child, number): (&Option<BlockNo>, u64)| {
                child.is_some_and(|child| child.get() == number)
            };
            first.get().is_multiple_of(IN_LINE) && line.iter().zip(first.get()..).all(are_next)
        });
        if let Some(whole) = whole {
            let (_, line) = self.parents_of(first);
            let more = |count: u32| (count < LINE_MAX).then(|| count + 1);
            if line.fetch_update(AcqRel, Acquire, more).is_ok() {
                return Ok(whole.len());
            }
        }
        self.add_parent(first).map(|()| 1)
    }

    /// Discounts a parent; returns whether it was the last one (parents-P4).
    pub fn drop_parent(&self, block: BlockNo) -> bool {
        let (word, line) = self.parents_of(block);
        let less = |word| (sum(word, line) > 0).then(|| with_count(word, own_count(word) - 1));
        word.fetch_update(AcqRel, Acquire, less).is_err()
    }

    /// Claims the top of a subtree for the scan of a pool that has shared blocks. One step decides
    /// which of several owners is the first.
    pub fn claim(&self, block: BlockNo, used_as: BlockUse, height: u8) -> Claim {
        let ((word, _), claimed) = (self.parents_of(block), used_as.word(height));
        match word.compare_exchange(0, claimed, AcqRel, Acquire) {
            // The blocks at fixed places have no use here.
            Ok(_) if self.blocks.set(&self.arena, block.get()) => Claim::First,
            Err(other) if other & !COUNT == claimed && used_as != BlockUse::Other => {
                self.set_sharing();
                if used_as == BlockUse::Inodes {
                    self.set_sharing_inodes();
                }
                self.add_parent(block).map_or(Claim::Refused, |()| Claim::Shared)
            }
            _ => Claim::Refused,
        }
    }
}

/// Returns the number of parents beyond one of a block with this word, which was loaded before
/// (parents-P6).
#[inline]
fn sum(word: u32, line: &AtomicU32) -> u32 {
    line.load(Acquire).saturating_add_signed(own_count(word))
}

impl Txn<'_> {
    /// Counts a parent more of the top of a subtree, until the operation fails.
    pub fn share(&mut self, block: BlockNo, height: u8) -> Result<()> {
        self.tables().add_parent(block)?;
        self.shared.push((block, height));
        Ok(())
    }

    /// Counts a parent more of all children of a shared block of pointers of this height, until the
    /// operation fails.
    pub fn share_children(
        &mut self,
        (block, height): (BlockNo, u8),
        children: &[Option<BlockNo>],
    ) -> Result<()> {
        let mut done = 0;
        while done < children.len() {
            match self.tables().add_parents(&children[done..]) {
                Ok(count) => done += count,
                Err(e) => {
                    let counted = children[..done].iter().flatten();
                    self.shared.extend(counted.map(|child| (*child, height - 1)));
                    return Err(e);
                }
            }
        }
        self.with_shared_children.push((block, height));
        Ok(())
    }

    /// Discounts the parent of a subtree of `count` blocks, if the operation succeeds.
    pub fn drop_tree(&mut self, block: BlockNo, height: u8, count: u64) {
        self.dropped.push((block, height));
        self.gain(-(count as i64));
    }
}

impl<M: Medium> Trees<M> {
    /// Counts the blocks of a subtree. A block that occurs several times counts each time, and is
    /// read once: `known` has the counts of those that were read.
    pub fn count_blocks(&self, node: Node, known: &mut HashMap<BlockNo, u64>) -> Result<u64> {
        let Some(block) = node.block else { return Ok(0) };
        if node.height == 0 {
            return Ok(1);
        }
        if let Some(count) = known.get(&block) {
            return Ok(*count);
        }
        let mut count = 1_u64;
        for (i, pointer) in (0..).zip(self.load_pointers(node.block)) {
            let child = node.child(i, self.block_if_present(pointer)?);
            count = count.saturating_add(self.count_blocks(child, known)?);
        }
        known.insert(block, count);
        Ok(count)
    }

    /// Drops a subtree from a tree: its blocks become free if the operation succeeds, as far as no
    /// other pointer leads to them.
    pub fn drop_subtree(&self, txn: &mut Txn<'_>, node: Node) -> Result<()> {
        if !txn.tables().shares() {
            return self.visit_all(node, &mut |block| txn.free(block));
        }
        let count = self.count_blocks(node, &mut HashMap::new())?;
        if let Some(block) = node.block {
            txn.drop_tree(block, node.height, count);
        }
        Ok(())
    }

    /// Returns whether a subtree has no pointer that lies at or beyond `size` (parents-P5).
    pub fn ends_within(&self, node: Node, size: u64) -> bool {
        let Some(block) = node.block.filter(|_| node.height > 0) else { return true };
        let below = span(node.height - 1);
        if node.base + span(node.height) <= size {
            return true;
        }
        let pointers = self.load_pointers(Some(block));
        let first = size.saturating_sub(node.base).div_ceil(below);
        let is_null = pointers[first.min(FANOUT) as usize..].iter().all(|p| p.is_null());
        is_null
            && (first == 0
                || self
                    .check_block(pointers[first as usize - 1])
                    .is_ok_and(|child| self.ends_within(node.child(first - 1, child), size)))
    }
}

/// Makes the path to a range its inode's own (parents-P3), and with `leaves` the blocks of data.
/// The content stays as it is.
pub struct OwnEdit<'a, M> {
    pub trees: &'a Trees<M>,
    pub range: Range<u64>,
    pub leaves: bool,
    /// Whether blocks of data are to be copied even if they have one parent.
    pub is_lent: bool,
}

impl<M: Medium> Edit for OwnEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn copies_path(&self) -> bool {
        true
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        _base: u64,
        mode: CommitMode,
    ) -> Result<CrawlChange> {
        let is_own = mode != CommitMode::Shared && !self.is_lent;
        let Some(old) = old.filter(|_| self.leaves && !is_own) else {
            return Ok(CrawlChange::Done);
        };
        let new = txn.take();
        self.trees.medium.copy_nt(new.at(0), old.at(0), BLOCK);
        txn.free(old);
        Ok(CrawlChange::Shadow(Some(new)))
    }
}

/// Discounts a parent of a subtree, as [`Store::drop_blocks`].
type DropTree<M> = fn(&Store<M>, Node, &mut dyn FnMut(BlockNo)) -> Result<()>;

impl<M: Medium> Store<M> {
    /// As [`Volatile::transact`], for operations on trees that may be shared.
    pub fn transact<T, E: From<Errno>>(
        &self,
        blocks: u64,
        keep: u64,
        body: impl FnOnce(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let (mut gone, mut inodes_gone) = (Vec::new(), Vec::new());
        let result = self.v.transact(blocks, keep, |txn| {
            let result = body(txn);
            let dropped = if txn.is_of_inodes { &mut inodes_gone } else { &mut gone };
            if result.is_ok() {
                *dropped = std::mem::take(&mut txn.dropped);
                return result;
            }
            // These are shared as before, so they have not changed.
            for (block, height) in &txn.with_shared_children {
                let children = self.load_pointers(Some(*block));
                let children = children.into_iter().filter_map(|p| self.check_block(p).ok()?);
                dropped.extend(children.map(|child| (child, height - 1)));
            }
            gone.append(&mut txn.shared);
            result
        });
        if !gone.is_empty() {
            self.discount(&gone, Self::drop_blocks);
        }
        if !inodes_gone.is_empty() {
            self.discount(&inodes_gone, Self::drop_inode_tree);
        }
        result
    }

    /// Discounts a parent of each of these subtrees, which was durably removed (parents-P2).
    #[cold]
    fn discount(&self, subtrees: &[(BlockNo, u8)], drop: DropTree<M>) {
        let mut freed = Vec::new();
        for (block, height) in subtrees {
            let node = Node { block: Some(*block), height: *height, base: 0 };
            if let Err(e) = drop(self, node, &mut |block| freed.push(block)) {
                tracing::error!(%e, "blocks of a shared tree stay allocated");
            }
        }
        self.v.release(&freed);
    }

    /// Discounts a parent of a subtree. If it was the last one, calls `free` for the block, after
    /// those below it of which the same holds (parents-P4).
    pub fn drop_blocks(&self, node: Node, free: &mut dyn FnMut(BlockNo)) -> Result<()> {
        let Some(block) = node.block else { return Ok(()) };
        if !self.v.drop_parent(block) {
            return Ok(());
        }
        if node.height > 0 {
            for (i, pointer) in (0..).zip(self.load_pointers(node.block)) {
                self.drop_blocks(node.child(i, self.check_block(pointer)?), free)?;
            }
        }
        free(block);
        Ok(())
    }

    /// Returns whether a block becomes free if a parent of it is discounted. `dropped` has the
    /// parents that were discounted so before, of shared blocks.
    pub fn would_be_last(&self, block: BlockNo, dropped: &mut HashMap<BlockNo, u32>) -> bool {
        let others = self.v.parents_beyond_one(block);
        if others == 0 {
            return true;
        }
        let dropped = dropped.entry(block).or_default();
        let is_last = *dropped >= others;
        *dropped += u32::from(!is_last);
        is_last
    }

    /// Returns the number of blocks that become free if a parent of this subtree is discounted.
    /// `dropped` is as for [`would_be_last`](Self::would_be_last).
    pub fn count_freed(&self, node: Node, dropped: &mut HashMap<BlockNo, u32>) -> Result<u64> {
        if node.block.is_none_or(|block| !self.would_be_last(block, dropped)) {
            return Ok(0);
        }
        let mut count = 1;
        if node.height > 0 {
            for (i, pointer) in (0..).zip(self.load_pointers(node.block)) {
                let child = node.child(i, self.check_block(pointer)?);
                count += self.count_freed(child, dropped)?;
            }
        }
        Ok(count)
    }

    /// Removes a subtree, to which no pointer of its inode leads any more: calls `free` for every
    /// block that becomes free. Returns the number of its blocks. There are at most `most` of them,
    /// which counts down ([`Trees::visit_most`]).
    pub fn take_down(
        &self,
        node: Node,
        most: &mut u64,
        free: &mut dyn FnMut(BlockNo),
    ) -> Result<u64> {
        let mut count = 0;
        if self.v.shares() {
            count = self.count_blocks(node, &mut HashMap::new())?;
            self.drop_blocks(node, free)?;
            return Ok(count);
        }
        let mut each = |block| {
            count += 1;
            free(block);
        };
        self.visit_most(node, most, &mut each)?;
        Ok(count)
    }

    /// Returns whether the inode owns the blocks of pointers on the way to byte `at`, of those that
    /// there are (parents-P3).
    #[inline]
    pub fn owns_path(&self, root: Root, at: u64) -> Result<bool> {
        Ok(!self.v.shares() || self.find_shared(root, at)?.is_none_or(|height| height == 0))
    }

    /// Returns whether the inode owns the block of data with byte `at`, and may change it in place.
    /// Readers without a copy may have got it from another file (pins-N1).
    #[inline]
    pub fn owns_block(&self, root: Root, at: u64) -> Result<bool> {
        let is_own = || Ok(self.find_shared(root, at)?.is_none() && !self.is_lent());
        if self.v.shares() { is_own() } else { Ok(true) }
    }

    /// Returns whether there are readers without a copy (pins-N1): they rely on never seeing
    /// in-place writes longer than a word.
    pub fn is_lent(&self) -> bool {
        self.v.pins().any(&self.v.arena)
    }

    /// Returns the height of the first block with several parents on the way to byte `at`.
    pub fn find_shared(&self, root: Root, at: u64) -> Result<Option<u8>> {
        let mut node = Node::top(root);
        while let Some(block) = node.block.filter(|_| at < root.span()) {
            if self.v.is_shared(block) {
                return Ok(Some(node.height));
            }
            if node.height == 0 {
                break;
            }
            let i = (at - node.base) / span(node.height - 1);
            node = node.child(i, self.load_child(block.at(i * 8))?);
        }
        Ok(None)
    }

    /// Makes the path to byte `at` the inode's own, and with `leaf` the block of data, before they
    /// change in place (parents-P3). Returns the root. `keep` blocks stay free.
    ///
    /// | prepared | stored | fences |
    /// |---|---|---:|
    /// | copies of the blocks from the first shared one on | the pointer to the first | 2 |
    #[inline]
    pub fn own(&self, v: &VInode, at: u64, leaf: bool, keep: u64) -> Result<Root> {
        let root = self.root(v)?;
        let is_own = match leaf {
            true => self.owns_block(root, at)?,
            false => self.owns_path(root, at)?,
        };
        if is_own || at >= root.span() {
            return Ok(root);
        }
        self.copy_path(v, root, at, leaf, keep)?;
        self.root(v)
    }

    #[cold]
    fn copy_path(&self, v: &VInode, root: Root, at: u64, leaf: bool, keep: u64) -> Result<()> {
        if leaf {
            v.cut_extent(&(at..at + 1));
        }
        self.transact(u64::from(root.height()) + 1, keep, |txn| {
            let is_lent = self.is_lent();
            let mut edit = OwnEdit { trees: self, range: at..at + 1, leaves: leaf, is_lent };
            self.edit_tree(txn, v, root, &mut edit)?;
            self.gain(v, txn.delta());
            Ok::<(), Errno>(())
        })?;
        // The bytes that change next are those of the copy, also after a crash (order-O2).
        self.v.settle(&self.trees.medium);
        Ok(())
    }

    /// Records on the media, durably, that blocks may be shared: before the first one is.
    pub fn begin_sharing(&self) {
        if self.v.shares() {
            return;
        }
        // Also if the word is there: another thread may have stored it, and not fenced yet.
        let word = namespace::shared_word(&self.medium);
        let ready = Fenced::not_needed("nothing is shared yet");
        let _ = self.medium.publish(namespace::POOL_SHARED, word, ready);
        self.v.set_sharing();
    }

    /// Records on the media, durably, that no blocks are shared, if the mount has found none, and
    /// none has been shared since. The last user of the pool calls this.
    pub fn end_sharing(&self) {
        let is_needed = self.v.shares() || namespace::may_have_snapshots(&self.medium);
        if namespace::may_share(&self.medium) && !is_needed {
            let ready = Fenced::not_needed("nothing is shared");
            let _ = self.medium.publish(namespace::POOL_SHARED, 0, ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volatile::VolatilePlan;
    use arena::Arena;
    use namespace::{Memory, PoolLength};

    fn volatile() -> Volatile {
        let mut plan = VolatilePlan::new(false, PoolLength { blocks: 64, expected: 64 });
        let arena = Arena::anonymous(plan.layout()).unwrap();
        plan.open(Memory::Fresh { arena, seed: 1 })
    }

    #[test]
    fn parents_are_counted_up_to_a_limit() {
        let (v, block) = (volatile(), BlockNo::new(20).unwrap());
        assert!(v.drop_parent(block), "it has one parent");
        v.set_sharing();
        v.add_parent(block).unwrap();
        assert!(v.is_shared(block) && !v.drop_parent(block) && !v.is_shared(block));
        let most = with_count(BlockUse::Content.word(4), OWN_MAX);
        v.parents_of(block).0.store(most, Relaxed);
        assert_eq!(v.add_parent(block), Err(Errno::NOSPC));
        assert_eq!(v.claim(block, BlockUse::Content, 4), Claim::Refused);
        assert!(!v.drop_parent(block));
        assert_eq!(v.claim(block, BlockUse::Content, 4), Claim::Shared);
    }

    #[test]
    fn lines_of_blocks_are_counted_together() {
        let v = volatile();
        v.set_sharing();
        let blocks: Vec<_> = (1..64).map(BlockNo::new).collect();
        let of = |number: u64| BlockNo::new(number).unwrap();
        let others = |number| v.parents_beyond_one(of(number));
        // Block 15 begins a line, and so do 30 and 45.
        assert_eq!(v.add_parents(&blocks[13..]), Ok(1));
        assert_eq!(v.add_parents(&blocks[14..]), Ok(15));
        assert_eq!(v.add_parents(&blocks[29..]), Ok(15));
        assert_eq!(v.add_parents(&blocks[29..43]), Ok(1), "the line is not complete");
        assert_eq!(v.add_parents(&[None]), Ok(1));
        let mut gap = blocks[44..].to_vec();
        gap[7] = None;
        assert_eq!(v.add_parents(&gap), Ok(1));
        let now = [13, 14, 15, 29, 30, 31, 44, 45, 46].map(others);
        assert_eq!(now, [0, 1, 1, 1, 2, 1, 1, 1, 0]);
        // Each block is discounted by itself, and begins another life with one parent.
        assert!(!v.drop_parent(of(15)) && v.drop_parent(of(15)) && v.drop_parent(of(15)));
        assert_eq!((others(15), others(16)), (0, 1));
        v.add_parent(of(15)).unwrap();
        assert_eq!(v.add_parents(&blocks[14..]), Ok(15));
        assert_eq!((others(15), others(16)), (2, 2));
        // A line that is full leaves the counts to its blocks.
        v.parents_of(of(15)).1.store(LINE_MAX, Relaxed);
        assert_eq!(v.add_parents(&blocks[14..]), Ok(1));
        assert_eq!(own_count(with_count(!0, -7)), -7);
        assert_eq!(with_count(BlockUse::Content.word(2), -1) & !COUNT, BlockUse::Content.word(2));
    }

    #[test]
    fn only_content_of_one_height_is_shared() {
        let v = volatile();
        let claim =
            |block, (used_as, height)| v.claim(BlockNo::new(block).unwrap(), used_as, height);
        let (content, other) = (|height| (BlockUse::Content, height), (BlockUse::Other, 0));
        assert_eq!(claim(20, content(0)), Claim::First);
        assert!(!v.shares());
        assert_eq!(claim(20, content(1)), Claim::Refused);
        assert_eq!(claim(20, other), Claim::Refused);
        assert_eq!(claim(20, content(0)), Claim::Shared);
        assert!(v.shares() && v.is_shared(BlockNo::new(20).unwrap()));
        assert_eq!(claim(21, other), Claim::First);
        assert_eq!(claim(21, other), Claim::Refused);
        assert_eq!(claim(21, content(0)), Claim::Refused);
        // A block at a fixed place.
        v.blocks.set(&v.arena, 3);
        assert_eq!(claim(3, content(0)), Claim::Refused);
    }
}
