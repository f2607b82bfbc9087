//! The counts of a replay.

use super::banks::RowCounts;
use super::config::HardwareConfig;
use serde::Serialize;

/// Counts of events and lines. All are of lines, unless they name something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Loads of lines.
    pub loads: u64,
    /// Stores to lines.
    pub stores: u64,
    /// Of these, stores that bypass the cache.
    pub nt_stores: u64,
    /// Accesses that hit the L1 cache of their core.
    pub l1_hits: u64,
    /// Accesses that hit the L2 cache.
    pub l2_hits: u64,
    /// Lines read from memory.
    pub memory_reads: u64,
    /// Lines written to memory.
    pub memory_writes: u64,
    /// Words of 8 bytes in them that were stored to.
    pub words_written: u64,
    /// Lines written because a line needed their place.
    pub evictions: u64,
    /// Flushes of lines that were dirty.
    pub flushes: u64,
    /// Flushes of lines that were not dirty, or not cached.
    pub useless_flushes: u64,
    /// Flushes that this mode ignores.
    pub ignored_flushes: u64,
    /// Fences and barriers.
    pub fences: u64,
    /// The most lines that were dirty at a time: those that eADR writes when the power fails.
    pub dirty_max: u64,
    /// Epochs with stores.
    pub epochs: u64,
    /// The most epochs that were in flight at a time.
    pub epochs_in_flight_max: u64,
    /// Epochs that found all entries in use, and waited until the oldest was durable.
    pub epoch_table_full: u64,
    /// Stores to a line that was dirty from an older epoch of the same core.
    pub same_line_conflicts: u64,
    /// Accesses to a line that was dirty from an epoch of another core.
    pub cross_core_conflicts: u64,
    /// Evictions before which older epochs had to be written.
    pub forced_evictions: u64,
    /// The most writes in the controller's queue at a time.
    pub queue_max: u64,
    /// Nanoseconds that cores waited for fences, and for epochs to become durable.
    pub fence_wait_ns: u64,
    /// Nanoseconds that cores waited for room in the controller's queue.
    pub queue_wait_ns: u64,
    /// Nanoseconds that writes waited in the queue for earlier epochs.
    pub order_wait_ns: u64,
    /// Row buffers of the memory.
    pub rows: RowCounts,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HardwareReport {
    /// The hardware.
    #[serde(flatten)]
    pub config: HardwareConfig,
    /// Counts up to the last event.
    pub counts: Counts,
    /// Lines that were dirty after the last event, and that the end of the replay wrote.
    pub dirty_at_end: u64,
    /// The time at which the last core has executed its last event.
    pub time_ns: u64,
    /// The time at which the memory has everything.
    pub durable_ns: u64,
    /// The most time of a core that was computation.
    pub compute_ns: u64,
}
