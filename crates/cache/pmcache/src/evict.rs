//! Eviction: makes room in a pool, by making absent what the backing store has.
//!
//! A policy of [`eviction`], S3-FIFO by default, chooses among extents: the blocks of a file within
//! 1 MiB that are in the pool and marked clean. If they do not suffice, one pass writes changes
//! back. If that does not suffice either, directories lose their names, the deepest ones first.
//!
//! Programs use the pool from their own processes, so the server sees no hits. The pool has a bit
//! for each inode that was used ([`Backed::take_use`]). A hand goes round all inodes with extents
//! while content comes into the pool. It takes the bit, and marks a hit on all extents of the
//! inode.
//!
//! - evict-E1: only what is marked clean becomes absent, which the pool checks under its locks
//!   (backed-K3). This module only chooses. A wrong weight, or an extent that is gone, costs time.
//! - evict-E2: an extent leaves the policy before its content becomes absent. It enters when
//!   content has come or was marked clean. So the policy has all clean content, except what a
//!   thread is about to enter, and what was in the pool when it was attached: the walk enters that.
//! - evict-E3: an extent belongs to one life of an inode number, by the generation. If that life is
//!   over, the extent leaves when the hand or a victim shows it, or when the next life enters.
//! - evict-E4: one thread at a time makes room; callers that wait get its result. A run does each
//!   step once. It is successful only if something became absent.
//! - evict-E5: a use is no hit if content of the inode has come since the last look, because the
//!   call that needed it makes a use. The reads of write-back are no uses.
//! - evict-E6: the root keeps its names, which every path needs. So does a directory to which a
//!   process has a reference: its cookies would lead elsewhere. A program that lists a directory
//!   over several calls without a reference may miss names, or see them twice. The kernel has
//!   references to all that it remembers. If nothing else can go, a run makes it forget what no
//!   process uses ([`Loading::when_full`]), and waits for these references a limited time.
//! - evict-E7: a directory whose load was interrupted may lose its names, but that is no success.
//!   Otherwise a directory that is larger than the pool would be loaded for ever.
//! - evict-E8: content that was loaded since the last run does not count as room for a call: the
//!   call may need it. So a run that finds no other goes on with write-back and names. It is
//!   successful still, so that content can pass through a pool that is full of changes. A call that
//!   needs more than there is room for ends by the number of its attempts.
//! - evict-E9: content that a pin covers does not become absent by eviction, and does not enter the
//!   policy. If it was pinned later, it leaves the policy without effect. The end of the pin enters
//!   it.
//!
//! Memory: the policy takes at most 64 bytes an extent, and the map of extents about 40. The walk
//! takes 8 bytes for each inode that it has not met yet.

use crate::counters::{count, counters};
use crate::loading::Loading;
use crate::{BLOCK, lock};
use backing::Backing;
use eviction::{MarkSlot, Marks, Policy, PolicyKind};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use vfs::{ABSENT, Attr, Backed, Errno, FileKind, Ino, ROOT, Result, StatFs};

/// Bytes of a file that are evicted together.
const EXTENT: u64 = 1 << 20;
/// Bytes of an inode in the pool, at least.
const INODE: u64 = 128;
/// Most bytes that a step of [`Loading::keep_room`] evicts.
const STEP: u64 = 1 << 20;
/// Most inodes, and bytes of content, that a step of the walk looks at before it stops.
const WALK_INODES: usize = 1024;
const WALK_BYTES: u64 = 256 << 20;
/// Looks for directories that the kernel has forgotten, and the time between two.
const FORGET_LOOKS: u32 = 50;
const FORGET_PAUSE: Duration = Duration::from_millis(10);

/// The options of eviction.
#[derive(Clone, Debug)]
pub struct EvictOptions {
    /// The policy that chooses what is evicted.
    pub policy: PolicyKind,
    /// The number of free bytes below which [`Loading::keep_room`] begins to evict; it ends at
    /// [`high`](Self::high).
    pub low: u64,
    /// The number of free bytes at which it ends.
    pub high: u64,
    /// The number of bytes that [`Loading::make_room`] frees beyond those that a call needs.
    pub reserve: u64,
    /// The maximum number of bytes that pins cover (pinned-F1).
    pub pin_max: u64,
    /// The maximum number of bytes that the pins of one user other than root cover.
    pub pin_user_max: u64,
    /// The number of bytes that come into the pool while the hand goes round once.
    pub round: u64,
}

impl EvictOptions {
    /// Returns the default options for a pool of this size: 5 to 10 % are kept free.
    pub fn for_pool(pool: &StatFs) -> Self {
        let bytes = pool.blocks * u64::from(pool.block_size);
        Self {
            policy: PolicyKind::default(),
            low: bytes / 20,
            high: bytes / 10,
            reserve: (bytes / 64).clamp(32 * BLOCK, 16 << 20),
            pin_max: bytes / 5 * 2,
            pin_user_max: bytes / 5 * 2 / 5,
            round: (bytes / 32).max(BLOCK),
        }
    }
}

counters! {
    /// The counts of evictions since the pool was attached.
    EvictCounters, EvictCounts:
    /// Calls of `make_room`.
    calls,
    /// Runs of `make_room`; the other calls had the result of a run of another thread.
    runs,
    /// Passes of write-back that runs began.
    write_backs,
    /// Bytes of content evicted by extents.
    evicted_bytes,
    /// Extents that were evicted, with content.
    evicted_extents,
    /// Directories that lost their names.
    evicted_dirs,
    /// Hits that were marked, by extents.
    hits,
}

/// Returns the extent with byte `at` of a file. All content behind 4 PiB counts as the last extent.
fn extent_of(at: u64) -> u32 {
    u32::try_from(at / EXTENT).unwrap_or(u32::MAX)
}

/// Returns the bytes of an extent.
fn bytes_of(extent: u32) -> Range<u64> {
    let start = u64::from(extent) * EXTENT;
    start..if extent == u32::MAX { u64::MAX } else { start + EXTENT }
}

/// Returns the extents with bytes in `range`, and the number of blocks in each.
fn extents_in(range: Range<u64>) -> impl Iterator<Item = (u32, u64)> {
    let last = if range.is_empty() { None } else { Some(extent_of(range.end - 1)) };
    let all = last.map(|last| extent_of(range.start)..=last);
    all.into_iter().flatten().map(move |extent| {
        let bytes = bytes_of(extent);
        let (start, end) = (range.start.max(bytes.start), range.end.min(bytes.end));
        (extent, (end - start).div_ceil(BLOCK))
    })
}

/// Returns the keys of the extents of an inode.
fn keys_of(ino: Ino) -> std::ops::RangeInclusive<u64> {
    // Derived state numbers fewer than 2^32 inodes.
    debug_assert!(ino.0 <= u32::MAX.into(), "{ino}");
    let first = ino.0 << 32;
    first..=first | u64::from(u32::MAX)
}

fn ino_of(key: u64) -> Ino {
    Ino(key >> 32)
}

/// One life of an inode number (evict-E3).
#[derive(Clone, Copy, PartialEq, Eq)]
struct InodeLife {
    ino: Ino,
    generation: u32,
}

/// An extent that can be evicted.
#[derive(Clone, Copy)]
struct EvictExtent {
    slot: MarkSlot,
    generation: u32,
    /// Its weight in the policy.
    blocks: u16,
    /// Whether content of it has come since the last look (evict-E5).
    is_new: bool,
    /// The number of runs before content was last loaded, modulo 256 (evict-E8).
    run: u8,
}

/// The extents, and the order in which they are evicted.
struct Order {
    policy: Box<dyn Policy>,
    marks: Arc<Marks>,
    /// Those that the policy has, by key: the inode in the high half, the extent in the low one.
    extents: BTreeMap<u64, EvictExtent>,
    /// The key at which the hand goes on.
    hand: u64,
    /// Bytes that have come since the hand last moved.
    entered: u64,
    /// The number of runs that have ended, modulo 256.
    runs: u8,
}

impl Order {
    /// Begins to enter extents of an inode: those of an earlier life leave.
    fn begin(&mut self, life: InodeLife) {
        let known = self.extents.range(keys_of(life.ino)).next();
        if known.is_some_and(|(_, extent)| extent.generation != life.generation) {
            self.remove_all(life.ino);
        }
    }

    /// Removes the extents of an inode.
    fn remove_all(&mut self, ino: Ino) {
        let keys: Vec<u64> = self.extents.range(keys_of(ino)).map(|(key, _)| *key).collect();
        for key in keys {
            self.extents.remove(&key);
            self.policy.remove(key);
        }
    }

    /// Enters an extent with content that was loaded, in addition to what it has.
    fn add(&mut self, life: InodeLife, number: u32, blocks: u64) {
        let known = self.extents.get(&key_of(life, number));
        let before = known.map_or(0, |extent| extent.blocks.into());
        self.put(life, number, before + blocks, (true, self.runs));
        self.entered += blocks * BLOCK;
    }

    /// Enters an extent with all of the clean content that it has.
    fn set(&mut self, life: InodeLife, number: u32, blocks: u64) {
        let known = self.extents.get(&key_of(life, number));
        let is_new = known.is_none_or(|extent| extent.is_new);
        let before = known.map_or(0, |extent| extent.blocks.into());
        self.put(life, number, blocks, (is_new, self.runs.wrapping_sub(1)));
        self.entered += blocks.saturating_sub(before) * BLOCK;
    }

    fn put(&mut self, life: InodeLife, number: u32, blocks: u64, (is_new, run): (bool, u8)) {
        let key = key_of(life, number);
        let blocks = blocks.min(EXTENT / BLOCK);
        let slot = self.policy.insert(key, blocks);
        let generation = life.generation;
        let extent = EvictExtent { slot, generation, blocks: blocks as u16, is_new, run };
        self.extents.insert(key, extent);
    }

    /// Takes the next victim out (evict-E2). Also returns whether it was loaded since the last run.
    fn take_victim(&mut self) -> Option<(InodeLife, u32, bool)> {
        let key = self.policy.victim(&mut |_| false)?;
        self.policy.remove(key);
        let EvictExtent { generation, run, .. } = self.extents.remove(&key)?;
        Some((InodeLife { ino: ino_of(key), generation }, key as u32, run == self.runs))
    }

    /// Returns the number of extents at which the hand has to look now.
    fn take_due(&mut self, round: u64) -> u64 {
        let due = self.extents.len() as u64 * self.entered.min(round) / round;
        if due > 0 {
            self.entered = 0;
        }
        due
    }

    /// Moves the hand across the next inode. Returns it, and the number of its extents.
    fn move_hand(&mut self) -> Option<(InodeLife, u64)> {
        let next = self.extents.range(self.hand..).next().or_else(|| self.extents.iter().next());
        let (key, EvictExtent { generation, .. }) = next?;
        let life = InodeLife { ino: ino_of(*key), generation: *generation };
        let keys = keys_of(life.ino);
        self.hand = keys.end().saturating_add(1);
        Some((life, self.extents.range(keys).count() as u64))
    }

    /// Notes what the hand has found at an inode; returns the number of hits.
    fn note_look(&mut self, ino: Ino, is_used: bool) -> u64 {
        let mut has_new = false;
        for (_, extent) in self.extents.range_mut(keys_of(ino)) {
            has_new |= std::mem::take(&mut extent.is_new);
        }
        // evict-E5.
        if !is_used || has_new {
            return 0;
        }
        let hit = self.extents.range(keys_of(ino)).map(|(_, extent)| extent.slot);
        hit.map(|slot| self.marks.touch(slot)).count() as u64
    }
}

fn key_of(life: InodeLife, number: u32) -> u64 {
    keys_of(life.ino).start() | u64::from(number)
}

/// The state that one thread at a time uses (evict-E4).
struct EvictTurn {
    /// The result of the last run.
    last: Result<bool>,
    /// Whether [`Loading::keep_room`] has begun and not ended.
    is_keeping: bool,
    /// Inodes that the walk has still to meet; `None`: it has not begun.
    unmet: Option<Vec<Ino>>,
}

/// The parts of the pool that can be evicted, and the options.
pub(crate) struct Evict {
    options: EvictOptions,
    order: Mutex<Order>,
    turn: Mutex<EvictTurn>,
    /// The number of runs that have ended.
    ended: AtomicU64,
    counts: EvictCounts,
    /// Makes the kernel forget what no process uses ([`Loading::when_full`]).
    forget: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Evict {
    pub(crate) fn new(options: EvictOptions) -> Self {
        let (policy, marks) = options.policy.policy();
        let order = Order { policy, marks, extents: BTreeMap::new(), hand: 0, entered: 0, runs: 0 };
        let turn = EvictTurn { last: Ok(false), is_keeping: false, unmet: None };
        let (order, turn) = (Mutex::new(order), Mutex::new(turn));
        Self {
            options,
            order,
            turn,
            ended: AtomicU64::new(0),
            counts: EvictCounts::default(),
            forget: OnceLock::new(),
        }
    }
}

/// The result of a run.
#[derive(Default)]
struct RoomRun {
    /// Bytes of content.
    freed: u64,
    /// Those among them that were loaded since the last run.
    fresh: u64,
    /// Whether a directory has lost names, as a success (evict-E7).
    has_names: bool,
    /// The first error.
    error: Option<Errno>,
}

impl RoomRun {
    /// Notes an error, which stops only what has it.
    fn note(&mut self, ino: Ino, error: Errno) {
        tracing::warn!(ino = ino.0, %error, "cannot evict");
        self.error.get_or_insert(error);
    }

    fn result(self) -> Result<bool> {
        let is_successful = self.freed > 0 || self.has_names;
        self.error.filter(|_| !is_successful).map_or(Ok(is_successful), Err)
    }
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Makes room after a call that needs about this number of bytes has failed with `ENOSPC`.
    /// Returns whether anything became free: then the call is worth repeating, a limited number of
    /// times. The caller holds no lock, and loads nothing.
    ///
    /// # Errors
    /// If nothing became free: the first error of write-back, or of the pool.
    pub fn make_room(&self, bytes: u64) -> Result<bool> {
        // The call may lack space below, not in the pool.
        if self.make_room_below(bytes) {
            return Ok(true);
        }
        self.make_room_in_pool(bytes)
    }

    /// As [`make_room`](Self::make_room), for a call that takes no space below.
    pub(crate) fn make_room_in_pool(&self, bytes: u64) -> Result<bool> {
        let evict = self.evict();
        let seen = evict.ended.load(Acquire);
        count(&evict.counts.calls, 1);
        let mut turn = lock(&evict.turn);
        if evict.ended.load(Relaxed) != seen {
            return turn.last;
        }
        count(&evict.counts.runs, 1);
        turn.last = self.run(bytes, &mut turn).result();
        let mut order = lock(&evict.order);
        order.runs = order.runs.wrapping_add(1);
        drop(order);
        evict.ended.fetch_add(1, Release);
        turn.last
    }

    /// Keeps some space free, by evicting content: one step of bounded length. Returns whether more
    /// is to be done.
    ///
    /// # Errors
    /// If nothing became free: the first error of the pool.
    pub fn keep_room(&self) -> Result<bool> {
        let EvictOptions { low, high, .. } = self.evict().options;
        let mut turn = lock(&self.evict().turn);
        self.look();
        let is_walking = self.walk(&mut turn)?;
        let free = self.free_bytes();
        turn.is_keeping = free < if turn.is_keeping { high } else { low };
        if !turn.is_keeping {
            return Ok(is_walking);
        }
        let mut run = RoomRun::default();
        self.evict_extents((high - free).min(STEP), &mut run);
        Ok(run.result()? || is_walking)
    }

    /// Returns the counts of evictions.
    pub fn evict_counters(&self) -> EvictCounters {
        self.evict().counts.snapshot()
    }

    /// Returns the number of extents that can be evicted, and the bytes of memory that the policy
    /// takes for them.
    pub fn evict_memory(&self) -> (usize, usize) {
        let order = lock(&self.evict().order);
        (order.extents.len(), order.policy.bytes_of_memory())
    }

    fn free_bytes(&self) -> u64 {
        self.pool().statfs().blocks_free * BLOCK
    }

    fn run(&self, bytes: u64, turn: &mut EvictTurn) -> RoomRun {
        let mut run = RoomRun::default();
        self.look();
        let (needed, free) = (bytes.max(BLOCK), self.free_bytes());
        // There may be space that the call cannot use, so some more is always freed.
        let least = needed.saturating_sub(free).max(BLOCK);
        let wanted = (needed + self.evict().options.reserve).saturating_sub(free).max(needed);
        loop {
            let is_walking = self.walk(turn).unwrap_or_else(|e| {
                run.note(ROOT, e);
                false
            });
            self.evict_extents(wanted, &mut run);
            if run.freed >= wanted || !is_walking {
                break;
            }
        }
        // evict-E8.
        if run.freed - run.fresh < least {
            count(&self.evict().counts.write_backs, 1);
            match self.write_back() {
                // It has logged the errors of inodes.
                Ok(written) => run.error = run.error.or(written.errors.first().map(|(_, e)| *e)),
                Err(e) => run.note(ROOT, e),
            }
            self.evict_extents(run.fresh + wanted, &mut run);
        }
        if run.freed - run.fresh < least {
            self.evict_directories(run.fresh + least, &mut run);
        }
        if run.freed == 0 && !run.has_names && run.error.is_none() {
            self.evict_forgotten(least, &mut run);
        }
        run
    }

    /// Sets what makes the kernel forget all that no process uses. It may return before that is
    /// done, and must not wait for a request of the kernel: a thread that answers one may call it.
    pub fn when_full(&self, forget: impl Fn() + Send + Sync + 'static) {
        let _ = self.evict().forget.set(Box::new(forget));
    }

    /// Makes the kernel forget names, and evicts those of directories (evict-E6).
    fn evict_forgotten(&self, bytes: u64, run: &mut RoomRun) {
        let Some(forget) = self.evict().forget.get() else { return };
        forget();
        for _ in 0..FORGET_LOOKS {
            std::thread::sleep(FORGET_PAUSE);
            self.evict_directories(bytes, run);
            if run.has_names || run.error.is_some() {
                return;
            }
        }
    }

    // --- content --------------------------------------------------------------------------------

    /// Evicts extents until the run has freed this number of bytes, or all are evicted.
    fn evict_extents(&self, bytes: u64, run: &mut RoomRun) {
        let evict = self.evict();
        while run.freed < bytes {
            let Some((life, number, is_fresh)) = lock(&evict.order).take_victim() else { return };
            let freed = match self.attr_of(life) {
                Some(_) => {
                    // evict-E9.
                    let Range { start, end } = bytes_of(number);
                    let start = start.max(self.pinned_bytes(life.ino, life.generation));
                    if start < end {
                        self.pool().evict_content(life.ino, start..end)
                    } else {
                        Ok(0)
                    }
                }
                None => Err(Errno::STALE),
            };
            match freed {
                // It has become dirty, or a hole.
                Ok(0) => {}
                Ok(freed) => {
                    count(&evict.counts.evicted_extents, 1);
                    count(&evict.counts.evicted_bytes, freed);
                    run.freed += freed;
                    run.fresh += if is_fresh { freed } else { 0 };
                }
                Err(Errno::STALE) => self.remove_life(life),
                Err(e) => run.note(life.ino, e),
            }
        }
    }

    /// Returns the attributes of an inode, unless that life of it is over.
    fn attr_of(&self, life: InodeLife) -> Option<Attr> {
        self.pool().getattr(life.ino).ok().filter(|attr| attr.generation == life.generation)
    }

    /// Removes the extents of a life that is over.
    fn remove_life(&self, life: InodeLife) {
        let mut order = lock(&self.evict().order);
        let known = order.extents.range(keys_of(life.ino)).next();
        if known.is_some_and(|(_, extent)| extent.generation == life.generation) {
            order.remove_all(life.ino);
        }
    }

    /// Notes that content of a file was loaded.
    pub(crate) fn note_loaded(&self, ino: Ino, range: Range<u64>) {
        let Ok(Attr { generation, .. }) = self.pool().getattr(ino) else { return };
        let life = InodeLife { ino, generation };
        let start = range.start.max(self.pinned_bytes(ino, generation));
        let mut order = lock(&self.evict().order);
        order.begin(life);
        extents_in(start..range.end).for_each(|(number, blocks)| order.add(life, number, blocks));
    }

    /// Waits until an eviction that has begun is over.
    pub(crate) fn end_eviction(&self) {
        drop(lock(&self.evict().turn));
    }

    /// Returns the options of eviction.
    pub(crate) fn evict_options(&self) -> &EvictOptions {
        &self.evict().options
    }

    /// Notes that content of an inode was marked clean. Returns the bytes of its clean content.
    pub(crate) fn note_clean(&self, ino: Ino) -> u64 {
        let Ok(Attr { generation, kind: FileKind::File, .. }) = self.pool().getattr(ino) else {
            return 0;
        };
        let life = InodeLife { ino, generation };
        let mut found: BTreeMap<u32, u64> = BTreeMap::new();
        let mut at = self.pinned_bytes(ino, generation);
        loop {
            let range = match self.pool().clean_range(ino, at) {
                Ok(Some(range)) => range,
                Ok(None) | Err(Errno::STALE) => break,
                Err(error) => {
                    tracing::warn!(ino = ino.0, %error, "cannot find its clean content");
                    break;
                }
            };
            at = range.end.next_multiple_of(BLOCK);
            for (number, blocks) in extents_in(range) {
                *found.entry(number).or_default() += blocks;
            }
        }
        let mut order = lock(&self.evict().order);
        order.begin(life);
        found.iter().for_each(|(number, blocks)| order.set(life, *number, *blocks));
        found.values().sum::<u64>() * BLOCK
    }

    /// Makes a step of the walk, which enters what was in the pool when it was attached. Returns
    /// whether there is more.
    fn walk(&self, turn: &mut EvictTurn) -> Result<bool> {
        let unmet = match &mut turn.unmet {
            Some(unmet) => unmet,
            None => {
                let mut all = Vec::new();
                self.each_inode(&mut |ino, _| all.push(ino))?;
                turn.unmet.insert(all)
            }
        };
        let (mut inodes, mut bytes) = (0, 0);
        while inodes < WALK_INODES
            && bytes < WALK_BYTES
            && let Some(ino) = unmet.pop()
        {
            bytes += self.note_clean(ino);
            inodes += 1;
        }
        Ok(!unmet.is_empty())
    }

    /// Moves the hand as far as it has to go for the content that has come.
    fn look(&self) {
        let evict = self.evict();
        let mut due = lock(&evict.order).take_due(evict.options.round);
        while due > 0 {
            let Some((life, extents)) = lock(&evict.order).move_hand() else { return };
            due = due.saturating_sub(extents);
            if self.attr_of(life).is_none() {
                self.remove_life(life);
                continue;
            }
            let is_used = self.pool().take_use(life.ino);
            count(&evict.counts.hits, lock(&evict.order).note_look(life.ino, is_used));
        }
    }

    // --- names ----------------------------------------------------------------------------------

    /// Evicts the names of directories until the run has freed about this number of bytes.
    fn evict_directories(&self, bytes: u64, run: &mut RoomRun) {
        let room = || {
            let StatFs { blocks_free, inodes_free, .. } = self.pool().statfs();
            (blocks_free * BLOCK).max(inodes_free * INODE)
        };
        let before = room();
        let dirs = self.directories().unwrap_or_else(|e| {
            run.note(ROOT, e);
            Vec::new()
        });
        for (dir, is_whole) in dirs.into_iter().rev() {
            if run.freed + room().saturating_sub(before) >= bytes {
                return;
            }
            match self.evict_names(dir) {
                Ok(true) => {
                    count(&self.evict().counts.evicted_dirs, 1);
                    run.has_names |= is_whole;
                }
                Ok(false) | Err(Errno::STALE | Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => run.note(dir, e),
            }
        }
    }

    /// Returns the directories that may have names, except the root (evict-E6): each before those
    /// in it, and whether it has all of its names.
    fn directories(&self) -> Result<Vec<(Ino, bool)>> {
        let (mut dirs, mut pending) = (Vec::new(), vec![ROOT]);
        while let Some(dir) = pending.pop() {
            let listed = self.pool().readdir(dir, 0, &mut |e| {
                if e.kind == FileKind::Dir && !matches!(e.name, b"." | b"..") {
                    pending.push(e.ino);
                }
                true
            });
            match listed {
                Ok(()) | Err(ABSENT) if dir != ROOT => dirs.push((dir, listed.is_ok())),
                Ok(()) | Err(ABSENT | Errno::STALE | Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(dirs)
    }
}
