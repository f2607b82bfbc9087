//! Copies and fills of memory past the cache, in whole lines, and large copies out of memory.
//!
//! The whole 64-byte lines of a stored range are written with the widest non-temporal stores that
//! the CPU has. The partial lines at both ends are written with ordinary stores and flushed, as a
//! partial line in a write-combining buffer costs a read-modify-write at the memory. The caller
//! fences.

#![allow(unsafe_code)]

use crate::features::features;
use crate::flush::{FlushInstruction, LINE, flush_lines, store_fence};
use serde::Serialize;
use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
use std::ptr;
use std::sync::OnceLock;

/// Width of a non-temporal store, the narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NtWidth {
    /// 16 bytes; every x86-64 CPU has it.
    Sse2,
    /// 32 bytes (AVX suffices for the move; the check is for AVX2).
    Avx2,
    /// 64 bytes, a whole line.
    Avx512,
}

impl NtWidth {
    /// Bytes per store.
    pub fn bytes(self) -> u64 {
        match self {
            NtWidth::Sse2 => 16,
            NtWidth::Avx2 => 32,
            NtWidth::Avx512 => 64,
        }
    }

    /// Whether CPU and kernel support the width.
    pub fn available(self) -> bool {
        match self {
            NtWidth::Sse2 => true,
            NtWidth::Avx2 => features().avx2,
            NtWidth::Avx512 => features().avx512f,
        }
    }

    /// Returns the widest that is available.
    pub fn detect() -> Self {
        [NtWidth::Avx512, NtWidth::Avx2]
            .into_iter()
            .find(|w| w.available())
            .unwrap_or(NtWidth::Sse2)
    }
}

/// The instructions with which this CPU writes past the cache and writes lines back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stores {
    pub(crate) width: NtWidth,
    /// `None` if the caches are in the persistence domain.
    pub(crate) flush: Option<FlushInstruction>,
}

/// The parts of a range: `head` bytes, then `lines` whole lines, then `tail` bytes.
struct Cut {
    head: usize,
    lines: usize,
    tail: usize,
}

#[inline]
fn cut(dst: *const u8, len: usize) -> Cut {
    let head = (dst.addr().wrapping_neg() % LINE as usize).min(len);
    Cut { head, lines: (len - head) / LINE as usize, tail: (len - head) % LINE as usize }
}

impl Stores {
    /// Copies `len` bytes; persistent after a fence.
    ///
    /// # Safety
    /// 1. `src..src + len` is readable and `dst..dst + len` writable, and they do not overlap.
    /// 2. Width and flush instruction are available on this CPU.
    #[inline]
    pub(crate) unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) {
        let Cut { head, lines, tail } = cut(dst, len);
        // SAFETY: head, lines and tail partition the range (1.); `dst + head` is line-aligned when
        // `lines > 0`, as `lines` requires; a flush touches only the line of bytes just written.
        unsafe {
            if head > 0 {
                ptr::copy_nonoverlapping(src, dst, head);
                self.flush_line(dst);
            }
            if lines > 0 {
                copy_lines(self.width, dst.add(head), src.add(head), lines);
            }
            if tail > 0 {
                let at = len - tail;
                ptr::copy_nonoverlapping(src.add(at), dst.add(at), tail);
                self.flush_line(dst.add(at));
            }
        }
    }

    /// Zeroes `len` bytes; persistent after a fence.
    ///
    /// # Safety
    /// 1. `dst..dst + len` is writable.
    /// 2. Width and flush instruction are available on this CPU.
    #[inline]
    pub(crate) unsafe fn zero(self, dst: *mut u8, len: usize) {
        let Cut { head, lines, tail } = cut(dst, len);
        // SAFETY: as in `copy`.
        unsafe {
            if head > 0 {
                ptr::write_bytes(dst, 0, head);
                self.flush_line(dst);
            }
            if lines > 0 {
                zero_lines(self.width, dst.add(head), lines);
            }
            if tail > 0 {
                let at = len - tail;
                ptr::write_bytes(dst.add(at), 0, tail);
                self.flush_line(dst.add(at));
            }
        }
    }

    /// Flushes the line of `at`, if flushing is needed.
    ///
    /// # Safety
    /// As for [`flush_lines`].
    #[inline]
    unsafe fn flush_line(self, at: *const u8) {
        if let Some(how) = self.flush {
            // SAFETY: the caller's.
            unsafe { flush_lines(how, at, 1) };
        }
    }
}

/// Copies to mapped persistent memory that is not a [`Region`](crate::Region): a file of another
/// file system. The copy is durable on return, if the mapping needs only flushes and a fence for
/// that.
///
/// # Safety
/// `from..from + len` is readable and `to..to + len` writable, and they do not overlap.
pub unsafe fn copy_durably(to: *mut u8, from: *const u8, len: usize) {
    static STORES: OnceLock<Stores> = OnceLock::new();
    let detect = || Stores { width: NtWidth::detect(), flush: Some(FlushInstruction::detect()) };
    // SAFETY: the caller's; detected instructions are available.
    unsafe { STORES.get_or_init(detect).copy(to, from, len) };
    store_fence();
}

/// The sizes in bytes from which on [`copy_out`] copies in several streams: without ERMS, and with
/// it. The bounds differ, as copies out of the last-level cache do. All rates are GB/s by `memcpy`
/// / in streams. An EPYC with ERMS and 32 MiB of it copied 64 KiB of a file of 64 MiB at 29 / 19,
/// and 1 MiB at 17 / 19 (`keepstone-bench scaling`, d9eb60fd). The first generation of EPYC has 8
/// MiB and no ERMS (2026-11-24). It copied 64 KiB at 18 / 20 from the last-level cache, 14 / 18
/// from memory, and 45 / 43 from nearer caches. It copied 512 KiB at 16 / 19, 13 / 16, and 34 / 36.
const STREAMED: usize = 64 << 10;
const STREAMED_BY_ERMS: usize = 1 << 20;

/// Returns the size in bytes from which on this CPU copies in several streams.
fn streamed() -> usize {
    if features().erms { STREAMED_BY_ERMS } else { STREAMED }
}

const STREAMS: usize = 7;
/// Bytes that are copied in one stream before the next stream continues.
const PIECE: usize = 256;

/// Copies as `memcpy`, but large ranges in several streams at once. In one stream the CPU waits for
/// the few lines that it prefetches ahead, and takes half as long again. (Out of a cache, `memcpy`
/// is faster on some CPUs.)
///
/// # Safety
/// `from..from + len` is readable and `to..to + len` writable, and they do not overlap.
#[inline]
pub unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        if len < STREAMED || len < streamed() {
            ptr::copy_nonoverlapping(from, to, len);
        } else {
            copy_streams(to, from, len);
        }
    }
}

/// Copies `len` bytes in [`STREAMS`] streams: divides them into as many parts, and alternates
/// between the parts after [`PIECE`] bytes.
///
/// # Safety
/// As for [`copy_out`].
unsafe fn copy_streams(to: *mut u8, from: *const u8, len: usize) {
    let each = len / STREAMS / PIECE * PIECE;
    for at in (0..each).step_by(PIECE) {
        for stream in 0..STREAMS {
            let piece = stream * each + at;
            // 16 bytes at a time in this order: the compiler would change the order in a copy of
            // the whole piece.
            for at in (piece..piece + PIECE).step_by(size_of::<__m128i>()) {
                // SAFETY: the streams partition the first `STREAMS * each` bytes (the caller's);
                // every x86-64 CPU has these instructions.
                unsafe {
                    _mm_storeu_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()))
                };
            }
        }
    }
    let done = STREAMS * each;
    // SAFETY: what is left of the ranges (the caller's).
    unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done) };
}

/// Copies `lines` (> 0) whole lines.
///
/// # Safety
/// 1. `lines * 64` bytes are readable at `src`, writable at `dst`, and do not overlap.
/// 2. `dst` is 64-byte aligned. `src` need not be.
/// 3. The width is available.
#[inline]
unsafe fn copy_lines(width: NtWidth, dst: *mut u8, src: *const u8, lines: usize) {
    // The AVX-512 loop uses zmm16 and up, which need no vzeroupper. SAFETY: the loops run `lines`
    // times over 64 bytes each (1.); the aligned stores meet 2.; the instructions exist by 3.;
    // clobbers are declared.
    unsafe {
        match width {
            NtWidth::Avx512 => asm!(
                "2:",
                "vmovdqu64 zmm16, [{src}]",
                "vmovntdq [{dst}], zmm16",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("zmm16") _, options(nostack),
            ),
            NtWidth::Avx2 => asm!(
                "2:",
                "vmovdqu ymm0, [{src}]",
                "vmovdqu ymm1, [{src} + 32]",
                "vmovntdq [{dst}], ymm0",
                "vmovntdq [{dst} + 32], ymm1",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                "vzeroupper",
                src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            ),
            NtWidth::Sse2 => asm!(
                "2:",
                "movdqu xmm0, [{src}]",
                "movdqu xmm1, [{src} + 16]",
                "movdqu xmm2, [{src} + 32]",
                "movdqu xmm3, [{src} + 48]",
                "movntdq [{dst}], xmm0",
                "movntdq [{dst} + 16], xmm1",
                "movntdq [{dst} + 32], xmm2",
                "movntdq [{dst} + 48], xmm3",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                src = inout(reg) src => _, dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack),
            ),
        }
    }
}

/// Zeroes `lines` (> 0) whole lines. The register is cleared by a VEX- or legacy-coded xor of its
/// low part, which clears the rest as well, so no vzeroupper is due.
///
/// # Safety
/// As for [`copy_lines`], without `src`.
#[inline]
unsafe fn zero_lines(width: NtWidth, dst: *mut u8, lines: usize) {
    // SAFETY: as in `copy_lines`.
    unsafe {
        match width {
            NtWidth::Avx512 => asm!(
                "vpxord zmm16, zmm16, zmm16",
                "2:",
                "vmovntdq [{dst}], zmm16",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("zmm16") _, options(nostack),
            ),
            NtWidth::Avx2 => asm!(
                "vpxor xmm0, xmm0, xmm0",
                "2:",
                "vmovntdq [{dst}], ymm0",
                "vmovntdq [{dst} + 32], ymm0",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("ymm0") _, options(nostack),
            ),
            NtWidth::Sse2 => asm!(
                "pxor xmm0, xmm0",
                "2:",
                "movntdq [{dst}], xmm0",
                "movntdq [{dst} + 16], xmm0",
                "movntdq [{dst} + 32], xmm0",
                "movntdq [{dst} + 48], xmm0",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                dst = inout(reg) dst => _, n = inout(reg) lines => _,
                out("xmm0") _, options(nostack),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn available() -> impl Iterator<Item = Stores> {
        [NtWidth::Sse2, NtWidth::Avx2, NtWidth::Avx512]
            .into_iter()
            .filter(|w| w.available())
            .flat_map(|width| {
                [Some(FlushInstruction::detect()), None]
                    .into_iter()
                    .map(move |flush| Stores { width, flush })
            })
    }

    fn check(stores: Stores, dst_off: usize, src_off: usize, len: usize) {
        let src: Vec<u8> = (0..src_off + len).map(|i| (i * 7 + 1) as u8 | 1).collect();
        let mut got = vec![0xAA; dst_off + len + 130];
        let mut want = got.clone();
        want[dst_off..dst_off + len].copy_from_slice(&src[src_off..]);
        // SAFETY: 1. both ranges lie in their vectors, which are distinct; 2. `available`.
        unsafe { stores.copy(got.as_mut_ptr().add(dst_off), src.as_ptr().add(src_off), len) };
        store_fence();
        assert!(got == want, "copy {stores:?} dst+{dst_off} src+{src_off} len {len}");
        want[dst_off..dst_off + len].fill(0);
        // SAFETY: as above.
        unsafe { stores.zero(got.as_mut_ptr().add(dst_off), len) };
        store_fence();
        assert!(got == want, "zero {stores:?} dst+{dst_off} len {len}");
    }

    #[test]
    fn copies_in_streams_are_copies() {
        let src: Vec<u8> = (0..2 * STREAMED + 5000).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in [0, 100, STREAMED - 1, STREAMED, STREAMED + 1, 100_003, 2 * STREAMED + 4000] {
            for (to, from) in [(0, 0), (1, 3), (64, 1000)] {
                let mut got = vec![0xAA; to + len + 70];
                let mut want = got.clone();
                want[to..to + len].copy_from_slice(&src[from..from + len]);
                // SAFETY: both ranges lie in their vectors, which are distinct.
                unsafe { copy_out(got.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
                assert!(got == want, "to {to} from {from} len {len}");
                got.fill(0xAA);
                // SAFETY: as above.
                unsafe { copy_streams(got.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
                assert!(got == want, "to {to} from {from} len {len}, in streams");
            }
        }
    }

    #[test]
    fn every_alignment_and_short_length() {
        for stores in available() {
            for dst_off in 0..64 {
                for len in 0..=200 {
                    check(stores, dst_off, (dst_off * 13 + len) % 64, len);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn same_as_memcpy(dst_off in 0usize..200, src_off in 0usize..200, len in 0usize..20_000) {
            for stores in available() {
                check(stores, dst_off, src_off, len);
            }
        }
    }
}
