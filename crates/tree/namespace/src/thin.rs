//! Thin pools: they take space of the file below when they need it, and give it back.
//!
//! The space of a pool is divided into units of [`UNIT`] blocks. A unit is *provisioned* if the
//! file below has space for all of it, so that no store there can find the file system full.
//!
//! - thin-T1: a block is handed out only if its unit is provisioned. All other blocks are claimed
//!   in the bitmap, and not counted as free: so no search finds them, and no reservation counts on
//!   them. `statfs` counts them as free.
//! - thin-T2: an operation that found no free block has released its locks and has left nothing
//!   half-done. Then it provisions what it needs, in any process, and starts over; `ENOSPC` if the
//!   file system below has no space ([`Core::provision_demand`]).
//! - thin-T3: the units are changed under one lock. A unit becomes provisioned after the file has
//!   the space, and ends to be so before the file loses it. The set of units is kept when the rest
//!   of the state is derived again. So if a process dies, at worst a unit has space and is not
//!   used.
//! - thin-T4: only blocks that are free, and so durably unreachable, lose their space. They are
//!   claimed first. Then all operations that may still read them without a lock must end
//!   ([`arena::Arena::synchronize`]): a load would take the space again, and fail if the file
//!   system is full.
//! - thin-T5: a mount of a resizable pool gives the space of free units back that it has beyond its
//!   size ([`crate::resize()`]). They are from a copy of a pool, or a resize was interrupted.
//! - thin-T6: a mount provisions all units with blocks in use. They can be holes in a copy of a
//!   pool.
//!
//! In a mount that programs cannot bypass, the threads of the server do not wait for each other
//! (thin-T4). There, a load of a block that was freed meanwhile may take a page again; the next
//! trim gives it back.

use crate::derived::UNIT;
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::store::Storage;
use crate::superblock::is_thin;
use crate::surplus::KEPT;
use crate::tables::Tables;
use pmem::Medium as _;
use pool::{Error, FreeSpace};
use std::io;
use std::ops::Range;
use vfs::Result;

/// Blocks that an operation provisions at least: 8 MiB. Fewer would leave too few for the counters
/// of threads ([`arena::FreeCount`]).
const STEP: u64 = 2048;

/// Units of a huge page.
const HUGE_UNITS: u64 = (2 << 20) / (UNIT * BLOCK);

/// Calls that a signal may interrupt before the space counts as missing.
const INTERRUPTIONS_MAX: u32 = 1 << 16;

/// Blocks that one step of a trim takes: 64 MiB. Operations that need space wait for a step.
const TRIM_STEP: u64 = 1 << 14;

/// The part of a huge page that may be in use when the background divides it.
const DIVIDED_IN_USE: u64 = 4;

/// The blocks that an operation of this thread has failed to reserve, in a pool.
#[derive(Clone, Copy)]
struct Demand {
    pool: u64,
    blocks: u64,
}

os::thread_cell! {
    fn demand -> Demand, "namespace_demand", 16
}

/// How much a trim gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Whole huge pages of free blocks, except for some blocks and this number.
    Surplus(u64),
    /// As `Surplus`, and free units of huge pages of which little is in use.
    Pieces(u64),
    /// All units of free blocks.
    All,
}

impl Trim {
    /// Returns the number of free blocks to leave.
    fn keep(self) -> u64 {
        match self {
            Self::Surplus(in_use) | Self::Pieces(in_use) => KEPT + in_use,
            Self::All => 0,
        }
    }

    /// Returns whether a huge page with this number of blocks in use is divided.
    fn divides(self, used: u64) -> bool {
        match self {
            Self::Surplus(_) => used == 0,
            Self::Pieces(_) => used <= HUGE_UNITS * UNIT / DIVIDED_IN_USE,
            Self::All => true,
        }
    }
}

impl Tables {
    /// Records that this thread could not reserve as many blocks (thin-T2).
    #[cold]
    pub fn note_demand(&self, blocks: u64) {
        demand().set(Demand { pool: self.id, blocks });
    }

    /// Takes the record of [`note_demand`](Self::note_demand); 0 without one.
    fn take_demand(&self) -> u64 {
        let Demand { pool, blocks } = demand().replace(Demand { pool: 0, blocks: 0 });
        if pool == self.id { blocks } else { 0 }
    }

    /// Returns whether a block may be handed out (thin-T1).
    pub fn has_space(&self, block: u64) -> bool {
        self.hidden() == 0 || self.provisioned().get(&self.arena, block / UNIT)
    }

    /// Returns the blocks of these units.
    fn blocks_of(&self, units: &Range<u64>) -> Range<u64> {
        units.start * UNIT..(units.end * UNIT).min(self.blocks.len())
    }

    /// Calls `each` with the runs of units that are not provisioned.
    fn each_unprovisioned(&self, each: impl FnMut(Range<u64>)) {
        self.provisioned().each_clear_run(&self.arena, each);
    }

    /// Adds the free blocks that are not provisioned.
    pub(crate) fn add_unprovisioned_runs(&self, free: &mut FreeSpace) {
        let mut left = self.unprovisioned();
        if left > 0 {
            self.each_unprovisioned(|units| {
                let blocks = self.blocks_of(&units);
                let end = blocks.end.min(blocks.start + left);
                left -= end - blocks.start;
                free.add(blocks.start..end, BLOCK);
            });
        }
    }
}

impl<S: Storage> Core<S> {
    /// Finds the units that are provisioned, as the last step of the scan of a mount for writing.
    /// Provisions those in use (thin-T6), and some more.
    ///
    /// # Errors
    /// [`Error::Unusable`] if the file system below has no space for blocks in use.
    pub(crate) fn begin_thin(&self) -> std::result::Result<(), Error> {
        if !is_thin(&self.medium()) {
            return Ok(());
        }
        let tables = self.tables();
        self.find_provisioned();
        let mut in_use: Vec<Range<u64>> = Vec::new();
        tables.each_unprovisioned(|units| {
            let has_used = |unit: &u64| {
                tables.blocks.count_range(&tables.arena, tables.blocks_of(&(*unit..unit + 1))) > 0
            };
            for unit in units.filter(has_used) {
                match in_use.last_mut() {
                    Some(last) if last.end == unit => last.end += 1,
                    _ => in_use.push(unit..unit + 1),
                }
            }
        });
        for units in in_use {
            self.provision_units(&units).map_err(|err| {
                let why = "the file system that holds the pool has no space for parts of it that are in use; make \
                           room there, or mount the pool read-only";
                Error::Unusable(format!("{why} ({err})"))
            })?;
        }
        self.release_excess();
        self.hide_unprovisioned();
        tables.count_free_blocks();
        if tables.free_blocks() < STEP {
            self.provision(STEP);
        }
        Ok(())
    }

    /// Marks the units that hold data as provisioned. Space that was allocated and not stored to
    /// may count as a hole; to provision it again costs little.
    fn find_provisioned(&self) {
        let tables = self.tables();
        let (units, end) = (tables.provisioned(), tables.blocks.len() * BLOCK);
        units.init(&tables.arena);
        let mut off = 0;
        while off < end {
            let data = self.medium().0.data_within(off, end - off);
            if data.is_empty() {
                break;
            }
            let first = data.start.div_ceil(UNIT * BLOCK);
            // The last unit may be shorter.
            let last = if data.end == end { units.len() } else { data.end / (UNIT * BLOCK) };
            for unit in first..last {
                units.set(&tables.arena, unit);
            }
            off = data.end;
        }
    }

    /// Gives the space of free units back that the pool has beyond its size (thin-T5).
    fn release_excess(&self) {
        let tables = self.tables();
        let (arena, units) = (&tables.arena, tables.provisioned());
        let excess = units.count(arena).saturating_sub(tables.size_in_blocks().div_ceil(UNIT));
        let is_free = |unit: &Range<u64>| {
            let blocks = tables.blocks_of(unit);
            units.get(arena, unit.start) && tables.blocks.is_clear(arena, blocks)
        };
        // The lowest places stay, as searches find them first.
        let each = (0..units.len()).rev().map(|unit| unit..unit + 1);
        let mut chosen = Vec::new();
        each.filter(is_free).take(excess as usize).for_each(|unit| add_below(&mut chosen, unit));
        for run in chosen {
            units.clear_range(arena, run.clone());
            if self.release_blocks(&tables.blocks_of(&run)).is_err() {
                break;
            }
        }
    }

    /// Gives the space of blocks back to the file below.
    fn release_blocks(&self, blocks: &Range<u64>) -> io::Result<()> {
        let (off, len) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        self.medium().0.release(off, len).map(drop).inspect_err(|err| {
            tracing::warn!("cannot give space of the pool back: {err}");
        })
    }

    /// Claims the blocks without space again, after the rest of the state was derived again
    /// (thin-T1).
    pub(crate) fn recover_thin(&self) {
        if is_thin(&self.medium()) {
            self.tables().note_size(&self.medium());
            self.hide_unprovisioned();
            self.tables().count_free_blocks();
        }
    }

    /// Claims all blocks of units that are not provisioned.
    fn hide_unprovisioned(&self) {
        let tables = self.tables();
        let mut hidden = 0;
        tables.each_unprovisioned(|units| {
            let blocks = tables.blocks_of(&units);
            hidden += blocks.end - blocks.start;
            let were_free = tables.blocks.set_range(&tables.arena, blocks.clone());
            debug_assert!(were_free, "thin-T1: some of {blocks:?} are in use without space");
        });
        tables.set_hidden(hidden);
    }

    /// Provisions the blocks that an operation of this thread failed to reserve (thin-T2). Returns
    /// whether the operation may find them now. Called inside an operation, without locks.
    pub(crate) fn provision_demand(&self) -> Result<bool> {
        let tables = self.tables();
        let wanted = tables.take_demand();
        if wanted == 0 || tables.unprovisioned() == 0 {
            return Ok(false);
        }
        let _lock = tables.lock_provisioning()?;
        let missing = wanted.saturating_sub(tables.free_blocks());
        Ok(missing == 0 || self.provision(missing.max(STEP)) >= missing)
    }

    /// Provisions this many blocks, if there are as many: the lowest. Returns the number
    /// provisioned. The caller holds the lock, or is alone.
    fn provision(&self, blocks: u64) -> u64 {
        let tables = self.tables();
        let units = tables.provisioned();
        let (mut at, mut got, mut most, mut interruptions) = (0, 0, u64::MAX, 0);
        while got < blocks
            && tables.unprovisioned() > 0
            && let Some(first) = units.find_run(&tables.arena, at..units.len(), 1)
        {
            let first = first.start;
            // Up to the end of a huge page.
            let end = (first + (blocks - got).div_ceil(UNIT)).next_multiple_of(HUGE_UNITS);
            let most_now = most.min(tables.unprovisioned().div_ceil(UNIT));
            let end = end.min(units.len()).min(first.saturating_add(most_now));
            let is_missing = |unit: &u64| !units.get(&tables.arena, *unit);
            let run = first..first + (first..end).take_while(is_missing).count() as u64;
            let count = run.end - run.start;
            match self.provision_units(&run) {
                Ok(()) => {
                    got += self.reveal(&run);
                    at = run.end;
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {
                    interruptions += 1;
                    if interruptions == INTERRUPTIONS_MAX {
                        break;
                    }
                    most = count.div_ceil(2);
                }
                Err(_) if count > 1 => most = count / 2,
                Err(err) => {
                    tracing::debug!(%err, "the file system below has no space for the pool");
                    break;
                }
            }
        }
        got
    }

    /// Counts all units from this one on as provisioned, so that their blocks stay claimed.
    pub(crate) fn close_units(&self, from: u64) {
        let tables = self.tables();
        let units = tables.provisioned();
        for unit in from..units.len() {
            if units.set(&tables.arena, unit) && tables.hidden() > 0 {
                let blocks = tables.blocks_of(&(unit..unit + 1));
                tables.add_hidden(-((blocks.end - blocks.start) as i64));
            }
        }
    }

    /// Takes the space of units from the file below, and marks them as provisioned.
    fn provision_units(&self, units: &Range<u64>) -> io::Result<()> {
        let tables = self.tables();
        let blocks = tables.blocks_of(units);
        let (off, len) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        self.medium().0.provision(off, len)?;
        for unit in units.clone() {
            tables.provisioned().set(&tables.arena, unit);
        }
        Ok(())
    }

    /// Makes the blocks of provisioned units free. Returns their number.
    fn reveal(&self, units: &Range<u64>) -> u64 {
        let tables = self.tables();
        let blocks = tables.blocks_of(units);
        let count = blocks.end - blocks.start;
        tables.add_hidden(-(count as i64));
        self.clear_free(blocks);
        tables.give_back(count);
        count
    }

    /// Chooses units to give back, of the lowest `pages` huge pages, and ends their use (thin-T3,
    /// thin-T4). Counts the pages down that it has dealt with. Called inside an operation.
    fn choose_to_trim(&self, trim: Trim, pages: &mut u64) -> Result<Vec<Range<u64>>> {
        let tables = self.tables();
        let mut chosen: Vec<Range<u64>> = Vec::new();
        if !is_thin(&self.medium()) || self.check_writable().is_err() {
            return Ok(chosen);
        }
        if trim == Trim::All {
            self.free_kept_blocks()?;
        }
        let _lock = tables.lock_provisioning()?;
        self.clear_kept_blocks();
        let mut taken = 0;
        // The lowest places stay, as searches find them first.
        while *pages > 0 && taken < TRIM_STEP {
            *pages -= 1;
            let page = *pages * HUGE_UNITS..(*pages + 1) * HUGE_UNITS;
            let page = page.start..page.end.min(tables.provisioned().len());
            let Some(each) = self.units_given_together(&page, trim) else { continue };
            if tables.free_blocks() <= trim.keep() {
                *pages = 0;
                break;
            }
            for nth in (0..(page.end - page.start).div_ceil(each)).rev() {
                let start = page.start + nth * each;
                let run = start..(start + each).min(page.end);
                let Some(count) = self.end_use_of(&run, trim.keep()) else { continue };
                taken += count;
                add_below(&mut chosen, run);
            }
        }
        Ok(chosen)
    }

    /// Returns the number of units of a huge page that a trim gives back together; `None`: it gives
    /// back none.
    fn units_given_together(&self, page: &Range<u64>, trim: Trim) -> Option<u64> {
        let tables = self.tables();
        let provisioned = tables.provisioned().count_range(&tables.arena, page.clone());
        if provisioned == 0 {
            return None;
        }
        let missing = (page.end - page.start - provisioned) * UNIT;
        let set = tables.blocks.count_range(&tables.arena, tables.blocks_of(page));
        // The blocks of missing units are claimed (thin-T1).
        match set.saturating_sub(missing) {
            0 if missing == 0 => Some(HUGE_UNITS),
            used => trim.divides(used).then_some(1),
        }
    }

    /// Ends the use of units whose blocks are free, if that leaves `keep` free blocks. Returns the
    /// number of blocks; `None` if they stay.
    fn end_use_of(&self, units: &Range<u64>, keep: u64) -> Option<u64> {
        let tables = self.tables();
        let blocks = tables.blocks_of(units);
        let count = blocks.end - blocks.start;
        let is_clear = tables.blocks.is_clear(&tables.arena, blocks.clone());
        if !is_clear || !tables.free.take(&tables.arena, count, keep) {
            return None;
        }
        if !self.claim_free(blocks) {
            tables.give_back(count);
            return None;
        }
        tables.provisioned().clear_range(&tables.arena, units.clone());
        tables.add_hidden(count as i64);
        Some(count)
    }

    /// Gives the space of chosen units back, unless they are provisioned again. Called inside an
    /// operation, after all operations have ended that were in progress when the units were chosen.
    fn release_chosen(&self, chosen: &[Range<u64>]) -> Result<()> {
        let tables = self.tables();
        let _lock = tables.lock_provisioning()?;
        for run in chosen {
            let mut at = run.start;
            while at < run.end {
                let is_missing = |unit: &u64| !tables.provisioned().get(&tables.arena, *unit);
                let units = at..at + (at..run.end).take_while(is_missing).count() as u64;
                at = units.end + 1;
                let blocks = tables.blocks_of(&units);
                if blocks.is_empty() {
                    continue;
                }
                if self.release_blocks(&blocks).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Adds a run to others, all of which lie behind it.
fn add_below(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.start == run.end => last.start = run.start,
        _ => runs.push(run),
    }
}

/// Trims of a mounted pool.
pub(crate) mod pool_trim {
    use super::*;
    use crate::derived::SharedPool as _;
    use crate::files::Files;
    use crate::mounted::Pool;

    impl<F: Files> Pool<F> {
        /// As [`pool::Engine::trim`], as much as `trim` allows.
        ///
        /// # Errors
        /// `EIO` and `EUCLEAN` if the pool is lost or damaged.
        pub fn trim(&self, trim: Trim) -> Result<()> {
            let files = &self.files;
            let mut pages = files.tables().provisioned().len().div_ceil(HUGE_UNITS);
            while pages > 0 {
                let chosen = files.op(|core| core.choose_to_trim(trim, &mut pages))?;
                if chosen.is_empty() {
                    break;
                }
                // If it is not certain that all have left, a load may take a page again.
                let _ = files.tables().arena.synchronize();
                files.op(|core| core.release_chosen(&chosen))?;
            }
            if trim == Trim::All && files.tables().hidden() > 0 {
                // A process that died may have left these.
                let mut rest = Vec::new();
                files.tables().each_unprovisioned(|units| rest.push(units));
                files.op(|core| core.release_chosen(&rest))?;
            }
            Ok(())
        }

        /// Keeps some free blocks provisioned, so that operations need not do that, and trims
        /// surplus ones. Called once a second.
        pub(crate) fn maintain_thin(&self) -> Result<()> {
            let files = &self.files;
            if !is_thin(&files.medium()) || files.check_writable().is_err() {
                return Ok(());
            }
            let free = files.tables().free_blocks();
            let trims = self.surplus.look(free);
            if free < STEP / 2 && files.tables().unprovisioned() > 0 {
                return files.op(|core| {
                    let _lock = core.tables().lock_provisioning()?;
                    core.provision(STEP);
                    Ok(())
                });
            }
            if trims.is_empty() {
                return Ok(());
            }
            let missing = || files.tables().hidden();
            let before = missing();
            trims.into_iter().try_for_each(|trim| self.trim(trim))?;
            self.surplus.note_given(missing().saturating_sub(before));
            Ok(())
        }
    }
}
