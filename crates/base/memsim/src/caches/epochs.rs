//! The table of epochs in flight: eight entries, which lines point to (§4.4.1).
//!
//! - epochs-E1: The entries of one context have ascending numbers in the order in which they were
//!   taken.
//! - epochs-E2: An entry is free when no line points to it and all its writes have ended.

use super::controller::EpochId;

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochEntry {
    pub(super) id: EpochId,
    /// Its place in the order in which entries were taken.
    taken: u64,
    /// Lines that point to it.
    pub(super) lines: u64,
}

/// The table.
#[derive(Debug)]
pub(super) struct EpochTable {
    entries: Vec<Option<EpochEntry>>,
    taken: u64,
    /// The entry that was found last.
    found: usize,
    /// The most epochs that were in flight at a time.
    pub(super) in_flight_max: u64,
}

impl EpochTable {
    pub(super) fn new(entries: u32) -> Self {
        Self { entries: vec![None; entries as usize], taken: 0, found: 0, in_flight_max: 0 }
    }

    /// Returns the entry of an epoch.
    #[inline]
    pub(super) fn find(&mut self, id: EpochId) -> Option<usize> {
        let is_it = |entry: &Option<EpochEntry>| entry.as_ref().is_some_and(|e| e.id == id);
        if !is_it(&self.entries[self.found]) {
            self.found = self.entries.iter().position(is_it)?;
        }
        Some(self.found)
    }

    #[inline]
    pub(super) fn entry(&self, slot: usize) -> &EpochEntry {
        self.entries[slot].as_ref().expect("lines point to entries in use")
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, slot: usize) -> &mut EpochEntry {
        self.entries[slot].as_mut().expect("lines point to entries in use")
    }

    /// Takes a free entry. `None` if all are in flight (epochs-E2). `is_durable` tells whether all
    /// writes of an epoch have ended.
    pub(super) fn take(
        &mut self,
        id: EpochId,
        mut is_durable: impl FnMut(EpochId) -> bool,
    ) -> Option<usize> {
        let (mut free, mut in_flight) = (None, 0);
        for (slot, entry) in self.entries.iter().enumerate() {
            match entry.is_none_or(|e| e.lines == 0 && is_durable(e.id)) {
                true => free = free.or(Some(slot)),
                false => in_flight += 1,
            }
        }
        let slot = free?;
        self.taken += 1;
        self.entries[slot] = Some(EpochEntry { id, taken: self.taken, lines: 0 });
        // The new one counts from its first store on.
        self.in_flight_max = self.in_flight_max.max(in_flight + 1);
        Some(slot)
    }

    /// Returns the entry that was taken first: the one that a new epoch waits for.
    pub(super) fn oldest(&self) -> Option<usize> {
        let taken = |slot: &usize| self.entries[*slot].map_or(u64::MAX, |entry| entry.taken);
        (0..self.entries.len()).min_by_key(taken)
    }

    /// Returns the entry with lines of the oldest epoch of a context, up to epoch `number`
    /// (epochs-E1).
    pub(super) fn first_up_to(&self, id: EpochId) -> Option<usize> {
        let number = |slot: &usize| {
            let entry = self.entries[*slot].as_ref().filter(|entry| entry.lines > 0)?;
            let is_before = entry.id.context == id.context && entry.id.number <= id.number;
            is_before.then_some(entry.id.number)
        };
        (0..self.entries.len()).filter(|slot| number(slot).is_some()).min_by_key(number)
    }

    /// Returns whether no older epoch of the same context has lines.
    #[inline]
    pub(super) fn is_oldest(&self, slot: usize) -> bool {
        let id = self.entry(slot).id;
        !self.entries.iter().flatten().any(|entry| {
            entry.lines > 0 && entry.id.context == id.context && entry.id.number < id.number
        })
    }
}
