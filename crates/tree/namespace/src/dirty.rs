//! Counts of what the backing store of a pool lacks, kept while the pool changes. To read them
//! costs two loads.
//!
//! - dirty-N1: an inode counts while it has a name and no clean mark, which its state bit
//!   [`COUNTED`] records. A change of either fact calls [`Core::count_inode`], under the inode's
//!   lock.
//! - dirty-N2: a block counts if it is a block of data without a clean mark, of an inode that
//!   counts. The derived state of each inode has the number of such blocks, whether it counts or
//!   not. A change of content calls [`Tables::count_blocks`], under the inode's lock.
//! - dirty-N3: a scan counts everything again, also after a death within an operation.

use crate::fs::Core;
use crate::store::Storage;
use crate::tables::{CLEAN, COUNTED, Tables, VInode};
use arena::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The counts of a pool, in its derived state.
#[derive(Clone, Copy)]
pub struct DirtyCounts<'a> {
    inodes: &'a AtomicU64,
    blocks: &'a AtomicU64,
}

impl<'a> DirtyCounts<'a> {
    pub(crate) fn new([inodes, blocks]: &'a [AtomicU64; 2]) -> Self {
        Self { inodes, blocks }
    }

    /// Returns the inodes and the blocks that count.
    pub fn get(self) -> (u64, u64) {
        (self.inodes.load(Relaxed), self.blocks.load(Relaxed))
    }

    /// Adds to both counts.
    fn add(self, inodes: i64, blocks: i64) {
        for (count, n) in [(self.inodes, inodes), (self.blocks, blocks)] {
            if n != 0 {
                count.fetch_add(n as u64, Relaxed);
            }
        }
    }
}

impl Tables {
    /// Adds to the dirty blocks of a file (dirty-N2). The caller holds its lock exclusively.
    pub fn count_blocks(&self, v: &VInode, n: i64) {
        if n == 0 {
            return;
        }
        v.set_dirty_blocks(i64::from(v.dirty_blocks()) + n);
        if v.state.load(Relaxed) & COUNTED != 0 {
            self.dirty().add(0, n);
        }
    }
}

impl<S: Storage> Core<S> {
    /// Counts an inode whose name or clean mark may have come or gone (dirty-N1). The caller holds
    /// its lock exclusively.
    #[inline]
    pub fn count_inode(&self, v: &VInode) {
        if self.is_backed() {
            self.count_backed(v);
        }
    }

    fn count_backed(&self, v: &VInode) {
        let state = v.state.load(Relaxed);
        let (counts, counted) = (state & CLEAN == 0 && !v.has_no_name(), state & COUNTED != 0);
        if counts == counted {
            return;
        }
        let sign = match counts {
            true => {
                v.state.fetch_or(COUNTED, Relaxed);
                1
            }
            false => {
                v.state.fetch_and(!COUNTED, Relaxed);
                -1
            }
        };
        self.tables().dirty().add(sign, sign * i64::from(v.dirty_blocks()));
    }

    /// Counts all inodes at the end of a scan, which has counted the blocks of each (dirty-N3).
    pub(crate) fn count_all_inodes(&self) {
        if self.is_backed() {
            let slots = self.tables().inode_slots() as usize;
            let live = self.tables().inodes().iter().take(slots).filter(|v| v.is_live());
            live.for_each(|v| self.count_backed(v));
        }
    }
}
