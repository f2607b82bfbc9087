//! The volatile structures (§3.3): what is derived from PM at mount and kept in the arena.
//!
//! - volatile-V1: a block's bit is set while the block is reachable from the superblock, or claimed by an
//!   operation in flight, or one of the [`ZeroedBlocks`].
//! - volatile-V2: the count of free blocks ([`FreeCount`]) never exceeds the number of clear bits and pre-zeroed blocks: bits
//!   are cleared before it grows and claimed after it shrank, so a reservation is always honoured.
//!   A freed block that somebody may still be reading without a copy waits ([`Pins`]).
//! - volatile-V3: an inode is live from its creation until its last name and last reference are gone.

use crate::free::{FreeRun, FreeUnits};
use crate::free_count::FreeCount;
use crate::layout::{BLOCK, INODE, INODES_PER_BLOCK};
use crate::openings::Openings;
use crate::pin::Pins;
use crate::unnamed::{SERVERS, Unnamed};
use crate::zeroed::ZeroedBlocks;
use arena::{
    Arena, Bitmap, Entry, Handle, HashIndex, Layout, Link, LockMode, RwLock, Shared, Slab, Span,
};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering::*};
use threads::OwnU64;
use vfs::{Errno, FileKind, Ino, Result};

/// Directory-entry size classes: entries of 2 to 17 units; the last class is "17 or more".
pub const CLASSES: usize = 16;

/// Derived state of one inode.
#[derive(Default)]
#[repr(C, align(64))]
pub struct VInode {
    /// Guards the inode's words, its tree and this record. Taken in ascending inode order.
    pub lock: RwLock,
    /// Bit 0: live; bit 1: made by `tmpfile` and never named; bit 2: directory removed; bit 3: may have
    /// `security.capability`, so that changes of content have to look; bits 8..: kind.
    pub state: AtomicU32,
    /// Offset of the inode record in PM; changes when its leaf is copied, under all locks of the leaf.
    pub pm_off: AtomicU64,
    /// References of front ends (contract vfs-C4).
    pub refs: AtomicU64,
    /// Blocks of data, pointers and attributes.
    pub blocks: AtomicI64,
    /// Names; for a directory, its subdirectories (its link count is two more).
    pub links: AtomicU32,
    /// Parent of a directory. (Of a file, this and the next two hold its [extent](crate::extent).)
    pub parent: AtomicU32,
    /// Entries of a directory.
    pub entries: AtomicU32,
    /// Handle of a directory's [`DirState`]; 0: none yet.
    pub dir: AtomicU32,
    /// How often the kernel has it open to execute it ([`mounts::MountEvents`]).
    pub executions: AtomicU32,
    /// How often somebody may map it through the mount ([`mounts::MountEvents`]): the sum of what processes count.
    pub mappings: AtomicU32,
}

const _: () = assert!(size_of::<VInode>() == 64, "one line an inode");

/// In the kept word that says so: accesses to directories do not change their times, nor those to anything else.
const NO_DIR_TIMES: u64 = 1;
const NO_FILE_TIMES: u64 = 2;

pub const LIVE: u32 = 1;
pub const UNNAMED: u32 = 2;
pub const REMOVED: u32 = 4;
pub const MAY_BE_CAPABLE: u32 = 8;

/// Blocks of a directory, and their free space: for each size class, a chain through [`DirBlock`].
#[repr(C)]
pub struct DirState {
    next: AtomicU32,
    /// First block of the class, as handle; 0: none.
    pub heads: [AtomicU32; CLASSES],
    /// First of all blocks, as handle; 0: none.
    pub blocks: AtomicU32,
}

/// A block that holds directory entries. Its handle stays when copy-on-write moves the block, so
/// entries are known by [`EntryPos`]: where they are in which of these.
#[repr(C)]
pub struct DirBlock {
    /// Next and previous block of the chain; 0: none.
    pub next: AtomicU32,
    pub prev: AtomicU32,
    /// Next block of the directory; 0: none.
    pub sibling: AtomicU32,
    /// Offset of the block in PM.
    pub pm_off: AtomicU64,
    /// Where a long run of free entries is: offset in the block and length, in bytes; length 0: there is none.
    pub free_off: AtomicU16,
    pub free_len: AtomicU16,
    /// Class of the chain the block is in, plus one; 0: in none.
    pub class: AtomicU32,
    /// Which block of its directory it is.
    pub logical: AtomicU32,
    /// What is free.
    pub free: FreeUnits,
}

/// Where an entry is: the handle of its [`DirBlock`], and its offset in the block in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPos(pub u64);

impl EntryPos {
    /// An entry at `off` of a block.
    pub fn new(block: Handle, off: u64) -> Self {
        Self(u64::from(block.0) * BLOCK + off)
    }

    /// The block.
    pub fn block(self) -> Handle {
        Handle((self.0 / BLOCK) as u32)
    }

    /// Offset in the block.
    pub fn off(self) -> u64 {
        self.0 % BLOCK
    }
}

/// A name in the directory index.
#[derive(Default)]
#[repr(C)]
pub struct IndexEntry {
    /// [`EntryPos`] and [`TAG_BITS`] of the name's hash, the uppermost of both.
    place: AtomicU64,
    pub dir: AtomicU32,
    /// 0: there is no name.
    pub ino: AtomicU32,
}

/// Bits of an [`IndexEntry`] that are of the hash.
const TAG_BITS: u32 = 20;
const POS_BITS: u32 = u64::BITS - TAG_BITS;

impl IndexEntry {
    /// Whether that may be the name in `dir` with this hash.
    #[inline]
    pub fn may_be(&self, dir: Ino, hash: u64) -> bool {
        self.place.load(Relaxed) >> POS_BITS == hash >> POS_BITS
            && self.dir.load(Relaxed) == dir.0 as u32
    }

    /// Where the entry is.
    #[inline]
    pub fn pos(&self) -> EntryPos {
        EntryPos(self.place.load(Relaxed) & (u64::MAX >> TAG_BITS))
    }

    /// Fills it in; with the inode's number at last.
    pub fn fill(&self, dir: Ino, hash: u64, pos: EntryPos, ino: Ino) {
        self.place.store(hash >> POS_BITS << POS_BITS | pos.0, Relaxed);
        self.dir.store(dir.0 as u32, Relaxed);
        self.ino.store(ino.0 as u32, Relaxed);
    }
}

impl Entry for IndexEntry {
    #[inline]
    fn is_none(&self) -> bool {
        self.ino.load(Relaxed) == 0
    }
    fn clear(&self) {
        self.ino.store(0, Relaxed);
    }
}

const _: () = assert!(size_of::<IndexEntry>() == 16 && u32::BITS + BLOCK.ilog2() <= POS_BITS);

/// The unsafe part of this crate: five promises to the arena.
#[allow(unsafe_code)]
mod shared {
    use super::*;
    // SAFETY: atomics and arrays of atomics only; zero is "not live", "empty", "none".
    unsafe impl Shared for VInode {}
    // SAFETY: as above.
    unsafe impl Shared for DirState {}
    // SAFETY: as above.
    unsafe impl Shared for DirBlock {}
    // SAFETY: as above.
    unsafe impl Shared for IndexEntry {}
    // SAFETY: as above.
    unsafe impl Shared for Unnamed {}
}

impl Link for DirState {
    fn link(&self) -> &AtomicU32 {
        &self.next
    }
}
impl Link for DirBlock {
    fn link(&self) -> &AtomicU32 {
        &self.next
    }
}

/// All volatile state of one mounted pool.
pub struct Volatile {
    pub arena: Arena,
    pub blocks: Bitmap,
    pub free: FreeCount,
    pub zeroed: ZeroedBlocks,
    tables: Tables,
    inodes: Bitmap,
    pub pins: Pins,
    pub openings: Openings,
    pub index: HashIndex<IndexEntry>,
    dir_states: Slab<DirState>,
    dir_blocks: Slab<DirBlock>,
    /// Keys the name hash, so that names cannot be chosen to collide.
    pub seed: u64,
    /// Tells mounts of this process apart.
    pub id: u64,
}

/// Where the tables are that are not structures of their own.
#[derive(Clone, Copy)]
struct Tables {
    /// What cannot be derived: `[0]` the seed, `[1]` the secret, `[2]` whether a recovery met damage,
    /// `[3]` how often all else was derived anew, `[4]` what accesses are not recorded for.
    kept: Span<AtomicU64>,
    /// How often the mount has changed ([`mounts::MountEvents`]): in a line of its own, which stays in every
    /// cache.
    mount_changes: Span<AtomicU64>,
    /// References that each process holds, process by process, where there may be several.
    refs: Option<Span<OwnU64>>,
    /// Mappings that each process counts, likewise.
    mappings: Option<Span<OwnU64>>,
    unnamed: Span<Unnamed>,
    /// `[0]` free inodes, `[1]` size of the inode file in inodes.
    words: Span<AtomicU64>,
    /// `[0]` guards the inode file's tree, `[1]` which directory is below which.
    global_locks: Span<RwLock>,
    vinodes: Span<VInode>,
    max_inodes: usize,
}

/// The volatile state before it has memory.
pub struct Plan {
    layout: Layout,
    tables: Tables,
    blocks: Bitmap,
    free: FreeCount,
    zeroed: ZeroedBlocks,
    inodes: Bitmap,
    pins: Pins,
    openings: Openings,
    dir_states: Slab<DirState>,
    dir_blocks: Slab<DirBlock>,
    index: HashIndex<IndexEntry>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Tables that may have fewer bytes of huge pages have none: these take 2 MiB at least.
const HUGE_PAGES_FROM: usize = 1 << 20;
/// No more than so many bytes of them: they are taken when the pool is opened, also when it is empty.
const HUGE_PAGES_MAX: u64 = 256 << 20;

impl Plan {
    /// For a pool of `blocks` blocks that one process uses.
    pub fn alone(blocks: u64) -> Self {
        Self::new(Layout::default(), blocks, 0)
    }

    /// For a pool that several processes use.
    pub fn shared(blocks: u64) -> Self {
        Self::new(Layout::shared(), blocks, arena::PROCESSES)
    }

    fn new(mut l: Layout, blocks: u64, processes: usize) -> Self {
        let max_inodes = (blocks * INODES_PER_BLOCK).min(1 << 31);
        let kept = l.table(8);
        let mount_changes = l.table(1);
        let mut by_process = || (processes > 0).then(|| l.table(processes * max_inodes as usize));
        let (refs, mappings) = (by_process(), by_process());
        let unnamed = l.table(SERVERS);
        let openings = Openings::plan(&mut l, processes);
        let pins = Pins::plan(&mut l, blocks, processes.max(1));
        l.begin_derived();
        let tables = Tables {
            kept,
            mount_changes,
            refs,
            mappings,
            unnamed,
            words: l.table(8),
            global_locks: l.table(2),
            vinodes: l.table(max_inodes as usize),
            max_inodes: max_inodes as usize,
        };
        Self {
            tables,
            pins,
            openings,
            blocks: Bitmap::plan(&mut l, blocks),
            free: FreeCount::plan(&mut l),
            zeroed: ZeroedBlocks::plan(&mut l),
            inodes: Bitmap::plan(&mut l, max_inodes),
            dir_blocks: Slab::plan(&mut l, blocks as usize),
            dir_states: Slab::plan(&mut l, blocks as usize),
            // A line for 32 KiB, and for every second name of a pool that is full of directories.
            index: HashIndex::plan(
                &mut l,
                (blocks as usize / 8).clamp(1 << 7, 1 << 28),
                (blocks as usize * 64).min((1 << 31) - 2),
            ),
            layout: l,
        }
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The state in fresh memory, keyed by `seed`; empty, so that a scan can fill it.
    pub fn begin(self, arena: Arena, seed: u64, secret: u64) -> Volatile {
        let v = self.join(arena);
        v.kept(0).store(seed, Relaxed);
        v.kept(1).store(secret, Relaxed);
        let v = Volatile { seed, ..v };
        v.clear();
        v
    }

    /// The state in memory that others use.
    pub fn join(self, arena: Arena) -> Volatile {
        let seed = arena.table(self.tables.kept)[0].load(Acquire);
        Volatile {
            arena,
            tables: self.tables,
            blocks: self.blocks,
            free: self.free,
            zeroed: self.zeroed,
            inodes: self.inodes,
            pins: self.pins,
            openings: self.openings,
            index: self.index,
            dir_states: self.dir_states,
            dir_blocks: self.dir_blocks,
            seed,
            id: NEXT_ID.fetch_add(1, Relaxed),
        }
    }
}

impl Volatile {
    fn clear(&self) {
        self.back();
        self.blocks.init(&self.arena);
        self.inodes.init(&self.arena);
        self.inodes.set(&self.arena, 0);
        self.word(0).store(self.inodes.len() - 1, Relaxed);
    }

    /// Gives huge pages to what lookups meet, as much as a thousandth of the pool within a limit: of names and inodes
    /// those that come first.
    fn back(&self) {
        let bytes = (self.blocks.len() * BLOCK / 1024).min(HUGE_PAGES_MAX) as usize;
        if bytes < HUGE_PAGES_FROM {
            return;
        }
        self.index.back(&self.arena, bytes / 64);
        self.arena.back(self.tables.vinodes, 0..bytes / 2 / size_of::<VInode>());
    }

    /// Forgets all that can be derived, so that a scan can derive it anew. Nobody else may be at it.
    pub fn start_over(&self) -> std::io::Result<()> {
        self.kept(3).fetch_add(1, Relaxed);
        self.arena.clear_derived()?;
        self.clear();
        Ok(())
    }

    fn kept(&self, i: usize) -> &AtomicU64 {
        &self.arena.table(self.tables.kept)[i]
    }

    /// Known to those only who may open the pool.
    pub fn secret(&self) -> u64 {
        self.kept(1).load(Relaxed)
    }

    /// Whether a recovery met damage: nothing may be changed until a check.
    pub fn is_damaged(&self) -> bool {
        self.kept(2).load(Relaxed) != 0
    }

    /// See [`is_damaged`](Self::is_damaged).
    pub fn set_damaged(&self) {
        self.kept(2).store(1, Relaxed);
    }

    /// Whether accesses change times.
    #[inline]
    pub fn records_access(&self, kind: FileKind) -> bool {
        let bit = if kind == FileKind::Dir { NO_DIR_TIMES } else { NO_FILE_TIMES };
        self.kept(4).load(Relaxed) & bit == 0
    }

    /// Changes that, for all who use the pool.
    pub fn record_access(&self, files: bool, dirs: bool) {
        let bits = [(files, NO_FILE_TIMES), (dirs, NO_DIR_TIMES)];
        let bits = bits.iter().filter(|(records, _)| !records).fold(0, |all, (_, bit)| all | bit);
        self.kept(4).store(bits, Relaxed);
    }

    /// See [`vfs::FileSystem::version`]: that of the inode's lock, which begins anew with what is
    /// derived.
    #[inline]
    pub fn version(&self, ino: Ino) -> Option<u64> {
        let of_lock = self.vinode(ino).ok()?.lock.begin_optimistic()?.version();
        Some(self.kept(3).load(Relaxed) << 32 | u64::from(of_lock))
    }

    /// How often the mount has changed.
    #[inline]
    pub fn mount_changes(&self) -> &AtomicU64 {
        &self.arena.table(self.tables.mount_changes)[0]
    }

    /// What servers are told.
    pub fn unnamed(&self) -> &[Unnamed] {
        self.arena.table(self.tables.unnamed)
    }

    /// One of the words of `Tables::words`.
    #[inline]
    pub fn word(&self, i: usize) -> &AtomicU64 {
        &self.arena.table(self.tables.words)[i]
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// The derived state of an inode; `ESTALE` for a number that no inode of this pool can have.
    #[inline]
    pub fn vinode(&self, ino: Ino) -> Result<&VInode> {
        self.arena
            .table(self.tables.vinodes)
            .get(ino.0 as usize)
            .filter(|_| ino.0 != 0)
            .ok_or(Errno::STALE)
    }

    /// Announces that an inode is looked at next; returns where its record will be, mostly. The first
    /// inode of the leaf tells, whose line others of the leaf have fetched: so that record and derived
    /// state come at the same time.
    #[inline]
    pub fn prefetch_inode(&self, ino: Ino) -> Option<u64> {
        self.arena.prefetch(self.tables.vinodes, ino.0 as usize);
        let nth = ino.0 % INODES_PER_BLOCK;
        let first = self.arena.table(self.tables.vinodes).get((ino.0 - nth) as usize)?;
        let leaf = first.pm_off.load(Relaxed);
        (leaf != 0).then_some(leaf + nth * INODE)
    }

    /// Inodes that the inode file holds.
    pub fn inode_slots(&self) -> u64 {
        self.word(1).load(Acquire)
    }

    /// Records that the inode file grew by the leaf at `pm_off`.
    pub fn add_leaf(&self, pm_off: u64) {
        let first = self.inode_slots();
        self.move_leaf(first, pm_off);
        self.word(1).store(first + INODES_PER_BLOCK, Release);
    }

    /// Records where the leaf with inode `first` lies.
    pub fn move_leaf(&self, first: u64, pm_off: u64) {
        let table = self.arena.table(self.tables.vinodes);
        for i in 0..INODES_PER_BLOCK {
            if let Some(v) = table.get((first + i) as usize) {
                v.pm_off.store(pm_off + i * INODE, Release);
            }
        }
    }

    /// Marks an inode number as used; whether it was free.
    pub fn mark_inode(&self, ino: Ino) -> bool {
        let fresh = self.inodes.set(&self.arena, ino.0);
        if fresh {
            self.word(0).fetch_sub(1, Relaxed);
        }
        fresh
    }

    /// Claims a free inode number: one that the inode file has room for, if there is any.
    pub fn claim_inode(&self) -> Result<Ino> {
        if self.arena.is_short() {
            return Err(Errno::NOSPC);
        }
        let hint = self.inode_hint();
        let slots = self.inode_slots();
        let claim = |within| self.inodes.claim(&self.arena, within, 1);
        let (all, free) = self.inode_counts();
        let room = all - free + 1 < slots;
        let run = room
            .then(|| claim(hint..slots).or_else(|| claim(0..hint.min(slots))))
            .flatten()
            .or_else(|| claim(slots..self.inodes.len()))
            .ok_or(Errno::NOSPC)?;
        self.word(0).fetch_sub(1, Relaxed);
        self.set_inode_hint(run.start);
        Ok(Ino(run.start))
    }

    /// Gives an inode number back.
    pub fn release_inode(&self, ino: Ino) {
        if self.inodes.clear(&self.arena, ino.0) {
            self.word(0).fetch_add(1, Relaxed);
            self.set_inode_hint(ino.0);
        }
    }

    /// Inode numbers in all, and those not in use.
    pub fn inode_counts(&self) -> (u64, u64) {
        (self.inodes.len() - 1, self.word(0).load(Relaxed))
    }

    /// Guards the pointer blocks of the inode file and its growth.
    pub fn lock_inode_file(&self) -> Result<GlobalLock<'_>> {
        self.lock_global(0)
    }

    /// Guards the shape of the directory tree: held while a directory moves to another parent.
    pub fn lock_topology(&self) -> Result<GlobalLock<'_>> {
        self.lock_global(1)
    }

    fn lock_global(&self, which: usize) -> Result<GlobalLock<'_>> {
        let lock = &self.arena.table(self.tables.global_locks)[which];
        self.wait_for(lock, LockMode::Exclusive)?;
        Ok(GlobalLock(lock))
    }

    /// Takes a lock; `ERESTART` where the operation has to leave and start over (arena, session-E3).
    #[inline]
    fn wait_for(&self, lock: &RwLock, mode: LockMode) -> Result<()> {
        let taken = lock.lock_while(mode, || !self.arena.should_give_up());
        if taken { Ok(()) } else { Err(Errno::RESTART) }
    }

    // --- references -----------------------------------------------------------------------------

    fn refs_of(&self, process: usize, ino: Ino) -> Option<&OwnU64> {
        self.count_of(self.tables.refs, process, ino)
    }

    /// What a table of counts by process says of an inode.
    #[inline]
    fn count_of(&self, counts: Option<Span<OwnU64>>, process: usize, ino: Ino) -> Option<&OwnU64> {
        self.arena.table(counts?).get(self.ref_index(process, ino))
    }

    #[inline]
    fn ref_index(&self, process: usize, ino: Ino) -> usize {
        process * self.tables.max_inodes + ino.0 as usize
    }

    #[inline]
    fn own_refs(&self, ino: Ino) -> Option<&OwnU64> {
        self.tables.refs?;
        self.refs_of(self.arena.process().ok()?, ino)
    }

    /// Announces that this process adds a reference next.
    #[inline]
    pub fn prefetch_refs(&self, ino: Ino) {
        if let (Some(refs), Ok(process)) = (self.tables.refs, self.arena.process()) {
            self.arena.prefetch(refs, self.ref_index(process, ino));
        }
    }

    /// Adds a reference of this process.
    #[inline]
    pub fn add_ref(&self, ino: Ino, v: &VInode) {
        if let Some(own) = self.own_refs(ino) {
            let _ = own.modify(|have| Some(have + 1));
        }
        // See `hold_optimistic`.
        v.refs.fetch_add(1, SeqCst);
    }

    /// Whether a process holds references to an inode.
    pub fn holds(&self, process: usize, ino: Ino) -> bool {
        self.refs_of(process, ino).is_some_and(|refs| refs.load(Acquire) > 0)
    }

    /// Takes back up to `n` references that a process holds; whether that left none at all.
    pub fn drop_refs(&self, process: usize, ino: Ino, v: &VInode, n: u64) -> bool {
        let own = self.refs_of(process, ino);
        let n = own.map_or(n, |own| take_own(own, n).min(n));
        take(&v.refs, n) <= n
    }

    /// Calls `each` for the inodes that a process holds, with how often. Returns how many counts were looked at.
    pub fn for_each_ref(&self, process: usize, each: impl FnMut(Ino, u64)) -> usize {
        self.for_each_count(self.tables.refs, process, each)
    }

    fn for_each_count(
        &self,
        counts: Option<Span<OwnU64>>,
        process: usize,
        mut each: impl FnMut(Ino, u64),
    ) -> usize {
        let Some(counts) = counts else { return 0 };
        let range = self.of_process(process);
        let first = range.start;
        self.arena.for_each_backed(counts, range, |i, count| match count.load(Relaxed) {
            0 => {}
            count => each(Ino((i - first) as u64), count),
        })
    }

    /// The part of a table of counts that is of a process.
    fn of_process(&self, process: usize) -> Range<usize> {
        let first = process * self.tables.max_inodes;
        first..first + self.tables.max_inodes
    }

    /// Forgets what a dead process held and mapped.
    pub fn clear_counts(&self, process: usize) -> std::io::Result<()> {
        let counts = [self.tables.refs, self.tables.mappings];
        let mut counts = counts.into_iter().flatten();
        counts.try_for_each(|counts| self.arena.clear(counts, self.of_process(process)))
    }

    /// Counts that a process may map an inode. In one order with what others see of the content: whoever
    /// does not see the count has changed what is read after it.
    pub fn add_mapping(&self, process: usize, ino: Ino, v: &VInode) {
        if let Some(own) = self.count_of(self.tables.mappings, process, ino) {
            let _ = own.modify(|have| Some(have + 1));
        }
        v.mappings.fetch_add(1, SeqCst);
    }

    /// Takes back up to `n` mappings that a process counts.
    pub fn drop_mappings(&self, process: usize, ino: Ino, v: &VInode, n: u64) {
        let own = self.count_of(self.tables.mappings, process, ino);
        let n = own.map_or(n, |own| take_own(own, n).min(n)) as u32;
        let less = |have: u32| Some(have.saturating_sub(n));
        let _ = v.mappings.fetch_update(AcqRel, Relaxed, less);
    }

    /// Calls `each` for the inodes that a process may map, with how often it counts that. Returns how many counts
    /// were looked at.
    pub fn for_each_mapping(&self, process: usize, each: impl FnMut(Ino, u64)) -> usize {
        self.for_each_count(self.tables.mappings, process, each)
    }

    // --- directories ----------------------------------------------------------------------------

    /// The state of a directory's free space, made on first use.
    pub fn dir_state(&self, v: &VInode) -> Result<&DirState> {
        let handle = match Handle::from_link(v.dir.load(Relaxed)) {
            Some(h) => h,
            None => {
                let h = self.dir_states.take(&self.arena).ok_or(Errno::NOSPC)?;
                let state = self.dir_states.get(&self.arena, h);
                state.heads.iter().for_each(|head| head.store(0, Relaxed));
                state.blocks.store(0, Relaxed);
                v.dir.store(h.0, Relaxed);
                h
            }
        };
        Ok(self.dir_states.get(&self.arena, handle))
    }

    /// Gives back the state of a directory that is gone.
    pub fn drop_dir_state(&self, v: &VInode) {
        let Some(handle) = Handle::from_link(v.dir.swap(0, Relaxed)) else { return };
        let mut next = self.dir_states.get(&self.arena, handle).blocks.load(Relaxed);
        while let Some(block) = Handle::from_link(next) {
            next = self.dir_block(block).sibling.load(Relaxed);
            self.dir_blocks.give(&self.arena, block);
        }
        self.dir_states.give(&self.arena, handle);
    }

    /// Adds a block to a directory: its `logical`th, at PM offset `pm_off`, in no chain yet.
    pub fn add_dir_block(&self, v: &VInode, pm_off: u64, logical: u64) -> Result<Handle> {
        let state = self.dir_state(v)?;
        let handle = self.dir_blocks.take(&self.arena).ok_or(Errno::NOSPC)?;
        let db = self.dir_block(handle);
        db.class.store(0, Relaxed);
        db.free_len.store(0, Relaxed);
        db.free.set(FreeRun { off: 0, len: BLOCK }, false);
        db.pm_off.store(pm_off, Relaxed);
        db.logical.store(logical as u32, Relaxed);
        db.sibling.store(state.blocks.swap(handle.0, Relaxed), Relaxed);
        Ok(handle)
    }

    /// A block of a directory.
    #[inline]
    pub fn dir_block(&self, block: Handle) -> &DirBlock {
        self.dir_blocks.get(&self.arena, block)
    }

    /// Where an entry lies in PM.
    #[inline]
    pub fn entry_off(&self, pos: EntryPos) -> u64 {
        self.dir_block(pos.block()).pm_off.load(Relaxed) + pos.off()
    }

    /// Where an entry lies in its directory file.
    pub fn logical_off(&self, pos: EntryPos) -> u64 {
        u64::from(self.dir_block(pos.block()).logical.load(Relaxed)) * BLOCK + pos.off()
    }
}

/// Takes up to `n` from a count of one process; what it was before.
#[inline]
fn take_own(count: &OwnU64, n: u64) -> u64 {
    match count.modify(|have| Some(have.saturating_sub(n))) {
        Ok(have) | Err(have) => have,
    }
}

/// Takes up to `n` from a count; what it was before.
fn take(count: &AtomicU64, n: u64) -> u64 {
    count.fetch_update(AcqRel, Acquire, |have| Some(have.saturating_sub(n))).unwrap_or(0)
}

/// A lock that concerns more than some inodes, held.
pub struct GlobalLock<'a>(&'a RwLock);

impl Drop for GlobalLock<'_> {
    fn drop(&mut self) {
        self.0.unlock(LockMode::Exclusive);
    }
}

/// Inode locks, taken in ascending order and given back on drop.
pub struct Locks<'a> {
    held: SmallVec<[&'a RwLock; 4]>,
    mode: LockMode,
    /// The inode file's, of wide locks.
    file: Option<GlobalLock<'a>>,
}

impl<'a> Locks<'a> {
    fn none(mode: LockMode) -> Self {
        Self { held: SmallVec::new(), mode, file: None }
    }

    /// Takes one more, of an inode behind those before.
    #[inline]
    fn add(&mut self, v: &'a Volatile, ino: Ino) -> Result<()> {
        let lock = &v.vinode(ino)?.lock;
        v.wait_for(lock, self.mode)?;
        self.held.push(lock);
        Ok(())
    }
}

impl Volatile {
    /// Locks one inode for reading.
    #[inline]
    pub fn lock_shared(&self, ino: Ino) -> Result<Locks<'_>> {
        let mut locks = Locks::none(LockMode::Shared);
        locks.add(self, ino)?;
        Ok(locks)
    }

    /// Locks inodes for changing. `wide` also locks every inode that shares a leaf of the inode
    /// file with one of the first `wide` of them, and the inode file itself, so that those leaves can
    /// be copied: nobody else then reads or changes a word of them.
    pub fn lock_exclusive(&self, inos: &[Ino], wide: usize) -> Result<Locks<'_>> {
        let mut locks = Locks::none(LockMode::Exclusive);
        if wide == 0 && inos.is_sorted_by(|a, b| a < b) {
            inos.iter().try_for_each(|ino| locks.add(self, *ino))?;
            return Ok(locks);
        }
        let mut all: SmallVec<[Ino; 4]> = SmallVec::new();
        for (i, ino) in inos.iter().enumerate() {
            if i < wide {
                let first = ino.0 - ino.0 % INODES_PER_BLOCK;
                all.extend((first.max(1)..first + INODES_PER_BLOCK).map(Ino));
            } else {
                all.push(*ino);
            }
        }
        all.sort_unstable();
        all.dedup();
        all.iter().try_for_each(|ino| locks.add(self, *ino))?;
        if wide > 0 {
            locks.file = Some(self.lock_inode_file()?);
        }
        Ok(locks)
    }
}

impl Locks<'_> {
    /// Whether leaves of the inode file may be copied under these locks.
    pub fn is_wide(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        self.file = None;
        self.held.iter().rev().for_each(|lock| lock.unlock(self.mode));
    }
}
