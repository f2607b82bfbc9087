//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: *FIFO queues are all you need for cache eviction*, SOSP
//! '23).
//!
//! New objects enter a *small* queue of a tenth of the cache. An object that was hit at least twice
//! before it leaves that queue moves to the *main* queue; any other one is evicted. So objects that
//! are used once do not displace others. The *ghost* queue remembers the keys of the evicted ones:
//! an object that returns while its key is there enters the main queue at once. In the main queue,
//! an object that was hit moves to the end, with one hit less.
//!
//! Differences from the paper: the small queue is a tenth of the objects cached now. The policy
//! does not know the size of the cache, which asks for victims when it is full. Ghosts are counted,
//! not weighed.
//!
//! - s3fifo-G1: the number of ghosts is at most nine tenths of the number of objects.

use std::sync::Arc;

use crate::objects::{List, Objects};
use crate::{MarkSlot, Marks, Policy};

/// The maximum number of hits counted for an object.
pub(crate) const MARK_MAX: u8 = 3;
/// The number of hits that moves an object from the small queue to the main one.
const HITS_FOR_MAIN: u8 = 2;

/// Tags of objects: their queue.
const SMALL: u32 = 0;
const MAIN: u32 = 1;
const GHOST: u32 = 2;

/// S3-FIFO: a small queue for new objects, a main queue, and ghosts of objects evicted from the
/// small one.
pub struct S3Fifo {
    /// The objects. A flag marks those that were returned as victims.
    objects: Objects,
    small: List,
    main: List,
    ghosts: List,
}

impl S3Fifo {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        let objects = Objects::new(marks);
        S3Fifo { objects, small: List::EMPTY, main: List::EMPTY, ghosts: List::EMPTY }
    }

    /// Returns the number of keys that are remembered beyond the objects.
    pub fn ghosts(&self) -> usize {
        self.ghosts.len
    }

    fn find(&self, key: u64) -> Option<(u32, u32)> {
        self.objects.find(key).map(|i| (i, self.objects.tag(i)))
    }

    /// Turns a ghost into an object again.
    fn revive(&mut self, i: u32, weight: u64) {
        self.objects.set_weight(&mut self.ghosts, i, weight);
        self.objects.unlink(&mut self.ghosts, i);
        self.objects.set_hits(i, 0);
        self.push_main(i);
    }

    fn push_main(&mut self, i: u32) {
        self.objects.set_tag(i, MAIN);
        self.objects.set_flag(i, false);
        self.objects.push_back(&mut self.main, i);
    }

    /// Removes the oldest ghosts until s3fifo-G1 holds.
    fn trim_ghosts(&mut self) {
        while self.ghosts.len * 10 > self.len() * 9 {
            let oldest = self.ghosts.front;
            self.objects.unlink(&mut self.ghosts, oldest);
            self.objects.delete(oldest);
        }
    }

    /// Returns whether the small queue has at least a tenth of all weight. `held` is the weight of
    /// the refused objects.
    fn is_small_full(&self, held: u64) -> bool {
        self.small.weight * 10 >= self.small.weight + self.main.weight + held
    }

    /// Returns the next victim, which stays in its queue; `None` if `skip` refuses all objects.
    /// Moves those that it refuses from the small queue to `held[0]`, and from the main queue to
    /// `held[1]`.
    fn search(&mut self, held: &mut [List; 2], skip: &mut dyn FnMut(u64) -> bool) -> Option<u32> {
        // A search of more steps than this means that threads hit objects meanwhile. Then hits are
        // ignored.
        let mut patience = self.len() * (usize::from(MARK_MAX) + 2);
        while self.small.len + self.main.len > 0 {
            let held_weight = held[0].weight + held[1].weight;
            let from_small =
                self.small.len > 0 && (self.main.len == 0 || self.is_small_full(held_weight));
            let i = if from_small { self.small.front } else { self.main.front };
            let hits = if patience > 0 { self.objects.hits(i) } else { 0 };
            patience = patience.saturating_sub(1);
            if from_small && hits >= HITS_FOR_MAIN {
                self.objects.unlink(&mut self.small, i);
                self.objects.set_hits(i, 0);
                self.push_main(i);
            } else if !from_small && hits > 0 {
                self.objects.unlink(&mut self.main, i);
                self.objects.set_hits(i, hits - 1);
                self.push_main(i);
            } else if skip(self.objects.key(i)) {
                let queue = if from_small { &mut self.small } else { &mut self.main };
                self.objects.unlink(queue, i);
                self.objects.set_flag(i, false);
                self.objects.push_back(&mut held[usize::from(!from_small)], i);
            } else {
                return Some(i);
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, key: u64, weight: u64) -> MarkSlot {
        let i = match self.find(key) {
            Some((i, GHOST)) => {
                self.revive(i, weight);
                i
            }
            Some((i, MAIN)) => {
                self.objects.set_weight(&mut self.main, i, weight);
                i
            }
            Some((i, _)) => {
                self.objects.set_weight(&mut self.small, i, weight);
                i
            }
            None => {
                let i = self.objects.add(key, weight);
                self.objects.push_back(&mut self.small, i);
                i
            }
        };
        MarkSlot::new(i)
    }

    fn remove(&mut self, key: u64) {
        let Some((i, tag)) = self.find(key) else { return };
        let queue = match tag {
            SMALL => &mut self.small,
            MAIN => &mut self.main,
            _ => &mut self.ghosts,
        };
        self.objects.unlink(queue, i);
        if tag == SMALL && self.objects.flag(i) {
            self.objects.set_tag(i, GHOST);
            self.objects.push_back(&mut self.ghosts, i);
        } else {
            self.objects.delete(i);
        }
        self.trim_ghosts();
    }

    fn slot(&self, key: u64) -> Option<MarkSlot> {
        self.find(key).filter(|(_, tag)| *tag != GHOST).map(|(i, _)| MarkSlot::new(i))
    }

    /// Moves skipped objects to the end of their queue.
    fn victim(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut held = [List::EMPTY; 2];
        let found = self.search(&mut held, skip);
        let [small, main] = held;
        self.objects.append(&mut self.small, small);
        self.objects.append(&mut self.main, main);
        let i = found?;
        self.objects.set_flag(i, true);
        Some(self.objects.key(i))
    }

    fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    fn bytes_of_memory(&self) -> usize {
        size_of::<Self>() + self.objects.bytes_of_memory()
    }
}
