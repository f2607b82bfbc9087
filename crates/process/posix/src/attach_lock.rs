//! A lock under which one thread of a process attaches pools, or forks.
//!
//! A thread that needs a pool while another thread attaches it waits: a file that it opened through
//! the kernel instead would stay the kernel's. It waits for a limited time, because the other
//! thread may be stopped, or its server may not answer. A thread that holds the lock itself does
//! not wait.
//!
//! A fork holds the lock as well, so that a child has a pool as a whole or not at all.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// The longest time that a thread waits for another one. Attaching takes less than a thousandth of
/// that.
const PATIENCE: futex::Timespec = futex::Timespec { tv_sec: 1, tv_nsec: 0 };

const FREE: u32 = 0;

/// [`FREE`], or the ID of the thread that holds it.
#[derive(Default)]
pub(crate) struct AttachLock(AtomicU32);

/// Holds the lock until it is dropped.
pub(crate) struct AttachHeld<'l>(&'l AttachLock);

impl AttachLock {
    /// Takes the lock. Returns `None` if this thread holds it, or another thread holds it for too
    /// long.
    pub fn hold(&self) -> Option<AttachHeld<'_>> {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        loop {
            match self.0.compare_exchange(FREE, own, Acquire, Relaxed) {
                Ok(_) => return Some(AttachHeld(self)),
                Err(holder) if holder == own => return None,
                Err(holder) => {
                    let waited =
                        futex::wait(&self.0, futex::Flags::PRIVATE, holder, Some(&PATIENCE));
                    if waited == Err(rustix::io::Errno::TIMEDOUT) {
                        return None;
                    }
                }
            }
        }
    }

    /// Takes over a lock whose [`AttachHeld`] was forgotten, or that a thread held which does not
    /// exist in a forked child.
    pub fn take_over(&self) -> AttachHeld<'_> {
        AttachHeld(self)
    }
}

impl Drop for AttachHeld<'_> {
    fn drop(&mut self) {
        self.0.0.store(FREE, Release);
        let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
    }
}
