//! The derived state that all engines have, and locks.

use crate::derived::counts::Counts;
use crate::derived::delegations::Delegations;
use crate::derived::inodes::{Inode, Mapper};
use crate::derived::names::{NameEntry, NameIndex};
use crate::derived::openings::Openings;
use crate::derived::unnamed::{SERVERS, Unnamed};
use arena::atomic::AtomicU64;
use arena::{Arena, Bitmap, HashIndex, Layout, LockMode, Pins, RwLock, Span};
use smallvec::SmallVec;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::*};
use vfs::{Errno, FileKind, Ino, Result};

/// Bits of [`Kept::AccessTimes`]: accesses to directories do not change their times, nor those to anything else; each
/// access changes them, not only one that `relatime` would record.
const NO_DIR_TIMES: u64 = 1;
const NO_FILE_TIMES: u64 = 2;
const STRICT: u64 = 4;

/// What cannot be derived: words that stay when everything else is derived anew.
#[derive(Clone, Copy)]
enum Kept {
    /// Key of the name hash.
    Seed,
    /// Whether a recovery met damage.
    Damaged,
    /// How often everything else was derived anew.
    Derivations,
    /// What accesses are recorded for, and when.
    AccessTimes,
}

/// Words of [`State::settings`].
pub const SETTINGS: usize = 17;

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Inode numbers, with 0, which none has.
    pub inodes: u64,
    /// Blocks that can wait for readers without a copy.
    pub blocks: u64,
    /// Lines of the name index.
    pub buckets: usize,
    /// Names beyond those that its lines have room for, at the most.
    pub names: usize,
}

/// Where the tables are.
struct Tables<V> {
    kept: Span<AtomicU64>,
    settings: Span<[AtomicU64; SETTINGS]>,
    /// How often the mount has changed ([`mounts::MountEvents`]): in a line of its own, which stays in every
    /// cache.
    mount_changes: Span<AtomicU64>,
    unnamed: Span<Unnamed>,
    /// References that each process holds, and mappings that it counts.
    refs: Counts,
    mappings: Counts,
    openings: Openings,
    /// Which mount each process serves ([`mounts::MountEvents::begin_serving`]).
    serving: Span<AtomicU64>,
    delegations: Delegations,
    pins: Pins,
    inodes: Span<V>,
    /// Which inode numbers are used.
    numbers: Bitmap,
    free_numbers: Span<AtomicU64>,
    /// Guards which directory is below which.
    topology: Span<RwLock>,
    names: HashIndex<NameEntry>,
}

/// The state before it has memory. What an engine adds to the layout is derived, too.
pub struct Plan<V> {
    /// Where everything is.
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
    /// Tells mounts of this process apart.
    pub id: u64,
    /// Whether the log has been told that part of the medium is gone.
    told_loss: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl<V: Inode> Plan<V> {
    /// For a pool that one process uses, or several.
    pub fn new(is_shared: bool, sizes: Sizes) -> Self {
        let (mut l, processes) = match is_shared {
            true => (Layout::shared(), arena::PROCESSES),
            false => (Layout::default(), 0),
        };
        let inodes = sizes.inodes as usize;
        let kept = l.table(8);
        let settings = l.table(1);
        let mount_changes = l.table(1);
        let refs = Counts::plan(&mut l, processes, inodes);
        let mappings = Counts::plan(&mut l, processes, inodes);
        let unnamed = l.table(SERVERS);
        let openings = Openings::plan(&mut l, processes.max(1));
        let serving = l.table(processes.max(1));
        let delegations = Delegations::plan(&mut l, processes);
        let pins = Pins::plan(&mut l, sizes.blocks, processes.max(1));
        l.begin_derived();
        let tables = Tables {
            kept,
            settings,
            mount_changes,
            unnamed,
            refs,
            mappings,
            openings,
            serving,
            delegations,
            pins,
            inodes: l.table(inodes),
            numbers: Bitmap::plan(&mut l, sizes.inodes),
            free_numbers: l.table(8),
            topology: l.table(1),
            names: HashIndex::plan(&mut l, sizes.buckets, sizes.names),
        };
        Self { layout: l, tables }
    }

    /// The state in fresh memory, keyed by `seed`; empty, but for what [`State::clear`] does.
    pub fn begin(self, arena: Arena, seed: u64) -> State<V> {
        arena.table(self.tables.kept)[Kept::Seed as usize].store(seed, Relaxed);
        self.join(arena)
    }

    /// The state in memory that others use.
    pub fn join(self, arena: Arena) -> State<V> {
        let seed = arena.table(self.tables.kept)[Kept::Seed as usize].load(Acquire);
        arena.hold_newcomers();
        State {
            names: NameIndex::new(self.tables.names, seed),
            tables: self.tables,
            arena,
            id: NEXT_ID.fetch_add(1, Relaxed),
            told_loss: AtomicBool::new(false),
        }
    }
}

impl<V: Inode> State<V> {
    /// Begins with no names and no inodes. Gives huge pages to so many bytes of what lookups meet: of names and inodes those
    /// that come first.
    pub fn clear(&self, huge: usize) {
        if huge > 0 {
            self.names.back(&self.arena, huge);
            self.arena.back(self.tables.inodes, 0..huge / 2 / size_of::<V>());
        }
        self.tables.numbers.init(&self.arena);
        self.tables.numbers.set(&self.arena, 0);
        self.free_numbers().store(self.tables.numbers.len() - 1, Relaxed);
    }

    /// Forgets all that can be derived, so that it can be derived anew. Nobody else may be at it.
    pub(crate) fn start_over(&self) -> io::Result<()> {
        self.kept(Kept::Derivations).fetch_add(1, Relaxed);
        self.arena.clear_derived()
    }

    #[inline]
    fn kept(&self, which: Kept) -> &AtomicU64 {
        &self.arena.table(self.tables.kept)[which as usize]
    }

    /// Whether a recovery met damage: nothing may be changed until a check.
    pub fn is_damaged(&self) -> bool {
        self.kept(Kept::Damaged).load(Relaxed) != 0
    }

    /// See [`is_damaged`](Self::is_damaged).
    pub fn set_damaged(&self) {
        self.kept(Kept::Damaged).store(1, Relaxed);
    }

    /// Whether accesses change times.
    #[inline]
    pub fn records_access(&self, kind: FileKind) -> bool {
        let bit = if kind == FileKind::Dir { NO_DIR_TIMES } else { NO_FILE_TIMES };
        self.kept(Kept::AccessTimes).load(Relaxed) & bit == 0
    }

    /// Whether each access does, where any do.
    #[inline]
    pub fn records_each_access(&self) -> bool {
        self.kept(Kept::AccessTimes).load(Relaxed) & STRICT != 0
    }

    /// Changes that, for all who use the pool.
    pub fn record_access(&self, files: bool, dirs: bool, strictly: bool) {
        let bits = [(!files, NO_FILE_TIMES), (!dirs, NO_DIR_TIMES), (strictly, STRICT)];
        let bits = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit);
        self.kept(Kept::AccessTimes).store(bits, Relaxed);
    }

    /// What the engine was told when the state was made, in its own words: 0 where nobody said anything.
    pub fn settings(&self) -> [u64; SETTINGS] {
        self.arena.table(self.tables.settings)[0].each_ref().map(|word| word.load(Relaxed))
    }

    /// Says that: who makes the state, before others get in.
    pub fn set_settings(&self, settings: &[u64; SETTINGS]) {
        let words = &self.arena.table(self.tables.settings)[0];
        words.iter().zip(settings).for_each(|(to, word)| to.store(*word, Relaxed));
    }

    /// Part of the pool, or of this state, is gone: whatever an operation has read may be zeros.
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

    /// See [`vfs::FileSystem::version`]: that of the inode's lock, which begins anew with what is
    /// derived.
    #[inline]
    pub fn version(&self, ino: Ino) -> Option<u64> {
        let of_lock = self.vinode(ino).ok()?.lock.begin_optimistic()?.version();
        Some(self.kept(Kept::Derivations).load(Relaxed) << 32 | u64::from(of_lock))
    }

    /// How often the mount has changed.
    #[inline]
    pub(crate) fn mount_changes(&self) -> &AtomicU64 {
        &self.arena.table(self.tables.mount_changes)[0]
    }

    /// What servers are told.
    pub(crate) fn unnamed(&self) -> &[Unnamed] {
        self.arena.table(self.tables.unnamed)
    }

    /// Files that others read and write by themselves.
    pub fn delegations(&self) -> &Delegations {
        &self.tables.delegations
    }

    pub(crate) fn openings(&self) -> &Openings {
        &self.tables.openings
    }

    pub(crate) fn serving(&self) -> &[AtomicU64] {
        self.arena.table(self.tables.serving)
    }

    /// Readers without a copy.
    #[inline]
    pub fn pins(&self) -> &Pins {
        &self.tables.pins
    }

    // --- inodes ---------------------------------------------------------------------------------

    /// The derived state of an inode; `ESTALE` for a number that no inode of this pool can have.
    #[inline]
    pub fn vinode(&self, ino: Ino) -> Result<&V> {
        self.inodes().get(ino.0 as usize).filter(|_| ino.0 != 0).ok_or(Errno::STALE)
    }

    /// All of them, by number; the first is nobody's.
    #[inline]
    pub fn inodes(&self) -> &[V] {
        self.arena.table(self.tables.inodes)
    }

    /// Announces that the derived state of an inode is looked at next.
    #[inline]
    pub fn prefetch_vinode(&self, ino: Ino) {
        self.arena.prefetch(self.tables.inodes, ino.0 as usize);
    }

    #[inline]
    fn free_numbers(&self) -> &AtomicU64 {
        &self.arena.table(self.tables.free_numbers)[0]
    }

    /// Marks an inode number as used; whether it was free.
    pub fn mark_inode(&self, ino: Ino) -> bool {
        let fresh = self.tables.numbers.set(&self.arena, ino.0);
        if fresh {
            self.free_numbers().fetch_sub(1, Relaxed);
        }
        fresh
    }

    /// Claims a free inode number: one below `slots`, which the engine has room for, if there is any, from `hint` on.
    pub fn claim_number(&self, hint: u64, slots: u64) -> Result<Ino> {
        if self.arena.is_short() {
            return Err(Errno::NOSPC);
        }
        let numbers = &self.tables.numbers;
        let claim = |within| numbers.claim(&self.arena, within, 1);
        let (all, free) = self.inode_counts();
        let room = all - free + 1 < slots;
        let run = room
            .then(|| claim(hint..slots).or_else(|| claim(0..hint.min(slots))))
            .flatten()
            .or_else(|| claim(slots..numbers.len()))
            .ok_or(Errno::NOSPC)?;
        self.free_numbers().fetch_sub(1, Relaxed);
        Ok(Ino(run.start))
    }

    /// Gives an inode number back; whether it was used.
    pub fn release_number(&self, ino: Ino) -> bool {
        let was_used = self.tables.numbers.clear(&self.arena, ino.0);
        if was_used {
            self.free_numbers().fetch_add(1, Relaxed);
        }
        was_used
    }

    /// Inode numbers in all, and those not in use.
    pub fn inode_counts(&self) -> (u64, u64) {
        (self.tables.numbers.len() - 1, self.free_numbers().load(Relaxed))
    }

    // --- references -----------------------------------------------------------------------------

    /// Announces that this process adds a reference next.
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
        // In one order with what lookups without a lock see: the engine's tell of it.
        v.refs.fetch_add(1, SeqCst);
    }

    /// Whether a process holds references to an inode.
    pub fn holds(&self, process: usize, ino: Ino) -> bool {
        self.tables.refs.get(&self.arena, process, ino) > 0
    }

    /// Takes back up to `n` references that a process holds; whether that left none at all.
    pub fn drop_refs(&self, process: usize, ino: Ino, v: &V, n: u64) -> bool {
        let n = self.tables.refs.take(&self.arena, process, ino, n);
        let had = v.refs.fetch_update(AcqRel, Acquire, |have| Some(have.saturating_sub(n)));
        had.unwrap_or(0) <= n
    }

    /// Calls `each` for the inodes that a process holds, with how often. Returns how many counts were looked at.
    pub(crate) fn for_each_ref(&self, process: usize, each: impl FnMut(Ino, u64)) -> usize {
        self.tables.refs.for_each(&self.arena, process, each)
    }

    /// Forgets what a dead process held and mapped.
    pub(crate) fn clear_counts(&self, process: usize) -> io::Result<()> {
        let counts = [self.tables.refs, self.tables.mappings];
        counts.iter().try_for_each(|counts| counts.clear(&self.arena, process))
    }

    /// Counts that this process may map an inode. `EBUSY` where others do so in the other way, `EMFILE` where there are too
    /// many.
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

    /// Takes back up to `n` mappings that a process counts; whether that left none of anybody's.
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

    /// Calls `each` for the inodes that a process may map, with how often it counts that. Returns how many counts
    /// were looked at.
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

    /// Takes a lock; `ERESTART` where the operation has to leave and start over (arena, session-E3).
    #[inline]
    fn wait_for(&self, lock: &RwLock, mode: LockMode) -> Result<()> {
        if lock.try_lock(mode) { Ok(()) } else { self.wait_long_for(lock, mode) }
    }

    #[cold]
    fn wait_long_for(&self, lock: &RwLock, mode: LockMode) -> Result<()> {
        let mut wait = None;
        let taken = lock.lock_while(mode, || {
            wait.get_or_insert_with(|| self.arena.begin_wait()).look();
            !self.arena.should_give_up()
        });
        if taken { Ok(()) } else { Err(Errno::RESTART) }
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
