//! The floor: copies from and to the engine's own mapping, with no file system in between.

#![allow(unsafe_code)]

use crate::rounds::Contender;
use crate::workload::{Buffer, FILE_BYTES, by_two};
use pmem::{Medium as _, Region};
use rng::Rng;
use std::hint::black_box;

/// A copy: to, from, and the number of bytes, which are mapped and which no other thread uses.
type Copier = unsafe fn(*mut u8, *const u8, usize);

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`], which has its arguments in another order.
unsafe fn memcpy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// `memcpy` out of the mapping. The range is the start of the pool, where the first files lie, so
/// that neither side has the warmer cache.
pub fn memcpy_from(region: &Region, len: usize) -> Contender<'_> {
    copies_from("raw memcpy", region, len, memcpy, || {})
}

/// The same copies, each begun when the one before is complete. A program waits so long if it needs
/// the bytes before it can make the next call.
pub fn memcpy_in_turn(region: &Region, len: usize) -> Contender<'_> {
    copies_from("raw memcpy, one at a time", region, len, memcpy, wait)
}

/// The same by [`pmem::copy_out`].
pub fn copy_in_turn(region: &Region, len: usize) -> Contender<'_> {
    copies_from("raw copy in streams, one at a time", region, len, pmem::copy_out, wait)
}

fn wait() {
    // SAFETY: every x86-64 CPU has this fence.
    unsafe { std::arch::x86_64::_mm_lfence() };
}

/// Copies `len` bytes from random places by `copy`, and calls `after_each` after each copy.
fn copies_from<'r>(
    name: &'static str,
    region: &'r Region,
    len: usize,
    copy: Copier,
    after_each: impl Fn() + 'r,
) -> Contender<'r> {
    let mut rng = Rng::new(5);
    let mut buf = Buffer::new(len);
    Contender::new(name, move |ops| {
        copies(region, &mut rng, buf.get_mut(), copy, ops, &after_each);
        Ok(())
    })
}

/// Bare copies from random places.
fn copies(
    region: &Region,
    rng: &mut Rng,
    buf: &mut [u8],
    copy: Copier,
    ops: u64,
    after_each: &impl Fn(),
) {
    let len = buf.len();
    for _ in 0..ops {
        let offset = rng.below_fast(FILE_BYTES / len as u64) * len as u64;
        let from = region.read_ptr(offset, len as u64);
        let to = buf.as_mut_ptr();
        // SAFETY: `read_ptr` has checked that `len` bytes are mapped, no thread writes them while
        // this runs (one contender at a time), and `buf` has `len` bytes.
        unsafe { copy(to, from, len) };
        black_box(to);
        after_each();
    }
}

/// Bare copies by two threads.
pub fn memcpy_by_two(region: &Region, len: usize) -> Contender<'_> {
    let mut seed = 10;
    Contender::new("raw memcpy, 2 threads", move |ops| {
        seed += 2;
        by_two(|i| {
            let (mut rng, mut buf) = (Rng::new(seed + i as u64), Buffer::new(len));
            copies(region, &mut rng, buf.get_mut(), memcpy, ops / 2, &|| {});
            Ok(())
        })
    })
}

/// A non-temporal copy and a fence, then a word elsewhere, its line flushed, and a fence: the least
/// that replacing a block atomically can cost.
pub fn shadow_to(region: &Region, spare: u64, len: usize) -> Contender<'_> {
    let mut rng = Rng::new(8);
    let data = Buffer::new(len);
    Contender::new("raw NT copy + fence + word + fence", move |ops| {
        shadows(region, spare, &mut rng, data.get(), ops);
        Ok(())
    })
}

/// Does what a shadow page commit needs at least: stores `data` past the cache, a fence, and a word
/// that is made durable.
fn shadows(region: &Region, spare: u64, rng: &mut Rng, data: &[u8], ops: u64) {
    let len = data.len() as u64;
    for i in 0..ops {
        let n = rng.below_fast(FILE_BYTES / len / 2);
        region.write_nt(spare + n * len, data);
        let ready = region.fence();
        let _ = region.publish(spare + FILE_BYTES / 2 + n * 8, i, ready);
    }
}

/// [`shadow_to`] by two threads.
pub fn shadow_by_two(region: &Region, spare: u64, len: usize) -> Contender<'_> {
    let mut seed = 11;
    let data = Buffer::new(len);
    Contender::new("raw NT copy and word, 2 threads", move |ops| {
        seed += 2;
        by_two(|i| {
            shadows(region, spare, &mut Rng::new(seed + i as u64), data.get(), ops / 2);
            Ok(())
        })
    })
}

/// A non-temporal copy and a fence into `spare..`, which no file system uses: durable, not atomic.
pub fn nt_copy_to(region: &Region, spare: u64, len: usize) -> Contender<'_> {
    let mut rng = Rng::new(6);
    let data = Buffer::new(len);
    Contender::new("raw NT copy + fence", move |ops| {
        for _ in 0..ops {
            let offset = rng.below_fast(FILE_BYTES / len as u64) * len as u64;
            region.write_nt(spare + offset, data.get());
            let _ = region.fence();
        }
        Ok(())
    })
}

/// Changes that are ordered and durable one after the other, of lines that stay in the cache: a
/// line is written back and fenced, `epochs` times.
pub fn epochs(region: &Region, epochs: u64) -> Contender<'_> {
    epochs_after("", region, epochs, || Ok(()))
}

/// [`epochs`] after finding out by `stat` that one name is there and another is not: the least that
/// a change of two names can cost.
pub fn epochs_of_names<'a>(
    region: &'a Region,
    epochs: u64,
    look: impl FnMut() -> vfs::Result<()> + 'a,
) -> Contender<'a> {
    epochs_after("2 × stat, ", region, epochs, look)
}

/// Calls `look`, then stores, flushes and fences a word `epochs` times.
fn epochs_after<'a>(
    before: &str,
    region: &'a Region,
    epochs: u64,
    mut look: impl FnMut() -> vfs::Result<()> + 'a,
) -> Contender<'a> {
    const LINES: u64 = 64;
    let mut rng = Rng::new(9);
    Contender::new(format!("{before}raw {epochs} × (word, flush, fence)"), move |ops| {
        let mut ready = region.fence();
        for i in 0..ops {
            look()?;
            for _ in 0..epochs {
                ready = region.publish(rng.below_fast(LINES) * pmem::LINE, i, ready);
            }
        }
        Ok(())
    })
}

/// Two lines of an inode and one of a directory, each flushed and fenced before the next: the waits
/// of creating a file durably.
pub fn create_in(region: &Region, spare: u64) -> Contender<'_> {
    const CREATED: u64 = 256;
    let mut next = 0;
    Contender::new("raw entry + 2 inode lines, 3 fences", move |ops| {
        for _ in 0..ops {
            next = (next + CREATED) % (FILE_BYTES / 2);
            let (inode, entry) = (spare + next, spare + FILE_BYTES / 2 + next / 4);
            for line in [inode, inode + pmem::LINE, entry] {
                region.write(line, &[1; pmem::LINE as usize]);
                region.flush(line, pmem::LINE);
                let _ = region.fence();
            }
        }
        Ok(())
    })
}

/// One word, its line flushed, a fence: the least that a durable change can cost.
pub fn word_to(region: &Region, spare: u64) -> Contender<'_> {
    let mut rng = Rng::new(7);
    Contender::new("raw word + flush + fence", move |ops| {
        let mut ready = region.fence();
        for i in 0..ops {
            ready = region.publish(spare + rng.below_fast(FILE_BYTES / 8) * 8, i, ready);
        }
        Ok(())
    })
}
