//! Cache-line flushes and the store fence.

#![allow(unsafe_code)]

use crate::features::features;
use serde::Serialize;
use std::arch::asm;

/// Bytes in a cache line, the unit of flushing.
pub const LINE: u64 = 64;

/// Returns the number of cache lines that `off..off + len` touches.
#[inline]
pub fn lines(off: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { (off % LINE + len).div_ceil(LINE) }
}

/// An instruction that writes a line back, the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FlushInstruction {
    /// Writes the line back and may keep it cached; weakly ordered.
    Clwb,
    /// Writes the line back and evicts it; weakly ordered.
    ClflushOpt,
    /// Writes the line back and evicts it; serialised with other flushes and stores.
    Clflush,
}

impl FlushInstruction {
    /// Whether this CPU has the instruction.
    pub fn available(self) -> bool {
        match self {
            FlushInstruction::Clwb => features().clwb,
            FlushInstruction::ClflushOpt => features().clflushopt,
            FlushInstruction::Clflush => features().clflush,
        }
    }

    /// Returns the best instruction of this CPU. Every x86-64 CPU has `clflush`.
    pub fn detect() -> Self {
        [FlushInstruction::Clwb, FlushInstruction::ClflushOpt]
            .into_iter()
            .find(|i| i.available())
            .unwrap_or(FlushInstruction::Clflush)
    }
}

/// Prefetches the line that holds `addr` into the cache; a hint to the CPU.
#[inline]
pub fn prefetch(addr: *const u8) {
    // SAFETY: a prefetch cannot fault, whatever the address.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(addr.cast()) }
}

/// Starts writing back `lines` lines from the one that holds `addr`.
///
/// # Safety
/// 1. The lines are mapped and readable.
/// 2. The CPU has the instruction ([`FlushInstruction::available`]).
#[inline]
pub(crate) unsafe fn flush_lines(how: FlushInstruction, addr: *const u8, lines: u64) {
    let mut line = addr.map_addr(|a| a & !(LINE as usize - 1));
    for _ in 0..lines {
        // SAFETY: flushing changes no bytes; 1. and 2. are the caller's.
        unsafe {
            match how {
                FlushInstruction::Clwb => {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                FlushInstruction::ClflushOpt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                FlushInstruction::Clflush => {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
                }
            }
        }
        line = line.wrapping_add(LINE as usize);
    }
}

/// Waits until earlier flushes and non-temporal stores of this CPU are globally visible. On a
/// platform with a persistence domain, they are persistent then.
#[inline]
pub(crate) fn store_fence() {
    // SAFETY: sfence has no operands; the implied memory clobber keeps the compiler from moving
    // stores over it.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_touch() {
        assert_eq!(lines(0, 0), 0);
        assert_eq!(lines(63, 0), 0);
        assert_eq!(lines(0, 64), 1);
        assert_eq!(lines(63, 1), 1);
        assert_eq!(lines(63, 2), 2);
        assert_eq!(lines(1, 64), 2);
        assert_eq!(lines(4096, 4096), 64);
    }

    #[test]
    fn every_available_instruction_keeps_the_bytes() {
        let data: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        for how in [FlushInstruction::Clwb, FlushInstruction::ClflushOpt, FlushInstruction::Clflush]
        {
            if how.available() {
                // SAFETY: 1. 1000 bytes touch at most 17 lines, 15 of which lie inside whatever
                // the alignment; 2. just checked.
                unsafe { flush_lines(how, data.as_ptr(), 15) };
                store_fence();
                assert!(data.iter().enumerate().all(|(i, &b)| b == i as u8), "{how:?}");
            }
        }
        assert!(FlushInstruction::detect().available());
    }
}
