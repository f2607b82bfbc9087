//! Pre-allocation and its collector (SCMFS §3.3, §3.5), as options.

/// How an engine that pre-allocates space does so. Who opens a pool first decides, also for those who join. Blocks have 4096
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prealloc {
    /// Whether space is pre-allocated at all.
    pub enabled: bool,
    /// The collector makes null files when there are fewer, and leaves so many as long as there is space.
    pub null_min: u64,
    /// No more null files are kept than so many; at the most 1008.
    pub null_max: u64,
    /// Blocks of a null file: of a longer file that is removed, the rest becomes free.
    pub null_blocks: u64,
    /// A file that is appended to gets as many blocks more as it has, but no fewer than this, …
    pub blocks_min: u64,
    /// … and no more. A file that is cut keeps no more beyond its end, either.
    pub blocks_max: u64,
    /// Utilisation of the pool in percent, reclaimable space included, from which on the collector frees, and nothing is
    /// pre-allocated.
    pub collect_above: u64,
    /// The same, in bytes that are neither used nor pre-allocated.
    pub collect_below: u64,
    /// A file that has not been modified for so many seconds is cold.
    pub cold_after: u64,
    /// The collector frees or moves about so many blocks in one step.
    pub step: u64,
    /// Aligned units of which no more than so many percent are used, all by cold files, are emptied; 0: none are.
    pub relocate: u64,
    /// … where less than so many percent of what is free lies in whole units.
    pub whole_below: u64,
    /// Blocks of such a unit: 512 are 2 MiB.
    pub unit: u64,
    /// Whether space is chosen by turns, rather than what was freed last, so that all of the pool wears alike.
    pub wear: bool,
}

impl Default for Prealloc {
    fn default() -> Self {
        Self {
            enabled: true,
            null_min: 16,
            null_max: 512,
            null_blocks: 16,
            blocks_min: 16,
            blocks_max: 2048,
            collect_above: 80,
            collect_below: 1 << 20,
            cold_after: 60,
            step: 4096,
            relocate: 50,
            whole_below: 50,
            unit: 512,
            wear: false,
        }
    }
}

impl Prealloc {
    /// Nothing is pre-allocated.
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }
}
