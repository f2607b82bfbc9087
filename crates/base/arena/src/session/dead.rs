//! Cleaning up after dead processes: which have died, and which slots are free again (session-E1,
//! session-E5, session-E6).

use super::{ProcessSlot, Stopped};
use crate::Arena;
use crate::process::ProcessId;
use crate::sync::fence;
use std::sync::atomic::Ordering::*;

/// How thoroughly to check which processes have died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// By numbers ([`ProcessId::is_gone`]): for processes that join, possibly many per second.
    Quick,
    /// By all that the kernel reports ([`ProcessId::is_dead`]).
    Thorough,
}

/// The processes that have slots.
#[derive(Debug, Default)]
pub struct Census {
    living: Vec<(usize, u64)>,
    dead: Vec<(usize, u64)>,
}

impl Census {
    /// Returns the slots of living processes.
    pub fn living(&self) -> impl Iterator<Item = usize> {
        self.living.iter().map(|(slot, _)| *slot)
    }

    /// Returns the slots of dead processes.
    pub fn dead(&self) -> impl Iterator<Item = usize> {
        self.dead.iter().map(|(slot, _)| *slot)
    }
}

impl Arena {
    /// Claims the slots of processes that died outside (session-E1), unless another process is
    /// clearing them. The caller must clear them, and then [free](Self::free_process) them.
    pub fn take_dead_processes(&self, look: Look) -> Vec<usize> {
        let Some(s) = self.session() else { return Vec::new() };
        let Ok(me) = s.slot() else { return Vec::new() };
        let own = ProcessId::own().0;
        let is_inside = |who| {
            let mut of_it = s.used_threads().iter().filter(|t| t.who.load(Acquire) == who);
            of_it.any(|t| t.inside.load(Acquire) != 0)
        };
        let is_mine = |p: &ProcessSlot| {
            let who = p.who.load(Acquire);
            let sweeper = p.sweeper.load(Acquire);
            who != own
                && p.is_abandoned_by(who, look)
                && !is_inside(who)
                && (sweeper == 0 || self.is_owner_dead(sweeper))
                && p.sweeper.compare_exchange(sweeper, me, AcqRel, Relaxed).is_ok()
                && {
                    // session-E5
                    fence(SeqCst);
                    let is_left = p.who.load(Acquire) == who;
                    if !is_left {
                        p.release(me);
                    }
                    is_left
                }
        };
        let slots = s.processes().iter().enumerate();
        slots.filter(|(_, p)| is_mine(p)).map(|(i, _)| i).collect()
    }

    /// Lists living and dead processes, while the world is stopped. A process counts as living if
    /// it may be alive, if a child needs its slot (session-E6), or if it dies after this check. It
    /// is cleared later, as any that died outside (session-E1).
    pub fn census(&self, _stopped: &Stopped<'_>) -> Census {
        let mut census = Census::default();
        let Some(s) = self.session() else { return census };
        for (i, slot) in s.processes().iter().enumerate() {
            let who = slot.who.load(Acquire);
            if who != 0 {
                let list = match slot.is_abandoned(who) {
                    true => &mut census.dead,
                    false => &mut census.living,
                };
                list.push((i, who));
            }
        }
        census
    }

    /// Gives back the slots of processes that a census found dead, and of dead threads.
    pub fn free_dead(&self, _stopped: &Stopped<'_>, census: &Census) {
        let Some(s) = self.session() else { return };
        s.header().end_doubt();
        for t in s.used_threads() {
            let who = t.who.load(Acquire);
            if who != 0 && ProcessId(who).is_dead() {
                t.inside.store(0, Relaxed);
                let _ = t.who.compare_exchange(who, 0, AcqRel, Relaxed);
            }
        }
        for (i, who) in &census.dead {
            let slot = &s.processes()[*i];
            if slot.who.compare_exchange(*who, 0, AcqRel, Relaxed).is_ok() {
                slot.sweeper.store(0, Release);
            }
        }
    }

    /// Gives back the slots of a dead process and its threads, which the caller has cleared.
    pub fn free_process(&self, process: usize) {
        let Some(s) = self.session() else { return };
        let slot = &s.processes()[process];
        let who = slot.who.load(Acquire);
        if slot.is_abandoned(who) {
            s.free_threads(who);
            let _ = slot.who.compare_exchange(who, 0, AcqRel, Relaxed);
        }
        if let Ok(me) = s.slot() {
            slot.release(me);
        }
    }
}
