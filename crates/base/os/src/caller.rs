//! The thread of another process for which a thread works.
//!
//! The server of a mount answers a request for a thread that waits in the kernel. A thread that is
//! killed then ends only when it has its answer. So a step that waits for long, and has changed
//! nothing yet, asks from time to time whether its caller [was killed](is_killed), and fails with
//! `EINTR` then: no program gets to see that.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// The thread's number; 0: none, or a step that must not fail.
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// `SIGKILL` in the masks of `/proc/THREAD/status`. The kernel adds it to the pending signals of
/// each thread of a process that any signal ends.
const SIGKILL: u64 = 1 << 8;

/// The time for which a thread works for another one.
pub struct Serving {
    former: u32,
    /// It belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

/// Works for a thread until the result is dropped. 0: for a thread that is not known.
#[must_use]
pub fn serve(thread: u32) -> Serving {
    Serving { former: CALLER.replace(thread), _not_send: PhantomData }
}

impl Drop for Serving {
    fn drop(&mut self) {
        CALLER.set(self.former);
    }
}

/// Runs a step that must not fail, whatever becomes of the caller.
pub fn uninterrupted<T>(step: impl FnOnce() -> T) -> T {
    let _serving = serve(0);
    step()
}

/// Returns whether the thread for which this one works was killed. Reads a file of `/proc`.
pub fn is_killed() -> bool {
    let caller = CALLER.get();
    let status = || std::fs::read_to_string(format!("/proc/{caller}/status")).ok();
    caller != 0 && status().is_some_and(|status| has_pending(&status, SIGKILL))
}

/// Returns whether one of the signals is pending for the thread of this status.
fn has_pending(status: &str, signals: u64) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    line.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|m| m & signals != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_ends_a_wait() {
        let status =
            |mask: &str| format!("State:\tD (disk sleep)\nSigPnd:\t{mask}\nShdPnd:\t0100\n");
        assert!(has_pending(&status("0000000000000100"), SIGKILL));
        assert!(has_pending(&status("0000000000014102"), SIGKILL));
        assert!(!has_pending(&status("0000000000004002"), SIGKILL));
        assert!(!has_pending("SigPnd:\tno mask\n", SIGKILL) && !has_pending("", SIGKILL));
    }

    #[test]
    fn a_thread_serves_the_last_caller_until_its_end() {
        assert!(!is_killed());
        let outer = serve(7);
        {
            let _inner = serve(8);
            assert_eq!((CALLER.get(), uninterrupted(|| CALLER.get())), (8, 0));
        }
        assert_eq!(CALLER.get(), 7);
        drop(outer);
        assert_eq!(CALLER.get(), 0);
        let _living = serve(std::process::id());
        assert!(!is_killed());
    }
}
