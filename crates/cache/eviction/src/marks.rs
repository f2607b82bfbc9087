//! Marks of hits: one byte for each slot, set without a lock.
//!
//! A hit and a search for a victim may occur at the same time. Either order is correct, and a hit
//! that is lost between two others only costs precision. So all accesses are relaxed, and none is a
//! read-modify-write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The size of the first chunk in bytes. Each further chunk is as large as all before it together.
const CHUNK_0: usize = 1024;
/// The number of chunks for 2^32 slots.
const CHUNKS: usize = 23;

/// The place of an object's mark. After the object is removed, another one gets the slot; a late
/// [`Marks::touch`] then counts for the new one, which does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkSlot(u32);

impl MarkSlot {
    /// Makes the slot of a number that [`Self::index`] returned.
    pub const fn new(index: u32) -> Self {
        MarkSlot(index)
    }

    /// Returns its number, which is small, as slots are reused.
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// The number of hits on each object since the policy last looked. The table grows with the slots,
/// and nothing in it ever moves.
#[derive(Debug)]
pub struct Marks {
    chunks: [OnceLock<Box<[AtomicU8]>>; CHUNKS],
    /// The maximum number of hits that is counted.
    max: u8,
}

impl Marks {
    /// Makes marks without slots, which count up to `max` hits.
    pub(crate) fn new(max: u8) -> Self {
        Marks { chunks: [const { OnceLock::new() }; CHUNKS], max }
    }

    /// Notes a hit, by a load, and a store if that changes the mark. Does nothing for a slot that
    /// was never used.
    #[inline]
    pub fn touch(&self, slot: MarkSlot) {
        if let Some(mark) = self.mark(slot) {
            let seen = mark.load(Relaxed);
            if seen < self.max {
                mark.store(seen + 1, Relaxed);
            }
        }
    }

    /// Returns the number of hits noted at a slot, up to the maximum that the policy counts.
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

    /// Returns the bytes of memory.
    pub fn bytes_of_memory(&self) -> usize {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        size_of::<Self>() + chunks.map(|chunk| chunk.len()).sum::<usize>()
    }
}

/// Returns the number of slots in a chunk.
fn len_of(chunk: usize) -> usize {
    CHUNK_0 << chunk.saturating_sub(1)
}

/// Returns the chunk of a slot and the place in it.
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
