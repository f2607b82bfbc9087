//! Bits are claimed once, and none is lost.

use super::explore;
use crate::{Arena, Bitmap, Layout};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A bitmap with a cell for each bit that only the bit's owner touches. Loom reports unordered
/// accesses to a cell.
struct Guarded {
    arena: Arena,
    map: Bitmap,
    cells: Vec<UnsafeCell<()>>,
}

impl Guarded {
    fn new(bits: u64) -> Arc<Self> {
        let mut layout = Layout::default();
        let map = Bitmap::plan(&mut layout, bits);
        let arena = Arena::anonymous(&layout).unwrap();
        map.init(&arena);
        Arc::new(Self { arena, map, cells: (0..bits).map(|_| UnsafeCell::new(())).collect() })
    }

    fn touch(&self, bit: u64) {
        self.cells[bit as usize].with_mut(|_| ());
    }

    /// Claims up to `most` bits in one run, and returns them.
    fn claim(&self, most: u64) -> Vec<u64> {
        let run = self.map.claim(&self.arena, 0..self.map.len(), most);
        let bits: Vec<_> = run.into_iter().flatten().collect();
        bits.iter().for_each(|bit| self.touch(*bit));
        bits
    }

    fn clear(&self, bit: u64) {
        self.touch(bit);
        assert!(self.map.clear(&self.arena, bit), "what is claimed is set");
    }
}

/// Each thread claims a run, gives the first bit back and claims again. Two words are searched.
#[test]
fn claim_and_clear() {
    explore(|| {
        let g = Guarded::new(66);
        (0..62).for_each(|bit| assert!(g.map.set(&g.arena, bit)));
        let worker = |most| {
            let g = g.clone();
            move || {
                let mut mine = g.claim(most);
                if !mine.is_empty() {
                    g.clear(mine.remove(0));
                    mine.extend(g.claim(1));
                }
                mine
            }
        };
        let other = thread::spawn(worker(2));
        let mut all = worker(3)();
        all.extend(other.join().unwrap());
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "claimed twice");
        assert_eq!(g.map.count(&g.arena), 62 + count as u64, "lost");
    });
}

/// Three threads, two bits.
#[test]
fn as_many_claims_succeed_as_there_are_bits() {
    explore(|| {
        let g = Guarded::new(2);
        let worker = || {
            let g = g.clone();
            move || g.claim(1).len()
        };
        let others = [thread::spawn(worker()), thread::spawn(worker())];
        let mine = worker()();
        let theirs: usize = others.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(mine + theirs, 2);
    });
}

/// A bit set while another thread drains is found then or later.
#[test]
fn drain_loses_nothing() {
    explore(|| {
        let g = Guarded::new(64);
        assert!(g.map.set(&g.arena, 0));
        let setter = {
            let g = g.clone();
            thread::spawn(move || {
                g.touch(5);
                assert!(g.map.set(&g.arena, 5));
            })
        };
        let mut found = Vec::new();
        let drain = |found: &mut Vec<u64>| {
            g.map.drain(&g.arena, |bit| {
                g.touch(bit);
                found.push(bit);
            });
        };
        drain(&mut found);
        setter.join().unwrap();
        drain(&mut found);
        assert_eq!(found, [0, 5]);
    });
}
