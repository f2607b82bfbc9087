//! The derived state of inodes and directories, in the arena. [`crate::derived`] has the part that
//! all engines share; an engine adds what it needs to find free space.

use crate::derived::{GlobalLock, InodeState, Locks, Sizes, State};
use crate::free::{FreeRun, FreeUnits};
use crate::layout::BLOCK;
use arena::{Arena, Bitmap, FreeCount, Handle, Layout, Link, RwLock, Shared, Slab, Span};
use pmem::PmOff;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::*};
use vfs::{Errno, FileKind, Ino, Result};

/// Directory-entry size classes: entries of 2 to 17 units; the last class is "17 or more".
pub const CLASSES: usize = 16;

/// Derived state of one inode.
#[derive(Default)]
#[repr(C, align(64))]
pub struct VInode {
    /// The engine-independent state; its lock guards the inode's words, its tree and this record.
    common: InodeState,
    /// The place of the record; see [`at`](Self::at).
    place: AtomicU64,
    /// Blocks of data, pointers and attributes. A pool has fewer than 2^32.
    blocks: AtomicU32,
    /// Blocks of data of a file that the backing store lacks (dirty-N2).
    dirty: AtomicU32,
    /// Parent of a directory. (For a file, this field and the next two belong to the engine.)
    pub parent: AtomicU32,
    /// Entries of a directory.
    pub entries: AtomicU32,
    /// Handle of a directory's [`DirState`]; 0: none yet.
    pub dir: AtomicU32,
}

const _: () = assert!(size_of::<VInode>() == 64, "one line an inode");

/// State bit of an inode: it may have `security.capability`, so that changes of content have to
/// check.
pub const MAY_BE_CAPABLE: u32 = crate::derived::ENGINE_BITS;
/// State bit of an inode: it is marked clean ([`crate::layout::STATE_CLEAN`]).
pub const CLEAN: u32 = 1 << 16;
/// State bit of a directory: its entries are not all in the pool
/// ([`crate::layout::STATE_NAMES_ABSENT`]).
pub const NAMES_ABSENT: u32 = 1 << 17;
/// State bit of an inode: its object changes by write-back ([`crate::layout::STATE_BUSY`]).
pub const BUSY: u32 = 1 << 18;
/// State bit of an inode: it was changed, or its content read, since the last look
/// ([`vfs::Backed::take_use`]). Only in pools with a backing store.
pub const USED: u32 = 1 << 19;
/// State bit of an inode: it is pinned ([`crate::layout::STATE_PINNED`]).
pub const PINNED: u32 = 1 << 20;
/// State bit of a file: some of its content may be absent. It is taken away when a load finds that
/// nothing is absent any more.
pub const MAY_BE_ABSENT: u32 = 1 << 21;
/// State bit of an inode: it counts as dirty (dirty-N1 in [`crate::dirty`]).
pub const COUNTED: u32 = 1 << 22;

impl Deref for VInode {
    type Target = InodeState;

    #[inline]
    fn deref(&self) -> &InodeState {
        &self.common
    }
}

impl VInode {
    /// Starts a life, as [`InodeState::begin`].
    pub fn begin(&self, kind: FileKind, flags: u32) {
        self.begin_words();
        self.common.begin(kind, flags);
    }

    /// Initialises the words of the engine.
    fn begin_words(&self) {
        self.blocks.store(0, Relaxed);
        self.dirty.store(0, Relaxed);
        self.parent.store(0, Relaxed);
        self.entries.store(0, Relaxed);
        self.dir.store(0, Relaxed);
    }

    /// Notes a use (`USED`). Any thread may call this, with or without the lock: a use that is
    /// lost, or counts for the next life, costs nothing but a worse choice of what is evicted.
    #[inline]
    pub fn note_use(&self) {
        if self.state.load(Relaxed) & USED == 0 {
            self.state.fetch_or(USED, Relaxed);
        }
    }

    /// Prepares a life, of this kind, with these flags and this number of names: all is as after
    /// [`begin`](Self::begin), but the inode does not live yet.
    pub fn prepare(&self, kind: FileKind, flags: u32, links: u32) {
        self.begin_words();
        self.common.prepare(kind, flags, links);
    }

    /// Returns whether a use was noted, and forgets it.
    pub fn take_use(&self) -> bool {
        self.state.load(Relaxed) & USED != 0 && {
            self.state.fetch_and(!USED, Relaxed);
            true
        }
    }

    /// Returns the place of its record in PM. It changes when the leaf is copied, under all locks
    /// of the leaf.
    #[inline]
    pub fn at(&self) -> PmOff {
        PmOff::new(self.place.load(Relaxed))
    }

    /// Returns its blocks, pointers included.
    #[inline]
    pub fn block_count(&self) -> u64 {
        self.blocks.load(Relaxed).into()
    }

    /// Adds to the blocks. The caller holds the inode exclusively, so a load and a store suffice:
    /// an atomic addition would wait for the preceding writes to PM. The same holds for the next.
    #[inline]
    pub fn add_blocks(&self, n: i64) {
        let blocks = i64::from(self.blocks.load(Relaxed)) + n;
        self.blocks.store(blocks.clamp(0, u32::MAX.into()) as u32, Relaxed);
    }

    /// Returns the blocks of data that the backing store lacks.
    pub fn dirty_blocks(&self) -> u32 {
        self.dirty.load(Relaxed)
    }

    /// Sets the blocks of data that the backing store lacks.
    pub fn set_dirty_blocks(&self, n: i64) {
        debug_assert!(n >= 0, "dirty-N2: {n} blocks");
        self.dirty.store(n.clamp(0, u32::MAX.into()) as u32, Relaxed);
    }

    /// Adds to a directory's entries.
    #[inline]
    pub fn add_entries(&self, n: i32) {
        self.entries.store(self.entries.load(Relaxed).wrapping_add_signed(n), Relaxed);
    }
}

/// Blocks of a directory, and their free space: for each size class, a chain through [`DirBlock`].
#[repr(C)]
pub struct DirState {
    next: AtomicU32,
    /// First block of the class, as handle; 0: none.
    pub heads: [AtomicU32; CLASSES],
    /// First of all blocks, as handle; 0: none.
    pub blocks: AtomicU32,
}

/// A block that holds directory entries. Its handle stays when copy-on-write moves the block. So an
/// [`EntryPos`] identifies an entry by the handle of its block and the offset in it.
#[repr(C)]
pub struct DirBlock {
    /// Next block of the chain; 0: none.
    pub next: AtomicU32,
    /// Previous block of the chain; 0: none.
    pub prev: AtomicU32,
    /// Next block of the directory; 0: none.
    pub sibling: AtomicU32,
    /// The place of the block; see [`at`](Self::at).
    place: AtomicU64,
    /// The offset in the block of a long run of free entries.
    pub free_off: AtomicU16,
    /// The length of that run in bytes; 0: no run is known.
    pub free_len: AtomicU16,
    /// Class of the chain the block is in, plus one; 0: in none.
    pub class: AtomicU32,
    /// The free units.
    pub free: FreeUnits,
}

impl DirBlock {
    /// Returns the place of the block in PM.
    #[inline]
    pub fn at(&self) -> PmOff {
        PmOff::new(self.place.load(Relaxed))
    }
}

/// The position of an entry: the handle of its [`DirBlock`], and its offset in the block in the low
/// bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPos(pub u64);

impl EntryPos {
    /// Makes an entry at `off` of a block.
    pub fn new(block: Handle, off: u64) -> Self {
        Self(u64::from(block.0) * BLOCK + off)
    }

    /// Returns the block.
    pub fn block(self) -> Handle {
        Handle((self.0 / BLOCK) as u32)
    }

    /// Returns the offset in the block.
    pub fn off(self) -> u64 {
        self.0 % BLOCK
    }
}

const _: () = assert!(u32::BITS + BLOCK.ilog2() <= crate::derived::POS_BITS);

/// The unsafe part of this crate: three promises to the arena.
#[allow(unsafe_code)]
mod shared {
    use super::*;
    // SAFETY: atomics and arrays of atomics only; zero is "not live", "empty", "none".
    unsafe impl Shared for VInode {}
    // SAFETY: as above.
    unsafe impl Shared for DirState {}
    // SAFETY: as above.
    unsafe impl Shared for DirBlock {}
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

/// The derived state of inodes, directories and blocks.
pub struct Tables {
    common: State<VInode>,
    /// The blocks in use.
    pub blocks: Bitmap,
    /// The number of free blocks.
    pub free: FreeCount,
    dir_states: Slab<DirState>,
    dir_blocks: Slab<DirBlock>,
    /// The number of inodes that there is room for.
    slots: Span<AtomicU64>,
    /// Guards the inode file.
    inode_file: Span<RwLock>,
    /// Guards the units with space in the file below.
    provisioning: Span<RwLock>,
    /// [`PoolLength::expected`].
    expected: u64,
}

/// The tables before they have memory.
pub struct Plan {
    common: crate::derived::Plan<VInode>,
    blocks: Bitmap,
    free: FreeCount,
    dir_states: Slab<DirState>,
    dir_blocks: Slab<DirBlock>,
    slots: Span<AtomicU64>,
    inode_file: Span<RwLock>,
    provisioning: Span<RwLock>,
    expected: u64,
}

/// The length of a pool, by which tables are planned. All processes that use it find the same.
#[derive(Clone, Copy, Debug)]
pub struct PoolLength {
    /// The blocks of its region.
    pub blocks: u64,
    /// The blocks that it was made for. Tables for names and inodes suit this number: so they take
    /// no more addresses because the pool may become larger.
    pub expected: u64,
}

/// Memory for derived state.
pub enum Memory {
    /// All zeros, to be filled by a scan.
    Fresh {
        /// The memory.
        arena: Arena,
        /// The key of the name hash.
        seed: u64,
    },
    /// Memory that other processes have filled.
    Joined(Arena),
}

/// Tables with a smaller budget of huge pages get none: the pages take at least 2 MiB.
const HUGE_PAGES_FROM: usize = 1 << 20;
/// The most bytes of huge pages: they are taken when the pool is opened, even if it is empty.
const HUGE_PAGES_MAX: u64 = 256 << 20;

impl Plan {
    /// Plans the tables of a pool, for one process or several. A block has room for
    /// `inodes_per_block` inodes. There are at most as many inodes, names and blocks of directories
    /// as fit into the expected blocks.
    pub fn new(is_shared: bool, length: PoolLength, inodes_per_block: u64) -> Self {
        let PoolLength { blocks, expected } = length;
        let sizes = Sizes {
            inodes: (expected * inodes_per_block).min(1 << 31),
            blocks,
            // One line for each 32 KiB, which suffices for every second name of a pool that is full
            // of directories.
            buckets: (expected as usize / 8).clamp(1 << 7, 1 << 28),
            names: (expected as usize * 64).min((1 << 31) - 2),
        };
        let mut common = crate::derived::Plan::new(is_shared, sizes);
        let l = &mut common.layout;
        Self {
            blocks: Bitmap::plan(l, blocks),
            free: FreeCount::plan(l),
            slots: l.table(8),
            inode_file: l.table(1),
            provisioning: l.table(1),
            dir_blocks: Slab::plan(l, expected as usize),
            dir_states: Slab::plan(l, expected as usize),
            expected,
            common,
        }
    }

    /// Returns the places of all tables. An engine's own tables are derived, too.
    pub fn layout(&mut self) -> &mut Layout {
        &mut self.common.layout
    }

    /// Returns the blocks in use.
    pub fn blocks(&self) -> Bitmap {
        self.blocks
    }

    /// Opens the tables in this memory. They are empty, so that a scan can fill them, unless other
    /// processes have filled them.
    pub fn open(self, memory: Memory) -> Tables {
        match memory {
            Memory::Fresh { arena, seed } => {
                let tables = self.with(|common| common.begin(arena, seed));
                tables.clear();
                tables
            }
            Memory::Joined(arena) => self.with(|common| common.join(arena)),
        }
    }

    /// Makes the tables; `common` makes the part that is common to all engines.
    fn with(self, common: impl FnOnce(crate::derived::Plan<VInode>) -> State<VInode>) -> Tables {
        Tables {
            common: common(self.common),
            blocks: self.blocks,
            free: self.free,
            dir_states: self.dir_states,
            dir_blocks: self.dir_blocks,
            slots: self.slots,
            inode_file: self.inode_file,
            provisioning: self.provisioning,
            expected: self.expected,
        }
    }
}

/// The engine-independent state.
impl Deref for Tables {
    type Target = State<VInode>;

    #[inline]
    fn deref(&self) -> &State<VInode> {
        &self.common
    }
}

/// A record that is held: its number, and its lock.
pub type HeldRecord<'t> = (u64, GlobalLock<'t>);

/// Locks of the records by which an engine changes several words, or bytes, at once.
#[derive(Clone, Copy)]
pub struct RecordLocks(Span<RwLock>);

impl RecordLocks {
    /// Plans the locks of this number of records.
    pub fn plan(l: &mut Layout, count: u64) -> Self {
        Self(l.table(count as usize))
    }

    /// Holds a record. Taken after all other locks.
    pub fn hold<'t>(&self, tables: &'t Tables, hint: u64) -> Result<HeldRecord<'t>> {
        let locks = tables.arena.table(self.0);
        let number = hint % locks.len() as u64;
        Ok((number, tables.lock_global(&locks[number as usize])?))
    }
}

/// The inode number at which a thread starts its search for a free one, in the pool that it used
/// last.
#[derive(Clone, Copy)]
struct Hint {
    pool: u64,
    inode: u64,
}

os::thread_cell! {
    fn hint -> Hint, "namespace_hint", 16
}

impl Tables {
    /// Initialises the tables for an empty pool. The tables that lookups read get huge pages: a
    /// thousandth of the pool, within a limit.
    pub(crate) fn clear(&self) {
        let huge = (self.expected * BLOCK / 1024).min(HUGE_PAGES_MAX) as usize;
        self.common.clear(if huge < HUGE_PAGES_FROM { 0 } else { huge });
        self.blocks.init(&self.arena);
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// Prefetches the state of an inode; returns where its record most likely is. The place comes
    /// from the first inode of the leaf, whose line is often in the cache. So record and derived
    /// state arrive at the same time. Records have `inode_bytes`, here and below.
    #[inline(always)]
    pub fn prefetch_inode(&self, ino: Ino, inode_bytes: u64) -> Option<PmOff> {
        self.prefetch_vinode(ino);
        let nth = ino.0 % (BLOCK / inode_bytes);
        let first = self.inodes().get((ino.0 - nth) as usize)?;
        let leaf = first.at();
        (leaf.get() != 0).then_some(leaf + nth * inode_bytes)
    }

    fn slots(&self) -> &AtomicU64 {
        &self.arena.table(self.slots)[0]
    }

    /// Returns the number of inodes that there is room for in the inode file.
    pub fn inode_slots(&self) -> u64 {
        self.slots().load(Acquire)
    }

    /// Returns whether the inodes can have this many bytes in all, of `inode_bytes` each.
    pub fn is_inode_file_size(&self, bytes: u64, inode_bytes: u64) -> bool {
        let most = self.inodes().len() as u64;
        bytes > 0 && bytes.is_multiple_of(BLOCK) && bytes / inode_bytes <= most
    }

    /// Records that the inode file grew by the leaf at `at`, a block.
    pub fn add_leaf(&self, at: PmOff, inode_bytes: u64) {
        let first = self.inode_slots();
        for i in 0..BLOCK / inode_bytes {
            if let Some(v) = self.inodes().get((first + i) as usize) {
                v.place.store((at + i * inode_bytes).get(), Release);
            }
        }
        self.slots().store(first + BLOCK / inode_bytes, Release);
    }

    /// Records that the leaf with the record of this number, its first, lies at `at` now. The
    /// caller holds the locks of all its inodes.
    pub fn move_leaf(&self, first: u64, at: PmOff, inode_bytes: u64) {
        let records =
            self.inodes().iter().skip(first as usize).take((BLOCK / inode_bytes) as usize);
        for (i, v) in (0..).zip(records) {
            v.place.store((at + i * inode_bytes).get(), Release);
        }
    }

    /// Returns whether all of these inode numbers are in use.
    pub fn are_in_use(&self, numbers: Range<u64>) -> bool {
        self.common.count_numbers(numbers.clone()) == numbers.end - numbers.start
    }

    /// Returns the inode number at which to start the search for a free one.
    fn inode_hint(&self) -> u64 {
        let h = hint().get();
        if h.pool == self.id { h.inode } else { 0 }
    }

    /// Sets the start of this thread's next search.
    fn set_inode_hint(&self, inode: u64) {
        hint().set(Hint { pool: self.id, inode });
    }

    /// Claims a free inode number for which the inode file has room.
    pub fn claim_inode(&self) -> Result<Ino> {
        let ino = self.claim_number(self.inode_hint(), self.inode_slots())?;
        self.set_inode_hint(ino.0);
        Ok(ino)
    }

    /// Gives an inode number back.
    pub fn release_inode(&self, ino: Ino) {
        if self.release_number(ino) {
            self.set_inode_hint(ino.0);
        }
    }

    /// Guards the pointer blocks of the inode file and its growth.
    pub fn lock_inode_file(&self) -> Result<GlobalLock<'_>> {
        self.lock_global(self.inode_file_lock())
    }

    /// Returns the lock of [`lock_inode_file`](Self::lock_inode_file).
    pub fn inode_file_lock(&self) -> &RwLock {
        &self.arena.table(self.inode_file)[0]
    }

    /// Guards the units with space in the file below. Taken after all other locks.
    pub(crate) fn lock_provisioning(&self) -> Result<GlobalLock<'_>> {
        self.lock_global(&self.arena.table(self.provisioning)[0])
    }

    /// Locks inodes for changing, each once.
    #[inline]
    pub fn lock_for_change(&self, inos: &[Ino]) -> Result<Locks<'_>> {
        if inos.is_sorted_by(|a, b| a < b) {
            return self.lock_exclusive(inos);
        }
        let mut all: SmallVec<[Ino; 4]> = SmallVec::from_slice(inos);
        all.sort_unstable();
        all.dedup();
        self.lock_exclusive(&all)
    }

    // --- directories ----------------------------------------------------------------------------

    /// Returns the state of a directory's free space, created on first use.
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
        let mut left = self.dir_blocks.capacity();
        while let Some(block) = Handle::from_link(next) {
            if left == 0 {
                return self.arena.doubt();
            }
            left -= 1;
            next = self.dir_block(block).sibling.load(Relaxed);
            self.dir_blocks.give(&self.arena, block);
        }
        self.dir_states.give(&self.arena, handle);
    }

    /// Adds a block to a directory, which lies at `at`, in no chain yet.
    pub fn add_dir_block(&self, v: &VInode, at: PmOff) -> Result<Handle> {
        let state = self.dir_state(v)?;
        let handle = self.dir_blocks.take(&self.arena).ok_or(Errno::NOSPC)?;
        let db = self.dir_block(handle);
        db.class.store(0, Relaxed);
        db.free_len.store(0, Relaxed);
        db.free.set(FreeRun { off: 0, len: BLOCK }, false);
        db.place.store(at.get(), Relaxed);
        db.sibling.store(state.blocks.swap(handle.0, Relaxed), Relaxed);
        Ok(handle)
    }

    /// Records that blocks of a directory were copied: old and new places. The caller holds its
    /// lock exclusively.
    pub fn move_dir_blocks(&self, v: &VInode, moved: &HashMap<PmOff, PmOff>) {
        let Some(state) = Handle::from_link(v.dir.load(Relaxed)) else { return };
        let mut next = self.dir_states.get(&self.arena, state).blocks.load(Relaxed);
        for _ in 0..self.dir_blocks.capacity() {
            let Some(handle) = Handle::from_link(next) else { return };
            let block = self.dir_block(handle);
            if let Some(new) = moved.get(&block.at()) {
                block.place.store(new.get(), Relaxed);
            }
            next = block.sibling.load(Relaxed);
        }
        self.arena.doubt();
    }

    /// Returns a block of a directory.
    #[inline]
    pub fn dir_block(&self, block: Handle) -> &DirBlock {
        self.dir_blocks.get(&self.arena, block)
    }

    /// Returns the place of an entry in PM.
    #[inline]
    pub fn entry_at(&self, pos: EntryPos) -> PmOff {
        self.dir_block(pos.block()).at() + pos.off()
    }

    /// Returns the known free run of a block.
    pub fn free_run(&self, block: Handle) -> FreeRun {
        let db = self.dir_block(block);
        FreeRun { off: db.free_off.load(Relaxed).into(), len: db.free_len.load(Relaxed).into() }
    }
}
