//! Inodes of a mounted pool: what every operation shares.

use crate::blocks::{KEEP, Txn};
use crate::crawler::{Change, Edit, Mode, Node, Trees};
use crate::layout::*;
use crate::volatile::{Locks, REMOVED, VInode, Volatile};
use crate::words::{Patch, WordsEdit};
use pmem::{LINE, Medium};
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::*};
use vfs::{Attr, Errno, FileKind, Ino, Result, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the superblock's inode-file root.
pub const INODE_ROOT: u64 = 64;
/// Offset of the superblock's inode-file size.
pub const INODE_SIZE: u64 = 72;

/// Times that a change of content changes.
pub const MODIFIED: [Word; 2] = [Word::Mtime, Word::Ctime];

/// Inodes and names: the trees, what is derived from them, and what operations do to one inode, directory or entry. Nothing
/// here is an operation.
pub struct Store<M> {
    pub trees: Trees<M>,
    pub v: Volatile,
    pub read_only: AtomicBool,
    pub clock: fn() -> Timestamp,
}

/// What is in them is followed and changed as if the trees were its own.
impl<M> Deref for Store<M> {
    type Target = Trees<M>;

    #[inline]
    fn deref(&self) -> &Trees<M> {
        &self.trees
    }
}

/// Why an operation did not complete under the locks it had.
#[derive(Debug)]
pub enum Stop {
    /// It failed.
    Errno(Errno),
    /// It has to change several words of an inode at once and wants to copy its leaf: try again
    /// under wide locks. Nothing has changed, but for a capability that is taken away first (contract vfs-C5).
    Wide,
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Self::Errno(e)
    }
}

impl<M: Medium> Store<M> {
    /// `EROFS` on a read-only mount, and after a recovery that met damage.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only.load(Relaxed) || self.v.is_damaged() {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// The derived state of a live inode whose lock the caller holds.
    #[inline]
    pub fn live(&self, ino: Ino) -> Result<&VInode> {
        let v = self.v.vinode(ino)?;
        if v.is_live() { Ok(v) } else { Err(Errno::STALE) }
    }

    /// The derived state of a live directory whose lock the caller holds.
    pub fn live_dir(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live(ino)?;
        if v.kind() == FileKind::Dir { Ok(v) } else { Err(Errno::NOTDIR) }
    }

    /// A live directory in which names may be made.
    pub fn open_dir(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live_dir(ino)?;
        if v.state.load(Relaxed) & REMOVED != 0 { Err(Errno::NOENT) } else { Ok(v) }
    }

    /// A word of an inode.
    #[inline]
    pub fn load(&self, v: &VInode, word: Word) -> u64 {
        self.medium.load_u64(v.pm_off.load(Relaxed) + word as u64)
    }

    /// Where a word of an inode lies.
    #[inline]
    pub fn word_off(&self, v: &VInode, word: Word) -> u64 {
        v.pm_off.load(Relaxed) + word as u64
    }

    /// The root of an inode's tree, checked.
    #[inline]
    pub fn root(&self, v: &VInode) -> Result<Root> {
        self.check_root(self.load(v, Word::Root))
    }

    /// Attributes of a live inode whose lock the caller holds.
    pub fn attr(&self, ino: Ino, v: &VInode) -> Attr {
        let mut attr = Attr::NONE;
        self.attr_into(ino, v, &mut attr);
        attr
    }

    /// As [`attr`](Self::attr), to where they are wanted.
    #[inline]
    pub fn attr_into(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        self.attr_of::<{ INODE as usize }>(ino, v, attr);
    }

    /// As [`attr_into`](Self::attr_into), without `btime`: all else that files have is in the record's
    /// first line.
    #[inline]
    pub fn common_attr_into(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        match v.kind() {
            FileKind::Char | FileKind::Block => self.attr_into(ino, v, attr),
            _ => self.attr_of::<{ LINE as usize }>(ino, v, attr),
        }
    }

    /// From the first `N` bytes of the record.
    #[inline]
    fn attr_of<const N: usize>(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        let mut bytes = [0; INODE as usize];
        self.medium.read(v.pm_off.load(Relaxed), &mut bytes[..N]);
        let record = InodeRecord::ref_from_bytes(&bytes).expect("an inode is exactly its bytes");
        *attr = v.attr(ino, record);
    }

    /// Stores times that changed; they are durable after the next fence. Times are separate words
    /// and so not atomic with what they date (§3.6).
    #[inline]
    pub fn touch<const N: usize>(&self, v: &VInode, words: [Word; N]) {
        if self.date(v, words) {
            self.medium.flush(v.pm_off.load(Relaxed), LINE);
        }
    }

    /// As [`touch`](Self::touch) where the commit that follows flushes the line of the times: to flush it before
    /// would be in vain, and to store to it again would wait for that. Whether any changed.
    #[inline]
    pub fn date<const N: usize>(&self, v: &VInode, words: [Word; N]) -> bool {
        let now = (self.clock)().0 as u64;
        let mut any = false;
        for w in words {
            let off = self.word_off(v, w);
            if self.medium.load_u64(off) != now {
                self.medium.store_u64(off, now);
                any = true;
            }
        }
        any
    }

    /// A change of content.
    pub fn touch_modified(&self, v: &VInode) {
        self.touch(v, MODIFIED);
    }

    /// A change of the inode.
    pub fn touch_changed(&self, v: &VInode) {
        self.touch(v, [Word::Ctime]);
    }

    /// Whether `relatime` has nothing to record: the last recorded access is younger than the last
    /// change, and than a day.
    pub fn is_access_recorded(&self, v: &VInode) -> bool {
        const DAY_NS: u64 = 86_400_000_000_000;
        if self.read_only.load(Relaxed) {
            return true;
        }
        let atime = self.load(v, Word::Atime);
        atime > self.load(v, Word::Mtime)
            && atime > self.load(v, Word::Ctime)
            && ((self.clock)().0 as u64).wrapping_sub(atime) < DAY_NS
    }

    /// Records an access where `relatime` wants it and the mount does. Not worth a fence.
    pub fn touch_accessed(&self, v: &VInode) {
        if !self.is_access_recorded(v) && self.v.records_access(v.kind()) {
            self.touch(v, [Word::Atime]);
        }
    }

    /// Applies an edit to an inode's tree and commits it, at the root word at the latest.
    pub fn edit_tree(
        &self,
        txn: &mut Txn<'_>,
        v: &VInode,
        root: Root,
        edit: &mut dyn Edit,
    ) -> Result<()> {
        if let Change::Shadow(block) = self.edit(txn, Node::top(root), Mode::Atomic, edit)? {
            self.commit(self.word_off(v, Word::Root), Root::new(block, root.height()).0);
        }
        Ok(())
    }

    /// The most blocks that changing words of `n` inodes at once can take. Under wide locks only: else the
    /// inode file may be growing, and its root not durable yet.
    pub fn inode_commit_blocks(&self, n: u64) -> u64 {
        n * (u64::from(Root(self.medium.load_u64(INODE_ROOT)).height()) + 1)
    }

    /// Commits words of inodes: one word in place, several by copying the leaves of the inode file
    /// up to their lowest common ancestor (§3.2, partial copy-on-write).
    pub fn commit_inodes(
        &self,
        txn: &mut Txn<'_>,
        locks: &Locks<'_>,
        words: &[(Ino, Word, u64)],
    ) -> std::result::Result<(), Stop> {
        match words {
            [] => {
                let _ = self.medium.fence();
                Ok(())
            }
            [(ino, word, value)] => {
                self.commit(self.word_off(self.v.vinode(*ino)?, *word), *value);
                Ok(())
            }
            _ if !locks.has_global() => Err(Stop::Wide),
            _ => {
                let root = self.check_root(self.medium.load_u64(INODE_ROOT))?;
                let at =
                    |(ino, word, value): &(Ino, Word, u64)| (ino.0 * INODE + *word as u64, *value);
                let words = words.iter().map(at).collect();
                let mut edit = WordsEdit::new(self, Patch { words, ..Patch::default() });
                if let Change::Shadow(b) =
                    self.edit(txn, Node::top(root), Mode::Atomic, &mut edit)?
                {
                    self.commit(INODE_ROOT, Root::new(b, root.height()).0);
                }
                for m in edit.moved {
                    self.v.move_leaf(m.base / INODE, m.new);
                }
                Ok(())
            }
        }
    }

    /// Claims an inode number whose slot exists in the inode file, growing the file if it must.
    pub fn new_inode(&self) -> Result<Ino> {
        let ino = self.v.claim_inode()?;
        if ino.0 < self.v.inode_slots() {
            return Ok(ino);
        }
        let grow = || {
            let _file = self.v.lock_inode_file()?;
            while ino.0 >= self.v.inode_slots() {
                self.grow_inode_file()?;
            }
            Ok(ino)
        };
        grow().inspect_err(|_| self.v.release_inode(ino))
    }

    /// Appends a leaf to the inode file, in place (§3.2): invisible until its size says so.
    fn grow_inode_file(&self) -> Result<()> {
        let size = self.medium.load_u64(INODE_SIZE);
        let root = self.check_root(self.medium.load_u64(INODE_ROOT))?;
        let end = size + BLOCK;
        self.v.transact(u64::from(height_for(end)) * 2 + 1, KEEP, |txn| {
            let data = [0; BLOCK as usize];
            let (new, _) = self.fill(txn, root, size, size..end, Some(&data))?;
            self.commit_append((INODE_ROOT, root), new, (INODE_SIZE, end));
            self.v.add_leaf(self.find_block(new, size)?);
            Ok(())
        })
    }

    /// Writes a new inode into its slot; nothing names it yet (§3.4). Of each line, the generation comes
    /// last (dir-D4).
    pub fn write_inode(&self, v: &VInode, record: &InodeRecord) {
        let off = v.pm_off.load(Relaxed);
        let bytes = record.as_bytes();
        self.medium.write(off, &bytes[..Word::Mode as usize]);
        for word in [Word::Mode, Word::Btime, Word::Rdev] {
            let at = word as usize;
            let value = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            self.medium.store_u64(off + word as u64, value);
        }
        self.medium.flush(off, INODE);
    }

    /// Frees an inode that has neither names nor references: only derived state changes, because an
    /// inode that no entry names is not valid (§3.1). The caller holds its lock exclusively.
    pub fn reap(&self, ino: Ino, v: &VInode) {
        let mut blocks: SmallVec<[u32; 16]> = SmallVec::new();
        let mut left = v.block_count();
        for word in [Word::Xattr, Word::Root] {
            let root = self.check_root(self.load(v, word));
            // A damaged tree keeps its blocks: better lost until repair than free while referenced.
            if let Ok(root) = root {
                let before = blocks.len();
                let mut note = |b| blocks.push((b / BLOCK) as u32);
                match self.visit_most(Node::top(root), &mut left, &mut note) {
                    Ok(()) => {
                        let n = blocks.len() - before;
                        debug_assert_eq!(n, self.count_blocks(root), "{ino}: its blocks");
                    }
                    Err(e) => {
                        blocks.truncate(before);
                        tracing::error!(%ino, %e, "its blocks stay allocated");
                    }
                }
            }
        }
        if v.kind() == FileKind::Dir {
            self.v.drop_dir_state(v);
        }
        // Every block of pointers comes after those that it names.
        let ends_with_line =
            self.line_of_pointers(v).is_some_and(|line| blocks.last() == Some(&line));
        v.end();
        match ends_with_line {
            true => self.v.release_with_line(&blocks),
            false => self.v.release(&blocks),
        }
        self.v.release_inode(ino);
    }

    /// The topmost block of a file that has no more than a line of pointers: behind that it is null, as
    /// nothing is beyond the size (crawler-T3).
    fn line_of_pointers(&self, v: &VInode) -> Option<u32> {
        let root = self.root(v).ok().filter(|root| root.height() == 1 && root.block() != 0)?;
        let is_short = self.load(v, Word::Size) <= LINE_POINTERS * BLOCK;
        (v.kind() == FileKind::File && is_short).then_some((root.block() / BLOCK) as u32)
    }

    /// Announces that an inode may be [reaped](Self::reap) soon: its topmost block will be read where that
    /// is one of pointers.
    #[inline]
    pub fn prefetch_tree(&self, v: &VInode) {
        if let Ok(root) = self.root(v) {
            self.prefetch_pointers(root);
        }
    }

    /// Announces that the first pointers of a tree that has any are read.
    #[inline]
    fn prefetch_pointers(&self, root: Root) {
        if root.height() > 0 {
            self.medium.prefetch(root.block(), LINE);
        }
    }

    /// Announces that a file, whose attributes these are, may be read from its start, or continued: what
    /// holds it mostly does that next.
    #[inline]
    pub fn prefetch_content(&self, v: &VInode, attr: &Attr) {
        if attr.kind != FileKind::File || attr.size == 0 {
            return;
        }
        let Ok(root) = self.root(v) else { return };
        self.prefetch_pointers(root);
        for (at, bytes) in [(0, 4 * LINE), (attr.size - 1, 1)] {
            if root.height() > 0 {
                self.prefetch_extent(v, at, bytes);
            } else if let Ok(block @ 1..) = self.find_block(root, at) {
                self.medium.prefetch(block + at % BLOCK, bytes);
            }
        }
    }

    /// Blocks of a sound tree.
    fn count_blocks(&self, root: Root) -> usize {
        let mut n = 0;
        let _ = self.visit_all(Node::top(root), &mut |_| n += 1);
        n
    }

    /// Adds a reference for the caller.
    #[inline]
    pub fn hold(&self, ino: Ino, v: &VInode) {
        self.v.add_ref(ino, v);
    }
}

/// Notes where damage was met. Only under locks: an optimistic reader can meet what is not there.
pub fn report(ino: Ino, e: Errno) -> Errno {
    if e == Errno::UCLEAN {
        tracing::error!(%ino, "damaged: unmount and run `keepstone check`");
    }
    e
}

impl VInode {
    /// Attributes, of which the record in PM has these.
    #[inline(always)]
    pub fn attr(&self, ino: Ino, record: &InodeRecord) -> Attr {
        let time = |t: zerocopy::byteorder::little_endian::U64| Timestamp(t.get() as i64);
        Attr {
            ino,
            generation: record.generation.get(),
            kind: self.kind(),
            perm: record.mode.get() & 0o7777,
            nlink: self.nlink(),
            uid: record.uid.get(),
            gid: record.gid.get(),
            rdev: record.rdev.get(),
            size: record.size.get(),
            blocks: self.block_count() * (BLOCK / 512),
            atime: time(record.atime),
            mtime: time(record.mtime),
            ctime: time(record.ctime),
            btime: time(record.btime),
        }
    }
}
