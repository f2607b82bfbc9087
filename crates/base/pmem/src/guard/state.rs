//! The state word of a chunk (chunk-K1–K3): who may store to it, and who changes its protection. Generic over atomics, so
//! that the model checker runs it, too.

use os::threads::atomic::AtomicNumber;
use std::sync::atomic::{AtomicU32, Ordering::*};

const USERS: u32 = 0xffff;
const OPEN: u32 = 1 << 16;
const CHANGING: u32 = 1 << 17;
const USED: u32 = 1 << 18;
const DRAIN: u32 = 1 << 19;
const LISTED: u32 = 1 << 20;

/// How many threads are storing to a chunk, and flags.
#[derive(Debug, Default)]
pub(super) struct State<W = AtomicU32>(W);

/// What comes of an attempt to store to a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The caller is counted among its users.
    Counted,
    /// The caller has set `CHANGING`: it makes the chunk writable and says so ([`State::opened`]).
    ToOpen,
    /// Somebody changes its protection, or is about to.
    Busy,
}

/// What the closer finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Closed, and no longer listed.
    Unlisted,
    /// Open and without users, or so it seemed: to be closed, if [`State::begin_close`] can.
    Idle(u32),
    /// To be looked at again.
    Busy,
}

impl<W: AtomicNumber<Value = u32>> State<W> {
    /// Whether it is open, for what that tells without an order.
    pub fn is_open(&self) -> bool {
        self.0.load(Relaxed) & OPEN != 0
    }

    /// As it is now, for [`begin_close`](Self::begin_close).
    pub fn seen(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Sets `CHANGING` on a closed chunk (chunk-K1), if it can be done at once.
    pub fn begin_change(&self) -> bool {
        let seen = self.0.load(Relaxed) & LISTED;
        self.0.compare_exchange(seen, seen | CHANGING, Acquire, Relaxed).is_ok()
    }

    /// It is closed again.
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

    /// It is writable now, and the caller among its users. Whether it was listed before.
    pub fn opened(&self) -> bool {
        let is_listed = self.0.load(Relaxed) & LISTED != 0;
        self.0.store(LISTED | OPEN | USED | 1, Release);
        is_listed
    }

    /// The caller has stored. Where it was the last of whom the closer waits for, it closes the chunk: what it saw, for
    /// [`begin_close`](Self::begin_close).
    pub fn leave(&self) -> Option<u32> {
        let left = self.0.fetch_sub(1, Release) - 1;
        (left & DRAIN != 0 && left & USERS == 0).then_some(left)
    }

    /// Sets `CHANGING` on a chunk that was seen without users, if nothing has changed since (chunk-K1).
    pub fn begin_close(&self, seen: u32) -> bool {
        seen & (USERS | CHANGING) == 0
            && self.0.compare_exchange(seen, CHANGING | LISTED, Acquire, Relaxed).is_ok()
    }

    /// It is closed.
    pub fn end_close(&self) {
        self.0.store(LISTED, Release);
    }

    /// What the closer does with a listed chunk: one that is unused since the last look is closed, one of which it `is_tired`
    /// takes no more users.
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

    /// A chunk and whether it is writable. Loom reports who stores while its protection is changed.
    #[derive(Default)]
    struct Chunk {
        state: State<AtomicU32>,
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

    /// The closer, who is tired of it, and then is not.
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
            // Whatever has happened, it is closed in the end.
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
