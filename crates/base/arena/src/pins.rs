//! Reading without a copy: who holds pointers into PM, and blocks that may not be used again before.
//!
//! - pins-N1: a reader counts itself before it looks where the blocks are, under the file's lock. So
//!   whoever replaces a block after that, under the same lock, sees the count.
//! - pins-N2: while anybody is counted, freed blocks are not free but *deferred*. They become free when
//!   nobody is counted; the one who sees to it keeps new readers from counting themselves meanwhile.
//! - pins-N3: counts are kept by process, so that the dead can be taken off.
//! - pins-N4: what is deferred comes back. Who defers stores a note and then looks at the count of readers; the last reader,
//!   and who has drained, changes that count and then looks at the note. All of that is in one order, so one of them sees the
//!   other.

use crate::sync::{self, AtomicU64};
use crate::{Arena, Bitmap, Census, Layout, Refused, Span};
use std::sync::atomic::Ordering::*;

/// Set in the total while deferred blocks are being freed.
const DRAINING: u64 = 1 << 63;
/// Looks at a drain that does not end before it is in doubt (doubt-W1): seconds.
const LOOKS_TO_DOUBT: u32 = if cfg!(loom) { u32::MAX } else { 1 << 22 };

/// Readers without a copy, and the blocks that wait for them.
#[derive(Clone, Copy)]
pub struct Pins {
    /// `[0]` readers in all, `[1]` deferred blocks.
    words: Span<AtomicU64>,
    /// Readers of each process.
    by_process: Span<AtomicU64>,
    deferred: Bitmap,
}

/// What a word holds now, in one order with the changes of both words, which are all sequentially consistent. The model knows
/// no such loads, so there it is a change by nothing.
fn now(word: &AtomicU64) -> u64 {
    if cfg!(loom) { word.fetch_add(0, SeqCst) } else { word.load(SeqCst) }
}

impl Pins {
    /// Plans for `blocks` blocks; none of it can be derived.
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
    /// [`Refused::Stopped`] where the operation has to leave and start over.
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

    /// Takes a reader of this process off, if it has any; whether deferred blocks can now be freed.
    pub fn remove(&self, arena: &Arena) -> bool {
        let give = |n: u64| n.checked_sub(1);
        let counted =
            self.own(arena).is_ok_and(|own| own.fetch_update(AcqRel, Acquire, give).is_ok());
        counted && self.take_off(arena, 1)
    }

    /// Takes `n` readers off; whether deferred blocks can now be freed.
    fn take_off(&self, arena: &Arena, n: u64) -> bool {
        let left = self.total(arena).fetch_sub(n, SeqCst).wrapping_sub(n);
        left == 0 && now(self.waiting(arena)) > 0
    }

    /// Takes a dead process off (pins-N3); whether deferred blocks can now be freed.
    pub fn forget_process(&self, arena: &Arena, process: usize) -> bool {
        let n = arena.table(self.by_process)[process].swap(0, AcqRel);
        n > 0 && self.take_off(arena, n)
    }

    /// Whether there are readers. Under the lock of a file: whether there are any of that file (pins-N1).
    #[inline]
    pub fn any(&self, arena: &Arena) -> bool {
        self.total(arena).load(SeqCst) != 0
    }

    /// Defers blocks if there are readers (pins-N2); whether it did. Then it is to be followed by [`drain`](Self::drain)
    /// (pins-N4). `B` is what the pool calls a block, and its bit.
    #[inline]
    pub fn defer<B: Copy + Into<u64>>(&self, arena: &Arena, blocks: &[B]) -> bool {
        if !self.any(arena) || blocks.is_empty() {
            return false;
        }
        self.defer_slow(arena, blocks);
        true
    }

    #[cold]
    fn defer_slow<B: Copy + Into<u64>>(&self, arena: &Arena, blocks: &[B]) {
        for b in blocks {
            self.deferred.set(arena, (*b).into());
        }
        self.waiting(arena).fetch_add(blocks.len() as u64, SeqCst);
    }

    /// Calls `each` for the deferred blocks if there are no readers, and forgets them (pins-N2, pins-N4).
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

    /// After a recovery, with nobody inside: counts anew the readers of the living, and claims the
    /// deferred blocks again if there are any.
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
