//! A hash index, with its entries in the buckets.
//!
//! A bucket is a cache line: a word with its owner and the number of changes, three entries, and
//! the first of further buckets for entries that do not fit. The number of buckets is fixed at
//! planning: memory is committed only when touched, so a table for the largest population costs
//! nothing while it is empty, and nothing is ever rehashed. Every step leaves the entries whole, so
//! another thread simply takes over a bucket whose owner has died.
//!
//! - hash-H1: a search takes no lock. Its result counts if the bucket's word is the same before and
//!   after, without owner. On the way it may read entries that belong to another chain by then.
//! - hash-H2: entries change only behind the store of an owner, and an additional bucket only after
//!   it has left its chain ([`Slab::take`]): a thread that sees the change also sees the word
//!   changed.

#![allow(unsafe_code)]

use crate::sync::{self, AtomicU32, AtomicU64, fence};
use crate::{Arena, Handle, Layout, Shared, Slab, Span};
use std::sync::atomic::Ordering::*;

/// A node that can be chained.
pub trait Link {
    /// Returns the word that holds the next handle of the chain that the node is in.
    fn link(&self) -> &AtomicU32;
}

/// An entry of an index: up to 16 bytes, so that a bucket is a cache line.
pub trait HashEntry: Shared {
    /// Whether the entry is empty. Zeros are empty, and so is an entry that is not filled
    /// completely.
    fn is_none(&self) -> bool;
    /// Makes the entry empty.
    fn clear(&self);
}

/// Rounds of waiting before a waiter checks whether the owner is alive.
const SPINS_TO_DOUBT: u32 = if cfg!(loom) { 1 } else { 1 << 14 };

/// Steps of a search without a lock: a longer one may have strayed into another chain, so it takes
/// the lock.
const STEPS_MAX: u32 = 64;

/// The longest chain: a longer one counts as endless (doubt-W1).
const CHAIN_MAX: u32 = 1 << 16;

/// Doubts of a waiter, of [`SPINS_TO_DOUBT`] each, before it takes over a lock that no thread can
/// have (doubt-W1). They take seconds.
const DOUBTS_MAX: u32 = 1 << 12;

/// Entries of a bucket.
const ENTRIES: usize = if cfg!(loom) { 1 } else { 3 };

/// A bucket's word: the owner in the lower half (0: unlocked), above it the number of changes of
/// the bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BucketWord(u64);

impl BucketWord {
    fn owner(self) -> u32 {
        self.0 as u32
    }

    fn locked_by(self, owner: u32) -> Self {
        Self(self.0 & !0xffff_ffff | u64::from(owner))
    }

    /// Locks the bucket of `word`, if the word still has this value.
    #[inline]
    fn try_lock<'a>(self, word: &'a AtomicU64, arena: &Arena) -> Option<Locked<'a>> {
        let locked = self.locked_by(arena.owner()).0;
        let is_ours = word.compare_exchange_weak(self.0, locked, Acquire, Relaxed).is_ok();
        is_ours.then(|| {
            // hash-H2
            fence(Release);
            Locked { word, before: self }
        })
    }

    /// Returns the word of the bucket after a change, unlocked.
    fn changed(self) -> Self {
        Self((self.0 >> 32).wrapping_add(1) << 32)
    }
}

#[derive(Default)]
#[repr(C, align(64))]
struct Bucket<T> {
    /// The [`BucketWord`] of the chain; used only in its first bucket.
    word: AtomicU64,
    /// The handle of the next bucket of the chain; 0: none.
    next: AtomicU32,
    entries: [T; ENTRIES],
}

// SAFETY: atomics and entries, which are `Shared`; zeroes are an empty bucket.
unsafe impl<T: HashEntry + sync::Modelled> Shared for Bucket<T> {}

impl<T> Link for Bucket<T> {
    fn link(&self) -> &AtomicU32 {
        &self.next
    }
}

impl<T: HashEntry> Bucket<T> {
    #[inline]
    fn filled(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(|entry| !entry.is_none())
    }
}

/// The index. Keys are part of the entries; callers pass a function that compares them.
pub struct HashIndex<T> {
    buckets: Span<Bucket<T>>,
    mask: u64,
    more: Slab<Bucket<T>>,
}

impl<T> Clone for HashIndex<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for HashIndex<T> {}

/// A locked bucket.
pub(crate) struct Locked<'a> {
    word: &'a AtomicU64,
    before: BucketWord,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(self.before.changed().0, Release);
    }
}

impl<T: HashEntry + Default> HashIndex<T> {
    /// Plans at least `buckets` buckets (a power of two), and `more` for entries that do not fit
    /// into them.
    pub fn plan(layout: &mut Layout, buckets: usize, more: usize) -> Self {
        const { assert!(size_of::<Bucket<T>>() == 64 || cfg!(loom), "a bucket is a line") };
        let n = buckets.next_power_of_two();
        Self { buckets: layout.table(n), mask: n as u64 - 1, more: Slab::plan(layout, more) }
    }

    /// Gives the first buckets huge pages ([`Arena::back`]).
    pub fn back(&self, arena: &Arena, buckets: usize) {
        arena.back(self.buckets, 0..buckets);
    }

    #[inline]
    fn bucket<'a>(&self, arena: &'a Arena, hash: u64) -> &'a Bucket<T> {
        &arena.table(self.buckets)[(hash & self.mask) as usize]
    }

    #[inline]
    fn after<'a>(&self, arena: &'a Arena, bucket: &Bucket<T>) -> Option<(Handle, &'a Bucket<T>)> {
        Handle::from_link(bucket.next.load(Relaxed)).map(|h| (h, self.more.get(arena, h)))
    }

    /// Locks the bucket of `hash` until the result is dropped. A bucket of a dead process is taken
    /// over.
    #[inline]
    pub(crate) fn lock<'a>(&self, arena: &'a Arena, hash: u64) -> Locked<'a> {
        let word = &self.bucket(arena, hash).word;
        let seen = BucketWord(word.load(Relaxed));
        let locked = if seen.owner() == 0 { seen.try_lock(word, arena) } else { None };
        locked.unwrap_or_else(|| Self::wait_for(word, arena))
    }

    /// Waits for the lock. If the owner seems to be alive for too long, takes the lock all the same
    /// and marks the arena as in doubt (doubt-W1).
    #[cold]
    fn wait_for<'a>(word: &'a AtomicU64, arena: &Arena) -> Locked<'a> {
        let (mut spins, mut doubts) = (0u32, 0u32);
        loop {
            let seen = BucketWord(word.load(Relaxed));
            let owner = seen.owner();
            let is_left = || doubts >= DOUBTS_MAX || arena.is_lost() || arena.is_owner_dead(owner);
            let is_free = owner == 0 || spins >= SPINS_TO_DOUBT && is_left();
            if is_free && let Some(locked) = seen.try_lock(word, arena) {
                if doubts >= DOUBTS_MAX {
                    arena.doubt();
                }
                return locked;
            }
            doubts += u32::from(spins >= SPINS_TO_DOUBT);
            spins = if spins >= SPINS_TO_DOUBT { 0 } else { spins + 1 };
            if spins.is_multiple_of(128) {
                sync::give_way();
            }
            sync::spin_loop();
        }
    }

    /// Calls `view` for entries in the bucket of `hash` until it returns a value, and returns that.
    /// `view` may also see entries that are not in the bucket; then its result is discarded
    /// (hash-H1).
    #[inline]
    pub fn find<R>(
        &self,
        arena: &Arena,
        hash: u64,
        mut view: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        let first = self.bucket(arena, hash);
        let seen = BucketWord(first.word.load(Acquire));
        if seen.owner() == 0 {
            let mut bucket = first;
            for _ in 0..STEPS_MAX {
                let found = bucket.filled().find_map(&mut view);
                let next = self.after(arena, bucket);
                if found.is_some() || next.is_none() {
                    fence(Acquire);
                    if first.word.load(Relaxed) == seen.0 {
                        return found;
                    }
                    break;
                }
                bucket = next.map_or(first, |(_, next)| next);
            }
        }
        self.find_locked(arena, hash, view)
    }

    /// As [`find`](Self::find), with the bucket locked: `view` sees only entries of the bucket, and
    /// may change them.
    #[cold]
    pub fn find_locked<R>(
        &self,
        arena: &Arena,
        hash: u64,
        mut view: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        let _locked = self.lock(arena, hash);
        let mut bucket = self.bucket(arena, hash);
        for _ in 0..CHAIN_MAX {
            if let Some(found) = bucket.filled().find_map(&mut view) {
                return Some(found);
            }
            bucket = self.after(arena, bucket)?.1;
        }
        arena.doubt();
        None
    }

    /// Locks the bucket of `hash` and calls `fill` with an empty entry of it. Returns false if no
    /// further bucket is left, or if the chain is damaged (doubt-W1).
    pub fn insert(&self, arena: &Arena, hash: u64, fill: impl FnOnce(&T)) -> bool {
        let _locked = self.lock(arena, hash);
        let first = self.bucket(arena, hash);
        let (mut bucket, mut steps) = (first, 0);
        loop {
            if steps == CHAIN_MAX {
                arena.doubt();
                return false;
            }
            steps += 1;
            if let Some(room) = bucket.entries.iter().find(|entry| entry.is_none()) {
                fill(room);
                return true;
            }
            match self.after(arena, bucket) {
                Some((_, next)) => bucket = next,
                None => break,
            }
        }
        let Some(handle) = self.more.take(arena) else { return false };
        let bucket = self.more.get(arena, handle);
        bucket.entries.iter().for_each(HashEntry::clear);
        bucket.next.store(first.next.load(Relaxed), Relaxed);
        fill(&bucket.entries[0]);
        first.next.store(handle.0, Relaxed);
        true
    }

    /// Locks the bucket of `hash` and removes its first entry for which `matches` returns true.
    /// Returns whether it found one.
    pub fn remove(&self, arena: &Arena, hash: u64, mut matches: impl FnMut(&T) -> bool) -> bool {
        let _locked = self.lock(arena, hash);
        let mut before: Option<&Bucket<T>> = None;
        let mut at = None;
        let mut bucket = self.bucket(arena, hash);
        for _ in 0..CHAIN_MAX {
            if let Some(entry) = bucket.filled().find(|entry| matches(entry)) {
                entry.clear();
                if let (Some(before), Some(handle), true) =
                    (before, at, bucket.filled().next().is_none())
                {
                    before.next.store(bucket.next.load(Relaxed), Relaxed);
                    self.more.give(arena, handle);
                }
                return true;
            }
            let Some((handle, next)) = self.after(arena, bucket) else { return false };
            before = Some(bucket);
            (at, bucket) = (Some(handle), next);
        }
        arena.doubt();
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Default)]
    #[repr(C)]
    struct Key(AtomicU64, AtomicU64);
    // SAFETY: two atomics; zero is valid.
    unsafe impl Shared for Key {}
    impl HashEntry for Key {
        fn is_none(&self) -> bool {
            self.1.load(Relaxed) == 0
        }
        fn clear(&self) {
            self.1.store(0, Relaxed);
        }
    }

    #[test]
    fn insert_find_remove_under_contention() {
        let mut layout = Layout::default();
        let index = HashIndex::<Key>::plan(&mut layout, 64, 4000);
        let arena = Arena::anonymous(&layout).unwrap();
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let arena = &arena;
                s.spawn(move || {
                    for round in 0..5 {
                        for i in 0..900 {
                            let key = t * 1000 + i + 1;
                            assert!(index.insert(arena, key, |k| k.1.store(key, Relaxed)));
                        }
                        for i in 0..900 {
                            let key = t * 1000 + i + 1;
                            let is = |k: &Key| k.1.load(Relaxed) == key;
                            let has = || index.find(arena, key, |k| is(k).then_some(())).is_some();
                            assert!(has());
                            assert!(index.remove(arena, key, is));
                            assert!(!has(), "round {round}");
                        }
                    }
                });
            }
        });
        let taken: Vec<_> = std::iter::from_fn(|| index.more.take(&arena)).collect();
        assert_eq!(taken.len(), 4000, "additional buckets come back when they are empty");
    }

    #[test]
    fn what_has_no_room_is_refused() {
        let mut layout = Layout::default();
        let index = HashIndex::<Key>::plan(&mut layout, 1, 1);
        let arena = Arena::anonymous(&layout).unwrap();
        let insert = |key| index.insert(&arena, 0, |k| k.1.store(key, Relaxed));
        assert!((1..=6).all(insert));
        assert!(!insert(7));
        assert!(index.remove(&arena, 0, |k| k.1.load(Relaxed) == 2));
        assert!(insert(7) && !insert(8));
    }
}
