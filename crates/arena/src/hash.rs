//! A chained hash index over the nodes of a [`Slab`].
//!
//! The number of buckets is fixed at planning: memory is committed only where touched, so a table
//! for the largest population costs nothing while it is empty, and nothing is ever rehashed.
//! A bucket is one word: the chain's first handle, the owner that has it locked to change the chain,
//! and how often that has happened. Every step leaves the chain whole, so a bucket whose owner has died
//! is simply taken over.
//!
//! - H1: a search takes no lock. It believes what it saw if the bucket's word is the same before and
//!   after, without owner; it may meet nodes on the way that are somebody else's by then.
//! - H2: a chain changes only behind the store of an owner, and a node only after it has left its chain
//!   ([`Slab::take`]): whoever sees the change sees the word changed, too.

use crate::sync::{self, AtomicU32, AtomicU64, fence};
use crate::{Arena, Handle, Layout, Shared, Slab, Span};
use std::sync::atomic::Ordering::*;

/// A node that can be chained.
pub trait Link {
    /// The word that holds the next handle of whatever chain the node is in.
    fn link(&self) -> &AtomicU32;
}

/// After so many rounds of waiting, a waiter asks whether the owner lives.
const SPINS_TO_DOUBT: u32 = if cfg!(loom) { 1 } else { 1 << 14 };

/// A longer walk without a lock has lost its way, or had better be sure of it.
const STEPS_MAX: u32 = 64;

/// A bucket's word: the first handle in the lower half; above it 16 bits of the owner, 0: unlocked, and
/// 16 bits that count changes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn first(self) -> u32 {
        self.0 as u32
    }

    /// Owners with more bits are never found dead, nor is the one they become.
    fn owner(self) -> u32 {
        (self.0 >> 32) as u32 & 0xffff
    }

    fn locked_by(self, owner: u32) -> Self {
        Self(self.0 & !(0xffff << 32) | u64::from(owner.min(0xffff)) << 32)
    }

    /// Unlocked, after a change.
    fn changed_to(self, first: u32) -> Self {
        Self((self.0 >> 48).wrapping_add(1) << 48 | u64::from(first))
    }
}

/// The buckets. Keys live in the nodes; callers say what matches.
#[derive(Clone, Copy)]
pub struct HashIndex {
    /// Each a [`Word`].
    buckets: Span<AtomicU64>,
    mask: u64,
}

/// A locked bucket.
pub(crate) struct Bucket<'a> {
    word: &'a AtomicU64,
    before: Word,
    first: u32,
}

impl Drop for Bucket<'_> {
    fn drop(&mut self) {
        self.word.store(self.before.changed_to(self.first).0, Release);
    }
}

impl HashIndex {
    /// Plans at least `buckets` buckets (a power of two).
    pub fn plan(layout: &mut Layout, buckets: usize) -> Self {
        let n = buckets.next_power_of_two();
        Self { buckets: layout.table(n), mask: n as u64 - 1 }
    }

    /// Gives the first buckets huge pages ([`Arena::back`]).
    pub fn back(&self, arena: &Arena, buckets: usize) {
        arena.back(self.buckets, 0..buckets);
    }

    pub(crate) fn lock<'a>(&self, arena: &'a Arena, hash: u64) -> Bucket<'a> {
        let word = self.word(arena, hash);
        let me = arena.owner();
        let mut spins = 0u32;
        loop {
            let seen = Word(word.load(Relaxed));
            let owner = seen.owner();
            let is_free = owner == 0 || spins >= SPINS_TO_DOUBT && arena.is_owner_dead(owner);
            let locked = seen.locked_by(me).0;
            if is_free && word.compare_exchange_weak(seen.0, locked, Acquire, Relaxed).is_ok() {
                // H2
                fence(Release);
                return Bucket { word, before: seen, first: seen.first() };
            }
            spins = if spins >= SPINS_TO_DOUBT { 0 } else { spins + 1 };
            if spins.is_multiple_of(128) {
                sync::give_way();
            }
            sync::spin_loop();
        }
    }

    #[inline]
    fn word<'a>(&self, arena: &'a Arena, hash: u64) -> &'a AtomicU64 {
        &arena.table(self.buckets)[(hash & self.mask) as usize]
    }

    /// What `view` makes of the first node in the bucket of `hash` of which it makes anything. It may
    /// be shown nodes that are not in the bucket, and its answer be thrown away (H1).
    #[inline]
    pub fn find<T: Shared + Link, R>(
        &self,
        arena: &Arena,
        slab: &Slab<T>,
        hash: u64,
        mut view: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        let word = self.word(arena, hash);
        let seen = Word(word.load(Acquire));
        if seen.owner() == 0 {
            let mut at = seen.first();
            for _ in 0..STEPS_MAX {
                let node = Handle::from_link(at).map(|h| slab.get(arena, h));
                let found = node.and_then(&mut view);
                if node.is_none() || found.is_some() {
                    fence(Acquire);
                    if word.load(Relaxed) == seen.0 {
                        return found;
                    }
                    break;
                }
                at = node.map_or(0, |node| node.link().load(Relaxed));
            }
        }
        self.find_locked(arena, slab, hash, view)
    }

    /// As [`find`](Self::find), with the bucket locked: `view` is shown what is in it, and may change
    /// it.
    #[cold]
    pub fn find_locked<T: Shared + Link, R>(
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
