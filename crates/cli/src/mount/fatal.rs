//! The last words of a server that dies by a signal of the memory: without them its log would be empty.

use std::ffi::{c_int, c_void};

/// Has SIGBUS say on stderr what it mostly means, before it ends the process as ever.
pub fn report() {
    // SAFETY: all zeros are an action without flags and mask; the handler keeps to what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        // The default comes back for the time after the handler.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn on_sigbus(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    const TEXT: &[u8] = b"keepstone: SIGBUS: memory of the pool or of the state beside it is gone: the pool was cut off, \
        its medium has failed, or /dev/shm is full. The server ends; every completed operation is in the pool. \
        `keepstone check` it, then mount it again\n";
    // SAFETY: a write of constant bytes, and a signal that ends the process when the handler returns, also if the
    // first one was sent and no access will be made again.
    unsafe {
        libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
        libc::raise(libc::SIGBUS);
    }
}
