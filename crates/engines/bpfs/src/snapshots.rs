//! Snapshots: read-only states of a pool, each with an inode file of its own.
//!
//! - snapshots-N1: an entry of the table is valid if its root word is not 0. That word is stored
//!   last, behind everything that it leads to, and cleared first.
//! - snapshots-N2: a snapshot shares leaves of the inode file with the pool, and all that these
//!   lead to ([`mod@crate::leaves`]). Copies of leaves share the contents of files and symbolic
//!   links, from their topmost blocks on ([`crate::parents`]).
//! - snapshots-N3: nothing of a complete snapshot changes. A block that it shares has several
//!   parents, or lies below such a block, so that it changes in place for none of them; no
//!   operation on the pool knows the other blocks.
//! - snapshots-N4: each inode in a complete snapshot has a name there. Other records have the mode
//!   0 (leaves-J3). So a scan or a deletion finds all blocks of a snapshot without its directories.
//! - snapshots-N5: a snapshot is made while no thread is inside an operation
//!   ([`namespace::derived::SharedPool::alone`]), and after the pending commit is durable. So it is
//!   the state between two operations.
//! - snapshots-N6: a snapshot whose name begins with `@` belongs to a branch
//!   ([`mod@crate::branches`]). Users do not see it.
//!
//! | operation | prepared | stored | fences |
//! |---|---|---|---:|
//! | create | what cannot be shared; the entry | the root word of the entry | 2 |
//! | delete | – | the root word of the entry := 0 | 1 |
//! | roll back | inodes, directories, attributes | the root of the inode file | 2 |
//!
//! The first snapshot of a pool takes a fence more, and another one if no blocks are shared yet.

use crate::blocks::{KEEP, Txn};
use crate::crawler::{CrawlChange, Node, Trees};
use crate::fs::Files;
use crate::layout::snapshots::*;
use crate::layout::*;
use crate::store::Store;
use namespace::{Attributes, InodeSet, POOL_SNAPSHOTS, Storage as _, fnv1a};
use pmem::{Fenced, Medium, Pm, PmOff};
use pool::{SNAPSHOT_NAME_MAX, Snapshot, Snapshots, branch_of_snapshot, is_snapshot_entry};
use std::collections::HashMap;
use vfs::{Errno, FileKind, Ino, Result};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// Blocks that a deletion collects before it frees them.
const BATCH: usize = 1024;

/// A valid entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct TableEntry {
    /// The place of its root word.
    pub root_at: PmOff,
    /// The place of the size of its inode file.
    pub size_at: PmOff,
    content: SnapshotEntry,
}

impl SnapshotEntry {
    /// Makes an entry with all but its root word.
    pub fn new(name: &str, size: u64, created: u64) -> Self {
        let mut entry = Self::new_zeroed();
        entry.size.set(size);
        entry.created.set(created);
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        entry.checksum.set(entry.computed_checksum());
        entry
    }

    /// Computes the checksum of all other fields but the root word, which changes while the
    /// snapshot is received.
    fn computed_checksum(&self) -> u64 {
        let mut s = *self;
        s.root.set(0);
        s.checksum.set(0);
        fnv1a(s.as_bytes())
    }

    /// Returns the name, if a snapshot can have it.
    fn name(&self) -> Option<&str> {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(SNAPSHOT_NAME_MAX);
        let (name, rest) = self.name.split_at(len);
        let name = std::str::from_utf8(name).ok()?;
        (rest.iter().all(|byte| *byte == 0) && is_snapshot_entry(name)).then_some(name)
    }
}

impl TableEntry {
    /// Returns the name; empty if it is damaged.
    pub fn name(&self) -> &str {
        self.content.name().unwrap_or_default()
    }

    /// Returns whether it is a snapshot of the user, and sound, in a pool of this size
    /// (snapshots-N6).
    fn is_listed(&self, pool_bytes: u64) -> bool {
        branch_of_snapshot(self.name()).is_none() && self.check(pool_bytes).is_ok()
    }

    /// Returns the number of its inodes.
    pub fn inodes(&self) -> u64 {
        self.content.size.get() / INODE
    }

    /// Returns its time of creation.
    pub fn created(&self) -> u64 {
        self.content.created.get()
    }

    /// Returns whether it is being received (receive-I1).
    pub fn is_incomplete(&self) -> bool {
        self.content.root.get() & INCOMPLETE != 0
    }

    /// Returns the root of its inode file, as it was read.
    pub fn root_word(&self) -> u64 {
        self.content.root.get() & !INCOMPLETE
    }

    /// Checks all but the blocks that the entry leads to, in a pool of this size.
    ///
    /// # Errors
    /// The reason why there is no such entry.
    pub fn check(&self, pool_bytes: u64) -> std::result::Result<(), String> {
        let size = self.content.size.get();
        if self.content.checksum.get() != self.content.computed_checksum() {
            return Err("its checksum does not match".to_owned());
        }
        if self.content.name().is_none() {
            return Err("its name is not allowed".to_owned());
        }
        if size == 0 || !size.is_multiple_of(BLOCK) || size > pool_bytes {
            return Err(format!("the size {size} of its inode file is impossible"));
        }
        Ok(())
    }
}

/// Returns the entries of a pool's table whose root word is not 0, in the order of the table.
pub fn entries<M: Medium>(medium: &Pm<M>) -> Vec<TableEntry> {
    if !namespace::may_have_snapshots(medium) {
        return Vec::new();
    }
    (0..COUNT).filter_map(|number| entry(medium, number)).collect()
}

/// Returns the entry of this number, if its root word is not 0.
fn entry<M: Medium>(medium: &Pm<M>, number: u64) -> Option<TableEntry> {
    let root_at = place_of(number);
    let mut bytes = [0; BYTES as usize];
    medium.read(root_at, &mut bytes);
    let content = SnapshotEntry::read_from_bytes(&bytes).ok()?;
    let entry = TableEntry { root_at, size_at: root_at + 8, content };
    (content.root.get() != 0).then_some(entry)
}

/// Returns the valid snapshots of a pool, in the order of their creation, without the space that
/// they hold. Other processes may change them meanwhile.
pub fn list<M: Medium>(medium: &Pm<M>, pool_bytes: u64) -> Vec<Snapshot> {
    let mut all = entries(medium);
    all.retain(|entry| entry.is_listed(pool_bytes));
    all.sort_by_key(TableEntry::created);
    all.iter().map(|entry| describe(entry, None)).collect()
}

/// Returns the names of the branches with snapshots in the table: one name for each snapshot.
pub fn of_branches<M: Medium>(medium: &Pm<M>) -> Vec<String> {
    let all = entries(medium);
    all.iter().filter_map(|entry| Some(branch_of_snapshot(entry.name())?.to_owned())).collect()
}

/// Returns the entry of this name, if it is sound. Its snapshot may be incomplete.
pub fn find_entry<M: Medium>(medium: &Pm<M>, pool_bytes: u64, name: &str) -> Result<TableEntry> {
    let found = entries(medium).into_iter().find(|entry| entry.name() == name);
    let found = found.ok_or(Errno::NOENT)?;
    found.check(pool_bytes).map(|()| found).map_err(|_| Errno::UCLEAN)
}

fn describe(entry: &TableEntry, held_bytes: Option<u64>) -> Snapshot {
    let (name, created_ns) = (entry.name().to_owned(), entry.created());
    Snapshot { name, created_ns, held_bytes, is_incomplete: entry.is_incomplete() }
}

/// Returns the number of blocks of a tree without holes that has this many leaves.
pub fn blocks_over(leaves: u64) -> u64 {
    let levels = std::iter::successors(Some(leaves), |n| (*n > 1).then(|| n.div_ceil(FANOUT)));
    levels.sum()
}

impl<M: Medium> Trees<M> {
    /// Builds a tree over these leaves, without holes.
    pub fn build_over(&self, txn: &mut Txn<'_>, leaves: Vec<BlockNo>) -> Root {
        let (mut level, mut height) = (leaves, 0);
        while level.len() > 1 {
            height += 1;
            let mut above = Vec::with_capacity(level.len().div_ceil(FANOUT as usize));
            for children in level.chunks(FANOUT as usize) {
                let mut pointers = [Pointer::NULL; FANOUT as usize];
                pointers.iter_mut().zip(children).for_each(|(p, child)| *p = Pointer::to(*child));
                if let CrawlChange::Shadow(Some(block)) = self.shadow_pointers(txn, &pointers) {
                    above.push(block);
                }
            }
            level = above;
        }
        Root::new(level.first().copied(), height)
    }

    /// Copies the first bytes of a tree, which has no holes there. Calls `copied(old, new)` for
    /// each leaf.
    fn copy_leaves(
        &self,
        txn: &mut Txn<'_>,
        root: Root,
        bytes: u64,
        copied: &mut dyn FnMut(BlockNo, BlockNo),
    ) -> Result<Root> {
        let mut leaves = Vec::new();
        self.visit(Node::top(root), &(0..bytes), &mut |block, base| {
            if base != leaves.len() as u64 * BLOCK {
                return Err(Errno::UCLEAN);
            }
            let new = txn.take();
            self.medium.copy_nt(new.at(0), block.at(0), BLOCK);
            copied(block, new);
            leaves.push(new);
            Ok(true)
        })?;
        if leaves.len() as u64 != bytes.div_ceil(BLOCK) {
            return Err(Errno::UCLEAN);
        }
        Ok(self.build_over(txn, leaves))
    }

    /// Returns the bytes of the list of attributes in a tree.
    fn list_bytes(&self, root: Root) -> Result<u64> {
        let first = self.find_block(root, 0)?.ok_or(Errno::UCLEAN)?;
        let len = self.medium.load_u64(first.at(0));
        let is_possible = (Attributes::HEADER as u64..=root.span()).contains(&len);
        if is_possible { Ok(len) } else { Err(Errno::UCLEAN) }
    }
}

/// Returns the kind of an inode of a snapshot; `None` if the record is free (snapshots-N4).
pub fn kind_of(record: &InodeRecord) -> Result<Option<FileKind>> {
    match record.mode.get() {
        0 => Ok(None),
        mode => FileKind::from_mode(mode).map(Some).ok_or(Errno::UCLEAN),
    }
}

impl<M: Medium> Store<M> {
    /// Returns the words that lead to the inode file, of the pool, or of the snapshot that is
    /// mounted: the places of root and size, and the root.
    pub fn inode_words(&self) -> (PmOff, PmOff, u64) {
        match self.snapshot.get() {
            Some(entry) => (entry.root_at, entry.size_at, entry.root_word()),
            None => (INODE_ROOT, INODE_SIZE, self.medium.load_u64(INODE_ROOT)),
        }
    }

    /// Returns the entry of this name, if it is sound and complete.
    pub fn find_snapshot(&self, name: &str) -> Result<TableEntry> {
        let found = find_entry(&self.medium, self.bytes, name)?;
        if found.is_incomplete() { Err(Errno::NOENT) } else { Ok(found) }
    }

    /// Returns an inode as a snapshot of the pool's present state has it. `tree` has the inodes of
    /// the pool's tree, if the pool has others (branches-X1).
    pub fn present_inode(&self, number: u64, tree: Option<&InodeSet>) -> Result<InodeRecord> {
        let mut record = InodeRecord::new_zeroed();
        // Inode 0 is never used.
        let Ok(v) = self.v.vinode(Ino(number)) else { return Ok(record) };
        self.medium.read(v.at(), record.as_mut_bytes());
        if !self.has_name(Ino(number), v, tree) {
            clear(&mut record);
        }
        Ok(record)
    }

    /// Returns an inode of a snapshot.
    pub fn inode_of(&self, entry: &TableEntry, number: u64) -> Result<InodeRecord> {
        let mut record = InodeRecord::new_zeroed();
        if number < entry.inodes() {
            let root = self.check_root(entry.root_word())?;
            let at = number * INODE;
            let block = self.find_block(root, at)?.ok_or(Errno::UCLEAN)?;
            self.medium.read(block.at(at % BLOCK), record.as_mut_bytes());
        }
        Ok(record)
    }

    /// Returns the number of blocks that [`copy_inodes`](Self::copy_inodes) takes.
    pub fn blocks_to_copy(
        &self,
        inodes: u64,
        source: &dyn Fn(u64) -> Result<InodeRecord>,
    ) -> Result<u64> {
        let mut blocks = blocks_over(inodes / INODES_PER_BLOCK);
        for number in 0..inodes {
            blocks += self.blocks_of_trees(&source(number)?)?;
        }
        Ok(blocks)
    }

    /// Returns the number of blocks that [`copy_trees`](Self::copy_trees) takes.
    pub fn blocks_of_trees(&self, record: &InodeRecord) -> Result<u64> {
        let (kind, mut blocks) = (kind_of(record)?, 0);
        if kind == Some(FileKind::Dir) {
            blocks += blocks_over(record.size.get().div_ceil(BLOCK));
        }
        if kind.is_some() && record.xattr.get() != 0 {
            let len = self.list_bytes(self.check_root(record.xattr.get())?)?;
            blocks += blocks_over(len.div_ceil(BLOCK));
        }
        Ok(blocks)
    }

    /// Makes an inode file with these inodes, which share the contents of files with their
    /// `source` (snapshots-N2). Nothing leads to it yet.
    pub fn copy_inodes(
        &self,
        txn: &mut Txn<'_>,
        inodes: u64,
        source: &dyn Fn(u64) -> Result<InodeRecord>,
    ) -> Result<Root> {
        txn.take_apart();
        let mut leaves = Vec::new();
        for first in (0..inodes).step_by(INODES_PER_BLOCK as usize) {
            let mut leaf = [0; BLOCK as usize];
            for (number, place) in (first..).zip(leaf.chunks_exact_mut(INODE as usize)) {
                let mut record = source(number)?;
                self.copy_trees(txn, &mut record, &mut |_, _| {})?;
                place.copy_from_slice(record.as_bytes());
            }
            let block = txn.take();
            self.medium.write_nt(block.at(0), &leaf);
            leaves.push(block);
        }
        Ok(self.build_over(txn, leaves))
    }

    /// Makes trees of its own for a copied inode, or counts another parent of what it shares. Calls
    /// `copied(old, new)` for each block of a directory.
    pub fn copy_trees(
        &self,
        txn: &mut Txn<'_>,
        record: &mut InodeRecord,
        copied: &mut dyn FnMut(BlockNo, BlockNo),
    ) -> Result<()> {
        let Some(kind) = kind_of(record)? else { return Ok(()) };
        let (root, size) = (self.check_root(record.root.get())?, record.size.get());
        match kind {
            FileKind::Dir => record.root.set(self.copy_leaves(txn, root, size, copied)?.word()),
            FileKind::File | FileKind::Symlink => {
                debug_assert!(self.ends_within(Node::top(root), size), "parents-P5");
                if let Some(block) = root.block() {
                    txn.share(block, root.height())?;
                }
            }
            _ => record.root.set(0),
        }
        if record.xattr.get() != 0 {
            let list = self.check_root(record.xattr.get())?;
            let bytes = self.list_bytes(list)?;
            let copy = self.copy_leaves(txn, list, bytes, &mut |_, _| {})?;
            record.xattr.set(copy.word());
        }
        Ok(())
    }

    /// Frees the blocks that only a deleted snapshot held. They have not changed (snapshots-N3), so
    /// these are the ones that its creation has counted.
    fn free_snapshot(&self, entry: &TableEntry) -> Result<()> {
        let mut freed = Vec::with_capacity(BATCH);
        self.drop_inode_tree(self.inodes_of(entry)?, &mut |block| {
            freed.push(block);
            if freed.len() == BATCH {
                self.v.release(&freed);
                freed.clear();
            }
        })?;
        self.v.release(&freed);
        Ok(())
    }

    /// Returns the number of blocks that become free if these snapshots are deleted.
    fn held_blocks(&self, snapshots: &[TableEntry]) -> Result<u64> {
        let (mut dropped, mut blocks) = (HashMap::new(), 0);
        for entry in snapshots {
            blocks += self.count_freed_inodes(self.inodes_of(entry)?, &mut dropped)?;
        }
        Ok(blocks)
    }

    /// Records on the media, durably, that the pool has a table of snapshots, which may share
    /// leaves of its inode file: before the first entry. The table is all zeros since the pool was
    /// formatted, or has snapshots of programs from before.
    pub fn begin_snapshots(&self) {
        self.begin_sharing();
        let word = namespace::snapshots_word(&self.medium);
        if self.medium.load_u64(POOL_SNAPSHOTS) == word {
            return;
        }
        let ready = Fenced::not_needed("no leaf is shared yet");
        let _ = self.medium.publish(POOL_SNAPSHOTS, word, ready);
    }

    /// Returns the present time, as a time of creation that no other snapshot has. (The clock of
    /// the kernel advances in steps, and streams name their base by this time.)
    fn time_of_creation(&self) -> u64 {
        let all = entries(&self.medium);
        let mut now = self.now().0 as u64;
        while all.iter().any(|entry| entry.created() == now) {
            now = now.wrapping_add(1);
        }
        now
    }

    /// Stores an entry, and commits it by its root word (snapshots-N1).
    pub fn publish_entry(&self, at: PmOff, entry: &SnapshotEntry, root: u64) {
        self.medium.write(at + 8, &entry.as_bytes()[8..]);
        self.medium.flush(at, BYTES);
        let ready = self.medium.fence();
        let _ = self.medium.publish(at, root, ready);
    }

    /// Fails if the pool can have no snapshots, or none with this name.
    pub fn check_may_change(&self, name: &str) -> Result<()> {
        if self.is_backed() {
            return Err(Errno::OPNOTSUPP);
        }
        self.check_writable()?;
        if is_snapshot_entry(name) { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// Makes the record one of no inode. Its generation stays, so that the next use has another.
pub fn clear(record: &mut InodeRecord) {
    let generation = (record.generation, record.generation_again);
    *record = InodeRecord::new_zeroed();
    (record.generation, record.generation_again) = generation;
}

impl<M: Medium> Files<M> {
    /// Implements [`namespace::Files::snapshots`].
    pub fn snapshots(&self, held: bool) -> Result<Snapshots> {
        if self.is_backed() {
            return Err(Errno::OPNOTSUPP);
        }
        if !held {
            return Ok(Snapshots { list: list(&self.medium, self.bytes), held_bytes: None });
        }
        // Nothing that a snapshot holds becomes free meanwhile.
        let _lock = self.v.snapshots.hold(&self.v, 0)?;
        let mut all = entries(&self.medium);
        all.retain(|entry| entry.is_listed(self.bytes));
        all.sort_by_key(TableEntry::created);
        let held = |some: &[TableEntry]| self.held_blocks(some).map(|blocks| Some(blocks * BLOCK));
        let one = |entry: &TableEntry| Ok(describe(entry, held(std::slice::from_ref(entry))?));
        Ok(Snapshots { list: all.iter().map(one).collect::<Result<_>>()?, held_bytes: held(&all)? })
    }

    /// Returns the place of an entry that a snapshot of this name can get.
    pub fn free_entry(&self, name: &str) -> Result<PmOff> {
        if entries(&self.medium).iter().any(|entry| entry.name() == name) || self.has_branch(name) {
            return Err(Errno::EXIST);
        }
        self.begin_snapshots();
        let free = (0..COUNT).find(|number| entry(&self.medium, *number).is_none());
        free.map(place_of).ok_or(Errno::MLINK)
    }

    /// Implements [`namespace::Files::create_snapshot`].
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        self.check_may_change(name)?;
        let at = self.free_entry(name)?;
        // snapshots-N5.
        self.settle();
        let tree = if self.has_branches()? { self.inodes_of_tree()? } else { None };
        let size = self.v.inode_slots() * INODE;
        self.share_inodes(tree.as_ref(), KEEP, |root| {
            let entry = SnapshotEntry::new(name, size, self.time_of_creation());
            self.publish_entry(at, &entry, root.word());
        })
    }

    /// Implements [`namespace::Files::delete_snapshot`].
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.check_may_change(name)?;
        let _lock = self.v.snapshots.hold(&self.v, 0)?;
        let entry = find_entry(&self.medium, self.bytes, name)?;
        // The commit (snapshots-N1).
        let ready = Fenced::not_needed("it is removed");
        let _ = self.medium.publish(entry.root_at, 0, ready);
        if let Err(e) = self.free_snapshot(&entry) {
            tracing::error!(%e, name, "blocks of a deleted snapshot stay allocated");
        }
        Ok(())
    }

    /// Implements [`namespace::Files::roll_back`].
    pub fn roll_back(&self, name: &str) -> Result<()> {
        self.check_may_change(name)?;
        let entry = self.find_snapshot(name)?;
        // One word commits: the size stays. An inode file never gets shorter. That of a snapshot
        // from another pool may be longer.
        self.grow_inodes_to(entry.inodes())?;
        self.end_branches()?;
        let inodes = self.v.inode_slots();
        let source = |number| match number {
            // It may have the progress of a stream, and is never an inode.
            0 => Ok(InodeRecord::new_zeroed()),
            _ => self.inode_of(&entry, number),
        };
        self.transact(self.blocks_to_copy(inodes, &source)?, 0, |txn| {
            let root = self.copy_inodes(txn, inodes, &source)?;
            let ready = self.medium.fence();
            let _ = self.medium.publish(INODE_ROOT, root.word(), ready);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_without_holes_have_these_blocks() {
        for (leaves, blocks) in [(0, 0), (1, 1), (2, 3), (512, 513), (513, 516)] {
            assert_eq!(blocks_over(leaves), blocks, "{leaves}");
        }
    }

    #[test]
    fn damaged_entries_are_found() {
        let of = |content| TableEntry { root_at: START, size_at: START + 8, content };
        let good = SnapshotEntry::new("monday", BLOCK, 1);
        assert_eq!(of(good).check(1 << 20), Ok(()));
        assert_eq!(of(good).name(), "monday");
        for byte in 8..size_of::<SnapshotEntry>() {
            let mut bytes: [u8; BYTES as usize] = good.as_bytes().try_into().unwrap();
            bytes[byte] ^= 0x80;
            let bad = SnapshotEntry::read_from_bytes(&bytes).unwrap();
            assert!(of(bad).check(1 << 20).is_err(), "byte {byte}");
        }
        for (name, size) in [("a/b", BLOCK), ("", BLOCK), ("a", 0), ("a", 100), ("a", 2 << 20)] {
            assert!(of(SnapshotEntry::new(name, size, 1)).check(1 << 20).is_err(), "{name}");
        }
    }
}
