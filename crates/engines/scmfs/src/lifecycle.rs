//! A pool as a whole: format, describe, check.

use crate::fs::ScmfsFiles;
use crate::journal;
use crate::layout::*;
use namespace::Overlay;
use pmem::{Medium, Pm};
use pool::{CheckOptions, CheckReport, Error, FormatOptions, PoolInfo};

/// Formats a region, as [`namespace::Format::write`].
///
/// # Errors
/// [`Error::Unformattable`].
pub fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
    let first = BlockNo::new(FIRST_BLOCK).expect("it is not the superblock's");
    FORMAT.write(medium, options, (first, INODE), Map::Run(Run::one(first)).pack())
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
        return namespace::check::<ScmfsFiles<_>>(medium, options, progress);
    }
    let sb = FORMAT.load(medium)?;
    let pending = journal::pending(&Pm(medium), sb.blocks.get() * BLOCK);
    let words = pending.into_iter().flat_map(|(_, words)| words);
    let view = Overlay::new(medium, words.map(|(at, value)| (at, value.to_le_bytes().to_vec())));
    namespace::check::<ScmfsFiles<_>>(&view, options, progress)
}

/// Returns the superblock for a copy of a pool, as [`namespace::Format::superblock_of_copy`].
///
/// # Errors
/// Those of [`namespace::Format::superblock_of_copy`].
pub fn superblock_of_copy(medium: &impl Medium, label: Option<&str>) -> Result<Vec<u8>, Error> {
    FORMAT.superblock_of_copy(medium, label)
}

/// Gives a pool that no process uses another size, as [`namespace::resize`].
///
/// # Errors
/// Those of [`namespace::resize`].
pub fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error> {
    namespace::resize::<ScmfsFiles<_>>(medium, bytes)
}
