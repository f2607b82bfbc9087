//! The handler of SIGBUS in a server: the kernel has no page for a mapped address.
//!
//! If the address is in the state that processes share, the handler makes room (`arena`, room-O2).
//! If it is in a pool that was truncated, or whose memory is broken, the handler maps zeros there
//! (`pmem`, lost-G1), and operations on the pool fail. In both cases the server continues. At any
//! other address the server reports the fault and ends; durable data stays durable.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;

use libc::{c_void, siginfo_t};

const LAST_WORDS: &[u8] = b"SIGBUS: memory is broken, or /dev/shm is full; \
the server ends. What was durable stays so: mount again, and run `keepstone doctor`\n";

/// Installs the handler of SIGBUS.
pub fn handle() -> io::Result<()> {
    // SAFETY: the action is zeros except for a handler of the right type, which only makes system
    // calls.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn handler(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes the arguments of a handler with SA_SIGINFO; an action of zeros is
    // the default action. The signal raised here ends the process when the handler returns, even if
    // the faulting instruction would not be executed again.
    unsafe {
        if pool::handle_fault((*info).si_addr() as usize) {
            return;
        }
        let _ = libc::write(2, LAST_WORDS.as_ptr().cast(), LAST_WORDS.len());
        let action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        libc::raise(signal);
    }
}
