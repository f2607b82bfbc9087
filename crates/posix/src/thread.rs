//! What belongs to a thread, one instruction away.
//!
//! `thread_local!` in a shared library asks the dynamic linker for its place at every use, which is a
//! good part of what a short call may cost. A library that is loaded with the program has its place
//! in the block that the thread pointer points to (the *initial-exec* model); libraries that are
//! loaded later find room there, too, as long as they need little.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}

/// Whether the calling thread is the only one of its process. (libc says so before it starts another
/// one; after that, in doubt, it says no.)
#[inline]
pub fn is_only_one() -> bool {
    // SAFETY: a byte, which libc may change.
    unsafe { __libc_single_threaded.load(Relaxed) != 0 }
}

/// Defines `fn NAME() -> *mut u8`: the calling thread's zeroed bytes, as many as said, aligned
/// to 16.
#[macro_export]
macro_rules! thread_bytes {
    ($(#[$doc:meta])* fn $name:ident, $symbol:literal, $bytes:literal) => {
        std::arch::global_asm!(
            ".section .tbss,\"awT\",@nobits",
            ".p2align 4",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", ", $bytes),
            concat!($symbol, ":"),
            concat!(".zero ", $bytes),
            ".text",
        );

        $(#[$doc])*
        #[inline]
        fn $name() -> *mut u8 {
            let place: *mut u8;
            // SAFETY: reads the thread pointer and the distance of the variable from it.
            unsafe {
                std::arch::asm!(
                    "mov {place}, qword ptr fs:[0]",
                    concat!("add {place}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    place = out(reg) place,
                    options(nostack, pure, readonly),
                );
            }
            place
        }
    };
}
