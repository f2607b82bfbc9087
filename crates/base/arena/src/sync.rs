//! Synchronization of threads: atomics, fences, sleeping and waking. They are those of std and the
//! kernel, or with `--cfg loom` those of the model (`model.rs`).

#[cfg(loom)]
pub(crate) use crate::model::*;
#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(not(loom))]
mod real {
    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, Timespec, futex, membarrier};
    pub(crate) use std::hint::spin_loop;
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, fence};
    pub(crate) use std::thread_local;

    os::thread_cell! {
        /// The key of the session that the thread used last, and its slot there.
        pub(crate) fn last -> (u64, u32), "arena_last", 16
    }

    os::thread_cell! {
        /// The thread's [`number`]; 0: not given yet.
        fn known_number -> u32, "arena_number", 4
    }

    /// Returns the calling thread's number, from 1. Each thread gets its own.
    #[inline]
    pub(crate) fn number() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if known_number().get() == 0 {
            known_number().set(NEXT.fetch_add(1, Relaxed).max(1));
        }
        known_number().get()
    }

    /// Registers the process with `membarrier(2)`, so that other processes, and it itself, may make
    /// its threads fence. Returns whether it is registered. A child of a fork inherits that; only
    /// `exec` ends it. Costs next to nothing if the process is registered or has one thread, else
    /// some ten milliseconds.
    pub(crate) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    /// Makes the calling thread and all threads of [registered](register) processes fence. Returns
    /// whether that was possible.
    pub(crate) fn make_all_fence() -> bool {
        membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    /// Makes the calling thread fence and, if the process is [registered](register) and no filter
    /// forbids it, its other threads.
    pub(crate) fn make_own_fence() {
        fence(SeqCst);
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }

    /// The requirement of the model for types in an arena; here it is empty.
    pub trait Modelled {}
    impl<T> Modelled for T {}

    /// Sleeps until woken, for as long as the word is `expected` and at most `patience`
    /// (`TIMEDOUT`); see futex(2) for the other errors.
    #[inline]
    pub(crate) fn futex_wait(
        word: &AtomicU32,
        expected: u32,
        patience: &Timespec,
    ) -> Result<(), Errno> {
        futex::wait(word, futex::Flags::empty(), expected, Some(patience))
    }

    /// Wakes all threads that sleep on the word.
    #[inline]
    pub(crate) fn futex_wake(word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Lets other threads run.
    #[inline]
    pub(crate) fn give_way() {
        rustix::thread::sched_yield();
    }

    /// Sleeps; a signal may end it early.
    #[inline]
    pub(crate) fn nap(how_long: &Timespec) {
        let _ = rustix::thread::nanosleep(how_long);
    }
}
