//! A reader-writer lock in one word.
//!
//! Waiters spin briefly, then sleep on the word's futex. New readers queue behind a sleeping
//! waiter, so writers do not starve; therefore a thread must not take one lock twice, not even
//! shared.

#![allow(unsafe_code)]

use crate::Shared;
use crate::sync::{self, AtomicU32, fence};
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::sync::atomic::Ordering::*;

const WRITER: u32 = 1 << 31;
const WAITING: u32 = 1 << 30;
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };

/// Milliseconds between two checks of a waiter whether to go on.
pub const PATIENCE_MS: u32 = 10;

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Together with other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// The lock.
///
/// A reader that only copies data out, and can cope with inconsistent data, need not take the lock.
/// It takes a ticket, reads, and checks whether a writer held the lock meanwhile
/// ([`begin_optimistic`](Self::begin_optimistic)). That stores nothing, so readers do not slow each
/// other down.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RwLock {
    /// Readers in the low bits, then "a waiter sleeps", then "a writer holds it".
    state: AtomicU32,
    /// The number of times that a writer took or released the lock; odd while one holds it.
    version: AtomicU32,
}

// SAFETY: two atomic words; zero is "free".
unsafe impl Shared for RwLock {}

/// The version from which an optimistic reader started.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u32);

impl Ticket {
    /// Returns the version, which every writer changes.
    #[inline]
    pub fn version(self) -> u32 {
        self.0
    }
}

impl RwLock {
    /// Takes the lock, sleeping until it can.
    #[inline]
    pub fn lock(&self, mode: LockMode) {
        let _ = self.lock_while(mode, || true);
    }

    /// Takes the lock, sleeping until it can. Calls `patient` every [`PATIENCE_MS`] milliseconds,
    /// and gives up if that returns false. Returns whether the lock was taken.
    #[inline]
    pub fn lock_while(&self, mode: LockMode, patient: impl FnMut() -> bool) -> bool {
        self.try_lock(mode) || self.lock_slow(mode, patient)
    }

    /// Starts an optimistic read; `None` while a writer holds the lock.
    #[inline]
    pub fn begin_optimistic(&self) -> Option<Ticket> {
        let version = self.version.load(Acquire);
        version.is_multiple_of(2).then_some(Ticket(version))
    }

    /// Whether no writer held the lock since the ticket was taken: what was read is consistent. The
    /// load is sequentially consistent, for readers that announce themselves before it.
    #[inline]
    pub fn end_optimistic(&self, ticket: Ticket) -> bool {
        fence(Acquire);
        self.version.load(SeqCst) == ticket.0
    }

    /// Whether the caller, which holds the lock exclusively, is the first writer since the ticket
    /// was taken. Then what was read with the ticket is still valid.
    #[inline]
    pub fn is_first_since(&self, ticket: Ticket) -> bool {
        self.version.load(Relaxed) == ticket.0.wrapping_add(1)
    }

    /// Returns whether the caller, which holds the lock exclusively, is the first writer since the
    /// lock had this [version](Ticket::version).
    #[inline]
    pub fn is_first_since_version(&self, version: u32) -> bool {
        self.is_first_since(Ticket(version))
    }

    /// Takes the lock if that is possible without waiting. Returns whether it did.
    #[inline]
    pub fn try_lock(&self, mode: LockMode) -> bool {
        let taken = self.try_state(mode);
        if taken && mode == LockMode::Exclusive {
            self.bump();
        }
        taken
    }

    /// Counts that a writer takes or releases the lock, which it holds exclusively. The fence keeps
    /// its stores behind the count.
    #[inline]
    fn bump(&self) {
        let version = self.version.load(Relaxed).wrapping_add(1);
        self.version.store(version, Release);
        fence(Release);
    }

    /// Changes the state to locked, if that is possible without waiting. Does not count the writer.
    /// Fails also if another thread changes the state at that moment.
    #[inline]
    fn try_state(&self, mode: LockMode) -> bool {
        let seen = self.state.load(Relaxed);
        match mode {
            LockMode::Shared => {
                seen & (WRITER | WAITING) == 0
                    && self.state.compare_exchange(seen, seen + 1, Acquire, Relaxed).is_ok()
            }
            LockMode::Exclusive => {
                seen & !WAITING == 0
                    && self.state.compare_exchange(seen, seen | WRITER, Acquire, Relaxed).is_ok()
            }
        }
    }

    /// Spins, then sleeps until it has the lock. Calls `patient` after each [`PATIENCE_MS`] asleep;
    /// if that returns false, gives up and returns false.
    #[cold]
    fn lock_slow(&self, mode: LockMode, mut patient: impl FnMut() -> bool) -> bool {
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(PATIENCE_MS) * 1_000_000 };
        loop {
            for _ in 0..SPINS {
                if self.try_lock(mode) {
                    return true;
                }
                sync::spin_loop();
            }
            let seen = self.state.load(Relaxed);
            let held = seen & !WAITING != 0;
            if !held && seen != 0 {
                // No thread holds it, but WAITING is left over from a waiter that got in by
                // spinning.
                let _ = self.state.compare_exchange(seen, 0, Relaxed, Relaxed);
                sync::futex_wake(&self.state);
                continue;
            }
            if held
                && (seen & WAITING != 0
                    || self.state.compare_exchange(seen, seen | WAITING, Relaxed, Relaxed).is_ok())
            {
                // Woken, interrupted or changed meanwhile: in each case the loop tries again.
                let woken = sync::futex_wait(&self.state, seen | WAITING, &patience);
                if woken == Err(Errno::TIMEDOUT) && !patient() {
                    return false;
                }
            }
        }
    }

    /// Gives the lock back.
    #[inline]
    pub fn unlock(&self, mode: LockMode) {
        if mode == LockMode::Exclusive {
            self.bump();
        }
        let left = match mode {
            LockMode::Shared => self.state.fetch_sub(1, Release).wrapping_sub(1),
            LockMode::Exclusive => self.state.fetch_and(!WRITER, Release) & !WRITER,
        };
        if left == WAITING {
            let _ = self.state.compare_exchange(WAITING, 0, Relaxed, Relaxed);
            sync::futex_wake(&self.state);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Guarded(RwLock, UnsafeCell<[u64; 2]>);
    // SAFETY: the cell is only touched under the lock, as the test checks.
    unsafe impl Sync for Guarded {}

    #[test]
    fn writers_exclude_everybody() {
        let g = Guarded(RwLock::default(), UnsafeCell::new([0; 2]));
        std::thread::scope(|s| {
            for t in 0..4 {
                let g = &g;
                s.spawn(move || {
                    for i in 0..20_000 {
                        if (i + t) % 3 == 0 {
                            g.0.lock(LockMode::Exclusive);
                            // SAFETY: held exclusively.
                            let v = unsafe { &mut *g.1.get() };
                            v[0] += 1;
                            v[1] += 1;
                            g.0.unlock(LockMode::Exclusive);
                        } else {
                            g.0.lock(LockMode::Shared);
                            // SAFETY: held shared; writers are excluded.
                            let v = unsafe { &*g.1.get() };
                            assert_eq!(v[0], v[1]);
                            g.0.unlock(LockMode::Shared);
                        }
                    }
                });
            }
        });
        assert!(g.0.try_lock(LockMode::Exclusive));
        // SAFETY: held exclusively.
        let count = unsafe { (*g.1.get())[0] };
        assert_eq!(
            count,
            (0..4u64).map(|t| (0..20_000u64).filter(|i| (i + t) % 3 == 0).count() as u64).sum()
        );
    }
}
