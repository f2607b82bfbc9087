//! The derived state that all engines have in common, and locks.

use crate::derived::counts::Counts;
use crate::derived::growth::Growth;
use crate::derived::inodes::{Inode, Mapper};
use crate::derived::names::{NameEntry, NameIndex};
use crate::derived::openings::Openings;
use crate::derived::unnamed::{SERVERS, Unnamed};
use crate::dirty::DirtyCounts;
use crate::layout::BLOCK;
use arena::atomic::AtomicU64;
use arena::{Arena, Bitmap, HashIndex, Layout, LockMode, Pins, RwLock, Span};
use os::caller;
use pool::DurabilityMode;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use vfs::{Errno, FileKind, Ino, Result, WaitingCalls};

/// Bits of [`Kept::AccessTimes`]: accesses to directories do not change their times; accesses to
/// other inodes do not; each access changes them, not only one that `relatime` would record.
const NO_DIR_TIMES: u64 = 1;
const NO_FILE_TIMES: u64 = 2;
const STRICT: u64 = 4;

/// The words that cannot be derived, and stay when everything else is derived again.
#[derive(Clone, Copy)]
enum Kept {
    /// Key of the name hash.
    Seed,
    /// Whether a recovery met damage.
    Damaged,
    /// The number of times that everything else was derived again.
    Derivations,
    /// Which accesses are recorded, and when.
    AccessTimes,
    /// The number of blocks in units without space ([`State::hidden`]).
    Hidden,
    /// The number of blocks beyond the size of the pool ([`State::withheld`]).
    Withheld,
    /// Whether operations leave their last fence to the next one.
    LeavesFences,
    /// The calls that wait for the backing store.
    Through,
}

/// Words of [`State::settings`].
pub const SETTINGS: usize = 17;

/// Blocks of a unit of space that is taken from the file below, and given back: 64 KiB.
pub const UNIT: u64 = 16;

/// Returns the number of blocks in the whole units that this many bytes have room for.
pub fn whole_units(bytes: u64) -> u64 {
    bytes / (UNIT * BLOCK) * UNIT
}

/// Sizes of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Inode numbers, including 0, which no inode has.
    pub inodes: u64,
    /// Blocks that can wait for readers without a copy.
    pub blocks: u64,
    /// Lines of the name index.
    pub buckets: usize,
    /// Most names beyond those that the lines have room for.
    pub names: usize,
}

/// The places of the tables.
struct Tables<V> {
    kept: Span<AtomicU64>,
    /// The units of the pool that have space in the file below.
    provisioned: Bitmap,
    settings: Span<[AtomicU64; SETTINGS]>,
    /// The number of changes of the mount ([`mounts::MountEvents`]): in a line of its own, which
    /// stays in every cache.
    mount_changes: Span<AtomicU64>,
    growth: Span<[AtomicU64; 2]>,
    dirty: Span<[AtomicU64; 2]>,
    unnamed: Span<Unnamed>,
    /// References that each process holds, and mappings that it counts.
    refs: Counts,
    mappings: Counts,
    openings: Openings,
    /// The mount that each process serves ([`mounts::MountEvents::begin_serving`]).
    serving: Span<AtomicU64>,
    pins: Pins,
    inodes: Span<V>,
    /// The inode numbers in use.
    numbers: Bitmap,
    free_numbers: Span<AtomicU64>,
    /// Guards the parents of directories.
    topology: Span<RwLock>,
    names: HashIndex<NameEntry>,
}

/// The state before it has memory. An engine adds tables of its own to the layout, which are
/// derived, too.
pub struct Plan<V> {
    /// The places of all tables.
    pub layout: Layout,
    tables: Tables<V>,
}

/// State of one mounted pool, whose inodes are `V`.
pub struct State<V> {
    /// The memory.
    pub arena: Arena,
    tables: Tables<V>,
    /// Names.
    pub names: NameIndex,
    /// Distinguishes the mounts of this process.
    pub id: u64,
    /// Whether the loss of part of the medium has been logged.
    told_loss: AtomicBool,
    /// Held by the thread of this process that claims notifications for it.
    pub(crate) claiming: Mutex<()>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl<V: Inode> Plan<V> {
    /// Plans the state for a pool that one process uses, or several.
    pub fn new(is_shared: bool, sizes: Sizes) -> Self {
        let (mut l, processes) = match is_shared {
            true => (Layout::shared(), arena::PROCESSES),
            false => (Layout::default(), 0),
        };
        let inodes = sizes.inodes as usize;
        let kept = l.table(8);
        let provisioned = Bitmap::plan(&mut l, sizes.blocks.div_ceil(UNIT));
        let settings = l.table(1);
        let mount_changes = l.table(1);
        let growth = l.table(1);
        let refs = Counts::plan(&mut l, processes, inodes);
        let mappings = Counts::plan(&mut l, processes, inodes);
        let unnamed = l.table(SERVERS);
        let openings = Openings::plan(&mut l, processes.max(1));
        let serving = l.table(processes.max(1));
        let pins = Pins::plan(&mut l, sizes.blocks, processes.max(1));
        l.begin_derived();
        let tables = Tables {
            kept,
            provisioned,
            settings,
            mount_changes,
            growth,
            dirty: l.table(1),
            unnamed,
            refs,
            mappings,
            openings,
            serving,
            pins,
            inodes: l.table(inodes),
            numbers: Bitmap::plan(&mut l, sizes.inodes),
            free_numbers: l.table(8),
            topology: l.table(1),
            names: HashIndex::plan(&mut l, sizes.buckets, sizes.names),
        };
        Self { layout: l, tables }
    }

    /// Creates the state in fresh memory, keyed by `seed`; it is empty except for the work of
    /// [`State::clear`].
    pub fn begin(self, arena: Arena, seed: u64) -> State<V> {
        arena.table(self.tables.kept)[Kept::Seed as usize].store(seed, Relaxed);
        self.join(arena)
    }

    /// Joins the state in memory that other processes use.
    pub fn join(self, arena: Arena) -> State<V> {
        let seed = arena.table(self.tables.kept)[Kept::Seed as usize].load(Acquire);
        arena.hold_newcomers();
        State {
            names: NameIndex::new(self.tables.names, seed),
            tables: self.tables,
            arena,
            id: NEXT_ID.fetch_add(1, Relaxed),
            told_loss: AtomicBool::new(false),
            claiming: Mutex::default(),
        }
    }
}

impl<V: Inode> State<V> {
    /// Initialises the state without names and inodes. Gives `huge` bytes of huge pages to the
    /// tables that lookups read: to the first part of the name index, and to the first inodes.
    pub fn clear(&self, huge: usize) {
        if huge > 0 {
            self.names.back(&self.arena, huge);
            self.arena.back(self.tables.inodes, 0..huge / 2 / size_of::<V>());
        }
        self.tables.numbers.init(&self.arena);
        self.tables.numbers.set(&self.arena, 0);
        self.free_numbers().store(self.tables.numbers.len() - 1, Relaxed);
    }

    /// Clears all state that can be derived, so that it can be derived again. No other process may
    /// use it.
    pub(crate) fn start_over(&self) -> io::Result<()> {
        self.end_versions();
        self.arena.clear_derived()
    }

    /// Gives all inodes other [versions](Self::version), because everything will be derived again.
    pub(crate) fn end_versions(&self) {
        self.kept(Kept::Derivations).fetch_add(1, Relaxed);
    }

    #[inline]
    fn kept(&self, which: Kept) -> &AtomicU64 {
        &self.arena.table(self.tables.kept)[which as usize]
    }

    /// Returns whether a recovery met damage: then nothing may be changed until a check.
    pub fn is_damaged(&self) -> bool {
        self.kept(Kept::Damaged).load(Relaxed) != 0
    }

    /// Records that a recovery met damage ([`is_damaged`](Self::is_damaged)).
    pub fn set_damaged(&self) {
        self.kept(Kept::Damaged).store(1, Relaxed);
    }

    /// Returns the units of [`UNIT`] blocks that have space in the file below. They cannot be
    /// derived.
    pub(crate) fn provisioned(&self) -> &Bitmap {
        &self.tables.provisioned
    }

    /// Returns the number of blocks without space in the file below that may get some. They are
    /// free.
    #[inline]
    pub fn unprovisioned(&self) -> u64 {
        self.hidden().saturating_sub(self.withheld())
    }

    /// Returns the number of blocks without space in the file below.
    #[inline]
    pub(crate) fn hidden(&self) -> u64 {
        self.kept(Kept::Hidden).load(Relaxed)
    }

    /// Sets the number of blocks without space.
    pub(crate) fn set_hidden(&self, blocks: u64) {
        self.kept(Kept::Hidden).store(blocks, Relaxed);
    }

    /// Adds to the number of blocks without space.
    pub(crate) fn add_hidden(&self, blocks: i64) {
        self.kept(Kept::Hidden).fetch_add(blocks as u64, Relaxed);
    }

    /// Returns the number of blocks that the region has and the pool may not take: its length less
    /// its size (resize-Z3).
    #[inline]
    pub(crate) fn withheld(&self) -> u64 {
        self.kept(Kept::Withheld).load(Relaxed)
    }

    /// Sets the number of blocks that the pool may not take.
    pub(crate) fn set_withheld(&self, blocks: u64) {
        self.kept(Kept::Withheld).store(blocks, Relaxed);
    }

    /// Returns whether accesses to inodes of this kind change their times.
    #[inline]
    pub fn records_access(&self, kind: FileKind) -> bool {
        let bit = if kind == FileKind::Dir { NO_DIR_TIMES } else { NO_FILE_TIMES };
        self.kept(Kept::AccessTimes).load(Relaxed) & bit == 0
    }

    /// Returns whether each recorded access changes the times, rather than as `relatime` would.
    #[inline]
    pub fn records_each_access(&self) -> bool {
        self.kept(Kept::AccessTimes).load(Relaxed) & STRICT != 0
    }

    /// Sets which accesses update access times, for all processes that use the pool (as
    /// `pool::Engine::record_access`).
    pub fn record_access(&self, files: bool, dirs: bool, strictly: bool) {
        let bits = [(!files, NO_FILE_TIMES), (!dirs, NO_DIR_TIMES), (strictly, STRICT)];
        let bits = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit);
        self.kept(Kept::AccessTimes).store(bits, Relaxed);
    }

    /// Returns whether operations may leave their last fence to the next one
    /// ([`pool::DurabilityMode::Ordered`]).
    #[inline]
    pub fn leaves_fences(&self) -> bool {
        self.kept(Kept::LeavesFences).load(SeqCst) != 0
    }

    /// Sets the mode of durability, for all processes that use the pool.
    pub fn set_durability(&self, mode: DurabilityMode) {
        let leaves = mode == DurabilityMode::Ordered;
        self.kept(Kept::LeavesFences).store(leaves.into(), SeqCst);
    }

    /// Returns which calls wait for the backing store.
    #[inline]
    pub fn through(&self) -> WaitingCalls {
        match self.kept(Kept::Through).load(Relaxed) {
            0 => WaitingCalls::Nothing,
            1 => WaitingCalls::Syncs,
            _ => WaitingCalls::Writes,
        }
    }

    /// Sets which calls wait for the backing store, for all processes that use the pool.
    pub fn set_through(&self, through: WaitingCalls) {
        self.kept(Kept::Through).store(through as u64, Relaxed);
    }

    /// Returns the settings that the engine stored when the state was made, in its own encoding: 0
    /// for unset ones.
    pub fn settings(&self) -> [u64; SETTINGS] {
        self.arena.table(self.tables.settings)[0].each_ref().map(|word| word.load(Relaxed))
    }

    /// Stores the settings. The process that makes the state calls this before others can enter.
    pub fn set_settings(&self, settings: &[u64; SETTINGS]) {
        let words = &self.arena.table(self.tables.settings)[0];
        words.iter().zip(settings).for_each(|(to, word)| to.store(*word, Relaxed));
    }

    /// Records that part of the pool, or of this state, is gone: whatever an operation has read may
    /// be zeros.
    #[cold]
    pub(crate) fn lost(&self) -> Errno {
        if !self.told_loss.swap(true, Relaxed) {
            self.set_damaged();
            if self.arena.is_lost() {
                tracing::error!(
                    "the shared state of the pool in /dev/shm was truncated: nothing can be read or changed any more \
                     (EIO). End the programs that use the pool, unmount it, and mount it again"
                );
            } else {
                tracing::error!(
                    "the pool's file was truncated, or its memory is broken: nothing can be read or changed any more \
                     (EIO). Unmount the pool, and bring back a copy of the file"
                );
            }
        }
        Errno::IO
    }

    /// Implements [`vfs::FileSystem::version`]: the version of the inode's lock, together with the
    /// number of derivations, because the lock starts again with the derived state.
    #[inline]
    pub fn version(&self, ino: Ino) -> Option<u64> {
        let of_lock = self.vinode(ino).ok()?.lock.begin_optimistic()?.version();
        Some(self.kept(Kept::Derivations).load(Relaxed) << 32 | u64::from(of_lock))
    }

    /// Returns the [version](Self::version) that an inode will have when the caller, which holds
    /// its lock exclusively, gives the lock back. `None` if another writer had the lock since
    /// `version`.
    pub fn version_after(&self, ino: Ino, version: u64) -> Result<Option<u64>> {
        let (derivations, of_lock) = (version >> 32, version as u32);
        let is_first = self.vinode(ino)?.lock.is_first_since_version(of_lock)
            && derivations == self.kept(Kept::Derivations).load(Relaxed) & u64::from(u32::MAX);
        Ok(is_first.then(|| derivations << 32 | u64::from(of_lock.wrapping_add(2))))
    }

    /// Returns the number of changes of the mount.
    #[inline]
    pub(crate) fn mount_changes(&self) -> &AtomicU64 {
        &self.arena.table(self.tables.mount_changes)[0]
    }

    /// Returns the space that the files gained and the backing store has to have.
    #[inline]
    pub fn growth(&self) -> Growth<'_> {
        Growth::new(&self.arena.table(self.tables.growth)[0])
    }

    /// Returns the counts of what the backing store lacks.
    #[inline]
    pub fn dirty(&self) -> DirtyCounts<'_> {
        DirtyCounts::new(&self.arena.table(self.tables.dirty)[0])
    }

    /// Returns the notifications for servers.
    pub(crate) fn unnamed(&self) -> &[Unnamed] {
        self.arena.table(self.tables.unnamed)
    }

    pub(crate) fn openings(&self) -> &Openings {
        &self.tables.openings
    }

    pub(crate) fn serving(&self) -> &[AtomicU64] {
        self.arena.table(self.tables.serving)
    }

    /// Returns the readers without a copy.
    #[inline]
    pub fn pins(&self) -> &Pins {
        &self.tables.pins
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// Returns the derived state of an inode; `ESTALE` for a number that no inode of this pool can
    /// have.
    #[inline]
    pub fn vinode(&self, ino: Ino) -> Result<&V> {
        self.inodes().get(ino.0 as usize).filter(|_| ino.0 != 0).ok_or(Errno::STALE)
    }

    /// Returns the derived states of all inodes, by number; the first is unused.
    #[inline]
    pub fn inodes(&self) -> &[V] {
        self.arena.table(self.tables.inodes)
    }

    /// Prefetches the derived state of an inode.
    #[inline]
    pub fn prefetch_vinode(&self, ino: Ino) {
        self.arena.prefetch(self.tables.inodes, ino.0 as usize);
    }

    #[inline]
    fn free_numbers(&self) -> &AtomicU64 {
        &self.arena.table(self.tables.free_numbers)[0]
    }

    /// Marks an inode number as used; returns whether it was free.
    pub fn mark_inode(&self, ino: Ino) -> bool {
        let fresh = self.tables.numbers.set(&self.arena, ino.0);
        if fresh {
            self.free_numbers().fetch_sub(1, Relaxed);
        }
        fresh
    }

    /// Claims a free inode number: one below `slots`, for which the engine has room, or else a
    /// higher one, for which it must make room. The search starts at `hint`. `ENOSPC` if none is
    /// free, or if the arena lacks memory.
    pub fn claim_number(&self, hint: u64, slots: u64) -> Result<Ino> {
        self.claim_numbers(hint, slots, 1).map(|run| Ino(run.start))
    }

    /// As [`claim_number`](Self::claim_number), for up to `most` numbers that follow each other.
    pub fn claim_numbers(&self, hint: u64, slots: u64, most: u64) -> Result<Range<u64>> {
        if self.arena.is_short() {
            return Err(Errno::NOSPC);
        }
        let numbers = &self.tables.numbers;
        let claim = |within| numbers.claim(&self.arena, within, most);
        let (all, free) = self.inode_counts();
        let room = all - free + 1 < slots;
        let run = room
            .then(|| claim(hint..slots).or_else(|| claim(0..hint.min(slots))))
            .flatten()
            .or_else(|| claim(slots..numbers.len()))
            .ok_or(Errno::NOSPC)?;
        self.free_numbers().fetch_sub(run.end - run.start, Relaxed);
        Ok(run)
    }

    /// Gives an inode number back; returns whether it was used.
    pub fn release_number(&self, ino: Ino) -> bool {
        let was_used = self.tables.numbers.clear(&self.arena, ino.0);
        if was_used {
            self.free_numbers().fetch_add(1, Relaxed);
        }
        was_used
    }

    /// Returns how many of these inode numbers are in use.
    pub(crate) fn count_numbers(&self, numbers: Range<u64>) -> u64 {
        self.tables.numbers.count_range(&self.arena, numbers)
    }

    /// Returns the number of inode numbers, and the number of unused ones.
    pub fn inode_counts(&self) -> (u64, u64) {
        (self.tables.numbers.len() - 1, self.free_numbers().load(Relaxed))
    }

    // --- references -----------------------------------------------------------------------------

    /// Prefetches the count that this process needs to add a reference.
    #[inline]
    pub fn prefetch_refs(&self, ino: Ino) {
        self.tables.refs.prefetch(&self.arena, ino);
    }

    /// Adds a reference of this process.
    #[inline]
    pub fn add_ref(&self, ino: Ino, v: &V) {
        if self.tables.refs.are_kept()
            && let Ok(process) = self.arena.process()
        {
            self.tables.refs.add(&self.arena, process, ino);
        }
        // Sequentially consistent with the reads of lookups without a lock: see `hold_optimistic`.
        v.refs.fetch_add(1, SeqCst);
    }

    /// Returns whether a process holds references to an inode.
    pub fn holds(&self, process: usize, ino: Ino) -> bool {
        self.tables.refs.get(&self.arena, process, ino) > 0
    }

    /// Takes back up to `n` references that a process holds; returns whether no reference is left
    /// at all.
    pub fn drop_refs(&self, process: usize, ino: Ino, v: &V, n: u64) -> bool {
        let n = self.tables.refs.take(&self.arena, process, ino, n);
        let had = v.refs.fetch_update(AcqRel, Acquire, |have| Some(have.saturating_sub(n)));
        had.unwrap_or(0) <= n
    }

    /// Calls `each` with the inodes that a process holds and the number of its references. Returns
    /// the number of counts read.
    pub(crate) fn for_each_ref(&self, process: usize, each: impl FnMut(Ino, u64)) -> usize {
        self.tables.refs.for_each(&self.arena, process, each)
    }

    /// Clears the references and mappings of a dead process.
    pub(crate) fn clear_counts(&self, process: usize) -> io::Result<()> {
        let counts = [self.tables.refs, self.tables.mappings];
        counts.iter().try_for_each(|counts| counts.clear(&self.arena, process))
    }

    /// Counts that this process may map an inode. `EBUSY` if the inode has mappings of the other
    /// kind (by the kernel, or direct), `EMFILE` if there are too many.
    pub fn add_mapping(&self, ino: Ino, v: &V, mapper: Mapper) -> Result<()> {
        let process = self.arena.process()?;
        if !v.mappings.add(mapper, 1) {
            let is_direct = mapper != Mapper::Kernel;
            return Err(if v.mappings.are_direct() == is_direct {
                Errno::MFILE
            } else {
                Errno::BUSY
            });
        }
        if self.tables.mappings.add_part(&self.arena, process, ino, mapper.field()) {
            return Ok(());
        }
        let _ = v.mappings.take(mapper, 1);
        Err(Errno::MFILE)
    }

    /// Takes back up to `n` mappings that a process counts; returns whether no process has one
    /// left.
    pub(crate) fn drop_mappings(
        &self,
        process: usize,
        ino: Ino,
        v: &V,
        (mapper, n): (Mapper, u64),
    ) -> bool {
        let n = self.tables.mappings.take_part(&self.arena, process, ino, mapper.field(), n) as u32;
        v.mappings.take(mapper, n)
    }

    /// Calls `each` with the inodes that a process may map, the kind, and its count. Returns the
    /// number of counts read.
    pub(crate) fn for_each_mapping(
        &self,
        process: usize,
        mut each: impl FnMut(Ino, Mapper, u64),
    ) -> usize {
        self.tables.mappings.for_each(&self.arena, process, |ino, count| {
            for mapper in Mapper::ALL {
                let (shift, max) = mapper.field();
                let part = count >> shift & max;
                if part > 0 {
                    each(ino, mapper, part);
                }
            }
        })
    }

    // --- locks ----------------------------------------------------------------------------------

    /// Guards the shape of the directory tree: held while a directory moves to another parent.
    pub fn lock_topology(&self) -> Result<GlobalLock<'_>> {
        self.lock_global(&self.arena.table(self.tables.topology)[0])
    }

    /// Takes a lock that concerns more than some inodes.
    pub fn lock_global<'a>(&'a self, lock: &'a RwLock) -> Result<GlobalLock<'a>> {
        self.wait_for(lock, LockMode::Exclusive)?;
        Ok(GlobalLock(lock))
    }

    /// Takes a lock; `ERESTART` if the operation has to leave and start over (session-E3 in
    /// `arena`), `EINTR` if the thread for which it is done was killed.
    #[inline]
    fn wait_for(&self, lock: &RwLock, mode: LockMode) -> Result<()> {
        if lock.try_lock(mode) { Ok(()) } else { self.wait_long_for(lock, mode) }
    }

    /// Sleeps until it has the lock. Errors are those of [`wait_for`](Self::wait_for).
    #[cold]
    fn wait_long_for(&self, lock: &RwLock, mode: LockMode) -> Result<()> {
        let (mut wait, mut is_killed) = (None, false);
        let taken = lock.lock_while(mode, || {
            wait.get_or_insert_with(|| self.arena.begin_wait()).look();
            is_killed = caller::is_killed();
            !is_killed && !self.arena.should_give_up()
        });
        match taken {
            true => Ok(()),
            false if is_killed => Err(Errno::INTR),
            false => Err(Errno::RESTART),
        }
    }

    /// Locks one inode for reading.
    #[inline]
    pub fn lock_shared(&self, ino: Ino) -> Result<Locks<'_>> {
        self.lock(LockMode::Shared, &[ino])
    }

    /// Locks inodes, in ascending order, for changing.
    #[inline]
    pub fn lock_exclusive(&self, inos: &[Ino]) -> Result<Locks<'_>> {
        debug_assert!(inos.is_sorted_by(|a, b| a < b), "{inos:?}");
        self.lock(LockMode::Exclusive, inos)
    }

    /// Locks inodes, in this order. After an error no lock is held.
    #[inline]
    fn lock(&self, mode: LockMode, inos: &[Ino]) -> Result<Locks<'_>> {
        let mut locks = Locks { held: SmallVec::new(), mode };
        for ino in inos {
            let lock = &self.vinode(*ino)?.lock;
            self.wait_for(lock, mode)?;
            locks.held.push(lock);
        }
        Ok(locks)
    }
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
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        self.held.iter().rev().for_each(|lock| lock.unlock(self.mode));
    }
}
