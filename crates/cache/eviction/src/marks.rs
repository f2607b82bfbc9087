//! Marks of hits: one byte for each slot, set without a lock.
//!
//! A hit and a search for a victim may come at the same time. Either order is right, and a hit that gets lost between
//! two others costs nothing but precision; so all accesses are relaxed, and none is a read-modify-write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes of the first chunk; each further one is as large as all before it.
const CHUNK_0: usize = 1024;
/// Chunks for 2^32 slots.
const CHUNKS: usize = 23;

/// Place of an object's mark. After the object was removed, another one gets the slot: a late
/// [`Marks::touch`] then counts for that one, which does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkSlot(u32);

impl MarkSlot {
    /// The slot of this number, as from [`Self::index`].
    pub const fn new(index: u32) -> Self {
        MarkSlot(index)
    }

    /// Its number: small, as slots are used again.
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// How often each object was hit since the policy looked last. Grows as slots do, and nothing in it ever moves.
#[derive(Debug)]
pub struct Marks {
    chunks: [OnceLock<Box<[AtomicU8]>>; CHUNKS],
    /// Hits that are counted; more are the same.
    max: u8,
}

impl Marks {
    /// No slots yet; counts up to `max` hits.
    pub(crate) fn new(max: u8) -> Self {
        Marks { chunks: [const { OnceLock::new() }; CHUNKS], max }
    }

    /// Notes a hit: a load, and a store if that changes anything. Nothing happens at a slot that was never used.
    #[inline]
    pub fn touch(&self, slot: MarkSlot) {
        if let Some(mark) = self.mark(slot) {
            let seen = mark.load(Relaxed);
            if seen < self.max {
                mark.store(seen + 1, Relaxed);
            }
        }
    }

    /// Hits noted at a slot, at most as many as the policy tells apart.
    #[inline]
    pub fn get(&self, slot: MarkSlot) -> u8 {
        self.mark(slot).map_or(0, |mark| mark.load(Relaxed))
    }

    #[inline]
    pub(crate) fn set(&self, slot: MarkSlot, hits: u8) {
        if let Some(mark) = self.mark(slot) {
            mark.store(hits, Relaxed);
        }
    }

    /// Makes room for a slot.
    pub(crate) fn provide(&self, slot: MarkSlot) {
        let (chunk, _) = place(slot);
        self.chunks[chunk].get_or_init(|| (0..len_of(chunk)).map(|_| AtomicU8::new(0)).collect());
    }

    #[inline]
    fn mark(&self, slot: MarkSlot) -> Option<&AtomicU8> {
        let (chunk, at) = place(slot);
        self.chunks[chunk].get()?.get(at)
    }

    /// Bytes of memory.
    pub fn bytes_of_memory(&self) -> usize {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        size_of::<Self>() + chunks.map(|chunk| chunk.len()).sum::<usize>()
    }
}

/// Slots in a chunk.
fn len_of(chunk: usize) -> usize {
    CHUNK_0 << chunk.saturating_sub(1)
}

/// The chunk of a slot, and where it lies in it.
#[inline]
fn place(slot: MarkSlot) -> (usize, usize) {
    let slot = slot.0 as usize;
    let chunk = (usize::BITS - (slot / CHUNK_0).leading_zeros()) as usize;
    (chunk, if chunk == 0 { slot } else { slot - len_of(chunk) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_its_own_place() {
        let mut next = (0, 0);
        for slot in 0..100_000 {
            let at = place(MarkSlot(slot));
            assert_eq!(at, next, "slot {slot}");
            next = if at.1 + 1 == len_of(at.0) { (at.0 + 1, 0) } else { (at.0, at.1 + 1) };
        }
        let last = place(MarkSlot(u32::MAX));
        assert_eq!(last, (CHUNKS - 1, len_of(CHUNKS - 1) - 1));
    }

    #[test]
    fn hits_are_counted_up_to_the_limit() {
        let marks = Marks::new(3);
        let slot = MarkSlot::new(5000);
        marks.touch(slot);
        assert_eq!(marks.get(slot), 0, "not there yet");
        marks.provide(slot);
        for hits in [1, 2, 3, 3] {
            marks.touch(slot);
            assert_eq!(marks.get(slot), hits);
        }
        assert_eq!(marks.get(MarkSlot::new(5001)), 0);
        marks.set(slot, 0);
        assert_eq!(marks.get(slot), 0);
    }

    #[test]
    fn threads_touch_while_marks_grow() {
        let marks = Marks::new(1);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..50_000).for_each(|slot| marks.touch(MarkSlot(slot))));
            }
            (0..50_000).for_each(|slot| marks.provide(MarkSlot(slot)));
        });
        (0..50_000).for_each(|slot| marks.touch(MarkSlot(slot)));
        assert!((0..50_000).all(|slot| marks.get(MarkSlot(slot)) == 1));
    }
}
