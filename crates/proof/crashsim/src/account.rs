//! The account of space of a mounted pool: no operation may lose a block or count it twice.

use crate::target::{Mounted, Target};

/// An account of space: the sum of free and used blocks must be the same when a pool is left as
/// when it was mounted. Blocks of held files are in use, so the account is drawn up when no file is
/// held.
pub(crate) struct Account {
    /// `None`: the pool is full, so the number of reserved blocks is unknown.
    blocks: Option<u64>,
}

impl Account {
    /// Counts the blocks of a pool that was just mounted.
    pub(crate) fn open(mounted: &Mounted<'_>) -> Self {
        Self { blocks: free_blocks(mounted).map(|free| free + mounted.blocks_used) }
    }

    /// Checks the pool, and compares its blocks with those counted at first.
    ///
    /// # Errors
    /// The check finds a problem, or blocks were lost.
    pub(crate) fn close<T: Target>(
        &self,
        target: &T,
        mounted: &Mounted<'_>,
        medium: &impl pmem::Medium,
    ) -> Result<(), String> {
        let (Some(blocks), Some(free)) = (self.blocks, free_blocks(mounted)) else { return Ok(()) };
        let usage = target.check(medium).map_err(|e| format!("check: {e}"))?;
        let used = usage.blocks_used;
        match free + used == blocks {
            true => Ok(()),
            false => Err(format!(
                "space: {free} blocks are free and {used} in use, together not the {blocks} of before"
            )),
        }
    }
}

/// Returns the free blocks, unless the pool is full.
fn free_blocks(mounted: &Mounted<'_>) -> Option<u64> {
    Some(mounted.fs.statfs().blocks_free).filter(|free| *free > 0)
}
