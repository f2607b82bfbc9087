//! A pool as a whole: format, describe, check.

use crate::fs::Files;
use crate::layout::*;
use crate::redo;
use namespace::Overlay;
use pmem::{Medium, Pm};
use pool::{CheckOptions, CheckReport, Error, FormatOptions, PoolInfo};

/// Formats a region, as [`namespace::Format::write`].
///
/// # Errors
/// [`Error::Unformattable`].
pub fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
    let root = Root::new(Some(FIRST_INODES), 0).word();
    FORMAT.write(medium, options, (FIRST_INODES, INODE), root)
}

/// Describes a pool from its superblock.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn info(medium: &impl Medium) -> Result<PoolInfo, Error> {
    FORMAT.info(medium)
}

/// Checks a pool that is not mounted, as [`namespace::check`]. With `repair`, first finishes
/// interrupted operations in the pool. Otherwise checks a view in which they are finished, and
/// stores nothing.
///
/// # Errors
/// [`Error::NotAPool`] or [`Error::Unusable`] if the medium holds no usable pool.
pub fn check(
    medium: &impl Medium,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CheckReport, Error> {
    if options.repair {
        return namespace::check::<Files<_>>(medium, options, progress);
    }
    let sb = FORMAT.load(medium)?;
    let pending = redo::pending(&Pm(medium), sb.blocks.get() * BLOCK);
    let view = Overlay::new(medium, pending.iter().flat_map(|(_, record)| record.bytes()));
    namespace::check::<Files<_>>(&view, options, progress)
}

/// Gives a pool that no process uses another size, as [`namespace::resize`].
///
/// # Errors
/// Those of [`namespace::resize`].
pub fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error> {
    namespace::resize::<Files<_>>(medium, bytes)
}
