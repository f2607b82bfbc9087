//! What belongs to a thread, one instruction away; and words of a process that has one thread only.
//!
//! `thread_local!` in a shared library asks the dynamic linker for its place at every use, which is a
//! good part of what a short call may cost. A library that is loaded with the program has its place
//! in the block that the thread pointer points to (the *initial-exec* model); libraries that are
//! loaded later find room there, too, as long as they need little.
//!
//! A locked instruction waits until all stores before it have arrived in the cache: after a copy of
//! 4 KiB, that takes longer than a short call may. Words that only one process changes, [`OwnU32`] and [`OwnU64`], are
//! changed without a lock where that process has one thread, as nobody can come between.

#![allow(unsafe_code)]

pub mod atomic;

use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Defines `fn NAME() -> *mut u8`: the calling thread's zeroed bytes, as many as said, aligned
/// to 16.
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

/// Defines `fn NAME() -> &'static Cell<TYPE>`: the calling thread's cell, by the name of its symbol and
/// with room for as many bytes as said. It starts with zeros, which have to be a value of the type, and
/// is there until the thread has ended.
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
            // SAFETY: only this thread uses the place, and whoever names the type answers for zeros.
            unsafe { &*$name::place().cast() }
        }
    };
}

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

macro_rules! own {
    ($name:ident, $word:ty, $value:ty, $instruction:literal, $register:tt) => {
        /// A word that only threads of one process change by what is here: of the one to whom it belongs, or of one that
        /// clears it away when that is dead. Others may read it.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name($word);

        impl $name {
            /// A word with this value.
            pub const fn new(value: $value) -> Self {
                Self(<$word>::new(value))
            }

            /// Stores `to` if the word is `from`; returns whether it was. Acquires and releases; a signal handler sees
            /// it before or after.
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

            /// Stores what `to` makes of the word, unless that is nothing; returns what was there.
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

            /// Stores `to`; returns what was there.
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
