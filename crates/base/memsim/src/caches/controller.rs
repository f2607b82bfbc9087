//! The memory controller: a queue of writes, and banks that work at the same time.
//!
//! - controller-Q1: A write enters the queue when there is room; until then its core waits.
//! - controller-Q2: A write of an epoch starts after all writes of earlier epochs of its context
//!   have ended (§4.4.1: the counter of the current epoch must be zero).
//! - controller-Q3: A read overtakes queued writes. It waits for at most one write, which its bank
//!   has begun.
//! - controller-Q4: The controller knows which lines of which context are queued, so that another
//!   context can wait for them (simulator-R5).
//! - controller-Q5: Requests come in the order of the trace. None begins before the one before it,
//!   whatever the clock of its core is.

use super::config::Timing;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The epoch of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochId {
    /// The hardware context.
    pub context: u32,
    /// The number of its barriers before the write.
    pub number: u64,
}

impl EpochId {
    /// Bits of the context in the identifier of 64 bits, at its top (§4.4.1).
    pub const CONTEXT_BITS: u32 = 6;

    /// Returns the identifier that the hardware has: context and number in 64 bits.
    pub fn bits(self) -> u64 {
        let shift = u64::BITS - Self::CONTEXT_BITS;
        u64::from(self.context) << shift | self.number & ((1 << shift) - 1)
    }
}

/// The times of a write, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// It entered the queue.
    pub accepted: u64,
    /// It ended.
    pub completed: u64,
}

/// A write in the queue. The one that ends first is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queued {
    end: u64,
    line: u64,
    epoch: Option<EpochId>,
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .end
            .cmp(&self.end)
            .then_with(|| (self.line, self.epoch).cmp(&(other.line, other.epoch)))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The writes of one context.
#[derive(Clone, Copy, Debug, Default)]
struct Context {
    /// The latest epoch of which a write came.
    number: u64,
    /// The end of its writes so far.
    ends: u64,
    /// The end of all writes of earlier epochs.
    before: u64,
}

/// The controller.
#[derive(Debug)]
pub struct Controller {
    timing: Timing,
    /// The time from which each bank is free.
    banks: Vec<u64>,
    queue: BinaryHeap<Queued>,
    /// The time of the last request (controller-Q5).
    clock: u64,
    contexts: Vec<Context>,
    /// The most writes that were in the queue at a time.
    pub queue_max: u64,
    /// Nanoseconds that cores waited for room in the queue.
    pub queue_wait_ns: u64,
    /// Nanoseconds that writes waited for earlier epochs while their banks were free.
    pub order_wait_ns: u64,
}

impl Controller {
    /// Makes an idle controller.
    pub fn new(timing: Timing, contexts: u32) -> Self {
        Self {
            timing,
            banks: vec![0; timing.banks as usize],
            queue: BinaryHeap::with_capacity(timing.queue as usize),
            clock: 0,
            contexts: vec![Context::default(); contexts as usize],
            queue_max: 0,
            queue_wait_ns: 0,
            order_wait_ns: 0,
        }
    }

    fn bank(&self, line: u64) -> usize {
        (line % self.banks.len() as u64) as usize
    }

    /// Reads a line. Returns the time at which it is there (controller-Q3).
    pub fn read(&mut self, now: u64, line: u64) -> u64 {
        let now = self.clock.max(now);
        self.clock = now;
        let bank = self.bank(line);
        let busy = self.banks[bank].saturating_sub(now).min(self.timing.write_ns);
        let ready = now + busy + self.timing.read_ns;
        self.banks[bank] = self.banks[bank].max(now) + self.timing.read_ns;
        ready
    }

    /// Queues a write.
    pub fn write(&mut self, now: u64, line: u64, epoch: Option<EpochId>) -> Written {
        let accepted = self.accept(now);
        let bank = self.bank(line);
        let mut start = accepted.max(self.banks[bank]);
        if let Some(epoch) = epoch {
            // controller-Q2
            let context = &mut self.contexts[epoch.context as usize];
            assert!(epoch.number >= context.number, "the caches keep the order of epochs");
            if epoch.number > context.number {
                context.before = context.before.max(context.ends);
                context.number = epoch.number;
            }
            self.order_wait_ns += context.before.saturating_sub(start);
            start = start.max(context.before);
            context.ends = context.ends.max(start + self.timing.write_ns);
        }
        let completed = start + self.timing.write_ns;
        self.banks[bank] = completed;
        self.queue.push(Queued { end: completed, line, epoch });
        self.queue_max = self.queue_max.max(self.queue.len() as u64);
        Written { accepted, completed }
    }

    /// Returns the time from which the queue has room (controller-Q1).
    fn accept(&mut self, now: u64) -> u64 {
        let mut at = self.clock.max(now);
        while let Some(Queued { end, .. }) = self.queue.peek().copied() {
            if end > at && self.queue.len() < self.timing.queue as usize {
                break;
            }
            self.queue.pop();
            at = at.max(end);
        }
        self.queue_wait_ns += at - now;
        self.clock = at;
        at
    }

    /// Returns the end of all writes so far.
    pub fn idle_from(&self) -> u64 {
        self.queue.iter().map(|queued| queued.end).max().unwrap_or(0)
    }

    /// Returns the time at which writes of this line by epochs of other contexts have ended
    /// (controller-Q4).
    pub fn queued_by_others(&self, line: u64, context: u32) -> Option<u64> {
        let is_other = |queued: &&Queued| {
            queued.line == line && queued.epoch.is_some_and(|epoch| epoch.context != context)
        };
        self.queue.iter().filter(is_other).map(|queued| queued.end).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing =
        Timing { l1_ns: 1, l2_ns: 7, read_ns: 50, write_ns: 150, banks: 2, queue: 2 };

    fn epoch(context: u32, number: u64) -> Option<EpochId> {
        Some(EpochId { context, number })
    }

    #[test]
    fn banks_work_at_the_same_time() {
        let mut controller = Controller::new(Timing { queue: 8, ..TIMING }, 1);
        let ends = [0, 1, 2].map(|line| controller.write(0, line, None).completed);
        assert_eq!(ends, [150, 150, 300]);
    }

    #[test]
    fn a_full_queue_makes_the_core_wait() {
        let mut controller = Controller::new(TIMING, 1);
        controller.write(0, 0, None);
        controller.write(0, 1, None);
        assert_eq!(controller.write(10, 0, None), Written { accepted: 150, completed: 300 });
        assert_eq!((controller.queue_max, controller.queue_wait_ns), (2, 140));
    }

    #[test]
    fn epochs_of_a_context_are_written_in_order() {
        let mut controller = Controller::new(Timing { queue: 8, ..TIMING }, 2);
        assert_eq!(controller.write(0, 0, epoch(0, 1)).completed, 150);
        assert_eq!(controller.write(0, 2, epoch(0, 1)).completed, 300);
        let other = controller.write(0, 1, epoch(1, 7)).completed;
        assert_eq!(other, 150, "another context waits for nothing");
        assert_eq!(controller.write(0, 3, epoch(0, 2)).completed, 450);
        assert_eq!(controller.order_wait_ns, 150, "its bank was free from 150 on");
    }

    #[test]
    fn a_read_overtakes_the_queue() {
        let mut controller = Controller::new(Timing { queue: 8, ..TIMING }, 1);
        for _ in 0..4 {
            controller.write(0, 0, None);
        }
        assert_eq!(controller.read(10, 0), 10 + 150 + 50);
        assert_eq!(controller.read(10, 1), 60);
    }

    #[test]
    fn contexts_have_identifiers_of_their_own() {
        let id = |context, number| EpochId { context, number }.bits();
        assert_eq!(id(0, 5), 5);
        assert_ne!(id(1, 5), id(0, 5));
        assert_eq!(id(63, 0), 63 << 58);
    }
}
