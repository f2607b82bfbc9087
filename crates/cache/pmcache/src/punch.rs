//! Ranges of files that are replaced by zeros.
//!
//! - **punch-Z1** A range that is to be freed in the backing store is recorded first. From then on
//!   the operation is completed, also after a crash. Nothing else changes the file before the range
//!   is zeros in the shadow and in the backing file, durably, and the record is removed.

use crate::content::{Stop, WriteOffset};
use crate::node::{CacheNode, CacheNodeState, Cnode};
use crate::record::Punch;
use crate::{BLOCK, Cache};
use backing::Backing;
use std::ops::Range;
use vfs::{Errno, Fallocate, FileSystem, Result};

/// The maximum number of bytes stored as zeros; longer ranges are freed in the backing store.
const ZEROS_MAX: u64 = 256 << 10;

/// The reason why a range is not zeros, durably.
pub(crate) enum Unpunched {
    /// The backing store refused it. Nothing has changed.
    Refused(Errno),
    /// The range reads as zeros, but a later step failed.
    Begun(Errno),
}

impl From<Unpunched> for Errno {
    fn from(why: Unpunched) -> Self {
        match why {
            Unpunched::Refused(err) | Unpunched::Begun(err) => err,
        }
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Makes a range read as zeros, as far as the file reaches. Stores zeros, or, if the range is
    /// long or blocks are to be freed, makes a hole in the shadow and the backing file.
    pub(crate) fn zero(&self, node: &CacheNode, mode: Fallocate, range: &Range<u64>) -> Result<()> {
        self.change(node, ZEROS_MAX / BLOCK + 4, |state, io| {
            let size = self.cnode_to_change(node, state)?.size;
            let range = range.start..range.end.min(size);
            if range.is_empty() {
                self.before_change(node, state)?;
                let cnode = state.cached.as_mut().ok_or(Errno::IO)?;
                self.begin_dirty(node, cnode)?;
                return Ok(self.touch_times(cnode)?);
            }
            let len = range.end - range.start;
            let punch = Punch { offset: range.start, len };
            let frees = mode == Fallocate::PunchHole && !punch.whole_blocks(size).is_empty();
            if len <= ZEROS_MAX && !frees {
                let (at, cnode) =
                    self.prepare(node, state, io, WriteOffset::At(range.start), len)?;
                let zeros = vec![0; len as usize];
                self.pool.write(cnode.shadow, at, &zeros)?;
                cnode.ctime = (self.options.clock)();
                return Ok(());
            }
            io.ok_or(Stop::Below)?;
            self.before_change(node, state)?;
            let cnode = state.cached.as_mut().ok_or(Errno::IO)?;
            self.begin_dirty(node, cnode)?;
            self.keep_edges(node, cnode, &range)?;
            cnode.record.intent = Some(punch);
            // This is the commit: from here on the operation is completed, if need be when the pool
            // is attached after a crash.
            if let Err(err) = self.store_record(cnode) {
                cnode.record.intent = None;
                return Err(err.into());
            }
            let punched = self.punch(node, cnode);
            if let Err(Unpunched::Refused(_)) = punched {
                self.drop_intent(cnode)?;
            }
            punched.map_err(|err| Errno::from(err).into())
        })
    }

    /// Marks the blocks that a range cuts, so that the shadow has the bytes next to the range.
    fn keep_edges(
        &self,
        node: &CacheNode,
        cnode: &mut Cnode,
        range: &Range<u64>,
    ) -> std::result::Result<(), Stop> {
        for at in [range.start, range.end] {
            if !at.is_multiple_of(BLOCK) {
                let block = at / BLOCK;
                self.fetch_whole(node, cnode, &(block * BLOCK..(block + 1) * BLOCK))?;
                self.reserve(node, cnode, &(block..block + 1), at)?;
                self.mark(cnode, &(block..block + 1))?;
            }
        }
        Ok(())
    }

    /// Makes the hole that the record requests. If a step fails after it was begun, the rest is
    /// still to be done.
    pub(crate) fn punch(
        &self,
        node: &CacheNode,
        cnode: &mut Cnode,
    ) -> std::result::Result<(), Unpunched> {
        let Some(punch) = cnode.record.intent else { return Ok(()) };
        self.note_change(cnode);
        let whole = punch.whole_blocks(cnode.size);
        let below = whole.start * BLOCK..(whole.end * BLOCK).min(cnode.record.left.size);
        let mut noted = Ok(());
        if !below.is_empty() {
            let (start, len) = (below.start, below.end - below.start);
            let freed = self.change_below(node, cnode, |backing| {
                Ok(backing.fallocate(node.ino, Fallocate::PunchHole, start, len))
            });
            noted = match freed {
                Ok(Err(err)) => return Err(Unpunched::Refused(err)),
                noted => noted.map(drop),
            };
        }
        let done = self.pool.fallocate(cnode.shadow, Fallocate::PunchHole, punch.offset, punch.len);
        done.and_then(|()| self.unmark(cnode, &whole))
            .and(noted)
            .and_then(|()| self.backing.fsync(node.ino))
            .and_then(|()| self.drop_intent(cnode))
            .map_err(Unpunched::Begun)
    }

    /// Completes a hole that failed before, which comes before any other change of the file. Call
    /// it with the lock of the backing file.
    pub(crate) fn punch_again(&self, node: &CacheNode, state: &mut CacheNodeState) -> Result<()> {
        if !state.has_intent() {
            return Ok(());
        }
        self.check(node, state)?;
        let Some(cnode) = &mut state.cached else { return Ok(()) };
        self.punch(node, cnode).map_err(Errno::from)
    }

    /// Removes the hole from the record of a file.
    pub(crate) fn drop_intent(&self, cnode: &mut Cnode) -> Result<()> {
        cnode.record.intent = None;
        self.store_record(cnode)
    }
}

impl Punch {
    /// Returns the blocks that a hole frees. The last block counts even if the file, of this size,
    /// ends within it: the pool frees it, too.
    fn whole_blocks(self, size: u64) -> Range<u64> {
        let end = self.offset + self.len;
        let last = if end >= size { end.div_ceil(BLOCK) } else { end / BLOCK };
        self.offset.div_ceil(BLOCK)..last
    }
}
