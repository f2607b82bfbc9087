//! Space: which blocks are free, and what an operation takes and gives back.
//!
//! - space-P1: a block's bit is set while it belongs to something that is reachable from the superblock, or was claimed by an
//!   operation in flight.
//! - space-P2: the count of free blocks never exceeds the number of clear bits, so that who has reserved blocks finds
//!   them. That they lie together is not promised.
//! - space-P3: what is known of how free blocks lie together never hides any (free_runs-R1): all blocks are cleared through
//!   [`arena::FreeRuns`].
//!
//! A freed block that somebody may still be reading without a copy waits ([`arena::Pins`]).
//!
//! - space-P4: a request for less than 2 MiB breaks no aligned unit of 2 MiB as long as units that are broken already can serve
//!   it, with less room to grow than it asks for or with none: whole units stay whole for files that need them, and for huge
//!   pages (WineFS' rule). A file of nearly 2 MiB that is appended to counts as one that needs them.
//!
//! Each search takes the lowest place in the pool that serves it, so that what is used stays together; threads that meet there
//! take different ones of the lowest. (With `wear`, searches go on where the last one ended.)

use crate::layout::{BLOCK, BlockNo, EXTENT, Run};
use crate::volatile::Volatile;
use arena::Search;
use smallvec::SmallVec;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use vfs::Errno;

/// Where a thread looks first for what is free, in the pool it used last.
#[derive(Clone, Copy)]
struct Hints {
    pool: u64,
    /// With `wear`: in broken units, and in all.
    blocks: [u64; 2],
    /// How many broken units that would do are left for other threads.
    skip: u64,
}

os::thread_cell! {
    fn hints -> Hints, "scmfs_hints", 32
}

/// Threads that meet spread over so many units.
const SPREAD: u64 = 4;

/// Blocks of an aligned unit.
const UNIT: u64 = EXTENT / BLOCK;

/// What is longer and appended to gets a unit: seven eighths of one.
const NEARLY_UNIT: u64 = UNIT - UNIT / 8;

/// Blocks that only operations which free space, or keep what is there, may use.
pub const KEEP: u64 = 32;

impl Volatile {
    fn hints(&self) -> Hints {
        let h = hints().get();
        if h.pool == self.id {
            return h;
        }
        let blocks = if self.settings.prealloc.wear { self.any_block() } else { 0 };
        Hints { pool: self.id, blocks: [blocks; 2], skip: 0 }
    }

    /// Where turns begin: elsewhere after each mount, so that no end of the pool is written more often.
    fn any_block(&self) -> u64 {
        RandomState::new().hash_one(self.id) % self.blocks.len()
    }

    /// Runs `body` with `blocks` blocks set aside, so that it cannot run out of space half-way. `keep` blocks must stay
    /// free besides. If it succeeds the blocks it replaced become free; if it fails, those it took.
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

    /// Sets blocks aside, so that `keep` stay free besides; whether there were so many.
    pub fn reserve(&self, blocks: u64, keep: u64) -> bool {
        blocks == 0 || self.free.take(&self.arena, blocks, keep)
    }

    /// As [`transact`](Self::transact), with blocks that were [reserved](Self::reserve).
    pub fn transact_reserved<T, E: From<Errno>>(
        &self,
        blocks: u64,
        body: impl FnOnce(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut txn =
            Txn { v: self, reserved: blocks, taken: SmallVec::new(), freed: SmallVec::new() };
        let result = body(&mut txn);
        let Txn { taken, freed, reserved, .. } = txn;
        let back = self.clear_runs(if result.is_ok() { &freed } else { &taken });
        self.give_back(reserved + back);
        result
    }

    /// Gives blocks back outside of a transaction: those of a file that is gone.
    pub fn release(&self, runs: &[Run]) {
        let cleared = self.clear_runs(runs);
        self.give_back(cleared);
    }

    /// Lets blocks be claimed again, at once or when nobody can be reading them any more. Returns how many at once.
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

    /// Lets blocks be claimed again that had to wait for readers, if nobody reads any more (space-P3).
    pub fn clear_deferred(&self) {
        self.clear_deferred_by(|block| self.free_runs.clear(&self.arena, block..block + 1));
    }

    /// Claims so many blocks that lie behind each other; where `room` are free together, so that what grows can do so in place,
    /// if that is to be had (space-P4).
    pub fn claim_run(&self, blocks: u64, room: u64) -> Option<Run> {
        let broken = || {
            rooms(room - blocks).find_map(|more| self.claim(blocks, blocks + more, Place::Broken))
        };
        let anywhere = || {
            let aligned =
                if blocks >= UNIT { self.claim(blocks, room, Place::Aligned) } else { None };
            let roomy = || if room > blocks { self.claim(blocks, room, Place::Any) } else { None };
            aligned.or_else(roomy).or_else(|| self.claim(blocks, blocks, Place::Any))
        };
        if blocks < UNIT { broken().or_else(anywhere) } else { anywhere() }
    }

    /// Claims so many blocks of which `room` in all are free together.
    fn claim(&self, blocks: u64, room: u64, place: Place) -> Option<Run> {
        let mut h = self.hints();
        let which = usize::from(place != Place::Broken);
        let from = if self.settings.prealloc.wear { h.blocks[which] } else { 0 };
        let mut was_beaten = false;
        let mut claim = |from: u64, skip: u64| {
            let within = from..self.blocks.len();
            if place == Place::Aligned {
                return self.free_runs.claim_aligned(&self.arena, within, blocks, room);
            }
            let leaves_whole = place == Place::Broken;
            let mut search = Search { bits: blocks, room, leaves_whole, skip, was_beaten: false };
            let found = self.free_runs.claim(&self.arena, within, &mut search);
            was_beaten |= search.was_beaten;
            found
        };
        let mut go_on = |skip| {
            let found = claim(from, skip);
            if from > 0 { found.or_else(|| claim(0, skip)) } else { found }
        };
        let skipping = if place == Place::Broken && h.skip > 0 { go_on(h.skip) } else { None };
        let start = skipping.or_else(|| go_on(0))?;
        let run = Run::claimed(start, blocks);
        h.skip = (h.skip + u64::from(was_beaten)) % SPREAD;
        h.blocks[which] = run.bits().end;
        hints().set(h);
        Some(run)
    }
}

/// Where blocks are searched for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In units that are broken.
    Broken,
    /// From the beginning of a whole unit on, the first of several.
    Aligned,
    /// Wherever they are.
    Any,
}

/// How many blocks of room beside those that are needed are tried one after the other: fewer each time, none at last.
fn rooms(room: u64) -> impl Iterator<Item = u64> {
    let mut rooms: SmallVec<[u64; 3]> = SmallVec::from_buf([room, room / 4, 0]);
    rooms.dedup();
    rooms.into_iter()
}

/// The blocks that an operation in flight took and replaced.
pub struct Txn<'a> {
    v: &'a Volatile,
    reserved: u64,
    taken: SmallVec<[Run; 4]>,
    freed: SmallVec<[Run; 4]>,
}

impl Txn<'_> {
    /// Takes reserved blocks that lie behind each other, where there are so many; as the others, of unspecified
    /// content. Where `room` are free together, so that what grows can do so in place, if that is easy to have.
    pub fn take_run(&mut self, blocks: u64, room: u64) -> Option<Run> {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let run = self.v.claim_run(blocks, room.max(blocks))?;
        self.note(run);
        Some(run)
    }

    /// As [`take_run`](Self::take_run), with as much of `prealloc` as there is together. What is nearly as long as a unit gets
    /// one.
    pub fn take_with_prealloc(&mut self, blocks: u64, prealloc: u64) -> Option<Run> {
        assert!(blocks + prealloc <= self.reserved, "an operation reserved too few blocks");
        let claim = |more: u64, place| self.v.claim(blocks + more, blocks + more, place);
        let broken = || rooms(prealloc).find_map(|more| claim(more, Place::Broken));
        let anywhere = || {
            let aligned = || claim(prealloc, Place::Aligned);
            aligned().or_else(|| claim(prealloc, Place::Any)).or_else(|| claim(0, Place::Any))
        };
        let run = if blocks <= NEARLY_UNIT { broken().or_else(anywhere) } else { anywhere() }?;
        self.note(run);
        Some(run)
    }

    /// As [`take_run`](Self::take_run) for what may grow: with `prealloc` more, where there are so many together. Where
    /// pre-allocation sees to it that what grows moves to such a place, it needs no room before.
    pub fn take_to_grow(&mut self, blocks: u64, prealloc: u64, may_move: bool) -> Option<Run> {
        if prealloc > 0 {
            return self.take_with_prealloc(blocks, prealloc);
        }
        let needs_room = !may_move || !self.v.settings.prealloc.enabled;
        self.take_run(blocks, if needs_room { 2 * blocks } else { blocks })
    }

    /// Takes the first blocks of a unit, for a file that is appended to and longer than one; else as
    /// [`take_run`](Self::take_run).
    pub fn take_extent(&mut self, blocks: u64) -> Option<Run> {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let run = self
            .v
            .claim(blocks, UNIT, Place::Aligned)
            .or_else(|| self.v.claim_run(blocks, UNIT))?;
        self.note(run);
        Some(run)
    }

    /// Takes reserved blocks that lie behind each other within these, where there are so many.
    pub fn take_within(&mut self, within: Range<u64>, blocks: u64) -> Option<Run> {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let mut search = Search { bits: blocks, room: blocks, ..Search::default() };
        let start = self.v.free_runs.claim(&self.v.arena, within, &mut search)?;
        let run = Run::claimed(start, blocks);
        self.note(run);
        Some(run)
    }

    /// Takes the reserved blocks from `start` on, where they are free.
    pub fn take_at(&mut self, start: BlockNo, blocks: u64) -> bool {
        assert!(blocks <= self.reserved, "an operation reserved too few blocks");
        let run = Run { start, count: blocks };
        let got = self.v.free_runs.claim_exactly(&self.v.arena, run.bits());
        if got {
            self.note(run);
        }
        got
    }

    /// Takes the reserved blocks behind a run: so many and `prealloc` more, or without these. How many, where they are free.
    pub fn take_behind(&mut self, run: Run, blocks: u64, prealloc: u64) -> Option<u64> {
        let all = blocks + prealloc;
        if prealloc > 0 && self.take_at(run.end(), all) {
            return Some(all);
        }
        self.take_at(run.end(), blocks).then_some(blocks)
    }

    /// Takes up to `most` reserved blocks that lie behind each other: no fewer than lie so.
    pub fn take_some(&mut self, most: u64) -> Run {
        let mut want = most.min(self.reserved);
        assert!(want > 0, "an operation reserved too few blocks");
        loop {
            if let Some(run) = self.v.claim_run(want, want) {
                self.note(run);
                return run;
            }
            // space-P2: one is there, if not where the search was by then.
            want = self.v.free_runs.longest(&self.v.arena, want).max(1);
        }
    }

    /// Takes one reserved block.
    pub fn take(&mut self) -> BlockNo {
        self.take_some(1).start
    }

    fn note(&mut self, run: Run) {
        let is_claimed = |block: u64| self.v.blocks.get(&self.v.arena, block);
        debug_assert!(
            [run.bits().start, run.bits().end - 1].into_iter().all(is_claimed),
            "space-P1: blocks {:?} are taken and not claimed",
            run.bits()
        );
        self.reserved -= run.count;
        self.taken.push(run);
    }

    /// Notes blocks to become free when the operation has succeeded.
    pub fn free(&mut self, run: Run) {
        if run.count > 0 {
            self.freed.push(run);
        }
    }

    /// Blocks taken less blocks freed.
    pub fn delta(&self) -> i64 {
        let sum = |runs: &[Run]| runs.iter().map(|run| run.count as i64).sum::<i64>();
        sum(&self.taken) - sum(&self.freed)
    }
}
