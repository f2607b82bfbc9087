//! A task that one thread does for all others, which wait until it is done.

use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Time after which a waiting thread ends the turn: its holder may be in the process that forked
/// this one.
const LONGEST: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The turn to do the task. All zeros: free.
#[derive(Default)]
pub struct Turn(AtomicU32);

/// A token: the turn is taken until this is dropped.
pub struct Taken<'t>(&'t Turn);

impl Turn {
    /// Starts over. No other thread knows the place.
    pub fn reset(&self) {
        self.0.store(FREE, Relaxed);
    }

    /// Whether a thread has the turn.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.0.load(Relaxed) != FREE
    }

    /// Takes the turn. `None`: another thread had it, and is done now.
    pub fn take(&self) -> Option<Taken<'_>> {
        if self.0.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok() {
            return Some(Taken(self));
        }
        while self.is_taken() {
            let waited = futex::wait(&self.0, futex::Flags::PRIVATE, TAKEN, Some(&LONGEST));
            if waited == Err(rustix::io::Errno::TIMEDOUT) {
                self.0.store(FREE, Relaxed);
            }
        }
        None
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.0.store(FREE, Release);
        let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, u32::MAX >> 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn one_does_it_and_the_others_wait() {
        let (turn, done) = (Turn::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let first = turn.take().unwrap();
            for _ in 0..4 {
                scope.spawn(|| {
                    // A thread that comes late may get the turn.
                    let taken = turn.take();
                    assert!(taken.is_some() || done.load(Relaxed) == 1);
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            done.store(1, Relaxed);
            drop(first);
        });
        assert!(!turn.is_taken());
    }

    /// As in a child whose parent had the turn.
    #[test]
    fn nobody_waits_for_who_is_gone() {
        let turn = Turn::default();
        std::mem::forget(turn.take());
        assert!(turn.take().is_none());
        assert!(turn.take().is_some());
    }
}
