//! Whole lines in one store: MOVDIR64B.
//!
//! It takes 64 bytes from anywhere and writes them to an aligned line as one write, past the caches, of
//! which no part is ever seen without the rest (Intel SDM vol. 2, MOVDIR64B: "64-byte write
//! atomicity"). A line in a cache is written back and dropped first. It could overtake ordinary stores before
//! it, which are what tells readers to look again; so an SFENCE stands before it.

#![allow(unsafe_code)]

use crate::features::features;
use crate::flush::LINE;
use std::arch::asm;

/// A line's content.
pub type Line = [u8; LINE as usize];

/// Whether this CPU has the instruction.
pub(crate) fn available() -> bool {
    features().movdir64b
}

/// Stores a line, after everything that this CPU has stored; persistent after a fence.
///
/// # Safety
/// 1. `dst` is 64-byte aligned, and the line is mapped writable.
/// 2. [`available`].
#[inline]
pub(crate) unsafe fn store_line(dst: *mut u8, line: &Line) {
    // SAFETY: 1. and 2. are the caller's; the source is a reference. Memory is clobbered.
    unsafe {
        asm!("sfence", "movdir64b {dst}, [{src}]", dst = in(reg) dst, src = in(reg) line.as_ptr(),
            options(nostack, preserves_flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::store_fence;

    #[test]
    fn a_line_and_nothing_else() {
        #[repr(align(64))]
        struct Lines([u8; 192]);
        if !available() {
            return;
        }
        let mut lines = Lines([0xAA; 192]);
        let source: Vec<u8> = (1..=65).collect();
        let line = source[1..].try_into().unwrap();
        // SAFETY: 1. the second of three aligned lines; 2. just checked.
        unsafe { store_line(lines.0.as_mut_ptr().add(64), line) };
        store_fence();
        assert_eq!(lines.0[..64], [0xAA; 64]);
        assert_eq!(lines.0[64..128], source[1..]);
        assert_eq!(lines.0[128..], [0xAA; 64]);
    }
}
