//! The counters and the status of a cache.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Errno, Ino};

/// Makes a struct of counts, and one of the counters themselves.
macro_rules! counters {
    ($(#[$of:meta])* $shown:ident, $counts:ident: $($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct $shown { $($(#[$doc])* pub $name: u64),+ }

        #[derive(Default)]
        pub(crate) struct $counts { $(pub $name: std::sync::atomic::AtomicU64),+ }

        impl $counts {
            pub fn snapshot(&self) -> $shown {
                let load = |counter: &std::sync::atomic::AtomicU64| {
                    counter.load(std::sync::atomic::Ordering::Relaxed)
                };
                $shown { $($name: load(&self.$name)),+ }
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// The counts of a cache since it was attached.
    CacheCounters, CacheCounts:
    /// Reads that the cache answered alone.
    read_hits,
    /// Reads for which the backing file was read.
    read_misses,
    /// Bytes read through the cache.
    read_bytes,
    /// Bytes read from the backing store.
    fetched_bytes,
    /// Reads that bypassed the cache.
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
    /// Files that other processes had changed in the backing store, so that the cache dropped the
    /// data that it had read.
    invalidated,
    /// Writes that had to wait until other data was written back.
    throttled,
    /// Files that were delegated to programs.
    delegated,
    /// Delegations that were recalled.
    recalled,
    /// Changes by other processes that the backing store reported.
    changes_told,
    /// The number of times that more changes occurred than could be reported.
    changes_lost,
    /// Openings behind the cache that had to wait until the file was written back.
    openers_waited,
    /// Openings that were refused, as the file could not be written back, or not in time.
    openers_refused,
    /// The number of times that a status looked at all inodes.
    status_walks,
}

/// Adds `n` to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// The result of a pass of write-back ([`Loading::write_back`](crate::Loading::write_back)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Inodes that were compared.
    pub inodes: u64,
    /// Bytes of content that were written.
    pub bytes: u64,
    /// Inodes that are dirty still: they changed meanwhile, or a step of theirs has to wait.
    pub left: u64,
    /// Inodes with errors, and their first errors.
    pub errors: Vec<(Ino, Errno)>,
    /// Inodes that are dirty and whose objects others have changed (writeback-W5).
    pub conflicts: Vec<Ino>,
}

/// A file that needs the user's attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Its path, or its last known path, relative to the directory.
    pub path: String,
    /// The problem, and what the user can do.
    pub what: String,
    /// Bytes of it that are only in the cache.
    pub dirty_bytes: u64,
}

/// The status of a cache.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The guarantee for writes.
    pub mode: String,
    /// The way in which changes by other processes are reported, in addition to comparisons: the
    /// name of a [`Watch`](backing::Watch).
    pub watch: String,
    /// The changes that the backing store reports: the name of a [`Reach`](backing::Reach).
    pub watch_reach: Option<String>,
    /// The reason why changes are not reported, if that was requested.
    pub watch_problem: Option<String>,
    /// Bytes of the pool.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that pinned files hold.
    pub pinned_bytes: u64,
    /// The maximum number of bytes that pinned files may hold.
    pub pinned_bytes_max: u64,
    /// Bytes that are not written back yet.
    pub dirty_bytes: u64,
    /// Files with such bytes.
    pub dirty_files: u64,
    /// The time for which the oldest of them has been waiting, in milliseconds.
    pub oldest_dirty_ms: u64,
    /// Changes of names and attributes that only the server's memory has.
    pub pending_changes: u64,
    /// The share of reads that the cache answered alone.
    pub hit_rate: Option<f64>,
    /// Bytes written back for each byte written.
    pub write_amplification: Option<f64>,
    /// The counters.
    pub counters: CacheCounters,
    /// The number of files that need attention.
    pub troubled_files: u64,
    /// These files, shown to root and the user who owns the cache.
    pub troubles: Vec<Trouble>,
}

impl Status {
    /// Returns the status without names of files, which other users may not be allowed to see.
    pub fn without_names(self) -> Self {
        Self { troubles: Vec::new(), ..self }
    }
}
