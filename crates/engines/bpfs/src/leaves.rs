//! Leaves of the inode file, which the pool shares with snapshots.
//!
//! - leaves-J1: a snapshot begins with the blocks of the pool's inode file: a creation counts a
//!   parent more of the topmost one. A shared leaf is a parent of all that its inodes lead to:
//!   contents, and also directories and attributes, which have no other parent.
//! - leaves-J2: nothing in a shared leaf changes, nor in the directories and attributes that it
//!   leads to. Before an operation takes the locks of the inodes that it changes, their leaves
//!   become the pool's own ([`namespace::Storage::own_inodes`]): they are copied. They stay so
//!   until it ends, as a snapshot is made while no thread is inside an operation.
//! - leaves-J3: all inodes in a shared leaf whose mode is not 0 have a name in each snapshot that
//!   leads to it. So a creation clears the records of free inodes, and gives the snapshot copies of
//!   the leaves with live inodes that must not be in it.
//! - leaves-J4: a leaf that is copied takes the locks of all its inodes, then the lock of the inode
//!   file. A reader without a lock may still read the old leaf: it is that of a snapshot, and does
//!   not change before the reader sees that the locks have.
//! - leaves-J5: a growing inode file owns the way to its end before it stores pointers there.
//!
//! | operation | prepared | stored | fences |
//! |---|---|---|---:|
//! | copy a leaf for the pool | the leaf, its directories and attributes, pointers above | the pointer to the first copy | 2 |

use crate::blocks::Txn;
use crate::crawler::{CommitMode, CrawlChange, Edit, Node, blocks_for};
use crate::layout::*;
use crate::parents::OwnEdit;
use crate::snapshots::{TableEntry, clear, kind_of};
use crate::store::Store;
use crate::volatile::Volatile;
use arena::atomic::{AtomicU32, AtomicU64};
use arena::{Layout, Span};
use namespace::layout::MODE_HALF;
use namespace::{InodeSet, Storage as _, VInode};
use pmem::{Medium, PmOff};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use vfs::{Errno, FileKind, Ino, ROOT, Result};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// Bit of a note: the free inodes of the leaf have the mode 0.
const CLEAR: u32 = 1;
/// Bit of a note: a live inode of the leaf may have no name.
const UNNAMED: u32 = 2;
/// The other bits of a note: the number of the last snapshot when the leaf was the pool's own.
const OWNED_SHIFT: u32 = 2;

/// Notes about the leaves of the pool's inode file: at first, nothing is known.
#[derive(Clone, Copy)]
pub struct LeafNotes {
    notes: Span<AtomicU32>,
    /// The number of snapshots made since the state was derived, plus one.
    last: Span<AtomicU64>,
}

impl LeafNotes {
    /// Plans the notes of a pool that has at most this many leaves.
    pub fn plan(l: &mut Layout, leaves: u64) -> Self {
        Self { notes: l.table(leaves as usize), last: l.table(8) }
    }
}

/// Returns the numbers of the inodes in a leaf.
fn numbers(leaf: u64) -> Range<u64> {
    leaf * INODES_PER_BLOCK..(leaf + 1) * INODES_PER_BLOCK
}

/// Returns the place of a leaf in the inode file.
fn bytes(leaf: u64) -> Range<u64> {
    leaf * BLOCK..(leaf + 1) * BLOCK
}

impl Volatile {
    fn note(&self, leaf: u64) -> Option<&AtomicU32> {
        self.arena.table(self.leaves.notes).get(leaf as usize)
    }

    /// Sets or clears bits of the note for an inode's leaf.
    fn set_note(&self, leaf: u64, on: u32, off: u32) {
        if let Some(note) = self.note(leaf)
            && note.load(Relaxed) & (on | off) != on
        {
            let _ = note.fetch_update(AcqRel, Relaxed, |bits| Some(bits & !off | on));
        }
    }

    /// Notes that a live inode has no name.
    pub fn note_unnamed(&self, ino: Ino) {
        self.set_note(ino.0 / INODES_PER_BLOCK, UNNAMED, 0);
    }

    /// Notes that the record of a free inode is or was used. Only snapshots set what this clears.
    #[inline]
    pub fn note_used(&self, ino: Ino) {
        if self.shares_inodes() {
            self.set_note(ino.0 / INODES_PER_BLOCK, 0, CLEAR);
        }
    }

    fn last(&self) -> &AtomicU64 {
        &self.arena.table(self.leaves.last)[0]
    }

    /// Returns the bits of a note for a leaf that is the pool's own now.
    fn owned_now(&self) -> u32 {
        (self.last().load(Acquire) as u32).wrapping_add(1) << OWNED_SHIFT
    }

    /// Notes that a leaf is the pool's own.
    fn note_owned(&self, leaf: u64) {
        let now = self.owned_now();
        if let Some(note) = self.note(leaf) {
            let bits = CLEAR | UNNAMED;
            let _ = note.fetch_update(AcqRel, Relaxed, |note| Some(note & bits | now));
        }
    }

    /// Notes that a snapshot shares all leaves from now on.
    fn note_snapshot(&self) {
        self.set_sharing_inodes();
        self.last().fetch_add(1, AcqRel);
    }
}

/// A copy of leaves of the inode file.
struct LeafEdit<'a, M> {
    store: &'a Store<M>,
    ranges: &'a [Range<u64>],
    /// Whether an inode is to be in the copy.
    has: &'a dyn Fn(u64) -> bool,
    /// Old and new places of the leaves, and of the blocks of directories.
    moved: HashMap<PmOff, PmOff>,
    /// The change of the number of blocks, by inode.
    gained: Vec<(u64, i64)>,
}

impl<'a, M> LeafEdit<'a, M> {
    fn new(store: &'a Store<M>, ranges: &'a [Range<u64>], has: &'a dyn Fn(u64) -> bool) -> Self {
        Self { store, ranges, has, moved: HashMap::new(), gained: Vec::new() }
    }
}

impl<M: Medium> Edit for LeafEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        self.ranges
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        mode: CommitMode,
    ) -> Result<CrawlChange> {
        if mode != CommitMode::Shared {
            return Ok(CrawlChange::Done);
        }
        let (store, old) = (self.store, old.ok_or(Errno::UCLEAN)?);
        let mut leaf = [0; BLOCK as usize];
        store.medium.read(old.at(0), &mut leaf);
        for (number, place) in (base / INODE..).zip(leaf.chunks_exact_mut(INODE as usize)) {
            let mut record = InodeRecord::read_from_bytes(place).map_err(|_| Errno::UCLEAN)?;
            if (self.has)(number) {
                let (before, taken) = (store.count_own_blocks(&record)?, txn.delta());
                store.copy_trees(txn, &mut record, &mut |old, new| {
                    self.moved.insert(old.at(0), new.at(0));
                })?;
                let gained = txn.delta() - taken - before as i64;
                if gained != 0 {
                    self.gained.push((number, gained));
                }
            } else {
                clear(&mut record);
            }
            place.copy_from_slice(record.as_bytes());
        }
        let new = txn.take();
        store.medium.write_nt(new.at(0), &leaf);
        self.moved.insert(old.at(0), new.at(0));
        // If it has no other parent any more, all that it leads to becomes free with it.
        txn.drop_tree(old, 0, 1);
        Ok(CrawlChange::Shadow(Some(new)))
    }
}

impl<M: Medium> Store<M> {
    /// Returns whether the pool owns a leaf of its inode file, until the next snapshot.
    fn owns_leaf(&self, leaf: u64) -> bool {
        let Some(note) = self.v.note(leaf) else { return true };
        if note.load(Acquire) >> OWNED_SHIFT == self.v.owned_now() >> OWNED_SHIFT {
            return true;
        }
        // Blocks that are replaced meanwhile may be used for anything.
        let lock = self.v.inode_file_lock();
        let Some(ticket) = lock.begin_optimistic() else { return false };
        let is_own = self.finds_leaf_own(leaf) && lock.end_optimistic(ticket);
        if is_own {
            self.v.note_owned(leaf);
        }
        is_own
    }

    /// Returns whether the blocks of the inode file on the way to a leaf, and this, have one parent
    /// each.
    fn finds_leaf_own(&self, leaf: u64) -> bool {
        let root = self.check_root(self.medium.load_u64(INODE_ROOT));
        let shared = root.and_then(|root| self.find_shared(root, leaf * BLOCK));
        shared.is_ok_and(|shared| shared.is_none())
    }

    /// Returns whether the pool owns the leaves of these inodes (leaves-J2).
    #[inline]
    pub fn owns_records(&self, inos: &[Ino]) -> bool {
        !self.v.shares_inodes() || inos.iter().all(|ino| self.owns_leaf(ino.0 / INODES_PER_BLOCK))
    }

    /// Makes the leaves of these inodes the pool's own.
    #[cold]
    pub fn own_records(&self, inos: &[Ino]) -> Result<()> {
        let leaves = inos.iter().map(|ino| ino.0 / INODES_PER_BLOCK);
        leaves.filter(|leaf| !self.owns_leaf(*leaf)).try_for_each(|leaf| self.own_leaf(leaf))
    }

    /// Makes a leaf the pool's own, under the locks that leaves-J4 names.
    fn own_leaf(&self, leaf: u64) -> Result<()> {
        let inos: Vec<Ino> = numbers(leaf).filter(|number| *number != 0).map(Ino).collect();
        let _locks = self.v.lock_exclusive(&inos)?;
        let _file = self.v.lock_inode_file()?;
        if self.finds_leaf_own(leaf) {
            self.v.note_owned(leaf);
            return Ok(());
        }
        let root = self.check_root(self.medium.load_u64(INODE_ROOT))?;
        let lives = |number| self.v.vinode(Ino(number)).is_ok_and(|v| v.is_live());
        let range = bytes(leaf);
        let ranges = std::slice::from_ref(&range);
        let need = blocks_for(root.height(), ranges) + self.count_trees(leaf, &lives)?;
        let mut edit = LeafEdit::new(self, ranges, &lives);
        self.edit_inode_file(root, need, &mut edit)?;
        let LeafEdit { moved, gained, .. } = edit;
        self.note_moved(leaf, &moved, &gained);
        self.v.note_owned(leaf);
        Ok(())
    }

    /// Applies an edit to the pool's inode file, which takes up to `need` blocks, and commits it
    /// durably. The caller holds the lock of the inode file.
    fn edit_inode_file(&self, root: Root, need: u64, edit: &mut dyn Edit) -> Result<()> {
        self.transact(need, 0, |txn| {
            txn.take_apart();
            (txn.is_of_inodes, txn.is_journal) = (true, true);
            let change = self.edit(txn, Node::top(root), CommitMode::Atomic, edit)?;
            if let CrawlChange::Shadow(block) = change {
                let root = Root::new(block, root.height());
                txn.commit(&self.medium, INODE_ROOT, root.word());
            }
            Ok(())
        })
    }

    /// Updates the derived state of the inodes in a leaf that was copied for the pool.
    fn note_moved(&self, leaf: u64, moved: &HashMap<PmOff, PmOff>, gained: &[(u64, i64)]) {
        let first = numbers(leaf).start;
        let inodes = self.v.inodes();
        let place = inodes.get(first as usize).and_then(|v| moved.get(&v.at()));
        let Some(place) = place else { return };
        self.v.move_leaf(first, *place, INODE);
        for number in numbers(leaf) {
            let Some(v) = inodes.get(number as usize).filter(|v| v.is_live()) else { continue };
            if v.kind() == FileKind::Dir {
                self.v.move_dir_blocks(v, moved);
            }
        }
        for (number, blocks) in gained {
            inodes[*number as usize].add_blocks(*blocks);
        }
    }

    /// Returns the number of blocks of an inode's trees that no other inode shares: of a directory,
    /// and of attributes.
    fn count_own_blocks(&self, record: &InodeRecord) -> Result<u64> {
        let mut blocks = 0;
        let is_dir = kind_of(record)? == Some(FileKind::Dir);
        for word in [if is_dir { record.root.get() } else { 0 }, record.xattr.get()] {
            let root = self.check_root(word)?;
            self.visit_all(Node::top(root), &mut |_| blocks += 1)?;
        }
        Ok(blocks)
    }

    /// Returns the number of blocks that copies of the trees in a leaf take, of these inodes.
    fn count_trees(&self, leaf: u64, has: &dyn Fn(u64) -> bool) -> Result<u64> {
        let mut blocks = 0;
        for number in numbers(leaf).filter(|number| has(*number)) {
            let mut record = InodeRecord::new_zeroed();
            self.medium.read(self.v.vinode(Ino(number))?.at(), record.as_mut_bytes());
            blocks += self.blocks_of_trees(&record)?;
        }
        Ok(blocks)
    }

    /// Makes the way to the end of the inode file the pool's own, before pointers are stored there
    /// (leaves-J5). The caller holds the lock of the inode file. Returns the root.
    pub fn own_end_of_inodes(&self, root: Root, size: u64) -> Result<Root> {
        let last = size.saturating_sub(BLOCK);
        if !self.v.shares_inodes() || self.owns_path(root, last)? {
            return Ok(root);
        }
        let range = last..size;
        let mut edit = OwnEdit { trees: &self.trees, range, leaves: false, is_lent: false };
        self.edit_inode_file(root, u64::from(root.height()) + 1, &mut edit)?;
        self.check_root(self.medium.load_u64(INODE_ROOT))
    }

    /// Returns whether a snapshot of the pool's tree has an inode. `tree` has the inodes of that
    /// tree, if there are branches (branches-X1).
    pub fn has_name(&self, ino: Ino, v: &VInode, tree: Option<&InodeSet>) -> bool {
        let is_in = match tree {
            Some(tree) => tree.contains(ino),
            None => self.branches_dir() != Some(ino),
        };
        is_in && v.is_live() && (!v.has_no_name() || ino == ROOT)
    }

    /// Clears the records of free inodes in the pool's own leaves, durably after the next fence.
    /// Returns the leaves that a snapshot cannot share (leaves-J3). The caller is alone in the
    /// pool.
    fn prepare_leaves(&self, tree: Option<&InodeSet>) -> Result<Vec<u64>> {
        let mut unfit = Vec::new();
        if let Some(dir) = self.branches_dir() {
            self.v.note_unnamed(dir);
        }
        for leaf in 0..self.v.inode_slots() / INODES_PER_BLOCK {
            let note = self.v.note(leaf).map_or(0, |note| note.load(Acquire));
            let is_clear = || note & CLEAR != 0 || self.v.are_in_use(numbers(leaf));
            if tree.is_none() && note & UNNAMED == 0 && is_clear() {
                continue;
            }
            match self.prepare_leaf(leaf, tree)? {
                true => self.v.set_note(leaf, CLEAR, UNNAMED),
                false => unfit.push(leaf),
            }
        }
        Ok(unfit)
    }

    /// As [`prepare_leaves`](Self::prepare_leaves), for one; returns whether a snapshot can share
    /// it.
    fn prepare_leaf(&self, leaf: u64, tree: Option<&InodeSet>) -> Result<bool> {
        let mut is_fit = true;
        for number in numbers(leaf) {
            let v = self.v.inodes().get(number as usize).ok_or(Errno::UCLEAN)?;
            if self.has_name(Ino(number), v, tree) {
                continue;
            }
            let mode = self.load(v, Word::Mode);
            if mode & MODE_HALF == 0 {
                continue;
            }
            if v.is_live() || !self.owns_leaf(leaf) {
                is_fit = false;
                continue;
            }
            let at = self.word_at(v, Word::Mode);
            self.medium.store_u64(at, mode & !MODE_HALF);
            self.medium.flush(at, 8);
        }
        Ok(is_fit)
    }

    /// Makes a snapshot of the pool's tree: it shares the leaves of the inode file, except for
    /// those that it cannot. `commit` gets the root of its inode file. The caller is alone in the
    /// pool.
    pub fn share_inodes(
        &self,
        tree: Option<&InodeSet>,
        keep: u64,
        commit: impl FnOnce(Root),
    ) -> Result<()> {
        let unfit = self.prepare_leaves(tree)?;
        let root = self.check_root(self.medium.load_u64(INODE_ROOT))?;
        let top = root.block().ok_or(Errno::UCLEAN)?;
        let has = |number: u64| {
            self.v.vinode(Ino(number)).is_ok_and(|v| self.has_name(Ino(number), v, tree))
        };
        let ranges: Vec<_> = unfit.iter().map(|leaf| bytes(*leaf)).collect();
        let mut need = blocks_for(root.height(), &ranges);
        for leaf in &unfit {
            need += self.count_trees(*leaf, &has)?;
        }
        self.transact(need, keep, |txn| {
            txn.take_apart();
            txn.is_of_inodes = true;
            self.v.add_parent(top)?;
            if ranges.is_empty() {
                commit(root);
                return Ok(());
            }
            // The edit replaces this pointer to the topmost block, and the pool's stays.
            let mut edit = LeafEdit::new(self, &ranges, &has);
            match self.edit(txn, Node::top(root), CommitMode::Atomic, &mut edit) {
                Ok(CrawlChange::Shadow(block)) => commit(Root::new(block, root.height())),
                Ok(CrawlChange::Done) => commit(root),
                Err(e) => {
                    self.v.drop_parent(top);
                    return Err(e);
                }
            }
            Ok(())
        })?;
        self.v.note_snapshot();
        Ok(())
    }

    /// Reads a leaf of an inode file, and calls `each` for the trees of its inodes.
    pub fn visit_records(
        &self,
        leaf: BlockNo,
        each: &mut dyn FnMut(Node) -> Result<()>,
    ) -> Result<()> {
        let mut records = [0; BLOCK as usize];
        self.medium.read(leaf.at(0), &mut records);
        for record in records.chunks_exact(INODE as usize) {
            let record = InodeRecord::read_from_bytes(record).map_err(|_| Errno::UCLEAN)?;
            if kind_of(&record)?.is_some() {
                for word in [record.root.get(), record.xattr.get()] {
                    each(Node::top(self.check_root(word)?))?;
                }
            }
        }
        Ok(())
    }

    /// As [`drop_blocks`](Self::drop_blocks), for a subtree of an inode file: its leaves are the
    /// parents of what the inodes lead to (leaves-J1).
    pub fn drop_inode_tree(&self, node: Node, free: &mut dyn FnMut(BlockNo)) -> Result<()> {
        let Some(block) = node.block.filter(|block| self.v.drop_parent(*block)) else {
            return Ok(());
        };
        if node.height == 0 {
            self.visit_records(block, &mut |tree| self.drop_blocks(tree, free))?;
        } else {
            for (i, pointer) in (0..).zip(self.load_pointers(node.block)) {
                self.drop_inode_tree(node.child(i, self.check_block(pointer)?), free)?;
            }
        }
        free(block);
        Ok(())
    }

    /// As [`count_freed`](Self::count_freed), for a subtree of an inode file.
    pub fn count_freed_inodes(
        &self,
        node: Node,
        dropped: &mut HashMap<BlockNo, u32>,
    ) -> Result<u64> {
        let Some(block) = node.block.filter(|block| self.would_be_last(*block, dropped)) else {
            return Ok(0);
        };
        let mut count = 1;
        if node.height == 0 {
            self.visit_records(block, &mut |tree| {
                count += self.count_freed(tree, dropped)?;
                Ok(())
            })?;
        } else {
            for (i, pointer) in (0..).zip(self.load_pointers(node.block)) {
                let child = node.child(i, self.check_block(pointer)?);
                count += self.count_freed_inodes(child, dropped)?;
            }
        }
        Ok(count)
    }

    /// Returns the topmost node of a snapshot's inode file.
    pub fn inodes_of(&self, entry: &TableEntry) -> Result<Node> {
        Ok(Node::top(self.check_root(entry.root_word())?))
    }
}
