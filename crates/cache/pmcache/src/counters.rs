//! What a cache counts and says of itself.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What a cache has done since it was attached.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counters { $($(#[$doc])* pub $name: u64),+ }

        #[derive(Default)]
        pub(crate) struct Counts { $(pub $name: AtomicU64),+ }

        impl Counts {
            pub fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed)),+ }
            }
        }
    };
}

counters! {
    /// Reads that the cache answered alone.
    read_hits,
    /// Reads for which the backing file was read.
    read_misses,
    /// Bytes read through the cache.
    read_bytes,
    /// Bytes read from below.
    fetched_bytes,
    /// Reads that passed the cache by.
    bypassed,
    /// Writes.
    writes,
    /// Bytes written to the cache.
    written_bytes,
    /// Bytes written back.
    drained_bytes,
    /// Files written back.
    drained_files,
    /// Blocks evicted.
    evicted_blocks,
    /// Attempts to write back that failed.
    failures,
    /// Files that others had changed below, of which the cache forgot what it had read.
    invalidated,
    /// Writes that had to write back before they could go on.
    throttled,
    /// Files that were delegated to programs.
    delegated,
    /// Of these, how many were recalled.
    recalled,
    /// Changes by others that were told by the file system below.
    changes_told,
    /// How often there were more of them than could be told.
    changes_lost,
    /// Openings behind the cache that had to wait until the file was written back.
    openers_waited,
    /// Those of them that were refused, as it could not be, or not in time.
    openers_refused,
}

/// A counter, plus `n`.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// A file that needs somebody's attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Where it is or was last, relative to the directory.
    pub path: String,
    /// What is wrong, and what can be done.
    pub what: String,
    /// Bytes of it that are only in the cache.
    pub dirty_bytes: u64,
}

/// How a cache stands.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// What a write promises.
    pub mode: String,
    /// How changes by others are noticed, beside comparing: the name of a [`Watch`](backing::Watch).
    pub watch: String,
    /// Of what the file system below tells: the name of a [`Reach`](backing::Reach).
    pub watch_reach: Option<String>,
    /// Why they are not, where it was asked for.
    pub watch_problem: Option<String>,
    /// Bytes of the pool.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that pinned files hold.
    pub pinned_bytes: u64,
    /// They hold no more.
    pub pinned_bytes_max: u64,
    /// Bytes that are not below yet.
    pub dirty_bytes: u64,
    /// Files that have such.
    pub dirty_files: u64,
    /// For how long the oldest of them has been waiting, in milliseconds.
    pub oldest_dirty_ms: u64,
    /// Changes of names and attributes that only the server's memory has.
    pub pending_changes: u64,
    /// Whether reads that the cache answers are a share of all.
    pub hit_rate: Option<f64>,
    /// Bytes written back for each byte written.
    pub write_amplification: Option<f64>,
    /// What was done.
    pub counters: Counters,
    /// Files that need attention.
    pub troubled_files: u64,
    /// Which they are, for root and the user whose cache it is.
    pub troubles: Vec<Trouble>,
}

impl Status {
    /// The same without names of files, which other users may not be allowed to see.
    pub fn without_names(self) -> Self {
        Self { troubles: Vec::new(), ..self }
    }
}
