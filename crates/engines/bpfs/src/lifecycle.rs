//! A pool as a whole: format, describe, check.

use crate::fs::Files;
use crate::layout::*;
use crate::redo;
use namespace::Overlay;
use pmem::{Medium, Pm};
use pool::{BranchInfo, CheckOptions, CheckReport, Error, FormatOptions, PoolInfo, Snapshot};

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
/// Those of [`namespace::resize`]; [`Error::Unformattable`] if a pool with snapshots is to become
/// smaller.
pub fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error> {
    let is_smaller = bytes < info(medium)?.size_bytes;
    if is_smaller && !crate::snapshots::entries(&Pm(medium)).is_empty() {
        let why = "it has snapshots, whose blocks stay where they are; delete them first";
        return Err(Error::Unformattable(why.to_owned()));
    }
    namespace::resize::<Files<_>>(medium, bytes)
}

/// Makes the state of a pool that no process uses the one of a snapshot, as
/// [`namespace::roll_back`].
///
/// # Errors
/// Those of [`namespace::roll_back`].
pub fn roll_back(medium: &impl Medium, name: &str) -> Result<(), Error> {
    namespace::roll_back::<Files<_>>(medium, name)
}

/// Returns the branches of a pool that other processes may use meanwhile, in the order of their
/// names. A snapshot of a branch that is no more counts as an unfinished branch.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn branches(medium: &impl Medium) -> Result<Vec<BranchInfo>, Error> {
    let sb = FORMAT.load(medium)?;
    let mut all = crate::branches::list(&Pm(medium), sb.blocks.get() * BLOCK);
    for name in crate::snapshots::of_branches(&Pm(medium)) {
        if all.iter().all(|branch| branch.name != name) {
            all.push(BranchInfo { name, created_ns: 0, is_finished: false });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Returns the snapshots of a pool that other processes may use meanwhile, in the order of their
/// creation.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn snapshots(medium: &impl Medium) -> Result<Vec<Snapshot>, Error> {
    let sb = FORMAT.load(medium)?;
    Ok(crate::snapshots::list(&Pm(medium), sb.blocks.get() * BLOCK))
}
