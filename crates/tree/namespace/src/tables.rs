//! The derived state of inodes and directories, in the arena; what all engines have is in [`crate::derived`], and an engine adds
//! what it needs to know which space is free.

use crate::derived::{GlobalLock, InodeState, Locks, Sizes, State};
use crate::free::{FreeRun, FreeUnits};
use crate::layout::BLOCK;
use arena::{Arena, Bitmap, FreeCount, Handle, Layout, Link, RwLock, Shared, Slab, Span};
use pmem::PmOff;
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering::*};
use vfs::{Errno, FileKind, Ino, Result};

/// Directory-entry size classes: entries of 2 to 17 units; the last class is "17 or more".
pub const CLASSES: usize = 16;

/// Derived state of one inode.
#[derive(Default)]
#[repr(C, align(64))]
pub struct VInode {
    /// What every inode has; its lock guards the inode's words, its tree and this record.
    common: InodeState,
    /// Where the record is; see [`at`](Self::at).
    place: AtomicU64,
    /// Blocks of data, pointers and attributes.
    pub blocks: AtomicI64,
    /// Parent of a directory. (Of a file, this and the next two are the engine's.)
    pub parent: AtomicU32,
    /// Entries of a directory.
    pub entries: AtomicU32,
    /// Handle of a directory's [`DirState`]; 0: none yet.
    pub dir: AtomicU32,
}

const _: () = assert!(size_of::<VInode>() == 64, "one line an inode");

/// Of an inode's state: it may have `security.capability`, so that changes of content have to look.
pub const MAY_BE_CAPABLE: u32 = crate::derived::ENGINE_BITS;

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
        self.blocks.store(0, Relaxed);
        self.parent.store(0, Relaxed);
        self.entries.store(0, Relaxed);
        self.dir.store(0, Relaxed);
        self.common.begin(kind, flags);
    }

    /// Where its record lies in PM; that changes when the leaf is copied, under all locks of the leaf.
    #[inline]
    pub fn at(&self) -> PmOff {
        PmOff::new(self.place.load(Relaxed))
    }

    /// Its blocks, pointers included.
    #[inline]
    pub fn block_count(&self) -> u64 {
        self.blocks.load(Relaxed).max(0) as u64
    }

    /// Adds to the blocks; as the next, for who has the inode exclusively: by a load and a store, as an
    /// atomic addition would wait for what was written to PM before.
    #[inline]
    pub fn add_blocks(&self, n: i64) {
        self.blocks.store(self.blocks.load(Relaxed) + n, Relaxed);
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

/// A block that holds directory entries. Its handle stays when copy-on-write moves the block, so
/// entries are known by [`EntryPos`]: where they are in which of these.
#[repr(C)]
pub struct DirBlock {
    /// Next block of the chain; 0: none.
    pub next: AtomicU32,
    /// Previous block of the chain; 0: none.
    pub prev: AtomicU32,
    /// Next block of the directory; 0: none.
    pub sibling: AtomicU32,
    /// Where the block is; see [`at`](Self::at).
    place: AtomicU64,
    /// Where a long run of free entries is: its offset in the block.
    pub free_off: AtomicU16,
    /// Its length in bytes; 0: there is none.
    pub free_len: AtomicU16,
    /// Class of the chain the block is in, plus one; 0: in none.
    pub class: AtomicU32,
    /// What is free.
    pub free: FreeUnits,
}

impl DirBlock {
    /// Where the block lies in PM.
    #[inline]
    pub fn at(&self) -> PmOff {
        PmOff::new(self.place.load(Relaxed))
    }
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

/// The state that is derived of inodes, directories and blocks.
pub struct Tables {
    common: State<VInode>,
    /// Which blocks are in use.
    pub blocks: Bitmap,
    /// How many are not.
    pub free: FreeCount,
    dir_states: Slab<DirState>,
    dir_blocks: Slab<DirBlock>,
    /// Inodes that there is room for.
    slots: Span<AtomicU64>,
    /// Guards where inodes lie.
    inode_file: Span<RwLock>,
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
    /// Others have filled it.
    Joined(Arena),
}

/// Tables that may have fewer bytes of huge pages have none: these take 2 MiB at least.
const HUGE_PAGES_FROM: usize = 1 << 20;
/// No more than so many bytes of them: they are taken when the pool is opened, also when it is empty.
const HUGE_PAGES_MAX: u64 = 256 << 20;

impl Plan {
    /// For a pool of so many blocks that one process uses, or several. A block has room for so many inodes; directories have
    /// at most as many blocks as the pool.
    pub fn new(is_shared: bool, blocks: u64, inodes_per_block: u64) -> Self {
        let sizes = Sizes {
            inodes: (blocks * inodes_per_block).min(1 << 31),
            blocks,
            // A line for 32 KiB, and for every second name of a pool that is full of directories.
            buckets: (blocks as usize / 8).clamp(1 << 7, 1 << 28),
            names: (blocks as usize * 64).min((1 << 31) - 2),
        };
        let mut common = crate::derived::Plan::new(is_shared, sizes);
        let l = &mut common.layout;
        Self {
            blocks: Bitmap::plan(l, blocks),
            free: FreeCount::plan(l),
            slots: l.table(8),
            inode_file: l.table(1),
            dir_blocks: Slab::plan(l, blocks as usize),
            dir_states: Slab::plan(l, blocks as usize),
            common,
        }
    }

    /// Where everything is. What an engine adds is derived, too.
    pub fn layout(&mut self) -> &mut Layout {
        &mut self.common.layout
    }

    /// Which blocks are in use.
    pub fn blocks(&self) -> Bitmap {
        self.blocks
    }

    /// The tables in this memory: empty, so that a scan can fill them, unless others have.
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

    fn with(self, common: impl FnOnce(crate::derived::Plan<VInode>) -> State<VInode>) -> Tables {
        Tables {
            common: common(self.common),
            blocks: self.blocks,
            free: self.free,
            dir_states: self.dir_states,
            dir_blocks: self.dir_blocks,
            slots: self.slots,
            inode_file: self.inode_file,
        }
    }
}

/// What all engines have.
impl Deref for Tables {
    type Target = State<VInode>;

    #[inline]
    fn deref(&self) -> &State<VInode> {
        &self.common
    }
}

/// A record that is held: which one, and its lock.
pub type HeldRecord<'t> = (u64, GlobalLock<'t>);

/// Locks of the records by which an engine changes several words, or bytes, at once.
#[derive(Clone, Copy)]
pub struct RecordLocks(Span<RwLock>);

impl RecordLocks {
    /// For so many records.
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

/// Where a thread looks first for a free inode, in the pool it used last.
#[derive(Clone, Copy)]
struct Hint {
    pool: u64,
    inode: u64,
}

os::thread_cell! {
    fn hint -> Hint, "namespace_hint", 16
}

impl Tables {
    /// Begins with an empty pool. What lookups meet gets huge pages, as much as a thousandth of the pool within a limit.
    pub(crate) fn clear(&self) {
        let huge = (self.blocks.len() * BLOCK / 1024).min(HUGE_PAGES_MAX) as usize;
        self.common.clear(if huge < HUGE_PAGES_FROM { 0 } else { huge });
        self.blocks.init(&self.arena);
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// Announces that an inode is looked at next; returns where its record will be, mostly. The first
    /// inode of the leaf tells, whose line others of the leaf have fetched: so that record and derived
    /// state come at the same time. Records have `inode_bytes`, here and below.
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

    /// Inodes that there is room for: those that the inode file holds.
    pub fn inode_slots(&self) -> u64 {
        self.slots().load(Acquire)
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

    /// Where to look first for a free inode.
    fn inode_hint(&self) -> u64 {
        let h = hint().get();
        if h.pool == self.id { h.inode } else { 0 }
    }

    /// Has this thread look there first.
    fn set_inode_hint(&self, inode: u64) {
        hint().set(Hint { pool: self.id, inode });
    }

    /// Claims a free inode number: one that the inode file has room for, if there is any.
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
        self.lock_global(&self.arena.table(self.inode_file)[0])
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

    /// A block of a directory.
    #[inline]
    pub fn dir_block(&self, block: Handle) -> &DirBlock {
        self.dir_blocks.get(&self.arena, block)
    }

    /// Where an entry lies in PM.
    #[inline]
    pub fn entry_at(&self, pos: EntryPos) -> PmOff {
        self.dir_block(pos.block()).at() + pos.off()
    }

    /// The known free run of a block.
    pub fn free_run(&self, block: Handle) -> FreeRun {
        let db = self.dir_block(block);
        FreeRun { off: db.free_off.load(Relaxed).into(), len: db.free_len.load(Relaxed).into() }
    }
}
