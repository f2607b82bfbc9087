//! Space: the search for free blocks, and the blocks that an operation takes and gives back.
//!
//! - space-P1: a block's bit is set while its owner is reachable from the superblock, or while an
//!   operation in flight has claimed it.
//! - space-P2: the count of free blocks never exceeds the number of clear bits and of blocks that
//!   are claimed for inodes and directories (apart-A1 in [`namespace`]), so that an operation that
//!   has reserved blocks finds them. They need not be contiguous.
//! - space-P3: the bounds on runs of free blocks never hide any free block (free_runs-R1): all
//!   blocks are cleared through [`arena::FreeRuns`].
//!
//! A freed block waits while a reader without a copy may still use it ([`arena::Pins`]).
//!
//! - space-P4: a request for less than 2 MiB breaks no aligned unit of 2 MiB while a broken unit
//!   can serve it. That holds even if the broken unit has less room to grow than requested, or
//!   none. So whole units stay whole for files that need them, and for huge pages (WineFS' rule). A
//!   file of nearly 2 MiB that is appended to counts as one that needs them.
//!
//! Each search takes the lowest place in the pool that serves it, so that used blocks stay
//! together. Threads that compete take different ones of the lowest places. (With `wear`, a search
//! starts where the last one ended.)

use crate::layout::{BLOCK, BlockNo, EXTENT, Run};
use crate::volatile::Volatile;
use arena::Search;
use smallvec::SmallVec;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use vfs::Errno;

/// The block numbers at which a thread starts its searches, in the pool that it used last.
#[derive(Clone, Copy)]
struct Hints {
    pool: u64,
    /// With `wear`: in broken units, and in all.
    blocks: [u64; 2],
    /// The number of suitable broken units to leave for other threads.
    skip: u64,
}

os::thread_cell! {
    fn hints -> Hints, "scmfs_hints", 32
}

/// The number of units over which competing threads spread.
const SPREAD: u64 = 4;

/// Blocks of an aligned unit.
const UNIT: u64 = EXTENT / BLOCK;

/// Files longer than this that are appended to get a whole unit: seven eighths of one.
const NEARLY_UNIT: u64 = UNIT - UNIT / 8;

/// Blocks that are reserved for operations which free space, or keep existing content.
pub const KEEP: u64 = 32;

impl Volatile {
    /// Returns the hints of the calling thread for this pool.
    fn hints(&self) -> Hints {
        let h = hints().get();
        if h.pool == self.id {
            return h;
        }
        let blocks = if self.settings.prealloc.wear { self.any_block() } else { 0 };
        Hints { pool: self.id, blocks: [blocks; 2], skip: 0 }
    }

    /// Returns the start of the first search with `wear`: random for each mount, so that no end of
    /// the pool is written more often.
    fn any_block(&self) -> u64 {
        RandomState::new().hash_one(self.id) % self.blocks.len()
    }

    /// Runs `body` with `blocks` blocks reserved, so that it cannot run out of space half-way.
    /// `keep` more blocks must stay free. If `body` succeeds, the blocks it replaced become free;
    /// if it fails, those it took.
    pub fn transact<T, E: From<Errno>>(
        &self,
        blocks: u64,
        keep: u64,
        body: impl FnOnce(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if !self.reserve(blocks, keep) {
            return Err(Errno::NOSPC.into());
        }
        self.transact_reserved(blocks, body)
    }

    /// Reserves blocks if `keep` more stay free; returns whether it did.
    pub fn reserve(&self, blocks: u64, keep: u64) -> bool {
        let is_reserved = blocks == 0 || self.free.take(&self.arena, blocks, keep);
        if !is_reserved {
            self.note_demand(blocks + keep);
        }
        is_reserved
    }

    /// As [`transact`](Self::transact), with blocks that were [reserved](Self::reserve).
    pub fn transact_reserved<T, E: From<Errno>>(
        &self,
        blocks: u64,
        body: impl FnOnce(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut txn = Txn {
            v: self,
            reserved: blocks,
            is_apart: false,
            taken: SmallVec::new(),
            freed: SmallVec::new(),
        };
        let result = body(&mut txn);
        let Txn { taken, freed, reserved, .. } = txn;
        let back = self.clear_runs(if result.is_ok() { &freed } else { &taken });
        self.give_back(reserved + back);
        result
    }

    /// Gives back blocks outside of a transaction, after the removal of a file.
    pub fn release(&self, runs: &[Run]) {
        let cleared = self.clear_runs(runs);
        self.give_back(cleared);
    }

    /// Lets blocks be claimed again, at once or when no reader can be using them any more. Returns
    /// the number released at once.
    fn clear_runs(&self, runs: &[Run]) -> u64 {
        if self.pins().any(&self.arena) {
            let each = |run: &Run| run.bits().map(|block| block as u32);
            let blocks: Vec<u32> = runs.iter().flat_map(each).collect();
            if self.pins().defer(&self.arena, &blocks) {
                self.clear_deferred();
                return 0;
            }
        }
        for run in runs {
            self.free_runs.clear(&self.arena, run.bits());
        }
        runs.iter().map(|run| run.count).sum()
    }

    /// Lets blocks be claimed again that had to wait for readers, if no reader is left (space-P3).
    pub fn clear_deferred(&self) {
        self.clear_deferred_by(|block| self.free_runs.clear(&self.arena, block..block + 1));
    }

    /// Claims this many contiguous blocks. Prefers a place with `room` contiguous free blocks in
    /// all, so that the owner can grow in place (space-P4).
    pub fn claim_run(&self, blocks: u64, room: u64) -> Option<Run> {
        let broken = || {
            rooms(room - blocks)
                .find_map(|more| self.claim(blocks, blocks + more, SearchPlace::Broken))
        };
        let anywhere = || {
            let aligned =
                if blocks >= UNIT { self.claim(blocks, room, SearchPlace::Aligned) } else { None };
            let roomy =
                || if room > blocks { self.claim(blocks, room, SearchPlace::Any) } else { None };
            aligned.or_else(roomy).or_else(|| self.claim(blocks, blocks, SearchPlace::Any))
        };
        if blocks < UNIT { broken().or_else(anywhere) } else { anywhere() }
    }

    /// Claims this many contiguous blocks at a place with `room` contiguous free blocks in all.
    fn claim(&self, blocks: u64, room: u64, place: SearchPlace) -> Option<Run> {
        let mut h = self.hints();
        let which = usize::from(place != SearchPlace::Broken);
        let from = if self.settings.prealloc.wear { h.blocks[which] } else { 0 };
        let mut was_beaten = false;
        let mut claim = |from: u64, skip: u64| {
            let within = from..self.blocks.len();
            if place == SearchPlace::Aligned {
                return self.free_runs.claim_aligned(&self.arena, within, blocks, room);
            }
            let leaves_whole = place == SearchPlace::Broken;
            let mut search = Search { bits: blocks, room, leaves_whole, skip, was_beaten: false };
            let found = self.free_runs.claim(&self.arena, within, &mut search);
            was_beaten |= search.was_beaten;
            found
        };
        let mut go_on = |skip| {
            let found = claim(from, skip);
            if from > 0 { found.or_else(|| claim(0, skip)) } else { found }
        };
        let skipping =
            if place == SearchPlace::Broken && h.skip > 0 { go_on(h.skip) } else { None };
        let start = skipping.or_else(|| go_on(0))?;
        let run = Run::claimed(start, blocks);
        h.skip = (h.skip + u64::from(was_beaten)) % SPREAD;
        h.blocks[which] = run.bits().end;
        hints().set(h);
        Some(run)
    }
}

/// The kind of place to search for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchPlace {
    /// In broken units.
    Broken,
    /// At the start of a whole unit, the first of several.
    Aligned,
    /// Anywhere.
    Any,
}

/// Returns the numbers of additional blocks of room to try in this order: fewer each time, 0 at
/// last.
fn rooms(room: u64) -> impl Iterator<Item = u64> {
    let mut rooms: SmallVec<[u64; 3]> = SmallVec::from_buf([room, room / 4, 0]);
    rooms.dedup();
    rooms.into_iter()
}

/// The blocks that an operation in flight took and replaced.
pub struct Txn<'a> {
    v: &'a Volatile,
    reserved: u64,
    /// Whether the blocks are those of inodes or of a directory.
    is_apart: bool,
    taken: SmallVec<[Run; 4]>,
    freed: SmallVec<[Run; 4]>,
}

impl Txn<'_> {
    /// Takes this many contiguous reserved blocks, of unspecified content, if there are any.
    /// Prefers a place with `room` contiguous free blocks, so that the owner can grow in place.
    pub fn take_run(&mut self, blocks: u64, room: u64) -> Option<Run> {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        if let Some(run) = self.take_of_apart(blocks) {
            return Some(run);
        }
        let kept = || if blocks == 1 { self.v.apart.take_any(self.v) } else { None };
        let run = self.v.claim_run(blocks, room.max(blocks));
        let run = run.or_else(|| kept().map(|block| Run::claimed(block, 1)))?;
        self.note(run);
        Some(run)
    }

    /// From now on, takes single blocks away from the data of files: they are kept when the files
    /// around them are removed, and would break up the space that becomes free.
    pub fn take_apart(&mut self) {
        self.is_apart = true;
    }

    /// In a thin pool, takes a block of those for inodes and directories, if that is wanted and
    /// possible.
    fn take_of_apart(&mut self, blocks: u64) -> Option<Run> {
        if !self.is_apart || blocks != 1 || self.v.unprovisioned() == 0 {
            return None;
        }
        let run = Run::claimed(self.v.apart.take(self.v, 0, 0)?, 1);
        self.note(run);
        Some(run)
    }

    /// As [`take_run`](Self::take_run), with as many of the `prealloc` blocks as there are
    /// contiguous. A run nearly as long as a unit gets a whole one.
    pub fn take_with_prealloc(&mut self, blocks: u64, prealloc: u64) -> Option<Run> {
        assert!(blocks + prealloc <= self.reserved, "an operation reserved too few blocks");
        let claim = |more: u64, place| self.v.claim(blocks + more, blocks + more, place);
        let broken = || rooms(prealloc).find_map(|more| claim(more, SearchPlace::Broken));
        let anywhere = || {
            let aligned = || claim(prealloc, SearchPlace::Aligned);
            aligned()
                .or_else(|| claim(prealloc, SearchPlace::Any))
                .or_else(|| claim(0, SearchPlace::Any))
        };
        let run = if blocks <= NEARLY_UNIT { broken().or_else(anywhere) } else { anywhere() }?;
        self.note(run);
        Some(run)
    }

    /// As [`take_run`](Self::take_run), for a run that may grow: takes `prealloc` more blocks, if
    /// as many are contiguous. If pre-allocation will move a growing run anyway, the place needs no
    /// room to grow.
    pub fn take_to_grow(&mut self, blocks: u64, prealloc: u64, may_move: bool) -> Option<Run> {
        if prealloc > 0 {
            return self.take_with_prealloc(blocks, prealloc);
        }
        let needs_room = !may_move || !self.v.settings.prealloc.enabled;
        self.take_run(blocks, if needs_room { 2 * blocks } else { blocks })
    }

    /// Takes the first blocks of a unit, for a file longer than a unit that is appended to;
    /// otherwise as [`take_run`](Self::take_run).
    pub fn take_extent(&mut self, blocks: u64) -> Option<Run> {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let run = self
            .v
            .claim(blocks, UNIT, SearchPlace::Aligned)
            .or_else(|| self.v.claim_run(blocks, UNIT))?;
        self.note(run);
        Some(run)
    }

    /// Takes this many contiguous reserved blocks within a range, if there are any.
    pub fn take_within(&mut self, within: Range<u64>, blocks: u64) -> Option<Run> {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let mut search = Search { bits: blocks, room: blocks, ..Search::default() };
        let start = self.v.free_runs.claim(&self.v.arena, within, &mut search)?;
        let run = Run::claimed(start, blocks);
        self.note(run);
        Some(run)
    }

    /// Takes the reserved blocks from `start` on, if they are free.
    pub fn take_at(&mut self, start: BlockNo, blocks: u64) -> bool {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let run = Run { start, count: blocks };
        let got = self.v.free_runs.claim_exactly(&self.v.arena, run.bits());
        if got {
            self.note(run);
        }
        got
    }

    /// Takes reserved blocks behind a run: `blocks` and `prealloc` more, or only `blocks`. Returns
    /// the number, if they were free.
    pub fn take_behind(&mut self, run: Run, blocks: u64, prealloc: u64) -> Option<u64> {
        let all = blocks + prealloc;
        if prealloc > 0 && self.take_at(run.end(), all) {
            return Some(all);
        }
        self.take_at(run.end(), blocks).then_some(blocks)
    }

    /// Takes up to `most` contiguous reserved blocks: as many as are contiguous.
    pub fn take_some(&mut self, most: u64) -> Run {
        let mut want = most.min(self.reserved);
        assert!(want > 0, "an operation reserved too few blocks");
        if let Some(run) = self.take_of_apart(want) {
            return run;
        }
        loop {
            if let Some(run) = self.v.claim_run(want, want) {
                self.note(run);
                return run;
            }
            if want == 1
                && let Some(block) = self.v.apart.take_any(self.v)
            {
                let run = Run::claimed(block, 1);
                self.note(run);
                return run;
            }
            // By space-P2 a block is free, even if the search has passed its place.
            want = self.v.free_runs.longest(&self.v.arena, want).max(1);
        }
    }

    /// Takes one reserved block.
    pub fn take(&mut self) -> BlockNo {
        self.take_some(1).start
    }

    /// Counts a run that was claimed from the reservation as taken.
    fn note(&mut self, run: Run) {
        let is_claimed = |block: u64| self.v.blocks.get(&self.v.arena, block);
        debug_assert!(
            [run.bits().start, run.bits().end - 1].into_iter().all(is_claimed),
            "space-P1: blocks {:?} are taken and not claimed",
            run.bits()
        );
        debug_assert!(run.bits().all(|block| self.v.has_space(block)), "thin-T1: {run:?}");
        self.reserved -= run.count;
        self.taken.push(run);
    }

    /// Records blocks that become free if the operation succeeds.
    pub fn free(&mut self, run: Run) {
        if run.count > 0 {
            self.freed.push(run);
        }
    }

    /// Returns the number of blocks taken, less those freed.
    pub fn delta(&self) -> i64 {
        let sum = |runs: &[Run]| runs.iter().map(|run| run.count as i64).sum::<i64>();
        sum(&self.taken) - sum(&self.freed)
    }
}
