//! Variables of the environment that the library reads.
//!
//! In a program with other rights than its caller's (`AT_SECURE`: set-user-ID, capabilities of its
//! file) no variable is read: the caller chose the environment. The loader ignores `LD_PRELOAD`
//! there, but programs are also linked with the library.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// Reads a variable of the environment, before the program changes it; `None` in a privileged
/// program.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: 1. the name is a string; 2. no thread changes the environment this early; 3. what is
    // returned is null or a string that stays while nothing changes the environment.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Checks whether the variable is set, as [`variable`] sees it.
pub fn is_set(name: &CStr) -> bool {
    variable(name).is_some()
}
