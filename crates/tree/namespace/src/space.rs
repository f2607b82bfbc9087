//! Which blocks are free, as all engines derive it: a bit a block, and their number. What an engine takes and gives back in
//! an operation, and where it looks for it, is its own.

use crate::layout::BLOCK;
use crate::tables::Tables;
use arena::Census;
use pool::FreeSpace;

impl Tables {
    /// Sets the number of free blocks after a scan marked those in use.
    pub(crate) fn count_free_blocks(&self) {
        let free = self.blocks.len() - self.blocks.count(&self.arena);
        self.free.set(&self.arena, free);
    }

    /// Blocks neither in use nor reserved.
    pub fn free_blocks(&self) -> u64 {
        self.free.total(&self.arena)
    }

    /// How free space lies.
    pub fn free_space(&self) -> FreeSpace {
        let mut free = FreeSpace::default();
        self.blocks.each_clear_run(&self.arena, |run| free.add(run, BLOCK));
        free
    }

    /// Lets cleared blocks be reserved again.
    pub fn give_back(&self, cleared: u64) {
        if cleared > 0 {
            self.free.give(&self.arena, cleared);
        }
    }

    /// Lets blocks be claimed again that had to wait for readers, if nobody reads any more.
    pub fn clear_deferred(&self) {
        self.clear_deferred_by(|block| {
            self.blocks.clear(&self.arena, block);
        });
    }

    /// As [`clear_deferred`](Self::clear_deferred), where `clear` is how a block's bit is cleared.
    pub fn clear_deferred_by(&self, clear: impl Fn(u64)) {
        let mut cleared = 0;
        self.pins().drain(&self.arena, |block| {
            clear(block);
            cleared += 1;
        });
        self.give_back(cleared);
    }

    /// Of the `census` are those who read without a copy: what they may be reading is claimed again, and so is not free.
    pub(crate) fn recover_pins(&self, census: &Census) {
        self.pins().recover(&self.arena, census, &self.blocks);
        self.count_free_blocks();
    }
}
