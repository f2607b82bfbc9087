//! Pre-allocation and its collector (SCMFS §3.3, §3.5), as options.

/// How an engine pre-allocates space, if it does. The process that opens a pool first decides, also
/// for those that join. Blocks have 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prealloc {
    /// Whether space is pre-allocated at all.
    pub enabled: bool,
    /// Null files that the collector keeps ready, as long as there is space: it makes more when
    /// there are fewer.
    pub null_min: u64,
    /// Most null files that are kept; at most 1008.
    pub null_max: u64,
    /// Blocks of a null file. When a longer file is removed, the rest becomes free.
    pub null_blocks: u64,
    /// Fewest blocks that an append allocates in advance. It allocates as many as the file has,
    /// within this and the next limit.
    pub blocks_min: u64,
    /// Most blocks that an append allocates in advance. A file that is cut keeps at most this many
    /// beyond its end, too.
    pub blocks_max: u64,
    /// Utilisation of the pool in percent, including reclaimable space, from which on the collector
    /// frees space, and nothing is pre-allocated.
    pub collect_above: u64,
    /// The same limit as the fewest bytes that are neither used nor pre-allocated.
    pub collect_below: u64,
    /// Seconds without modification after which a file is cold.
    pub cold_after: u64,
    /// Blocks that the collector frees or moves in one step, approximately.
    pub step: u64,
    /// The collector empties aligned units of which at most this percentage is used, all by cold
    /// files; 0: it empties none.
    pub relocate: u64,
    /// The collector empties units only if less than this percentage of the free space lies in
    /// whole units.
    pub whole_below: u64,
    /// Blocks of such a unit: 512 are 2 MiB.
    pub unit: u64,
    /// Whether allocation goes round the pool instead of reusing the space that was freed last, so
    /// that all of it wears equally.
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
    /// Options without pre-allocation.
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }
}
