//! Allocation, holes and shifts: `fallocate` and `seek`.

use crate::append::{AppendContent, blocks_to_append};
use crate::blocks::{KEEP, Txn};
use crate::crawler::{CommitMode, CrawlChange, Edit, Node, Trees};
use crate::extent::FileExtent as _;
use crate::fs::Files;
use crate::layout::*;
use namespace::{Storage as _, VInode};
use pmem::Medium;
use std::ops::Range;
use vfs::{Errno, Fallocate, Ino, Result, Seek};
use zerocopy::IntoBytes;

/// Makes a range a hole; the partial blocks at its ends become zeros.
struct PunchEdit<'a, M> {
    trees: &'a Trees<M>,
    range: Range<u64>,
}

impl<M: Medium> Edit for PunchEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn prunes(&self) -> bool {
        true
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        _mode: CommitMode,
    ) -> Result<CrawlChange> {
        let Some(old) = old else { return Ok(CrawlChange::Done) };
        let start = self.range.start.max(base) - base;
        let end = self.range.end.min(base + BLOCK) - base;
        txn.free(old);
        if end - start == BLOCK {
            return Ok(CrawlChange::Shadow(None));
        }
        let mut block = [0; BLOCK as usize];
        self.trees.medium.read(old.at(0), &mut block);
        block[start as usize..end as usize].fill(0);
        let new = txn.take();
        self.trees.medium.write_nt(new.at(0), &block);
        Ok(CrawlChange::Shadow(Some(new)))
    }
}

/// Makes a range zeros, with all of its blocks allocated.
struct ZeroEdit<'a, M> {
    trees: &'a Trees<M>,
    range: Range<u64>,
}

impl<M: Medium> Edit for ZeroEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        mode: CommitMode,
    ) -> Result<CrawlChange> {
        let is_ragged = base < self.range.start || base + BLOCK > self.range.end;
        if is_ragged && old.is_some() {
            return PunchEdit { trees: self.trees, range: self.range.clone() }
                .leaf(txn, old, base, mode);
        }
        if let Some(old) = old {
            txn.free(old);
        }
        let new = txn.take();
        self.trees.medium.zero_nt(new.at(0), BLOCK);
        Ok(CrawlChange::Shadow(Some(new)))
    }
}

/// Puts zeroed blocks into holes.
struct AllocateEdit<'a, M> {
    trees: &'a Trees<M>,
    range: Range<u64>,
}

impl<M: Medium> Edit for AllocateEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        _base: u64,
        _mode: CommitMode,
    ) -> Result<CrawlChange> {
        if old.is_some() {
            return Ok(CrawlChange::Done);
        }
        let new = txn.take();
        self.trees.medium.zero_nt(new.at(0), BLOCK);
        Ok(CrawlChange::Shadow(Some(new)))
    }
}

impl<M: Medium> Files<M> {
    /// Implements `FileSystem::fallocate`.
    pub fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let needed = |size| match mode {
            Fallocate::Collapse | Fallocate::Insert => 0..size,
            Fallocate::PunchHole => offset..offset.saturating_add(len).min(size),
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
                offset..offset.saturating_add(len).min(if keep_size { size } else { u64::MAX })
            }
        };
        let is_present = || self.check_present(ino, needed);
        self.change_if(&[ino], is_present, || {
            let v = self.live(ino)?;
            let size = self.load(v, Word::Size);
            let range = LIMITS.check_fallocate((v.kind(), size), mode, offset, len)?;
            let end = range.end;
            let new_size = |keep: bool| if keep { size } else { size.max(end) };
            self.revoke_capability(v)?;
            let changed = match mode {
                Fallocate::Collapse | Fallocate::Insert => 0..u64::MAX,
                _ => offset.min(size)..end,
            };
            self.counted(v, changed, || match mode {
                Fallocate::Allocate { keep_size } => {
                    self.allocate(v, size, range, new_size(keep_size))
                }
                Fallocate::PunchHole => self.punch(ino, v, size, range),
                Fallocate::ZeroRange { keep_size } => {
                    self.zero(ino, v, size, range, new_size(keep_size))
                }
                Fallocate::Collapse => self.shift(ino, v, size, range, true),
                Fallocate::Insert => self.shift(ino, v, size, range, false),
            })
        })
    }

    /// Allocates the part of `range` inside the file, then appends zeros up to `new_size`. Space
    /// beyond the end of the file is not kept (crawler-T3), so nothing is done for it.
    fn allocate(&self, v: &VInode, size: u64, range: Range<u64>, new_size: u64) -> Result<()> {
        self.check_growth(v, &(range.start..range.end.min(size.max(new_size))))?;
        let inside = range.start..range.end.min(size);
        if !inside.is_empty() {
            let range = inside.clone();
            let mut root = self.root(v)?;
            self.transact(blocks_to_append(root, &inside), KEEP, |txn| {
                root = self.grow(txn, self.word_at(v, Word::Root), root, inside.end);
                // The content does not change, so that this commits on its own.
                self.edit_tree(txn, v, root, &mut AllocateEdit { trees: self, range })?;
                self.gain(v, txn.delta());
                Ok::<(), Errno>(())
            })?;
        }
        if new_size > size {
            let root = self.root(v)?;
            let start = range.start.max(size);
            return self.append_content(v, root, size, start..new_size, AppendContent::Zeros);
        }
        self.touch_modified(v);
        let _ = self.medium.fence();
        Ok(())
    }

    /// Makes the part of `range` inside the file a hole, in one commit.
    fn punch(&self, ino: Ino, v: &VInode, size: u64, range: Range<u64>) -> Result<()> {
        let root = self.root(v)?;
        // Bytes of the last block beyond the end of the file do not count.
        let end = if range.end >= size { size.next_multiple_of(BLOCK) } else { range.end };
        let inside = range.start..end.min(root.span());
        let ragged = 2 * (u64::from(root.height()) + 1);
        v.cut_extent(&inside);
        self.transact(ragged, 0, |txn| {
            let mut words = Vec::new();
            self.touch_modified(v);
            if !inside.is_empty() {
                let mut edit = PunchEdit { trees: self, range: inside };
                if let CrawlChange::Shadow(b) =
                    self.edit(txn, Node::top(root), CommitMode::Atomic, &mut edit)?
                {
                    words.push((Word::Root, Root::new(b, root.height()).word()));
                }
            }
            let delta = txn.delta();
            self.commit_inode(ino, v, &words)?;
            v.add_blocks(delta);
            Ok(())
        })
    }

    /// Makes the part of `range` inside the file allocated zeros, and the file `new_size` long, in
    /// one commit.
    fn zero(
        &self,
        ino: Ino,
        v: &VInode,
        size: u64,
        range: Range<u64>,
        new_size: u64,
    ) -> Result<()> {
        let grows = new_size > size;
        let root = match grows {
            true => self.own(v, size, !size.is_multiple_of(BLOCK), KEEP)?,
            false => self.root(v)?,
        };
        let range = range.start..range.end.min(new_size);
        self.check_growth(v, &range)?;
        if grows && range.start >= size {
            return self.append_content(v, root, size, range, AppendContent::Zeros);
        }
        if range.is_empty() {
            self.touch_modified(v);
            let _ = self.medium.fence();
            return Ok(());
        }
        // Bytes of the last block beyond the end of the file do not count.
        let end = match range.end {
            end if end == new_size => end.next_multiple_of(BLOCK),
            end => end,
        };
        v.cut_extent(&range);
        let record = grows.then(|| self.hold_record(ino)).transpose()?;
        self.transact(blocks_to_append(root, &range), KEEP, |txn| {
            self.touch_modified(v);
            self.zero_tail(root, size, new_size)?;
            let root = self.grow(txn, self.word_at(v, Word::Root), root, range.end);
            let mut edit = ZeroEdit { trees: self, range: range.start..end };
            let Some(record) = &record else {
                self.edit_tree(txn, v, root, &mut edit)?;
                self.gain(v, txn.delta());
                return Ok(());
            };
            let CrawlChange::Shadow(block) =
                self.edit(txn, Node::top(root), CommitMode::Copy, &mut edit)?
            else {
                return Err(Errno::UCLEAN);
            };
            let delta = txn.delta();
            let root = Root::new(block, root.height()).word();
            self.commit_held(record, v, &[(Word::Root, root), (Word::Size, new_size)]);
            self.gain(v, delta);
            Ok(())
        })
    }

    /// Removes `range` (`collapse`) or makes room for it. Builds a new tree over the same blocks of
    /// data, and commits it together with the new size.
    fn shift(
        &self,
        ino: Ino,
        v: &VInode,
        size: u64,
        range: Range<u64>,
        collapse: bool,
    ) -> Result<()> {
        let len = range.end - range.start;
        let new_size = if collapse { size - len } else { size + len };
        let root = self.root(v)?;
        v.cut_extent(&(0..u64::MAX));
        let mut leaves = Vec::new();
        let mut gone = Vec::new();
        self.visit(Node::top(root), &(0..size), &mut |block, base| {
            match (base < range.start, collapse) {
                (true, _) => leaves.push((base, block)),
                (false, true) if base < range.end => gone.push(block),
                (false, true) => leaves.push((base - len, block)),
                (false, false) => leaves.push((base + len, block)),
            }
            Ok(true)
        })?;
        let height = height_for(new_size).max(root.height());
        let need = Self::interior_blocks(&leaves, height);
        self.transact(need, 0, |txn| {
            self.touch_modified(v);
            if self.v.shares() {
                for (_, leaf) in &leaves {
                    txn.share(*leaf, 0)?;
                    txn.gain(1);
                }
                self.drop_subtree(txn, Node::top(root))?;
            } else {
                gone.iter().for_each(|b| txn.free(*b));
                self.free_interior(txn, Node::top(root))?;
            }
            let block = self.build_over(txn, &leaves, height, 0);
            let delta = txn.delta();
            let root = Root::new(block, height).word();
            self.commit_inode(ino, v, &[(Word::Root, root), (Word::Size, new_size)])?;
            v.add_blocks(delta);
            Ok(())
        })
    }

    /// Returns the number of pointer blocks in a tree of this height over these leaves.
    fn interior_blocks(leaves: &[(u64, BlockNo)], height: u8) -> u64 {
        (1..=height)
            .map(|h| {
                let mut of: Vec<u64> = leaves.iter().map(|(base, _)| base / span(h)).collect();
                of.dedup();
                of.len() as u64
            })
            .sum()
    }

    /// Frees the pointer blocks of a subtree, but not its blocks of data.
    fn free_interior(&self, txn: &mut Txn<'_>, node: Node) -> Result<()> {
        let Some(block) = node.block.filter(|_| node.height > 0) else { return Ok(()) };
        if node.height > 1 {
            for pointer in self.load_pointers(node.block) {
                let block = self.check_block(pointer)?;
                self.free_interior(txn, Node { block, height: node.height - 1, base: 0 })?;
            }
        }
        txn.free(block);
        Ok(())
    }

    /// Builds a subtree over leaves, ascending, that all lie in it; `None` for none.
    fn build_over(
        &self,
        txn: &mut Txn<'_>,
        leaves: &[(u64, BlockNo)],
        height: u8,
        base: u64,
    ) -> Option<BlockNo> {
        if leaves.is_empty() || height == 0 {
            return leaves.first().map(|(_, block)| *block);
        }
        let below = span(height - 1);
        let mut pointers = [Pointer::NULL; FANOUT as usize];
        let mut rest = leaves;
        while let Some((first, _)) = rest.first() {
            let i = (first - base) / below;
            let end = base + (i + 1) * below;
            let n = rest.partition_point(|(at, _)| *at < end);
            let child = self.build_over(txn, &rest[..n], height - 1, base + i * below);
            pointers[i as usize] = Pointer::to(child);
            rest = &rest[n..];
        }
        let block = txn.take_pointers();
        self.medium.write_nt(block.at(0), pointers.as_bytes());
        Some(block)
    }

    /// Implements `FileSystem::seek`.
    pub fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let size = self.load(v, Word::Size);
        if offset >= size {
            return Err(Errno::NXIO);
        }
        // The start of the next data, and the end of the data that starts at `offset`.
        let (mut data, mut hole) = (None, offset);
        self.visit(Node::top(self.root(v)?), &(offset..size), &mut |_, base| {
            data = data.or(Some(base.max(offset)));
            if whence == Seek::Data || base > hole {
                return Ok(false);
            }
            hole = base + BLOCK;
            Ok(true)
        })?;
        match whence {
            Seek::Data => data.ok_or(Errno::NXIO),
            Seek::Hole => Ok(hole.min(size)),
        }
    }
}
