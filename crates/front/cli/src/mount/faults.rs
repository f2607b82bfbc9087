//! What a server does at SIGBUS: the kernel has no page for an address that is mapped.
//!
//! In the state that processes share, room is made (`arena`, room-O2). In a pool that was truncated, or whose memory is
//! broken, zeros take the place of what is gone (`pmem`, lost-G1), and operations that meet it fail. Either way the server
//! goes on. Elsewhere there is nothing to go on with: the server says so and ends; what was durable stays so.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;

use libc::{c_void, siginfo_t};

const LAST_WORDS: &[u8] = b"SIGBUS: memory is broken, or /dev/shm is full; \
the server ends. What was durable stays so: mount again, and run `keepstone doctor`\n";

/// Takes SIGBUS over.
pub fn handle() -> io::Result<()> {
    // SAFETY: the action is zeros but for a handler of its type, which makes system calls only.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn handler(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes what a handler with SA_SIGINFO gets; an action of zeros is the default one. The signal
    // raised here ends the process when the handler returns, also where nothing would be executed again.
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
