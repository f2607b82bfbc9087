//! How a cache works.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use vfs::Timestamp;

/// When a write has returned, what of it survives a crash (ext4's words).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is in the cache; a file's existence is durable on fsync (Chell-Cache).
    Writeback,
    /// The data is persistent before the size is; never another file's bytes (PMAL-O).
    Ordered,
    /// All of it, whole, and the file itself (PMAL).
    #[default]
    Journal,
}

impl Mode {
    /// All of them, with their names.
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

/// How a cache works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a write promises.
    pub mode: Mode,
    /// Refuse changes.
    pub read_only: bool,
    /// A write returns when the backing file has it.
    pub write_through: bool,
    /// Writing back begins where so many bytes are not below yet, and ends where so few are.
    pub high: u64,
    /// See [`high`](Self::high).
    pub low: u64,
    /// There are never more: who would write them writes others back first.
    pub cap: u64,
    /// Pinned files hold no more bytes (pins-P1).
    pub pin_max: u64,
    /// Those of one user other than root hold no more.
    pub pin_user_max: u64,
    /// Nothing waits longer for being written back, in nanoseconds.
    pub max_age_ns: i64,
    /// For so long, in nanoseconds, a file is believed to be as it was found.
    pub coherence_ns: i64,
    /// Who opens a file behind the cache that is guarded waits no longer until it is written back; then it is refused.
    pub opener_wait: Duration,
    /// Who appends has as much space again allocated ahead below as the file has, up to so many bytes (Chell §4.1.2 always has
    /// some): many small files do not take what they will not use.
    pub reserve: u64,
    /// A sequential reader has so many bytes read ahead.
    pub read_ahead: u64,
    /// A sequential reader of more bytes than this passes the cache by; 0: none does.
    pub bypass: u64,
    /// Blocks are evicted where so few in a hundred are free, until twice as many are.
    pub free_percent: u64,
    /// Which goes first.
    pub policy: eviction::Kind,
    /// Where the time comes from.
    pub clock: fn() -> Timestamp,
}

impl Options {
    /// For a pool of so many bytes.
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
            policy: eviction::Kind::default(),
            clock: Timestamp::now,
        }
    }
}

fn ns(time: Duration) -> i64 {
    time.as_nanos() as i64
}
