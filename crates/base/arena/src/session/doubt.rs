//! Doubt about the words of an arena: a user with write permission for its file, or a bug, has
//! overwritten them.
//!
//! - doubt-W1: a thread that finds impossible words marks the arena as *in doubt*. Examples are an
//!   index that causes a panic, an endless chain, and a lock that no thread can have. The effect is
//!   that of a death inside (session-E2): the derived state is rebuilt.
//! - doubt-W2: a lock is in doubt when a thread has waited for it for seconds, and all threads
//!   inside have waited for locks all that time. A thread that waits marks that in its slot. If the
//!   doubt is wrong, operations start over, which is safe.
//! - doubt-W3: a word of the arena is only used as an index, after a check, so no process reaches
//!   outside the arena.

use super::{Header, Session};
use crate::Arena;
use crate::sync::AtomicU32;
use std::sync::atomic::Ordering::*;

/// Value of the mark of a thread that is inside and waits for a lock (doubt-W2).
const WAITS: u32 = 2;
/// Checks of a waiter, one per [`crate::PATIENCE_MS`], before it doubts the lock.
const LOOKS_TO_DOUBT: u32 = 300;

impl Header {
    /// Marks the arena as in doubt (doubt-W1).
    pub(crate) fn doubt(&self) {
        self.doubted.store(1, Release);
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Acquire) != 0
    }

    /// Ends the doubt: the derived state has been rebuilt.
    pub(super) fn end_doubt(&self) {
        self.doubted.store(0, Release);
    }
}

/// A thread that waits for a lock inside an operation.
pub struct Wait<'a> {
    session: Option<&'a Session>,
    /// The mark of the thread, if it is inside.
    own: Option<&'a AtomicU32>,
    /// Slots of threads that may have the lock: at each check they were inside, and did not wait.
    busy: Vec<u32>,
    looks: u32,
}

impl Arena {
    /// Marks the arena as in doubt (doubt-W1).
    pub fn doubt(&self) {
        if let Some(s) = self.session() {
            s.header().doubt();
        }
    }

    /// Runs `body`, part of an operation, and returns its result. If it panics, marks the arena as
    /// in doubt (doubt-W1); the panic continues.
    #[inline]
    pub fn doubting_panics<T>(&self, body: impl FnOnce() -> T) -> T {
        struct Panic<'a>(&'a Arena);

        impl Drop for Panic<'_> {
            #[cold]
            fn drop(&mut self) {
                self.0.doubt();
            }
        }

        let panic = Panic(self);
        let value = body();
        std::mem::forget(panic);
        value
    }

    /// Marks the calling thread as waiting for a lock.
    #[cold]
    pub fn begin_wait(&self) -> Wait<'_> {
        let session = self.session();
        let own = session.and_then(|s| Some(&s.threads()[s.slot().ok()? as usize].inside));
        let own = own.filter(|inside| inside.load(Relaxed) == 1);
        if let Some(own) = own {
            own.store(WAITS, Release);
        }
        Wait { session: session.map(|s| &**s), own, busy: Vec::new(), looks: 0 }
    }
}

impl Wait<'_> {
    /// Checks, every [`crate::PATIENCE_MS`], whether any thread can have the lock. If none can,
    /// marks the arena as in doubt.
    pub fn look(&mut self) {
        let Some(s) = self.session else { return };
        let threads = s.threads();
        let is_busy = |slot: &u32| {
            let t = &threads[*slot as usize];
            t.inside.load(Acquire) == 1 && t.who.load(Acquire) != 0
        };
        if self.looks == 0 {
            self.busy = (1..=s.used_threads().len() as u32).filter(is_busy).collect();
        } else {
            self.busy.retain(is_busy);
        }
        self.looks += 1;
        if self.looks >= LOOKS_TO_DOUBT && self.busy.is_empty() {
            s.header().doubt();
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            own.store(1, Release);
        }
    }
}
