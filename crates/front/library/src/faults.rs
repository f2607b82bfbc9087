//! The handler of SIGBUS of programs with pools (library-L2): the kernel has no page for a mapped
//! address.
//!
//! If the address is in the state that processes share, the handler makes room (`arena`, room-O2).
//! If it is in a pool that was truncated, or whose memory is broken, the handler maps zeros there
//! (`pmem`, lost-G1), and operations on the pool fail with `EIO`. A fault at any other address goes
//! to the handler that the program had before.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;

use libc::siginfo_t;

/// The action of the program, which the first call has replaced.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
pub fn install() -> io::Result<()> {
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: without a new action, the call only stores the present one, a plain structure.
    let before = unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        before.assume_init()
    };
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    // SAFETY: the action is zeros except for a handler of the right type. That only reads `BEFORE`,
    // makes system calls, and calls the handler of the program.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the arguments of a handler with SA_SIGINFO, which are passed on to
    // one of the same kind; a handler without it takes the number alone. An action of zeros is the
    // default action: the instruction faults again under it, and the process ends.
    unsafe {
        if pool::handle_fault((*info).si_addr() as usize) {
            return;
        }
        match BEFORE.get() {
            Some(before) if !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    type Detailed = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                    let of_program: Detailed = std::mem::transmute(before.sa_sigaction);
                    of_program(signal, info, context);
                } else {
                    let of_program: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                    of_program(signal);
                }
            }
            _ => {
                let action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
                // A signal that another process sent does not come again by itself.
                libc::raise(signal);
            }
        }
    }
}
