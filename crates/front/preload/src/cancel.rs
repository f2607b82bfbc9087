//! Threads that are cancelled (`pthread_cancel`).
//!
//! libc ends such a thread by unwinding it. That must not happen in the middle of the engine.
//!
//! - **cancel-X1** A thread that may be cancelled at any instruction
//!   (`PTHREAD_CANCEL_ASYNCHRONOUS`) is cancelled only at cancellation points while it is in a
//!   function of the library.
//! - **cancel-X2** A call that is served is a cancellation point if libc's function is a
//!   cancellation point ([`test`]), before it does anything. A thread that waits for a lock of
//!   records waits in libc's function, and is cancelled there.
//! - **cancel-X3** While the thread is inside ([`crate::guard`]), it meets no cancellation point:
//!   the library makes system calls itself, or calls functions that it exports.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use libc::{size_t, ssize_t};

use crate::{guard, real};

const ASYNCHRONOUS: c_int = 1;
const DEFERRED: c_int = 0;
const DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// Makes a call during which the thread cannot be cancelled. Owns nothing, so that another cause
/// may unwind the thread from `call`.
pub fn not_here<T>(call: impl FnOnce() -> T) -> T {
    let mut state = 0;
    // SAFETY: room for the old state.
    unsafe { pthread_setcancelstate(DISABLE, &mut state) };
    let result = call();
    // SAFETY: the old state may be left out.
    unsafe { pthread_setcancelstate(state, std::ptr::null_mut()) };
    result
}

/// Makes a call for a thread that is inside (cancel-X3), or that may be cancelled at any
/// instruction (cancel-X1). Owns nothing, so that the thread may be unwound from any place outside
/// of `call`.
#[cold]
#[inline(never)]
pub fn careful<T>(call: impl FnOnce() -> T) -> T {
    let null = std::ptr::null_mut();
    if guard::is_inside() {
        return not_here(call);
    }
    // SAFETY: the old type may be left out.
    unsafe { real::pthread_setcanceltype(DEFERRED, null) };
    guard::set_asynchronous(false);
    let result = call();
    guard::set_asynchronous(true);
    // SAFETY: as above.
    unsafe { real::pthread_setcanceltype(ASYNCHRONOUS, null) };
    result
}

/// Ends the thread here if it is cancelled (cancel-X2), but not within the library's own code.
#[inline]
pub fn test() {
    if !guard::is_inside() {
        // SAFETY: no preconditions.
        unsafe { pthread_testcancel() };
    }
}

/// `pthread_setcanceltype` of libc.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    // Sets the flag before the thread can be cancelled anywhere, and clears it after that is no
    // longer possible.
    let is_asynchronous = kind == ASYNCHRONOUS;
    if is_asynchronous {
        guard::set_asynchronous(true);
    }
    // SAFETY: the caller's.
    let result = unsafe { real::pthread_setcanceltype(kind, old) };
    if result == 0 {
        guard::set_asynchronous(is_asynchronous);
    }
    result
}

export! {
    // A cancellation point of libc. The standard library and the engines call it for random numbers
    // while the thread is inside.
    fn getrandom (buf: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
        real::getrandom(buf, len, flags)
    }
}
