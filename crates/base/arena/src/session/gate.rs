//! The gate: threads enter and leave operations, and all of them stop for a repair (session-E2 to
//! session-E4).

use super::{
    ARRIVED, CLOSING, Header, LEFTOVERS, LOST, NAP, NAPS_TO_DESPAIR, NAPS_TO_DOUBT, ProcessSlot,
    Refused, Session, UNABLE_TRIES, UNKNOWN, is_nobody,
};
use crate::Arena;
use crate::process::{Life, ProcessId};
use crate::sync::{self, AtomicU32, AtomicU64, fence};
use std::sync::atomic::{Ordering::*, compiler_fence};

/// A thread inside an operation, until dropped.
#[must_use]
pub struct Inside<'a>(Option<&'a AtomicU32>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(inside) = self.0 {
            inside.store(0, Release);
        }
    }
}

/// Keeps all threads outside operations ("the world is stopped"), until dropped.
pub struct Stopped<'a> {
    header: &'a Header,
    unfinished: bool,
}

impl Stopped<'_> {
    /// Whether the process that had stopped the world before died.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // After a panic the derived state may be half-built: keep all threads out for good.
        open(&self.header.gate, if std::thread::panicking() { LOST } else { 0 });
    }
}

/// Restores the value of the gate before it was closed, unless it is closed for good (room-O4).
fn open(gate: &AtomicU32, before: u32) {
    let _ = gate.fetch_update(Release, Relaxed, |now| (now != LOST).then_some(before));
    sync::futex_wake(gate);
}

/// Keeps threads of this process outside, until dropped.
pub struct Paused<'a>(&'a AtomicU64);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

impl Session {
    /// Fences between the store that closes the gate and the loads of the threads' marks
    /// (session-E4), also for all threads that do not fence themselves. `false` if that is
    /// impossible.
    pub(super) fn fence_all(&self) -> bool {
        fence(SeqCst);
        let relies = |p: &ProcessSlot| p.relies.load(Acquire) != 0 && !p.is_left();
        sync::make_all_fence() || !self.processes().iter().any(relies)
    }

    /// After [`fence_all`](Self::fence_all): waits until every thread is outside or dead. `false`
    /// if the kernel does not report whether a thread inside is alive.
    pub(super) fn wait_for_all(&self) -> bool {
        for t in self.used_threads() {
            for nap in 0u32.. {
                let who = t.who.load(Acquire);
                if t.inside.load(Acquire) == 0 || who == 0 {
                    break;
                }
                if nap.is_multiple_of(NAPS_TO_DOUBT) {
                    match ProcessId(who).life() {
                        Life::Alive => {}
                        Life::Dead => break,
                        Life::Unknown if nap < NAPS_TO_DESPAIR => {}
                        Life::Unknown => return false,
                    }
                }
                sync::nap(&NAP);
            }
        }
        true
    }
}

impl Arena {
    /// Waits until every operation that has begun has ended; new ones may begin meanwhile. `false`
    /// if that cannot be found out. The calling thread must be outside.
    pub fn synchronize(&self) -> bool {
        self.session().is_none_or(|s| s.fence_all() && s.wait_for_all())
    }

    /// Marks the calling thread as inside an operation.
    ///
    /// # Errors
    /// [`Refused`]; the caller may repair and try again.
    #[inline]
    pub fn enter(&self) -> Result<Inside<'_>, Refused> {
        let Some(s) = self.session() else { return Ok(Inside(None)) };
        let slot = s.slot()?;
        let inside = &s.threads()[slot as usize].inside;
        loop {
            inside.store(1, Relaxed);
            if s.fences.load(Relaxed) {
                fence(SeqCst)
            } else {
                compiler_fence(SeqCst)
            }
            if s.header().gate.load(Acquire) == 0 && s.paused.load(Relaxed) as u32 == 0 {
                return Ok(Inside(Some(inside)));
            }
            inside.store(0, Release);
            self.wait_outside()?;
        }
    }

    /// Sleeps until the gate is open. Fails if the caller must do something before ([`Refused`]).
    #[cold]
    pub fn wait_outside(&self) -> Result<(), Refused> {
        let Some(s) = self.session() else { return Ok(()) };
        let gate = &s.header().gate;
        for nap in 1u32.. {
            let closed_by = gate.load(Acquire);
            if closed_by == 0 {
                match s.paused.load(Acquire) & u64::from(u32::MAX) {
                    0 => return Ok(()),
                    paused if paused & LEFTOVERS != 0 => {
                        let before = s.paused.fetch_and(!LEFTOVERS, AcqRel);
                        if before & LEFTOVERS != 0 {
                            return Err(Refused::Leftovers);
                        }
                    }
                    paused if paused & ARRIVED != 0 => return Err(Refused::Arrived),
                    _ => sync::nap(&NAP),
                }
                continue;
            }
            if closed_by == LOST {
                return Err(Refused::Lost);
            }
            let _ = sync::futex_wait(gate, closed_by, &NAP);
            if nap.is_multiple_of(NAPS_TO_DOUBT) && self.is_left_closed(s, closed_by) {
                return Err(Refused::Stopped);
            }
        }
        Ok(())
    }

    /// Returns the calling thread as the owner of short locks: its slot, or its number in an arena
    /// for one process.
    #[inline]
    pub fn owner(&self) -> u32 {
        match self.session() {
            None => sync::number(),
            Some(s) => s.slot().unwrap_or(UNKNOWN),
        }
    }

    /// Whether an owner's process is dead.
    pub fn is_owner_dead(&self, owner: u32) -> bool {
        let Some(s) = self.session() else { return false };
        match s.threads().get(owner as usize) {
            Some(t) => is_nobody(t.who.load(Acquire)),
            // No thread has such a number (doubt-W1).
            None => owner != UNKNOWN,
        }
    }

    /// Whether the gate was closed by a process that is dead, or by none: then the word has a
    /// number of a closing that was not counted recently.
    fn is_left_closed(&self, s: &Session, closed_by: u32) -> bool {
        /// The number of closings that may be counted while one lasts.
        const MEANWHILE: u32 = 1 << 10;
        let counted = s.header().closings.load(Acquire).wrapping_sub(closed_by / CLOSING);
        let since = counted % (u32::MAX / CLOSING + 1);
        !(1..=MEANWHILE).contains(&since) || self.is_owner_dead(closed_by % CLOSING)
    }

    /// Whether a thread that waits inside should give up (session-E3): the gate is closed, or a
    /// process died inside.
    pub fn should_give_up(&self) -> bool {
        let Some(s) = self.session() else { return false };
        s.header().gate.load(Acquire) != 0 || self.has_died_inside()
    }

    /// Whether a process died inside an operation (session-E2), or words are in doubt (doubt-W1).
    pub fn has_died_inside(&self) -> bool {
        let Some(s) = self.session() else { return false };
        if s.header().is_doubted() {
            return true;
        }
        let inside = s.used_threads().iter().filter(|t| t.inside.load(Acquire) != 0);
        let mut last_alive = 0;
        for t in inside {
            let who = t.who.load(Acquire);
            if who == 0 || who == last_alive {
                continue;
            }
            if !ProcessId(who).is_dead() {
                last_alive = who;
            } else if t.who.load(Acquire) == who && t.inside.load(Acquire) != 0 {
                // No thread has cleared the slot, or taken it again, meanwhile.
                return true;
            }
        }
        false
    }

    /// Closes the gate and waits until every living thread is outside. `None` if another living
    /// process is doing that, or has to; then call [`wait_outside`](Self::wait_outside). The
    /// calling thread must be outside.
    pub fn stop_the_world(&self) -> Result<Option<Stopped<'_>>, Refused> {
        let Some(s) = self.session() else { return Ok(None) };
        let me = s.slot()?;
        let gate = &s.header().gate;
        let closed_by = gate.load(Acquire);
        if closed_by == LOST {
            return Err(Refused::Lost);
        }
        if closed_by != 0 && !self.is_left_closed(s, closed_by) {
            return Ok(None);
        }
        let closing = s.header().closings.fetch_add(1, Relaxed).wrapping_mul(CLOSING);
        if gate.compare_exchange(closed_by, closing | me, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        if !s.fence_all() || !s.wait_for_all() {
            // Restore the old value: if a dead process had closed the gate, it stays closed, as the
            // derived state may be half-done.
            open(gate, closed_by);
            sync::nap(&NAP);
            let tries = s.unable.fetch_add(1, Relaxed) + 1;
            return if tries % UNABLE_TRIES == 0 { Err(Refused::Unable) } else { Ok(None) };
        }
        s.unable.store(0, Relaxed);
        Ok(Some(Stopped { header: s.header(), unfinished: closed_by != 0 }))
    }

    /// Keeps the other threads of this process outside, and waits until they are. To be called
    /// before an `execve`, which would kill them at any point. If the kernel no longer lets the
    /// process make its threads fence, it may miss one that is just entering. Then others repair
    /// the state, as after a kill.
    pub fn pause(&self) -> Option<Paused<'_>> {
        let s = self.session()?;
        let own = s.slot().ok()?;
        s.paused.fetch_add(1, Relaxed);
        let paused = Paused(&s.paused);
        sync::make_own_fence();
        let me = ProcessId::own().0;
        for (i, t) in s.used_threads().iter().enumerate() {
            while i + 1 != own as usize && t.who.load(Acquire) == me && t.inside.load(Acquire) != 0
            {
                sync::nap(&NAP);
            }
        }
        Some(paused)
    }
}
