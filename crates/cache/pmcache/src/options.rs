//! The options of a cache.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use vfs::Timestamp;

/// The guarantee for a write that has returned, after a crash (in ext4's terms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The data is in the cache; the existence of a file is durable on `fsync` (Chell-Cache).
    Writeback,
    /// The data is durable before the size is; a file never shows another file's bytes (PMAL-O).
    Ordered,
    /// The write is atomic and durable, and so is the existence of the file (PMAL).
    #[default]
    Journal,
}

impl Mode {
    /// All modes, with their names.
    pub const NAMES: [(Self, &str); 3] =
        [(Self::Writeback, "writeback"), (Self::Ordered, "ordered"), (Self::Journal, "journal")];
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, known)| *known == name);
        let found = found.map(|(mode, _)| *mode);
        found.ok_or_else(|| format!("`{name}` is none of writeback, ordered, journal"))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(mode, _)| mode == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// The options of a cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The guarantee for writes.
    pub mode: Mode,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether a write returns only when the backing file has the data.
    pub write_through: bool,
    /// The number of bytes not written back at which writing back begins; it ends at
    /// [`low`](Self::low).
    pub high: u64,
    /// The number of bytes not written back at which writing back ends.
    pub low: u64,
    /// The maximum number of bytes not written back. A write that would exceed it writes back other
    /// data first.
    pub cap: u64,
    /// The maximum number of bytes of all pinned files (pins-P1).
    pub pin_max: u64,
    /// The maximum number of bytes of the pinned files of one user other than root.
    pub pin_user_max: u64,
    /// The maximum time until data is written back, in nanoseconds.
    pub max_age_ns: i64,
    /// The time for which the cache relies on a comparison of a file with the backing store, in
    /// nanoseconds.
    pub coherence_ns: i64,
    /// The maximum time that a process waits when it opens a guarded file behind the cache; then
    /// the opening is refused.
    pub opener_wait: Duration,
    /// The maximum number of bytes allocated ahead in the backing store for an append, which are at
    /// most as many as the file has. Chell §4.1.2 always allocates some ahead; here many small
    /// files do not take space that they will not use.
    pub reserve: u64,
    /// The number of bytes read ahead for a sequential reader.
    pub read_ahead: u64,
    /// The number of bytes after which a sequential reader bypasses the cache; 0: never.
    pub bypass: u64,
    /// The percentage of free blocks below which blocks are evicted, until twice as many are free.
    pub free_percent: u64,
    /// The policy that chooses the files to evict.
    pub policy: eviction::PolicyKind,
    /// The source of the time.
    pub clock: fn() -> Timestamp,
}

impl CacheOptions {
    /// Returns the default options for a pool of `bytes` bytes.
    pub fn for_pool(bytes: u64) -> Self {
        Self {
            mode: Mode::default(),
            read_only: false,
            write_through: false,
            high: bytes / 4,
            low: bytes / 8,
            cap: bytes / 2,
            pin_max: bytes / 5 * 2,
            pin_user_max: bytes / 5 * 2 / 5,
            max_age_ns: ns(Duration::from_secs(30)),
            coherence_ns: ns(Duration::from_secs(1)),
            opener_wait: Duration::from_secs(10),
            reserve: 1 << 20,
            read_ahead: 512 << 10,
            bypass: 0,
            free_percent: 5,
            policy: eviction::PolicyKind::default(),
            clock: Timestamp::now,
        }
    }
}

fn ns(time: Duration) -> i64 {
    time.as_nanos() as i64
}
