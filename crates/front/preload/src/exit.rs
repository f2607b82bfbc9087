//! The end of the process.
//!
//! If a thread dies in the middle of an operation, the other processes of the pool have to repair
//! it. So other threads are kept out of the engine before the process ends. The other processes
//! then take back what it held.

#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::start::process;
use crate::{engine, fork, guard, real, record, stats};

/// Registers with libc, whose `exit` runs the handlers in reverse order of registration.
pub fn start() {
    extern "C" fn leave_at_exit() {
        if fork::owns_memory() {
            // First: a thread that forks may have to enter the engine.
            fork::end();
            leave();
        }
    }
    // SAFETY: the handler is a function that stays.
    unsafe { libc::atexit(leave_at_exit) };
}

/// Keeps other threads out of the engine from now on.
pub fn leave() {
    if !guard::is_inside() && fork::owns_memory() {
        guard::run(stats::end);
        if process().is_some() {
            guard::run(engine::leave);
            guard::run(record::end);
        }
    }
}

export! {
    fn _exit | _Exit (status: c_int) -> ! {
        leave();
        real::_exit(status)
    }
}
