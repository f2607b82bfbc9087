//! A seat records that a thread is inside, so that others can wait until it has come out
//! (direct-E1). Generic over atomics, so that the model checker runs it, too (`model.rs`).

use os::threads::atomic::Atomic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// The record of one thread.
#[derive(Default)]
pub struct Seat<W = AtomicU64, B = AtomicBool> {
    /// Incremented on the way in and on the way out: odd inside.
    turn: W,
    taken: B,
}

/// Fences of the machine, and its scheduler.
pub trait Machine {
    /// Orders what follows behind all that precedes, once another thread has called
    /// [`fence_all`](Self::fence_all).
    fn fence_lightly();

    /// Makes all threads fence; returns whether that was possible.
    fn fence_all() -> bool;

    /// Makes the calling thread fence.
    fn fence();

    /// Lets other threads run.
    fn give_way();
}

impl<W: Atomic<Value = u64>, B: Atomic<Value = bool>> Seat<W, B> {
    /// Takes a seat for the calling thread, unless another one has it.
    pub fn take<M: Machine>(&self) -> bool {
        let is_free = self.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        if is_free {
            // A thread that sees no seat taken, and so makes no other thread fence, had removed its
            // entry before the loads from here on.
            M::fence();
        }
        is_free
    }

    /// Gives the seat back when the calling thread ends.
    pub fn give_back(&self) {
        self.taken.store(false, Release);
    }

    /// Clears the seat of a thread that is not in this process.
    pub fn clear(&self) {
        self.turn.store(0, Relaxed);
        self.taken.store(false, Release);
    }

    /// Records that the calling thread, which has taken this seat, is inside. Calls do not nest.
    #[inline]
    pub fn enter<M: Machine>(&self) {
        let turn = self.turn.load(Relaxed);
        // A thread that sees this turn need not wait for the one before: its loads are done.
        self.turn.store((turn + 1) | 1, Release);
        // Later loads are made inside.
        M::fence_lightly();
    }

    /// Records that the calling thread is outside.
    #[inline]
    pub fn leave(&self) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn + 1, Release);
    }

    /// Returns whether a thread has the seat, inside or outside.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Acquire)
    }

    /// Waits until the thread has left, or has entered again.
    fn wait<M: Machine>(&self) {
        let turn = self.turn.load(Acquire);
        while turn % 2 == 1 && self.turn.load(Acquire) == turn {
            M::give_way();
        }
    }
}

/// Returns whether no thread has any of these seats of others. A thread that takes one later sees
/// what the caller did before.
pub fn is_alone<'s, W, B, M>(mut others: impl Iterator<Item = &'s Seat<W, B>>) -> bool
where
    W: Atomic<Value = u64> + 's,
    B: Atomic<Value = bool> + 's,
    M: Machine,
{
    M::fence();
    !others.any(Seat::is_taken)
}

/// Waits until every thread in these seats that is inside now has come out once. `false` if that
/// cannot be known, as the others cannot be made to fence.
#[must_use]
pub fn wait_for<'s, W, B, M, I>(others: impl Fn() -> I) -> bool
where
    W: Atomic<Value = u64> + 's,
    B: Atomic<Value = bool> + 's,
    M: Machine,
    I: Iterator<Item = &'s Seat<W, B>>,
{
    if is_alone::<W, B, M>(others()) {
        return true;
    }
    let is_fenced = M::fence_all();
    if is_fenced {
        others().filter(|seat| seat.is_taken()).for_each(Seat::wait::<M>);
    }
    is_fenced
}

#[cfg(test)]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};
    use loom::thread;

    /// Fences on both sides: `membarrier(2)` has no counterpart in the memory model of C11.
    struct Modelled;

    impl Machine for Modelled {
        fn fence_lightly() {
            loom::sync::atomic::fence(SeqCst);
        }
        fn fence_all() -> bool {
            loom::sync::atomic::fence(SeqCst);
            true
        }
        fn fence() {
            loom::sync::atomic::fence(SeqCst);
        }
        fn give_way() {
            thread::yield_now();
        }
    }

    type ModelSeat = Seat<AtomicU64, AtomicBool>;

    /// A table with one entry, which leads to a mapped chunk. Loom reports a thread that copies
    /// while it is unmapped.
    #[derive(Default)]
    struct SeatTable {
        seats: [ModelSeat; 2],
        entry: AtomicU64,
        chunk: UnsafeCell<()>,
    }

    impl SeatTable {
        /// Plays a thread that comes for the first time, copies, and ends.
        fn copy(&self, times: usize) {
            let seat = self.seats.iter().find(|seat| seat.take::<Modelled>()).unwrap();
            for _ in 0..times {
                seat.enter::<Modelled>();
                if self.entry.load(Acquire) == 1 {
                    self.chunk.with(|_| ());
                }
                seat.leave();
            }
            seat.give_back();
        }

        fn unmap(&self) {
            if self.entry.compare_exchange(1, 0, AcqRel, Relaxed).is_ok() {
                assert!(wait_for::<_, _, Modelled, _>(|| self.seats.iter()));
                self.chunk.with_mut(|_| ());
            }
        }
    }

    fn explore(copies: &'static [usize]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(3);
        builder.check(move || {
            let table = Arc::new(SeatTable::default());
            table.entry.store(1, Relaxed);
            let copiers: Vec<_> = copies
                .iter()
                .map(|times| {
                    let table = table.clone();
                    thread::spawn(move || table.copy(*times))
                })
                .collect();
            table.unmap();
            copiers.into_iter().for_each(|copier| copier.join().unwrap());
        });
    }

    #[test]
    fn nobody_copies_from_what_is_unmapped() {
        explore(&[2]);
    }

    #[test]
    fn two_threads_come_for_the_first_time() {
        explore(&[1, 1]);
    }
}
