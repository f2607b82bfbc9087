//! What a mount may be told.

use std::sync::Arc;
use std::time::Duration;

use crate::counters::OpCounters;

/// The extended attribute of the root directory that holds the server's statistics. It is
/// computed when read, cannot be written and is not listed.
pub const STATS_XATTR: &str = "user.keepstone.stats";

/// How long the kernel may answer by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Lifetime of names, absent names and attributes in the kernel; zero asks the server always.
    pub ttl: Duration,
    /// Whether file pages, listings and link targets stay in the page cache. Without it every read
    /// and write comes to the server (`FOPEN_DIRECT_IO`).
    pub keep_cache: bool,
    /// Whether files are opened and created without asking the server, which then does not hear of
    /// their being closed either: where the kernel can do that. Direct writes to one file then go one at a time, because the
    /// permission to do otherwise is part of the answer.
    pub skip_opens: bool,
}

impl Caching {
    /// For a mount that is the only writer of its pool.
    pub const EXCLUSIVE: Self =
        Self { ttl: Duration::from_secs(24 * 3600), keep_cache: true, skip_opens: true };
    /// Every request is answered by the engine.
    pub const NONE: Self = Self { ttl: Duration::ZERO, keep_cache: false, skip_opens: false };
}

/// Computes the value of [`STATS_XATTR`].
pub type Stats = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// How a [`Server`](crate::Server) behaves.
pub struct ServerOptions {
    /// What the kernel may keep.
    pub caching: Caching,
    /// Where requests are counted.
    pub counters: Arc<OpCounters>,
    /// What [`STATS_XATTR`] holds; `None`: no such attribute.
    pub stats: Option<Stats>,
}
