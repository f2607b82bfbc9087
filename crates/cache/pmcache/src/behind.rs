//! Changes that other processes make behind the cache, if the backing store reports them.
//!
//! The cache also compares its files with the backing store, at the latest after
//! [`Options::coherence_ns`](crate::CacheOptions::coherence_ns). Reports make it notice changes
//! sooner, and changes that sizes and times do not show.
//!
//! - **behind-B1** A file is marked for comparison before the front end is made to forget it, so
//!   that the next request gets the current state. A comparison clears the mark first and reads the
//!   attributes afterwards.
//! - **behind-B2** A reported change alone is never a conflict with changes by the cache, as a late
//!   report may concern a state that the cache has seen already. The fingerprint decides
//!   (pmcache-C4).

use crate::counters::count;
use crate::{Cache, lock, write};
use backing::{Backing, Change, Reach, Watch};
use std::sync::atomic::Ordering::Release;
use std::time::Duration;
use vfs::{Errno, FileSystem, Ino, Result};

/// The state of the watch for changes by other processes.
#[derive(Clone, Default)]
pub struct Watching {
    pub how: Watch,
    pub reach: Reach,
    /// The reason why changes are not watched.
    pub problem: Option<String>,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Starts to watch for changes by other processes. In a read-only cache, openings need not
    /// wait. Call it before the cache is served.
    ///
    /// # Errors
    /// As [`Backing::watch`], and errors of the backing store if a file with data to be written
    /// back cannot be guarded.
    pub fn watch(&self, how: Watch) -> Result<()> {
        if how == Watch::Off {
            return Ok(());
        }
        let how = if self.options.read_only { Watch::Notify } else { how };
        let reach = self.backing.watch(how)?;
        *lock(&self.watching) = Watching { how, reach, problem: None };
        let waiting = self.backlog.files();
        waiting.iter().try_for_each(|(_, node)| self.backing.guard(node.ino))
    }

    /// Notes for [`status`](Self::status) why changes by others are not watched.
    pub fn note_watch_problem(&self, problem: String) {
        *lock(&self.watching) = Watching { problem: Some(problem), ..Watching::default() };
    }

    /// Returns the state of the watch.
    pub(crate) fn watching(&self) -> Watching {
        lock(&self.watching).clone()
    }

    /// Waits for changes by other processes in the backing store, at most for `limit`. Marks the
    /// changed files for comparison, and calls `forget` for everything that the front end may have
    /// cached.
    ///
    /// # Errors
    /// An error if changes are not reported, or no longer; `status` then shows that, too.
    pub fn follow_changes(&self, limit: Duration, forget: &dyn Fn(&Change)) -> Result<()> {
        let mut changed = Vec::new();
        let told = self.backing.wait_for_changes(limit, &mut |change| {
            match change {
                Change::Lost => count(&self.counts.changes_lost, 1),
                Change::Content(ino) => changed.extend(self.suspect(ino, true)),
                Change::Attributes(ino) => changed.extend(self.suspect(ino, false)),
                Change::Name(..) => {}
            }
            if change != Change::Lost {
                count(&self.counts.changes_told, 1);
                forget(&change);
            }
        });
        changed.dedup();
        // Finds conflicts now, not when a process uses the file.
        for node in changed.iter().filter_map(|ino| self.backlog.find(*ino)) {
            let mut state = write(&node.state);
            // An error was logged, and is recorded with the file.
            let _ = self.check(&node, &mut state);
        }
        told.inspect_err(|err| self.note_watch_problem(told_no_more(*err)))
    }

    /// Marks a file for comparison with the backing store (behind-B1). Returns it if it is in use.
    fn suspect(&self, ino: Ino, is_changed: bool) -> Option<Ino> {
        let node = self.table.find(ino)?;
        if is_changed {
            node.is_changed.store(true, Release);
        }
        node.is_suspect.store(true, Release);
        Some(ino)
    }
}

fn told_no_more(err: Errno) -> String {
    format!("the kernel tells of changes no more: {err}")
}
