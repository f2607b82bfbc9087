//! Clones of ranges: files that share blocks ([`crate::parents`]).
//!
//! | clone | prepared | stored | fences |
//! |---|---|---|---:|
//! | of all of a file, to a file that is not longer | – | a record of root and size, then the words | 4 |
//! | of a range inside the file | blocks of pointers | pointer, or inode root | 2 |
//! | of a range across the end of the file | blocks of pointers | a record of root and size, then the words | 4 |
//!
//! The first clone of a pool takes a fence more ([`Store::begin_sharing`]).

use crate::blocks::{KEEP, Txn};
use crate::crawler::{CommitMode, CrawlChange, Edit, Node};
use crate::extent::FileExtent as _;
use crate::fs::Files;
use crate::layout::*;
use crate::store::Store;
use namespace::{Storage as _, VInode};
use pmem::Medium;
use std::collections::HashMap;
use std::ops::Range;
use vfs::{Errno, Ino, Result};

/// The fewest bytes that a copy shares: to copy less takes no longer, and spares the next overwrite
/// a copy of pointers.
const SHARE_FROM: u64 = 64 << 10;

/// Makes a range of a tree share the blocks of a range of another one, or of itself.
struct CloneEdit<'a, M> {
    store: &'a Store<M>,
    range: Range<u64>,
    from: Root,
    /// The byte of the source for the start of the range.
    from_start: u64,
}

impl<M: Medium> CloneEdit<'_, M> {
    /// Returns the byte of the source for byte `at`.
    fn source(&self, at: u64) -> u64 {
        self.from_start + (at - self.range.start)
    }

    /// Returns the subtree of the source of this height that begins at byte `at`. `None` if the
    /// source has none that begins there.
    fn find_subtree(&self, at: u64, height: u8) -> Result<Option<Option<BlockNo>>> {
        let mut node = Node::top(self.from);
        if !at.is_multiple_of(span(height)) || height > node.height {
            return Ok(None);
        }
        if at >= self.from.span() {
            return Ok(Some(None));
        }
        while let (true, Some(pointers)) = (node.height > height, node.block) {
            let i = (at - node.base) / span(node.height - 1);
            node = node.child(i, self.store.load_child(pointers.at(i * 8))?);
        }
        Ok(Some(node.block))
    }

    /// Returns whether the source has no block for this part of the range.
    fn is_hole(&self, node: Node) -> Result<bool> {
        let part = self.source(node.base)..self.source(node.base + span(node.height));
        self.store.visit(Node::top(self.from), &part, &mut |_, _| Ok(false))
    }
}

impl<M: Medium> Edit for CloneEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn subtree(&mut self, txn: &mut Txn<'_>, old: Node) -> Result<Option<CrawlChange>> {
        let end = old.base + span(old.height);
        if old.height == 0 || old.base < self.range.start || end > self.range.end {
            return Ok(None);
        }
        let new = match self.find_subtree(self.source(old.base), old.height)? {
            Some(new) => new,
            None if self.is_hole(old)? => None,
            None => return Ok(None),
        };
        if new == old.block {
            return Ok(Some(CrawlChange::Done));
        }
        if let Some(block) = new {
            txn.share(block, old.height)?;
            let count = self.store.count_blocks(Node { block: new, ..old }, &mut HashMap::new())?;
            txn.gain(count as i64);
        }
        self.store.drop_subtree(txn, old)?;
        Ok(Some(CrawlChange::Shadow(new)))
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        _mode: CommitMode,
    ) -> Result<CrawlChange> {
        let new = self.store.find_block(self.from, self.source(base))?;
        if new == old {
            return Ok(CrawlChange::Done);
        }
        if let Some(new) = new {
            txn.share(new, 0)?;
            txn.gain(1);
        }
        if let Some(old) = old {
            txn.free(old);
        }
        Ok(CrawlChange::Shadow(new))
    }
}

/// Returns the most blocks of pointers that a clone can take: to a range of a tree that will have
/// this height, from byte `from` of a tree of height `from_height`. Both files have at most `most`
/// blocks.
fn pointers_for(height: u8, range: &Range<u64>, (from, from_height): (u64, u8), most: u64) -> u64 {
    let shift = range.start.abs_diff(from);
    let at = |h: u8| {
        let all = range.end.div_ceil(span(h)) - range.start / span(h);
        // Subtrees are shared, except those at both ends of the range; or all of the source lies in
        // two of them.
        match shift.is_multiple_of(span(h)) || h > from_height {
            true => all.min(4),
            // Each leads to a block of one of the files.
            false => all.min(most.saturating_mul(2).saturating_add(4)),
        }
    };
    (1..=height).map(at).sum()
}

impl<M: Medium> Files<M> {
    /// Implements `FileSystem::clone_range`.
    pub fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        if self.is_backed() {
            return Err(Errno::OPNOTSUPP);
        }
        self.change(&[from.0, to.0], || {
            let (s, d) = (self.live_file(from.0)?, self.live_file(to.0)?);
            let (from_size, to_size) = (self.load(s, Word::Size), self.load(d, Word::Size));
            let is_same = from.0 == to.0;
            match LIMITS.check_clone(is_same, (from.1, from_size), (to.1, to_size), len)? {
                0 => Ok(()),
                len => self.share_range((s, from.1), (to.0, d, to.1), len),
            }
        })
    }

    /// Implements a part of `FileSystem::copy_range`: shares the range, if it is long enough to be
    /// worth it, and consists of whole blocks. Returns whether it did.
    pub fn copy_by_sharing(
        &self,
        from: (Ino, &VInode, u64),
        to: (Ino, &VInode, u64),
        len: u64,
    ) -> Result<bool> {
        let sizes = (self.load(from.1, Word::Size), self.load(to.1, Word::Size));
        let (source, sink) = ((from.2, sizes.0), (to.2, sizes.1));
        let is_same = from.0 == to.0;
        if len < SHARE_FROM
            || self.is_backed()
            || LIMITS.check_clone(is_same, source, sink, len).is_err()
        {
            return Ok(false);
        }
        self.share_range((from.1, from.2), to, len)?;
        Ok(true)
    }

    /// Makes a range of the file `d` share the blocks of a range of the file `s`. Both ranges were
    /// checked, and the files are locked.
    fn share_range(
        &self,
        (s, from): (&VInode, u64),
        (ino, d, to): (Ino, &VInode, u64),
        len: u64,
    ) -> Result<()> {
        self.revoke_capability(d)?;
        self.begin_sharing();
        let size = self.load(d, Word::Size);
        let end = to + len;
        if (from, to) == (0, 0) && len == self.load(s, Word::Size) && end >= size {
            return self.share_tree(s, (ino, d), len);
        }
        let (grows, has_gap) = (end > size, to >= size && !size.is_multiple_of(BLOCK));
        if has_gap {
            self.own(d, size, true, KEEP)?;
        }
        let (root, source) = (self.root(d)?, self.root(s)?);
        let record = grows.then(|| self.hold_record(ino)).transpose()?;
        let height = root.height().max(height_for(end));
        // The pointers behind both files may be shared, too.
        let is_rest = end >= size && from + len == self.load(s, Word::Size);
        let whole = if is_rest { span(height) } else { end };
        d.cut_extent(&(to..whole));
        let most = s.block_count().saturating_add(d.block_count());
        let need = pointers_for(height, &(to..end), (from, source.height()), most)
            + u64::from(height - root.height());
        self.transact(need, KEEP, |txn| {
            self.touch_modified(d);
            if has_gap {
                self.zero_tail(root, size, end)?;
            }
            let root = self.grow(txn, self.word_at(d, Word::Root), root, end);
            let range = to..whole;
            let mut edit = CloneEdit { store: self, range, from: source, from_start: from };
            let Some(record) = &record else {
                self.edit_tree(txn, d, root, &mut edit)?;
                self.gain(d, txn.delta());
                return Ok(());
            };
            let root = match self.edit(txn, Node::top(root), CommitMode::Copy, &mut edit)? {
                CrawlChange::Done => root,
                CrawlChange::Shadow(block) => Root::new(block, root.height()),
            };
            let delta = txn.delta();
            self.commit_held(record, d, &[(Word::Root, root.word()), (Word::Size, end)]);
            self.gain(d, delta);
            Ok(())
        })
    }

    /// Makes all of the file `d` share the tree of the file `s`, which is `size` bytes long.
    fn share_tree(&self, s: &VInode, (ino, d): (Ino, &VInode), size: u64) -> Result<()> {
        let (root, old) = (self.root(s)?, self.root(d)?);
        let record = self.hold_record(ino)?;
        self.transact(0, 0, |txn| {
            self.touch_modified(d);
            if let Some(block) = root.block() {
                txn.share(block, root.height())?;
            }
            self.drop_subtree(txn, Node::top(old))?;
            let attributes = self.count_attributes(s)?;
            txn.gain(s.block_count() as i64 - attributes as i64);
            // extent-U2.
            d.cut_extent(&(0..u64::MAX));
            let delta = txn.delta();
            self.commit_held(&record, d, &[(Word::Root, root.word()), (Word::Size, size)]);
            d.set_extent(s.extent());
            self.gain(d, delta);
            Ok(())
        })
    }
}
