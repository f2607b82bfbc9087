//! The free data blocks: derived from the map when the device is opened, never stored.
//!
//! - **space-S1** A block is claimed only after it has been reserved, so a claim always finds one.
//! - **space-S2** A block is given back when durably no word names it any more. Readers notice the
//!   change of the word (`mod.rs`, atomic-A3).

use super::layout::DataNo;
use arena::{Arena, Bitmap, Layout, Span};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// The data blocks in use: bit *n* is number *n* + 1.
#[derive(Clone, Copy)]
pub(super) struct Space {
    used: Bitmap,
    /// Blocks that are free and not reserved.
    available: Span<AtomicU64>,
}

thread_local! {
    /// The bit at which this thread's next search begins. Threads begin at different bits, so that
    /// they do not contend.
    static HINT: Cell<u64> = const { Cell::new(u64::MAX) };
}

impl Space {
    pub(super) fn plan(layout: &mut Layout, data_blocks: u64) -> Self {
        Self { used: Bitmap::plan(layout, data_blocks), available: layout.table(1) }
    }

    /// Initializes the bitmap. To be called before any other method.
    pub(super) fn init(&self, arena: &Arena) {
        self.used.init(arena);
        arena.table(self.available)[0].store(self.used.len(), Relaxed);
    }

    /// Marks a block as named by a word. Returns whether it was free before. To be called only
    /// while the device is opened.
    pub(super) fn take(&self, arena: &Arena, number: DataNo) -> bool {
        let was_free = self.used.set(arena, number.bit());
        if was_free {
            arena.table(self.available)[0].fetch_sub(1, Relaxed);
        }
        was_free
    }

    /// Reserves `n` blocks. If too few are available, waits until other requests give some back.
    /// `n` is at most the number of spares, so that happens.
    pub(super) fn reserve(&self, arena: &Arena, n: u64) {
        let available = &arena.table(self.available)[0];
        while available.fetch_update(AcqRel, Relaxed, |free| free.checked_sub(n)).is_err() {
            std::thread::yield_now();
        }
    }

    /// Claims a reserved block.
    pub(super) fn claim(&self, arena: &Arena) -> DataNo {
        let len = self.used.len();
        let mut hint = HINT.get();
        if hint >= len {
            // Forked processes have the same thread-local addresses, so mix in the PID.
            let thread = HINT.with(|h| std::ptr::from_ref(h).addr() as u64);
            let me = thread ^ u64::from(std::process::id());
            hint = me.wrapping_mul(0x9E37_79B9_7F4A_7C15) % len;
        }
        loop {
            let found = self.used.claim(arena, hint..len, 1);
            if let Some(bit) = found.or_else(|| self.used.claim(arena, 0..hint, 1)) {
                HINT.set(bit.end);
                return DataNo::of_bit(bit.start);
            }
            // space-S1: a block has become free behind the search.
            std::hint::spin_loop();
        }
    }

    /// Gives blocks back (space-S2).
    pub(super) fn free(&self, arena: &Arena, numbers: impl Iterator<Item = DataNo>) {
        let freed = numbers.map(|n| u64::from(self.used.clear(arena, n.bit()))).sum();
        arena.table(self.available)[0].fetch_add(freed, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_few_blocks_and_lose_none() {
        const BLOCKS: u64 = 70;
        let mut layout = Layout::default();
        let space = Space::plan(&mut layout, BLOCKS);
        let arena = Arena::inherited(&layout).unwrap();
        space.init(&arena);
        let last = DataNo::of_bit(BLOCKS - 1);
        assert!(space.take(&arena, last) && !space.take(&arena, last));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..2000 {
                        space.reserve(&arena, 32);
                        let mine: Vec<DataNo> = (0..32).map(|_| space.claim(&arena)).collect();
                        assert!(mine.iter().all(|n| *n < last));
                        space.free(&arena, mine.into_iter());
                    }
                });
            }
        });
        assert_eq!(space.used.count(&arena), 1);
        assert_eq!(arena.table(space.available)[0].load(Relaxed), BLOCKS - 1);
    }
}
