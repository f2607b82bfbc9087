//! The crawler (§3.4): walks a tree over a range and, for changes, passes the commit mode down.
//!
//! - crawler-T1: a shadow block is durable before the word that names it is stored ([`Trees::commit`]).
//! - crawler-T2: in [`Mode::Atomic`] at most one word of the visible tree is stored, and it is the last store.
//! - crawler-T3: no pointer beyond the end of a file survives an operation: what the tree holds there is null
//!   (mount restores this after a crash). So a tree may be extended in place, invisibly.
//! - crawler-T4: every pointer is checked against the region before it is followed.

use crate::blocks::Txn;
use crate::layout::*;
use pmem::{LINE, Medium};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Errno, Result};
use zerocopy::IntoBytes;

/// Where a change below may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Here or below, by storing one word.
    Atomic,
    /// Only above: return a shadow.
    Copy,
}

/// What became of a subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing to do for the parent: unchanged, or committed below.
    Done,
    /// The parent must point here instead (0: a hole).
    Shadow(u64),
}

/// A change to the leaves of a tree.
pub trait Edit {
    /// The file ranges to visit: ascending, disjoint, not empty.
    fn ranges(&self) -> &[Range<u64>];

    /// Whether a subtree inside the ranges simply becomes a hole.
    fn prunes(&self) -> bool {
        false
    }

    /// Changes the leaf that covers `base..base + BLOCK`; `old` is its block, 0 for a hole. In
    /// `Mode::Atomic` it may store one word in place and return [`Change::Done`].
    fn leaf(&mut self, txn: &mut Txn<'_>, old: u64, base: u64, mode: Mode) -> Result<Change>;
}

/// A pointer block in DRAM.
type Pointers = [u64; FANOUT as usize];

/// A subtree: its topmost block (0: a hole), height, and the first byte of the file it covers.
#[derive(Clone, Copy)]
pub struct Node {
    pub block: u64,
    pub height: u8,
    pub base: u64,
}

impl Node {
    /// The whole tree under a root word.
    pub fn top(root: Root) -> Self {
        Self { block: root.block(), height: root.height(), base: 0 }
    }

    pub fn child(self, i: u64, block: u64) -> Self {
        let height = self.height - 1;
        Self { block, height, base: self.base + i * span(height) }
    }

    fn end(self) -> u64 {
        self.base + span(self.height)
    }
}

/// The trees of a pool: its medium, and how what is read from it is followed and changed. Nothing here knows inodes or names.
pub struct Trees<M> {
    pub medium: M,
    /// Length of the formatted part of the region.
    pub bytes: u64,
}

impl<M: Medium> Trees<M> {
    /// A block offset read from PM, checked (crawler-T4).
    #[inline]
    pub fn check_block(&self, block: u64) -> Result<u64> {
        if block & (BLOCK - 1) == 0 && block >= BLOCK && block < self.bytes {
            Ok(block)
        } else {
            Err(Errno::UCLEAN)
        }
    }

    /// A root word read from PM, checked.
    #[inline]
    pub fn check_root(&self, word: u64) -> Result<Root> {
        let root = Root(word);
        if root.height() > HEIGHT_MAX {
            return Err(Errno::UCLEAN);
        }
        if root.block() != 0 {
            self.check_block(root.block())?;
        }
        Ok(root)
    }

    /// The block that holds byte `at`, 0 where it lies in a hole.
    #[inline]
    pub fn find_block(&self, root: Root, at: u64) -> Result<u64> {
        let mut height = root.height();
        let mut block = root.block();
        if at >= span(height) {
            return Ok(0);
        }
        while height > 0 && block != 0 {
            height -= 1;
            let i = at / span(height) % FANOUT;
            block = self.medium.load_u64(block + i * 8);
            if block != 0 {
                self.check_block(block)?;
            }
        }
        Ok(block)
    }

    /// The word that names the leaf with byte `at`, and what it says; `None` where a pointer block on
    /// the way is missing. Only for trees tall enough for `at`, unless the answer is `None`.
    pub fn find_slot(&self, root: Root, root_off: u64, at: u64) -> Result<Option<(u64, u64)>> {
        let mut height = root.height();
        if at >= span(height) {
            return Ok(None);
        }
        let (mut slot, mut block) = (root_off, root.block());
        while height > 0 {
            if block == 0 {
                return Ok(None);
            }
            height -= 1;
            slot = block + at / span(height) % FANOUT * 8;
            block = self.load_child(slot)?;
        }
        Ok(Some((slot, block)))
    }

    /// The pointers to the blocks of data from byte `at` on, unchecked, 0 for holes: at least one, at most
    /// those of one pointer block, and as many as `words` has room for.
    pub fn leaf_pointers<'w>(
        &self,
        root: Root,
        at: u64,
        words: &'w mut [u64],
    ) -> Result<&'w [u64]> {
        let here = if root.height() == 0 { 1 } else { FANOUT - at / BLOCK % FANOUT };
        let here = words.len().min(here as usize);
        let words = &mut words[..here];
        match self.find_slot(root, 0, at)? {
            None => words.fill(0),
            Some((_, block)) if root.height() == 0 => words[0] = block,
            Some((slot, _)) => self.medium.read(slot, words.as_mut_bytes()),
        }
        Ok(words)
    }

    /// Calls `leaf(block, base)` for every block of data in `range`, in order, until it says `false`.
    /// Holes are passed over.
    pub fn visit(
        &self,
        node: Node,
        range: &Range<u64>,
        leaf: &mut dyn FnMut(u64, u64) -> Result<bool>,
    ) -> Result<bool> {
        if node.block == 0 || node.base >= range.end || node.end() <= range.start {
            return Ok(true);
        }
        if node.height == 0 {
            return leaf(node.block, node.base);
        }
        let below = span(node.height - 1);
        let first = range.start.saturating_sub(node.base) / below;
        let last = (range.end - node.base).div_ceil(below).min(FANOUT);
        for i in first..last {
            let block = self.medium.load_u64(node.block + i * 8);
            if block != 0 {
                self.check_block(block)?;
                if !self.visit(node.child(i, block), range, leaf)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Calls `each` for every block of a subtree, pointers included.
    pub fn visit_all(&self, node: Node, each: &mut dyn FnMut(u64)) -> Result<()> {
        self.visit_most(node, &mut { u64::MAX }, each)
    }

    /// As [`visit_all`](Self::visit_all), until there have been `most`; they are counted down. Who knows
    /// how many there are does not wait for null pointers: most blocks of pointers have few others.
    pub fn visit_most(&self, node: Node, most: &mut u64, each: &mut dyn FnMut(u64)) -> Result<()> {
        if node.block == 0 || *most == 0 {
            return Ok(());
        }
        *most -= 1;
        if node.height > 0 {
            let mut line = [0u64; (LINE / 8) as usize];
            for first in (0..FANOUT).step_by(line.len()) {
                if *most == 0 {
                    break;
                }
                self.medium.read(node.block + first * 8, line.as_mut_bytes());
                for (i, &block) in (first..).zip(&line) {
                    if block != 0 {
                        self.check_block(block)?;
                        self.visit_most(node.child(i, block), most, each)?;
                    }
                }
            }
        }
        each(node.block);
        Ok(())
    }

    /// A pointer block, or a hole's worth of nulls.
    pub fn load_pointers(&self, block: u64) -> Pointers {
        let mut p = [0; FANOUT as usize];
        if block != 0 {
            self.medium.read(block, p.as_mut_bytes());
        }
        p
    }

    /// Ends the epoch of the shadows, stores the word that names them and makes it durable (crawler-T1).
    pub fn commit(&self, word_off: u64, value: u64) {
        let ready = self.medium.fence();
        let _ = self.medium.publish(word_off, value, ready);
    }

    /// Applies `edit` to a tree by copy-on-write, committing inside it where `mode` allows.
    pub fn edit(
        &self,
        txn: &mut Txn<'_>,
        node: Node,
        mode: Mode,
        edit: &mut dyn Edit,
    ) -> Result<Change> {
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
            let slot = node.block + first * 8;
            let child = if node.block == 0 { 0 } else { self.load_child(slot)? };
            let change = self.edit_child(txn, node.child(first, child), mode, edit)?;
            return match change {
                Change::Done => Ok(Change::Done),
                Change::Shadow(new) if new == child => Ok(Change::Done),
                Change::Shadow(new) if mode == Mode::Atomic && node.block != 0 => {
                    self.commit(slot, new);
                    Ok(Change::Done)
                }
                Change::Shadow(new) => {
                    let mut pointers = self.load_pointers(node.block);
                    pointers[first as usize] = new;
                    Ok(self.shadow_pointers(txn, node.block, &pointers))
                }
            };
        }

        let mut pointers = self.load_pointers(node.block);
        let mut changed: Option<(u64, usize)> = None;
        let mut next = first;
        for r in inside {
            for i in r.start.max(next)..r.end {
                let child = pointers[i as usize];
                if child != 0 {
                    self.check_block(child)?;
                }
                if let Change::Shadow(new) =
                    self.edit_child(txn, node.child(i, child), Mode::Copy, edit)?
                    && new != child
                {
                    pointers[i as usize] = new;
                    changed = Some((i, changed.map_or(1, |(_, n)| n + 1)));
                }
            }
            next = next.max(r.end);
        }
        match changed {
            None => Ok(Change::Done),
            Some((i, 1)) if mode == Mode::Atomic && node.block != 0 => {
                self.commit(node.block + i * 8, pointers[i as usize]);
                Ok(Change::Done)
            }
            Some(_) => Ok(self.shadow_pointers(txn, node.block, &pointers)),
        }
    }

    fn load_child(&self, slot: u64) -> Result<u64> {
        match self.medium.load_u64(slot) {
            0 => Ok(0),
            block => self.check_block(block),
        }
    }

    fn edit_child(
        &self,
        txn: &mut Txn<'_>,
        child: Node,
        mode: Mode,
        edit: &mut dyn Edit,
    ) -> Result<Change> {
        if edit.prunes() {
            if child.block == 0 {
                return Ok(Change::Done);
            }
            if edit.ranges().iter().any(|r| r.start <= child.base && r.end >= child.end()) {
                self.visit_all(child, &mut |b| txn.free(b))?;
                return Ok(Change::Shadow(0));
            }
        }
        self.edit(txn, child, mode, edit)
    }

    fn shadow_pointers(&self, txn: &mut Txn<'_>, old: u64, pointers: &Pointers) -> Change {
        if old != 0 {
            txn.free(old);
        }
        if pointers.iter().all(|p| *p == 0) {
            return Change::Shadow(0);
        }
        let new = txn.take_pointers();
        self.medium.write_nt(new, pointers.as_bytes());
        Change::Shadow(new)
    }

    /// Makes a tree at least as tall as `end` bytes need: the old tree becomes the first subtree of
    /// the new one. Changes nothing that is visible, so it commits on its own (§3.4). The caller has
    /// reserved one block a level.
    pub fn grow(&self, txn: &mut Txn<'_>, root_off: u64, root: Root, end: u64) -> Root {
        let height = height_for(end);
        if height <= root.height() {
            return root;
        }
        let mut block = root.block();
        if block == 0 {
            // A hole of any height is the same hole; whoever fills it stores the height, too.
            return Root::new(0, height);
        }
        for _ in root.height()..height {
            let mut pointers = [0; FANOUT as usize];
            pointers[0] = block;
            block = txn.take_pointers();
            self.medium.write_nt(block, pointers.as_bytes());
        }
        let tall = Root::new(block, height);
        self.commit(root_off, tall.0);
        tall
    }
}

/// The most blocks that changing `ranges` of a tree of this height can take.
pub fn blocks_for(height: u8, ranges: &[Range<u64>]) -> u64 {
    ranges
        .iter()
        .map(|r| (0..=height).map(|h| r.end.div_ceil(span(h)) - r.start / span(h)).sum::<u64>())
        .sum()
}
