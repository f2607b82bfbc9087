//! The unwinder, which is loaded at the first unwinding.
//!
//! Rust's standard library uses the functions of libgcc_s: for panics, which become errors here,
//! and for backtraces. Linked as usual, libgcc_s would be loaded into every process that is
//! started, for 0.1 ms each. So the functions are defined here as jumps. The first one that is
//! called loads the library. glibc loads the same one when a thread is cancelled, so an unwinding
//! through frames of this library uses the same unwinder. The jumps are hidden: a program's own
//! calls go to its libgcc_s as before.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Addresses of the functions; null before they are loaded.
static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

/// Replaces a function if there is no libgcc_s: it reports that no frame catches, so that raising
/// gives up.
extern "C" fn nobody_catches() -> c_int {
    const URC_END_OF_STACK: c_int = 5;
    URC_END_OF_STACK
}

/// Loads the library, once or several times to the same effect; returns the address of one
/// function.
extern "C" fn load(index: usize) -> *mut c_void {
    // SAFETY: names are strings; loading libgcc_s runs nothing but its own constructor.
    let library = unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
    for (name, address) in NAMES.iter().zip(&ADDRESSES) {
        let found = if library.is_null() {
            std::ptr::null_mut()
        } else {
            // SAFETY: as above.
            unsafe { libc::dlsym(library, name.as_ptr()) }
        };
        let found = if found.is_null() { nobody_catches as *mut c_void } else { found };
        address.store(found, Relaxed);
    }
    ADDRESSES[index].load(Relaxed)
}

/// Defines a jump for each name. The unwinder starts from its caller's frame, so it must find the
/// stack as at the call; the registers of arguments are kept while the library is loaded. (Neither
/// `rax` nor `r11` holds one.)
macro_rules! jumps {
    ($($index:literal $name:literal,)*) => {
        const NAMES: [&std::ffi::CStr; [$($index),*].len()] = [$(crate::real::name(concat!($name, "\0"))),*];

        std::arch::global_asm!(
            $(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                concat!("mov rax, qword ptr [rip + {addresses} + 8 * ", $index, "]"),
                "test rax, rax",
                concat!("mov r11d, ", $index),
                "jz 7f",
                "jmp rax",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
            )*
            "7:",
            ".cfi_startproc",
            "push rdi", ".cfi_adjust_cfa_offset 8",
            "push rsi", ".cfi_adjust_cfa_offset 8",
            "push rdx", ".cfi_adjust_cfa_offset 8",
            "push rcx", ".cfi_adjust_cfa_offset 8",
            "push r8", ".cfi_adjust_cfa_offset 8",
            "mov edi, r11d",
            "call {load}",
            "pop r8", ".cfi_adjust_cfa_offset -8",
            "pop rcx", ".cfi_adjust_cfa_offset -8",
            "pop rdx", ".cfi_adjust_cfa_offset -8",
            "pop rsi", ".cfi_adjust_cfa_offset -8",
            "pop rdi", ".cfi_adjust_cfa_offset -8",
            "jmp rax",
            ".cfi_endproc",
            addresses = sym ADDRESSES,
            load = sym load,
        );
    };
}

jumps! {
    0 "_Unwind_RaiseException",
    1 "_Unwind_Resume",
    2 "_Unwind_DeleteException",
    3 "_Unwind_Backtrace",
    4 "_Unwind_GetIP",
    5 "_Unwind_GetIPInfo",
    6 "_Unwind_SetIP",
    7 "_Unwind_SetGR",
    8 "_Unwind_GetRegionStart",
    9 "_Unwind_GetTextRelBase",
    10 "_Unwind_GetDataRelBase",
    11 "_Unwind_GetLanguageSpecificData",
}
