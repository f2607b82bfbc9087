//! Thread-local cells that cost one instruction, and words that are changed without a lock while
//! the process has one thread.
//!
//! `thread_local!` in a shared library asks the dynamic linker for the address at every use, which
//! is a large part of the cost of a short call. A library that is loaded with the program has its
//! variables in the block at the thread pointer (the *initial-exec* model). Libraries that are
//! loaded later get room there, too, as long as they need little.
//!
//! A locked instruction waits until all stores before it have reached the cache: after a copy of 4
//! KiB, that takes longer than a short call should. Words that only one process changes, [`OwnU32`]
//! and [`OwnU64`], are changed without a locked instruction while that process has one thread, as
//! no other thread can interfere.

#![allow(unsafe_code)]

pub mod atomic;

use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Defines `fn NAME() -> *mut u8`, which returns the address of BYTES thread-local bytes, initially
/// zero and aligned to 16.
#[macro_export]
macro_rules! thread_bytes {
    ($(#[$doc:meta])* $visible:vis fn $name:ident, $symbol:literal, $bytes:literal) => {
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
        $visible fn $name() -> *mut u8 {
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

/// Defines `fn NAME() -> &'static Cell<TYPE>`, which returns the calling thread's cell. The
/// arguments are the name of its symbol and its size in bytes. The cell starts with zeros, which
/// must be a value of the type, and lives until the thread has ended.
#[macro_export]
macro_rules! thread_cell {
    ($(#[$doc:meta])* $visible:vis fn $name:ident -> $of:ty, $symbol:literal, $bytes:literal) => {
        mod $name {
            $crate::thread_bytes! { pub fn place, $symbol, $bytes }
        }

        $(#[$doc])*
        #[inline]
        $visible fn $name() -> &'static ::std::cell::Cell<$of> {
            const { assert!(size_of::<$of>() <= $bytes && align_of::<$of>() <= 16) };
            // SAFETY: only this thread uses the cell, and the user of the macro chose a type for
            // which zeros are a value.
            unsafe { &*$name::place().cast() }
        }
    };
}

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}

/// Whether the calling thread is the only one of its process. (libc clears the variable before it
/// starts a second thread; after that it may stay clear.)
#[inline]
pub fn is_only_one() -> bool {
    // SAFETY: a byte, which libc may change.
    unsafe { __libc_single_threaded.load(Relaxed) != 0 }
}

macro_rules! own {
    ($name:ident, $word:ty, $value:ty, $instruction:literal, $register:tt) => {
        /// A word that only threads of one process change: of the process that owns it, or after
        /// its death of a process that clears it. Other processes may read it.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name($word);

        impl $name {
            /// Makes a word with this value.
            pub const fn new(value: $value) -> Self {
                Self(<$word>::new(value))
            }

            /// Stores `to` if the word is `from`. Returns whether it was. Acquires and releases; a
            /// signal handler sees the old or the new value.
            #[inline]
            pub fn exchange(&self, from: $value, to: $value) -> bool {
                if !is_only_one() {
                    return self.0.compare_exchange(from, to, AcqRel, Relaxed).is_ok();
                }
                let seen: $value;
                // SAFETY: compares and stores the word.
                unsafe {
                    std::arch::asm!(
                        $instruction,
                        word = in(reg) self.0.as_ptr(),
                        to = in(reg) to,
                        inout($register) from => seen,
                        options(nostack),
                    );
                }
                seen == from
            }

            /// Stores the result of `to` for the word's value, unless that is `None`. Returns the
            /// old value: `Ok` if it stored.
            #[inline]
            pub fn modify(&self, to: impl Fn($value) -> Option<$value>) -> Result<$value, $value> {
                loop {
                    let seen = self.0.load(Relaxed);
                    let Some(to) = to(seen) else { return Err(seen) };
                    if self.exchange(seen, to) {
                        return Ok(seen);
                    }
                }
            }

            /// Stores `to`. Returns the old value.
            #[inline]
            pub fn replace(&self, to: $value) -> $value {
                match self.modify(|_| Some(to)) {
                    Ok(seen) | Err(seen) => seen,
                }
            }
        }

        impl Deref for $name {
            type Target = $word;

            #[inline]
            fn deref(&self) -> &$word {
                &self.0
            }
        }
    };
}

own!(OwnU32, AtomicU32, u32, "cmpxchg dword ptr [{word}], {to:e}", "eax");
own!(OwnU64, AtomicU64, u64, "cmpxchg qword ptr [{word}], {to}", "rax");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_cell() {
        thread_cell! { fn cell -> (u64, u32), "threads_test_cell", 16 }
        cell().set((1, 2));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| cell().replace((3, 4)));
            assert_eq!(other.join().unwrap(), (0, 0));
        });
        assert_eq!(cell().get(), (1, 2));
    }

    #[test]
    fn words_are_exchanged_if_they_are_as_said() {
        let (small, large) = (OwnU32::new(1), OwnU64::new(1 << 40));
        assert!(small.exchange(1, u32::MAX));
        assert!(!small.exchange(1, 2));
        assert!(large.exchange(1 << 40, u64::MAX));
        assert!(!large.exchange(1 << 40, 2));
        assert_eq!(small.replace(3), u32::MAX);
        assert_eq!(small.modify(|seen| seen.checked_sub(4)), Err(3));
        assert_eq!(small.modify(|seen| Some(seen + 1)), Ok(3));
        assert_eq!((small.load(Relaxed), large.load(Relaxed)), (4, u64::MAX));
    }

    #[test]
    fn a_thread_is_not_the_only_one_beside_another() {
        std::thread::scope(|scope| assert!(!scope.spawn(is_only_one).join().unwrap()));
    }
}
