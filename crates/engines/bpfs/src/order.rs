//! The order of commits without a fence at the end of each operation: the mode `ordered`
//! ([`pool::DurabilityMode`]), which is PMAL's PMAL-O and BPFS' epochs (§4) without durability.
//!
//! In the mode `journal`, an operation ends with the fence that makes its commit durable. In
//! `ordered`, an operation that prepares its change behind a fence may leave its commit *pending*:
//! stored, and neither flushed nor fenced. The fence before the next commit makes it durable, so an
//! operation costs one fence less.
//!
//! - order-O1: at most one commit of a pool is pending. It is in a line of pointers or of an inode,
//!   recorded in the state that processes share before the locks of what it changes are given back.
//!   An operation that finds another one pending ends with a fence, as in `journal`.
//! - order-O2: an operation makes the pending commit durable before its own commit, and before any
//!   store to bytes that the pool had shown before the pending commit. So a crash leaves a prefix
//!   of the operations, also of those of several threads and processes: a commit that an operation
//!   can have seen was recorded before that operation got its locks. A commit that is recorded
//!   later is of an operation at the same time.
//! - order-O3: any thread makes it durable by itself, by a flush of the line and a fence
//!   ([`Volatile::order`], [`Volatile::settle`]). The fence of a CPU does not wait for flushes of
//!   another, so it does not matter which one stored.
//! - order-O4: blocks that the pending commit freed stay in use until it is durable. A commit that
//!   frees more blocks than the record has room for is not left. The same
//!   holds for a commit that drops a subtree ([`crate::parents`]).
//! - order-O5: content is never pending, only what leads to it. A mount flushes all pointers and
//!   inodes (scan-S6), so no commit is lost if all processes that use a pool are killed.
//! - order-O6: inode numbers, directory entries and redo records are used again only behind a fence
//!   of the operation that gave them back. So operations on names are not left, nor are those that
//!   commit by a record, by a line, or by a word of content: these have no fence before their
//!   commit that could serve the commit before.

use crate::blocks::Txn;
use crate::layout::BlockNo;
use crate::volatile::Volatile;
use arena::atomic::AtomicU64;
use arena::{Arena, Layout, Span};
use pmem::{Fenced, Medium, Pm, PmOff};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::*;

/// The blocks that a pending commit can have freed.
const FREED: usize = 8;

/// The record of the pending commit.
#[derive(Clone, Copy)]
pub struct Pending(Span<AtomicU64>);

/// The words of the record. [`State`](PendingWord::State) is 0 if no commit is pending, [`BUSY`] while it
/// is recorded, and then an even number that no other commit has had.
#[derive(Clone, Copy)]
enum PendingWord {
    State,
    Last,
    Place,
    Count,
    /// The first of [`FREED`] blocks.
    Blocks,
}

/// The state of a record that is being written. Its thread still holds the locks, so no other
/// operation has seen the commit.
const BUSY: u64 = 1;

/// A pending commit.
pub struct LeftCommit {
    state: u64,
    place: PmOff,
    freed: SmallVec<[BlockNo; FREED]>,
}

impl Pending {
    /// Plans the record; it is derived state, as a recovery makes all commits durable (order-O5).
    pub fn plan(l: &mut Layout) -> Self {
        Self(l.table(16))
    }

    fn slot<'a>(&self, arena: &'a Arena, slot: PendingWord) -> &'a AtomicU64 {
        &arena.table(self.0)[slot as usize]
    }

    fn blocks<'a>(&self, arena: &'a Arena) -> &'a [AtomicU64] {
        &arena.table(self.0)[PendingWord::Blocks as usize..][..FREED]
    }

    /// Returns the pending commit.
    #[inline]
    fn left(&self, arena: &Arena) -> Option<LeftCommit> {
        match self.slot(arena, PendingWord::State).load(Acquire) {
            0 | BUSY => None,
            state => self.load_left(arena, state),
        }
    }

    /// Loads the commit of this state, or the one that has taken its place meanwhile.
    fn load_left(&self, arena: &Arena, mut state: u64) -> Option<LeftCommit> {
        while !matches!(state, 0 | BUSY) {
            let place = PmOff::new(self.slot(arena, PendingWord::Place).load(Acquire));
            let count = self.slot(arena, PendingWord::Count).load(Acquire) as usize;
            let freed = self.blocks(arena).iter().take(count);
            let freed = freed.filter_map(|block| BlockNo::new(block.load(Acquire))).collect();
            let now = self.slot(arena, PendingWord::State).load(Acquire);
            if now == state {
                return Some(LeftCommit { state, place, freed });
            }
            state = now;
        }
        None
    }

    /// Records a commit as pending, unless another one is (order-O1).
    fn leave(&self, arena: &Arena, place: PmOff, freed: &[BlockNo]) -> bool {
        let state = self.slot(arena, PendingWord::State);
        if freed.len() > FREED || state.compare_exchange(0, BUSY, AcqRel, Relaxed).is_err() {
            return false;
        }
        let number = self.slot(arena, PendingWord::Last).load(Relaxed) + 2;
        self.slot(arena, PendingWord::Last).store(number, Relaxed);
        self.slot(arena, PendingWord::Place).store(place.get(), Relaxed);
        self.slot(arena, PendingWord::Count).store(freed.len() as u64, Relaxed);
        for (slot, block) in self.blocks(arena).iter().zip(freed) {
            slot.store(block.get(), Relaxed);
        }
        state.store(number, SeqCst);
        true
    }

    /// Removes the record of a commit that is durable now; returns whether no other thread has.
    fn remove(&self, arena: &Arena, left: &LeftCommit) -> bool {
        let state = self.slot(arena, PendingWord::State);
        state.compare_exchange(left.state, 0, AcqRel, Relaxed).is_ok()
    }
}

impl Volatile {
    /// Returns the number of blocks that become free when the pending commit is durable.
    pub fn freed_by_pending(&self) -> u64 {
        let becomes_free = |block: &&BlockNo| !self.is_shared(**block);
        let freed = |left: LeftCommit| left.freed.iter().filter(becomes_free).count() as u64;
        self.pending.left(&self.arena).map_or(0, freed)
    }

    /// Fences what a commit leads to, and makes the pending commit durable before it (order-O2,
    /// order-O3).
    #[track_caller]
    #[inline]
    pub fn order<M: Medium>(&self, medium: &Pm<M>) -> Fenced {
        let left = self.pending.left(&self.arena);
        if let Some(left) = &left {
            medium.flush(left.place, 8);
        }
        let ready = medium.fence();
        if let Some(left) = left {
            self.end_pending(&left);
        }
        ready
    }

    /// Makes durable the commit that is pending, if any (order-O3). Returns whether blocks became
    /// free.
    #[track_caller]
    #[inline]
    pub fn settle<M: Medium>(&self, medium: &Pm<M>) -> bool {
        let Some(left) = self.pending.left(&self.arena) else { return false };
        medium.flush(left.place, 8);
        let _ = medium.fence();
        self.end_pending(&left)
    }

    /// Frees the blocks of a commit that is durable now (order-O4); returns whether there are any.
    fn end_pending(&self, left: &LeftCommit) -> bool {
        let is_removed = self.pending.remove(&self.arena, left);
        if is_removed && !left.freed.is_empty() {
            self.release(&left.freed);
        }
        is_removed && !left.freed.is_empty()
    }
}

impl Txn<'_> {
    /// As [`Volatile::order`].
    #[track_caller]
    #[inline]
    pub fn fence<M: Medium>(&self, medium: &Pm<M>) -> Fenced {
        self.tables().order(medium)
    }

    /// Commits by a word of a pointer block or an inode, behind a fence, and ends the operation
    /// ([`end_commit`](Self::end_commit)).
    #[track_caller]
    #[inline]
    pub fn commit<M: Medium>(&mut self, medium: &Pm<M>, at: PmOff, value: u64) {
        let ready = self.fence(medium);
        medium.publish_word(at, value, ready);
        self.end_commit(medium, at);
    }

    /// Ends an operation whose commit is stored in the line of `at`, and which has freed all blocks
    /// that it frees: leaves the commit pending in the mode `ordered`, unless the file has a
    /// stronger mode by itself, and otherwise makes it durable.
    #[track_caller]
    #[inline]
    pub fn end_commit<M: Medium>(&mut self, medium: &Pm<M>, at: PmOff) {
        let tables = self.tables();
        if !self.is_journal
            && tables.leaves_fences()
            && self.dropped.is_empty()
            && tables.pending.leave(&tables.arena, at, self.freed())
        {
            self.keep_freed();
            // The mode may have changed meanwhile.
            if !tables.leaves_fences() {
                tables.settle(medium);
            }
            return;
        }
        medium.flush(at, 8);
        let _ = medium.fence();
    }
}
