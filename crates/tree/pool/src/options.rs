//! Options for formatting, mounting and checking pools.

use crate::Prealloc;
use std::fmt;
use std::str::FromStr;
use vfs::Timestamp;

/// Longest label, in bytes.
pub const LABEL_MAX: usize = 64;

/// The length of a new resizable pool is this many times its size ([`length_for`]).
const ROOM: u64 = 4;

/// The longest region that a pool gets only for room: all processes that use it map it.
const LENGTH_MAX: u64 = 1 << 40;

/// Returns the length in bytes of the region for a new pool of this size, so that it can be made
/// larger while programs use it.
pub fn length_for(size: u64) -> u64 {
    size.max(size.saturating_mul(ROOM).min(LENGTH_MAX))
}

/// Options for formatting a pool.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// A name for the pool, at most [`LABEL_MAX`] bytes.
    pub label: String,
    /// User and group that the root directory belongs to.
    pub owner: (u32, u32),
    /// Whether the pool gets a backing store. Only a program that knows such pools can open it.
    pub is_backed: bool,
    /// Whether the pool takes space of the file below when it needs it, and gives it back.
    pub is_thin: bool,
    /// The size of a thin pool in bytes, if it can change while programs use the pool, up to the
    /// length of the region.
    pub size: Option<u64>,
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse changes; a damaged pool can be mounted this way.
    pub read_only: bool,
    /// The snapshot to mount instead of the pool's present state, only if `read_only`. Other
    /// processes may use the pool meanwhile.
    pub snapshot: Option<String>,
    /// Also mount a snapshot that is being received, to check it.
    pub is_incomplete: bool,
    /// Workers of the mount scan, including the calling thread; `None`: one for each processor.
    pub threads: Option<usize>,
    /// The clock for the times of changes.
    pub clock: fn() -> Timestamp,
    /// A seed for values that are otherwise random: the key of the name hash and the generations of
    /// new inodes. For replays; with a known key, names can be chosen to collide.
    pub seed: Option<u64>,
    /// How space is pre-allocated, by engines that do so.
    pub prealloc: Prealloc,
    /// How writes inside files reach the medium, if the engine stores them in place. For this field
    /// and the next two, the first process of those that share the pool decides.
    pub write_policy: WritePolicy,
    /// The writes that bypass the cache with [`WritePolicy::Auto`], unless a file has its own
    /// setting.
    pub past_cache: PastCache,
    /// Whether names and attributes are consistent after a power failure.
    pub consistency: Consistency,
}

/// The writes that bypass the cache with [`WritePolicy::Auto`]: those of at least `write` bytes in
/// files of at least `file` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastCache {
    /// Bytes of a write.
    pub write: u64,
    /// Bytes of a file.
    pub file: u64,
}

impl PastCache {
    /// No writes bypass the cache.
    pub const NEVER: Self = Self { write: u64::MAX, file: u64::MAX };
}

/// Files that fit into a last-level cache stay there: the limit is half of the smallest that
/// servers have. A write past the cache need not fetch a block before replacing it, which is 0.6 of
/// the time of a write. Reading the block afterwards costs what that saves.
impl Default for PastCache {
    fn default() -> Self {
        Self { write: 4 << 10, file: 4 << 20 }
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            snapshot: None,
            is_incomplete: false,
            threads: None,
            clock: Timestamp::now,
            seed: None,
            prealloc: Prealloc::default(),
            write_policy: WritePolicy::default(),
            past_cache: PastCache::default(),
            consistency: Consistency::default(),
        }
    }
}

impl MountOptions {
    /// Returns whether the options select something that only some engines have.
    pub fn chooses(&self) -> bool {
        self.write_policy != WritePolicy::default() || self.consistency != Consistency::default()
    }
}

/// How writes inside files reach the medium (SCMFS §3.4, `write_through` of `nvmalloc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// Through the cache, durable on fsync; writes as long as [`PastCache`] requires bypass it, and
    /// are durable on return.
    #[default]
    Auto,
    /// All through the cache.
    Cached,
    /// All past the cache.
    Through,
}

impl WritePolicy {
    /// All policies, with their names.
    const NAMES: [(Self, &str); 3] =
        [(Self::Auto, "auto"), (Self::Cached, "cached"), (Self::Through, "through")];
}

/// Whether names and attributes survive a power failure (SCMFS §3.6, and §4.3 for the cost).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// They are flushed and fenced in order.
    #[default]
    Metadata,
    /// Nothing is flushed before the pool is unmounted: for memory that loses everything anyway,
    /// and for comparisons.
    None,
}

impl Consistency {
    const NAMES: [(Self, &str); 2] = [(Self::Metadata, "metadata"), (Self::None, "none")];
}

/// The time at which the operations of a pool become durable. They are atomic and in order in each
/// mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DurabilityMode {
    /// When they return (PMAL-J).
    #[default]
    Journal,
    /// When something is synced: an operation may leave its last fence to the next one (PMAL-O, and
    /// BPFS' epochs without durability).
    Ordered,
}

impl DurabilityMode {
    const NAMES: [(Self, &str); 2] = [(Self::Journal, "journal"), (Self::Ordered, "ordered")];
}

impl FromStr for DurabilityMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "writeback" => {
                Err("there is no mode `writeback`, because `ordered` costs no more: the fence \
                     that makes content durable before it is named also orders operations"
                    .to_owned())
            }
            _ => named(&Self::NAMES, name),
        }
    }
}

impl fmt::Display for DurabilityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::NAMES, self))
    }
}

/// Finds the value of this name.
fn named<T: Copy>(names: &[(T, &str)], name: &str) -> Result<T, String> {
    let found = names.iter().find(|(_, known)| *known == name);
    found.map(|(value, _)| *value).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        format!("`{name}` is none of {}", known.join(", "))
    })
}

/// Returns the name of a value.
fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    names.iter().find(|(known, _)| known == value).map_or("", |(_, name)| name)
}

impl FromStr for WritePolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        named(&Self::NAMES, name)
    }
}

impl fmt::Display for WritePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::NAMES, self))
    }
}

impl FromStr for Consistency {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        named(&Self::NAMES, name)
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::NAMES, self))
    }
}

/// Options of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Repair problems that one stored word can repair.
    pub repair: bool,
    /// Workers of the scan; `None`: one for each processor.
    pub threads: Option<usize>,
}

/// Workers of a scan: `given`, or one for each processor. (Counting processors takes longer than
/// joining a pool.)
pub fn scan_threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
