//! Pre-zeroed pointer blocks: free blocks that were pointers of small files, and are null behind
//! their first line.
//!
//! The pointer block that a file's second block requires is half of the cost: 4 KiB of zeros for
//! two words. Suppose a file is removed that had at most a line of pointers, and a file is created
//! that needs no more: then the zeros are there already. So each thread keeps some of these blocks,
//! in a line that it shares with few other threads.
//!
//! - zeroed-P1: such a block is counted as free, although its bit is set (volatile-V2).
//! - zeroed-P2: it is null behind its first line, durably.
//! - zeroed-P3: if the bitmap has no free bit, an allocation takes a block that any thread kept.

use crate::layout::BlockNo;
use arena::{Arena, Layout, Span};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// The number of lines; there are many, so that threads use different ones.
const LINES: usize = 64;

/// Numbers of blocks; 0: none.
type Line = [AtomicU32; 16];

/// The kept blocks of all threads.
#[derive(Clone, Copy)]
pub struct ZeroedBlocks {
    lines: Span<Line>,
}

impl ZeroedBlocks {
    /// Plans the lines.
    pub fn plan(layout: &mut Layout) -> Self {
        Self { lines: layout.table(LINES) }
    }

    fn own<'a>(&self, arena: &'a Arena) -> &'a Line {
        &arena.table(self.lines)[arena.owner() as usize % LINES]
    }

    /// Keeps a block that is null behind its first line (zeroed-P2); returns whether there was room
    /// for it.
    #[inline]
    pub fn keep(&self, arena: &Arena, block: BlockNo) -> bool {
        let block = block.get() as u32;
        self.own(arena).iter().any(|place| {
            place.load(Relaxed) == 0 && place.compare_exchange(0, block, AcqRel, Relaxed).is_ok()
        })
    }

    /// Takes a block of this thread's line.
    #[inline]
    pub fn take(&self, arena: &Arena) -> Option<BlockNo> {
        self.own(arena).iter().find_map(take)
    }

    /// Takes a block of any line (zeroed-P3).
    #[cold]
    pub fn take_any(&self, arena: &Arena) -> Option<BlockNo> {
        arena.table(self.lines).iter().flatten().find_map(take)
    }
}

#[inline]
fn take(place: &AtomicU32) -> Option<BlockNo> {
    let block = place.load(Relaxed);
    BlockNo::new(block.into()).filter(|_| place.compare_exchange(block, 0, AcqRel, Relaxed).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> (ZeroedBlocks, Arena) {
        let mut layout = Layout::default();
        let zeroed = ZeroedBlocks::plan(&mut layout);
        let arena = Arena::anonymous(&layout).unwrap();
        (zeroed, arena)
    }

    fn block(number: u64) -> BlockNo {
        BlockNo::new(number).unwrap()
    }

    #[test]
    fn each_thread_keeps_some_and_anybody_takes_them_at_need() {
        let (zeroed, arena) = zeroed();
        assert_eq!(zeroed.take(&arena), None);
        let kept = (1..100).take_while(|number| zeroed.keep(&arena, block(*number))).count();
        assert_eq!(kept, size_of::<Line>() / 4);
        std::thread::scope(|s| {
            s.spawn(|| {
                assert_eq!(zeroed.take(&arena), None, "they are another thread's");
                assert!(zeroed.take_any(&arena).is_some());
            });
        });
        let left = std::iter::from_fn(|| zeroed.take(&arena)).count();
        assert_eq!((left, zeroed.take_any(&arena)), (kept - 1, None));
    }

    #[test]
    fn each_is_taken_once() {
        let (zeroed, arena) = zeroed();
        let taken = AtomicU32::new(0);
        let each = 20_000;
        std::thread::scope(|s| {
            for thread in 0..4 {
                let (zeroed, arena, taken) = (&zeroed, &arena, &taken);
                s.spawn(move || {
                    for i in 1..=each {
                        if zeroed.keep(arena, block(thread * each + i)) {
                            taken.fetch_add(1, Relaxed);
                        }
                        let at_need = || zeroed.take_any(arena).filter(|_| i % 3 == 0);
                        if zeroed.take(arena).or_else(at_need).is_some() {
                            taken.fetch_sub(1, Relaxed);
                        }
                    }
                });
            }
        });
        let left = std::iter::from_fn(|| zeroed.take_any(&arena)).count();
        assert_eq!(left, taken.into_inner() as usize);
    }
}
