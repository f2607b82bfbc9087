//! The floor: copies from and to the engine's own mapping, with no file system in between.

#![allow(unsafe_code)]

use crate::rounds::Contender;
use crate::workload::{Buffer, FILE_BYTES, Rng};
use pmem::{Medium as _, Region};
use std::hint::black_box;

/// `memcpy` out of the mapping. The range is the start of the pool, where the first files lie, so
/// that neither side has the warmer cache.
pub fn memcpy_from(region: &Region, len: usize) -> Contender<'_> {
    let mut rng = Rng::new(5);
    let mut buf = Buffer::new(len);
    Contender::new("raw memcpy", move |ops| {
        for _ in 0..ops {
            let offset = rng.below(FILE_BYTES / len as u64) * len as u64;
            let from = region.read_ptr(offset, len as u64);
            let to = buf.get_mut().as_mut_ptr();
            // SAFETY: `read_ptr` has checked that `len` bytes are mapped, nobody writes them while
            // this runs (one contender at a time), and `buf` has `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            black_box(to);
        }
        Ok(())
    })
}

/// A non-temporal copy and a fence into `spare..`, which no file system uses: durable, not atomic.
pub fn nt_copy_to(region: &Region, spare: u64, len: usize) -> Contender<'_> {
    let mut rng = Rng::new(6);
    let data = Buffer::new(len);
    Contender::new("raw NT copy + fence", move |ops| {
        for _ in 0..ops {
            let offset = rng.below(FILE_BYTES / len as u64) * len as u64;
            region.write_nt(spare + offset, data.get());
            let _ = region.fence();
        }
        Ok(())
    })
}

/// One word, its line flushed, a fence: the least that a durable change can cost.
pub fn word_to(region: &Region, spare: u64) -> Contender<'_> {
    let mut rng = Rng::new(7);
    Contender::new("raw word + flush + fence", move |ops| {
        for i in 0..ops {
            let at = spare + rng.below(FILE_BYTES / 8) * 8;
            region.store_u64(at, i);
            region.flush(at, 8);
            let _ = region.fence();
        }
        Ok(())
    })
}
