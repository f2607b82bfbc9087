//! A lock that a fork can carry over: the forking thread holds it, and both parent and child
//! release it.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

#[derive(Default)]
pub struct Lock(AtomicU32);

/// A token: the lock is held until this is dropped.
pub struct Held<'l>(&'l Lock);

impl Lock {
    /// Waits for the lock.
    pub fn hold(&self) -> Held<'_> {
        if self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            while self.0.swap(WAITED_FOR, Acquire) != FREE {
                let _ = futex::wait(&self.0, futex::Flags::PRIVATE, WAITED_FOR, None);
            }
        }
        Held(self)
    }

    /// Takes over a lock whose [`Held`] was forgotten, on either side of a fork.
    pub fn take_over(&self) -> Held<'_> {
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Release) == WAITED_FOR {
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        }
    }
}
