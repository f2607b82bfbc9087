//! What threads meet at: atomics, fences, sleeping and waking. Those of std and of the kernel, or with
//! `--cfg loom` those of the model (`model.rs`).

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
        /// The key of the session that the thread has used last, and its slot there.
        pub(crate) fn last -> (u64, u32), "arena_last", 16
    }

    os::thread_cell! {
        /// What [`number`] has said; 0: nothing yet.
        fn known_number -> u32, "arena_number", 4
    }

    /// The calling thread's number, from 1; threads that begin one after the other have different ones.
    #[inline]
    pub(crate) fn number() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if known_number().get() == 0 {
            known_number().set(NEXT.fetch_add(1, Relaxed).max(1));
        }
        known_number().get()
    }

    /// Tells the kernel that others may make this process's threads fence, and that it may itself; whether
    /// it knows now. It forgets with the process image only: a child of a fork is registered as well.
    /// Costs next to nothing where it knows already or there is one thread, else some ten milliseconds.
    pub(crate) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    /// A fence of the calling thread and of all threads of [registered](register) processes; whether that
    /// was possible.
    pub(crate) fn make_all_fence() -> bool {
        membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    /// A fence of the calling thread and, if the process is [registered](register) and no filter forbids it,
    /// of the other ones.
    pub(crate) fn make_own_fence() {
        fence(SeqCst);
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }

    /// What the model asks of types in an arena: nothing here.
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

    /// Wakes all who sleep on the word.
    #[inline]
    pub(crate) fn futex_wake(word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Lets others run.
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
