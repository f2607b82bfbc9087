//! What belongs to a thread, one instruction away; and words of a process that has one thread only.
//!
//! `thread_local!` in a shared library asks the dynamic linker for its place at every use, which is a
//! good part of what a short call may cost. A library that is loaded with the program has its place
//! in the block that the thread pointer points to (the *initial-exec* model); libraries that are
//! loaded later find room there, too, as long as they need little.
//!
//! A locked instruction waits until all stores before it have arrived in the cache: after a copy of
//! 4 KiB, that takes longer than a short call may. Where nobody can come between, there is
//! [`exchange_u32`], [`exchange_u64`] and [`swap_u32`].

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

macro_rules! exchange {
    ($name:ident, $word:ty, $value:ty, $instruction:literal, $register:tt) => {
        /// Stores `to` in a word that only threads of this process store to, if it is `from`; returns
        /// whether it was. Acquires and releases; a signal handler sees it before or after.
        #[inline]
        pub fn $name(word: &$word, from: $value, to: $value) -> bool {
            if !is_only_one() {
                return word.compare_exchange(from, to, AcqRel, Relaxed).is_ok();
            }
            let seen: $value;
            // SAFETY: compares and stores the word.
            unsafe {
                std::arch::asm!(
                    $instruction,
                    word = in(reg) word.as_ptr(),
                    to = in(reg) to,
                    inout($register) from => seen,
                    options(nostack),
                );
            }
            seen == from
        }
    };
}

exchange!(exchange_u32, AtomicU32, u32, "cmpxchg dword ptr [{word}], {to:e}", "eax");
exchange!(exchange_u64, AtomicU64, u64, "cmpxchg qword ptr [{word}], {to}", "rax");

/// Stores `to` in a word that only threads of this process store to; returns what was there.
#[inline]
pub fn swap_u32(word: &AtomicU32, to: u32) -> u32 {
    loop {
        let seen = word.load(Relaxed);
        if exchange_u32(word, seen, to) {
            return seen;
        }
    }
}

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
        let (small, large) = (AtomicU32::new(1), AtomicU64::new(1 << 40));
        assert!(exchange_u32(&small, 1, u32::MAX));
        assert!(!exchange_u32(&small, 1, 2));
        assert!(exchange_u64(&large, 1 << 40, u64::MAX));
        assert!(!exchange_u64(&large, 1 << 40, 2));
        assert_eq!(swap_u32(&small, 3), u32::MAX);
        assert_eq!((small.into_inner(), large.into_inner()), (3, u64::MAX));
    }

    #[test]
    fn a_thread_is_not_the_only_one_beside_another() {
        std::thread::scope(|scope| assert!(!scope.spawn(is_only_one).join().unwrap()));
    }
}
