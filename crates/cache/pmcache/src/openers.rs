//! Processes that open a file behind the cache while it has data that is not written back: they
//! wait until it is.
//!
//! - **openers-O1** A file is guarded from before it has data that is not written back until all
//!   is. So a process that opens it in between gets everything written before its request. A
//!   process that already has it open does not wait.
//! - **openers-O2** The thread that takes openings ([`take_openings`](Cache::take_openings)) takes
//!   no lock of a file. The holder of such a lock may be opening a backing file, which waits for
//!   the same thread. Another thread writes back.
//! - **openers-O3** Every opening is answered once. It is permitted when the file is written back,
//!   and refused if that fails or takes too long. Permission would then show old content, and
//!   further waiting could last for ever.
//! - **openers-O4** Each waiting opening takes a descriptor of this process. So at most
//!   [`WAITING_MAX`] wait, and each user has at most as many places as the others leave free.
//!   Further openings are refused at once.

use crate::counters::count;
use crate::{Cache, lock};
use backing::{Backing, Opening, Watch};
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vfs::{Errno, FileSystem, Ino, Result};

/// The maximum number of openings that wait at the same time.
const WAITING_MAX: usize = 1024;

/// The waiting openings.
#[derive(Default)]
pub struct Openers {
    queue: Mutex<Queue>,
    /// Signalled when an opening arrives whose file is to be written back.
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Openings that are not answered, in the order of arrival.
    waiting: BTreeMap<u64, WaitingOpeners>,
    /// Those of them whose files no thread writes back yet.
    left: VecDeque<(u64, Ino)>,
    arrivals: u64,
}

struct WaitingOpeners {
    opening: Opening,
    /// The time at which it is refused.
    until: Instant,
    /// The user of the process.
    user: Option<u32>,
}

impl Queue {
    /// Returns whether one more opening of a user may wait (openers-O4).
    fn has_place(&self, user: Option<u32>) -> bool {
        let own = self.waiting.values().filter(|waiting| waiting.user == user).count();
        own < WAITING_MAX - self.waiting.len()
    }
}

/// Returns the user of a waiting process.
fn user_of(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Returns whether there are openings to be [taken](Self::take_openings) and
    /// [served](Self::serve_openers).
    pub fn guards(&self) -> bool {
        self.watching().how == Watch::Permission
    }

    /// Waits until a process opens a guarded file, at most for `limit`. Refuses openings that have
    /// waited for too long. Run it in a thread that does nothing else.
    ///
    /// # Errors
    /// The error of a single opening, which was then refused.
    pub fn take_openings(&self, limit: Duration) -> Result<()> {
        let next = lock(&self.openers.queue).waiting.values().map(|waiting| waiting.until).min();
        let left = next.map_or(limit, |until| until.saturating_duration_since(Instant::now()));
        let taken = self.backing.wait_for_openings(left.min(limit), &mut |opening| {
            // openers-O2.
            if self.backlog.find(opening.ino).is_none() {
                return opening.answer(true);
            }
            let user = user_of(opening.pid);
            let mut queue = lock(&self.openers.queue);
            if !queue.has_place(user) {
                drop(queue);
                count(&self.counts.openers_refused, 1);
                self.note_refusal(opening.ino, opening.pid, "too many others wait already");
                return opening.answer(false);
            }
            count(&self.counts.openers_waited, 1);
            let (id, ino) = (queue.arrivals, opening.ino);
            queue.arrivals += 1;
            queue.left.push_back((id, ino));
            let until = Instant::now() + self.options.opener_wait;
            queue.waiting.insert(id, WaitingOpeners { opening, until, user });
            self.openers.arrived.notify_one();
        });
        let now = Instant::now();
        let late: Vec<u64> = {
            let queue = lock(&self.openers.queue);
            let late = queue.waiting.iter().filter(|(_, waiting)| waiting.until <= now);
            late.map(|(id, _)| *id).collect()
        };
        for id in late {
            if let Some((ino, pid)) = self.answer_opener(id, false) {
                let wait = self.options.opener_wait;
                self.note_refusal(ino, pid, &format!("it was not written back within {wait:?}"));
            }
        }
        taken
    }

    /// Waits for an opening that was [taken](Self::take_openings), at most for `limit`, and writes
    /// back its file.
    pub fn serve_openers(&self, limit: Duration) {
        let next = {
            let queue = lock(&self.openers.queue);
            let is_idle = |queue: &mut Queue| queue.left.is_empty();
            let waited = self.openers.arrived.wait_timeout_while(queue, limit, is_idle);
            waited.unwrap_or_else(PoisonError::into_inner).0.left.pop_front()
        };
        let Some((id, ino)) = next else { return };
        let node = self.backlog.find(ino);
        let written = node.as_ref().map_or(Ok(()), |node| self.flush(node));
        let Some((ino, pid)) = self.answer_opener(id, written.is_ok()) else { return };
        if let Err(err) = written {
            self.note_refusal(ino, pid, &reason(err));
        }
    }

    /// Logs a refused opening and records it with the file. Takes no lock of the file (openers-O2).
    fn note_refusal(&self, ino: Ino, pid: u32, why: &str) {
        if let Some(node) = self.backlog.find(ino) {
            node.refused.store(pid, Relaxed);
        }
        let path = self.backing.path(ino).unwrap_or_default();
        let path = String::from_utf8_lossy(&path);
        tracing::error!("{path}: process {pid} was refused to open it: {why}");
    }

    /// Answers an opening that still waits. Returns its file and process.
    fn answer_opener(&self, id: u64, may: bool) -> Option<(Ino, u32)> {
        let WaitingOpeners { opening, .. } = lock(&self.openers.queue).waiting.remove(&id)?;
        let who = (opening.ino, opening.pid);
        if !may {
            count(&self.counts.openers_refused, 1);
        }
        opening.answer(may);
        Some(who)
    }
}

/// Describes for the log why an opening behind the cache was refused.
fn reason(err: Errno) -> String {
    match err {
        Errno::STALE => "others have changed it while the cache had changes of its own".to_owned(),
        err => format!("it cannot be written back: {err}"),
    }
}
