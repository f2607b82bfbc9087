//! Replays a trace through the caches.
//!
//! - simulator-S1: The L2 cache holds every line of the L1 caches. Whether a line is dirty, and its
//!   epoch, is kept in the L2 cache's entry. (In hardware that lies in both levels; the traffic to
//!   memory is the same.)
//! - simulator-S2: A line is in one list: of the epoch that it belongs to, or of the dirty lines
//!   without an epoch, or in none if it is clean.
//!
//! Rules of the epoch hardware (§4.4.1):
//!
//! - simulator-R1: A store joins the current epoch of its core. If that has no entry in the table,
//!   it takes one. If all are in flight, it waits until the one taken first is durable.
//! - simulator-R2: A store to a line of an older epoch of its core first writes that epoch and all
//!   before it.
//! - simulator-R3: A load of, or a store to, a line of an epoch of another core first writes that
//!   epoch and all before it, and waits until they are durable.
//! - simulator-R4: A line needs another's place: lines of newer epochs are not eligible, unless
//!   there is no other line in the set. Before a line is evicted, all older epochs of its core are
//!   written, oldest first.
//! - simulator-R5: A load of, or a store to, a line that another core's epoch wrote, and whose
//!   write is still queued, waits until that has ended. The paper does not mention this case, but
//!   its order across cores needs it.

use super::config::{BadConfig, HardwareConfig, OrderingMode};
use super::controller::{Accepted, Controller, EpochId, LineWrite, WriteEnd};
use super::epochs::EpochTable;
use super::l2::{Cleaned, L2Cache};
use super::report::{Counts, HardwareReport};
use super::sets::Sets;
use crate::LINE;
use crate::trace::{Action, MemoryEvent, Reader, TraceError, lines};
use std::fs::File;
use std::io::Read;

/// All words of a line.
const ALL_WORDS: u8 = 0xff;

/// A line that is written to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBack {
    /// The line: its address divided by 64.
    pub line: u64,
    /// The words that were stored to since the line was last written: bit 0 is the first.
    pub words: u8,
    /// The epoch of its stores, if the hardware has epochs.
    pub epoch: Option<EpochId>,
    /// Its number, and the time at which it entered the controller's queue.
    pub accepted: Accepted,
}

/// Gets all writes to memory, in the order in which they enter the controller's queue; and
/// reads, if it wants them.
pub trait WriteSink {
    /// A line is written.
    fn write(&mut self, write: WriteBack);

    /// A line is read, and was asked for at `at_ns`.
    fn read(&mut self, _line: u64, _at_ns: u64) {}

    /// A write has got its times. The controller may decide that long after it was queued.
    fn ended(&mut self, _end: WriteEnd) {}
}

/// Ignores the writes.
impl WriteSink for () {
    fn write(&mut self, _: WriteBack) {}
}

/// A sink that is chosen at run time, or none.
pub type AnySink<'a> = Option<&'a mut dyn WriteSink>;

impl WriteSink for AnySink<'_> {
    fn write(&mut self, write: WriteBack) {
        if let Some(sink) = self {
            sink.write(write);
        }
    }

    fn read(&mut self, line: u64, at_ns: u64) {
        if let Some(sink) = self {
            sink.read(line, at_ns);
        }
    }

    fn ended(&mut self, end: WriteEnd) {
        if let Some(sink) = self {
            sink.ended(end);
        }
    }
}

impl WriteSink for Vec<WriteBack> {
    fn write(&mut self, write: WriteBack) {
        self.push(write);
    }
}

/// A core.
#[derive(Clone, Copy, Debug, Default)]
struct CoreState {
    /// Its time, in nanoseconds.
    now: u64,
    compute_ns: u64,
    /// Barriers so far: the number of its epoch.
    epoch: u64,
    has_started: bool,
}

/// Replays events on one configuration.
#[derive(Debug)]
pub struct Simulator<S> {
    config: HardwareConfig,
    cores: Vec<CoreState>,
    /// The L1 cache of each core. The data of a line is its place in the L2 cache.
    l1: Vec<Sets<u32>>,
    l2: L2Cache,
    /// Places of the L2 cache that were filled since it was last invalidated. Only for
    /// [`OrderingMode::FlushAll`].
    filled: Vec<u32>,
    epochs: EpochTable,
    controller: Controller,
    /// The time of the last event. A core begins with that.
    latest: u64,
    counts: Counts,
    sink: S,
}

impl<S: WriteSink> Simulator<S> {
    /// Makes the hardware, with empty caches. `sink` gets all writes to memory.
    pub fn new(config: HardwareConfig, sink: S) -> Result<Self, BadConfig> {
        config.check()?;
        Ok(Self {
            cores: vec![CoreState::default(); config.cores as usize],
            l1: (0..config.cores).map(|_| Sets::new(config.l1)).collect(),
            l2: L2Cache::new(config.l2, config.epochs),
            filled: Vec::new(),
            epochs: EpochTable::new(config.epochs),
            controller: Controller::new(config.timing, config.cores, config.is_queue_durable),
            latest: 0,
            counts: Counts::default(),
            sink,
            config,
        })
    }

    /// Replays the rest of a trace.
    pub fn replay<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<(), TraceError> {
        while let Some(event) = reader.next_event()? {
            self.step(&event);
        }
        Ok(())
    }

    /// Replays an event.
    #[inline]
    pub fn step(&mut self, event: &MemoryEvent<'_>) {
        let core = usize::from(event.thread) % self.cores.len();
        let state = &mut self.cores[core];
        if !state.has_started {
            (state.has_started, state.now) = (true, self.latest);
        }
        state.now = state.now.saturating_add(event.gap_ns).min(u64::MAX >> 1);
        state.compute_ns = state.compute_ns.saturating_add(event.gap_ns);
        match event.action {
            Action::Load { addr, len } => {
                for line in lines(addr, len) {
                    self.load(core, line);
                }
            }
            Action::Store { way, addr, len, .. } => {
                let bypasses = way.is_past_cache() && self.config.mode != OrderingMode::Epoch;
                for line in lines(addr, len) {
                    let words = words_of(line, addr, len);
                    // A store of part of a word needs the rest of the line, too.
                    let is_whole =
                        addr <= line * LINE && addr + u64::from(len) - line * LINE >= LINE;
                    self.counts.stores += 1;
                    if bypasses {
                        self.store_past_cache(core, line, words);
                    } else {
                        self.store(core, line, words, is_whole);
                    }
                }
            }
            Action::Flush { addr, len } => {
                for line in lines(addr, len) {
                    self.flush(core, line);
                }
            }
            Action::Fence | Action::Barrier => self.fence(core),
            Action::Begin { .. } | Action::Return { .. } => {}
        }
        self.latest = self.cores[core].now;
    }

    /// Returns the time of a core, in nanoseconds.
    pub fn now(&self, core: usize) -> u64 {
        self.cores[core].now
    }

    /// Returns the sink.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// Ends the replay: writes all dirty lines, and returns the counts before that, and the sink.
    pub fn finish(mut self) -> (HardwareReport, S) {
        let mut counts = self.counts;
        counts.queue_max = self.controller.queue_max;
        counts.queue_wait_ns = self.controller.queue_wait_ns;
        counts.epochs_in_flight_max = self.epochs.in_flight_max;
        counts.dirty_max = self.l2.dirty_max;
        let dirty_at_end = self.l2.dirty_count;
        let time_ns = self.cores.iter().map(|core| core.now).max().unwrap_or(0);
        for core in 0..self.cores.len() {
            let id = EpochId { context: core as u32, number: u64::MAX };
            self.write_epochs(core, id);
        }
        self.write_unordered(0);
        debug_assert_eq!(self.l2.dirty_count, 0);
        let idle_from = self.controller.finish();
        self.pass_ends();
        counts.order_wait_ns = self.controller.order_wait_ns;
        counts.rows = self.controller.row_counts();
        let report = HardwareReport {
            config: self.config,
            counts,
            dirty_at_end,
            time_ns,
            durable_ns: idle_from.max(time_ns),
            compute_ns: self.cores.iter().map(|core| core.compute_ns).max().unwrap_or(0),
        };
        (report, self.sink)
    }

    fn epoch_of(&self, core: usize) -> EpochId {
        EpochId { context: core as u32, number: self.cores[core].epoch }
    }

    #[inline]
    fn load(&mut self, core: usize, line: u64) {
        self.counts.loads += 1;
        let timing = self.config.timing;
        if let Some(place) = self.l1[core].find(line) {
            // Another core that stores to the line removes it here. So it has no epoch of another.
            self.l1[core].touch(place);
            self.counts.l1_hits += 1;
            self.cores[core].now += timing.l1_ns;
            return;
        }
        let place = match self.find_in_l2(core, line) {
            Some(place) => place,
            None => {
                let place = self.make_room(core, line);
                self.wait_for_queued(core, line);
                self.fetch(core, line);
                place
            }
        };
        self.fill_l1(core, line, place);
    }

    /// Uses a line in the L2 cache; returns its place if it is there.
    #[inline]
    fn find_in_l2(&mut self, core: usize, line: u64) -> Option<usize> {
        let place = self.l2.sets.find(line)?;
        self.l2.sets.touch(place);
        self.counts.l2_hits += 1;
        self.settle_with_others(core, line, place);
        self.cores[core].now += self.config.timing.l2_ns;
        Some(place)
    }

    /// Stores to words of a line through the caches.
    #[inline]
    fn store(&mut self, core: usize, line: u64, words: u8, is_whole: bool) {
        let timing = self.config.timing;
        let place = if let Some(place) = self.l1[core].find(line) {
            self.l1[core].touch(place);
            self.counts.l1_hits += 1;
            self.cores[core].now += timing.l1_ns;
            self.l1[core].data(place) as usize
        } else {
            let place = match self.find_in_l2(core, line) {
                Some(place) => place,
                None => {
                    let place = self.make_room(core, line);
                    self.wait_for_queued(core, line);
                    if is_whole {
                        self.cores[core].now += timing.l2_ns;
                    } else {
                        self.fetch(core, line);
                    }
                    place
                }
            };
            self.fill_l1(core, line, place);
            place
        };
        let others = self.l2.sets.data(place) & !(1 << core);
        if others != 0 {
            self.remove_from_l1(line, others);
            *self.l2.sets.data_mut(place) &= 1 << core;
        }
        let is_persistent = !self.is_volatile(line);
        if self.config.mode == OrderingMode::WriteThrough && is_persistent {
            self.write_to_memory(core, line, words, None, true);
        } else if self.config.mode == OrderingMode::Epoch && is_persistent {
            self.join_epoch(core, place, words);
        } else {
            self.make_dirty(core, place, self.l2.unordered(), words);
        }
    }

    fn is_volatile(&self, line: u64) -> bool {
        line >= self.config.volatile_from / LINE
    }

    /// Makes a line part of the core's epoch (simulator-R1, simulator-R2).
    fn join_epoch(&mut self, core: usize, place: usize, words: u8) {
        let id = self.epoch_of(core);
        if let Some(list) = self.l2.list(place) {
            let older = self.epochs.entry(list).id;
            if older == id {
                self.make_dirty(core, place, list, words);
                return;
            }
            // That of another core was written by `settle_with_others`.
            debug_assert_eq!(older.context, id.context);
            self.counts.same_line_conflicts += 1;
            self.write_epochs(core, older);
        }
        let slot = self.epochs.find(id).unwrap_or_else(|| self.take_entry(core, id));
        self.epochs.entry_mut(slot).lines += 1;
        self.make_dirty(core, place, slot, words);
    }

    /// Takes an entry of the table for an epoch, after waiting for one (simulator-R1).
    fn take_entry(&mut self, core: usize, id: EpochId) -> usize {
        self.counts.epochs += 1;
        if let Some(slot) = self.take_free_entry(core, id) {
            return slot;
        }
        self.counts.epoch_table_full += 1;
        let oldest = self.epochs.oldest().expect("the table has entries");
        let oldest = self.epochs.entry(oldest).id;
        self.write_epochs(core, oldest);
        self.wait_for_epoch(core, oldest);
        self.take_free_entry(core, id).expect("the oldest epoch is durable now")
    }

    fn take_free_entry(&mut self, core: usize, id: EpochId) -> Option<usize> {
        let (now, controller) = (self.cores[core].now, &mut self.controller);
        let slot = self.epochs.take(id, |id| controller.is_epoch_durable(id, now));
        self.pass_ends();
        slot
    }

    /// Waits until an epoch, with all of its lines written, is durable.
    fn wait_for_epoch(&mut self, core: usize, id: EpochId) {
        let end = self.controller.epoch_end(id);
        self.pass_ends();
        self.wait(core, end);
    }

    /// Gives the times of writes to the sink.
    #[inline]
    fn pass_ends(&mut self) {
        self.controller.take_ends().for_each(|end| self.sink.ended(end));
    }

    /// Writes the epoch of a line that belongs to another core, and waits for it (simulator-R3).
    #[inline]
    fn settle_with_others(&mut self, core: usize, line: u64, place: usize) {
        if self.config.mode != OrderingMode::Epoch {
            return;
        }
        let Some(list) = self.l2.list(place).filter(|list| *list != self.l2.unordered()) else {
            self.wait_for_queued(core, line);
            return;
        };
        let id = self.epochs.entry(list).id;
        if id.context as usize != core {
            self.counts.cross_core_conflicts += 1;
            self.write_epochs(core, id);
            self.wait_for_epoch(core, id);
        }
    }

    /// Waits for a queued write of the line by another core (simulator-R5).
    fn wait_for_queued(&mut self, core: usize, line: u64) {
        if self.config.mode == OrderingMode::Epoch
            && let Some(end) = self.controller.queued_by_others(line, core as u32)
        {
            self.pass_ends();
            self.wait(core, end);
        }
    }

    /// Writes an epoch and all earlier ones of its context, at the time of `core`.
    fn write_epochs(&mut self, core: usize, id: EpochId) {
        while let Some(slot) = self.epochs.first_up_to(id) {
            self.write_list(core, slot);
        }
    }

    /// Writes all lines of a list, the one first that became dirty first.
    fn write_list(&mut self, core: usize, list: usize) {
        while let Some(place) = self.l2.first_of(list) {
            self.write_back(core, place);
        }
    }

    /// Writes all dirty lines without an epoch.
    fn write_unordered(&mut self, core: usize) {
        self.write_list(core, self.l2.unordered());
    }

    /// Makes a core wait, as at a fence.
    fn wait(&mut self, core: usize, until: u64) {
        let now = &mut self.cores[core].now;
        self.counts.fence_wait_ns += until.saturating_sub(*now);
        *now = (*now).max(until);
    }

    /// Stores to words of a line past the caches. A cached copy is merged with it and removed.
    fn store_past_cache(&mut self, core: usize, line: u64, words: u8) {
        self.counts.nt_stores += 1;
        self.cores[core].now += self.config.timing.l1_ns;
        let mut words = words;
        if let Some(place) = self.l2.sets.find(line) {
            words |= self.l2.clean(place).map_or(0, |cleaned| cleaned.words);
            self.remove(place, line);
        }
        self.write_to_memory(core, line, words, None, true);
    }

    /// Writes a line back, if this mode does that and the line is dirty.
    fn flush(&mut self, core: usize, line: u64) {
        if self.config.mode != OrderingMode::Clwb {
            self.counts.ignored_flushes += 1;
            return;
        }
        self.cores[core].now += self.config.timing.l1_ns;
        let dirty = self.l2.sets.find(line).filter(|place| self.l2.is_dirty(*place));
        let Some(place) = dirty else {
            self.counts.useless_flushes += 1;
            return;
        };
        self.counts.flushes += 1;
        self.write_back(core, place);
    }

    fn fence(&mut self, core: usize) {
        self.counts.fences += 1;
        match self.config.mode {
            OrderingMode::Epoch => self.cores[core].epoch += 1,
            OrderingMode::Eadr => {}
            OrderingMode::Clwb | OrderingMode::WriteThrough => self.wait_for_writes(core),
            OrderingMode::FlushAll => {
                self.write_unordered(core);
                self.wait_for_writes(core);
                for place in std::mem::take(&mut self.filled) {
                    if let Some(line) = self.l2.sets.line(place as usize) {
                        self.remove(place as usize, line);
                    }
                }
            }
        }
    }

    /// Waits for the core's writes, as at a fence.
    fn wait_for_writes(&mut self, core: usize) {
        let end = self.controller.fence(core as u32);
        self.pass_ends();
        self.wait(core, end);
    }

    /// Reads a line from memory.
    fn fetch(&mut self, core: usize, line: u64) {
        self.counts.memory_reads += 1;
        self.sink.read(line, self.cores[core].now);
        self.cores[core].now = self.controller.read(self.cores[core].now, line);
        self.pass_ends();
    }

    /// Gives a line a place in the L2 cache. The line there is evicted (simulator-R4) from all
    /// caches (simulator-S1).
    fn make_room(&mut self, core: usize, line: u64) -> usize {
        let place = self.l2.sets.victim(line, |place| {
            let is_ordered = |list: &usize| *list != self.l2.unordered();
            let list = self.l2.list(place).filter(is_ordered);
            list.is_none_or(|list| self.epochs.is_oldest(list))
        });
        if let Some(evicted) = self.l2.sets.line(place) {
            if let Some(list) = self.l2.list(place) {
                self.evict_dirty(core, place, list);
            }
            self.remove_from_l1(evicted, self.l2.sets.data(place));
        }
        self.l2.sets.fill(place, line, 0);
        if self.config.mode == OrderingMode::FlushAll {
            self.filled.push(place as u32);
        }
        place
    }

    fn evict_dirty(&mut self, core: usize, place: usize, list: usize) {
        if list != self.l2.unordered() && !self.epochs.is_oldest(list) {
            self.counts.forced_evictions += 1;
            let EpochId { context, number } = self.epochs.entry(list).id;
            // An epoch that is not the oldest has a number above 0.
            self.write_epochs(core, EpochId { context, number: number - 1 });
        }
        self.counts.evictions += 1;
        self.write_back(core, place);
    }

    /// Puts a line of the L2 cache into an L1 cache.
    fn fill_l1(&mut self, core: usize, line: u64, place: usize) {
        let l1 = &mut self.l1[core];
        l1.fill(l1.oldest(line), line, place as u32);
        *self.l2.sets.data_mut(place) |= 1 << core;
    }

    /// Removes a clean line from all caches.
    fn remove(&mut self, place: usize, line: u64) {
        self.remove_from_l1(line, self.l2.sets.data(place));
        self.l2.sets.clear(place);
    }

    fn remove_from_l1(&mut self, line: u64, cores: u64) {
        let mut left = cores;
        while left != 0 {
            let l1 = &mut self.l1[left.trailing_zeros() as usize];
            if let Some(place) = l1.find(line) {
                l1.clear(place);
            }
            left &= left - 1;
        }
    }

    /// Marks words as dirty. A line that was clean joins `list`.
    #[inline]
    fn make_dirty(&mut self, core: usize, place: usize, list: usize, words: u8) {
        self.l2.make_dirty(place, list, words, self.cores[core].now);
    }

    /// Writes a dirty line to memory. It stays cached.
    fn write_back(&mut self, core: usize, place: usize) {
        let line = self.l2.sets.line(place).expect("a dirty line is cached");
        let Some(Cleaned { words, list, stored_at }) = self.l2.clean(place) else { return };
        self.cores[core].now = self.cores[core].now.max(stored_at);
        if list == self.l2.unordered() {
            // Nothing waits for a line that is only evicted, except the next fence if the line is
            // of persistent memory.
            let is_fenced = !self.is_volatile(line);
            self.write_to_memory(core, line, words, None, is_fenced);
            return;
        }
        let id = self.epochs.entry(list).id;
        self.write_to_memory(core, line, words, Some(id), false);
        self.epochs.entry_mut(list).lines -= 1;
    }

    /// Queues a write, and waits for room. The next fence of the core waits until the data is
    /// durable, if `is_fenced`. Inlined, because callers know whether there is an epoch.
    #[inline(always)]
    fn write_to_memory(
        &mut self,
        core: usize,
        line: u64,
        words: u8,
        epoch: Option<EpochId>,
        is_fenced: bool,
    ) {
        let fenced_by = is_fenced.then_some(core as u32);
        let write = LineWrite { line, epoch, fenced_by };
        let accepted = self.controller.write(self.cores[core].now, write);
        self.sink.write(WriteBack { line, words, epoch, accepted });
        self.pass_ends();
        self.counts.memory_writes += 1;
        self.counts.words_written += u64::from(words.count_ones());
        self.cores[core].now = accepted.at;
    }
}

impl Simulator<AnySink<'_>> {
    /// Replays a trace from a file. With `computation_ns`, each operation computes for that time
    /// at its begin, and other gaps are 0.
    ///
    /// Programs call this one. It is compiled in this crate, for speed; generic functions are
    /// compiled with the options of their caller, and `keepstone` is optimized for size.
    pub fn replay_file(
        &mut self,
        reader: &mut Reader<File>,
        computation_ns: Option<u64>,
    ) -> Result<(), TraceError> {
        let Some(computation) = computation_ns else { return self.replay(reader) };
        while let Some(event) = reader.next_event()? {
            let is_begin = matches!(event.action, Action::Begin { .. });
            let gap_ns = if is_begin { computation } else { 0 };
            self.step(&MemoryEvent { gap_ns, ..event });
        }
        Ok(())
    }
}

/// Returns the words of a line that a store touches.
#[inline]
fn words_of(line: u64, addr: u64, len: u32) -> u8 {
    let start = line * LINE;
    let end = addr + u64::from(len);
    let first = addr.max(start) - start;
    let last = (end - start).min(LINE) - 1;
    let (first, last) = (first / 8, last / 8);
    ALL_WORDS << first & ALL_WORDS >> (7 - last)
}
