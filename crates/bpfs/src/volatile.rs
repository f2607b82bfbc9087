//! The volatile structures (§3.3): what is derived from PM at mount and kept in the arena.
//!
//! - volatile-V1: a block's bit is set while the block is reachable from the superblock, or claimed by an
//!   operation in flight, or one of the [`ZeroedBlocks`].
//! - volatile-V2: the count of free blocks ([`FreeCount`]) never exceeds the number of clear bits and pre-zeroed blocks: bits
//!   are cleared before it grows and claimed after it shrank, so a reservation is always honoured.
//!   A freed block that somebody may still be reading without a copy waits ([`arena::Pins`]).
//!
//! What is derived of inodes and directories is in [`namespace::Tables`]; here is what only trees of blocks need.

use crate::layout::{BLOCK, INODES_PER_BLOCK};
use crate::zeroed::ZeroedBlocks;
use arena::{Bitmap, FreeCount, Layout};
use derived::Sizes;
use namespace::{Memory, Tables};
use std::ops::Deref;

/// All volatile state of one mounted pool.
pub struct Volatile {
    tables: Tables,
    pub blocks: Bitmap,
    pub free: FreeCount,
    pub zeroed: ZeroedBlocks,
}

/// The volatile state before it has memory.
pub struct Plan {
    tables: namespace::Plan,
    blocks: Bitmap,
    free: FreeCount,
    zeroed: ZeroedBlocks,
}

impl Plan {
    /// For a pool of `blocks` blocks that one process uses, or several.
    pub fn new(is_shared: bool, blocks: u64) -> Self {
        let sizes = Sizes {
            inodes: (blocks * INODES_PER_BLOCK).min(1 << 31),
            blocks,
            // A line for 32 KiB, and for every second name of a pool that is full of directories.
            buckets: (blocks as usize / 8).clamp(1 << 7, 1 << 28),
            names: (blocks as usize * 64).min((1 << 31) - 2),
        };
        let mut tables = namespace::Plan::new(is_shared, sizes);
        let l = tables.layout();
        Self {
            blocks: Bitmap::plan(l, blocks),
            free: FreeCount::plan(l),
            zeroed: ZeroedBlocks::plan(l),
            tables,
        }
    }

    /// Where everything is.
    pub fn layout(&mut self) -> &Layout {
        self.tables.layout()
    }

    /// The state in this memory: empty, so that a scan can fill it, unless others have.
    pub fn open(self, memory: Memory) -> Volatile {
        match memory {
            Memory::Fresh { arena, seed, secret } => {
                let v = self.with(|tables| tables.begin(arena, seed, secret));
                v.clear();
                v
            }
            Memory::Joined(arena) => self.with(|tables| tables.join(arena)),
        }
    }

    fn with(self, tables: impl FnOnce(namespace::Plan) -> Tables) -> Volatile {
        Volatile {
            tables: tables(self.tables),
            blocks: self.blocks,
            free: self.free,
            zeroed: self.zeroed,
        }
    }
}

/// What all engines have.
impl Deref for Volatile {
    type Target = Tables;

    #[inline]
    fn deref(&self) -> &Tables {
        &self.tables
    }
}

impl Volatile {
    /// Begins with an empty pool.
    pub fn clear(&self) {
        self.tables.clear(self.blocks.len() * BLOCK);
        self.blocks.init(&self.arena);
    }
}
