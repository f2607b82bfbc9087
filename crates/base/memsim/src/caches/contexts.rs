//! Hardware contexts: their epochs with queued writes, and the writes that wait for earlier epochs
//! (controller-Q2).
//!
//! - contexts-C1: Epochs have ascending numbers, and at least one write each. Those before the
//!   first one with writes that wait have been served whole.
//! - contexts-C2: A write ends after all writes of earlier epochs. So the end of an epoch is that
//!   of all before it, too.

use super::controller::EpochId;
use super::waiting::WaitingRequest;
use std::collections::VecDeque;

/// The writes of one epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EpochWrites {
    number: u64,
    /// Writes that have not begun.
    pub(super) waiting: u64,
    /// The end of those that have.
    pub(super) ends: u64,
    /// The time at which the last one entered the queue.
    pub(super) accepted: u64,
}

/// A hardware context.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    /// Its latest epochs, the oldest first (contexts-C1).
    epochs: VecDeque<EpochWrites>,
    /// The index of the first one with writes that wait: those may begin.
    first: usize,
    /// The end of the epochs that are forgotten.
    forgotten: u64,
    /// Writes of later epochs, in their order.
    held: VecDeque<WaitingRequest>,
}

/// Epochs that a context remembers at least: more than can be in flight.
const EPOCHS_KEPT: usize = 65;

impl Context {
    /// Notes that a write of an epoch was queued. Returns it if it may begin.
    pub(super) fn queue(&mut self, write: WaitingRequest) -> Option<WaitingRequest> {
        let EpochId { number, .. } = write.epoch().expect("a write of an epoch");
        let last = self.epochs.back().map(|epoch| epoch.number);
        assert!(last.is_none_or(|last| number >= last), "the caches keep the order of epochs");
        if last != Some(number) {
            self.epochs.push_back(EpochWrites { number, ..EpochWrites::default() });
            if self.epochs.len() > EPOCHS_KEPT && self.epochs[0].waiting == 0 {
                let gone = self.epochs.pop_front().expect("there are more than are kept");
                self.forgotten = gone.ends;
                self.first -= 1;
            }
        }
        let at = self.epochs.len() - 1;
        let epoch = &mut self.epochs[at];
        epoch.waiting += 1;
        epoch.accepted = write.came;
        // The last epoch may get writes after it was served.
        self.first = self.first.min(at);
        if self.first == at {
            return Some(self.ready(write));
        }
        self.held.push_back(write);
        None
    }

    /// Sets the time from which a write of the first epoch may begin.
    fn ready(&self, mut write: WaitingRequest) -> WaitingRequest {
        let before = self.first.checked_sub(1).map_or(self.forgotten, |at| self.epochs[at].ends);
        write.ready = write.came.max(before);
        write
    }

    /// Notes that a write of the first epoch that waits was served.
    pub(super) fn serve(&mut self, number: u64, end: u64) {
        let epoch = &mut self.epochs[self.first];
        assert_eq!(epoch.number, number, "only writes of the first epoch begin");
        epoch.waiting -= 1;
        epoch.ends = epoch.ends.max(end);
        self.first += usize::from(epoch.waiting == 0);
    }

    /// Returns a write that was held and may begin.
    #[inline]
    pub(super) fn release(&mut self) -> Option<WaitingRequest> {
        let first = self.epochs.get(self.first)?.number;
        let EpochId { number, .. } = self.held.front()?.epoch()?;
        if number != first {
            return None;
        }
        let write = self.held.pop_front()?;
        Some(self.ready(write))
    }

    /// Returns the writes that are held.
    pub(super) fn held(&self) -> impl Iterator<Item = &WaitingRequest> {
        self.held.iter()
    }

    /// Returns the end of all epochs up to one (contexts-C2). `None` if writes of them wait.
    pub(super) fn end(&self, number: u64) -> Option<u64> {
        let until = self.until(number);
        (until <= self.first).then(|| until.checked_sub(1).map_or(0, |at| self.epochs[at].ends))
    }

    /// Returns the time at which the last write of all epochs up to one entered the queue.
    pub(super) fn accepted(&self, number: u64) -> u64 {
        let epochs = self.epochs.range(..self.until(number));
        epochs.map(|epoch| epoch.accepted).max().unwrap_or(0)
    }

    /// Returns how many of the remembered epochs there are up to one.
    fn until(&self, number: u64) -> usize {
        self.epochs.partition_point(|epoch| epoch.number <= number)
    }

    /// Returns an epoch, if it is remembered and has had writes.
    pub(super) fn find(&self, number: u64) -> Option<&EpochWrites> {
        let at = self.until(number).checked_sub(1)?;
        Some(&self.epochs[at]).filter(|epoch| epoch.number == number)
    }
}
