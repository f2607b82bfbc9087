//! Changes that others make behind the cache, where the file system below tells of them.
//!
//! They are noticed by comparing, too, at the latest after [`Options::coherence_ns`](crate::Options::coherence_ns); to be told
//! makes it sooner, and tells changes that size and times do not show.
//!
//! - **behind-B1** A file is to be compared before the front end is told to forget it: so whoever asks it anew is answered by what
//!   is there now. Who compares takes the mark first, and looks then.
//! - **behind-B2** A change that is told never says by itself that changes of the cache's own are in conflict with it: what is
//!   told late may have been seen already. That is for the fingerprint to say (pmcache-C4).

use crate::counters::count;
use crate::{Cache, lock, write};
use backing::{Backing, Change, Reach, Watch};
use std::sync::atomic::Ordering::Release;
use std::time::Duration;
use vfs::{Errno, FileSystem, Ino, Result};

/// How others are noticed.
#[derive(Clone, Default)]
pub struct Watching {
    pub how: Watch,
    pub reach: Reach,
    /// Why they are not.
    pub problem: Option<String>,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Begins to notice what others do, so; where nothing may be changed, nobody has to wait for it. Before the cache is served.
    ///
    /// # Errors
    /// As [`Backing::watch`]; where what is not below yet cannot be guarded, those of the file system below.
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

    /// Notes for [`status`](Self::status) why others are not noticed.
    pub fn note_watch_problem(&self, problem: String) {
        *lock(&self.watching) = Watching { problem: Some(problem), ..Watching::default() };
    }

    /// How others are noticed.
    pub(crate) fn watching(&self) -> Watching {
        lock(&self.watching).clone()
    }

    /// Waits until others have changed something below, or for so long, sees to it that what is cached of that is compared, and
    /// calls `forget` for what the front end may have kept.
    ///
    /// # Errors
    /// Where nothing is told (any more); `status` says so, too.
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
        // So that a conflict is told of now, not when somebody uses the file.
        for node in changed.iter().filter_map(|ino| self.backlog.find(*ino)) {
            let mut state = write(&node.state);
            // It was logged, and is with the file.
            let _ = self.check(&node, &mut state);
        }
        told.inspect_err(|err| self.note_watch_problem(told_no_more(*err)))
    }

    /// A file is to be compared with what is below (behind-B1); it, if it is in use.
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
