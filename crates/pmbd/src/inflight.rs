//! Which requests are under way, so that a barrier can wait for them (PMBD §IV-C2).
//!
//! Requests that come while a barrier waits are not held up: they count under the other of two phases.
//!
//! - **F1** A request counts under the phase that it has seen *after* counting; otherwise it counts anew.
//! - **F2** A barrier turns the phase and waits until nobody counts under the old one. So all requests that
//!   were counted before it have ended, and the phase that becomes current next is empty.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Threads count in different cache lines, up to this many.
const SHARDS: usize = 32;

/// A cache line and its neighbour, which the prefetcher pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicU32; 2]);

/// The requests under way.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    phase: AtomicUsize,
    shards: [Shard; SHARDS],
    /// One barrier at a time.
    turn: Mutex<()>,
}

/// A request under way; it ends when this is dropped.
pub(crate) struct Request<'a>(&'a AtomicU32);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<Option<usize>> = const { Cell::new(None) });
    MINE.get().unwrap_or_else(|| {
        let mine = NEXT.fetch_add(1, SeqCst) % SHARDS;
        MINE.set(Some(mine));
        mine
    })
}

impl InFlight {
    /// Begins a request.
    pub(crate) fn begin(&self) -> Request<'_> {
        let Shard(counts) = &self.shards[shard()];
        loop {
            let phase = self.phase.load(SeqCst);
            counts[phase].fetch_add(1, SeqCst);
            let request = Request(&counts[phase]);
            if self.phase.load(SeqCst) == phase {
                return request; // F1
            }
        }
    }

    /// Waits until all requests that have begun are over. The caller must not be in one.
    pub(crate) fn wait(&self) {
        // Nothing panics while holding it.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.phase.fetch_xor(1, SeqCst); // F2
        for Shard(counts) in &self.shards {
            let mut looks = 0;
            while counts[old].load(SeqCst) != 0 {
                looks += 1;
                // A copy of a few kilobytes is worth spinning for, more is not.
                if looks < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn waits_for_those_before_only() {
        let all = InFlight::default();
        let over = AtomicBool::new(false);
        let early = all.begin();
        std::thread::scope(|s| {
            s.spawn(|| {
                all.wait();
                assert!(over.load(SeqCst), "the barrier overtook a request");
            });
            while all.phase.load(SeqCst) == 0 {
                std::hint::spin_loop();
            }
            let _late = all.begin(); // never waited for: it outlives the barrier
            over.store(true, SeqCst);
            drop(early);
        });
        all.wait();
    }

    #[test]
    fn what_ended_before_a_barrier_is_seen_by_it() {
        let all = InFlight::default();
        let begun = AtomicUsize::new(0);
        let ended = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !stop.load(SeqCst) {
                        let _request = all.begin();
                        begun.fetch_add(1, SeqCst);
                        ended.fetch_add(1, SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                let before = begun.load(SeqCst);
                all.wait();
                assert!(ended.load(SeqCst) >= before);
            }
            stop.store(true, SeqCst);
        });
    }
}
