//! Pre-allocation (§3.3): space that files have beyond their size, and null files.
//!
//! A *null file* is a run of blocks without an inode: it is taken from a file that is removed, and given to one that is
//! created. Nothing on the media says so, and a scan frees it. (The paper keeps inode and space together; here an inode
//! without a name is free, and its number costs one bit.)
//!
//! - prealloc-A1: *reclaimable* blocks, those of null files and those beyond the size of files, are claimed and not counted as
//!   free. Their number is kept apart. So who has reserved blocks finds them (space-P2), and who asks how much space there
//!   is, is told both.
//! - prealloc-A2: what is reclaimable may hold anybody's old bytes. It comes into a file beyond its size only, and whoever lets the
//!   file grow over it overwrites it durably before the size says so (map-M2).
//! - prealloc-A3: a run becomes a null file only while nobody reads without a copy: who does may be reading it.
//! - prealloc-A4: who shares a pool does as those who opened it first ([`crate::settings`]).

use crate::layout::{BLOCK, BlockNo, Map, Run, Unverified};
use crate::volatile::Volatile;
use arena::atomic::AtomicU64;
use arena::{Layout, Span};
use namespace::VInode;
use std::sync::atomic::Ordering::*;

/// Null files are kept in so many places, each mostly used by threads of its own.
const SHARDS: u64 = 16;
/// Words of one: where null files are in it ([`Filled`]), then a ring of packed runs; 0: none.
const SHARD_WORDS: usize = 64;
type Shard = [AtomicU64; SHARD_WORDS];

/// Which places of a ring are taken: `len` from `head` on, the oldest first. While others are at it, more or less: the places
/// themselves say what is there, and are exchanged by one instruction.
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
        // It always changes.
        let _ = shard[0].fetch_update(Relaxed, Relaxed, new);
    }
}

/// The most null files that there can be.
pub const NULL_FILES_MAX: u64 = SHARDS * (SHARD_WORDS as u64 - 1);

/// Two lines, because the prefetcher pairs them; the first word counts.
type Counter = [AtomicU64; 16];
const COUNTERS: usize = 64;

/// Where the state of pre-allocation lies.
#[derive(Clone, Copy)]
pub struct Plan {
    reclaimable: Span<Counter>,
    nulls: Span<Shard>,
    /// Whether too little of what is free lies in whole units, as the collector saw it last.
    scarce: Span<AtomicU64>,
}

impl Plan {
    /// Plans it.
    pub fn new(layout: &mut Layout) -> Self {
        Self {
            reclaimable: layout.table(COUNTERS),
            nulls: layout.table(SHARDS as usize),
            scarce: layout.table(1),
        }
    }
}

impl Volatile {
    /// Free blocks of which nothing is pre-allocated.
    pub fn blocks_kept_free(&self) -> u64 {
        let s = &self.settings.prealloc;
        let by_use = self.blocks.len() * (100 - s.collect_above) / 100;
        by_use.max(s.collect_below / BLOCK).max(crate::space::KEEP)
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

    /// How many blocks can be had at once by collecting them; while others are at it, more or less.
    pub fn reclaimable(&self) -> u64 {
        let counters = self.arena.table(self.prealloc.reclaimable);
        let sum = counters.iter().fold(0u64, |sum, c| sum.wrapping_add(c[0].load(Relaxed)));
        (sum as i64).max(0) as u64
    }

    /// Blocks beyond the size of a file, as last noted.
    #[inline]
    pub fn preallocated(&self, v: &VInode) -> u64 {
        v.dir.load(Relaxed).into()
    }

    /// Notes how many blocks a file has beyond its size. Under its exclusive lock.
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

    /// How many null files the shard may have.
    fn shard_max(&self, nth: u64) -> usize {
        let max = self.settings.prealloc.null_max;
        (max / SHARDS + u64::from(nth % SHARDS < max % SHARDS)) as usize
    }

    /// Takes a null file for a new one, whose pre-allocated blocks it becomes.
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

    /// Takes a null file out of a shard: the last that came, which may be in the caches, or the first, which has been written
    /// longest ago (§5).
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

    /// Makes a null file of a run that is claimed and nobody's; whether there was room for one more.
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

    /// Makes a null file of the blocks of a file that is removed, durably; what of them is to become free.
    pub fn keep_as_null(&self, run: Run) -> Run {
        let s = &self.settings.prealloc;
        // prealloc-A3.
        if !s.enabled || s.null_max == 0 || self.pins().any(&self.arena) {
            return run;
        }
        // Where space is short, the collector would free it, and until then it would be in the way of what has to lie together.
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

    /// Notes whether whole units are scarce.
    pub fn note_scarce(&self, is_scarce: bool) {
        let word = &self.arena.table(self.prealloc.scarce)[0];
        if word.load(Relaxed) != u64::from(is_scarce) {
            word.store(is_scarce.into(), Relaxed);
        }
    }

    /// Whether a run is better freed, as whole units are scarce and it lies in one that is not nearly full.
    fn is_in_the_way(&self, run: Run) -> bool {
        if self.arena.table(self.prealloc.scarce)[0].load(Relaxed) == 0 {
            return false;
        }
        let each = self.settings.prealloc.unit;
        let unit = run.start.get() / each;
        self.blocks.count_range(&self.arena, unit * each..(unit + 1) * each) <= each - each / 8
    }

    /// How many null files there are.
    pub fn null_files(&self) -> u64 {
        let of = |shard: &Shard| shard[1..].iter().filter(|word| word.load(Relaxed) != 0).count();
        self.arena.table(self.prealloc.nulls).iter().map(|shard| of(shard) as u64).sum()
    }

    /// Makes a null file of free blocks; whether that was possible.
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

    /// Frees null files, until `left` are left or `blocks` blocks are free; how many blocks that were.
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

/// Takes what a word of a shard holds.
fn take(word: &AtomicU64) -> Option<Run> {
    if word.load(Relaxed) == 0 {
        return None;
    }
    match Unverified::unpack(word.swap(0, AcqRel)) {
        Unverified::Run { start, count } => Some(Run { start: BlockNo::new(start)?, count }),
        _ => None,
    }
}
