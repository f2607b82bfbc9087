//! How pools are formatted, mounted and checked.

use crate::Prealloc;
use vfs::Timestamp;

/// Longest label, in bytes.
pub const LABEL_MAX: usize = 64;

/// How to format a pool.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// A name for the pool, at most [`LABEL_MAX`] bytes.
    pub label: String,
    /// User and group that the root directory belongs to.
    pub owner: (u32, u32),
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse changes; a damaged pool can be mounted this way.
    pub read_only: bool,
    /// Workers of the mount scan, the calling thread among them; none given: one for each processor.
    pub threads: Option<usize>,
    /// Where the time of changes comes from.
    pub clock: fn() -> Timestamp,
    /// Decides what is otherwise random: the key of the name hash and the generations of new
    /// inodes. For replays; a known key lets names be chosen to collide.
    pub seed: Option<u64>,
    /// How space is pre-allocated, by engines that do so.
    pub prealloc: Prealloc,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            threads: None,
            clock: Timestamp::now,
            seed: None,
            prealloc: Prealloc::default(),
        }
    }
}

/// How to check.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Repair what can be repaired by storing one word.
    pub repair: bool,
    /// Workers of the scan; none given: one for each processor.
    pub threads: Option<usize>,
}

/// Workers of a scan: `given`, or one for each processor. (To know these takes longer than to join a pool.)
pub fn scan_threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
