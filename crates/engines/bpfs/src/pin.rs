//! Reading without a copy: finding the content of a file in PM.

use crate::crawler::Trees;
use crate::fs::Files;
use crate::layout::{BLOCK, BlockNo, Pointer, Root, Word};
use namespace::{Storage as _, report};
use pmem::{Medium, PmOff};
use vfs::{Ino, Result};

/// Pointers that are compared at a time: few, so that a short request does not pay for clearing
/// many.
const POINTERS: usize = 128;

impl<M: Medium> Files<M> {
    /// As [`namespace::Files::contiguous`].
    pub fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)> {
        self.prepare_access(ino)?;
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let end = self.load(v, Word::Size).min(offset.saturating_add(count));
        if offset >= end {
            return Ok((None, 0));
        }
        self.touch_accessed(ino, v);
        self.note_read(v);
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
    /// Finds the block that begins at byte `first`, and the end of the contiguous blocks from there
    /// on, searching no further than `end`. In a hole: `None`, and the end of that block.
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
                // Blocks between two blocks of the region are in the region, too.
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

/// Returns the number of pointers whose blocks are contiguous, from `start` on.
fn following(pointers: &[Pointer], start: PmOff) -> usize {
    // Compares many at a time, without a branch for each.
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
