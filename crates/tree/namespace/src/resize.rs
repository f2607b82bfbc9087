//! A pool that no process uses gets another size.
//!
//! - resize-Z1: one word commits the new size ([`POOL_RESIZED`]). A longer pool has its blocks
//!   before, and a shorter one has nothing in those that it loses.
//! - resize-Z2: a block that lies beyond the new end is copied, and the copy is durable before the
//!   word that leads to it. So each move is atomic, and changes nothing that can be read. A crash
//!   leaves a pool of the old size, some of whose blocks have moved.

use crate::derived::{SharedPool as _, UNIT};
use crate::files::{Files, MediumOf};
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::mounted::Pool;
use crate::store::Storage;
use crate::superblock::POOL_RESIZED;
use pmem::Medium;
use pool::{Error, MountOptions};
use vfs::{Errno, FileSystem as _, Result};

/// Gives the pool on a medium this size in bytes, rounded down to 64 KiB. A medium that is too
/// short has to grow before, one that is too long can be cut afterwards. Returns the size.
///
/// # Errors
/// [`Error::Unformattable`] if no pool can have this size, or if its files do not fit;
/// [`Error::Damaged`] and others as a mount.
pub fn resize<F: Files>(medium: MediumOf<F>, bytes: u64) -> std::result::Result<u64, Error>
where
    MediumOf<F>: Copy,
{
    let sb = F::FORMAT.load(&medium)?;
    let blocks = bytes / BLOCK / UNIT * UNIT;
    let (least, most) = F::FORMAT.bytes;
    if !(least..=most).contains(&(blocks * BLOCK)) || blocks * BLOCK > medium.len() {
        return Err(Error::Unformattable(format!(
            "a pool of this layout has {least} to {most} bytes, and its region {}",
            medium.len()
        )));
    }
    if blocks < sb.blocks.get() {
        let failed = |err| match err {
            Error::Errno(Errno::NOSPC) => Error::Unformattable(
                "what it holds does not fit into that size; choose a larger one, or remove files"
                    .to_owned(),
            ),
            err => err,
        };
        while vacate::<F>(medium, blocks).map_err(failed)? {}
    }
    // The commit (resize-Z1).
    let ready = medium.fence();
    let _ = medium.publish(POOL_RESIZED.get(), sb.resized_word(blocks), ready);
    Ok(blocks * BLOCK)
}

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

impl<S: Storage> Core<S> {
    /// Claims all free blocks from this one on, a multiple of [`UNIT`], so that none is taken.
    fn close_from(&self, from: u64) -> Result<()> {
        let tables = self.tables();
        let (arena, end) = (&tables.arena, tables.blocks.len());
        self.clear_kept_blocks();
        let free = (end - from).saturating_sub(tables.blocks.count_range(arena, from..end));
        if !tables.free.take(arena, free, 0) {
            return Err(Errno::NOSPC);
        }
        (from..end).for_each(|block| {
            tables.blocks.set(arena, block);
        });
        self.close_units(from / UNIT);
        Ok(())
    }
}
