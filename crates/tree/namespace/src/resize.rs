//! A pool gets another size.
//!
//! A *resizable* pool is thin, and has a length and a size: its region, a sparse file, has the
//! length, and its units with space have at most the size. So the size can change while programs
//! use the pool, and nothing moves. Its length changes, and that of other pools, while no process
//! uses it.
//!
//! - resize-Z1: one word commits the new length ([`POOL_RESIZED`]). A longer pool has its blocks
//!   before, and a shorter one has nothing in those that it loses.
//! - resize-Z2: a block that lies beyond the new end is copied, and the copy is durable before the
//!   word that leads to it. So each move is atomic, and changes nothing that can be read. A crash
//!   leaves a pool of the old size, some of whose blocks have moved.
//! - resize-Z3: one word commits the size of a resizable pool ([`POOL_SIZE`]). A smaller size is
//!   stored first, so that no operation takes more space than it allows. Then the pool gives back
//!   what it has beyond that; if that fails, it gets the old size again. After a crash in between,
//!   the pool has the new size, and files keep what they have (thin-T5).

use crate::derived::{SharedPool as _, UNIT, whole_units};
use crate::files::{Files, MediumOf};
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::mounted::Pool;
use crate::store::Storage;
use crate::superblock::{POOL_RESIZED, POOL_SIZE, size_in_blocks, size_word};
use crate::tables::Tables;
use crate::thin::Trim;
use pmem::{Medium, Pm};
use pool::{Error, MountOptions};
use vfs::{Errno, FileSystem as _, Result};

/// Gives the pool on a medium this size in bytes, rounded down to 64 KiB. No process uses it. A
/// medium that is too short has to grow before; a resizable pool gets its new length then. The
/// medium of another pool can be cut to the size afterwards. Returns the size.
///
/// # Errors
/// [`Error::Unformattable`] if no pool can have this size, or if its files do not fit;
/// [`Error::Damaged`] and others as a mount.
pub fn resize<F: Files>(medium: MediumOf<F>, bytes: u64) -> std::result::Result<u64, Error>
where
    MediumOf<F>: Copy,
{
    let sb = F::FORMAT.load(&medium)?;
    let blocks = whole_units(bytes);
    let (least, most) = F::FORMAT.bytes;
    if !(least..=most).contains(&(blocks * BLOCK)) || blocks * BLOCK > medium.len() {
        return Err(Error::Unformattable(format!(
            "a pool of this layout has {least} to {most} bytes, and its region {}",
            medium.len()
        )));
    }
    if blocks < sb.size_in_blocks() {
        let failed = |err| match err {
            Error::Errno(Errno::NOSPC) => Error::Unformattable(
                "what it holds does not fit into that size; choose a larger one, or remove files"
                    .to_owned(),
            ),
            err => err,
        };
        while vacate::<F>(medium, blocks).map_err(failed)? {}
    }
    let length = match sb.is_resizable() {
        true => whole_units(medium.len().min(most)).max(sb.blocks.get()),
        false => blocks,
    };
    if length != sb.blocks.get() {
        // The commit (resize-Z1).
        let ready = medium.fence();
        let _ = medium.publish(POOL_RESIZED.get(), sb.resized_word(length), ready);
    }
    if sb.is_resizable() {
        publish_size(&Pm(medium), blocks);
    }
    Ok(blocks * BLOCK)
}

/// Stores the number of blocks that a resizable pool may take, durably (resize-Z3).
fn publish_size(medium: &Pm<impl Medium>, blocks: u64) {
    let ready = medium.fence();
    let _ = medium.publish(POOL_SIZE, size_word(medium, blocks), ready);
}

impl<F: Files> Pool<F> {
    /// Implements [`pool::Engine::resize`] (resize-Z3).
    ///
    /// # Errors
    /// Those of [`pool::Engine::resize`].
    pub fn resize(&self, bytes: u64) -> Result<u64> {
        let files = &self.files;
        let old = files.op(|core| {
            core.check_writable()?;
            size_in_blocks(&core.medium()).ok_or(Errno::OPNOTSUPP)
        })?;
        let blocks = whole_units(bytes);
        if !(F::FORMAT.bytes.0 / BLOCK..=files.tables().blocks.len()).contains(&blocks) {
            return Err(Errno::INVAL);
        }
        if blocks < files.blocks_used() {
            return Err(Errno::NOSPC);
        }
        files.op(|core| core.set_size(None, blocks))?;
        if blocks >= old {
            return Ok(blocks * BLOCK);
        }
        for _ in 0..TRIMS_MAX {
            self.trim(Trim::All)?;
            if files.tables().has_at_most_its_size() {
                return Ok(blocks * BLOCK);
            }
        }
        files.op(|core| core.set_size(Some(blocks), old))?;
        Err(Errno::NOSPC)
    }
}

/// Trims for a smaller size. Between two of them, operations may free more.
const TRIMS_MAX: u32 = 4;

/// Moves the blocks from this one on to places before it. Returns whether that has to be called
/// again, because inodes have moved.
fn vacate<F: Files>(medium: MediumOf<F>, from: u64) -> std::result::Result<bool, Error> {
    let pool = Pool::<F>::mount(medium, &MountOptions::default())?;
    let files = &pool.files;
    files.op(|core| core.close_from(from))?;
    let have_inodes_moved = files.op(|core| core.vacate_inodes(from))?;
    if !have_inodes_moved {
        files.op(|core| core.vacate_contents(from))?;
    }
    pool.close()?;
    Ok(have_inodes_moved)
}

impl Tables {
    /// Returns whether the pool has no more space than its size.
    fn has_at_most_its_size(&self) -> bool {
        self.hidden() >= self.withheld()
    }

    /// Derives from the size of a resizable pool how many blocks it may not take.
    pub(crate) fn note_size(&self, medium: &Pm<impl Medium>) {
        let size = size_in_blocks(medium).unwrap_or(self.blocks.len());
        self.set_withheld(self.blocks.len().saturating_sub(size));
    }
}

impl<S: Storage> Core<S> {
    /// Stores the size of a resizable pool, unless it is no longer `from`.
    fn set_size(&self, from: Option<u64>, blocks: u64) -> Result<()> {
        let tables = self.tables();
        let _lock = tables.lock_provisioning()?;
        if from.is_none_or(|from| size_in_blocks(&self.medium()) == Some(from)) {
            publish_size(&self.medium(), blocks);
            tables.note_size(&self.medium());
        }
        Ok(())
    }

    /// Claims all free blocks from this one on, a multiple of [`UNIT`], so that none is taken.
    fn close_from(&self, from: u64) -> Result<()> {
        let tables = self.tables();
        let (arena, end) = (&tables.arena, tables.blocks.len());
        // The blocks before it may all be taken.
        tables.set_withheld(0);
        self.clear_kept_blocks();
        let free = (end - from).saturating_sub(tables.blocks.count_range(arena, from..end));
        if !tables.free.take(arena, free, 0) {
            return Err(Errno::NOSPC);
        }
        tables.blocks.set_range(arena, from..end);
        self.close_units(from / UNIT);
        Ok(())
    }
}
