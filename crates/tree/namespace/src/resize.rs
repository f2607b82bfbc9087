//! A pool gets another size. It becomes shorter while no process uses it, and longer at any time.
//!
//! - resize-Z1: one word commits the new size ([`POOL_RESIZED`]). A longer pool has its blocks
//!   before, and a shorter one has nothing in those that it loses.
//! - resize-Z3: the tables that processes share have room for a pool that is up to four times as
//!   long ([`StateSize`](crate::tables::StateSize)). Blocks that it does not have are claimed, and
//!   not counted. Those that it gains become free after the commit.
//! - resize-Z4: a process that shares the pool learns of the new length by itself: when it meets a
//!   pointer beyond the length that it knows ([`PoolLength`](crate::superblock::PoolLength)), or
//!   accesses such a block ([`Medium::current_len`]). The file is longer, and mapped there, before
//!   any such pointer exists.
//! - resize-Z2: a block that lies beyond the new end is copied, and the copy is durable before the
//!   word that leads to it. So each move is atomic, and changes nothing that can be read. A crash
//!   leaves a pool of the old size, some of whose blocks have moved.

use crate::derived::{SharedPool as _, UNIT};
use crate::files::{Files, MediumOf};
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::mounted::Pool;
use crate::store::Storage;
use crate::superblock::{POOL_RESIZED, is_thin, resized_word};
use crate::thin::rest_of_unit;
use pmem::{Lock, Medium, Region};
use pool::{Error, MountOptions};
use std::io;
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
        let (arena, end) = (&tables.arena, tables.block_count());
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

    /// Makes the pool longer while processes use it (resize-Z3). The medium has the blocks. Called
    /// inside an operation.
    fn lengthen(&self, blocks: u64) -> Result<()> {
        self.check_writable()?;
        let (tables, medium) = (self.tables(), self.medium());
        let _lock = tables.lock_provisioning()?;
        let from = tables.block_count();
        if blocks <= from {
            return Err(Errno::INVAL);
        }
        if blocks > tables.blocks.len() {
            return Err(Errno::FBIG);
        }
        let rest = rest_of_unit(from, blocks);
        if is_thin(&medium) && !rest.is_empty() {
            let (off, len) = (rest.start * BLOCK, (rest.end - rest.start) * BLOCK);
            medium.0.provision(off, len).map_err(|_| Errno::NOSPC)?;
        }
        // The commit (resize-Z1).
        let ready = medium.fence();
        let _ = medium.publish(POOL_RESIZED, resized_word(&medium, blocks), ready);
        tables.set_block_count(blocks);
        self.add_blocks(from);
        Ok(())
    }
}

impl<F: Files> Pool<F> {
    /// Makes the pool longer while processes use it: gives it this size in bytes, rounded down to
    /// 64 KiB. The medium has that length already. Returns the size.
    ///
    /// # Errors
    /// `EFBIG` if the tables that processes share have no room, `EINVAL` if the pool is as long
    /// already, `ENOSPC` if the file system below has no space, `EROFS`.
    pub fn lengthen_to(&self, bytes: u64) -> Result<u64> {
        let blocks = bytes / BLOCK / UNIT * UNIT;
        if blocks * BLOCK > self.medium().current_len() {
            return Err(Errno::INVAL);
        }
        self.files.op(|core| core.lengthen(blocks))?;
        Ok(blocks * BLOCK)
    }
}

impl<F: Files<Storage: Storage<Medium = Region>>> Pool<F> {
    /// Implements [`pool::Engine::lengthen`].
    pub(crate) fn lengthen_file(&self, bytes: u64) -> std::result::Result<u64, Error> {
        let region = self.medium();
        // One process at a time.
        if !region.lock_part(pool::resize_part(), Lock::Exclusive)? {
            return Err(Errno::BUSY.into());
        }
        let lengthened = self.lengthen_locked(bytes);
        let _ = region.lock_part(pool::resize_part(), Lock::None);
        lengthened
    }

    fn lengthen_locked(&self, bytes: u64) -> std::result::Result<u64, Error> {
        let (region, tables) = (self.medium(), self.files.tables());
        let most = tables.blocks.len().min(region.max_len() / BLOCK) * BLOCK;
        if bytes > most {
            return Err(Error::Unformattable(format!(
                "while it is used, it can have at most {most} bytes; unmount it to make it longer than that"
            )));
        }
        let bytes = bytes / (UNIT * BLOCK) * UNIT * BLOCK;
        // A file that was extended in vain before is not too long: the next user of the pool
        // ignores the rest, and `resize` cuts it off.
        if bytes > region.current_len() {
            match is_thin(&self.files.medium()) {
                true => region.grow_sparse(bytes),
                false => region.grow(bytes),
            }
            .map_err(io::Error::other)?;
        }
        Ok(self.lengthen_to(bytes)?)
    }
}
