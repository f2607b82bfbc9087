//! The space of the backing store: what programs write has to fit there.
//!
//! - below-S1: files gain at most what is free below, less a part for names and inodes. The pool
//!   counts what they gain (growth-G1 in `namespace`), and this module sets the limit.
//! - below-S2: bytes are settled after a pass that has written them, and after the limit was set to
//!   what the pass has left free. Bytes that a pass has not written stay counted.
//! - below-S3: calls that lack space below share a write-back. In [`ROOM_EVERY`] after its end,
//!   another one begins for them only if files have gained something since. Otherwise it would
//!   hardly find more space.
//!
//! Other programs may fill the backing store meanwhile. Then changes stay in the pool until there
//! is space.

use crate::counters::Written;
use crate::loading::Loading;
use crate::lock;
use backing::Backing;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use vfs::{Backed, Ino};

/// Names and inodes get the free space below divided by this number.
const FOR_NAMES: u64 = 16;

/// The time from the end of a write-back for space below to the next one.
const ROOM_EVERY: Duration = Duration::from_secs(1);

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Limits what files gain to what is free below (below-S1), and returns the bytes that they may
    /// gain still. Long-lived processes call this periodically.
    pub fn follow_space_below(&self) -> u64 {
        let space = self.space_below();
        self.pool().limit_growth(space);
        // Of files that were removed nothing is left to be written.
        let removed = self.pool().gained().saturating_sub(self.used_bytes());
        self.pool().settle(removed);
        space.saturating_sub(self.pool().gained())
    }

    fn used_bytes(&self) -> u64 {
        let pool = self.pool().statfs();
        (pool.blocks - pool.blocks_free) * u64::from(pool.block_size)
    }

    /// Returns the bytes below that what the pool holds may still take.
    pub(crate) fn taken_below(&self) -> u64 {
        self.pool().gained().min(self.used_bytes())
    }

    /// Returns the bytes below that files may take.
    fn space_below(&self) -> u64 {
        let below = self.backing().statfs();
        let free = below.blocks_available.saturating_mul(u64::from(below.block_size));
        free - free / FOR_NAMES
    }

    /// Counts what a pool that was just attached may have to write back: at most all that it holds.
    pub(crate) fn begin_space_below(&self) {
        self.follow_space_below();
        if self.pool().gained() == 0 {
            self.pool().gain(self.used_bytes());
        }
    }

    /// Settles what was gained before a pass, except what it has not written (below-S2).
    pub(crate) fn settle_space_below(&self, gained: u64, written: &Written) {
        let failed = written.errors.iter().map(|(ino, _)| *ino);
        let left: BTreeSet<Ino> =
            failed.chain(written.conflicts.iter().chain(&written.unwritten).copied()).collect();
        let left: u64 = left.into_iter().map(|ino| self.dirty_bytes(ino)).sum();
        self.follow_space_below();
        self.pool().settle(gained.saturating_sub(left));
    }

    /// Writes back if programs may not gain this number of bytes. Returns whether they may then.
    pub(crate) fn make_room_below(&self, bytes: u64) -> bool {
        if self.follow_space_below() >= bytes {
            return false;
        }
        // below-S3.
        let mut last = lock(self.room_below());
        let is_over = |at: Instant| at.elapsed() >= ROOM_EVERY;
        if last.is_none_or(|(at, gained)| is_over(at) || gained != self.pool().gained()) {
            // Its errors are in the status.
            let _ = self.write_back_all();
            *last = Some((Instant::now(), self.pool().gained()));
        }
        drop(last);
        self.follow_space_below() >= bytes
    }
}
