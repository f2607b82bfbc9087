//! Reading without a copy: where the content of a file lies in PM. Who holds such pointers is counted
//! ([`arena::Pins`]), and blocks that are replaced meanwhile wait.
//!
//! What is pinned may change: writes within 8 bytes are in place (§3.2). So it is given as atomics.

use crate::crawler::Trees;
use crate::fs::Files;
use crate::layout::{BLOCK, BlockNo, Pointer, Root, Word};
use derived::SharedPool as _;
use namespace::{Storage as _, report};
use pmem::{Medium, PmOff};
use std::sync::atomic::AtomicU8;
use vfs::{Errno, Ino, Result};

/// Pointers that are compared at a time: few, so that a short look does not pay for clearing many.
const POINTERS: usize = 128;

/// What a hole reads as.
static ZEROS: [AtomicU8; BLOCK as usize] = [const { AtomicU8::new(0) }; BLOCK as usize];

impl<M: Medium> Files<M> {
    /// Where the content of a file from `offset` on lies in PM, up to `count` bytes that are
    /// contiguous there: offset (`None`: a hole) and length, 0 at the end of the file. The caller
    /// has counted itself.
    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)> {
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
        let at = start.map(|start| start.at(offset % BLOCK));
        Ok((at, next.min(end) - offset))
    }
}

impl<M: Medium> Trees<M> {
    /// The block that holds byte `first`, which begins it, and where the blocks end that lie behind
    /// each other from there on, looking no further than `end`. In a hole: `None`, and where the block ends.
    fn run(&self, root: Root, first: u64, end: u64) -> Result<(Option<BlockNo>, u64)> {
        let mut words = [Pointer::NULL; POINTERS];
        let (mut start, mut next) = (None, first);
        while next < end {
            let wanted = (end - next).div_ceil(BLOCK).min(POINTERS as u64) as usize;
            let pointers = self.leaf_pointers(root, next, &mut words[..wanted])?;
            if next == first {
                start = self.check_block(pointers[0])?;
            }
            let Some(start) = start else { return Ok((None, first + BLOCK)) };
            let follow = following(pointers, start.at(next - first));
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
fn following(pointers: &[Pointer], start: PmOff) -> usize {
    // Many at a time, without a branch for each.
    const LANES: usize = 16;
    let block = |index: usize| start.get() + index as u64 * BLOCK;
    let (groups, _) = pointers.as_chunks::<LANES>();
    let follow = |(group, pointers): &(usize, &[Pointer; LANES])| {
        let differs =
            |(lane, pointer): (usize, &Pointer)| pointer.word() ^ block(group * LANES + lane);
        pointers.iter().enumerate().map(differs).fold(0, |all, one| all | one) == 0
    };
    let whole = groups.iter().enumerate().take_while(follow).count() * LANES;
    let rest = pointers[whole..].iter().enumerate();
    whole + rest.take_while(|(index, pointer)| pointer.word() == block(whole + index)).count()
}

impl<M: Medium> Files<M> {
    /// As [`pool::Engine::get_read_buf`]; to be followed by [`put_read_buf`](Self::put_read_buf). `EOPNOTSUPP` where the
    /// medium is not mapped.
    pub fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<&[AtomicU8]> {
        let pins = self.v.pins();
        let (at, len) = self.op(|_| {
            pins.add(&self.v.arena)?;
            self.contiguous(ino, offset, count).inspect_err(|_| self.unpin())
        })?;
        match at {
            Some(at) => self.medium.lend(at, len).ok_or_else(|| {
                self.put_read_buf();
                Errno::OPNOTSUPP
            }),
            None => Ok(&ZEROS[..len as usize]),
        }
    }

    /// A reader of this process is done.
    pub fn put_read_buf(&self) {
        let _ = self.op(|_| {
            self.unpin();
            Ok(())
        });
    }

    fn unpin(&self) {
        if self.v.pins().remove(&self.v.arena) {
            self.v.clear_deferred();
        }
    }
}
