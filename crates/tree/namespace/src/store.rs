//! Inodes of a mounted pool: the functions that all operations share, and the trait that engines
//! implement.

use crate::backed::has_device;
use crate::derived::REMOVED;
use crate::layout::*;
use crate::scan::Scan;
use crate::tables::{MAY_BE_ABSENT, NAMES_ABSENT, Tables, VInode};
use crate::xattr::Attributes;
use pmem::{LINE, Medium, Pm, PmOff};
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use vfs::{ABSENT, Attr, Errno, FileKind, Ino, Limits, Result, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

/// Times that a change of content sets.
pub const MODIFIED: [Word; 2] = [Word::Mtime, Word::Ctime];

/// Bytes of an inode that this crate lays out.
const RECORD: usize = size_of::<InodeRecord>();

/// The effect of a change of attributes on an inode.
#[derive(Debug, Default)]
pub struct Change {
    /// Words of its record.
    pub words: Vec<(Word, u64)>,
    /// Its extended attributes, if they change.
    pub attributes: Option<Attributes>,
}

/// Inodes and names of an engine: the medium, the state derived from it, and the engine's own
/// methods. None of these is a whole operation.
pub trait Storage: Sized + Send + Sync {
    /// The medium.
    type Medium: Medium;

    /// Bytes per inode, of which the first are an [`InodeRecord`]. A power of two.
    const INODE: u64;

    /// The engine's limits: names, for instance, are as long as fit in [entries](crate::layout).
    const LIMITS: &'static Limits;

    /// Longest list of attributes, in [bytes](Attributes::bytes).
    const ATTRIBUTES_MAX: u64;

    /// Returns the medium.
    fn medium(&self) -> Pm<&Self::Medium>;

    /// Returns the derived state.
    fn tables(&self) -> &Tables;

    /// Returns whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// Returns the time.
    fn now(&self) -> Timestamp;

    /// Returns whether the pool has a backing store ([`vfs::Backed`]).
    #[inline]
    fn is_backed(&self) -> bool {
        false
    }

    /// Returns the directory of branches (`branches.rs`), if the pool has one.
    #[inline]
    fn branches_dir(&self) -> Option<Ino> {
        None
    }

    /// Returns whether a file has content that is not marked clean.
    fn has_dirty_content(&self, _v: &VInode) -> Result<bool> {
        Ok(false)
    }

    /// Whether content of a file is absent or marked clean.
    fn has_marks(&self, _v: &VInode) -> Result<bool> {
        Ok(false)
    }

    /// Returns the root word of a file of this size whose content only the backing store has.
    fn absent_root(&self, _size: u64) -> u64 {
        0
    }

    /// Fails with [`ABSENT`] if a file needs absent content in order to get this size.
    fn check_resize(&self, _v: &VInode, _size: u64) -> Result<()> {
        Ok(())
    }

    /// Makes durable what an earlier operation, of any process, has left to the next one. Called
    /// with the locks of what changes next, before the first store.
    #[inline]
    fn settle(&self) {}

    // --- snapshots ------------------------------------------------------------------------------

    /// Returns whether the records of these inodes may change in place: no snapshot shares them.
    /// That stays so until the operation ends, because no snapshot is made meanwhile.
    #[inline]
    fn owns(&self, _inos: &[Ino]) -> bool {
        true
    }

    /// Makes these inodes' records the pool's own, so that they may change in place.
    fn make_own(&self, _inos: &[Ino]) -> Result<()> {
        Ok(())
    }

    /// As [`make_own`](Self::make_own), if they are not. Called before an operation changes inodes,
    /// without the lock of any.
    #[inline]
    fn own_inodes(&self, inos: &[Ino]) -> Result<()> {
        if self.owns(inos) { Ok(()) } else { self.make_own(inos) }
    }

    /// Notes that a live inode has no name. The caller holds its lock exclusively, or runs a scan.
    fn note_unnamed(&self, _ino: Ino) {}

    // --- space ----------------------------------------------------------------------------------

    /// Returns the number of blocks that are kept for later use: [`make_space`](Self::make_space)
    /// frees them.
    fn reclaimable(&self) -> u64 {
        0
    }

    /// Implements [`crate::derived::SharedPool::make_space`]. The caller holds no locks.
    fn make_space(&self) -> Result<bool> {
        Ok(false)
    }

    /// Claims exactly these blocks if all of them are free; returns whether it did.
    fn claim_free(&self, blocks: Range<u64>) -> bool {
        self.tables().blocks.claim_exactly(&self.tables().arena, blocks)
    }

    /// Clears the bits of these blocks, so that searches find them.
    fn clear_free(&self, blocks: Range<u64>) {
        self.tables().blocks.clear_range(&self.tables().arena, blocks);
    }

    /// Clears the bits of blocks that are claimed although they count as free, if there are any.
    fn clear_kept_blocks(&self) {}

    /// Frees all blocks that are kept for later use ([`reclaimable`](Self::reclaimable)). Called
    /// inside an operation, without locks.
    fn free_kept_blocks(&self) -> Result<()> {
        Ok(())
    }

    /// Moves the inodes' blocks that lie at or behind block `from` to free places, and those that
    /// lead to them (resize-Z2). Returns whether it moved any: then derived state is wrong.
    fn vacate_inodes(&self, from: u64) -> Result<bool>;

    /// As [`vacate_inodes`](Self::vacate_inodes), for the blocks of contents and attributes.
    fn vacate_contents(&self, from: u64) -> Result<()>;

    /// Does the same as [`Tables::clear_deferred`].
    fn clear_deferred(&self) {
        self.tables().clear_deferred();
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// Makes slots for more inodes, of one leaf or up to `leaves` leaves. They are invisible until
    /// the size of the inode file includes them ([`Tables::add_leaf`]). Called under the lock of
    /// the inode file.
    fn grow_inodes(&self, leaves: u64) -> Result<()>;

    /// Makes slots for all inode numbers below `end`.
    fn grow_inodes_to(&self, end: u64) -> Result<()> {
        let tables = self.tables();
        if end <= tables.inode_slots() {
            return Ok(());
        }
        let _lock = tables.lock_inode_file()?;
        while let missing @ 1.. = end.saturating_sub(tables.inode_slots()) {
            self.grow_inodes(missing.div_ceil(BLOCK / Self::INODE))?;
        }
        Ok(())
    }

    /// Claims an inode number that has a slot, [`VInode::at`]; makes more slots if necessary.
    fn new_inode(&self) -> Result<Ino> {
        let tables = self.tables();
        let ino = tables.claim_inode()?;
        let grown = self.grow_inodes_to(ino.0 + 1);
        grown.map(|()| ino).inspect_err(|_| tables.release_inode(ino))
    }

    /// As [`new_inode`](Self::new_inode), for up to `most` numbers that follow each other; the
    /// search for them starts at `hint`.
    fn new_inodes(&self, hint: u64, most: u64) -> Result<Range<u64>> {
        let tables = self.tables();
        let run = tables.claim_numbers(hint, tables.inode_slots(), most)?;
        let grown = self.grow_inodes_to(run.end);
        let release = |_: &Errno| run.clone().for_each(|number| tables.release_inode(Ino(number)));
        grown.inspect_err(release).map(|()| run.clone())
    }

    /// Writes a new inode, which no entry names yet, by [`write_inode`](Self::write_inode), with a
    /// symbolic link's `target` and its attributes. All are durable after the next fence; the
    /// record is complete except for the places of these two. If it has neither size nor
    /// attributes, only the record has to become durable, and its entry need not wait for it
    /// (dir-D4). `prepare` does everything else that can fail. It runs shortly before, because an
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

    /// Prefetches an inode that may be [reaped](Self::reap) soon.
    fn prefetch_reap(&self, v: &VInode);

    /// Prefetches the content of a file with these attributes: its start for a read, or its end for
    /// an append. A caller that obtains a file mostly does one of these next.
    fn prefetch_content(&self, v: &VInode, attr: &Attr);

    /// Reads the content of a symbolic link from its start; its size is at least that of `buf`.
    fn read_target(&self, v: &VInode, buf: &mut [u8]) -> Result<()>;

    // --- attributes -----------------------------------------------------------------------------

    /// Returns the list of attributes of an inode, as it lies in PM; empty if there are no
    /// attributes. The caller holds the inode's lock.
    fn attribute_list(&self, v: &VInode) -> Result<Vec<u8>>;

    /// Returns the place of byte `at` of that list.
    fn attribute_place(&self, v: &VInode, at: u64) -> Result<PmOff>;

    /// Updates the engine's derived state of an inode from its attributes: after they were
    /// committed, under the inode's lock, and in the scan.
    fn note_attributes(&self, _v: &VInode, _attributes: &Attributes) {}

    /// Returns all attributes of an inode whose lock the caller holds.
    fn attributes(&self, v: &VInode) -> Result<Attributes> {
        match &self.attribute_list(v)?[..] {
            [] => Ok(Attributes::default()),
            list => Attributes::parse(list).ok_or(Errno::UCLEAN),
        }
    }

    /// Whether an attribute of an inode of this kind may have this value.
    fn check_attribute(&self, _kind: FileKind, _name: &[u8], _value: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Commits words and attributes of an inode, and its new size if it has one, at once, durably.
    /// Grows or cuts the content; this [records](Self::touch_modified) a change of content, and a
    /// change of attributes records a change of the inode. The added part of a longer file reads as
    /// zeros.
    fn commit_change(&self, ino: Ino, v: &VInode, change: &Change, size: Option<u64>)
    -> Result<()>;

    /// Commits that an inode has no attributes, durably. This takes no space.
    fn commit_no_attributes(&self, v: &VInode) -> Result<()>;

    // --- direct mappings of content ([`vfs::Mappings::map_range`]) -------------------------------

    /// Notes that the content of a file may have been changed through a mapping, before the mapping
    /// is taken back.
    fn note_unknown_stores(&self, _v: &VInode) {}

    /// Notes that a program has set the time of modification of a file. Called under the file's
    /// exclusive lock.
    fn note_set_time(&self, _v: &VInode) {}

    /// Gives back the blocks of a file beyond its end, which no process maps any more.
    fn give_back_preallocated(&self, _v: &VInode) -> Result<()> {
        Ok(())
    }

    // --- directories ----------------------------------------------------------------------------

    /// Appends a block of entries to a directory of `size` bytes, durably; returns its place. All
    /// its entries are free, so it commits on its own.
    fn append_dir_block(
        &self,
        d: &VInode,
        size: u64,
        content: &[u8; BLOCK as usize],
    ) -> Result<PmOff>;

    /// Frees the blocks of a directory, which has no entry, durably. Only pools with a backing
    /// store need it: a directory without loaded names takes no space there.
    fn free_dir_blocks(&self, _dir: Ino, _d: &VInode) {}

    /// Calls `each(block, base)` for the blocks of a directory, in order, from byte `from` on,
    /// until it returns `false`. `block` is the place in PM, `base` the position in the directory.
    fn visit_dir(
        &self,
        d: &VInode,
        from: u64,
        each: &mut dyn FnMut(PmOff, u64) -> Result<bool>,
    ) -> Result<()>;

    /// Commits words of inodes and directories together, durably, in place; their targets are
    /// durable after a fence. Concurrent operations should pass different values of `hint`.
    fn commit_words(&self, hint: Ino, words: &[(PmOff, u64)]) -> Result<()>;

    // --- derived state --------------------------------------------------------------------------

    /// Finds the inodes ([`Tables::add_leaf`]) and makes their places durable, with all else that
    /// the scan reads and that was stored in place (scan-S6). Returns whether the inode file is
    /// sound.
    fn scan_inodes(&self, scan: &Scan) -> bool;

    /// Claims the content of an inode of this kind, which is `size` bytes long; records the state
    /// derived of it. `object` names the inode in reports. Calls `each(block, base)` for a
    /// directory's blocks of entries. Returns the number of claimed blocks.
    fn scan_content(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        v: &VInode,
        size: u64,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> u64;

    /// Claims its attributes in the same way; the inode has some.
    fn scan_attributes(&self, scan: &Scan, object: &dyn Fn() -> String, v: &VInode) -> u64;

    /// Ends a scan that has found all inodes.
    fn end_scan(&self, _scan: &Scan) {}

    // --- one inode ------------------------------------------------------------------------------

    /// Fails with `EROFS` on a read-only mount, and after a recovery that met damage.
    fn check_writable(&self) -> Result<()> {
        if self.is_read_only() || self.tables().is_damaged() {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Returns the derived state of a live inode whose lock the caller holds.
    #[inline]
    fn live(&self, ino: Ino) -> Result<&VInode> {
        let v = self.tables().vinode(ino)?;
        if v.is_live() { Ok(v) } else { Err(Errno::STALE) }
    }

    /// Returns the derived state of a live directory whose lock the caller holds.
    fn live_dir(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live(ino)?;
        if v.kind() == FileKind::Dir { Ok(v) } else { Err(Errno::NOTDIR) }
    }

    /// Returns a live regular file; `EISDIR` or `EINVAL` for other inodes.
    fn live_file(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live(ino)?;
        match v.kind() {
            FileKind::File => Ok(v),
            FileKind::Dir => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns a live directory in which names may be created.
    fn open_dir(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live_dir(ino)?;
        match v.state.load(Relaxed) & (REMOVED | NAMES_ABSENT) {
            0 => Ok(v),
            state if state & REMOVED != 0 => Err(Errno::NOENT),
            _ => Err(ABSENT),
        }
    }

    /// Returns a word of an inode.
    #[inline]
    fn load(&self, v: &VInode, word: Word) -> u64 {
        self.medium().load_u64(self.word_at(v, word))
    }

    /// Returns the place of a word of an inode.
    #[inline]
    fn word_at(&self, v: &VInode, word: Word) -> PmOff {
        v.at() + word as u64
    }

    /// Returns the attributes of a live inode whose lock the caller holds.
    fn attr(&self, ino: Ino, v: &VInode) -> Attr {
        let mut attr = Attr::NONE;
        self.attr_into(ino, v, &mut attr);
        attr
    }

    /// As [`attr`](Self::attr), but stores them into `attr`.
    #[inline]
    fn attr_into(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        attr_of::<RECORD, Self>(self, ino, v, attr);
        if self.is_backed() {
            v.count_absent(attr, (self.load(v, Word::State) >> 32) as u32);
        }
    }

    /// As [`attr_into`](Self::attr_into), without `btime`: all other attributes of files are in the
    /// record's first line.
    #[inline]
    fn common_attr_into(&self, ino: Ino, v: &VInode, attr: &mut Attr) {
        match v.kind() {
            kind if has_device(kind) || self.is_backed() => self.attr_into(ino, v, attr),
            _ => attr_of::<{ LINE as usize }, Self>(self, ino, v, attr),
        }
    }

    /// Stores the times of a change; they are durable after the next fence. Times are separate
    /// words and so not atomic with the change itself (§3.6).
    #[inline]
    fn touch<const N: usize>(&self, v: &VInode, words: [Word; N]) {
        if self.date(v, words) {
            self.medium().flush(v.at(), LINE);
        }
    }

    /// As [`touch`](Self::touch), for a commit that will flush the line of the times anyway. A
    /// flush before it would be wasted, and a later store to the line would wait for that flush.
    /// Returns whether any time changed.
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

    /// Records a change of content.
    fn touch_modified(&self, v: &VInode) {
        self.touch(v, MODIFIED);
    }

    /// Records a change of the inode.
    fn touch_changed(&self, v: &VInode) {
        self.touch(v, [Word::Ctime]);
    }

    /// Returns whether an access now has nothing to record. As with `relatime`: the last recorded
    /// access is younger than the last change and than a day. If each access is recorded: its time
    /// is the clock's current time. If none is recorded: always.
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

    /// Notes that content of a file is read, in a pool with a backing store.
    #[inline]
    fn note_read(&self, v: &VInode) {
        if self.is_backed() {
            v.note_use();
        }
    }

    /// Prepares an inode for the record of an access, if the mount requires it. The caller holds no
    /// lock of an inode.
    #[inline]
    fn prepare_access(&self, ino: Ino) -> Result<()> {
        if self.owns(&[ino]) || self.is_access_recorded(self.tables().vinode(ino)?) {
            return Ok(());
        }
        self.make_own(&[ino])
    }

    /// Records an access if the mount requires it, and the inode was
    /// [prepared](Self::prepare_access). Not worth a fence.
    fn touch_accessed(&self, ino: Ino, v: &VInode) {
        if !self.is_access_recorded(v) && self.owns(&[ino]) {
            self.touch(v, [Word::Atime]);
        }
    }

    /// Writes a new inode into its slot; no entry names it yet (§3.4). The generation comes last in
    /// each line (dir-D4).
    fn write_inode(&self, v: &VInode, record: &InodeRecord) {
        let at = v.at();
        let bytes = record.as_bytes();
        self.medium().write(at, &bytes[..Word::Mode as usize]);
        if self.is_backed() {
            self.medium().write(self.word_at(v, Word::State), &bytes[Word::State as usize..]);
        }
        for word in [Word::Mode, Word::Btime, Word::Rdev] {
            self.medium().store_u64(at + word as u64, record.word(word));
        }
        self.medium().flush(at, RECORD as u64);
    }

    /// The error of a name that is not found in a directory.
    #[inline]
    fn missing(&self, d: &VInode) -> Errno {
        if d.state.load(Relaxed) & NAMES_ABSENT != 0 { ABSENT } else { Errno::NOENT }
    }

    /// Adds a reference for the caller.
    #[inline]
    fn hold(&self, ino: Ino, v: &VInode) {
        self.tables().add_ref(ino, v);
    }

    /// Returns whether an entry names a life that was never completed: a power failure kept the
    /// entry of a creation but not its inode. (Or a life that is over, but no entry outlasts its
    /// inode's life.)
    fn is_left_over(&self, life: Life) -> bool {
        let has_slot = life.ino.0 < self.tables().inode_slots();
        self.tables()
            .vinode(life.ino)
            .is_ok_and(|v| has_slot && self.generations(v) != [life.generation; 2])
    }

    /// Returns the generations in the two lines of an inode.
    fn generations(&self, v: &VInode) -> [u32; 2] {
        [Word::Mode, Word::Rdev].map(|word| generation(self, v, word))
    }

    /// Returns the value that an entry of a live inode contains.
    fn life(&self, ino: Ino, v: &VInode) -> Life {
        Life { ino, generation: generation(self, v, Word::Mode) }
    }
}

/// Reads attributes from the first `N` bytes of the record.
#[inline]
fn attr_of<const N: usize, S: Storage>(storage: &S, ino: Ino, v: &VInode, attr: &mut Attr) {
    let mut bytes = [0; RECORD];
    storage.medium().read(v.at(), &mut bytes[..N]);
    let record = InodeRecord::ref_from_bytes(&bytes).expect("an inode is exactly its bytes");
    *attr = v.attr(ino, record);
}

/// Returns the generation in a word of an inode.
fn generation<S: Storage>(storage: &S, v: &VInode, word: Word) -> u32 {
    (storage.load(v, word) >> 32) as u32
}

/// Logs damage. Only to be called under locks: an optimistic reader can meet inconsistent values.
pub fn report(ino: Ino, e: Errno) -> Errno {
    if e == Errno::UCLEAN {
        tracing::error!(%ino, "damaged: unmount and run `keepstone check`");
    }
    e
}

impl VInode {
    /// Returns the number of links that `stat` reports if this many are absent. Of a directory
    /// whose names are absent, those are all of its subdirectories.
    fn nlink_with(&self, absent: u32) -> u32 {
        match self.state.load(Relaxed) & (NAMES_ABSENT | REMOVED) {
            NAMES_ABSENT => absent.saturating_add(2),
            _ => self.nlink().saturating_add(absent),
        }
    }

    /// Changes attributes to those that programs get of an inode in a pool with a backing store,
    /// where `links` links are absent. They are the same before and after a load. A file of which
    /// something may be absent has all of its blocks: programs that copy sparse files read nothing
    /// of a file without blocks.
    pub fn count_absent(&self, attr: &mut Attr, links: u32) {
        attr.nlink = self.nlink_with(links);
        if !has_device(attr.kind) {
            attr.rdev = 0;
        }
        if attr.kind == FileKind::Dir {
            (attr.size, attr.blocks) = (BLOCK, BLOCK / 512);
        } else if self.state.load(Relaxed) & MAY_BE_ABSENT != 0 {
            attr.blocks = attr.blocks.max(attr.size.div_ceil(BLOCK) * (BLOCK / 512));
        }
    }

    /// Returns the attributes of an inode with this record in PM.
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
