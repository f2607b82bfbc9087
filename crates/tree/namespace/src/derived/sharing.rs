//! One pool, several processes: how operations begin and end, and what happens when a process dies.
//!
//! All of the derived state lies in a shared arena; session-E1–E4 of [`arena`] define how processes
//! stop for a repair. The repairs here are:
//!
//! - sharing-R1: a process that died outside of operations held references and nothing else.
//!   [`SharedPool::reap_processes`] takes them back, and frees the inodes that only they kept.
//! - sharing-R2: a process that died inside an operation may have left anything half-done, but only
//!   behind locks that it still holds. In PM it can only have left a state that a power failure
//!   could leave. So [`recover`] stops the world and derives everything again, as mounting does. It
//!   then adds the references of living processes, which are counted by process and kept.
//! - sharing-R3: a dead process may have stored a commit without flushing it, and others must not
//!   build on a change that a power failure would undo. So [`SharedPool::derive`] makes durable
//!   whatever it reads. It does so in a recovery and in a mount, as all previous users of the pool
//!   may have been killed together.
//! - sharing-R5: if the file of the state has been truncated, operations fail with `EIO`, as
//!   whatever they read there may be wrong. Other processes find its gate closed for good. The pool
//!   itself is whole, so the next mount derives everything again.
//! - sharing-R4: the scan of names does not find inodes without a name that living processes hold.
//!   They are adopted from the references ([`Held`]).

use crate::derived::admission;
use crate::derived::inodes::{Inode, Mapper, UNNAMED};
use crate::derived::state::State;
use crate::derived::unnamed::{self, nap_for_space};
use arena::{Attached, Census, Hold, Layout, Look, Place, Refused, Stopped};
use os::caller;
use pmem::{Lock, Medium};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::*;
use vfs::{Errno, Ino, Result};

/// A mounted pool that processes share: what an engine adds to its [`State`].
pub trait SharedPool: Sized + Sync {
    /// Derived state of an inode.
    type Inode: Inode;

    /// Returns the engine-independent state.
    fn state(&self) -> &State<Self::Inode>;

    /// Returns whether part of the medium is gone.
    fn is_lost(&self) -> bool;

    /// Frees an inode that has lost its last name or reference, if neither is left. Called inside
    /// an operation.
    fn reap_if_unused(&self, ino: Ino, v: &Self::Inode) -> Result<()>;

    /// Notes that bytes may have been stored through a direct mapping of a file
    /// ([`vfs::Mappings::map_range`]), which is about to be taken back: it is unknown which of them
    /// are durable. Called inside an operation, perhaps more than once.
    fn note_stores(&self, _ino: Ino, _v: &Self::Inode) -> Result<()> {
        Ok(())
    }

    /// Reacts to the end of a file's last direct mapping, unless there are new ones: blocks that
    /// were kept for it can be given back. Called inside an operation, perhaps more than once.
    fn all_unmapped(&self, _ino: Ino, _v: &Self::Inode) -> Result<()> {
        Ok(())
    }

    /// Lets blocks be claimed again that had to wait for readers without a copy, if no such reader
    /// is left.
    fn clear_deferred(&self);

    /// Makes all blocks that are in use wait for readers without a copy, if there are any, when the
    /// state is derived again.
    fn defer_used(&self) {}

    /// Makes space for an operation that has found none and holds no locks: frees blocks that are
    /// kept for later, if there are any. Returns whether it did, so that the operation may now find
    /// space. Called inside an operation.
    fn make_space(&self) -> Result<bool> {
        Ok(false)
    }

    /// Derives everything again from PM, into tables that are all zeros, and makes durable whatever
    /// it reads (sharing-R3). No other process is inside an operation. Inodes in `held` are in use
    /// regardless of names; the readers without a copy are in the `census`. Returns the damage
    /// found; without any, clears the leftovers of a crash.
    fn derive(&self, held: &BTreeMap<Ino, Held>, census: &Census) -> Option<String>;

    /// Runs an operation inside the arena's gate (session-E1): once, unless it has to leave for a
    /// repair and start over.
    #[inline]
    fn op<T>(&self, mut body: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        let state = self.state();
        let mut naps = 0;
        loop {
            match state.arena.enter() {
                Ok(inside) => match state.arena.doubting_panics(|| body(self)) {
                    _ if self.is_lost() || state.arena.has_met_loss() => return Err(state.lost()),
                    Err(Errno::RESTART) => {}
                    Err(Errno::NOSPC) => {
                        let make_space = || caller::uninterrupted(|| self.make_space());
                        match state.arena.doubting_panics(make_space) {
                            Ok(true) => continue,
                            Ok(false) => drop(inside),
                            Err(Errno::RESTART) => {
                                drop(inside);
                                caller::uninterrupted(|| help(self))?;
                                continue;
                            }
                            Err(e) => return Err(e),
                        }
                        if nap_for_space(state, &mut naps) {
                            continue;
                        }
                        return Err(Errno::NOSPC);
                    }
                    result => return result,
                },
                Err(Refused::Stopped | Refused::Arrived) => {}
                Err(Refused::Leftovers) => {
                    caller::uninterrupted(|| clear_own(self))?;
                    continue;
                }
                Err(Refused::Lost) => return Err(state.lost()),
                Err(why @ (Refused::Full | Refused::Unable)) => return Err(why.into()),
            }
            caller::uninterrupted(|| help(self))?;
        }
    }

    /// Runs a change while no other thread is inside an operation, of any process (session-E2). In
    /// an arena of one process, the caller ensures that. The change takes no lock. A process that
    /// dies in it leaves the gate closed, and the next one derives the state again.
    fn alone<T>(&self, mut body: impl FnMut(Option<&Stopped<'_>>) -> Result<T>) -> Result<T> {
        let state = self.state();
        let arena = &state.arena;
        loop {
            // Not before this process may enter.
            self.op(|_| Ok(()))?;
            let stopped = arena.stop_the_world()?;
            if arena.descriptor().is_some() {
                match &stopped {
                    None => {
                        caller::uninterrupted(|| help(self))?;
                        continue;
                    }
                    Some(stopped) if stopped.is_unfinished() || arena.has_died_inside() => {
                        derive_anew(self, stopped)?;
                        continue;
                    }
                    Some(_) => {}
                }
            }
            let result = arena.doubting_panics(|| body(stopped.as_ref()));
            drop(stopped);
            if self.is_lost() || arena.has_met_loss() {
                return Err(state.lost());
            }
            match result {
                Err(Errno::NOSPC) if self.op(Self::make_space)? => {}
                result => return result,
            }
        }
    }

    /// As [`alone`](Self::alone), for a change after which the state is derived again, as after a
    /// death: it changes PM and leaves the derived state as it was. If it fails, nothing has
    /// changed. In an arena of one process, nothing may be changed until the pool is opened again.
    fn alone_then_derive(&self, mut body: impl FnMut() -> Result<()>) -> Result<()> {
        self.alone(|stopped| {
            // A program that comes to the closed gate must not use a path that it has cached.
            self.state().end_versions();
            body()?;
            match stopped {
                Some(stopped) => {
                    self.defer_used();
                    derive_anew(self, stopped)
                }
                None => {
                    self.state().set_damaged();
                    Ok(())
                }
            }
        })
    }

    /// Joins others in the arena; called before any other thread of this process uses it. Takes
    /// back what the last process in its slot has left, and what other dead processes have left.
    fn join(&self) -> Result<()> {
        self.op(|_| Ok(()))?;
        self.reap_processes(Look::Quick).map(drop)
    }

    /// Adds a reference of this process to a live inode if `may` allows it; returns whether it did.
    fn hold_if(&self, ino: Ino, may: impl Fn(&Self::Inode) -> bool) -> Result<bool> {
        self.op(|pool| {
            let state = pool.state();
            // A process that frees an inode checks its references under its lock.
            let _lock = state.lock_shared(ino)?;
            let v = state.vinode(ino)?;
            let is_held = v.is_live() && may(v);
            if is_held {
                state.add_ref(ino, v);
            }
            Ok(is_held)
        })
    }

    /// Implements [`vfs::FileSystem::forget`].
    fn forget(&self, ino: Ino, refs: u64) {
        if let Ok(process) = self.state().arena.process() {
            let _ = take_back(self, process, ino, refs);
        }
    }

    /// Takes back the references of dead processes (sharing-R1), and repairs their half-done
    /// operations (sharing-R2). Returns the number of dead processes.
    fn reap_processes(&self, look: Look) -> Result<usize> {
        let arena = &self.state().arena;
        if arena.is_lost() {
            return Err(self.state().lost());
        }
        arena.take_reserve();
        if arena.has_died_inside() {
            recover(self)?;
        }
        let dead = arena.take_dead_processes(look);
        for process in &dead {
            clear_process(self, *process)?;
            arena.free_process(*process);
        }
        Ok(dead.len())
    }

    /// Recovers although no process died, for tests of what follows a death.
    fn rehearse_recovery(&self) -> Result<()> {
        match self.state().arena.stop_the_world()? {
            Some(stopped) => derive_anew(self, &stopped),
            None => Ok(()),
        }
    }

    /// Notifies the servers in other processes that hold an inode which has lost its last name.
    /// Call it after a fence that orders it behind the loss of the name.
    fn notify_unnamed(&self, ino: Ino) {
        unnamed::notify(self.state(), ino);
    }
}

/// Attaches to the processes at `place` that have the same medium open. The first process fills the
/// planned state, and publishes it.
///
/// # Errors
/// Those of the system; also if another process has the medium exclusively, or if the existing
/// state has another format.
pub fn attach(medium: &impl Medium, place: &Place, layout: &Layout) -> io::Result<Attached> {
    place.attach(layout, &|hold| {
        medium.lock(match hold {
            Hold::Nothing => Lock::None,
            Hold::Shared => Lock::Shared,
            Hold::Alone => Lock::Exclusive,
        })
    })
}

/// Helps a process that waits for a repair: repairs, or lets another process finish the repair.
#[cold]
fn help<P: SharedPool>(pool: &P) -> Result<()> {
    let arena = &pool.state().arena;
    match arena.wait_outside() {
        Ok(()) if !arena.has_died_inside() => Ok(()),
        Err(Refused::Leftovers) => clear_own(pool),
        Err(Refused::Arrived) => arrive(pool),
        _ => recover(pool),
    }
}

/// Begins to use the pool, in a process that has just got its slot (admission-A2, admission-A3).
#[cold]
fn arrive<P: SharedPool>(pool: &P) -> Result<()> {
    let state = pool.state();
    admission::wait_until_ended(state)?;
    state.arena.admit();
    Ok(())
}

/// Clears the slot of this process, which its dead predecessor has left as it was.
fn clear_own<P: SharedPool>(pool: &P) -> Result<()> {
    clear_process(pool, pool.state().arena.process()?)
}

/// Takes back up to `n` references that a process holds, and frees the inode if they were the
/// last thing that kept it. They are taken once, however often the rest starts over.
fn take_back<P: SharedPool>(pool: &P, process: usize, ino: Ino, n: u64) -> Result<()> {
    let state = pool.state();
    let Ok(v) = state.vinode(ino) else { return Ok(()) };
    let mut last = None;
    pool.op(|pool| {
        let take = || state.drop_refs(process, ino, v, n);
        if *last.get_or_insert_with(take) { pool.reap_if_unused(ino, v) } else { Ok(()) }
    })
}

/// Takes back up to `n` mappings that a process counts. It runs inside an operation, because a
/// recovery sums up the counts of processes. `is_durable`: all bytes that may have been stored
/// through them are durable.
pub fn end_mappings<P: SharedPool>(
    pool: &P,
    process: usize,
    ino: Ino,
    (mapper, n): (Mapper, u64),
    is_durable: bool,
) -> Result<()> {
    let state = pool.state();
    let v = state.vinode(ino)?;
    let mut was_last = None;
    pool.op(|pool| {
        if mapper == Mapper::Writer && !is_durable && was_last.is_none() {
            pool.note_stores(ino, v)?;
        }
        let take = || state.drop_mappings(process, ino, v, (mapper, n));
        let was_last = *was_last.get_or_insert_with(take);
        if was_last && mapper != Mapper::Kernel { pool.all_unmapped(ino, v) } else { Ok(()) }
    })
}

/// Takes back all mappings of a process. Returns the number of counts read.
pub fn end_all_mappings<P: SharedPool>(pool: &P, process: usize) -> Result<usize> {
    let mut mapped = Vec::new();
    let mut note = |ino, mapper, count| mapped.push((ino, (mapper, count)));
    let words = pool.state().for_each_mapping(process, &mut note);
    for (ino, counted) in mapped {
        end_mappings(pool, process, ino, counted, false)?;
    }
    Ok(words)
}

/// Takes back the references and mappings of the last process in a slot.
fn clear_process<P: SharedPool>(pool: &P, process: usize) -> Result<()> {
    /// Counts whose memory a slot may keep: eight pages, which cost less to keep than to take away
    /// and allocate again.
    const KEPT: usize = 4096;
    let state = pool.state();
    unnamed::end_server(state, process);
    state.openings().forget_process(&state.arena, process);
    state.serving()[process].store(0, Release);
    let of_mappings = end_all_mappings(pool, process)?;
    let mut held = Vec::new();
    let of_refs = state.for_each_ref(process, |ino, count| held.push((ino, count)));
    for (ino, count) in &held {
        take_back(pool, process, *ino, *count)?;
    }
    pool.op(|pool| {
        if state.pins().forget_process(&state.arena, process) {
            pool.clear_deferred();
        }
        Ok(())
    })?;
    let is_damaged = held.iter().any(|(ino, _)| state.vinode(*ino).is_err());
    if of_mappings + of_refs > KEPT || is_damaged {
        state.clear_counts(process).map_err(|_| Errno::IO)?;
    }
    Ok(())
}

/// Derives the volatile state again after a process died inside an operation (sharing-R2–R4).
pub fn recover<P: SharedPool>(pool: &P) -> Result<()> {
    let arena = &pool.state().arena;
    match arena.stop_the_world()? {
        Some(stopped) if stopped.is_unfinished() || arena.has_died_inside() => {
            derive_anew(pool, &stopped)
        }
        _ => Ok(()),
    }
}

/// Derives the state again while all other threads are outside, and adds what living processes
/// hold. `EIO` if memory of the arena cannot be cleared.
fn derive_anew<P: SharedPool>(pool: &P, stopped: &Stopped<'_>) -> Result<()> {
    let state = pool.state();
    let arena = &state.arena;
    let failed = |_| Errno::IO;
    // Includes processes that another process is about to clear away: it will find nothing left.
    let census = arena.census(stopped);
    for process in census.dead() {
        state.clear_counts(process).map_err(failed)?;
    }
    let held = held(state, &census);
    state.start_over().map_err(failed)?;
    // Before anything is derived: mapped blocks stay where they are.
    for process in census.living() {
        state.for_each_mapping(process, |ino, mapper, count| {
            if let Ok(v) = state.vinode(ino) {
                let _ = v.mappings.add(mapper, count as u32);
            }
        });
    }
    if let Some(first) = pool.derive(&held, &census) {
        tracing::error!(%first, "a process died, and its pool is damaged: check it");
        state.set_damaged();
    }
    for (ino, held) in &held {
        if let Ok(v) = state.vinode(*ino) {
            v.refs.store(held.refs, Relaxed);
            v.executions.store(held.executions, Relaxed);
        }
    }
    arena.free_dead(stopped, &census);
    arena.count_recovery();
    Ok(())
}

/// Returns the inodes that living processes hold.
fn held<V: Inode>(state: &State<V>, census: &Census) -> BTreeMap<Ino, Held> {
    let mut all: BTreeMap<Ino, Held> = BTreeMap::new();
    for process in census.living() {
        state.for_each_ref(process, |ino, count| {
            let found = || match state.vinode(ino) {
                Ok(v) => Held {
                    refs: 0,
                    unnamed: v.state.load(Relaxed) & UNNAMED,
                    executions: v.executions.load(Relaxed),
                },
                Err(_) => Held::default(),
            };
            all.entry(ino).or_insert_with(found).refs += count;
        });
    }
    all
}

/// The facts about a held inode that a recovery keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    refs: u64,
    /// [`UNNAMED`] or 0.
    pub unnamed: u32,
    executions: u32,
}
