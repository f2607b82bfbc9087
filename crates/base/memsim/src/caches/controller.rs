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

use super::banks::{BankPlace, Banks, RowCounts};
use super::config::Timing;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

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

/// A request that no bank has begun.
#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    /// Its place among all requests.
    order: u64,
    /// Its number among writes.
    number: u64,
    /// `None`: it is a read.
    write: Option<LineWrite>,
    place: BankPlace,
    came: u64,
}

/// A request that a bank can begin: from when, whether it is a write, whether it misses the row
/// buffers, its order; and its index. The least one comes first (controller-Q3).
type Choice = (u64, bool, bool, u64, usize);

/// No request that the bank can begin.
const NO_CHOICE: Choice = (u64::MAX, true, true, u64::MAX, usize::MAX);

/// A set of banks, one bit each.
#[derive(Debug)]
struct BankSet(Vec<u64>);

impl BankSet {
    fn new(banks: usize) -> Self {
        Self(vec![0; banks.div_ceil(64)])
    }

    fn add(&mut self, bank: usize) {
        self.0[bank / 64] |= 1 << (bank % 64);
    }

    /// Removes a bank. Returns whether it was there.
    fn remove(&mut self, bank: usize) -> bool {
        let (word, bit) = (&mut self.0[bank / 64], 1 << (bank % 64));
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }
}

/// A write that has begun. It occupies its queue until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BegunWrite {
    end: u64,
    line: u64,
    epoch: Option<EpochId>,
}

/// The writes of one epoch.
#[derive(Clone, Copy, Debug, Default)]
struct EpochWrites {
    number: u64,
    /// Writes that have not begun.
    waiting: u64,
    /// The end of those that have.
    ends: u64,
    /// The time at which the last one entered the queue.
    accepted: u64,
}

/// A hardware context.
#[derive(Clone, Debug, Default)]
struct Context {
    /// Its latest epochs, the oldest first.
    epochs: VecDeque<EpochWrites>,
    /// The number of the first one with writes that wait: those may begin.
    first: Option<u64>,
    /// The end of all writes of epochs before that one.
    before: u64,
}

/// Epochs that a context remembers at least: more than can be in flight.
const EPOCHS_KEPT: usize = 65;

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
    /// Requests that wait for each bank, in the order in which they came.
    queues: Vec<Vec<WaitingRequest>>,
    /// The request that each bank begins next.
    choices: Vec<Choice>,
    /// Banks for which requests wait, and those of them that have to choose again.
    busy: BankSet,
    stale: BankSet,
    /// Requests that wait.
    waiting: usize,
    /// Requests so far.
    order: u64,
    /// Writes in each channel's queue: those that wait, and those that have begun.
    queued: Vec<usize>,
    begun: Vec<BinaryHeap<Reverse<BegunWrite>>>,
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
        let channels = timing.channels.count as usize;
        let banks = channels * timing.all_banks() as usize;
        Self {
            timing,
            is_queue_durable,
            banks: Banks::new(timing),
            queues: vec![Vec::new(); banks],
            choices: vec![NO_CHOICE; banks],
            busy: BankSet::new(banks),
            stale: BankSet::new(banks),
            waiting: 0,
            order: 0,
            queued: vec![0; channels],
            begun: vec![BinaryHeap::new(); channels],
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
        if self.waiting == 0 {
            let at = self.clock.max(self.banks.free(place.bank()));
            return self.banks.serve(place, false, at) + self.timing.channels.fixed_ns;
        }
        self.wait(None, 0, place, self.clock);
        loop {
            let (at, bank) = self.next().expect("the read waits");
            let (end, is_read) = self.serve(at, bank);
            if is_read {
                return end + self.timing.channels.fixed_ns;
            }
        }
    }

    fn wait(&mut self, write: Option<LineWrite>, number: u64, place: BankPlace, came: u64) {
        let bank = place.bank();
        self.queues[bank].push(WaitingRequest { order: self.order, number, write, place, came });
        self.busy.add(bank);
        self.stale.add(bank);
        self.order += 1;
        self.waiting += 1;
    }

    /// Queues a write.
    pub fn write(&mut self, now: u64, write: LineWrite) -> Accepted {
        let place = self.banks.place(write.line);
        let at = self.accept(now, place.channel());
        let number = self.numbers;
        self.numbers += 1;
        if let Some(EpochId { context, number }) = write.epoch
            && self.contexts[context as usize].queue(number, at)
        {
            self.stale.0.copy_from_slice(&self.busy.0);
        }
        if let Some(core) = write.fenced_by {
            let fenced = &mut self.fenced[core as usize];
            match self.is_queue_durable {
                true => fenced.ends = fenced.ends.max(at),
                false => fenced.waiting += 1,
            }
        }
        self.wait(Some(write), number, place, at);
        self.queued[place.channel()] += 1;
        if self.queued[place.channel()] as u64 > self.queue_max {
            self.work_until(at);
            self.leave(place.channel(), at);
            self.queue_max = self.queue_max.max(self.queued[place.channel()] as u64);
        }
        Accepted { number, at }
    }

    /// Returns the time from which a channel's queue has room (controller-Q1).
    fn accept(&mut self, now: u64, channel: usize) -> u64 {
        self.clock = self.clock.max(now);
        let mut at = self.clock;
        if self.queued[channel] == self.timing.queue as usize {
            self.work_until(at);
            self.leave(channel, at);
        }
        while self.queued[channel] == self.timing.queue as usize {
            let first = self.begun[channel].peek().map_or(u64::MAX, |Reverse(begun)| begun.end);
            match self.next() {
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
        let begun = &mut self.begun[channel];
        while begun.peek().is_some_and(|Reverse(begun)| begun.end <= now) {
            begun.pop();
            self.queued[channel] -= 1;
        }
    }

    /// Begins what banks begin before this time.
    fn work_until(&mut self, until: u64) {
        while let Some((at, bank)) = self.next().filter(|(at, _)| *at < until) {
            self.serve(at, bank);
        }
    }

    /// Returns the time at which a bank next begins a request, and that bank.
    fn next(&mut self) -> Option<(u64, usize)> {
        if self.waiting == 0 {
            return None;
        }
        let mut first = (NO_CHOICE, 0);
        for word in 0..self.busy.0.len() {
            let mut left = self.busy.0[word];
            while left != 0 {
                let bank = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if self.stale.remove(bank) {
                    self.choices[bank] = self.choose(bank);
                }
                first = first.min((self.choices[bank], bank));
            }
        }
        (first.0 != NO_CHOICE).then_some((first.0.0, first.1))
    }

    /// Returns the request that a bank begins next: none if earlier epochs must begin before.
    fn choose(&self, bank: usize) -> Choice {
        let waiting = &self.queues[bank];
        let free = self.banks.free(bank);
        let choice = |(i, waiting): (usize, &WaitingRequest)| {
            let mut from = waiting.came.max(free);
            if let Some(EpochId { context, number }) = waiting.write.and_then(|w| w.epoch) {
                // controller-Q2
                let Context { first, before, .. } = &self.contexts[context as usize];
                if *first != Some(number) {
                    return None;
                }
                from = from.max(*before);
            }
            let is_miss = self.timing.rows.is_some() && !self.banks.is_hit(waiting.place);
            Some((from, waiting.write.is_some(), is_miss, waiting.order, i))
        };
        waiting.iter().enumerate().filter_map(choice).min().unwrap_or(NO_CHOICE)
    }

    /// Lets a bank begin the request that it has chosen. Returns the end of that, and whether it
    /// was a read.
    fn serve(&mut self, at: u64, bank: usize) -> (u64, bool) {
        let (.., index) = self.choices[bank];
        let WaitingRequest { number, write, place, came, .. } = self.queues[bank].remove(index);
        if self.queues[bank].is_empty() {
            self.busy.remove(bank);
        } else {
            self.stale.add(bank);
        }
        self.waiting -= 1;
        let free = self.banks.free(bank).max(came);
        let end = self.banks.serve(place, write.is_some(), at);
        let Some(LineWrite { line, epoch, fenced_by }) = write else { return (end, true) };
        self.order_wait_ns += at - free;
        self.idle_from = self.idle_from.max(end);
        self.ends.push(WriteEnd { number, begun: at, ended: end });
        self.begun[place.channel()].push(Reverse(BegunWrite { end, line, epoch }));
        if let Some(EpochId { context, number }) = epoch
            && self.contexts[context as usize].serve(number, end)
        {
            self.stale.0.copy_from_slice(&self.busy.0);
        }
        if let Some(core) = fenced_by.filter(|_| !self.is_queue_durable) {
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
        loop {
            let Context { epochs, .. } = &self.contexts[id.context as usize];
            let until = epochs.iter().filter(|epoch| epoch.number <= id.number);
            if self.is_queue_durable {
                return until.map(|epoch| epoch.accepted).max().unwrap_or(0);
            }
            if until.clone().all(|epoch| epoch.waiting == 0) {
                return until.map(|epoch| epoch.ends).max().unwrap_or(0);
            }
            self.work();
        }
    }

    /// Whether an epoch, with all of its lines written, is durable now.
    pub fn is_epoch_durable(&mut self, id: EpochId, now: u64) -> bool {
        if !self.is_queue_durable {
            self.work_until(now);
        }
        let Context { epochs, .. } = &self.contexts[id.context as usize];
        let Some(epoch) = epochs.iter().find(|epoch| epoch.number == id.number) else {
            return true;
        };
        match self.is_queue_durable {
            true => epoch.accepted <= now,
            false => epoch.waiting == 0 && epoch.ends <= now,
        }
    }

    /// Lets a bank begin the next request.
    fn work(&mut self) {
        let (at, bank) = self.next().expect("the oldest epoch of a context may begin");
        self.serve(at, bank);
    }

    /// Serves all requests. Returns the end of all writes.
    pub fn finish(&mut self) -> u64 {
        while self.waiting > 0 {
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
    pub fn queued_by_others(&mut self, line: u64, context: u32) -> Option<u64> {
        let place = self.banks.place(line);
        let channel = place.channel();
        if self.queued[channel] == 0 {
            return None;
        }
        let is_other =
            |at, epoch: Option<EpochId>| at == line && epoch.is_some_and(|e| e.context != context);
        let waits =
            |waiting: &WaitingRequest| waiting.write.is_some_and(|w| is_other(w.line, w.epoch));
        while self.queues[place.bank()].iter().any(waits) {
            self.work();
        }
        let begun = self.begun[channel].iter().map(|Reverse(begun)| begun);
        begun.filter(|begun| is_other(begun.line, begun.epoch)).map(|begun| begun.end).max()
    }
}

impl Context {
    /// Notes that a write of an epoch was queued. Returns whether another epoch may begin.
    fn queue(&mut self, number: u64, at: u64) -> bool {
        let last = self.epochs.back().map(|epoch| epoch.number);
        assert!(last.is_none_or(|last| number >= last), "the caches keep the order of epochs");
        if last != Some(number) {
            self.epochs.push_back(EpochWrites { number, ..EpochWrites::default() });
            if self.epochs.len() > EPOCHS_KEPT && self.epochs[0].waiting == 0 {
                let gone = self.epochs.pop_front().expect("there are more than are kept");
                self.before = self.before.max(gone.ends);
            }
        }
        let epoch = self.epochs.back_mut().expect("it was pushed");
        epoch.waiting += 1;
        epoch.accepted = at;
        let begins = self.first.is_none();
        if begins {
            self.advance();
        }
        begins
    }

    /// Notes that a write of the first epoch that waits was served. Returns whether another epoch
    /// may begin.
    fn serve(&mut self, number: u64, end: u64) -> bool {
        let epoch = self.epochs.iter_mut().find(|epoch| epoch.number == number);
        let epoch = epoch.expect("an epoch with writes that wait is remembered");
        epoch.waiting -= 1;
        epoch.ends = epoch.ends.max(end);
        let is_over = epoch.waiting == 0;
        if is_over {
            self.advance();
        }
        is_over
    }

    /// Finds the first epoch with writes that wait.
    fn advance(&mut self) {
        let first = self.epochs.iter().position(|epoch| epoch.waiting > 0);
        self.first = first.map(|first| self.epochs[first].number);
        let before = self.epochs.iter().take(first.unwrap_or(0));
        self.before = before.fold(self.before, |end, epoch| end.max(epoch.ends));
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
