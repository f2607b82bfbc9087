//! Statistics of a device: the numbers of the original's `pmbdstat`.

use pmem::cpu::tsc;
use pmem::{CountersSnapshot, Sharded};
use serde::Serialize;
use std::cell::Cell;

/// One of this number of requests is timed. Reading the time-stamp counter takes as long as copying
/// some hundred bytes.
const TIMED: u8 = 16;

/// The counted events, as indices of the sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StatsEvent {
    Reads,
    BytesRead,
    Writes,
    BytesWritten,
    FuaWrites,
    Barriers,
    Discards,
    BytesDiscarded,
    Zeroes,
    BytesZeroed,
    Damaged,
    CyclesLoad,
    CyclesStore,
    CyclesPersist,
    CyclesChecksum,
    CyclesBarrier,
}

const EVENTS: usize = StatsEvent::CyclesBarrier as usize + 1;

thread_local! {
    static REQUESTS: Cell<u8> = const { Cell::new(0) };
}

/// Counters of a device, cheap enough to be always on.
#[derive(Default)]
pub(crate) struct Counting(Sharded<EVENTS>);

impl Counting {
    #[inline]
    pub(crate) fn add(&self, event: StatsEvent, n: u64) {
        self.0.add(event as usize, n);
    }

    /// Counts a request and its bytes.
    #[inline]
    pub(crate) fn request(&self, requests: StatsEvent, bytes: StatsEvent, len: u64) {
        self.add(requests, 1);
        self.add(bytes, len);
    }

    /// Starts a watch for the parts of one request. It runs for one of [`TIMED`] requests.
    #[inline]
    pub(crate) fn watch(&self) -> StatsWatch<'_> {
        let n = REQUESTS.get();
        REQUESTS.set((n + 1) % TIMED);
        StatsWatch { last: if n == 0 { tsc() } else { 0 }, counting: self }
    }

    /// Returns the current counts, together with those of the medium and its protection.
    pub(crate) fn snapshot(&self, traffic: CountersSnapshot, protection: Guarding) -> Stats {
        let sum = |event: StatsEvent| self.0.sum(event as usize);
        Stats {
            reads: sum(StatsEvent::Reads),
            bytes_read: sum(StatsEvent::BytesRead),
            writes: sum(StatsEvent::Writes),
            bytes_written: sum(StatsEvent::BytesWritten),
            fua_writes: sum(StatsEvent::FuaWrites),
            barriers: sum(StatsEvent::Barriers),
            discards: sum(StatsEvent::Discards),
            bytes_discarded: sum(StatsEvent::BytesDiscarded),
            zeroes: sum(StatsEvent::Zeroes),
            bytes_zeroed: sum(StatsEvent::BytesZeroed),
            damaged_blocks: sum(StatsEvent::Damaged),
            stray_writes: protection.strays,
            windows_opened: protection.opened,
            cycles: Cycles {
                load: sum(StatsEvent::CyclesLoad),
                store: sum(StatsEvent::CyclesStore).saturating_sub(protection.cycles),
                persist: sum(StatsEvent::CyclesPersist),
                checksum: sum(StatsEvent::CyclesChecksum),
                protect: protection.cycles,
                barrier: sum(StatsEvent::CyclesBarrier),
                emulation: traffic.emulated_cycles,
            },
            medium: traffic,
        }
    }
}

/// The work of the protection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guarding {
    pub(crate) strays: u64,
    pub(crate) opened: u64,
    pub(crate) cycles: u64,
}

/// Attributes the time of a request to its parts.
pub(crate) struct StatsWatch<'a> {
    /// The time of the last lap; 0: this request is not timed.
    last: u64,
    counting: &'a Counting,
}

impl StatsWatch<'_> {
    /// Attributes the time since the last call to `part`.
    #[inline]
    pub(crate) fn lap(&mut self, part: StatsEvent) {
        if self.last != 0 {
            let now = tsc();
            self.counting.add(part, now.saturating_sub(self.last) * u64::from(TIMED));
            self.last = now;
        }
    }
}

/// Statistics of a device since it was opened, in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Requests to read.
    pub reads: u64,
    /// Bytes read; a sector is 512.
    pub bytes_read: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Requests to write or to zero that had to be durable on return.
    pub fua_writes: u64,
    /// Barriers.
    pub barriers: u64,
    /// Requests to discard.
    pub discards: u64,
    /// Bytes discarded.
    pub bytes_discarded: u64,
    /// Requests to write zeros.
    pub zeroes: u64,
    /// Bytes of zeros written.
    pub bytes_zeroed: u64,
    /// Reads of blocks whose checksum did not match.
    pub damaged_blocks: u64,
    /// Stores through wild pointers that hit protected memory, of all devices of this process.
    pub stray_writes: u64,
    /// The number of times that protection was lifted for a store, or a range mapped for an access.
    pub windows_opened: u64,
    /// The time by part.
    pub cycles: Cycles,
    /// Traffic of the medium.
    pub medium: CountersSnapshot,
}

/// Cycles of the time-stamp counter by part, of all threads. One of sixteen requests is timed, and
/// its time counts sixteen times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cycles {
    /// Copying out of PM.
    pub load: u64,
    /// Copying into PM, without `protect`.
    pub store: u64,
    /// Flushes and fences of requests.
    pub persist: u64,
    /// Checksums.
    pub checksum: u64,
    /// Lifting and restoring protection.
    pub protect: u64,
    /// Barriers: waiting, flushes and fences.
    pub barrier: u64,
    /// Emulation of slower memory: an exact count. The other parts include it, too.
    pub emulation: u64,
}
