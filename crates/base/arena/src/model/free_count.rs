//! A thread that reserves blocks gets existing ones, and is refused only if there are too few.

use super::{explore, set_number};
use crate::{Arena, FreeCount, Layout};
use loom::thread;
use std::sync::Arc;

struct Counted {
    arena: Arena,
    count: FreeCount,
}

impl Counted {
    fn new(free: u64) -> Arc<Self> {
        let mut layout = Layout::default();
        let count = FreeCount::plan(&mut layout);
        let arena = Arena::anonymous(&layout).unwrap();
        count.set(&arena, free);
        Arc::new(Self { arena, count })
    }

    /// Takes `n` blocks as the thread with this number, and keeps one free. Returns the number
    /// taken.
    fn take(&self, number: u32, n: u64) -> u64 {
        set_number(number);
        if self.count.take(&self.arena, n, 1) { n } else { 0 }
    }
}

/// Two threads take blocks, and one gives some back meanwhile. The common counter is not *ample*
/// (free_count-K2), so all blocks stay in it.
#[test]
fn never_more_is_taken_than_there_is() {
    explore(|| {
        let c = Counted::new(4);
        let other = {
            let c = c.clone();
            thread::spawn(move || {
                let first = c.take(2, 2);
                c.count.give(&c.arena, first);
                c.take(2, 2)
            })
        };
        let mine = c.take(1, 2);
        let all = mine + other.join().unwrap();
        assert!(all <= 3, "one is kept: {all}");
        assert_eq!(c.count.total(&c.arena), 4 - all, "lost, or counted twice");
        // Now that no other thread uses the count, all blocks can be taken.
        assert_eq!(c.take(1, 4 - all - 1), 4 - all - 1);
    });
}

/// Threads have counters of their own, filled from the common one as long as that is ample.
#[test]
fn what_threads_have_for_themselves_counts() {
    explore(|| {
        let c = Counted::new(8);
        let other = {
            let c = c.clone();
            thread::spawn(move || c.take(2, 1))
        };
        let mine = c.take(1, 1);
        let all = mine + other.join().unwrap();
        assert_eq!(all, 2, "there were eight");
        assert_eq!(c.count.total(&c.arena), 6);
        assert_eq!(c.take(3, 5), 5, "also from the counters of others");
    });
}

/// Each thread tries to take all blocks: one of them gets them.
#[test]
fn of_two_who_want_the_same_one_gets_it() {
    explore(|| {
        let c = Counted::new(6);
        // Some blocks are in the counter of a thread.
        assert_eq!(c.take(1, 1), 1);
        c.count.give(&c.arena, 1);
        let other = {
            let c = c.clone();
            thread::spawn(move || c.take(2, 5))
        };
        let mine = c.take(1, 5);
        let theirs = other.join().unwrap();
        assert_eq!(mine + theirs, 5, "neither, though there is enough for one");
        assert_eq!(c.count.total(&c.arena), 1);
    });
}
