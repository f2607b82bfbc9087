//! The counters and the status of a cache.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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

/// The counts of a cache since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Bytes read from the backing store.
    pub fetched_bytes: u64,
    /// Bytes written back.
    pub drained_bytes: u64,
    /// Files and directories written back.
    pub drained_files: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Attempts to write back that failed.
    pub failures: u64,
    /// Openings of files below that had to wait until the file was written back.
    pub openers_waited: u64,
    /// Openings that were permitted although the file was not written back.
    pub openers_late: u64,
    /// The number of times that the server looked at all inodes of the pool.
    pub inode_walks: u64,
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
    /// Directories among them that only wait for files which programs have open without a name.
    pub held: u64,
    /// Files that were not written: their directory has to wait, or they were being changed.
    pub unwritten: Vec<Ino>,
    /// Inodes with errors, and their first errors.
    pub errors: Vec<(Ino, Errno)>,
    /// Inodes that are dirty and whose objects others have changed (writeback-W5).
    pub conflicts: Vec<Ino>,
    /// Directories whose names others changed during the pass (writeback-W8).
    pub changed: Vec<Ino>,
    /// Inodes with a step that has to wait for a later pass, and those with errors.
    pub waiting: BTreeSet<Ino>,
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
    /// Bytes of content that are not written back yet, in whole blocks.
    pub dirty_bytes: u64,
    /// Files and directories that are not written back yet.
    pub dirty_files: u64,
    /// The time for which the oldest of them has been waiting, in milliseconds.
    pub oldest_dirty_ms: u64,
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
