//! A chained hash index over the nodes of a [`Slab`].
//!
//! The number of buckets is fixed at planning: memory is committed only where touched, so a table
//! for the largest population costs nothing while it is empty, and nothing is ever rehashed.
//! A bucket is one word: the chain's first handle and the owner that has it locked, for the walk of
//! one chain. Every step leaves the chain whole, so a bucket whose owner has died is simply taken
//! over.

use crate::sync::{self, AtomicU32, AtomicU64};
use crate::{Arena, Handle, Layout, Shared, Slab, Span};
use std::sync::atomic::Ordering::*;

/// A node that can be chained.
pub trait Link {
    /// The word that holds the next handle of whatever chain the node is in.
    fn link(&self) -> &AtomicU32;
}

/// After so many rounds of waiting, a waiter asks whether the owner lives.
const SPINS_TO_DOUBT: u32 = if cfg!(loom) { 1 } else { 1 << 14 };

/// The buckets. Keys live in the nodes; callers say what matches.
#[derive(Clone, Copy)]
pub struct HashIndex {
    /// The owner in the upper half (0: unlocked), the first handle in the lower.
    buckets: Span<AtomicU64>,
    mask: u64,
}

/// A locked bucket.
pub(crate) struct Bucket<'a> {
    word: &'a AtomicU64,
    first: u32,
}

impl Drop for Bucket<'_> {
    fn drop(&mut self) {
        self.word.store(u64::from(self.first), Release);
    }
}

impl HashIndex {
    /// Plans at least `buckets` buckets (a power of two).
    pub fn plan(layout: &mut Layout, buckets: usize) -> Self {
        let n = buckets.next_power_of_two();
        Self { buckets: layout.table(n), mask: n as u64 - 1 }
    }

    pub(crate) fn lock<'a>(&self, arena: &'a Arena, hash: u64) -> Bucket<'a> {
        let word = &arena.table(self.buckets)[(hash & self.mask) as usize];
        let mine = u64::from(arena.owner()) << 32;
        let mut spins = 0u32;
        loop {
            let seen = word.load(Relaxed);
            let owner = (seen >> 32) as u32;
            let first = seen as u32;
            let is_free = owner == 0 || spins >= SPINS_TO_DOUBT && arena.is_owner_dead(owner);
            if is_free
                && word
                    .compare_exchange_weak(seen, mine | u64::from(first), Acquire, Relaxed)
                    .is_ok()
            {
                return Bucket { word, first };
            }
            spins = if spins >= SPINS_TO_DOUBT { 0 } else { spins + 1 };
            if spins.is_multiple_of(128) {
                sync::give_way();
            }
            sync::spin_loop();
        }
    }

    /// The first node in the bucket of `hash` that `matches`, seen through `view` while the bucket
    /// is locked.
    pub fn find<T: Shared + Link, R>(
        &self,
        arena: &Arena,
        slab: &Slab<T>,
        hash: u64,
        mut view: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        let bucket = self.lock(arena, hash);
        let mut at = bucket.first;
        while let Some(h) = Handle::from_link(at) {
            let node = slab.get(arena, h);
            if let Some(found) = view(node) {
                return Some(found);
            }
            at = node.link().load(Relaxed);
        }
        None
    }

    /// Chains `node` into the bucket of `hash`.
    pub fn insert<T: Shared + Link>(&self, arena: &Arena, slab: &Slab<T>, hash: u64, node: Handle) {
        let mut bucket = self.lock(arena, hash);
        slab.get(arena, node).link().store(bucket.first, Relaxed);
        bucket.first = node.0;
    }

    /// Unchains the first node that `matches`; the caller gives it back to the slab.
    pub fn remove<T: Shared + Link>(
        &self,
        arena: &Arena,
        slab: &Slab<T>,
        hash: u64,
        mut matches: impl FnMut(&T) -> bool,
    ) -> Option<Handle> {
        let mut bucket = self.lock(arena, hash);
        let mut before: Option<Handle> = None;
        let mut at = bucket.first;
        while let Some(h) = Handle::from_link(at) {
            let node = slab.get(arena, h);
            let next = node.link().load(Relaxed);
            if matches(node) {
                match before {
                    None => bucket.first = next,
                    Some(b) => slab.get(arena, b).link().store(next, Relaxed),
                }
                return Some(h);
            }
            before = Some(h);
            at = next;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(C)]
    struct Node {
        next: AtomicU32,
        key: AtomicU32,
    }
    // SAFETY: two atomics; zero is valid.
    unsafe impl Shared for Node {}
    impl Link for Node {
        fn link(&self) -> &AtomicU32 {
            &self.next
        }
    }

    #[test]
    fn insert_find_remove_under_contention() {
        let mut layout = Layout::default();
        let slab = Slab::<Node>::plan(&mut layout, 4000);
        let index = HashIndex::plan(&mut layout, 64);
        let arena = Arena::anonymous(&layout).unwrap();
        std::thread::scope(|s| {
            for t in 0..4u32 {
                let arena = &arena;
                s.spawn(move || {
                    for round in 0..5 {
                        for i in 0..900 {
                            let key = t * 1000 + i;
                            let h = slab.take(arena).unwrap();
                            slab.get(arena, h).key.store(key, Relaxed);
                            index.insert(arena, &slab, u64::from(key), h);
                        }
                        for i in 0..900 {
                            let key = t * 1000 + i;
                            let is = |n: &Node| n.key.load(Relaxed) == key;
                            assert!(
                                index
                                    .find(arena, &slab, u64::from(key), |n| is(n).then_some(()))
                                    .is_some()
                            );
                            let h = index.remove(arena, &slab, u64::from(key), is).unwrap();
                            slab.give(arena, h);
                            assert!(
                                index
                                    .find(arena, &slab, u64::from(key), |n| is(n).then_some(()))
                                    .is_none(),
                                "round {round}"
                            );
                        }
                    }
                });
            }
        });
        let taken: Vec<_> = std::iter::from_fn(|| slab.take(&arena)).collect();
        assert_eq!(taken.len(), 4000);
    }
}
