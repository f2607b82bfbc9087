//! Stores of whole lines: MOVDIR64B.
//!
//! The instruction reads 64 bytes from any address and writes them to an aligned line, past the
//! caches, as one atomic write (Intel SDM vol. 2, MOVDIR64B: "64-byte write atomicity"). If the
//! line is in a cache, it is written back and dropped first. The write could overtake earlier
//! ordinary stores, by which readers detect a change. So an SFENCE precedes it.

#![allow(unsafe_code)]

use crate::features::features;
use crate::flush::LINE;
use std::arch::asm;

/// The content of a line.
pub type Line = [u8; LINE as usize];

/// Whether this CPU has the instruction.
pub(crate) fn available() -> bool {
    features().movdir64b
}

/// Stores a line, after all earlier stores of this CPU; persistent after a fence.
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
