//! The policy of Chell §4.1.4: LRU among misses, FIFO among hits.
//!
//! The cache's manager keeps a list of its objects (*Cnodes*). It moves an object to the tail when
//! it is called for it: when the object is added, and when part of it was missing. Hits do not call
//! the manager, so they do not move objects. The victim is the head.

use std::sync::Arc;

use crate::objects::{List, Objects};
use crate::{MarkSlot, Marks, Policy};

/// The maximum number of hits counted for an object: hits are not counted.
pub(crate) const MARK_MAX: u8 = 0;

/// The policy of Chell §4.1.4: a list in which misses move objects to the tail.
pub struct Blended {
    objects: Objects,
    list: List,
}

impl Blended {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        Blended { objects: Objects::new(marks), list: List::EMPTY }
    }

    fn move_to_tail(&mut self, i: u32) {
        self.objects.unlink(&mut self.list, i);
        self.objects.push_back(&mut self.list, i);
    }
}

impl Policy for Blended {
    fn insert(&mut self, key: u64, weight: u64) -> MarkSlot {
        let i = match self.objects.find(key) {
            Some(i) => {
                self.objects.set_weight(&mut self.list, i, weight);
                i
            }
            None => {
                let i = self.objects.add(key, weight);
                self.objects.push_back(&mut self.list, i);
                i
            }
        };
        MarkSlot::new(i)
    }

    fn remove(&mut self, key: u64) {
        if let Some(i) = self.objects.find(key) {
            self.objects.unlink(&mut self.list, i);
            self.objects.delete(i);
        }
    }

    fn entered(&mut self, key: u64) {
        if let Some(i) = self.objects.find(key) {
            self.move_to_tail(i);
        }
    }

    fn slot(&self, key: u64) -> Option<MarkSlot> {
        self.objects.find(key).map(MarkSlot::new)
    }

    /// Moves skipped objects to the tail; otherwise each search would look at them until they can
    /// be evicted.
    fn victim(&mut self, skip: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        for _ in 0..self.list.len {
            let head = self.list.front;
            let key = self.objects.key(head);
            if !skip(key) {
                return Some(key);
            }
            self.move_to_tail(head);
        }
        None
    }

    fn len(&self) -> usize {
        self.list.len
    }

    fn bytes_of_memory(&self) -> usize {
        size_of::<Self>() + self.objects.bytes_of_memory()
    }
}
