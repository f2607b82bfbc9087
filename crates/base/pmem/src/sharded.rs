//! Sums to which many threads add, cheap enough to be always on.
//!
//! Each thread owns one slot of every [`Sharded`], so an addition is a plain load, add and store in
//! a cache line that no other thread writes. Threads beyond [`OWNED`] share one more slot, by
//! atomic additions. There are no locks that a fork in a threaded program could leave held.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of slots with an owner: the bits of one word.
const OWNED: usize = 64;

/// A bit for each slot that has an owner. Acquire and release on it pass a slot's values from
/// thread to thread.
static OWNERS: AtomicU64 = AtomicU64::new(0);

os::thread_cell! {
    /// This thread's slot plus one; 0: none yet. The cell has no destructor, so that counting works
    /// while a thread ends.
    fn slot_and_one -> usize, "pmem_sharded_slot", 8
}

thread_local! {
    /// Gives the slot back when the thread ends.
    static LEASE: Lease = const { Lease };
}

struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let slot = slot_and_one().replace(OWNED + 1);
        if (1..=OWNED).contains(&slot) {
            OWNERS.fetch_and(!(1 << (slot - 1)), std::sync::atomic::Ordering::Release);
        }
    }
}

/// Claims a slot for the calling thread until it ends; if none is free, [`OWNED`], which such
/// threads share.
#[cold]
fn assign_slot() -> usize {
    let claimed = OWNERS.fetch_update(std::sync::atomic::Ordering::Acquire, Relaxed, |owners| {
        (owners != u64::MAX).then(|| owners | (owners + 1))
    });
    let slot = claimed.map_or(OWNED, |owners| owners.trailing_ones() as usize);
    slot_and_one().set(slot + 1);
    // If the destructor can no longer be registered, the thread is ending and the slot stays taken.
    // That costs speed, but counts stay exact.
    let _ = LEASE.try_with(|_| ());
    slot
}

/// Two lines, because the adjacent-line prefetcher loads pairs of them.
#[repr(align(128))]
struct Shard<const N: usize>([AtomicU64; N]);

/// `N` sums.
pub struct Sharded<const N: usize>(Box<[Shard<N>; OWNED + 1]>);

impl<const N: usize> Default for Sharded<N> {
    fn default() -> Self {
        let shard = || Shard(std::array::from_fn(|_| AtomicU64::new(0)));
        Self(Box::new(std::array::from_fn(|_| shard())))
    }
}

impl<const N: usize> Sharded<N> {
    /// Adds `n` to sum number `which`.
    #[inline]
    pub fn add(&self, which: usize, n: u64) {
        let slot = slot_and_one().get().wrapping_sub(1);
        if slot >= OWNED {
            return self.add_slowly(slot, which, n);
        }
        let counter = &self.0[slot].0[which];
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds at the first time in a thread, or if there are too many threads.
    #[cold]
    #[inline(never)]
    fn add_slowly(&self, slot: usize, which: usize, n: u64) {
        let slot = if slot > OWNED { assign_slot() } else { slot };
        self.0[slot].0[which].fetch_add(n, Relaxed);
    }

    /// Returns sum number `which`. It includes all earlier additions; concurrent ones may or may
    /// not be included.
    pub fn sum(&self, which: usize) -> u64 {
        self.0.iter().map(|s| s.0[which].load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_with_more_threads_than_slots() {
        let sums = Sharded::<2>::default();
        for _ in 0..2 {
            let gate = std::sync::Barrier::new(OWNED + 16);
            std::thread::scope(|s| {
                for _ in 0..OWNED + 16 {
                    s.spawn(|| {
                        sums.add(0, 1);
                        gate.wait(); // all hold their slots at once
                        for i in 0..1000 {
                            sums.add(1, i);
                        }
                    });
                }
            });
        }
        let n = 2 * (OWNED as u64 + 16);
        assert_eq!([sums.sum(0), sums.sum(1)], [n, n * 499_500]);
    }
}
