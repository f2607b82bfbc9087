//! Inodes of a mounted pool: the functions that all operations share, and those that [`Storage`]
//! requires.

use crate::append::{AppendContent, blocks_to_append};
use crate::blocks::{KEEP, Txn};
use crate::crawler::{CommitMode, CrawlChange, Edit, Node, Trees};
use crate::layout::*;
use crate::redo;
use crate::scan::SharedScan;
use crate::snapshots::TableEntry;
use crate::volatile::Volatile;
use crate::xattr::{LIST_MAX, blocks_of};
use namespace::own_mode::{self, OwnMode, own_mode};
use namespace::{Attributes, HeldRecord, Scan, Storage, Tables, VInode, Words};
use pmem::{LINE, Medium, Pm, PmOff};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::*};
use vfs::{Attr, Errno, FileKind, Ino, Limits, Result, Timestamp};

/// Inodes: the trees, the derived state, and the functions that change one inode, or the blocks of
/// one directory. None of these is a whole operation.
pub struct Store<M> {
    pub trees: Trees<M>,
    pub v: Volatile,
    pub read_only: AtomicBool,
    pub clock: fn() -> Timestamp,
    pub shared_scan: SharedScan,
    /// The snapshot that is mounted, if it is not the pool's present state.
    pub snapshot: OnceLock<TableEntry>,
}

/// The store uses the methods of the trees as its own.
impl<M> Deref for Store<M> {
    type Target = Trees<M>;

    #[inline]
    fn deref(&self) -> &Trees<M> {
        &self.trees
    }
}

impl<M: Medium> Store<M> {
    /// Returns the checked root of an inode's tree.
    #[inline]
    pub fn root(&self, v: &VInode) -> Result<Root> {
        self.check_root(self.load(v, Word::Root))
    }

    /// Applies an edit to an inode's tree and commits it, at the root word at the latest.
    pub fn edit_tree(
        &self,
        txn: &mut Txn<'_>,
        v: &VInode,
        root: Root,
        edit: &mut dyn Edit,
    ) -> Result<()> {
        self.keep_mode(txn, v)?;
        if let CrawlChange::Shadow(block) =
            self.edit(txn, Node::top(root), CommitMode::Atomic, edit)?
        {
            let (at, root) = (self.word_at(v, Word::Root), Root::new(block, root.height()));
            txn.commit(&self.medium, at, root.word());
        }
        Ok(())
    }

    /// Lets an operation on a file end as the file's own mode requires ([`mod@own_mode`]).
    #[inline]
    pub fn keep_mode(&self, txn: &mut Txn<'_>, v: &VInode) -> Result<()> {
        txn.is_journal = own_mode(self, v)?.is_some();
        Ok(())
    }

    /// Commits words of an inode: one in place, several by a record. If that fails, nothing has
    /// changed.
    pub fn commit_inode(&self, ino: Ino, v: &VInode, words: &[(Word, u64)]) -> Result<()> {
        match words {
            [] => {
                let _ = self.medium.fence();
            }
            [(word, value)] => self.commit(self.word_at(v, *word), *value),
            _ => self.commit_held(&self.hold_record(ino)?, v, words),
        }
        Ok(())
    }

    /// Reserves a redo record for this inode. May restart the operation, so call it before any
    /// irreversible step.
    pub fn hold_record(&self, ino: Ino) -> Result<HeldRecord<'_>> {
        self.v.records.hold(&self.v, ino.0)
    }

    /// Commits words of an inode by a reserved record.
    pub fn commit_held(&self, record: &HeldRecord<'_>, v: &VInode, words: &[(Word, u64)]) {
        let at = |(word, value): &(Word, u64)| (self.word_at(v, *word), *value);
        let words: Words = words.iter().map(at).collect();
        redo::commit(&self.medium, record.0, &words, self.v.order(&self.medium));
    }

    /// Appends leaves to the inode file, in place (§3.2), one or up to `leaves`: they are invisible
    /// until the size of the inode file includes them.
    fn grow_inode_file(&self, leaves: u64) -> Result<()> {
        let size = self.medium.load_u64(INODE_SIZE);
        let root = self.check_root(self.medium.load_u64(INODE_ROOT))?;
        let root = self.own_end_of_inodes(root, size)?;
        let end = size + leaves.clamp(1, FANOUT) * BLOCK;
        self.transact(blocks_to_append(root, &(size..end)), KEEP, |txn| {
            txn.take_apart();
            let (new, _) = self.fill(txn, root, size, size..end, AppendContent::Zeros)?;
            let ready = self.medium.fence();
            self.publish_append((INODE_ROOT, root), new, (INODE_SIZE, end), ready);
            self.medium.flush(INODE_SIZE, 8);
            let _ = self.medium.fence();
            for at in (size..end).step_by(BLOCK as usize) {
                let leaf = self.find_block(new, at)?.ok_or(Errno::UCLEAN)?;
                self.v.add_leaf(leaf.at(0), INODE);
            }
            Ok(())
        })
    }

    /// Frees an inode that has neither names nor references: only derived state changes, because an
    /// inode that no entry names is not valid (§3.1). The caller holds its lock exclusively.
    pub fn free_inode(&self, ino: Ino, v: &VInode) {
        let mut blocks: SmallVec<[BlockNo; 16]> = SmallVec::new();
        let mut left = v.block_count();
        for word in [Word::Xattr, Word::Root] {
            let root = self.root_if_present(self.load(v, word));
            // A damaged tree keeps its blocks: losing them until a repair is better than freeing
            // blocks that are referenced.
            if let Ok(root) = root {
                let before = blocks.len();
                let mut note = |b| blocks.push(b);
                match self.take_down(Node::top(root), &mut left, &mut note) {
                    Ok(n) => {
                        let known = || self.count_blocks(Node::top(root), &mut HashMap::new());
                        debug_assert!(self.v.shares() || known() == Ok(n), "{ino}: its blocks");
                    }
                    Err(e) => {
                        blocks.truncate(before);
                        tracing::error!(%ino, %e, "its blocks stay allocated");
                    }
                }
            }
        }
        self.v.note_used(ino);
        if v.kind() == FileKind::Dir {
            self.v.drop_dir_state(v);
        }
        // Every block of pointers comes after those that it leads to.
        let ends_with_line =
            self.line_of_pointers(v).is_some_and(|line| blocks.last() == Some(&line));
        v.end();
        match ends_with_line {
            true => self.v.release_with_line(&blocks),
            false => self.v.release(&blocks),
        }
        self.v.release_inode(ino);
    }

    /// Returns the topmost block of a file that has at most a line of pointers. The block is null
    /// behind that line, as no pointers exist beyond the size (crawler-T3).
    fn line_of_pointers(&self, v: &VInode) -> Option<BlockNo> {
        let block = self.root(v).ok().filter(|root| root.height() == 1)?.block()?;
        let is_short = self.load(v, Word::Size) <= LINE_POINTERS * BLOCK;
        (v.kind() == FileKind::File && is_short).then_some(block)
    }

    /// Prefetches the first pointers of an inode that may be [freed](Self::free_inode) soon: if its
    /// topmost block has pointers, they will be read.
    #[inline]
    pub fn prefetch_tree(&self, v: &VInode) {
        if let Ok(root) = self.root(v) {
            self.prefetch_pointers(root);
        }
    }

    /// Prefetches the first pointers of a tree, if it has any.
    #[inline]
    fn prefetch_pointers(&self, root: Root) {
        if let Some(pointers) = root.block().filter(|_| root.height() > 0) {
            self.medium.prefetch(pointers.at(0), LINE);
        }
    }

    /// Prefetches the content of a file with these attributes: its start for a read, and its end
    /// for an append. A caller that obtains a file mostly does one of these next.
    #[inline]
    pub fn prefetch_start(&self, v: &VInode, attr: &Attr) {
        if attr.kind != FileKind::File || attr.size == 0 {
            return;
        }
        let Ok(root) = self.root(v) else { return };
        self.prefetch_pointers(root);
        for (at, bytes) in [(0, 4 * LINE), (attr.size - 1, 1)] {
            if root.height() > 0 {
                self.prefetch_extent(v, at, bytes);
            } else if let Ok(Some(block)) = self.find_block(root, at) {
                self.medium.prefetch(block.at(at % BLOCK), bytes);
            }
        }
    }
}

/// Most of these methods are implemented in `attr`, `xattr` and `scan`.
impl<M: Medium> Storage for Store<M> {
    type Medium = M;

    const INODE: u64 = INODE;

    const LIMITS: &'static Limits = &LIMITS;

    const ATTRIBUTES_MAX: u64 = LIST_MAX;

    #[inline]
    fn medium(&self) -> Pm<&M> {
        Pm(&self.trees.medium.0)
    }

    #[inline]
    fn tables(&self) -> &Tables {
        &self.v
    }

    #[inline]
    fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    #[inline]
    fn settle(&self) {
        self.v.settle(&self.trees.medium);
    }

    fn reclaimable(&self) -> u64 {
        self.v.freed_by_pending()
    }

    fn make_space(&self) -> Result<bool> {
        Ok(self.v.settle(&self.trees.medium))
    }

    #[inline]
    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    #[inline]
    fn is_backed(&self) -> bool {
        self.trees.is_backed()
    }

    fn branches_dir(&self) -> Option<Ino> {
        match self.snapshot.get() {
            Some(_) => None,
            None => namespace::branches_dir(&self.medium),
        }
    }

    /// See leaves-J2.
    #[inline]
    fn owns(&self, inos: &[Ino]) -> bool {
        self.owns_records(inos)
    }

    fn make_own(&self, inos: &[Ino]) -> Result<()> {
        self.own_records(inos)
    }

    fn note_unnamed(&self, ino: Ino) {
        self.v.note_unnamed(ino);
    }

    fn absent_root(&self, size: u64) -> u64 {
        match size {
            0 => 0,
            _ => Pointer::ABSENT.word() | u64::from(height_for(size)),
        }
    }

    fn check_resize(&self, v: &VInode, size: u64) -> Result<()> {
        self.check_end(v, size.min(self.load(v, Word::Size)))
    }

    fn has_dirty_content(&self, v: &VInode) -> Result<bool> {
        Ok(v.kind() == FileKind::File && self.dirty_blocks(v, 0)?.is_some())
    }

    fn has_marks(&self, v: &VInode) -> Result<bool> {
        Ok(v.kind() == FileKind::File && self.has_marked_blocks(v)?)
    }

    fn clear_kept_blocks(&self) {
        self.v.clear_kept();
    }

    fn vacate_inodes(&self, from: u64) -> Result<bool> {
        self.vacate_inode_file(from)
    }

    fn vacate_contents(&self, from: u64) -> Result<()> {
        self.vacate_trees(from)
    }

    fn grow_inodes(&self, leaves: u64) -> Result<()> {
        self.grow_inode_file(leaves)
    }

    fn write_new_inode<T>(
        &self,
        v: &VInode,
        mut record: InodeRecord,
        target: &[u8],
        attributes: &Attributes,
        prepare: impl FnOnce() -> Result<T>,
    ) -> Result<(InodeRecord, T)> {
        let need = u64::from(!target.is_empty()) + blocks_of(attributes);
        self.transact(need, KEEP, |txn| {
            if !target.is_empty() {
                record.root = self.build_tree(txn, target)?.word().into();
            }
            record.xattr = self.store_attributes(txn, attributes)?.into();
            let prepared = prepare()?;
            v.add_blocks(txn.delta());
            self.write_inode(v, &record);
            Ok((record, prepared))
        })
    }

    fn reap(&self, ino: Ino, v: &VInode) {
        self.free_inode(ino, v);
    }

    #[inline]
    fn prefetch_reap(&self, v: &VInode) {
        self.prefetch_tree(v);
    }

    #[inline]
    fn prefetch_content(&self, v: &VInode, attr: &Attr) {
        self.prefetch_start(v, attr);
    }

    fn read_target(&self, v: &VInode, buf: &mut [u8]) -> Result<()> {
        self.read_content(v, 0, buf).map(drop)
    }

    fn attribute_list(&self, v: &VInode) -> Result<Vec<u8>> {
        self.load_attribute_list(v)
    }

    fn attribute_place(&self, v: &VInode, at: u64) -> Result<PmOff> {
        let root = self.check_root(self.load(v, Word::Xattr))?;
        Ok(self.find_block(root, at)?.ok_or(Errno::UCLEAN)?.at(at % BLOCK))
    }

    fn commit_change(
        &self,
        ino: Ino,
        v: &VInode,
        change: &namespace::Change,
        size: Option<u64>,
    ) -> Result<()> {
        self.apply(ino, v, change, size)
    }

    fn note_attributes(&self, v: &VInode, attributes: &Attributes) {
        own_mode::note(v, attributes);
    }

    fn check_attribute(&self, kind: FileKind, name: &[u8], value: &[u8]) -> Result<()> {
        match name {
            own_mode::ATTRIBUTE => OwnMode::check(value, kind, self.is_backed()),
            _ => Ok(()),
        }
    }

    fn commit_no_attributes(&self, v: &VInode) -> Result<()> {
        self.clear_attributes(v)
    }

    /// Appends a block to a directory of `size` bytes, durably. Returns its place.
    fn append_dir_block(
        &self,
        d: &VInode,
        size: u64,
        content: &[u8; BLOCK as usize],
    ) -> Result<PmOff> {
        let range = size..size + BLOCK;
        self.append_content(d, self.root(d)?, size, range, AppendContent::Bytes(content))?;
        Ok(self.find_block(self.root(d)?, size)?.ok_or(Errno::UCLEAN)?.at(0))
    }

    fn free_dir_blocks(&self, dir: Ino, d: &VInode) {
        self.empty_dir(dir, d);
    }

    fn visit_dir(
        &self,
        d: &VInode,
        from: u64,
        each: &mut dyn FnMut(PmOff, u64) -> Result<bool>,
    ) -> Result<()> {
        let size = self.load(d, Word::Size);
        let mut leaf = |block: BlockNo, base| each(block.at(0), base);
        self.visit(Node::top(self.root(d)?), &(from..size), &mut leaf).map(drop)
    }

    fn commit_words(&self, hint: Ino, words: &[(PmOff, u64)]) -> Result<()> {
        let (number, _lock) = self.hold_record(hint)?;
        redo::commit(&self.medium, number, words, self.v.order(&self.medium));
        Ok(())
    }

    fn scan_inodes(&self, scan: &Scan) -> bool {
        self.scan_inode_file(scan)
    }

    fn scan_content(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        v: &VInode,
        size: u64,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> u64 {
        self.scan_tree(scan, object, v, size, each)
    }

    fn scan_attributes(&self, scan: &Scan, object: &dyn Fn() -> String, v: &VInode) -> u64 {
        self.scan_attribute_tree(scan, object, v)
    }

    fn end_scan(&self, scan: &Scan) {
        self.scan_snapshots(scan);
        self.check_stale(scan);
    }
}
