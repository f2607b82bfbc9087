//! The scan of trees: what [`namespace`] does for names, for blocks. Nothing is believed before it is checked:
//!
//! - scan-S1: a block has one owner. The first to claim its bit gets it; a second claim is a problem,
//!   and the walk does not follow it, so cycles end.
//! - scan-S2: a pointer is aligned and inside the pool; a height is at most 4.
//!
//! What a tree holds beyond the end of its file (crawler-T3) is what a crash left there (scan-S5). What is flushed, as
//! operations change it in place (scan-S6): the superblock, the inode file, and blocks of pointers; all else was
//! durable before a pointer led to it.

use crate::crawler::Node;
use crate::extent::{Extent, FileExtent as _};
use crate::layout::*;
use crate::store::Store;
use namespace::{Scan, Storage as _, VInode};
use pmem::Medium;
use vfs::FileKind;

/// How the walk of a tree treats its leaves and what it is called in reports.
struct Walk<'a> {
    scan: &'a Scan,
    object: &'a dyn Fn() -> String,
    /// Bytes of the tree that count.
    size: u64,
    blocks: u64,
}

impl<M: Medium> Store<M> {
    /// Walks the superblock and the inode file.
    pub fn scan_inode_file(&self, scan: &Scan) -> bool {
        self.v.blocks.set(&self.v.arena, 0);
        self.medium.flush(0, BLOCK);
        let object = || "the inode file".to_owned();
        let size = self.medium.load_u64(INODE_SIZE);
        if size == 0 || !size.is_multiple_of(BLOCK) || size > self.bytes {
            scan.problem(object, format!("its size {size} is impossible"), None);
            return false;
        }
        let mut walk = Walk { scan, object: &object, size, blocks: 0 };
        let mut next = 0;
        let sound = self.walk_root(&mut walk, INODE_ROOT, false, &mut |block, base| {
            self.medium.flush(block, BLOCK);
            if base == next {
                self.v.add_leaf(block, INODE);
                next += BLOCK;
            }
        });
        if sound && next != size {
            scan.problem(object, format!("it has a hole at byte {next}"), None);
        }
        sound && next == size
    }

    /// Walks the tree of an inode; of a file, notes the longest extent.
    pub fn scan_tree(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        v: &VInode,
        size: u64,
        each: &mut dyn FnMut(u64, u64),
    ) -> u64 {
        let mut walk = Walk { scan, object, size, blocks: 0 };
        let (mut extent, mut longest) = (Extent::default(), Extent::default());
        self.walk_root(&mut walk, self.word_off(v, Word::Root), true, &mut |block, base| {
            if !extent.extend(base / BLOCK, block / BLOCK) {
                extent = Extent { first: base / BLOCK, block: block / BLOCK, count: 1 };
            }
            if extent.count > longest.count {
                longest = extent;
            }
            each(block, base);
        });
        if v.kind() == FileKind::File {
            v.set_extent(longest);
        }
        walk.blocks
    }

    /// Walks the tree of an inode's attributes.
    pub fn scan_attribute_tree(&self, scan: &Scan, object: &dyn Fn() -> String, v: &VInode) -> u64 {
        let mut walk = Walk { scan, object, size: u64::MAX, blocks: 0 };
        let at = self.word_off(v, Word::Xattr);
        if self.walk_root(&mut walk, at, true, &mut |_, _| {}) && self.load_attributes(v).is_err() {
            let fix = Some(((at, 0), "drop the attributes"));
            scan.problem(object, "its attributes cannot be read".into(), fix);
        }
        walk.blocks
    }

    /// Claims the blocks of the tree under a root word; `leaf(block, base)` for those that count.
    /// Returns whether the whole tree is sound. `holes`: whether a bad pointer may become a hole.
    fn walk_root(
        &self,
        walk: &mut Walk<'_>,
        word_off: u64,
        holes: bool,
        leaf: &mut dyn FnMut(u64, u64),
    ) -> bool {
        let root = Root(self.medium.load_u64(word_off));
        if root.height() > HEIGHT_MAX {
            let what = format!("the height of its tree is {}", root.height());
            let fix = holes.then_some(((word_off, 0), "make the whole content a hole"));
            walk.scan.problem(walk.object, what, fix);
            return false;
        }
        if root.block() == 0 {
            return true;
        }
        if walk.size == 0 {
            walk.scan.note_stale(word_off);
            return true;
        }
        let hole = Root::new(0, root.height()).0;
        self.walk(walk, Node::top(root), (word_off, hole), holes, leaf)
    }

    fn walk(
        &self,
        walk: &mut Walk<'_>,
        node: Node,
        from: (u64, u64),
        holes: bool,
        leaf: &mut dyn FnMut(u64, u64),
    ) -> bool {
        let block = node.block;
        let bad = |what: String| {
            let fix = holes.then_some((from, "make it a hole"));
            walk.scan.problem(walk.object, what, fix);
            false
        };
        if !block.is_multiple_of(BLOCK) || block < BLOCK || block >= self.bytes {
            return bad(format!(
                "the pointer at {:#x} leads to {block:#x}, out of the pool",
                from.0
            ));
        }
        if !self.v.blocks.set(&self.v.arena, block / BLOCK) {
            return bad(format!("block {block:#x}, named at {:#x}, has another owner", from.0));
        }
        walk.blocks += 1;
        if node.height == 0 {
            leaf(block, node.base);
            return true;
        }
        self.medium.flush(block, BLOCK);
        let below = span(node.height - 1);
        let mut sound = true;
        for (i, pointer) in self.load_pointers(block).into_iter().enumerate() {
            if pointer == 0 {
                continue;
            }
            let base = node.base + i as u64 * below;
            let slot = block + i as u64 * 8;
            if base >= walk.size {
                walk.scan.note_stale(slot);
            } else {
                let child = Node { block: pointer, height: node.height - 1, base };
                sound &= self.walk(walk, child, (slot, 0), holes, leaf);
            }
        }
        sound
    }
}
