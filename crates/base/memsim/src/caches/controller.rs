//! The memory controller: a queue of requests, and the order in which banks serve them.
//!
//! - controller-Q1: A write enters the queue when there is room; until then its core waits. It
//!   leaves the queue at its end. Each channel has a queue.
//! - controller-Q2: A write of an epoch begins after all writes of earlier epochs of its context
//!   have ended (§4.4.1: the counter of the current epoch must be zero).
//! - controller-Q3: When a bank is free, it begins one of the requests that have come and may begin
//!   (FR-FCFS): a read before writes, then one whose row is in a buffer, then the one that came
//!   first. Requests that have begun are not interrupted.
//! - controller-Q4: The controller knows which lines of which context are queued, so that another
//!   context can wait for them (simulator-R5).
//! - controller-Q5: Requests come in the order of the trace. None comes before the one before it,
//!   whatever the clock of its core is. A core that waits, for room as well, makes the controller
//!   work ahead; requests that come later do not change what has begun.
//!
//! Which write a bank begins next is only decided when an answer depends on it: a later write may
//! come first.

use super::banks::{Banks, RowCounts};
use super::config::Timing;
use super::contexts::Context;
use super::waiting::{WaitingRequest, WaitingRequests};
use std::collections::VecDeque;

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

/// A write to be queued.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineWrite {
    /// The line.
    pub line: u64,
    /// Its epoch, if the hardware has epochs.
    pub epoch: Option<EpochId>,
    /// The core whose next fence waits for it.
    pub fenced_by: Option<u32>,
}

/// A write that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its number, in the order in which writes entered queues.
    pub number: u64,
    /// The time at which it entered.
    pub at: u64,
}

/// A write that was served, with its times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEnd {
    /// Its number ([`Accepted::number`]).
    pub number: u64,
    /// Its bank began it.
    pub begun: u64,
    /// It ended.
    pub ended: u64,
}

/// A write that has begun. It occupies its queue until its end.
#[derive(Clone, Copy, Debug)]
struct BegunWrite {
    end: u64,
    line: u64,
    /// The context of its epoch.
    context: Option<u32>,
}

/// A channel's queue of writes.
#[derive(Clone, Debug, Default)]
struct ChannelQueue {
    /// Writes in it: those that wait, and those that have begun.
    len: usize,
    /// Those that have begun, by their ends.
    begun: VecDeque<BegunWrite>,
}

/// Counts of the queued writes of epochs: of each context, and by a part of the numbers of their
/// lines. Most lines are found not to be queued without a search.
#[derive(Debug)]
struct QueuedLines {
    len: u64,
    of_contexts: Vec<u64>,
    of_slots: Vec<u64>,
}

/// Slots for the numbers of lines.
const SLOTS: u64 = 1024;

/// Writes that the next fence of a core waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Fenced {
    waiting: u64,
    ends: u64,
}

/// The controller.
#[derive(Debug)]
pub struct Controller {
    timing: Timing,
    /// Whether data is durable in the queue.
    is_queue_durable: bool,
    banks: Banks,
    /// Requests that may begin and have not. Not empty if a context holds writes back.
    waiting: WaitingRequests,
    /// Requests so far.
    order: u64,
    channels: Vec<ChannelQueue>,
    queued_lines: QueuedLines,
    /// The time of the last request (controller-Q5).
    clock: u64,
    numbers: u64,
    contexts: Vec<Context>,
    fenced: Vec<Fenced>,
    ends: Vec<WriteEnd>,
    /// The end of all writes that have begun.
    idle_from: u64,
    /// The most writes that were in a queue at a time.
    pub queue_max: u64,
    /// Nanoseconds that cores waited for room in a queue.
    pub queue_wait_ns: u64,
    /// Nanoseconds that writes waited for earlier epochs while their banks were free.
    pub order_wait_ns: u64,
}

impl Controller {
    /// Makes an idle controller.
    pub fn new(timing: Timing, contexts: u32, is_queue_durable: bool) -> Self {
        let banks = Banks::new(timing);
        Self {
            timing,
            is_queue_durable,
            waiting: WaitingRequests::new(banks.count(), timing.rows.is_some()),
            banks,
            order: 0,
            channels: vec![ChannelQueue::default(); timing.channels.count as usize],
            queued_lines: QueuedLines::new(contexts),
            clock: 0,
            numbers: 0,
            contexts: vec![Context::default(); contexts as usize],
            fenced: vec![Fenced::default(); contexts as usize],
            ends: Vec::new(),
            idle_from: 0,
            queue_max: 0,
            queue_wait_ns: 0,
            order_wait_ns: 0,
        }
    }

    /// Returns the counts of row buffers.
    pub fn row_counts(&self) -> RowCounts {
        self.banks.counts
    }

    /// Reads a line. Returns the time at which it is there.
    pub fn read(&mut self, now: u64, line: u64) -> u64 {
        self.clock = self.clock.max(now);
        let place = self.banks.place(line);
        if self.waiting.is_empty() {
            let at = self.clock.max(self.banks.free(place.bank()));
            return self.banks.serve(place, false, at).end + self.timing.channels.fixed_ns;
        }
        let request = WaitingRequest::read(self.order, line, place, self.clock);
        self.order += 1;
        self.waiting.add(request, &self.banks);
        loop {
            let (at, bank) = self.waiting.next().expect("the read waits");
            let (end, is_read) = self.serve(at, bank);
            if is_read {
                return end + self.timing.channels.fixed_ns;
            }
        }
    }

    /// Queues a write.
    pub fn write(&mut self, now: u64, write: LineWrite) -> Accepted {
        let place = self.banks.place(write.line);
        let at = self.accept(now, place.channel());
        let number = self.numbers;
        self.numbers += 1;
        if let Some(core) = write.fenced_by {
            let fenced = &mut self.fenced[core as usize];
            match self.is_queue_durable {
                true => fenced.ends = fenced.ends.max(at),
                false => fenced.waiting += 1,
            }
        }
        let order = self.order;
        self.order += 1;
        match write.epoch {
            None => {
                let request = WaitingRequest::write(order, number, write, place, at);
                self.waiting.add(request, &self.banks);
            }
            Some(EpochId { context, .. }) => {
                self.queued_lines.add(write.line, context);
                let request = WaitingRequest::write(order, number, write, place, at);
                if let Some(request) = self.contexts[context as usize].queue(request) {
                    self.waiting.add(request, &self.banks);
                }
            }
        }
        let channel = &mut self.channels[place.channel()];
        channel.len += 1;
        if channel.len as u64 > self.queue_max {
            self.work_until(at);
            self.leave(place.channel(), at);
            self.queue_max = self.queue_max.max(self.channels[place.channel()].len as u64);
        }
        Accepted { number, at }
    }

    /// Returns the time from which a channel's queue has room (controller-Q1).
    fn accept(&mut self, now: u64, channel: usize) -> u64 {
        self.clock = self.clock.max(now);
        let mut at = self.clock;
        let len_max = self.timing.queue as usize;
        if self.channels[channel].len == len_max {
            self.work_until(at);
            self.leave(channel, at);
        }
        while self.channels[channel].len == len_max {
            let first = self.channels[channel].begun.front().map_or(u64::MAX, |begun| begun.end);
            match self.waiting.next() {
                Some((from, bank)) if from < first => {
                    self.serve(from, bank);
                }
                _ => {
                    at = at.max(first);
                    self.leave(channel, at);
                }
            }
        }
        self.queue_wait_ns += at - now;
        at
    }

    /// Removes writes that have ended by now from a channel's queue.
    fn leave(&mut self, channel: usize, now: u64) {
        let ChannelQueue { len, begun } = &mut self.channels[channel];
        while let Some(ended) = begun.front().copied().filter(|begun| begun.end <= now) {
            begun.pop_front();
            *len -= 1;
            if let Some(context) = ended.context {
                self.queued_lines.remove(ended.line, context);
            }
        }
    }

    /// Begins what banks begin before this time.
    fn work_until(&mut self, until: u64) {
        while let Some((at, bank)) = self.waiting.next().filter(|(at, _)| *at < until) {
            self.serve(at, bank);
        }
    }

    /// Lets a bank begin the request that it has chosen. Returns the end of that, and whether it
    /// was a read.
    fn serve(&mut self, at: u64, bank: usize) -> (u64, bool) {
        let request = self.waiting.take(bank);
        let WaitingRequest { number, came, line, place, .. } = request;
        let free = self.banks.free(bank).max(came);
        let served = self.banks.serve(place, request.is_write(), at);
        self.waiting.choose(bank, served);
        let end = served.end;
        if !request.is_write() {
            return (end, true);
        }
        self.order_wait_ns += at - free;
        self.idle_from = self.idle_from.max(end);
        self.ends.push(WriteEnd { number, begun: at, ended: end });
        let epoch = request.epoch();
        let context = epoch.map(|epoch| epoch.context);
        self.channels[place.channel()].begin(end, line, context);
        if let Some(EpochId { context, number }) = epoch {
            let context = &mut self.contexts[context as usize];
            context.serve(number, end);
            while let Some(request) = context.release() {
                self.waiting.add(request, &self.banks);
            }
        }
        if let Some(core) = request.fenced_by().filter(|_| !self.is_queue_durable) {
            let fenced = &mut self.fenced[core as usize];
            fenced.waiting -= 1;
            fenced.ends = fenced.ends.max(end);
        }
        (end, false)
    }

    /// Returns the time at which all data is durable that the fence of a core waits for.
    pub fn fence(&mut self, core: u32) -> u64 {
        while self.fenced[core as usize].waiting > 0 {
            self.work();
        }
        self.fenced[core as usize].ends
    }

    /// Returns the time at which an epoch, with all of its lines written, is durable.
    pub fn epoch_end(&mut self, id: EpochId) -> u64 {
        if self.is_queue_durable {
            return self.contexts[id.context as usize].accepted(id.number);
        }
        loop {
            if let Some(end) = self.contexts[id.context as usize].end(id.number) {
                return end;
            }
            self.work();
        }
    }

    /// Whether an epoch, with all of its lines written, is durable now.
    pub fn is_epoch_durable(&mut self, id: EpochId, now: u64) -> bool {
        if !self.is_queue_durable {
            self.work_until(now);
        }
        let Some(epoch) = self.contexts[id.context as usize].find(id.number) else { return true };
        match self.is_queue_durable {
            true => epoch.accepted <= now,
            false => epoch.waiting == 0 && epoch.ends <= now,
        }
    }

    /// Lets a bank begin the next request.
    fn work(&mut self) {
        let (at, bank) = self.waiting.next().expect("the oldest epoch of a context may begin");
        self.serve(at, bank);
    }

    /// Serves all requests. Returns the end of all writes.
    pub fn finish(&mut self) -> u64 {
        while !self.waiting.is_empty() {
            self.work();
        }
        self.idle_from
    }

    /// Returns the writes that were served since the last call.
    pub fn take_ends(&mut self) -> impl Iterator<Item = WriteEnd> {
        self.ends.drain(..)
    }

    /// Returns the time at which writes of this line by epochs of other contexts have ended
    /// (controller-Q4).
    #[inline]
    pub fn queued_by_others(&mut self, line: u64, context: u32) -> Option<u64> {
        if !self.queued_lines.may_have(line, context) {
            return None;
        }
        let place = self.banks.place(line);
        let is_other = |other: Option<u32>| other.is_some_and(|other| other != context);
        let waits = |waiting: &WaitingRequest| {
            waiting.line == line && is_other(waiting.epoch().map(|epoch| epoch.context))
        };
        while self.waiting.of_bank(place.bank()).any(waits)
            || self.contexts.iter().any(|context| context.held().any(waits))
        {
            self.work();
        }
        let begun = self.channels[place.channel()].begun.iter();
        let of_others = begun.filter(|begun| begun.line == line && is_other(begun.context));
        of_others.map(|begun| begun.end).max()
    }
}

impl ChannelQueue {
    /// Adds a write that a bank has begun, with its end and the context of its epoch.
    #[inline]
    fn begin(&mut self, end: u64, line: u64, context: Option<u32>) {
        // Nearly all end after those that began before.
        if self.begun.back().is_none_or(|last| last.end <= end) {
            self.begun.push_back(BegunWrite { end, line, context });
        } else {
            let place = self.begun.partition_point(|other| other.end <= end);
            self.begun.insert(place, BegunWrite { end, line, context });
        }
    }
}

impl QueuedLines {
    fn new(contexts: u32) -> Self {
        let (of_contexts, of_slots) = (vec![0; contexts as usize], vec![0; SLOTS as usize]);
        Self { len: 0, of_contexts, of_slots }
    }

    #[inline]
    fn add(&mut self, line: u64, context: u32) {
        self.len += 1;
        self.of_contexts[context as usize] += 1;
        self.of_slots[(line % SLOTS) as usize] += 1;
    }

    #[inline]
    fn remove(&mut self, line: u64, context: u32) {
        self.len -= 1;
        self.of_contexts[context as usize] -= 1;
        self.of_slots[(line % SLOTS) as usize] -= 1;
    }

    /// Whether a write of this line by another context may be queued.
    #[inline]
    fn may_have(&self, line: u64, context: u32) -> bool {
        self.len > self.of_contexts[context as usize] && self.of_slots[(line % SLOTS) as usize] > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::{Channels, RowBuffers};

    const TIMING: Timing = Timing {
        l1_ns: 1,
        l2_ns: 7,
        read_ns: 50,
        write_ns: 150,
        banks: 2,
        queue: 8,
        rows: None,
        channels: Channels::ONE,
        volatile: None,
    };
    /// Rows of four lines, one buffer for each bank.
    const ROWS: Timing =
        Timing { rows: Some(RowBuffers { bytes: 256, buffers: 1, hit_ns: 10 }), ..TIMING };

    fn line(line: u64) -> LineWrite {
        LineWrite { line, ..LineWrite::default() }
    }

    fn of_epoch(at: u64, context: u32, number: u64) -> LineWrite {
        LineWrite { epoch: Some(EpochId { context, number }), ..line(at) }
    }

    /// Queues writes at 0, and returns their ends.
    fn ends(timing: Timing, contexts: u32, writes: &[LineWrite]) -> Vec<u64> {
        let mut controller = Controller::new(timing, contexts, false);
        for write in writes {
            controller.write(0, *write);
        }
        controller.finish();
        let mut ends: Vec<_> = controller.take_ends().collect();
        ends.sort_by_key(|end| end.number);
        ends.iter().map(|end| end.ended).collect()
    }

    #[test]
    fn banks_work_at_the_same_time() {
        assert_eq!(ends(TIMING, 1, &[0, 1, 2].map(line)), [150, 150, 300]);
    }

    #[test]
    fn a_full_queue_makes_the_core_wait() {
        let mut controller = Controller::new(Timing { queue: 2, ..TIMING }, 1, false);
        controller.write(0, line(0));
        controller.write(0, line(1));
        assert_eq!(controller.write(10, line(0)), Accepted { number: 2, at: 150 });
        assert_eq!((controller.queue_max, controller.queue_wait_ns), (2, 140));
        assert_eq!(controller.finish(), 300);
    }

    #[test]
    fn epochs_of_a_context_are_written_in_order() {
        let writes = [of_epoch(0, 0, 1), of_epoch(2, 0, 1), of_epoch(1, 1, 7), of_epoch(3, 0, 2)];
        assert_eq!(ends(TIMING, 2, &writes), [150, 300, 150, 450]);
        let mut controller = Controller::new(TIMING, 2, false);
        for write in writes {
            controller.write(0, write);
        }
        assert_eq!(controller.epoch_end(EpochId { context: 0, number: 1 }), 300);
        assert!(controller.is_epoch_durable(EpochId { context: 1, number: 7 }, 150));
        assert!(!controller.is_epoch_durable(EpochId { context: 0, number: 2 }, 449));
        assert_eq!(controller.order_wait_ns, 150, "its bank was free from 150 on");
        assert_eq!(controller.finish(), 450);
    }

    #[test]
    fn a_fence_waits_for_writes_of_its_core() {
        let mut controller = Controller::new(TIMING, 2, false);
        controller.write(0, LineWrite { fenced_by: Some(1), ..line(0) });
        controller.write(0, LineWrite { fenced_by: Some(0), ..line(2) });
        assert_eq!((controller.fence(1), controller.fence(0)), (150, 300));
        let mut durable = Controller::new(TIMING, 1, true);
        durable.write(7, LineWrite { fenced_by: Some(0), ..line(0) });
        assert_eq!(durable.fence(0), 7);
    }

    #[test]
    fn a_read_overtakes_the_queue() {
        let mut controller = Controller::new(TIMING, 1, false);
        for _ in 0..4 {
            controller.write(0, line(0));
        }
        assert_eq!(controller.read(10, 0), 10 + 140 + 50);
        assert_eq!(controller.read(10, 1), 60);
        assert_eq!(controller.finish(), 150 + 50 + 3 * 150);
    }

    #[test]
    fn a_row_in_a_buffer_comes_first() {
        // Lines 0 and 1 are of one row, 8 is of another row of that bank.
        assert_eq!(ends(ROWS, 1, &[0, 8, 1].map(line)), [10, 20 + 150 + 10, 20]);
        // The second misses because nothing may come before the first epoch.
        let epochs = [of_epoch(0, 0, 1), of_epoch(8, 0, 2), of_epoch(1, 0, 3)];
        assert_eq!(ends(ROWS, 1, &epochs), [10, 10 + 160, 170 + 160]);
    }

    #[test]
    fn a_dirty_row_is_written_when_its_buffer_is_needed() {
        let mut controller = Controller::new(ROWS, 1, false);
        assert_eq!(controller.read(0, 0), 60);
        assert_eq!(controller.read(60, 3), 70, "the row is open");
        assert_eq!(controller.read(70, 8), 70 + 60, "nothing was stored to it");
        controller.write(200, line(9));
        assert_eq!(controller.read(300, 0), 300 + 150 + 60);
        let counts = controller.row_counts();
        assert_eq!((counts.hits, counts.misses, counts.writes), (2, 3, 1));
    }

    #[test]
    fn several_buffers_keep_the_rows_used_last() {
        let rows = RowBuffers { bytes: 256, buffers: 2, hit_ns: 10 };
        let mut controller = Controller::new(Timing { rows: Some(rows), ..ROWS }, 1, false);
        let mut now = 0;
        let took = [0, 8, 0, 16, 0, 8].map(|line| {
            let begin = now;
            now = controller.read(now, line);
            now - begin
        });
        assert_eq!(took, [60, 60, 10, 60, 10, 60]);
    }

    #[test]
    fn channels_have_banks_buses_and_queues_of_their_own() {
        let channels = Channels { count: 2, interleave_bytes: 128, bus_ns: 20, fixed_ns: 100 };
        let timing = Timing { channels, banks: 2, queue: 1, ..TIMING };
        let mut controller = Controller::new(timing, 1, false);
        // Lines 0 and 1 are in channel 0, lines 2 and 3 in channel 1.
        assert_eq!(controller.read(0, 0), 50 + 20 + 100);
        assert_eq!(controller.read(0, 1), 50 + 2 * 20 + 100, "the bus is busy");
        assert_eq!(controller.read(0, 2), 50 + 20 + 100);
        assert_eq!(controller.write(200, line(4)).at, 200);
        assert_eq!(controller.write(200, line(6)).at, 200, "another queue");
        assert_eq!(controller.write(200, line(5)).at, 200 + 150 + 20);
    }

    #[test]
    fn contexts_have_identifiers_of_their_own() {
        let id = |context, number| EpochId { context, number }.bits();
        assert_eq!(id(0, 5), 5);
        assert_ne!(id(1, 5), id(0, 5));
        assert_eq!(id(63, 0), 63 << 58);
    }
}
