//! Programs that open a file of the backing store directly while the pool has changes of it
//! (`--watch permission`): they wait until it is written back.
//!
//! Programs change files in their own processes, so the server cannot guard single files. It guards
//! the directories whose names are loaded ([`Backing::guard_names`]): each opening by a name in
//! them waits for an answer. One thread [takes](Loading::take_openings) the openings, one
//! [sorts](Loading::sort_openings) them, and one [writes back](Loading::write_back_openings).
//!
//! - permits-W1: every opening is permitted, at the latest [`WAIT`] after it was taken: by the
//!   thread that takes them, whatever the others do. So no opening waits for ever while the server
//!   runs, and all are permitted when it ends, or is killed (behind-D4).
//! - permits-W2: the thread that takes openings takes no lock but that of the queue, which no
//!   thread holds while it uses the pool or the backing store. It permits the server's own openings
//!   at once (behind-D3).
//! - permits-W3: a directory is guarded before its names are loaded, or before anything is made in
//!   it below. So no program can have changed a file in it before.
//! - permits-W4: if a file cannot be written back (a conflict, or an error), its openings are
//!   permitted then: the status tells why.

use crate::loading::Loading;
use crate::lock;
use backing::{Backing, Identity, Opening, Watch};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vfs::{Backed, FileKind, Ino, Result};

/// The longest time that an opening waits.
const WAIT: Duration = Duration::from_secs(10);

/// The waiting openings.
#[derive(Default)]
pub(crate) struct WaitingOpenings {
    queue: Mutex<OpeningQueue>,
    arrived: Condvar,
    is_dirty: Condvar,
    /// Openings that had to wait until a file was written back.
    pub waited: AtomicU64,
    /// Openings that were permitted although the file was not written back.
    pub late: AtomicU64,
}

#[derive(Default)]
struct OpeningQueue {
    /// All that are not permitted yet, by arrival, and when they are.
    waiting: BTreeMap<u64, (Opening, Instant)>,
    arrivals: u64,
    /// Those that have to be sorted.
    new: VecDeque<u64>,
    /// Those of dirty files.
    dirty: Vec<(u64, Ino)>,
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Returns whether openings have to be taken, sorted, and written back.
    pub fn guards(&self) -> bool {
        lock(self.history()).is_watching(Watch::Permission)
    }

    /// Guards all directories whose names are loaded. The threads run already.
    ///
    /// # Errors
    /// An error if a directory cannot be guarded.
    pub fn guard_loaded(&self) -> Result<()> {
        let mut all = Vec::new();
        self.each_inode(&mut |ino, residence| {
            if !residence.identity.is_empty() {
                all.push((ino, residence.identity.clone()));
            }
        })?;
        for (ino, identity) in all {
            if !self.pool().getattr(ino).is_ok_and(|attr| attr.kind == FileKind::Dir) {
                continue;
            }
            match self.backing().find(&Identity(identity)) {
                Ok(found) => {
                    let below = crate::objects::Below(self.backing(), found);
                    self.backing().guard_names(below.1.ino)?;
                }
                Err(vfs::Errno::STALE) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits until a program opens a file by a guarded name, at most for `limit`. Permits those
    /// that have waited for too long (permits-W1). Run it in a thread that does nothing else.
    ///
    /// # Errors
    /// As [`Backing::wait_for_openings`].
    pub fn take_openings(&self, limit: Duration) -> Result<()> {
        let openings = self.openings();
        let next = lock(&openings.queue).waiting.values().map(|(_, until)| *until).min();
        let left = next.map_or(limit, |until| until.saturating_duration_since(Instant::now()));
        // permits-W2.
        let taken = self.backing().wait_for_openings(left.min(limit), &mut |opening| {
            let mut queue = lock(&openings.queue);
            let id = queue.arrivals;
            queue.arrivals += 1;
            queue.waiting.insert(id, (opening, Instant::now() + WAIT));
            queue.new.push_back(id);
            openings.arrived.notify_one();
        });
        let now = Instant::now();
        let mut late = Vec::new();
        let mut queue = lock(&openings.queue);
        while let Some((id, _)) = queue.waiting.iter().find(|(_, (_, until))| *until <= now) {
            let id = *id;
            late.extend(queue.waiting.remove(&id));
        }
        drop(queue);
        openings.late.fetch_add(late.len() as u64, Relaxed);
        for (opening, _) in late {
            tracing::warn!(pid = opening.pid, "a file that it opens was not written back in time");
        }
        taken
    }

    /// Waits for an opening, at most for `limit`. Permits it if its file is not dirty.
    pub fn sort_openings(&self, limit: Duration) {
        let openings = self.openings();
        let queue = lock(&openings.queue);
        let mut queue = wait(&openings.arrived, queue, limit, |queue| queue.new.is_empty());
        let Some(id) = queue.new.pop_front() else { return };
        let Some(key) = queue.waiting.get(&id).map(|(opening, _)| opening.key.clone()) else {
            return;
        };
        drop(queue);
        let found = lock(&self.known).find(&key);
        match found.filter(|ino| self.is_dirty_file(*ino)) {
            Some(ino) => {
                openings.waited.fetch_add(1, Relaxed);
                lock(&openings.queue).dirty.push((id, ino));
                openings.is_dirty.notify_one();
            }
            None => self.permit(id),
        }
    }

    /// Waits for openings of dirty files, at most for `limit`, and writes back. Permits those whose
    /// files are not dirty then, or cannot be written back.
    pub fn write_back_openings(&self, limit: Duration) {
        let openings = self.openings();
        let queue = lock(&openings.queue);
        let mut queue = wait(&openings.is_dirty, queue, limit, |queue| queue.dirty.is_empty());
        let mut dirty = std::mem::take(&mut queue.dirty);
        drop(queue);
        if dirty.is_empty() {
            return;
        }
        let written = self.write_back();
        dirty.retain(|(id, ino)| {
            // permits-W4.
            let has_failed = written.as_ref().map_or(true, |written| {
                written.conflicts.contains(ino)
                    || written.errors.iter().any(|(other, _)| other == ino)
            });
            let is_done = has_failed || !self.is_dirty_file(*ino);
            if is_done {
                openings.late.fetch_add(u64::from(has_failed), Relaxed);
                self.permit(*id);
            }
            !is_done && lock(&openings.queue).waiting.contains_key(id)
        });
        if let Err(error) = written {
            tracing::error!(%error, "cannot write back for a program that opens a file");
        }
        lock(&openings.queue).dirty.append(&mut dirty);
    }

    fn permit(&self, id: u64) {
        let opening = lock(&self.openings().queue).waiting.remove(&id);
        drop(opening);
    }

    fn is_dirty_file(&self, ino: Ino) -> bool {
        let is_clean = self.pool().getattr(ino).and_then(|attr| self.is_clean(ino, attr.kind));
        // An inode that is gone is not written back.
        is_clean.is_ok_and(|is_clean| !is_clean)
    }
}

fn wait<'q>(
    signal: &Condvar,
    queue: MutexGuard<'q, OpeningQueue>,
    limit: Duration,
    is_idle: impl Fn(&OpeningQueue) -> bool,
) -> MutexGuard<'q, OpeningQueue> {
    let waited = signal.wait_timeout_while(queue, limit, |queue| is_idle(queue));
    waited.unwrap_or_else(PoisonError::into_inner).0
}
