//! Reading without a copy: counts of readers that hold pointers into PM, and blocks that must not
//! be used again before these readers are done.
//!
//! - pins-N1: a reader counts itself before it reads where the blocks are, under the file's lock.
//!   So a thread that replaces a block after that, under the same lock, sees the count.
//! - pins-N2: while any reader is counted, freed blocks are not free but *deferred*. They become
//!   free when no reader is counted. The thread that frees them keeps new readers from counting
//!   themselves meanwhile.
//! - pins-N3: counts are kept by process, so that the counts of dead processes can be subtracted.
//! - pins-N4: deferred blocks become free in the end. A thread that defers blocks counts them, and
//!   then reads the count of readers. The last reader, and a thread that has drained, changes the
//!   count of readers, and then reads the count of deferred blocks. All of these accesses are in
//!   one order, so one of the threads sees the other's change.

use crate::sync::{self, AtomicU64};
use crate::{Arena, Bitmap, Census, Layout, Refused, Span};
use std::sync::atomic::Ordering::*;

/// Set in the total while deferred blocks are being freed.
const DRAINING: u64 = 1 << 63;
/// Checks of a drain that does not end before it is in doubt (doubt-W1). They take seconds.
const LOOKS_TO_DOUBT: u32 = if cfg!(loom) { u32::MAX } else { 1 << 22 };

/// The readers without a copy, and the deferred blocks.
#[derive(Clone, Copy)]
pub struct Pins {
    /// `[0]`: number of all readers; `[1]`: number of deferred blocks.
    words: Span<AtomicU64>,
    /// The number of readers of each process.
    by_process: Span<AtomicU64>,
    deferred: Bitmap,
}

/// Loads a word in one order with the changes of both words, which are all sequentially consistent.
/// The model has no such loads, so there it adds 0.
fn now(word: &AtomicU64) -> u64 {
    if cfg!(loom) { word.fetch_add(0, SeqCst) } else { word.load(SeqCst) }
}

impl Pins {
    /// Plans for `blocks` blocks. Its tables cannot be derived, so they come before
    /// [`Layout::begin_derived`].
    pub fn plan(layout: &mut Layout, blocks: u64, processes: usize) -> Self {
        Self {
            words: layout.table(2),
            by_process: layout.table(processes),
            deferred: Bitmap::plan(layout, blocks),
        }
    }

    #[inline]
    fn total<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        &arena.table(self.words)[0]
    }

    #[inline]
    fn waiting<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        &arena.table(self.words)[1]
    }

    #[inline]
    fn own<'a>(&self, arena: &'a Arena) -> Result<&'a AtomicU64, Refused> {
        Ok(&arena.table(self.by_process)[arena.process()?])
    }

    /// Counts a reader of this process (pins-N1).
    ///
    /// # Errors
    /// [`Refused::Stopped`] if the operation has to leave and start over.
    pub fn add(&self, arena: &Arena) -> Result<(), Refused> {
        let own = self.own(arena)?;
        let total = self.total(arena);
        let count = |n: u64| (n & DRAINING == 0).then_some(n + 1);
        let mut looks = 0_u32;
        while total.fetch_update(SeqCst, Relaxed, count).is_err() {
            looks += 1;
            if looks == LOOKS_TO_DOUBT {
                arena.doubt();
            }
            if arena.should_give_up() {
                return Err(Refused::Stopped);
            }
            sync::give_way();
        }
        own.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Subtracts a reader of this process, if it has any. Returns whether deferred blocks can now
    /// be freed.
    pub fn remove(&self, arena: &Arena) -> bool {
        let give = |n: u64| n.checked_sub(1);
        let counted =
            self.own(arena).is_ok_and(|own| own.fetch_update(AcqRel, Acquire, give).is_ok());
        counted && self.take_off(arena, 1)
    }

    /// Subtracts `n` readers. Returns whether deferred blocks can now be freed.
    fn take_off(&self, arena: &Arena, n: u64) -> bool {
        let left = self.total(arena).fetch_sub(n, SeqCst).wrapping_sub(n);
        left == 0 && now(self.waiting(arena)) > 0
    }

    /// Subtracts the readers of a dead process (pins-N3). Returns whether deferred blocks can now
    /// be freed.
    pub fn forget_process(&self, arena: &Arena, process: usize) -> bool {
        let n = arena.table(self.by_process)[process].swap(0, AcqRel);
        n > 0 && self.take_off(arena, n)
    }

    /// Whether there are readers. Under the lock of a file, no reader of that file is missed
    /// (pins-N1).
    #[inline]
    pub fn any(&self, arena: &Arena) -> bool {
        self.total(arena).load(SeqCst) != 0
    }

    /// Defers blocks if there are readers (pins-N2). Returns whether it did; then the caller must
    /// call [`drain`](Self::drain) (pins-N4). `B` is the pool's type of block numbers, which are
    /// also the numbers of bits.
    #[inline]
    pub fn defer<B: Copy + Into<u64>>(&self, arena: &Arena, blocks: &[B]) -> bool {
        if !self.any(arena) || blocks.is_empty() {
            return false;
        }
        self.defer_slow(arena, blocks);
        true
    }

    /// Marks the blocks as deferred, then counts them (pins-N4).
    #[cold]
    fn defer_slow<B: Copy + Into<u64>>(&self, arena: &Arena, blocks: &[B]) {
        for b in blocks {
            self.deferred.set(arena, (*b).into());
        }
        self.waiting(arena).fetch_add(blocks.len() as u64, SeqCst);
    }

    /// If no readers are counted, removes all deferred blocks and calls `each` with their numbers,
    /// to free them. New readers wait until it is done (pins-N2, pins-N4). Otherwise does nothing.
    pub fn drain(&self, arena: &Arena, mut each: impl FnMut(u64)) {
        let (total, waiting) = (self.total(arena), self.waiting(arena));
        while now(total) == 0 && total.compare_exchange(0, DRAINING, SeqCst, Relaxed).is_ok() {
            waiting.swap(0, SeqCst);
            self.deferred.drain(arena, &mut each);
            total.swap(0, SeqCst);
            if now(waiting) == 0 {
                break;
            }
        }
    }

    /// Counts the readers of living processes again after a recovery, with no thread inside. If
    /// there are readers, claims the deferred blocks again.
    pub fn recover(&self, arena: &Arena, census: &Census, blocks: &Bitmap) {
        let by_process = arena.table(self.by_process);
        for dead in census.dead() {
            by_process[dead].store(0, Relaxed);
        }
        let sum = by_process.iter().fold(0_u64, |sum, of| sum.wrapping_add(of.load(Relaxed)));
        let n = sum & !DRAINING;
        self.total(arena).store(n, Release);
        let mut deferred = Vec::new();
        self.deferred.drain(arena, |b| deferred.push(b));
        self.waiting(arena).store(0, Release);
        if n > 0 {
            deferred.retain(|b| blocks.set(arena, *b));
            for b in &deferred {
                self.deferred.set(arena, *b);
            }
            self.waiting(arena).store(deferred.len() as u64, Release);
        }
    }
}
