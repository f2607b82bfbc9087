//! The state word of a chunk (chunk-K1–K3): it decides which threads may store to the chunk, and
//! which one changes its protection. Generic over atomics, so that the model checker runs it, too.

use os::threads::atomic::AtomicNumber;
use std::sync::atomic::{AtomicU32, Ordering::*};

const USERS: u32 = 0xffff;
const OPEN: u32 = 1 << 16;
const CHANGING: u32 = 1 << 17;
const USED: u32 = 1 << 18;
const DRAIN: u32 = 1 << 19;
const LISTED: u32 = 1 << 20;

/// The number of threads that store to a chunk, and flags.
#[derive(Debug, Default)]
pub(super) struct GuardState<W = AtomicU32>(W);

/// The result of an attempt to store to a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The caller is counted among its users.
    Counted,
    /// The caller has set `CHANGING`: it must make the chunk writable and then call
    /// [`GuardState::opened`].
    ToOpen,
    /// Another thread changes its protection, or is about to.
    Busy,
}

/// The result of a check by the closer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Closed, and no longer listed.
    Unlisted,
    /// Open and without users at the time of the check: to be closed, if
    /// [`GuardState::begin_close`] succeeds.
    Idle(u32),
    /// To be checked again later.
    Busy,
}

impl<W: AtomicNumber<Value = u32>> GuardState<W> {
    /// Whether the chunk is open. The load orders no other accesses.
    pub fn is_open(&self) -> bool {
        self.0.load(Relaxed) & OPEN != 0
    }

    /// Returns the current value, for [`begin_close`](Self::begin_close).
    pub fn seen(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Sets `CHANGING` on a closed chunk (chunk-K1), without waiting. Returns whether it did.
    pub fn begin_change(&self) -> bool {
        let seen = self.0.load(Relaxed) & LISTED;
        self.0.compare_exchange(seen, seen | CHANGING, Acquire, Relaxed).is_ok()
    }

    /// Ends the change: the chunk is closed again.
    pub fn end_change(&self) {
        self.0.fetch_and(!CHANGING, Release);
    }

    /// Counts the caller among the users of an open chunk (chunk-K2), or lets it open a closed one.
    pub fn enter(&self) -> Entered {
        loop {
            let seen = self.0.load(Relaxed);
            if seen & (CHANGING | DRAIN) != 0 {
                return Entered::Busy;
            }
            let (next, entered) = match seen & OPEN {
                0 => (seen | CHANGING, Entered::ToOpen),
                _ => ((seen | USED) + 1, Entered::Counted),
            };
            if self.0.compare_exchange(seen, next, Acquire, Relaxed).is_ok() {
                return entered;
            }
        }
    }

    /// Marks the chunk as open, with the caller as its user. Returns whether it was listed before.
    pub fn opened(&self) -> bool {
        let is_listed = self.0.load(Relaxed) & LISTED != 0;
        self.0.store(LISTED | OPEN | USED | 1, Release);
        is_listed
    }

    /// Takes the caller off the users after its store. If it was the last user of a chunk that is
    /// to be closed, returns the value for [`begin_close`](Self::begin_close): then the caller
    /// closes the chunk.
    pub fn leave(&self) -> Option<u32> {
        let left = self.0.fetch_sub(1, Release) - 1;
        (left & DRAIN != 0 && left & USERS == 0).then_some(left)
    }

    /// Sets `CHANGING` on an open chunk without users, if its state still is `seen` (chunk-K1).
    pub fn begin_close(&self, seen: u32) -> bool {
        seen & (USERS | CHANGING) == 0
            && self.0.compare_exchange(seen, CHANGING | LISTED, Acquire, Relaxed).is_ok()
    }

    /// Marks the chunk as closed.
    pub fn end_close(&self) {
        self.0.store(LISTED, Release);
    }

    /// Checks a listed chunk; only the closer calls this. A chunk that was not used since the last
    /// check is [`Idle`](Found::Idle). With `is_tired` (in use for too many checks), it sets
    /// `DRAIN`: the chunk gets no new users.
    pub fn look(&self, is_tired: bool) -> Found {
        let seen = self.0.load(Relaxed);
        if seen == LISTED {
            let unlisted = self.0.compare_exchange(LISTED, 0, Relaxed, Relaxed).is_ok(); // chunk-K3
            return if unlisted { Found::Unlisted } else { Found::Busy };
        }
        if seen & CHANGING != 0 {
            Found::Busy
        } else if seen & USERS == 0 && (is_tired || seen & USED == 0) {
            Found::Idle(seen)
        } else if is_tired {
            self.0.fetch_or(DRAIN, Relaxed);
            // The last user may have left before the flag was there.
            Found::Idle(self.seen())
        } else {
            self.0.fetch_and(!USED, Relaxed);
            Found::Busy
        }
    }
}

#[cfg(test)]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;
    use std::sync::atomic::AtomicBool;

    /// A chunk and whether it is writable. Loom reports a store while the protection is changed.
    #[derive(Default)]
    struct Chunk {
        state: GuardState<AtomicU32>,
        protection: UnsafeCell<()>,
        is_writable: AtomicBool,
    }

    impl Chunk {
        fn protect(&self, is_writable: bool) {
            self.protection.with_mut(|_| self.is_writable.store(is_writable, Relaxed));
        }

        fn store(&self) {
            self.protection.with(|_| assert!(self.is_writable.load(Relaxed), "it is closed"));
        }

        /// As `Table::keep`.
        fn keep(&self) {
            loop {
                match self.state.enter() {
                    Entered::Counted => break,
                    Entered::Busy => thread::yield_now(),
                    Entered::ToOpen => {
                        self.protect(true);
                        self.state.opened();
                        break;
                    }
                }
            }
            self.store();
            if let Some(seen) = self.state.leave() {
                self.close(seen);
            }
        }

        /// As `Table::lift_chunk`.
        fn lift(&self) {
            if self.state.begin_change() {
                self.protect(true);
                self.store();
                self.protect(false);
                self.state.end_change();
            }
        }

        fn close(&self, seen: u32) {
            if self.state.begin_close(seen) {
                self.protect(false);
                self.state.end_close();
            }
        }

        fn look(&self, is_tired: bool) -> bool {
            match self.state.look(is_tired) {
                Found::Unlisted => return true,
                Found::Idle(seen) => self.close(seen),
                Found::Busy => {}
            }
            false
        }
    }

    /// Two checks of the closer, the first with `is_tired`.
    fn look_twice(chunk: &Chunk) {
        chunk.look(true);
        chunk.look(false);
    }

    fn explore(one: fn(&Chunk), other: fn(&Chunk)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(3);
        builder.check(move || {
            let chunk = Arc::new(Chunk::default());
            let shared = chunk.clone();
            let thread = thread::spawn(move || other(&shared));
            one(&chunk);
            thread.join().unwrap();
            // In every schedule the chunk is closed in the end.
            let was_opened = chunk.state.seen() != 0;
            assert!(!was_opened || (0..4).any(|_| chunk.look(false)), "it stays open");
            chunk.protection.with(|_| assert!(!chunk.is_writable.load(Relaxed)));
        });
    }

    #[test]
    fn two_who_store() {
        explore(Chunk::keep, Chunk::keep);
    }

    #[test]
    fn one_who_stores_and_the_closer() {
        explore(look_twice, Chunk::keep);
    }

    #[test]
    fn one_who_comes_again() {
        explore(look_twice, |chunk| {
            chunk.keep();
            chunk.keep();
        });
    }

    #[test]
    fn one_who_keeps_it_open_and_one_who_does_not() {
        explore(Chunk::keep, Chunk::lift);
    }
}
