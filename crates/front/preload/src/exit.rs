//! The end of the process.
//!
//! Whoever shares a pool has to repair what a thread leaves half-done, so other threads are kept out
//! of the engine before the process ends. What it held is taken back by the others.

#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::start::process;
use crate::{engine, fork, guard, real, stats};

/// Registers with libc: `exit` runs what was registered first last.
pub fn start() {
    extern "C" fn leave_at_exit() {
        // First: who forks may have to go inside.
        fork::end();
        leave();
    }
    // SAFETY: the handler is a function that stays.
    unsafe { libc::atexit(leave_at_exit) };
}

/// Keeps other threads out of the engine from now on.
pub fn leave() {
    if !guard::is_inside() {
        guard::run(stats::end);
        if process().is_some() {
            guard::run(engine::leave);
        }
    }
}

export! {
    fn _exit | _Exit (status: c_int) -> ! {
        leave();
        real::_exit(status)
    }
}
