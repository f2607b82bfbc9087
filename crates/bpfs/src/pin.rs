//! Reading without a copy: who holds pointers into PM, and blocks that may not be used again before.
//!
//! - pin-N1: a reader counts itself before it looks where the blocks are, under the file's lock. So
//!   whoever replaces a block after that, under the same lock, sees the count.
//! - pin-N2: while anybody is counted, freed blocks are not free but *deferred*. They become free when
//!   nobody is counted; the one who sees to it keeps new readers from counting themselves meanwhile.
//! - pin-N3: counts are kept by process, so that the dead can be taken off.
//!
//! What is pinned may change: writes within 8 bytes are in place (§3.2). So it is given as atomics.

use crate::fs::{Core, report};
use crate::layout::{BLOCK, Root, Word};
use arena::{Arena, Bitmap, Census, Layout, Span};
use pmem::{Medium, Region};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};
use vfs::{Errno, Ino, Result};

/// Set in the total while deferred blocks are being freed.
const DRAINING: u64 = 1 << 63;

/// Pointers that are compared at a time: few, so that a short look does not pay for clearing many.
const POINTERS: usize = 128;

/// What a hole reads as.
static ZEROS: [AtomicU8; BLOCK as usize] = [const { AtomicU8::new(0) }; BLOCK as usize];

/// Readers without a copy, and the blocks that wait for them.
#[derive(Clone, Copy)]
pub struct Pins {
    /// `[0]` readers in all, `[1]` deferred blocks.
    words: Span<AtomicU64>,
    /// Readers of each process.
    by_process: Span<AtomicU64>,
    deferred: Bitmap,
}

impl Pins {
    /// Plans for `blocks` blocks; none of it can be derived.
    pub fn plan(layout: &mut Layout, blocks: u64, processes: usize) -> Self {
        Self {
            words: layout.table(2),
            by_process: layout.table(processes),
            deferred: Bitmap::plan(layout, blocks),
        }
    }

    fn total<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        &arena.table(self.words)[0]
    }

    fn waiting<'a>(&self, arena: &'a Arena) -> &'a AtomicU64 {
        &arena.table(self.words)[1]
    }

    fn own<'a>(&self, arena: &'a Arena) -> Result<&'a AtomicU64> {
        Ok(&arena.table(self.by_process)[arena.process()?])
    }

    /// Counts a reader of this process (pin-N1).
    fn add(&self, arena: &Arena) -> Result<()> {
        let own = self.own(arena)?;
        let total = self.total(arena);
        let count = |n: u64| (n & DRAINING == 0).then_some(n + 1);
        while total.fetch_update(SeqCst, Relaxed, count).is_err() {
            if arena.should_give_up() {
                return Err(Errno::RESTART);
            }
            rustix::thread::sched_yield();
        }
        own.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Takes `n` readers off; whether deferred blocks can now be freed.
    fn take_off(&self, arena: &Arena, n: u64) -> bool {
        let left = self.total(arena).fetch_sub(n, AcqRel) - n;
        left == 0 && self.waiting(arena).load(Acquire) > 0
    }

    /// Takes a dead process off (pin-N3); whether deferred blocks can now be freed.
    pub fn forget_process(&self, arena: &Arena, process: usize) -> bool {
        let n = arena.table(self.by_process)[process].swap(0, AcqRel);
        n > 0 && self.take_off(arena, n)
    }

    /// Whether there are readers. Under the lock of a file: whether there are any of that file (pin-N1).
    #[inline]
    pub fn any(&self, arena: &Arena) -> bool {
        self.total(arena).load(SeqCst) != 0
    }

    /// Defers blocks if there are readers (pin-N2); whether it did.
    #[inline]
    pub fn defer(&self, arena: &Arena, blocks: &[u32]) -> bool {
        if !self.any(arena) || blocks.is_empty() {
            return false;
        }
        self.defer_slow(arena, blocks);
        true
    }

    #[cold]
    fn defer_slow(&self, arena: &Arena, blocks: &[u32]) {
        for b in blocks {
            self.deferred.set(arena, u64::from(*b));
        }
        self.waiting(arena).fetch_add(blocks.len() as u64, AcqRel);
    }

    /// Calls `each` for the deferred blocks if there are no readers, and forgets them (pin-N2).
    pub fn drain(&self, arena: &Arena, each: impl FnMut(u64)) {
        let total = self.total(arena);
        if total.compare_exchange(0, DRAINING, AcqRel, Relaxed).is_ok() {
            self.deferred.drain(arena, each);
            self.waiting(arena).store(0, Release);
            total.store(0, Release);
        }
    }

    /// After a recovery, with nobody inside: counts anew the readers of the living, and claims the
    /// deferred blocks again if there are any.
    pub fn recover(&self, arena: &Arena, census: &Census, blocks: &Bitmap) {
        let by_process = arena.table(self.by_process);
        for dead in census.dead() {
            by_process[dead].store(0, Relaxed);
        }
        let n: u64 = by_process.iter().map(|of| of.load(Relaxed)).sum();
        self.total(arena).store(n, Release);
        let mut deferred = Vec::new();
        self.deferred.drain(arena, |b| deferred.push(b));
        self.waiting(arena).store(0, Release);
        if n > 0 {
            deferred.retain(|b| blocks.set(arena, *b));
            for b in &deferred {
                self.deferred.set(arena, *b);
            }
            self.waiting(arena).store(deferred.len() as u64, Release);
        }
    }
}

impl<M: Medium> Core<M> {
    /// Where the content of a file from `offset` on lies in PM, up to `count` bytes that are
    /// contiguous there: offset (`None`: a hole) and length, 0 at the end of the file. The caller
    /// has counted itself.
    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<u64>, u64)> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let end = self.load(v, Word::Size).min(offset.saturating_add(count));
        if offset >= end {
            return Ok((None, 0));
        }
        self.touch_accessed(v);
        if let Some((at, have)) = self.in_extent(v, offset)? {
            return Ok((Some(at), have.min(end - offset)));
        }
        let root = self.root(v)?;
        let first = offset - offset % BLOCK;
        let (start, next) = self.run(root, first, end).map_err(|e| report(ino, e))?;
        let at = (start != 0).then(|| start + offset % BLOCK);
        Ok((at, next.min(end) - offset))
    }

    /// The block that holds byte `first`, which begins it, and where the blocks end that lie behind
    /// each other from there on, looking no further than `end`. In a hole: 0, and where the block ends.
    fn run(&self, root: Root, first: u64, end: u64) -> Result<(u64, u64)> {
        let mut words = [0; POINTERS];
        let (mut start, mut next) = (0, first);
        while next < end {
            let wanted = (end - next).div_ceil(BLOCK).min(POINTERS as u64) as usize;
            let pointers = self.leaf_pointers(root, next, &mut words[..wanted])?;
            if next == first {
                match pointers[0] {
                    0 => return Ok((0, first + BLOCK)),
                    block => start = self.check_block(block)?,
                }
            }
            let follow = following(pointers, start + (next - first));
            if follow > 0 {
                // What lies between two blocks of the region does so, too.
                self.check_block(pointers[follow - 1])?;
            }
            next += follow as u64 * BLOCK;
            if follow < pointers.len() {
                break;
            }
        }
        Ok((start, next))
    }
}

/// How many of the pointers point to blocks that lie behind each other, from `start` on.
fn following(pointers: &[u64], start: u64) -> usize {
    // Many at a time, without a branch for each.
    const LANES: usize = 16;
    let block = |index: usize| start + index as u64 * BLOCK;
    let (groups, _) = pointers.as_chunks::<LANES>();
    let follow = |(group, pointers): &(usize, &[u64; LANES])| {
        let differs = |(lane, pointer)| pointer ^ block(group * LANES + lane);
        pointers.iter().enumerate().map(differs).fold(0, |all, one| all | one) == 0
    };
    let whole = groups.iter().enumerate().take_while(follow).count() * LANES;
    let rest = pointers[whole..].iter().enumerate();
    whole + rest.take_while(|(index, pointer)| **pointer == block(whole + index)).count()
}

impl Core<Region> {
    /// As [`pool::Engine::get_read_buf`]; to be followed by [`put_read_buf`](Self::put_read_buf).
    pub fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<&[AtomicU8]> {
        let pins = &self.v.pins;
        let (at, len) = self.op(|core| {
            pins.add(&core.v.arena)?;
            core.contiguous(ino, offset, count).inspect_err(|_| core.unpin())
        })?;
        Ok(match at {
            Some(at) => self.medium.bytes(at, len),
            None => &ZEROS[..len as usize],
        })
    }

    /// A reader of this process is done.
    pub fn put_read_buf(&self) {
        let _ = self.op(|core| {
            core.unpin();
            Ok(())
        });
    }
}

impl<M: Medium> Core<M> {
    fn unpin(&self) {
        let (pins, arena) = (&self.v.pins, &self.v.arena);
        let give = |n: u64| n.checked_sub(1);
        let counted =
            pins.own(arena).is_ok_and(|own| own.fetch_update(AcqRel, Acquire, give).is_ok());
        if counted && pins.take_off(arena, 1) {
            self.v.clear_deferred();
        }
    }
}
