//! How pools are formatted, mounted and checked.

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
    /// Workers of the mount scan, the calling thread among them.
    pub threads: usize,
    /// Where the time of changes comes from.
    pub clock: fn() -> Timestamp,
    /// Decides what is otherwise random: the key of the name hash and the generations of new
    /// inodes. For replays; a known key lets names be chosen to collide.
    pub seed: Option<u64>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { read_only: false, threads: threads(), clock: Timestamp::now, seed: None }
    }
}

/// How to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Repair what can be repaired by storing one word.
    pub repair: bool,
    /// Workers of the scan.
    pub threads: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { repair: false, threads: threads() }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
