//! Pre-allocation (§3.3): space that files have beyond their size, and null files.
//!
//! A *null file* is a run of blocks without an inode: it is taken from a file that is removed, and
//! given to one that is created. The media do not record null files, and a scan frees them. (The
//! paper keeps inode and space together; here an inode without a name is free, and its number costs
//! one bit.)
//!
//! - prealloc-A1: *reclaimable* blocks, those of null files and those beyond the size of files, are
//!   claimed and not counted as free. Their number is kept separately. So an operation that has
//!   reserved blocks finds them (space-P2), and `statfs` adds both numbers.
//! - prealloc-A2: reclaimable blocks may hold old bytes of any file. They come into a file only
//!   beyond its size, and an operation that grows the file over them overwrites them durably before
//!   the size includes them (map-M2).
//! - prealloc-A3: a run becomes a null file only while there are no readers without a copy: such a
//!   reader may be reading it.
//! - prealloc-A4: all processes that share a pool use the settings of the first
//!   ([`crate::settings`]).

use crate::layout::{BLOCK, BlockNo, Map, Run, Unverified};
use crate::volatile::Volatile;
use arena::atomic::AtomicU64;
use arena::{Layout, Span};
use namespace::VInode;
use std::sync::atomic::Ordering::*;

/// The number of shards of null files, each mostly used by threads of its own.
const SHARDS: u64 = 16;
/// Words of a shard: the filled places ([`Filled`]), then a ring of packed runs; 0: none.
const SHARD_WORDS: usize = 64;
type Shard = [AtomicU64; SHARD_WORDS];

/// The filled places of a ring: `len` from `head` on, the oldest first. This is approximate while
/// other threads change the ring. The places themselves are exact, and each is exchanged by one
/// instruction.
#[derive(Clone, Copy)]
struct Filled {
    head: usize,
    len: usize,
}

impl Filled {
    fn unpack(word: u64) -> Self {
        Self { head: word as u32 as usize, len: (word >> 32) as usize }
    }

    fn pack(self) -> u64 {
        self.head as u64 | (self.len as u64) << 32
    }

    fn of(shard: &Shard) -> Self {
        Self::unpack(shard[0].load(Relaxed))
    }

    fn update(shard: &Shard, change: impl Fn(Self) -> Self) {
        let new = |word| Some(change(Self::unpack(word)).pack());
        // The update cannot fail, as the closure always returns a value.
        let _ = shard[0].fetch_update(Relaxed, Relaxed, new);
    }
}

/// The most null files possible.
pub const NULL_FILES_MAX: u64 = SHARDS * (SHARD_WORDS as u64 - 1);

/// Two lines, because the prefetcher pairs them; only the first word is used.
type Counter = [AtomicU64; 16];
const COUNTERS: usize = 64;

/// The places of the state of pre-allocation.
#[derive(Clone, Copy)]
pub struct Plan {
    reclaimable: Span<Counter>,
    nulls: Span<Shard>,
    /// Whether too little free space lies in whole units, as the collector last found.
    scarce: Span<AtomicU64>,
}

impl Plan {
    /// Plans the state.
    pub fn new(layout: &mut Layout) -> Self {
        Self {
            reclaimable: layout.table(COUNTERS),
            nulls: layout.table(SHARDS as usize),
            scarce: layout.table(1),
        }
    }
}

impl Volatile {
    /// Returns the number of free blocks that must remain after a pre-allocation. Blocks that the
    /// pool could take from the file below count as free.
    pub fn blocks_kept_free(&self) -> u64 {
        let s = &self.settings.prealloc;
        let by_use = self.size_in_blocks() * (100 - s.collect_above) / 100;
        let kept = by_use.max(s.collect_below / BLOCK);
        kept.saturating_sub(self.unprovisioned()).max(crate::space::KEEP)
    }

    // --- what is reclaimable --------------------------------------------------------------------

    /// Adds to the number of reclaimable blocks (prealloc-A1).
    fn add_reclaimable(&self, n: i64) {
        if n != 0 {
            let counters = self.arena.table(self.prealloc.reclaimable);
            let own = &counters[self.arena.owner() as usize % COUNTERS];
            own[0].fetch_add(n as u64, Relaxed);
        }
    }

    /// Returns the number of blocks that collecting would free at once; approximate while other
    /// threads change it.
    pub fn reclaimable(&self) -> u64 {
        let counters = self.arena.table(self.prealloc.reclaimable);
        let sum = counters.iter().fold(0u64, |sum, c| sum.wrapping_add(c[0].load(Relaxed)));
        (sum as i64).max(0) as u64
    }

    /// Returns the number of blocks beyond the size of a file, as last recorded.
    #[inline]
    pub fn preallocated(&self, v: &VInode) -> u64 {
        v.dir.load(Relaxed).into()
    }

    /// Records the number of blocks beyond the size of a file, under the file's exclusive lock.
    #[inline]
    pub fn set_preallocated(&self, v: &VInode, blocks: u64) {
        let had = self.preallocated(v);
        if had != blocks {
            v.dir.store(blocks as u32, Relaxed);
            self.add_reclaimable(blocks as i64 - had as i64);
        }
    }

    // --- null files -----------------------------------------------------------------------------

    fn shard(&self, nth: u64) -> &Shard {
        &self.arena.table(self.prealloc.nulls)[(nth % SHARDS) as usize]
    }

    /// Returns the most null files in this shard.
    fn shard_max(&self, nth: u64) -> usize {
        let max = self.settings.prealloc.null_max;
        (max / SHARDS + u64::from(nth % SHARDS < max % SHARDS)) as usize
    }

    /// Takes a null file for a new file: it becomes the pre-allocated blocks of `v`.
    pub fn take_null(&self, v: &VInode) -> Option<Run> {
        if !self.settings.prealloc.enabled {
            return None;
        }
        let run = self.pop()?;
        v.add_blocks(run.count as i64);
        v.dir.store(run.count as u32, Relaxed);
        Some(run)
    }

    fn pop(&self) -> Option<Run> {
        let own = u64::from(self.arena.owner());
        (own..own + SHARDS).find_map(|nth| self.pop_of(nth))
    }

    /// Takes a null file out of a shard: the newest, which may be in the caches, or with `wear` the
    /// oldest, which was written the longest time ago (§5).
    fn pop_of(&self, nth: u64) -> Option<Run> {
        let (shard, places) = (self.shard(nth), self.shard_max(nth));
        let Filled { head, len } = Filled::of(shard);
        if len == 0 {
            return None;
        }
        let wear = self.settings.prealloc.wear;
        let place =
            |i: usize| 1 + (if wear { head + i } else { head + len + places - 1 - i }) % places;
        let run = (0..places).find_map(|i| take(&shard[place(i)]))?;
        Filled::update(shard, |Filled { head, len }| Filled {
            head: if wear { (head + 1) % places } else { head },
            len: len.saturating_sub(1),
        });
        Some(run)
    }

    /// Makes a null file of a claimed run without an owner; returns whether there was room for one
    /// more.
    fn push(&self, run: Run) -> bool {
        let own = u64::from(self.arena.owner());
        (own..own + SHARDS).any(|nth| {
            let (shard, places) = (self.shard(nth), self.shard_max(nth));
            let Filled { head, len } = Filled::of(shard);
            let put = |i: usize| {
                let place = &shard[1 + (head + len + i) % places];
                place.load(Relaxed) == 0
                    && place.compare_exchange(0, Map::Run(run).pack(), AcqRel, Relaxed).is_ok()
            };
            let is_put = len < places && (0..places).any(put);
            if is_put {
                Filled::update(shard, |filled| Filled { len: filled.len + 1, ..filled });
            }
            is_put
        })
    }

    /// Makes a null file of the blocks of a file whose removal is durable; returns the rest, which
    /// is to become free.
    pub fn keep_as_null(&self, run: Run) -> Run {
        let s = &self.settings.prealloc;
        // A reader without a copy may be reading it (prealloc-A3).
        if !s.enabled || s.null_max == 0 || self.pins().any(&self.arena) {
            return run;
        }
        // If space is short, the collector would free it, and until then it could separate free
        // blocks that must be contiguous.
        if !self.free.take(&self.arena, 0, self.blocks_kept_free()) {
            return run;
        }
        let kept = run.first(s.null_blocks);
        if self.is_in_the_way(kept) || !self.push(kept) {
            return run;
        }
        self.add_reclaimable(kept.count as i64);
        run.skip(kept.count)
    }

    /// Records, for all processes, whether too little of the free space lies in aligned units that
    /// are wholly free. The collector computes that.
    pub fn note_scarce(&self, is_scarce: bool) {
        let word = &self.arena.table(self.prealloc.scarce)[0];
        if word.load(Relaxed) != u64::from(is_scarce) {
            word.store(is_scarce.into(), Relaxed);
        }
    }

    /// Returns whether to free a run rather than keep it as a null file: whole units are scarce,
    /// and its unit is not nearly full.
    fn is_in_the_way(&self, run: Run) -> bool {
        if self.arena.table(self.prealloc.scarce)[0].load(Relaxed) == 0 {
            return false;
        }
        let each = self.settings.prealloc.unit;
        let unit = run.start.get() / each;
        self.blocks.count_range(&self.arena, unit * each..(unit + 1) * each) <= each - each / 8
    }

    /// Returns the number of null files.
    pub fn null_files(&self) -> u64 {
        let of = |shard: &Shard| shard[1..].iter().filter(|word| word.load(Relaxed) != 0).count();
        self.arena.table(self.prealloc.nulls).iter().map(|shard| of(shard) as u64).sum()
    }

    /// Makes a null file of free blocks; returns whether that was possible.
    pub fn make_null(&self) -> bool {
        let blocks = self.settings.prealloc.null_blocks;
        if !self.free.take(&self.arena, blocks, self.blocks_kept_free()) {
            return false;
        }
        let Some(run) = self.claim_run(blocks, blocks) else {
            self.give_back(blocks);
            return false;
        };
        let is_kept = self.push(run);
        if is_kept {
            self.add_reclaimable(blocks as i64);
        } else {
            self.release(&[run]);
        }
        is_kept
    }

    /// Frees null files until `left` are left or `blocks` blocks are freed; returns the number of
    /// freed blocks.
    pub fn free_nulls(&self, left: u64, blocks: u64) -> u64 {
        let mut extra = self.null_files().saturating_sub(left);
        let mut freed = 0;
        for nth in 0..SHARDS {
            while extra > 0 && freed < blocks {
                let Some(run) = self.pop_of(nth) else { break };
                self.add_reclaimable(-(run.count as i64));
                self.release(&[run]);
                freed += run.count;
                extra -= 1;
            }
        }
        freed
    }
}

/// Takes the run out of a word of a shard.
fn take(word: &AtomicU64) -> Option<Run> {
    if word.load(Relaxed) == 0 {
        return None;
    }
    match Unverified::unpack(word.swap(0, AcqRel)) {
        Unverified::Run { start, count } => Some(Run { start: BlockNo::new(start)?, count }),
        _ => None,
    }
}
