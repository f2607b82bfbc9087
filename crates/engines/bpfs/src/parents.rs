//! Shared blocks: more than one pointer leads to them ([`Files::clone_range`](crate::Files)).
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

/// The parents of shared blocks.
#[derive(Clone, Copy)]
pub struct Parents {
    /// For each block: the parents beyond one, and for the scan its [`BlockUse`].
    words: Span<AtomicU32>,
    /// Not 0 if blocks may be shared.
    in_use: Span<AtomicU64>,
}

/// The bits of a word that count parents beyond one. The others are its [`BlockUse`].
const COUNT: u32 = (1 << USE_SHIFT) - 1;
const USE_SHIFT: u32 = 28;

/// The use of a block, as the scan of a pool with shared blocks has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// The content of a regular file: the top of a subtree of this height.
    Content(u8),
    /// Anything else: these blocks are never shared.
    Other,
}

impl BlockUse {
    fn word(self) -> u32 {
        let number = match self {
            Self::Content(height) => u32::from(height) + 1,
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
        Self { words: l.table(blocks as usize), in_use: l.table(8) }
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

    fn parents_of(&self, block: BlockNo) -> &AtomicU32 {
        &self.arena.table(self.parents.words)[block.get() as usize]
    }

    /// Returns whether a block has more than one parent.
    #[inline]
    pub fn is_shared(&self, block: BlockNo) -> bool {
        self.shares() && self.parents_of(block).load(Acquire) & COUNT != 0
    }

    /// Counts a parent more. `ENOSPC` if there are too many to count.
    pub fn add_parent(&self, block: BlockNo) -> Result<()> {
        let more = |word: u32| (word & COUNT < COUNT).then_some(word + 1);
        self.parents_of(block).fetch_update(AcqRel, Acquire, more).map_err(|_| Errno::NOSPC)?;
        Ok(())
    }

    /// Discounts a parent; returns whether it was the last one (parents-P4).
    pub fn drop_parent(&self, block: BlockNo) -> bool {
        let less = |word: u32| (word & COUNT > 0).then(|| word - 1);
        self.parents_of(block).fetch_update(AcqRel, Acquire, less).is_err()
    }

    /// Claims a block for the scan of a pool that has shared blocks. One step decides which of
    /// several owners is the first.
    pub fn claim(&self, block: BlockNo, used_as: BlockUse) -> Claim {
        let (word, used_as) = (self.parents_of(block), used_as.word());
        match word.compare_exchange(0, used_as, AcqRel, Acquire) {
            // The blocks at fixed places have no use here.
            Ok(_) if self.blocks.set(&self.arena, block.get()) => Claim::First,
            Err(other) if other & !COUNT == used_as && used_as != BlockUse::Other.word() => {
                self.set_sharing();
                self.add_parent(block).map_or(Claim::Refused, |()| Claim::Shared)
            }
            _ => Claim::Refused,
        }
    }
}

impl Txn<'_> {
    /// Counts a parent more of the top of a subtree, until the operation fails.
    pub fn share(&mut self, block: BlockNo, height: u8) -> Result<()> {
        self.tables().add_parent(block)?;
        self.shared.push((block, height));
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
struct OwnEdit<'a, M> {
    trees: &'a Trees<M>,
    range: Range<u64>,
    leaves: bool,
    /// Whether blocks of data are to be copied even if they have one parent.
    is_lent: bool,
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

impl<M: Medium> Store<M> {
    /// As [`Volatile::transact`], for operations on trees that may be shared.
    pub fn transact<T, E: From<Errno>>(
        &self,
        blocks: u64,
        keep: u64,
        body: impl FnOnce(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut gone = Vec::new();
        let result = self.v.transact(blocks, keep, |txn| {
            let result = body(txn);
            gone = std::mem::take(if result.is_ok() { &mut txn.dropped } else { &mut txn.shared });
            result
        });
        if !gone.is_empty() {
            self.discount(&gone);
        }
        result
    }

    /// Discounts a parent of each of these subtrees, which was durably removed (parents-P2).
    #[cold]
    fn discount(&self, subtrees: &[(BlockNo, u8)]) {
        let mut freed = Vec::new();
        for (block, height) in subtrees {
            let node = Node { block: Some(*block), height: *height, base: 0 };
            if let Err(e) = self.drop_blocks(node, &mut |block| freed.push(block)) {
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

    /// Returns the number of blocks that become free if a parent of this subtree is discounted.
    /// `dropped` has the parents that were discounted so before, of shared blocks.
    pub fn count_freed(&self, node: Node, dropped: &mut HashMap<BlockNo, u32>) -> Result<u64> {
        let Some(block) = node.block else { return Ok(0) };
        let others = self.v.parents_of(block).load(Acquire) & COUNT;
        if others > 0 {
            let dropped = dropped.entry(block).or_default();
            if *dropped < others {
                *dropped += 1;
                return Ok(0);
            }
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
    fn find_shared(&self, root: Root, at: u64) -> Result<Option<u8>> {
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
        v.parents_of(block).store(BlockUse::Content(4).word() | COUNT, Relaxed);
        assert_eq!(v.add_parent(block), Err(Errno::NOSPC));
        assert_eq!(v.claim(block, BlockUse::Content(4)), Claim::Refused);
        assert!(!v.drop_parent(block));
        assert_eq!(v.claim(block, BlockUse::Content(4)), Claim::Shared);
    }

    #[test]
    fn only_content_of_one_height_is_shared() {
        let v = volatile();
        let claim = |block, used_as| v.claim(BlockNo::new(block).unwrap(), used_as);
        let content = BlockUse::Content;
        assert_eq!(claim(20, content(0)), Claim::First);
        assert!(!v.shares());
        assert_eq!(claim(20, content(1)), Claim::Refused);
        assert_eq!(claim(20, BlockUse::Other), Claim::Refused);
        assert_eq!(claim(20, content(0)), Claim::Shared);
        assert!(v.shares() && v.is_shared(BlockNo::new(20).unwrap()));
        assert_eq!(claim(21, BlockUse::Other), Claim::First);
        assert_eq!(claim(21, BlockUse::Other), Claim::Refused);
        assert_eq!(claim(21, content(0)), Claim::Refused);
        // A block at a fixed place.
        v.blocks.set(&v.arena, 3);
        assert_eq!(claim(3, content(0)), Claim::Refused);
    }
}
