//! Marks threads that are in the middle of a call.
//!
//! While a call is served (the engine holds locks, the library's own code runs), the thread is
//! *inside*:
//!
//! - calls that the library's code makes to functions that it exports go straight to libc;
//! - signal handlers of the program wait until the thread is outside again (see
//!   [`crate::signals`]).

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::siginfo_t;

/// The signals a thread blocks, as the kernel counts them: bit `n - 1` for signal `n`.
pub type Mask = u64;

/// A signal that came while its thread was inside.
struct Waiting {
    info: UnsafeCell<MaybeUninit<siginfo_t>>,
    /// The mask of the thread before.
    mask: Cell<Mask>,
    present: Cell<bool>,
}

#[repr(C)]
struct Thread {
    depth: Cell<u32>,
    /// Not 0: the thread may be cancelled at any instruction ([`crate::cancel`]).
    asynchronous: Cell<u32>,
    waiting: Waiting,
}

os::thread_bytes! {
    /// Returns the address of the calling thread's [`Thread`].
    fn place, "ks_guard_thread", 160
}

const _: () = assert!(size_of::<Thread>() <= 160 && align_of::<Thread>() <= 16);

#[inline]
fn thread() -> &'static Thread {
    // SAFETY: only this thread uses the place, whose zeros are a `Thread` that is outside;
    // references are not kept beyond calls.
    unsafe { &*place().cast() }
}

/// Checks whether this thread is serving a call.
#[inline]
pub fn is_inside() -> bool {
    thread().depth.get() > 0
}

/// Checks whether the thread is inside, or may be cancelled at any instruction.
#[inline(always)]
pub fn is_careful() -> bool {
    let thread = thread();
    thread.depth.get() | thread.asynchronous.get() != 0
}

/// Remembers whether the thread may be cancelled at any instruction.
pub fn set_asynchronous(asynchronous: bool) {
    thread().asynchronous.set(asynchronous.into());
}

/// A token: the thread is inside until this is dropped.
pub struct Inside(());

impl Inside {
    /// Enters.
    #[inline]
    pub fn enter() -> Self {
        let thread = thread();
        thread.depth.set(thread.depth.get() + 1);
        Self(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let thread = thread();
        let depth = thread.depth.get() - 1;
        thread.depth.set(depth);
        if depth == 0 && thread.waiting.present.get() {
            let (info, mask) = thread.waiting.take();
            crate::signals::send_again(&info, mask);
        }
    }
}

impl Waiting {
    fn take(&self) -> (siginfo_t, Mask) {
        // SAFETY: `keep` wrote it before it set `present`, on this thread. All signals are blocked
        // since, so it is not written now.
        let info = unsafe { (*self.info.get()).assume_init() };
        self.present.set(false);
        (info, self.mask.get())
    }
}

/// Keeps a signal until the thread is outside (preload-P3); `false` if one is kept already. The
/// caller blocks all signals of the interrupted code, so that no other follows.
pub fn keep(info: &siginfo_t, blocked_before: Mask) -> bool {
    let waiting = &thread().waiting;
    if waiting.present.get() {
        return false;
    }
    // SAFETY: only this thread uses the place, and it is empty, as `present` is false.
    unsafe { (*waiting.info.get()).write(*info) };
    waiting.mask.set(blocked_before);
    waiting.present.set(true);
    true
}

/// Runs the library's own code: inside, and without letting a panic into the program (preload-P4).
/// `None` after a panic.
#[inline]
pub fn run<T>(f: impl FnOnce() -> T) -> Option<T> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(f)).ok()
}

/// Lets signals through while `f` waits in the kernel. To be called at depth 1, with nothing held.
pub fn outside<T>(f: impl FnOnce() -> T) -> T {
    let thread = thread();
    thread.depth.set(thread.depth.get() - 1);
    let result = f();
    thread.depth.set(thread.depth.get() + 1);
    result
}
