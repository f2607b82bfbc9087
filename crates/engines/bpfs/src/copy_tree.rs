//! Copies of directory trees, which share the contents of files with their source and appear as a
//! whole: of a directory of the pool ([`vfs::clone_tree()`] has the promises), or of a snapshot,
//! which makes a branch.
//!
//! - copy_tree-Y1: nothing leads to the copy before the entry of its topmost directory is
//!   committed ([`namespace`], copied-T1–T3). If that fails, all of it becomes free, as a mount
//!   would find it.
//! - copy_tree-Y2: each inode of a source that others may change is read, and its content shared,
//!   under its exclusive lock (parents-P3). The blocks of a directory are read at one moment. Its
//!   entries name inodes in a life: one that has ended meanwhile is left out.
//! - copy_tree-Y3: each inode of the source is copied once. Further names of a file are names of
//!   the copy; a directory that has moved meanwhile is left out where it appears again. So the copy
//!   ends.
//!
//! | operation | prepared | stored | fences |
//! |---|---|---|---:|
//! | copy a tree | inodes, directories, attributes, past the caches | the entry | 2 |
//!
//! More inodes than there are slots take three fences more for each 16,384 of them.

use crate::blocks::{KEEP, Txn};
use crate::crawler::{Node, Trees};
use crate::extent::{Extent, FileExtent as _};
use crate::fs::Files;
use crate::layout::*;
use crate::snapshots::{TableEntry, blocks_over, kind_of};
use crate::store::Store;
use namespace::derived::SharedPool as _;
use namespace::layout::Life;
use namespace::own_mode::MAY_HAVE_MODE;
use namespace::{Chain, MAY_BE_CAPABLE, RawEntry, Storage as _, VInode, is_possible};
use pmem::Medium;
use pool::TreeSource;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Cloned, Errno, FileKind, Ino, ROOT, Result};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// The content of a block of entries.
type EntryBlock = [u8; BLOCK as usize];

/// The source of a copy.
enum Source {
    /// A directory of the pool, which others may change meanwhile.
    Live,
    /// A snapshot of the pool, which stays meanwhile.
    Snapshot(TableEntry),
}

/// An inode of the copy that is being made.
struct NewInode {
    ino: Ino,
    kind: FileKind,
    /// As it will be stored. The root of a directory is that of the source.
    record: InodeRecord,
    /// The life of the source.
    from: Life,
    /// Blocks of its content and of its attributes.
    blocks: u64,
    extent: Extent,
    /// The list of its attributes. The record does not lead to it yet.
    list: Vec<u8>,
}

impl NewInode {
    /// Fills the derived state, except for what a directory has of its entries.
    fn prepare(&self, v: &VInode, links: u32) {
        let unread = if self.list.is_empty() { 0 } else { MAY_BE_CAPABLE | MAY_HAVE_MODE };
        v.prepare(self.kind, unread, links);
        v.add_blocks(self.blocks as i64);
        if self.kind == FileKind::File {
            v.set_extent(self.extent);
        }
    }
}

/// The copy of an inode of the source: its number, or 0; the generations of source and copy; and
/// whether it is a directory.
type CopyOf = [u32; 4];

/// Inode numbers that are claimed and not used yet.
#[derive(Default)]
struct Numbers {
    runs: VecDeque<Range<u64>>,
    count: u64,
    hint: u64,
}

/// A copy that is being made.
struct TreeCopy<'a, M: Medium> {
    files: &'a Files<M>,
    source: Source,
    /// By the number of the source.
    copies: Vec<CopyOf>,
    numbers: Numbers,
    /// Inodes that are prepared.
    made: Vec<Ino>,
    /// Inodes that have got another name, once for each.
    linked: Vec<Ino>,
    /// Directories that are not prepared yet, each with its parent in the copy.
    pending: Vec<(NewInode, Ino)>,
    done: Cloned,
}

impl<M: Medium> Store<M> {
    /// Reads an inode of the pool, and shares its content (copy_tree-Y2). `None` if its life has
    /// ended.
    fn share_present(&self, txn: &mut Txn<'_>, from: Life) -> Result<Option<NewInode>> {
        let v = self.v.vinode(from.ino)?;
        // Nothing of a directory is shared.
        let _lock = match v.kind() {
            FileKind::Dir => self.v.lock_shared(from.ino)?,
            _ => self.v.lock_exclusive(&[from.ino])?,
        };
        if !v.is_live() || self.life(from.ino, v) != from {
            return Ok(None);
        }
        let mut record = InodeRecord::new_zeroed();
        self.medium.read(v.at(), record.as_mut_bytes());
        let attributes = self.count_attributes(v)?;
        let known = (v.block_count().saturating_sub(attributes), v.extent());
        self.share(txn, (from, v.kind(), record), Some(known)).map(Some)
    }

    /// Reads an inode of a snapshot, and shares its content. `None` if the entry that names it was
    /// left over from a crash.
    fn share_from(
        &self,
        txn: &mut Txn<'_>,
        snapshot: &TableEntry,
        from: Life,
    ) -> Result<Option<NewInode>> {
        let record = self.inode_of(snapshot, from.ino.0)?;
        if record.generation.get() != from.generation {
            return Ok(None);
        }
        let kind = kind_of(&record)?.ok_or(Errno::UCLEAN)?;
        let (mode, size) = (record.mode.get(), record.size.get());
        let is_sound = is_possible(kind, mode, size, LIMITS.symlink)
            && size <= LIMITS.file_size
            && (kind != FileKind::Dir || size.is_multiple_of(BLOCK));
        if !is_sound {
            return Err(Errno::UCLEAN);
        }
        self.share(txn, (from, kind, record), self.known_tree(&record, from.ino)).map(Some)
    }

    /// Shares the content of an inode with a copy, which gets no number yet. `known` has the number
    /// of its blocks, and its extent.
    fn share(
        &self,
        txn: &mut Txn<'_>,
        (from, kind, mut record): (Life, FileKind, InodeRecord),
        known: Option<(u64, Extent)>,
    ) -> Result<NewInode> {
        let list = self.load_list(record.xattr.get())?;
        let (mut blocks, mut extent) = (0, Extent::default());
        match kind {
            FileKind::Dir => {}
            FileKind::File | FileKind::Symlink => {
                let root = self.check_root(record.root.get())?;
                (blocks, extent) = match known {
                    Some(known) => known,
                    None => {
                        let all = self.count_blocks(Node::top(root), &mut HashMap::new())?;
                        (all, Extent::default())
                    }
                };
                if let Some(block) = root.block() {
                    txn.share(block, root.height())?;
                }
            }
            _ => record.root.set(0),
        }
        let now = self.now().0 as u64;
        record.ctime.set(now);
        record.btime.set(now);
        record.xattr.set(0);
        Ok(NewInode { ino: Ino(0), kind, record, from, blocks, extent, list })
    }

    /// Returns the number of blocks and the extent of a file of the pool, if its tree is that of a
    /// snapshot's record. The tree is shared, so it does not change (parents-P3).
    fn known_tree(&self, record: &InodeRecord, ino: Ino) -> Option<(u64, Extent)> {
        let v = self.v.vinode(ino).ok()?;
        let seen = v.lock.begin_optimistic()?;
        let is_same = v.is_live()
            && self.load(v, Word::Root) == record.root.get()
            && self.load(v, Word::Size) == record.size.get()
            && self.load(v, Word::Xattr) == 0;
        let known = (v.block_count(), v.extent());
        (is_same && v.lock.end_optimistic(seen)).then_some(known)
    }

    /// Returns the number of blocks of an inode's attributes, whose lock the caller holds.
    pub fn count_attributes(&self, v: &VInode) -> Result<u64> {
        let root = self.check_root(self.load(v, Word::Xattr))?;
        self.count_blocks(Node::top(root), &mut HashMap::new())
    }
}

impl<M: Medium> Trees<M> {
    /// Reads the blocks of a directory of this size.
    fn load_entries(&self, root: Root, size: u64) -> Result<Vec<EntryBlock>> {
        let mut blocks = Vec::with_capacity((size.min(self.bytes) / BLOCK) as usize);
        self.visit(Node::top(root), &(0..size), &mut |block, _| {
            let mut data = [0; BLOCK as usize];
            self.medium.read(block.at(0), &mut data);
            blocks.push(data);
            Ok(true)
        })?;
        Ok(blocks)
    }
}

impl Numbers {
    /// Takes a number; `None` if too few were claimed.
    fn take(&mut self) -> Option<Ino> {
        let run = self.runs.front_mut()?;
        let number = run.next()?;
        self.count -= 1;
        if run.is_empty() {
            self.runs.pop_front();
        }
        Some(Ino(number))
    }

    /// Claims more, until there are `count`.
    fn claim<M: Medium>(&mut self, store: &Store<M>, count: u64) -> Result<()> {
        let missing = count.saturating_sub(self.count);
        if missing == 0 {
            return Ok(());
        }
        // All slots at once: each growth takes fences of its own. Number 0 has a slot, too.
        let (all, free) = store.v.inode_counts();
        store.grow_inodes_to(all - free + 1 + missing)?;
        while self.count < count {
            let run = store.new_inodes(self.hint, count - self.count)?;
            self.hint = run.end;
            self.count += run.end - run.start;
            self.runs.push_back(run.clone());
            // Their records are written without locks.
            let one_of_each = run.step_by(INODES_PER_BLOCK as usize).chain([self.hint - 1]);
            store.own_inodes(&one_of_each.map(Ino).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Gives back those that are left.
    fn release<M: Medium>(&mut self, store: &Store<M>) {
        while let Some(ino) = self.take() {
            store.v.release_inode(ino);
        }
    }
}

impl<'a, M: Medium> TreeCopy<'a, M> {
    fn new(files: &'a Files<M>, source: Source) -> Self {
        let inodes = match &source {
            Source::Live => files.v.inode_slots(),
            Source::Snapshot(entry) => entry.inodes(),
        };
        Self {
            files,
            source,
            copies: vec![[0; 4]; inodes as usize],
            numbers: Numbers::default(),
            made: Vec::new(),
            linked: Vec::new(),
            pending: Vec::new(),
            done: Cloned::default(),
        }
    }

    /// Makes all of the copy but its name. Returns its topmost directory.
    fn run(&mut self, top: Life) -> Result<Life> {
        let files = self.files;
        let top = self.with_space(|copy| copy.make_top(top))?;
        while let Some((dir, parent)) = self.pending.pop() {
            let made = self.with_space(|copy| copy.make_dir(&dir, parent));
            let (leaves, entries) =
                made.inspect_err(|_| self.give_back(std::slice::from_ref(&dir)))?;
            let v = files.v.vinode(dir.ino)?;
            for (leaf, block) in leaves.iter().zip(&entries) {
                files.index_dir_block(dir.ino, v, leaf.at(0), block)?;
            }
        }
        Ok(top)
    }

    /// Repeats a step that found no space, while space can be made. The step leaves nothing
    /// half-done. (To start the copy over would give back what it has, and so hide what is
    /// missing.)
    fn with_space<T>(&mut self, step: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        loop {
            let state = (self.linked.len(), self.done);
            match step(self) {
                Err(Errno::NOSPC) if self.files.0.make_space()? => {
                    self.linked.truncate(state.0);
                    self.done = state.1;
                }
                done => return done,
            }
        }
    }

    /// Makes the topmost directory, which is to be filled.
    fn make_top(&mut self, from: Life) -> Result<Life> {
        let files = self.files;
        self.numbers.claim(files, 1)?;
        let mut tops = Vec::new();
        let made = files.transact(0, 0, |txn| {
            let top = self.entry(txn, from, &mut tops)?.ok_or(Errno::NOENT)?;
            self.store_lists(&mut tops)?;
            Ok(top)
        });
        let top = made.inspect_err(|_: &Errno| self.drop_copies(&tops))?;
        self.keep(tops, ROOT);
        Ok(top)
    }

    /// Makes a directory, and the inodes that its entries name. Returns its blocks, and what they
    /// contain.
    fn make_dir(&mut self, dir: &NewInode, parent: Ino) -> Result<(Vec<BlockNo>, Vec<EntryBlock>)> {
        let files = self.files;
        let mut blocks = self.load_dir(dir)?;
        let names = blocks.iter().flat_map(Chain::new).flatten();
        let names = names.filter(|entry| entry.life.is_some()).count() as u64;
        self.numbers.claim(files, names)?;
        let need = blocks_over(blocks.len() as u64);
        let mut children = Vec::with_capacity(names as usize);
        let made = files.transact(need, KEEP, |txn| {
            for block in &mut blocks {
                self.entries(txn, block, &mut children)?;
            }
            // The last step that can fail: it takes its blocks by a transaction of its own.
            self.store_lists(&mut children)?;
            txn.take_apart();
            let leaves: Vec<_> = blocks.iter().map(|_| txn.take()).collect();
            for (leaf, block) in leaves.iter().zip(&blocks) {
                files.medium.write_nt(leaf.at(0), block);
            }
            Ok((files.build_over(txn, leaves.clone()), leaves))
        });
        let (root, leaves) = made.inspect_err(|_: &Errno| self.drop_copies(&children))?;
        self.store_files(&children)?;
        let v = files.v.vinode(dir.ino)?;
        let mut record = dir.record;
        record.root.set(root.word());
        record.size.set(leaves.len() as u64 * BLOCK);
        files.medium.write_nt(v.at(), record.as_bytes());
        files.v.note_used(dir.ino);
        let subdirs = children.iter().filter(|child| child.kind == FileKind::Dir).count();
        dir.prepare(v, subdirs as u32);
        v.add_blocks(need as i64);
        v.parent.store(parent.0 as u32, Relaxed);
        self.made.push(dir.ino);
        self.keep(children, dir.ino);
        Ok((leaves, blocks))
    }

    /// Reads the blocks of the source of a directory.
    fn load_dir(&self, dir: &NewInode) -> Result<Vec<EntryBlock>> {
        let files = self.files;
        let Source::Live = self.source else {
            let root = files.check_root(dir.record.root.get())?;
            return files.load_entries(root, dir.record.size.get());
        };
        let _lock = files.v.lock_shared(dir.from.ino)?;
        match files.live_dir(dir.from.ino) {
            Ok(v) if files.life(dir.from.ino, v) == dir.from => {
                files.load_entries(files.root(v)?, files.load(v, Word::Size))
            }
            // It was removed meanwhile, and so was empty.
            _ => Ok(Vec::new()),
        }
    }

    /// Copies the inodes that the entries of a block name, and makes the entries name the copies.
    fn entries(
        &mut self,
        txn: &mut Txn<'_>,
        block: &mut EntryBlock,
        children: &mut Vec<NewInode>,
    ) -> Result<()> {
        let files = self.files;
        let found: std::result::Result<SmallVec<[RawEntry; 128]>, u64> =
            Chain::new(block).collect();
        let found = found.map_err(|_| Errno::UCLEAN)?;
        for life in found.iter().filter_map(|entry| entry.life) {
            let record = files.v.prefetch_inode(life.ino, INODE);
            if let (Some(record), Source::Live) = (record, &self.source) {
                files.medium.prefetch(record, INODE);
            }
        }
        for entry in found {
            let Some(life) = entry.life else { continue };
            let at = entry.off as usize;
            let copy = self.entry(txn, life, children)?;
            let word = copy.map_or(0, Life::pack);
            block[at..at + 8].copy_from_slice(&word.to_le_bytes());
            if copy.is_none() {
                block[at + 8..at + 16].copy_from_slice(&entry.run().word().to_le_bytes());
            }
        }
        Ok(())
    }

    /// Copies the inode of an entry, unless it was copied before. Returns the copy; `None` if the
    /// entry is left out (copy_tree-Y3).
    fn entry(
        &mut self,
        txn: &mut Txn<'_>,
        from: Life,
        children: &mut Vec<NewInode>,
    ) -> Result<Option<Life>> {
        let left_out = match self.source {
            Source::Live => Ok(None),
            // All of it is of one moment.
            Source::Snapshot(_) => Err(Errno::UCLEAN),
        };
        let Some(&[number, of, generation, is_dir]) = self.copies.get(from.ino.0 as usize) else {
            return left_out;
        };
        if number != 0 {
            if of != from.generation || is_dir != 0 {
                return left_out;
            }
            let ino = Ino(number.into());
            self.linked.push(ino);
            return Ok(Some(Life { ino, generation }));
        }
        let shared = match &self.source {
            Source::Live => self.files.share_present(txn, from)?,
            Source::Snapshot(entry) => self.files.share_from(txn, entry, from)?,
        };
        let Some(mut new) = shared else { return Ok(None) };
        new.ino = self.numbers.take().ok_or(Errno::UCLEAN)?;
        let generation = self.files.next_generation(self.files.v.vinode(new.ino)?);
        new.record.set_generation(generation);
        let is_dir = new.kind == FileKind::Dir;
        self.copies[from.ino.0 as usize] =
            [new.ino.0 as u32, from.generation, generation, is_dir.into()];
        match new.kind {
            FileKind::Dir => self.done.dirs += 1,
            FileKind::File => {
                self.done.files += 1;
                self.done.bytes += new.record.size.get();
            }
            _ => self.done.others += 1,
        }
        let life = Life { ino: new.ino, generation };
        children.push(new);
        Ok(Some(life))
    }

    /// Stores the lists of attributes of new inodes. If that fails, nothing has changed.
    fn store_lists(&self, children: &mut [NewInode]) -> Result<()> {
        let with_list = || (0..).zip(&*children).filter(|(_, child)| !child.list.is_empty());
        let blocks_of = |list: &[u8]| blocks_over((list.len() as u64).div_ceil(BLOCK));
        let need = with_list().map(|(_, child)| blocks_of(&child.list)).sum();
        if need == 0 {
            return Ok(());
        }
        let words: Vec<(usize, u64)> = self.files.transact(need, KEEP, |txn| {
            txn.take_apart();
            let store = |(i, child): (usize, &NewInode)| {
                Ok::<_, Errno>((i, self.files.build_tree(txn, &child.list)?.word()))
            };
            with_list().map(store).collect()
        })?;
        for (i, word) in words {
            let child = &mut children[i];
            child.record.xattr.set(word);
            child.blocks += blocks_of(&child.list);
        }
        Ok(())
    }

    /// Stores the records of all new inodes but directories, past the caches, and prepares the
    /// inodes.
    fn store_files(&self, children: &[NewInode]) -> Result<()> {
        let medium = &self.files.medium;
        let (mut start, mut bytes) = (None, Vec::new());
        for child in children.iter().filter(|child| child.kind != FileKind::Dir) {
            let v = self.files.v.vinode(child.ino)?;
            self.files.v.note_used(child.ino);
            child.prepare(v, 1);
            let at = v.at();
            match start {
                Some(first) if first + bytes.len() as u64 == at => {}
                _ => {
                    if let Some(first) = start {
                        medium.write_nt(first, &bytes);
                    }
                    start = Some(at);
                    bytes.clear();
                }
            }
            bytes.extend_from_slice(child.record.as_bytes());
        }
        if let Some(first) = start {
            medium.write_nt(first, &bytes);
        }
        Ok(())
    }

    /// Keeps new inodes: directories are to be filled.
    fn keep(&mut self, children: Vec<NewInode>, parent: Ino) {
        for child in children {
            match child.kind {
                FileKind::Dir => self.pending.push((child, parent)),
                _ => self.made.push(child.ino),
            }
        }
    }

    /// Lets all inodes live (copied-T3).
    fn begin_lives(&self) {
        let of = |ino: &Ino| self.files.v.vinode(*ino).ok();
        for v in self.linked.iter().filter_map(of) {
            v.add_links(1);
        }
        self.made.iter().filter_map(of).for_each(|v| v.begin_prepared());
    }

    /// Gives back inodes that are not prepared, so that their sources can be copied again.
    fn drop_copies(&mut self, children: &[NewInode]) {
        for child in children {
            self.copies[child.from.ino.0 as usize] = [0; 4];
        }
        self.give_back(children);
    }

    /// Gives back what inodes have that are not prepared.
    fn give_back(&self, children: &[NewInode]) {
        let mut freed = Vec::new();
        for child in children {
            let list = self.files.check_root(child.record.xattr.get());
            let freed = list.and_then(|list| {
                self.files.visit_all(Node::top(list), &mut |block| freed.push(block))
            });
            debug_assert!(freed.is_ok(), "it was stored just now");
            self.files.v.release_inode(child.ino);
        }
        self.files.v.release(&freed);
    }

    /// Gives everything back (copy_tree-Y1).
    fn undo(&self) {
        for ino in &self.made {
            let Ok(v) = self.files.v.vinode(*ino) else { continue };
            if v.kind() == FileKind::Dir {
                self.files.unindex_dir(*ino, v);
            }
            self.files.free_inode(*ino, v);
        }
        for (dir, _) in &self.pending {
            self.give_back(std::slice::from_ref(dir));
        }
    }
}

impl<M: Medium> Files<M> {
    /// Implements [`namespace::Files::copy_tree`].
    pub fn copy_tree(
        &self,
        from: &TreeSource<'_>,
        (dir, name): (Ino, &[u8]),
    ) -> Result<(Ino, Cloned)> {
        if self.is_backed() || self.snapshot.get().is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        self.check_writable()?;
        LIMITS.check_name(name)?;
        self.begin_sharing();
        let mut copy;
        let made = match from {
            TreeSource::Dir(top) => {
                let top = {
                    let _lock = self.v.lock_shared(*top)?;
                    self.life(*top, self.live_dir(*top)?)
                };
                copy = TreeCopy::new(self, Source::Live);
                copy.run(top)
            }
            TreeSource::Snapshot(snapshot) => {
                // The snapshot stays meanwhile.
                let _lock = self.v.snapshots.hold(&self.v, 0)?;
                let entry = self.find_snapshot(snapshot)?;
                let generation = self.inode_of(&entry, ROOT.0)?.generation.get();
                copy = TreeCopy::new(self, Source::Snapshot(entry));
                copy.run(Life { ino: ROOT, generation })
            }
        };
        let named = made.and_then(|top| self.name_tree((dir, name), top, || copy.begin_lives()));
        copy.numbers.release(self);
        match named {
            Ok(entry) => Ok((entry.ino, copy.done)),
            Err(errno) => {
                copy.undo();
                Err(errno)
            }
        }
    }
}
