//! Inodes of a mounted pool: what every operation shares, and what it wants of the engine.

use crate::derived::REMOVED;
use crate::layout::*;
use crate::scan::Scan;
use crate::tables::{Tables, VInode};
use crate::xattr::Attributes;
use pmem::{LINE, Medium, Pm, PmOff};
use std::sync::atomic::Ordering::*;
use vfs::{Attr, Errno, FileKind, Ino, Limits, Result, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

/// Times that a change of content changes.
pub const MODIFIED: [Word; 2] = [Word::Mtime, Word::Ctime];

/// Bytes of an inode that are laid out here.
const RECORD: usize = size_of::<InodeRecord>();

/// What a change of attributes does to an inode.
#[derive(Debug, Default)]
pub struct Change {
    /// Words of its record.
    pub words: Vec<(Word, u64)>,
    /// Its extended attributes, where they change.
    pub attributes: Option<Attributes>,
}

/// Inodes and names of an engine: the medium, what is derived from it, and what an engine does its own way. Nothing here
/// is an operation.
pub trait Storage: Sized + Send + Sync {
    /// The medium.
    type Medium: Medium;

    /// Bytes per inode, of which the first are an [`InodeRecord`]. A power of two.
    const INODE: u64;

    /// How large things can be: names as long as fit in [entries](crate::layout), for instance.
    const LIMITS: &'static Limits;

    /// Longest list of attributes, in [bytes](Attributes::bytes).
    const ATTRIBUTES_MAX: u64;

    /// The medium.
    fn medium(&self) -> Pm<&Self::Medium>;

    /// What is derived.
    fn tables(&self) -> &Tables;

    /// Whether nothing may be changed.
    fn is_read_only(&self) -> bool;

    /// The time.
    fn now(&self) -> Timestamp;

    // --- space ----------------------------------------------------------------------------------

    /// Blocks that are not free but kept for later: [`make_space`](Self::make_space) frees them.
    fn reclaimable(&self) -> u64 {
        0
    }

    /// See [`crate::derived::SharedPool::make_space`]. The caller holds no locks.
    fn make_space(&self) -> Result<bool> {
        Ok(false)
    }

    /// See [`Tables::clear_deferred`].
    fn clear_deferred(&self) {
        self.tables().clear_deferred();
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// Makes slots for more inodes, which are invisible until their size says so ([`Tables::add_leaf`]). Under the lock of
    /// where inodes lie.
    fn grow_inodes(&self) -> Result<()>;

    /// Claims an inode number for which there is a slot, [`VInode::at`]; makes more of them if it must.
    fn new_inode(&self) -> Result<Ino> {
        let tables = self.tables();
        let ino = tables.claim_inode()?;
        if ino.0 < tables.inode_slots() {
            return Ok(ino);
        }
        let grow = || {
            let _lock = tables.lock_inode_file()?;
            while ino.0 >= tables.inode_slots() {
                self.grow_inodes()?;
            }
            Ok(ino)
        };
        grow().inspect_err(|_| tables.release_inode(ino))
    }

    /// Writes a new inode, which nothing names yet, by [`write_inode`](Self::write_inode), with a symbolic link's `target`
    /// and its attributes, so that they are durable after the next fence; the record is complete but for
    /// where these lie. Where it has neither size nor attributes, only the record has to become durable, and its entry need
    /// not wait for it (dir-D4). What else can fail, `prepare` does: shortly before, because an
    /// atomic operation waits for the flushes before it. Sets the inode's blocks.
    fn write_new_inode<T>(
        &self,
        v: &VInode,
        record: InodeRecord,
        target: &[u8],
        attributes: &Attributes,
        prepare: impl FnOnce() -> Result<T>,
    ) -> Result<(InodeRecord, T)>;

    /// Frees an inode that has neither names nor references: only derived state changes, because an
    /// inode that no entry names is not valid (§3.1). The caller holds its lock exclusively.
    fn reap(&self, ino: Ino, v: &VInode);

    /// Announces that an inode may be [reaped](Self::reap) soon.
    fn prefetch_reap(&self, v: &VInode);

    /// Announces that a file, whose attributes these are, may be read from its start, or continued: what
    /// holds it mostly does that next.
    fn prefetch_content(&self, v: &VInode, attr: &Attr);

    /// Reads the content of a symbolic link, from its start, whose size is that of `buf` at least.
    fn read_target(&self, v: &VInode, buf: &mut [u8]) -> Result<()>;

    // --- attributes -----------------------------------------------------------------------------

    /// The list of attributes of an inode whose lock the caller holds, as it lies in PM; empty where there is none.
    fn attribute_list(&self, v: &VInode) -> Result<Vec<u8>>;

    /// Where byte `at` of that list lies.
    fn attribute_place(&self, v: &VInode, at: u64) -> Result<PmOff>;

    /// Takes what attributes say of an inode into its derived state: they are its own now.
    fn note_attributes(&self, _v: &VInode, _attributes: &Attributes) {}

    /// All attributes of an inode whose lock the caller holds.
    fn attributes(&self, v: &VInode) -> Result<Attributes> {
        match &self.attribute_list(v)?[..] {
            [] => Ok(Attributes::default()),
            list => Attributes::parse(list).ok_or(Errno::UCLEAN),
        }
    }

    /// Whether an attribute may have this value.
    fn check_attribute(&self, _name: &[u8], _value: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Commits words and attributes of an inode, and its size if it gets another one, at once, durably. Grows or cuts the
    /// content; then that is a change of content, which is [recorded](Self::touch_modified), as is that of the inode where
    /// attributes change. What grows reads as zeros.
    fn commit_change(&self, ino: Ino, v: &VInode, change: &Change, size: Option<u64>)
    -> Result<()>;

    /// Commits that an inode has no attributes, durably: that takes no space.
    fn commit_no_attributes(&self, v: &VInode) -> Result<()>;

    // --- mappings to where content lies ([`vfs::FileSystem::map_range`]) ------------------------------

    /// Notes that somebody may have changed the content of a file without a call, before he has no mapping of it any more.
    fn note_unknown_stores(&self, _v: &VInode) {}

    /// Gives back what a file has beyond its end: nobody maps it any more.
    fn give_back_preallocated(&self, _v: &VInode) -> Result<()> {
        Ok(())
    }

    // --- directories ----------------------------------------------------------------------------

    /// Appends a block of entries to a directory, which has `size` bytes, durably; where it lies. What it holds is free, so
    /// that it commits on its own.
    fn append_dir_block(
        &self,
        d: &VInode,
        size: u64,
        content: &[u8; BLOCK as usize],
    ) -> Result<PmOff>;

    /// Calls `each(block, base)` for the blocks of a directory from byte `from` on, in order, with where they lie and
    /// their position in the directory, until it says `false`.
    fn visit_dir(
        &self,
        d: &VInode,
        from: u64,
        each: &mut dyn FnMut(PmOff, u64) -> Result<bool>,
    ) -> Result<()>;

    /// Commits words of inodes and directories together, durably, in place; what they lead to is durable after a fence. `hint`
    /// is another one where others are likely to do the same at a time.
    fn commit_words(&self, hint: Ino, words: &[(PmOff, u64)]) -> Result<()>;

    // --- derived state --------------------------------------------------------------------------

    /// Finds where the inodes lie ([`Tables::add_leaf`]) and makes that durable, with all else that is read and was stored in
    /// place (scan-S6). Whether that is sound.
    fn scan_inodes(&self, scan: &Scan) -> bool;

    /// Claims the content of an inode of this kind, for reports called so, which is `size` bytes long; notes what is
    /// derived of it. Calls `each(block, base)` for its blocks of directory entries where it is a directory. Returns the
    /// blocks that it takes.
    fn scan_content(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        v: &VInode,
        size: u64,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> u64;

    /// The same for its attributes, of which it has some.
    fn scan_attributes(&self, scan: &Scan, object: &dyn Fn() -> String, v: &VInode) -> u64;

    // --- one inode ------------------------------------------------------------------------------

    /// `EROFS` on a read-only mount, and after a recovery that met damage.
    fn check_writable(&self) -> Result<()> {
        if self.is_read_only() || self.tables().is_damaged() {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// The derived state of a live inode whose lock the caller holds.
    #[inline]
    fn live(&self, ino: Ino) -> Result<&VInode> {
        let v = self.tables().vinode(ino)?;
        if v.is_live() { Ok(v) } else { Err(Errno::STALE) }
    }

    /// The derived state of a live directory whose lock the caller holds.
    fn live_dir(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live(ino)?;
        if v.kind() == FileKind::Dir { Ok(v) } else { Err(Errno::NOTDIR) }
    }

    /// A live regular file; `EISDIR` or `EINVAL` for anything else.
    fn live_file(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live(ino)?;
        match v.kind() {
            FileKind::File => Ok(v),
            FileKind::Dir => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// A live directory in which names may be made.
    fn open_dir(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live_dir(ino)?;
        if v.state.load(Relaxed) & REMOVED != 0 { Err(Errno::NOENT) } else { Ok(v) }
    }

    /// A word of an inode.
    #[inline]
    fn load(&self, v: &VInode, word: Word) -> u64 {
        self.medium().load_u64(self.word_at(v, word))
    }

    /// Where a word of an inode lies.
    #[inline]
    fn word_at(&self, v: &VInode, word: Word) -> PmOff {
        v.at() + word as u64
    }

    /// Attributes of a live inode whose lock the caller holds.
    fn attr(&self, ino: Ino, v: &VInode) -> Attr {
        let mut attr = Attr::NONE;
        self.attr_into(ino, v, &mut attr);
        attr
    }

    /// As [`attr`](Self::attr), to where they are wanted.
    #[inline]
    fn attr_into(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        attr_of::<RECORD, Self>(self, ino, v, attr);
    }

    /// As [`attr_into`](Self::attr_into), without `btime`: all else that files have is in the record's
    /// first line.
    #[inline]
    fn common_attr_into(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        match v.kind() {
            FileKind::Char | FileKind::Block => self.attr_into(ino, v, attr),
            _ => attr_of::<{ LINE as usize }, Self>(self, ino, v, attr),
        }
    }

    /// Stores times that changed; they are durable after the next fence. Times are separate words
    /// and so not atomic with what they date (§3.6).
    #[inline]
    fn touch<const N: usize>(&self, v: &VInode, words: [Word; N]) {
        if self.date(v, words) {
            self.medium().flush(v.at(), LINE);
        }
    }

    /// As [`touch`](Self::touch) where the commit that follows flushes the line of the times: to flush it before
    /// would be in vain, and to store to it again would wait for that. Whether any changed.
    #[inline]
    fn date<const N: usize>(&self, v: &VInode, words: [Word; N]) -> bool {
        let now = self.now().0 as u64;
        let mut any = false;
        for w in words {
            let at = self.word_at(v, w);
            if self.medium().load_u64(at) != now {
                self.medium().store_u64(at, now);
                any = true;
            }
        }
        any
    }

    /// A change of content.
    fn touch_modified(&self, v: &VInode) {
        self.touch(v, MODIFIED);
    }

    /// A change of the inode.
    fn touch_changed(&self, v: &VInode) {
        self.touch(v, [Word::Ctime]);
    }

    /// Whether an access now has nothing to record: as `relatime` has it, because the last recorded one is younger than the
    /// last change, and than a day; where each is recorded, because it is as young as the clock tells; where none is, always.
    fn is_access_recorded(&self, v: &VInode) -> bool {
        const DAY_NS: u64 = 86_400_000_000_000;
        if self.is_read_only() {
            return true;
        }
        let atime = self.load(v, Word::Atime);
        let now = self.now().0 as u64;
        let is_recent = match self.tables().records_each_access() {
            true => atime == now,
            false => {
                atime > self.load(v, Word::Mtime)
                    && atime > self.load(v, Word::Ctime)
                    && now.wrapping_sub(atime) < DAY_NS
            }
        };
        is_recent || !self.tables().records_access(v.kind()) || !vfs::access::is_recorded()
    }

    /// Records an access where the mount wants it. Not worth a fence.
    fn touch_accessed(&self, v: &VInode) {
        if !self.is_access_recorded(v) {
            self.touch(v, [Word::Atime]);
        }
    }

    /// Writes a new inode into its slot; nothing names it yet (§3.4). Of each line, the generation comes
    /// last (dir-D4).
    fn write_inode(&self, v: &VInode, record: &InodeRecord) {
        let at = v.at();
        let bytes = record.as_bytes();
        self.medium().write(at, &bytes[..Word::Mode as usize]);
        for word in [Word::Mode, Word::Btime, Word::Rdev] {
            let value = &bytes[word as usize..][..8];
            let value = u64::from_le_bytes(value.try_into().expect("eight bytes"));
            self.medium().store_u64(at + word as u64, value);
        }
        self.medium().flush(at, RECORD as u64);
    }

    /// Adds a reference for the caller.
    #[inline]
    fn hold(&self, ino: Ino, v: &VInode) {
        self.tables().add_ref(ino, v);
    }

    /// Whether an entry names a life that has not come to be: a power failure kept the entry of a creation
    /// and not its inode. (Or a life that is over, which no entry outlasts.)
    fn is_left_over(&self, life: Life) -> bool {
        let has_slot = life.ino.0 < self.tables().inode_slots();
        self.tables()
            .vinode(life.ino)
            .is_ok_and(|v| has_slot && self.generations(v) != [life.generation; 2])
    }

    /// What the two lines of an inode say.
    fn generations(&self, v: &VInode) -> [u32; 2] {
        [Word::Mode, Word::Rdev].map(|word| generation(self, v, word))
    }

    /// What an entry of a live inode says.
    fn life(&self, ino: Ino, v: &VInode) -> Life {
        Life { ino, generation: generation(self, v, Word::Mode) }
    }
}

/// Attributes from the first `N` bytes of the record.
#[inline]
fn attr_of<const N: usize, S: Storage>(storage: &S, ino: Ino, v: &VInode, attr: &mut Attr) {
    let mut bytes = [0; RECORD];
    storage.medium().read(v.at(), &mut bytes[..N]);
    let record = InodeRecord::ref_from_bytes(&bytes).expect("an inode is exactly its bytes");
    *attr = v.attr(ino, record);
}

/// The generation that is in a word of an inode.
fn generation<S: Storage>(storage: &S, v: &VInode, word: Word) -> u32 {
    (storage.load(v, word) >> 32) as u32
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
