//! In-place append (§3.2): writing beyond the end of a file, where bytes are invisible until the
//! size includes them.
//!
//! Only a pointer whose range starts before the end of the file needs order. A hole there reads as
//! zeros, so the block that replaces it must be durable, zeros included, before the pointer is.

use crate::blocks::Txn;
use crate::crawler::{Node, Trees, blocks_for};
use crate::extent::Extent;
use crate::layout::*;
use pmem::{Fenced, LINE, Medium, PmOff};
use std::cell::Cell;
use std::ops::Range;
use vfs::Result;
use zerocopy::IntoBytes;

/// New content for a range of a file.
#[derive(Clone, Copy)]
pub enum AppendContent<'a> {
    Zeros,
    Bytes(&'a [u8]),
    /// The content of these blocks, one after the other (`None`: zeros). The range starts at a
    /// block boundary.
    Blocks(&'a [Option<BlockNo>]),
}

/// The arguments of an append.
struct Fill<'a> {
    size: u64,
    range: Range<u64>,
    content: AppendContent<'a>,
    /// The new leaves that are contiguous in the pool, from the first one on.
    extent: Cell<Extent>,
}

/// Returns the most blocks that appending up to `range.end` can take, growth of the tree included.
pub fn blocks_to_append(root: Root, range: &Range<u64>) -> u64 {
    let height = root.height().max(height_for(range.end));
    blocks_for(height, std::slice::from_ref(range)) + u64::from(height - root.height())
}

impl<M: Medium> Trees<M> {
    /// Zeroes the tail block of a file from `size` to `end`, so that a larger size does not bring
    /// back old bytes. The change is invisible.
    pub fn zero_tail(&self, root: Root, size: u64, end: u64) -> Result<()> {
        let end = end.min(size.next_multiple_of(BLOCK));
        if size < end
            && let Some(block) = self.find_block(root, size)?
        {
            self.medium.zero_nt(block.at(size % BLOCK), end - size);
        }
        Ok(())
    }

    /// Puts `content` at `range`, which starts at or after `size`, into a tree, and makes the tree
    /// tall enough for it: the old tree becomes the first subtree of the new one. Nothing becomes
    /// visible; the caller [commits](Self::publish_append). Returns the new root, and the extent of
    /// contiguous new leaves.
    pub fn fill(
        &self,
        txn: &mut Txn<'_>,
        root: Root,
        size: u64,
        range: Range<u64>,
        content: AppendContent<'_>,
    ) -> Result<(Root, Extent)> {
        self.zero_tail(root, size, range.start)?;
        let height = root.height().max(height_for(range.end));
        let is_within = range.start < span(root.height());
        let fill = Fill { size, range, content, extent: Cell::default() };
        let block = match root.block() {
            // A hole is the same at any height.
            None => self.fill_node(txn, Node { block: None, height, base: 0 }, &fill)?,
            Some(old) => {
                let top = Node::top(root);
                let top = if is_within { self.fill_node(txn, top, &fill)? } else { old };
                (root.height()..height).try_fold(top, |kept, below| {
                    let node = Node { block: None, height: below + 1, base: 0 };
                    self.new_pointers(txn, node, Some(kept), &fill)
                })?
            }
        };
        Ok((Root::new(Some(block), height), fill.extent.get()))
    }

    /// Stores the result of `fill`, which is `ready`. The tree shows its old content until the size
    /// is stored. The size is in the line of the root and so persists after it. The caller makes
    /// that line durable.
    pub fn publish_append(
        &self,
        root: (PmOff, Root),
        new: Root,
        size: (PmOff, u64),
        ready: Fenced,
    ) {
        if new != root.1 {
            self.medium.publish_word(root.0, new.word(), ready.for_another());
        }
        self.medium.publish_word(size.0, size.1, ready);
    }

    /// Returns the range of pointers of `node` that the append touches.
    fn touched(node: Node, fill: &Fill<'_>) -> Range<u64> {
        let below = span(node.height - 1);
        let first = fill.range.start.saturating_sub(node.base) / below;
        first..(fill.range.end - node.base).div_ceil(below).min(FANOUT)
    }

    /// Makes a block of pointers for a node without one; the first pointer leads to `kept`, if that
    /// is given.
    fn new_pointers(
        &self,
        txn: &mut Txn<'_>,
        node: Node,
        kept: Option<BlockNo>,
        fill: &Fill<'_>,
    ) -> Result<BlockNo> {
        // The pointer block is taken before the data is written: an atomic operation waits for the
        // non-temporal stores before it.
        if Self::touched(node, fill).end <= LINE_POINTERS {
            let (new, is_null_behind) = txn.take_line();
            debug_assert!(!is_null_behind || self.is_null_behind(new), "P2");
            let mut pointers = [Pointer::NULL; LINE_POINTERS as usize];
            self.fill_pointers(txn, node, kept, fill, &mut pointers)?;
            self.medium.write_nt(new.at(0), pointers.as_bytes());
            if !is_null_behind {
                self.medium.zero_nt(new.at(LINE), BLOCK - LINE);
            }
            return Ok(new);
        }
        let new = txn.take_pointers();
        let mut pointers = [Pointer::NULL; FANOUT as usize];
        self.fill_pointers(txn, node, kept, fill, &mut pointers)?;
        self.medium.write_nt(new.at(0), pointers.as_bytes());
        Ok(new)
    }

    fn is_null_behind(&self, pointers: BlockNo) -> bool {
        self.load_pointers(Some(pointers))[LINE_POINTERS as usize..].iter().all(|p| p.is_null())
    }

    /// Fills the pointers of a node that has none except `kept`.
    fn fill_pointers(
        &self,
        txn: &mut Txn<'_>,
        node: Node,
        kept: Option<BlockNo>,
        fill: &Fill<'_>,
        pointers: &mut [Pointer],
    ) -> Result<()> {
        pointers[0] = Pointer::to(kept);
        for i in Self::touched(node, fill) {
            if i > 0 || kept.is_none() {
                pointers[i as usize] =
                    Pointer::to(self.fill_node(txn, node.child(i, None), fill)?);
            }
        }
        Ok(())
    }

    /// Stores new content in a subtree, in place, and returns its topmost block. Takes blocks for
    /// holes.
    fn fill_node(&self, txn: &mut Txn<'_>, node: Node, fill: &Fill<'_>) -> Result<BlockNo> {
        if node.height == 0 {
            return Ok(self.fill_leaf(txn, node, fill));
        }
        let Some(block) = node.block else {
            return self.new_pointers(txn, node, None, fill);
        };
        let mut stored: Option<Range<PmOff>> = None;
        for i in Self::touched(node, fill) {
            let slot = block.at(i * 8);
            let child = node.child(i, self.load_child(slot)?);
            let new = self.fill_node(txn, child, fill)?;
            if Some(new) != child.block {
                let ready = if child.base < fill.size {
                    txn.fence(&self.medium)
                } else {
                    Fenced::not_needed("it lies beyond the size")
                };
                self.medium.publish_word(slot, Pointer::to(new).word(), ready);
                stored = Some(stored.map_or(slot, |s| s.start)..slot + 8);
            }
        }
        if let Some(s) = stored {
            self.medium.flush(s.start, s.end - s.start);
        }
        Ok(block)
    }

    /// Stores new content in a leaf, and returns its block. Takes and zeroes a new one for a hole.
    fn fill_leaf(&self, txn: &mut Txn<'_>, node: Node, fill: &Fill<'_>) -> BlockNo {
        let start = fill.range.start.max(node.base);
        let end = fill.range.end.min(node.base + BLOCK);
        let block = node.block.unwrap_or_else(|| txn.take());
        if node.block.is_none() {
            let mut extent = fill.extent.get();
            extent.extend(node.base / BLOCK, block);
            fill.extent.set(extent);
            if start > node.base {
                self.medium.zero_nt(block.at(0), start - node.base);
            }
        }
        let at = block.at(start - node.base);
        let from = (start - fill.range.start) as usize;
        let lines = end.next_multiple_of(LINE) - start;
        match fill.content {
            AppendContent::Bytes(data) => {
                self.write_last(at, &data[from..from + (end - start) as usize]);
            }
            AppendContent::Blocks(blocks) => match blocks[from / BLOCK as usize] {
                Some(block) => self.medium.copy_nt(at, block.at(0), lines),
                None => self.medium.zero_nt(at, lines),
            },
            AppendContent::Zeros => self.medium.zero_nt(at, lines),
        }
        block
    }

    /// Writes the end of a file: the last line whole, if it begins in `data`. Its bytes beyond the
    /// end of the file do not count. To write only a part of the line would mean waiting for the
    /// rest to come into the cache.
    pub fn write_last(&self, at: PmOff, data: &[u8]) {
        let behind = (at.get() as usize + data.len()) % LINE as usize;
        let Some(whole) = data.len().checked_sub(behind).filter(|_| behind > 0) else {
            return self.medium.write_nt(at, data);
        };
        let mut last = [0; LINE as usize];
        last[..behind].copy_from_slice(&data[whole..]);
        if whole > 0 {
            self.medium.write_nt(at, &data[..whole]);
        }
        self.medium.write_nt(at + whole as u64, &last);
    }

    /// Builds a new tree with this content; nothing leads to it yet.
    pub fn build_tree(&self, txn: &mut Txn<'_>, data: &[u8]) -> Result<Root> {
        let range = 0..data.len() as u64;
        let node = Node { block: None, height: height_for(range.end), base: 0 };
        let content = AppendContent::Bytes(data);
        let fill = Fill { size: 0, range, content, extent: Cell::default() };
        let block = self.fill_node(txn, node, &fill)?;
        Ok(Root::new(Some(block), node.height))
    }
}
