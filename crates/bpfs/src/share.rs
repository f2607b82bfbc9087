//! One pool, several processes: how operations come and go, and what happens when a process dies.
//!
//! All of the derived state lies in a shared arena; [`arena`]'s session-E1–E4 say how processes stop for a
//! repair. What is repaired here, and how:
//!
//! - share-R1: a process that died outside of operations held references and nothing else: [`Core::reap_processes`]
//!   takes them back, and frees what they alone kept.
//! - share-R2: one that died inside may have left anything half-done, but only behind locks that it still
//!   holds, and in PM nothing that a power failure could not have left. So [`Core::recover`] stops
//!   the world and derives everything anew by the scan of the mount; references of the living, which
//!   are counted by process and kept, are added to it.
//! - share-R3: the dead may have stored a commit and not flushed it, and others must not build on what a power
//!   failure would take back. The scan makes durable what it reads (`scan.rs`, scan-S6): that of a recovery, and
//!   that of a mount, as those who used the pool may have been killed all together.
//! - share-R4: inodes without a name that the living hold are not met by the scan. They are adopted from
//!   the references.

use crate::fs::Core;
use crate::lifecycle;
use crate::scan::ScanOptions;
use crate::unnamed::nap_for_space;
use crate::volatile::UNNAMED;
use arena::{Census, Look, Refused, Stopped};
use pmem::{Medium, Region};
use pool::{Error, Place};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;
use vfs::{Errno, Ino};

/// Result of what happens inside an operation.
type Result<T, E = Errno> = std::result::Result<T, E>;

/// Version of the derived state: whoever has another one cannot share it. No other engine has the same.
pub const STATE_FORMAT: u64 = 13 << 1;

/// Where those meet who use the pool in `region`: a copy of its file is another pool.
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] where it lies in no file.
pub fn place(region: &Region) -> Result<Place, Error> {
    pool::place(region, lifecycle::info(region)?.uuid, STATE_FORMAT)
}

impl<M: Medium> Core<M> {
    /// Runs an operation inside (session-E1): once, unless it has to leave for a repair and start over.
    #[inline]
    pub fn op<T>(&self, mut body: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        let mut naps = 0;
        loop {
            match self.v.arena.enter() {
                Ok(inside) => match body(self) {
                    _ if self.medium.is_lost() => return Err(self.lost()),
                    Err(Errno::RESTART) => {}
                    Err(Errno::NOSPC) => {
                        drop(inside);
                        if nap_for_space(&self.v, &mut naps) {
                            continue;
                        }
                        return Err(Errno::NOSPC);
                    }
                    result => return result,
                },
                Err(Refused::Stopped) => {}
                Err(Refused::Leftovers) => {
                    self.clear_own()?;
                    continue;
                }
                Err(why @ (Refused::Full | Refused::Unable)) => return Err(why.into()),
            }
            self.help()?;
        }
    }

    /// Part of the pool is gone: whatever an operation has read may be zeros.
    #[cold]
    fn lost(&self) -> Errno {
        if !self.told_loss.swap(true, Relaxed) {
            self.v.set_damaged();
            tracing::error!(
                "the pool's file was truncated, or its memory is broken: nothing can be read or changed any more \
                 (EIO). Unmount the pool, and bring back a copy of the file"
            );
        }
        Errno::IO
    }

    /// Does what somebody waits for: repairs, or lets somebody else finish it.
    #[cold]
    fn help(&self) -> Result<()> {
        match self.v.arena.wait_outside() {
            Ok(()) if !self.v.arena.has_died_inside() => Ok(()),
            Err(Refused::Leftovers) => self.clear_own(),
            _ => self.recover(),
        }
    }

    /// Clears the slot of this process, which a dead one has left as it was.
    fn clear_own(&self) -> Result<()> {
        self.clear_process(self.v.arena.process()?)
    }

    /// `FileSystem::forget`.
    pub fn forget(&self, ino: Ino, refs: u64) {
        if let Ok(process) = self.v.arena.process() {
            let _ = self.take_back(process, ino, refs);
        }
    }

    /// Takes back up to `n` references that a process holds, and frees the inode if they were the
    /// last thing that kept it. They are taken once, however often the rest starts over.
    fn take_back(&self, process: usize, ino: Ino, n: u64) -> Result<()> {
        let Ok(v) = self.v.vinode(ino) else { return Ok(()) };
        let mut last = None;
        self.op(|core| {
            let take = || core.v.drop_refs(process, ino, v, n);
            if *last.get_or_insert_with(take) { core.reap_if_unused(ino, v) } else { Ok(()) }
        })
    }

    /// Takes back what dead processes held (share-R1), and repairs what they left half-done (share-R2).
    /// Returns how many there were.
    pub fn reap_processes(&self, look: Look) -> Result<usize> {
        let arena = &self.v.arena;
        arena.take_reserve();
        if arena.has_died_inside() {
            self.recover()?;
        }
        let dead = arena.take_dead_processes(look);
        for process in &dead {
            self.clear_process(*process)?;
            arena.free_process(*process);
        }
        Ok(dead.len())
    }

    /// Takes back up to `n` mappings that a process counts ([`mounts::MountEvents`]). Inside, because a recovery sums up
    /// what is counted by process.
    pub fn end_mappings(&self, process: usize, ino: Ino, n: u64) -> Result<()> {
        self.op(|core| {
            core.v.drop_mappings(process, ino, core.v.vinode(ino)?, n);
            Ok(())
        })
    }

    /// Takes back all of them. Returns how many counts were looked at.
    pub fn end_all_mappings(&self, process: usize) -> Result<usize> {
        let mut mapped = Vec::new();
        let words = self.v.for_each_mapping(process, |ino, count| mapped.push((ino, count)));
        for (ino, count) in mapped {
            self.end_mappings(process, ino, count)?;
        }
        Ok(words)
    }

    /// Takes back what the last process in a slot held.
    fn clear_process(&self, process: usize) -> Result<()> {
        /// Counts whose memory a slot may keep: eight pages, which cost less than to be taken away and again.
        const KEPT: usize = 4096;
        self.end_server(process);
        self.v.openings.forget_process(&self.v.arena, process);
        let of_mappings = self.end_all_mappings(process)?;
        let mut held = Vec::new();
        let of_refs = self.v.for_each_ref(process, |ino, count| held.push((ino, count)));
        for (ino, count) in &held {
            self.take_back(process, *ino, *count)?;
        }
        self.op(|core| {
            if core.v.pins.forget_process(&core.v.arena, process) {
                core.v.clear_deferred();
            }
            Ok(())
        })?;
        let is_damaged = held.iter().any(|(ino, _)| self.v.vinode(*ino).is_err());
        if of_mappings + of_refs > KEPT || is_damaged {
            self.v.clear_counts(process).map_err(|_| Errno::IO)?;
        }
        Ok(())
    }

    /// Derives the volatile state anew after a process died inside an operation (share-R2–R4).
    pub fn recover(&self) -> Result<()> {
        match self.v.arena.stop_the_world()? {
            Some(stopped) if stopped.is_unfinished() || self.v.arena.has_died_inside() => {
                self.derive_anew(&stopped)
            }
            _ => Ok(()),
        }
    }

    /// Recovers although nobody died.
    pub fn rehearse_recovery(&self) -> Result<()> {
        match self.v.arena.stop_the_world()? {
            Some(stopped) => self.derive_anew(&stopped),
            None => Ok(()),
        }
    }

    fn derive_anew(&self, stopped: &Stopped<'_>) -> Result<()> {
        let arena = &self.v.arena;
        let failed = |_| Errno::IO;
        // Also those that somebody is about to clear away: that will find nothing left.
        let census = arena.census(stopped);
        for process in census.dead() {
            self.v.clear_counts(process).map_err(failed)?;
        }
        let held = self.held(&census);
        self.v.start_over().map_err(failed)?;
        let scan = self.scan(&ScanOptions { threads: 1, held: &held }, &|_| {});
        self.v.pins.recover(arena, &census, &self.v.blocks);
        self.v.count_free_blocks();
        let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
        for (ino, held) in &held {
            if let Ok(v) = self.v.vinode(*ino) {
                v.refs.store(held.refs, Relaxed);
                v.executions.store(held.executions, Relaxed);
            }
        }
        for process in census.living() {
            self.v.for_each_mapping(process, |ino, count| {
                if let Ok(v) = self.v.vinode(ino) {
                    v.mappings.fetch_add(count as u32, Relaxed);
                }
            });
        }
        let problems = scan.into_problems();
        if let Some(first) = problems.first() {
            tracing::error!(%first, "a process died, and its pool is damaged: check it");
            self.v.set_damaged();
        } else {
            self.clear_stale(&stale);
        }
        arena.free_dead(stopped, &census);
        arena.count_recovery();
        Ok(())
    }

    /// What the living hold.
    fn held(&self, census: &Census) -> BTreeMap<Ino, Held> {
        let mut all: BTreeMap<Ino, Held> = BTreeMap::new();
        for process in census.living() {
            self.v.for_each_ref(process, |ino, count| {
                let found = || match self.v.vinode(ino) {
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
}

/// What a recovery knows of a held inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    refs: u64,
    /// [`UNNAMED`] or 0.
    pub unnamed: u32,
    executions: u32,
}
