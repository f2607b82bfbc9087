//! Waiting for the backing store: a sync, or each write, ends when it has what the pool has
//! ([`vfs::WaitingCalls`]).
//!
//! - through-S1: a sync of an inode waits for a pass of write-back that begins after the sync. So
//!   the pass compares the inode as it is at the sync, or later. Syncs that wait for each other
//!   share a pass.
//! - through-S2: it succeeds only if the pass, or a later one, has brought below the content of the
//!   inode, its attributes, a name, and all directories above that name. Errors of other inodes do
//!   not concern it.
//!
//! A pass reads all names that are loaded, so such a sync takes time that grows with them.

use crate::commands::PASSES;
use crate::counters::Written;
use crate::loading::Loading;
use crate::lock;
use crate::objects::Below;
use backing::Backing;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::{Backed, Errno, Ino, ROOT, Result};

/// The passes of write-back so far.
#[derive(Default)]
pub(crate) struct Passes {
    begun: AtomicU64,
    /// The number of the last pass that has ended, and its result.
    last: Mutex<(u64, Written)>,
}

impl Passes {
    /// Counts a pass; returns its number. One pass runs at a time.
    pub(crate) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, SeqCst) + 1
    }

    /// Notes the result of a pass.
    pub(crate) fn end(&self, number: u64, written: &Written) {
        *lock(&self.last) = (number, written.clone());
    }

    /// Returns the result of the last pass, if it began after there were `begun`.
    fn after(&self, begun: u64) -> Option<Written> {
        let last = lock(&self.last);
        (last.0 > begun).then(|| last.1.clone())
    }
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Waits until the backing store has an inode with a name as it is now, durably; `None`: all of
    /// them.
    ///
    /// # Errors
    /// The error of the backing store; `EIO` for a conflict, and for an inode that cannot be
    /// written back now.
    pub(crate) fn sync_below(&self, ino: Option<Ino>) -> Result<()> {
        let Some(ino) = ino else {
            let done = self.write_back_all();
            return done.map_err(|e| if e == Errno::STALE { Errno::IO } else { e });
        };
        for _ in 0..PASSES {
            if self.pool().getattr(ino)?.nlink == 0 {
                return Ok(());
            }
            let written = self.pass_after(self.passes().begun.load(SeqCst))?;
            if let Some(done) = self.result_for(ino, &written)? {
                return done;
            }
        }
        Err(Errno::IO)
    }

    /// Returns the result of a pass that begins when there were already `begun` (through-S1).
    fn pass_after(&self, begun: u64) -> Result<Written> {
        let turn = self.write_back_turn();
        if let Some(written) = self.passes().after(begun) {
            return Ok(written);
        }
        self.write_back_in(&turn)
    }

    /// Returns what a pass means for an inode (through-S2); `None` if a later pass has to decide.
    fn result_for(&self, ino: Ino, written: &Written) -> Result<Option<Result<()>>> {
        let is_whole =
            written.errors.is_empty() && written.conflicts.is_empty() && written.waiting.is_empty();
        if is_whole {
            return Ok(Some(Ok(())));
        }
        let (concerned, is_named) = self.with_those_above(ino)?;
        if let Some((_, e)) = written.errors.iter().find(|(ino, _)| concerned.contains(ino)) {
            // Its content was replaced meanwhile.
            return Ok((*e != Errno::AGAIN).then_some(Err(*e)));
        }
        if written.conflicts.iter().any(|ino| concerned.contains(ino)) {
            return Ok(Some(Err(Errno::IO)));
        }
        // A directory may wait for another name.
        Ok((is_named && !written.waiting.contains(&ino)).then_some(Ok(())))
    }

    /// Returns an inode and the directories above a name of it, and whether the backing store has
    /// that name.
    fn with_those_above(&self, ino: Ino) -> Result<(BTreeSet<Ino>, bool)> {
        let mut all = BTreeSet::from([ROOT, ino]);
        let paths = self.paths_of(&BTreeSet::from([ino]))?;
        let path = paths.get(&ino).map_or(&b""[..], Vec::as_slice);
        let (mut dir, mut below) = (ROOT, Some(self.backing().root()));
        // References, so that no inode below gets another life meanwhile.
        let mut held = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            // If it was renamed meanwhile, a later pass decides.
            let Ok(found) = self.pool().peek(dir, name) else { return Ok((all, false)) };
            all.insert(found.ino);
            dir = found.ino;
            let identity = self.pool().residence(dir)?.identity;
            let object = below.and_then(|below| self.backing().lookup(below, name).ok());
            let object = object.map(|entry| Below(self.backing(), entry));
            let is_its = |object: &Below<'_, B>| {
                self.backing().identity(object.1.ino).is_ok_and(|found| found.0 == identity)
            };
            below = object.as_ref().filter(|object| is_its(object)).map(|object| object.1.ino);
            held.extend(object);
        }
        Ok((all, below.is_some() && dir == ino))
    }
}
