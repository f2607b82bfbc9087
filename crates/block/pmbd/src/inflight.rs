//! The requests under way, so that a barrier can wait for them (PMBD §IV-C2).
//!
//! Requests that begin while a barrier waits are not delayed: they are counted in the other of two
//! phases.
//!
//! - **inflight-F1** A request counts itself in the current phase and then checks that the phase
//!   *still* is current. Otherwise it counts itself again.
//! - **inflight-F2** A barrier switches the phase and waits until no request is counted in the old
//!   one. So all requests that were counted before it have ended, and the phase that becomes
//!   current next is empty.
//! - **inflight-F3** A barrier holds the lock until it has made the data of the requests durable.
//!   So a barrier that finds nothing to do runs after the one that has done it.
//!
//! The request of a killed process stays counted, and barriers wait for ever. This module does not
//! repair that: the supervisor of several processes ends the others, too, and opens the device
//! again, with counts of zero.

use arena::{Arena, Layout, LockMode, RwLock, Span};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

/// The number of shards: threads count in different cache lines.
const SHARDS: usize = 32;

/// Counters from one shard to the next: two lines, because the adjacent-line prefetcher loads pairs
/// of them.
const STRIDE: usize = 32;

/// The requests under way, of all processes that share the arena.
#[derive(Clone, Copy)]
pub(crate) struct InFlight {
    phase: Span<AtomicU32>,
    /// The counters of the two phases, for each shard.
    counts: Span<AtomicU32>,
    /// Serializes barriers.
    turn: Span<RwLock>,
}

/// A request under way; it ends when this is dropped.
pub(crate) struct InflightRequest<'a>(&'a AtomicU32);

impl Drop for InflightRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The distance in shards between the first threads of processes with consecutive numbers, so that
/// they rarely share a shard.
const APART: usize = 5;

/// Returns the calling thread's shard, assigned at the first call.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<Option<usize>> = const { Cell::new(None) });
    MINE.get().unwrap_or_else(|| {
        let first = APART * std::process::id() as usize;
        let mine = (first + NEXT.fetch_add(1, SeqCst)) % SHARDS;
        MINE.set(Some(mine));
        mine
    })
}

impl InFlight {
    pub(crate) fn plan(layout: &mut Layout) -> Self {
        Self {
            phase: layout.table(1),
            counts: layout.table(SHARDS * STRIDE),
            turn: layout.table(1),
        }
    }

    /// Begins a request.
    pub(crate) fn begin<'a>(&self, arena: &'a Arena) -> InflightRequest<'a> {
        let phase = &arena.table(self.phase)[0];
        let counts = &arena.table(self.counts)[shard() * STRIDE..];
        loop {
            let seen = phase.load(SeqCst);
            let count = &counts[seen as usize];
            count.fetch_add(1, SeqCst);
            let request = InflightRequest(count);
            if phase.load(SeqCst) == seen {
                return request; // inflight-F1
            }
        }
    }

    /// Waits until all requests that have begun are over, then calls `then`, before another barrier
    /// begins (inflight-F3). The caller must not be in a request.
    pub(crate) fn wait(&self, arena: &Arena, then: impl FnOnce()) {
        let turn = &arena.table(self.turn)[0];
        turn.lock(LockMode::Exclusive);
        let old = arena.table(self.phase)[0].fetch_xor(1, SeqCst) as usize; // inflight-F2
        for shard in arena.table(self.counts).chunks_exact(STRIDE) {
            let mut looks = 0;
            while shard[old].load(SeqCst) != 0 {
                looks += 1;
                // Spin only as long as a copy of a few kilobytes takes.
                if looks < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        then();
        turn.unlock(LockMode::Exclusive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn bed() -> (InFlight, Arena) {
        let mut layout = Layout::default();
        (InFlight::plan(&mut layout), Arena::inherited(&layout).unwrap())
    }

    #[test]
    fn waits_for_those_before_only() {
        let (all, arena) = &bed();
        let over = AtomicBool::new(false);
        let early = all.begin(arena);
        std::thread::scope(|s| {
            s.spawn(|| {
                all.wait(arena, || ());
                assert!(over.load(SeqCst), "the barrier overtook a request");
            });
            while arena.table(all.phase)[0].load(SeqCst) == 0 {
                std::hint::spin_loop();
            }
            let _late = all.begin(arena); // never waited for: it outlives the barrier
            over.store(true, SeqCst);
            drop(early);
        });
        all.wait(arena, || ());
    }

    #[test]
    fn what_ended_before_a_barrier_is_seen_by_it() {
        let (all, arena) = &bed();
        let begun = AtomicUsize::new(0);
        let ended = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !stop.load(SeqCst) {
                        let _request = all.begin(arena);
                        begun.fetch_add(1, SeqCst);
                        ended.fetch_add(1, SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                let before = begun.load(SeqCst);
                all.wait(arena, || ());
                assert!(ended.load(SeqCst) >= before);
            }
            stop.store(true, SeqCst);
        });
    }

    #[test]
    fn no_barrier_overtakes_one_that_is_at_work() {
        let (all, arena) = &bed();
        let durable = AtomicBool::new(false);
        let (begun, begin) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let durable = &durable;
            s.spawn(move || {
                all.wait(arena, || {
                    begun.send(()).unwrap();
                    std::thread::yield_now();
                    durable.store(true, SeqCst);
                });
            });
            begin.recv().unwrap();
            all.wait(arena, || ());
            assert!(durable.load(SeqCst), "it found nothing to do, and nothing was done");
        });
    }
}
