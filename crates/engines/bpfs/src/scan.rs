//! The scan of trees and blocks; [`namespace`] scans names. Everything is checked before it is
//! trusted:
//!
//! - scan-S1: a block has one owner. The first claim of its bit succeeds; a second claim is a
//!   problem, and the walk does not follow it, so cycles end. If files may share blocks, a second
//!   claim is another parent ([`crate::parents`]), provided that both are for content of regular
//!   files, at one height.
//! - scan-S2: a pointer is aligned and inside the pool; a height is at most 4.
//!
//! A crash may leave pointers beyond the end of a file (crawler-T3, scan-S5). The scan flushes
//! everything that operations change in place (scan-S6): the superblock, the inode file, and blocks
//! of pointers. All else was durable before a pointer led to it.

use crate::crawler::Node;
use crate::extent::{Extent, FileExtent as _};
use crate::layout::*;
use crate::parents::{BlockUse, Claim};
use crate::redo;
use crate::snapshots::{self, TableEntry};
use crate::store::Store;
use namespace::{MAY_BE_ABSENT, Scan, Storage as _, VInode};
use pmem::{Medium, PmOff};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use vfs::FileKind;

/// The blocks of pointers on the way to one of them.
type BlockPath = SmallVec<[BlockNo; HEIGHT_MAX as usize]>;

/// Notes of a scan, until its end, if files may share blocks.
#[derive(Default)]
pub struct SharedScan {
    /// The number of blocks below shared blocks of pointers.
    counts: Mutex<HashMap<BlockNo, u64>>,
    /// Pointers beyond the end of a file, each with the path to it.
    stale: Mutex<Vec<(PmOff, BlockPath)>>,
}

/// How the walk of a tree treats its leaves, and the name of the tree in reports.
struct ScanWalk<'a> {
    scan: &'a Scan,
    object: &'a dyn Fn() -> String,
    /// Bytes of the tree that belong to the file.
    size: u64,
    /// Whether a bad pointer may become a hole.
    holes: bool,
    /// Whether pointers may be absent or marked clean: those of a file's content, in a pool with a
    /// backing store.
    is_backed: bool,
    /// Whether a pointer is absent.
    has_absent: bool,
    /// The use of this tree's blocks, if blocks may have several parents.
    sharing: Option<BlockUse>,
    /// Subtrees that another walk claims, of an inode file.
    shared: Vec<Node>,
    /// The blocks of pointers above the current one, if blocks may have several parents.
    path: BlockPath,
    /// Whether blocks are counted that another walk claims.
    counts: bool,
    blocks: u64,
    /// Blocks of data that are not marked clean.
    dirty: u64,
}

/// A pointer that the walk has met, and the subtree that it should lead to.
struct Met {
    pointer: Pointer,
    /// The place of the pointer.
    slot: PmOff,
    /// The word that makes it a pointer to a hole.
    hole: u64,
    height: u8,
    /// First byte of the file that the subtree covers.
    base: u64,
}

impl<M: Medium> Store<M> {
    /// Finishes interrupted operations, then claims the superblock and the blocks of the inode
    /// file. Returns whether the inode file is sound.
    pub fn scan_inode_file(&self, scan: &Scan) -> bool {
        if !self.is_read_only() {
            redo::replay(&self.medium, self.bytes);
        }
        for block in 0..FIRST_INODES.get() {
            self.v.blocks.set(&self.v.arena, block);
        }
        self.medium.flush(PmOff::new(0), BLOCK);
        let object = || "the inode file".to_owned();
        let (root_at, size_at, root) = self.inode_words();
        let size = self.medium.load_u64(size_at);
        if !self.v.is_inode_file_size(size, INODE) {
            scan.problem(object, format!("its size {size} is impossible"), None);
            return false;
        }
        let mut walk = self.scan_walk_of_inodes(scan, &object, size);
        let mut next = 0;
        let sound = self.walk_word(&mut walk, (root_at, root), &mut |block, base| {
            self.medium.flush(block.at(0), BLOCK);
            if base == next {
                self.v.add_leaf(block.at(0), INODE);
                next += BLOCK;
            }
        });
        if sound && next != size {
            scan.problem(object, format!("it has a hole at byte {next}"), None);
        }
        sound && next == size
    }

    /// Claims the blocks of the tree of an inode, and calls `each(place, base)` for each block of
    /// data. For a file, records the longest extent. Returns the number of blocks.
    pub fn scan_tree(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        v: &VInode,
        size: u64,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> u64 {
        let mut walk = self.scan_walk(scan, object, size, Some(v.kind()));
        let (mut extent, mut longest) = (Extent::default(), Extent::default());
        self.walk_root(&mut walk, self.word_at(v, Word::Root), &mut |block, base| {
            if !extent.extend(base / BLOCK, block) {
                extent = Extent::of(base / BLOCK, block);
            }
            if extent.count() > longest.count() {
                longest = extent;
            }
            each(block.at(0), base);
        });
        if v.kind() == FileKind::File {
            v.set_extent(longest);
        }
        if walk.has_absent {
            v.state.fetch_or(MAY_BE_ABSENT, Relaxed);
        }
        if walk.is_backed {
            v.set_dirty_blocks(walk.dirty as i64);
        }
        walk.blocks
    }

    /// Claims the blocks of the tree with an inode's extended attributes (scan-S1), and reports
    /// damage. `object` names the inode in reports. Returns the number of blocks.
    pub fn scan_attribute_tree(&self, scan: &Scan, object: &dyn Fn() -> String, v: &VInode) -> u64 {
        let mut walk = self.scan_walk(scan, object, u64::MAX, None);
        let at = self.word_at(v, Word::Xattr);
        if self.walk_root(&mut walk, at, &mut |_, _| {}) && self.attributes(v).is_err() {
            let fix = Some(((at, 0), "drop the attributes"));
            scan.problem(object, "its attributes cannot be read".into(), fix);
        }
        walk.blocks
    }

    /// Begins the walk of a tree: the content of an inode of this kind, or another tree.
    fn scan_walk<'a>(
        &self,
        scan: &'a Scan,
        object: &'a dyn Fn() -> String,
        size: u64,
        content: Option<FileKind>,
    ) -> ScanWalk<'a> {
        let is_backed = content == Some(FileKind::File) && self.trees.is_backed();
        let used_as = match content {
            Some(FileKind::File | FileKind::Symlink) => BlockUse::Content,
            _ => BlockUse::Other,
        };
        let sharing = namespace::may_share(&self.medium).then_some(used_as);
        let path = BlockPath::new();
        ScanWalk {
            scan,
            object,
            size,
            holes: true,
            is_backed,
            has_absent: false,
            sharing,
            shared: Vec::new(),
            path,
            counts: true,
            blocks: 0,
            dirty: 0,
        }
    }

    /// Begins the walk of an inode file.
    fn scan_walk_of_inodes<'a>(
        &self,
        scan: &'a Scan,
        object: &'a dyn Fn() -> String,
        size: u64,
    ) -> ScanWalk<'a> {
        let walk = self.scan_walk(scan, object, size, None);
        let sharing = walk.sharing.map(|_| BlockUse::Inodes);
        ScanWalk { holes: false, counts: false, sharing, ..walk }
    }

    /// Claims the blocks of all snapshots, if the pool's present state is used.
    pub fn scan_snapshots(&self, scan: &Scan) {
        if self.snapshot.get().is_some() {
            return;
        }
        let (mut names, mut read) = (HashSet::new(), HashMap::new());
        for entry in snapshots::entries(&self.medium) {
            let name = entry.name();
            let object = || format!("snapshot {:?} at {:#x}", name, entry.root_at);
            let mut sound = entry.check(self.bytes);
            if sound.is_ok() && !names.insert(name.to_owned()) {
                sound = Err("another one has its name".to_owned());
            }
            match sound {
                Ok(()) => self.scan_snapshot(scan, &entry, &object, &mut read),
                Err(what) => {
                    scan.problem(object, what, Some(((entry.root_at, 0), "drop the snapshot")))
                }
            }
        }
    }

    /// Claims the blocks of a snapshot. Reports what is wrong with it. `read` has the leaves that
    /// it or an earlier snapshot has led to, each with its number in the inode file.
    fn scan_snapshot(
        &self,
        scan: &Scan,
        entry: &TableEntry,
        object: &dyn Fn() -> String,
        read: &mut HashMap<BlockNo, u64>,
    ) {
        let drop = Some(((entry.root_at, 0), "drop the snapshot"));
        let mut leaves = Vec::new();
        let size = self.medium.load_u64(entry.size_at);
        let mut walk = self.scan_walk_of_inodes(scan, object, size);
        let root = (entry.root_at, entry.root_word());
        let mut sound = self.walk_word(&mut walk, root, &mut |block, base| {
            leaves.push((base, block, true));
        });
        for node in std::mem::take(&mut walk.shared) {
            // The first walk reports damage.
            let all = self.visit(node, &(0..size), &mut |block, base| {
                leaves.push((base, block, false));
                Ok(true)
            });
            sound &= all.is_ok();
        }
        leaves.sort_unstable_by_key(|(base, ..)| *base);
        let follow = (0..size).step_by(BLOCK as usize).eq(leaves.iter().map(|(base, ..)| *base));
        if !sound || !follow {
            return scan.problem(object, "its inode file is damaged".to_owned(), drop);
        }
        for (n, (_, leaf, is_first)) in (0..).zip(leaves) {
            let first = n * INODES_PER_BLOCK;
            let is_of_pool = !is_first
                && self.v.inodes().get(first as usize).is_some_and(|v| v.at() == leaf.at(0));
            match read.insert(leaf, n) {
                None if is_first || is_of_pool => {}
                // Another snapshot has claimed what it leads to.
                Some(same) if same == n => continue,
                _ => return scan.problem(object, "a leaf has another place".to_owned(), drop),
            }
            for number in first..first + INODES_PER_BLOCK {
                // The names of the pool have led to its inodes.
                if is_of_pool && self.v.inodes()[number as usize].is_live() {
                    continue;
                }
                let object = || format!("{}, inode {number}", object());
                let at = leaf.at(number % INODES_PER_BLOCK * INODE);
                if self.scan_snapshot_inode(scan, at, &object).is_none() {
                    scan.problem(object, "it is no inode of a snapshot".to_owned(), drop);
                }
            }
        }
    }

    /// Claims the blocks of an inode of a snapshot. `None` if there cannot be such an inode.
    fn scan_snapshot_inode(
        &self,
        scan: &Scan,
        at: PmOff,
        object: &dyn Fn() -> String,
    ) -> Option<()> {
        let load = |word: Word| self.medium.load_u64(at + word as u64);
        let (mode, size) = (load(Word::Mode) as u32, load(Word::Size));
        if mode == 0 {
            return Some(());
        }
        let kind = FileKind::from_mode(mode)?;
        if size > LIMITS.file_size || kind == FileKind::Dir && !size.is_multiple_of(BLOCK) {
            return None;
        }
        let mut walk = self.scan_walk(scan, object, size, Some(kind));
        walk.counts = false;
        self.walk_root(&mut walk, at + Word::Root as u64, &mut |_, _| {});
        if load(Word::Xattr) != 0 {
            let mut walk = self.scan_walk(scan, object, u64::MAX, None);
            self.walk_root(&mut walk, at + Word::Xattr as u64, &mut |_, _| {});
        }
        Some(())
    }

    /// Reports what a crash left in one file, and another file would lose (parents-P5).
    pub fn check_stale(&self, scan: &Scan) {
        let is_shared = |path: &BlockPath| path.iter().any(|block| self.v.is_shared(*block));
        let mut noted = self.shared_scan.stale.lock().expect("no worker panics");
        let mut stale = scan.stale.lock().expect("no worker panics");
        for (slot, _) in noted.drain(..).filter(|(_, path)| is_shared(path)) {
            stale.retain(|(at, _)| *at != slot);
            let what = format!("the pointer at {slot:#x} lies beyond the end of a file");
            let fix = Some(((slot, 0), "make it a hole in all of its files"));
            scan.problem(|| "a shared block".into(), what, fix);
        }
        self.shared_scan.counts.lock().expect("no worker panics").clear();
    }

    /// Claims a block for the walk of a tree (scan-S1).
    fn claim(&self, walk: &ScanWalk<'_>, block: BlockNo, height: u8) -> Claim {
        match walk.sharing {
            Some(used_as) => self.v.claim(block, used_as, height),
            None if self.v.blocks.set(&self.v.arena, block.get()) => Claim::First,
            None => Claim::Refused,
        }
    }

    /// Counts the blocks of a subtree that another walk claims.
    fn count_shared(&self, node: Node) -> u64 {
        let mut counts = self.shared_scan.counts.lock().expect("no worker panics");
        // The first walk reports damage.
        self.count_blocks(node, &mut counts).unwrap_or(0)
    }

    /// Claims the blocks of the tree under a root word; calls `leaf(block, base)` for those within
    /// the size. Returns whether the whole tree is sound.
    fn walk_root(
        &self,
        walk: &mut ScanWalk<'_>,
        slot: PmOff,
        leaf: &mut dyn FnMut(BlockNo, u64),
    ) -> bool {
        let word = self.medium.load_u64(slot);
        self.walk_word(walk, (slot, word), leaf)
    }

    /// As [`walk_root`](Self::walk_root), with the root word, which was loaded.
    fn walk_word(
        &self,
        walk: &mut ScanWalk<'_>,
        (slot, word): (PmOff, u64),
        leaf: &mut dyn FnMut(BlockNo, u64),
    ) -> bool {
        let (pointer, height) = split_root(word);
        if height > HEIGHT_MAX {
            let what = format!("the height of its tree is {height}");
            let fix = walk.holes.then_some(((slot, 0), "make the whole content a hole"));
            walk.scan.problem(walk.object, what, fix);
            return false;
        }
        if pointer.is_null() {
            return true;
        }
        if walk.size == 0 {
            walk.scan.note_stale(slot);
            return true;
        }
        if walk.is_backed && pointer.is_absent() {
            walk.has_absent = true;
            return true;
        }
        let hole = Root::new(None, height).word();
        self.walk(walk, &Met { pointer, slot, hole, height, base: 0 }, leaf)
    }

    /// Claims the blocks of a subtree, under a pointer that is not null.
    fn walk(&self, walk: &mut ScanWalk<'_>, met: &Met, leaf: &mut dyn FnMut(BlockNo, u64)) -> bool {
        let bad = |what: String| {
            let fix = walk.holes.then_some(((met.slot, met.hole), "make it a hole"));
            walk.scan.problem(walk.object, what, fix);
            false
        };
        // The pointer is valid (scan-S2).
        let (slot, word) = (met.slot, met.pointer.word());
        let Ok(Some(block)) = self.check_block(met.pointer) else {
            return bad(format!("the pointer at {slot:#x} leads to {word:#x}, out of the pool"));
        };
        if met.pointer.is_clean() && (met.height > 0 || !walk.is_backed) {
            return bad(format!("the pointer at {slot:#x} to {word:#x} cannot be marked clean"));
        }
        // No other block claims it (scan-S1).
        let node = Node { block: Some(block), height: met.height, base: met.base };
        match self.claim(walk, block, met.height) {
            Claim::First => {}
            Claim::Shared if self.ends_within(node, walk.size) => {
                if walk.counts {
                    walk.blocks += self.count_shared(node);
                }
                if walk.sharing == Some(BlockUse::Inodes) {
                    walk.shared.push(node);
                }
                return true;
            }
            Claim::Shared => {
                let at = block.at(0);
                return bad(format!("block {at:#x}, which it shares, reaches beyond its end"));
            }
            Claim::Refused => {
                let (slot, at) = (met.slot, block.at(0));
                return bad(format!("block {at:#x}, named at {slot:#x}, has another owner"));
            }
        }
        walk.blocks += 1;
        if met.height == 0 {
            walk.dirty += u64::from(met.pointer.is_dirty());
            leaf(block, met.base);
            return true;
        }
        self.medium.flush(block.at(0), BLOCK);
        if walk.sharing.is_some() {
            walk.path.push(block);
        }
        let height = met.height - 1;
        let mut sound = true;
        for (i, pointer) in (0..).zip(self.load_pointers(Some(block))) {
            if pointer.is_null() {
                continue;
            }
            let (slot, base) = (block.at(i * 8), met.base + i * span(height));
            if base >= walk.size {
                walk.scan.note_stale(slot);
                if matches!(walk.sharing, Some(BlockUse::Content | BlockUse::Inodes)) {
                    let mut stale = self.shared_scan.stale.lock().expect("no worker panics");
                    stale.push((slot, walk.path.clone()));
                }
            } else if walk.is_backed && pointer.is_absent() {
                walk.has_absent = true;
            } else {
                let child = Met { pointer, slot, hole: 0, height, base };
                sound &= self.walk(walk, &child, leaf);
            }
        }
        walk.path.pop();
        sound
    }
}
