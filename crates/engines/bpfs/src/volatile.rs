//! The volatile structures (§3.3): state that a mount derives from PM and keeps in the arena.
//!
//! - volatile-V1: a block's bit is set while the block is reachable from the superblock, or claimed
//!   by an operation in flight, or freed by the [`Pending`] commit, or one of the [`ZeroedBlocks`]
//!   or [`ApartRuns`].
//! - volatile-V2: the count of free blocks ([`arena::FreeCount`]) never exceeds the number of clear
//!   bits and blocks of these two: bits are cleared before it grows and claimed after it shrank, so
//!   a reservation is always honoured. A freed block waits while a reader without a copy may still
//!   use it ([`arena::Pins`]).
//!
//! The derived state of inodes and directories is in [`namespace::Tables`]; this module has the
//! part that only trees of blocks need.

use crate::layout::{INODES_PER_BLOCK, records};
use crate::leaves::LeafNotes;
use crate::order::Pending;
use crate::parents::Parents;
use crate::zeroed::ZeroedBlocks;
use arena::Layout;
use namespace::{ApartRuns, Memory, PoolLength, RecordLocks, Tables};
use std::ops::Deref;

/// All volatile state of one mounted pool.
pub struct Volatile {
    tables: Tables,
    pub zeroed: ZeroedBlocks,
    /// Blocks for pointers of thin pools, and for inodes and directories ([`crate::blocks`]).
    pub apart: ApartRuns,
    pub records: RecordLocks,
    pub pending: Pending,
    pub parents: Parents,
    pub leaves: LeafNotes,
    /// Held while a snapshot is deleted or copied, or the blocks of all are counted. Taken before
    /// the locks of inodes (leaves-J4).
    pub snapshots: RecordLocks,
}

/// The volatile state before it has memory.
pub struct VolatilePlan {
    tables: namespace::Plan,
    zeroed: ZeroedBlocks,
    apart: ApartRuns,
    records: RecordLocks,
    pending: Pending,
    parents: Parents,
    leaves: LeafNotes,
    snapshots: RecordLocks,
}

impl VolatilePlan {
    /// Plans the state for a pool that one process uses, or several.
    pub fn new(is_shared: bool, length: PoolLength) -> Self {
        let mut tables = namespace::Plan::new(is_shared, length, INODES_PER_BLOCK);
        let l = tables.layout();
        let records = RecordLocks::plan(l, records::COUNT);
        let apart = ApartRuns::plan(l, 2);
        let pending = Pending::plan(l);
        let parents = Parents::plan(l, length.blocks);
        let snapshots = RecordLocks::plan(l, 1);
        let zeroed = ZeroedBlocks::plan(l);
        let leaves = LeafNotes::plan(l, length.expected);
        Self { zeroed, apart, records, pending, parents, leaves, snapshots, tables }
    }

    /// Returns the places of all tables.
    pub fn layout(&mut self) -> &Layout {
        self.tables.layout()
    }

    /// Opens the state in this memory.
    pub fn open(self, memory: Memory) -> Volatile {
        let Self { tables, zeroed, apart, records, pending, parents, leaves, snapshots } = self;
        let tables = tables.open(memory);
        Volatile { tables, zeroed, apart, records, pending, parents, leaves, snapshots }
    }
}

/// The engine-independent state.
impl Deref for Volatile {
    type Target = Tables;

    #[inline]
    fn deref(&self) -> &Tables {
        &self.tables
    }
}
