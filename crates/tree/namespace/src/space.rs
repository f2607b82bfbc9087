//! The free blocks, as all engines derive them: a bitmap with a bit for each block, and their
//! number. Each engine has its own way to search for blocks, and to take and give them back.

use crate::layout::BLOCK;
use crate::tables::Tables;
use arena::Census;
use pool::FreeSpace;
use std::ops::Range;

impl Tables {
    /// Sets the number of free blocks after a scan marked those in use.
    pub(crate) fn count_free_blocks(&self) {
        let clear = self.blocks.len() - self.blocks.count(&self.arena);
        // Hidden blocks are claimed. The pool may not take further ones beyond its size.
        let beyond = self.withheld().saturating_sub(self.hidden());
        self.free.set(&self.arena, clear.saturating_sub(beyond));
    }

    /// Returns the number of blocks that the pool may take: its size.
    pub fn size_in_blocks(&self) -> u64 {
        self.blocks.len() - self.withheld()
    }

    /// Returns the number of blocks neither in use nor reserved.
    pub fn free_blocks(&self) -> u64 {
        self.free.total(&self.arena)
    }

    /// Measures how free space lies.
    pub fn free_space(&self) -> FreeSpace {
        let mut free = FreeSpace::default();
        self.blocks.each_clear_run(&self.arena, |run| free.add(run, BLOCK));
        self.add_unprovisioned_runs(&mut free);
        free
    }

    /// Lets cleared blocks be reserved again.
    pub fn give_back(&self, cleared: u64) {
        if cleared > 0 {
            self.free.give(&self.arena, cleared);
        }
    }

    /// Lets blocks be claimed again that had to wait for readers, if no reader is left.
    pub fn clear_deferred(&self) {
        self.clear_deferred_by(|block| {
            self.blocks.clear(&self.arena, block);
        });
    }

    /// As [`clear_deferred`](Self::clear_deferred), with `clear` to clear a block's bit.
    pub fn clear_deferred_by(&self, clear: impl Fn(u64)) {
        let mut cleared = 0;
        self.pins().drain(&self.arena, |block| {
            clear(block);
            cleared += 1;
        });
        self.give_back(cleared);
    }

    /// Defers all blocks in use, if readers without a copy may be reading some: the state is
    /// derived again, and blocks to which nothing leads any more must not be free before these
    /// readers are done ([`recover_pins`](Self::recover_pins)).
    pub(crate) fn defer_used(&self) {
        if !self.pins().any(&self.arena) {
            return;
        }
        let mut next = 0;
        let defer = |used: Range<u64>| {
            // Blocks without space are claimed, and no process reads them.
            for block in used.filter(|block| self.has_space(*block)) {
                self.pins().defer(&self.arena, &[block]);
            }
        };
        self.blocks.each_clear_run(&self.arena, |free| {
            defer(next..free.start);
            next = free.end;
        });
        defer(next..self.blocks.len());
    }

    /// Claims the blocks again that readers without a copy, who are in the `census`, may be
    /// reading: these are not free.
    pub(crate) fn recover_pins(&self, census: &Census) {
        self.pins().recover(&self.arena, census, &self.blocks);
        self.count_free_blocks();
    }
}
