//! SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi: *SIEVE is simpler than LRU*, NSDI '24).
//!
//! SIEVE has one queue in order of arrival, and a hand that moves from the oldest object to the
//! youngest and then starts over. The hand spares objects that were hit since it last passed them,
//! and takes others. Objects never move: those that are hit stay among the old ones, and new ones
//! without hits are taken soon.

use std::sync::Arc;

use crate::objects::{List, NONE, Objects};
use crate::{MarkSlot, Marks, Policy};

/// The maximum number of hits counted for an object.
pub(crate) const MARK_MAX: u8 = 1;

/// SIEVE: a queue with a hand that spares objects that were hit.
pub struct Sieve {
    /// The objects. A flag marks those that `skip` refused; it is valid for the round in which it
    /// was set.
    objects: Objects,
    queue: List,
    /// The object at the hand; [`NONE`]: the oldest.
    hand: u32,
}

impl Sieve {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        Sieve { objects: Objects::new(marks), queue: List::EMPTY, hand: NONE }
    }

    /// Returns the object at the hand. The queue is not empty.
    fn at_hand(&mut self) -> u32 {
        if self.hand == NONE {
            self.hand = self.queue.front;
        }
        self.hand
    }

    /// Runs the first round: spares objects that were hit, and flags those that `skip` refused.
    fn search(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        for _ in 0..self.queue.len {
            let i = self.at_hand();
            let was_hit = self.objects.hits(i) != 0;
            if !was_hit && !skip(self.objects.key(i)) {
                return Some(self.objects.key(i));
            }
            self.objects.set_hits(i, 0);
            self.objects.set_flag(i, !was_hit);
            self.hand = self.objects.next(i);
        }
        None
    }

    /// Runs the second round, among objects that the first one spared. It ignores hits; otherwise
    /// threads that hit everything could make the search endless.
    fn search_spared(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        for _ in 0..self.queue.len {
            let i = self.at_hand();
            if !self.objects.flag(i) && !skip(self.objects.key(i)) {
                return Some(self.objects.key(i));
            }
            self.hand = self.objects.next(i);
        }
        None
    }
}

impl Policy for Sieve {
    fn insert(&mut self, key: u64, weight: u64) -> MarkSlot {
        let i = match self.objects.find(key) {
            Some(i) => {
                self.objects.set_weight(&mut self.queue, i, weight);
                i
            }
            None => {
                let i = self.objects.add(key, weight);
                self.objects.push_back(&mut self.queue, i);
                i
            }
        };
        MarkSlot::new(i)
    }

    fn remove(&mut self, key: u64) {
        let Some(i) = self.objects.find(key) else { return };
        if self.hand == i {
            self.hand = self.objects.next(i);
        }
        self.objects.unlink(&mut self.queue, i);
        self.objects.delete(i);
    }

    fn slot(&self, key: u64) -> Option<MarkSlot> {
        self.objects.find(key).map(MarkSlot::new)
    }

    fn victim(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        self.search(skip).or_else(|| self.search_spared(skip))
    }

    fn len(&self) -> usize {
        self.queue.len
    }

    fn bytes_of_memory(&self) -> usize {
        size_of::<Self>() + self.objects.bytes_of_memory()
    }
}
