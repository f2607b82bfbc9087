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
//!   size ([`crate::resize`]). They are from a copy of a pool, or a resize was interrupted.
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

/// Free blocks that a trim of the background leaves provisioned: 16 MiB.
const KEPT: u64 = 4096;

/// Free blocks beyond [`KEPT`] from which on the background trims: 16 MiB.
const TRIM_FROM: u64 = 4096;

/// Calls that a signal may interrupt before the space counts as missing.
const INTERRUPTIONS_MAX: u32 = 1 << 16;

/// Blocks that one step of a trim takes: 256 MiB.
const TRIM_STEP: u64 = 1 << 16;

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
    /// All units of free blocks.
    All,
}

impl Trim {
    /// Returns the free blocks to leave, and the units that are given back together.
    fn bounds(self) -> (u64, u64) {
        match self {
            Self::Surplus(in_use) => (KEPT + in_use, HUGE_UNITS),
            Self::All => (0, 1),
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
        let mut left = tables.size_in_blocks() / UNIT;
        let excess = units.count(arena).saturating_sub(left);
        if tables.withheld() == 0 || excess == 0 {
            return;
        }
        // The lowest places stay, as searches find them first.
        left = excess;
        for unit in (0..units.len()).rev().filter(|unit| units.get(arena, *unit)) {
            let blocks = tables.blocks_of(&(unit..unit + 1));
            if !tables.blocks.is_clear(arena, blocks.clone()) {
                continue;
            }
            units.clear(arena, unit);
            if self.release_blocks(&blocks).is_err() || left == 1 {
                break;
            }
            left -= 1;
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

    /// Chooses units to give back, and ends their use (thin-T3, thin-T4). Called inside an
    /// operation.
    fn choose_to_trim(&self, trim: Trim) -> Result<Vec<Range<u64>>> {
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
        let (units, (keep, each)) = (tables.provisioned(), trim.bounds());
        let mut taken = 0;
        // The lowest places stay, as searches find them first.
        for nth in (0..units.len().div_ceil(each)).rev() {
            let run = nth * each..((nth + 1) * each).min(units.len());
            let blocks = tables.blocks_of(&run);
            let count = blocks.end - blocks.start;
            if taken >= TRIM_STEP {
                break;
            }
            if !tables.blocks.is_clear(&tables.arena, blocks.clone()) {
                continue;
            }
            if !tables.free.take(&tables.arena, count, keep) {
                break;
            }
            if !self.claim_free(blocks) {
                tables.give_back(count);
                continue;
            }
            units.clear_range(&tables.arena, run.clone());
            tables.add_hidden(count as i64);
            taken += count;
            match chosen.last_mut() {
                Some(last) if last.start == run.end => last.start = run.start,
                _ => chosen.push(run),
            }
        }
        Ok(chosen)
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

/// The background's view of free space over some time.
#[derive(Debug, Default)]
pub(crate) struct Surplus(std::sync::Mutex<SurplusSeen>);

#[derive(Debug, Default)]
struct SurplusSeen {
    looks: u32,
    /// The fewest free blocks that were seen.
    least: u64,
}

impl Surplus {
    /// The number of looks, a second apart, over which blocks must be free to count as surplus.
    const LOOKS: u32 = 10;

    /// Notes the number of free blocks. After some looks, returns the number of blocks that were
    /// used in between, if more than enough were free all the time.
    fn look(&self, free: u64) -> Option<u64> {
        let mut seen = self.0.lock().ok()?;
        seen.least = if seen.looks == 0 { free } else { seen.least.min(free) };
        seen.looks += 1;
        if seen.looks < Self::LOOKS {
            return None;
        }
        seen.looks = 0;
        (seen.least > KEPT + TRIM_FROM).then(|| free - seen.least)
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
            loop {
                let chosen = files.op(|core| core.choose_to_trim(trim))?;
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
            if free < STEP / 2 && files.tables().unprovisioned() > 0 {
                return files.op(|core| {
                    let _lock = core.tables().lock_provisioning()?;
                    core.provision(STEP);
                    Ok(())
                });
            }
            match self.surplus.look(free) {
                Some(in_use) => self.trim(Trim::Surplus(in_use)),
                None => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_free_all_the_time_is_surplus() {
        let surplus = Surplus::default();
        let looks = |each: &[u64]| each.iter().filter_map(|free| surplus.look(*free)).last();
        let enough = KEPT + TRIM_FROM + 1;
        assert_eq!(looks(&[enough; 9]), None);
        assert_eq!(looks(&[enough]), Some(0));
        assert_eq!(looks(&[enough - 1; 10]), None, "not enough");
        let mut busy = [2 * enough; 10];
        busy[4] = enough;
        assert_eq!(looks(&busy), Some(enough));
        busy[4] = 5;
        assert_eq!(looks(&busy), None, "it was used in between");
    }
}
