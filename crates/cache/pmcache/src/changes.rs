//! Changes that others make in the backing store of a pool.
//!
//! An inode is compared with its object by the object's stamp. If that is another one, what is
//! clean is dropped and gets the new state; what is dirty stays, and is a conflict. The callers
//! that compare:
//!
//! | what | compares |
//! |---|---|
//! | a load | the inode whose names or content it loads |
//! | [`look_behind`](Loading::look_behind) | one inode |
//! | [`follow_changes`](Loading::follow_changes) | the inodes that the backing store reports |
//! | [`sweep`](Loading::sweep) | all, one after the other: a round that begins after a change sees it |
//! | write-back | what it is about to write (writeback-W5) |
//!
//! The promise of a watch depends on its [`Reach`]. `Whole`: all changes of loaded inodes are
//! reported. `Directories`: only changes by names in directories that were looked up, as long as
//! the kernel keeps their marks; so a sweep has to run as well. Changes from before the watch, and
//! those that were lost, are found by a round of the sweep that the watch makes.
//!
//! - changes-H1: a comparison has the inode's turn (loading-A1). So no load stores an older state
//!   after it.
//! - changes-H2: a report is no conflict. It makes a clean inode drop what it has, as times may not
//!   show the change; whether a dirty one is a conflict, only the stamp decides.
//! - changes-H3: the front end forgets a state only after the pool has the new one.
//!
//! While write-back changes an object, its stamp does not count (backed-B5). Changes by others
//! meanwhile are found only if they are reported: the inode is compared after that.

use crate::loading::Loading;
use crate::lock;
use crate::objects::{Below, ObjectParts, has_changed, stamp};
use backing::{Backing, Change, Identity, Reach, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use vfs::{Attr, Backed, Errno, FileKind, Ino, ROOT, Residence, Result};

/// Most conflicts that are remembered. Others are logged, and found again by a later comparison.
const CONFLICTS_MAX: usize = 4096;

/// Most changes that are kept for the front end. If there are more, it has to forget everything.
const FORGET_MAX: usize = 64 << 10;

/// Inodes that one call compares after changes were lost.
const AFTER_LOSS: usize = 1024;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The object is in the state that the pool has, or the inode has no object.
    Same,
    /// Others changed the object, and the pool has the new state now.
    Renewed,
    /// The inode is dirty, and others changed or removed its object. Both stay as they are.
    Conflict,
    /// The object is gone, and nothing of the inode is dirty. Its directory loses the name.
    Gone,
}

/// An inode that is dirty, and whose object others have changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The inode.
    pub ino: Ino,
    /// Its path from the root of the pool, if its name is loaded.
    pub path: Option<Vec<u8>>,
}

/// The state of comparisons. The sweep keeps 8 bytes for each inode that it has not compared yet.
#[derive(Default)]
pub struct ChangesBehind {
    conflicts: Mutex<BTreeSet<Ino>>,
    /// Changes that the front end has to forget.
    forget: Mutex<Vec<Change>>,
    /// The inodes that this round of the sweep has not compared yet.
    round: Mutex<Vec<Ino>>,
    /// Inodes to compare once more, whatever their stamps are.
    again: Mutex<BTreeSet<Ino>>,
    /// Whether changes may have been missed, so that a round has to follow.
    has_missed: AtomicBool,
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Compares an inode with its object, and makes it follow if it is clean.
    ///
    /// # Errors
    /// Those of the pool and of the backing store.
    pub fn look_behind(&self, ino: Ino) -> Result<Comparison> {
        self.compare(ino, false)
    }

    /// As [`look_behind`](Self::look_behind). With `is_told`, what is clean is dropped even if the
    /// stamp is the same (changes-H2).
    fn compare(&self, ino: Ino, is_told: bool) -> Result<Comparison> {
        let kind = match self.pool().getattr(ino) {
            Ok(attr) => attr.kind,
            Err(Errno::STALE) => {
                self.clear_conflict(ino);
                return Ok(Comparison::Same);
            }
            Err(e) => return Err(e),
        };
        // Before the turn, as the search may take long.
        let residence = self.pool().residence(ino)?;
        if residence.identity.is_empty() {
            self.clear_conflict(ino);
            return Ok(Comparison::Same);
        }
        if kind == FileKind::Dir {
            return self.look_at_directory(ino, is_told);
        }
        // changes-H1.
        let _turn = self.turn(ino);
        let residence = self.pool().residence(ino)?;
        match self.backing().find(&Identity(residence.identity.clone())) {
            Ok(found) => self.renew(ino, residence, &Below(self.backing(), found), is_told),
            Err(Errno::STALE) => self.note_gone(ino, kind),
            Err(e) => Err(e),
        }
    }

    fn note_gone(&self, ino: Ino, kind: FileKind) -> Result<Comparison> {
        if self.is_clean(ino, kind)? {
            return Ok(Comparison::Gone);
        }
        self.note_conflict(ino);
        Ok(Comparison::Conflict)
    }

    /// Makes an inode follow its object, which was found after the residence was read, if others
    /// have changed it. The names of a directory stay as they are. The caller has its turn.
    pub(crate) fn renew(
        &self,
        ino: Ino,
        mut residence: Residence,
        object: &Below<'_, B>,
        is_told: bool,
    ) -> Result<Comparison> {
        loop {
            if residence.is_busy {
                if is_told {
                    self.look_again(ino);
                }
                return Ok(Comparison::Same);
            }
            let differs = self.differs(ino, &residence, &object.1)?;
            if !(differs || is_told && residence.is_clean) {
                self.clear_conflict(ino);
                return Ok(Comparison::Same);
            }
            let parts = ObjectParts::of(self.backing(), &object.1)?;
            let loaded = parts.loaded(&object.1, &residence.identity);
            if self.pool().reload(ino, &loaded, residence.stamp)? {
                if object.1.kind == FileKind::Dir {
                    self.names_below.note_stamp(&residence.identity, stamp(&object.1));
                }
                self.note_renewed(ino, object.1.kind, &residence);
                return Ok(Comparison::Renewed);
            }
            let now = self.pool().residence(ino)?;
            if now == residence {
                // It is dirty: at least in its content.
                return Ok(match differs {
                    true => {
                        self.note_conflict(ino);
                        Comparison::Conflict
                    }
                    false => Comparison::Same,
                });
            }
            // It has changed, or write-back has marked it.
            residence = now;
        }
    }

    /// Notes that an inode has the state of its object, which is another one than before.
    pub(crate) fn note_renewed(&self, ino: Ino, kind: FileKind, before: &Residence) {
        self.clear_conflict(ino);
        if before.is_pinned {
            self.must_load(ino);
        }
        self.must_forget(match kind {
            FileKind::File => Change::Content(ino),
            _ => Change::Attributes(ino),
        });
    }

    /// Whether an object is in another state than its inode was when they were equal.
    fn differs(&self, ino: Ino, residence: &Residence, object: &Attr) -> Result<bool> {
        if !matches!(object.kind, FileKind::Char | FileKind::Block) {
            return Ok(has_changed(residence, object));
        }
        // Devices have no stamp.
        let of = |attr: &Attr| (attr.perm, attr.uid, attr.gid, attr.mtime, attr.nlink);
        Ok(residence.is_clean && of(&self.pool().getattr(ino)?) != of(object))
    }

    fn look_at_directory(&self, dir: Ino, is_told: bool) -> Result<Comparison> {
        // changes-H1.
        let turn = self.turn(dir);
        let residence = self.pool().residence(dir)?;
        let below = match self.backing().find(&Identity(residence.identity.clone())) {
            Ok(found) => Below(self.backing(), found),
            Err(Errno::STALE) => return self.note_gone(dir, FileKind::Dir),
            Err(e) => return Err(e),
        };
        let differs = has_changed(&residence, &below.1);
        if residence.is_busy || !(differs || is_told && residence.is_clean) {
            if residence.is_busy && is_told {
                self.look_again(dir);
            } else if !residence.is_busy {
                self.clear_conflict(dir);
            }
            return Ok(Comparison::Same);
        }
        let mut has_names = !residence.are_names_absent;
        if !has_names {
            self.pool().each_name(dir, &mut |_, _, _| has_names = true)?;
        }
        if !has_names && residence.is_clean {
            // Its names are loaded when a call needs them.
            return self.renew(dir, residence, &below, is_told);
        }
        if !residence.is_clean && !residence.are_names_absent {
            return Ok(match self.settle_names(dir, &residence, &below)? {
                true => {
                    self.clear_conflict(dir);
                    Comparison::Renewed
                }
                false => {
                    self.note_conflict(dir);
                    Comparison::Conflict
                }
            });
        }
        // merge-M3.
        drop(turn);
        if !self.follow_names(dir, true)? {
            return Ok(Comparison::Conflict);
        }
        self.clear_conflict(dir);
        Ok(Comparison::Renewed)
    }

    // --- conflicts ------------------------------------------------------------------------------

    /// Compares the inodes that are known to be in conflict again, and returns those that are. A
    /// conflict is resolved when the inode or its changes are gone, or when the object is gone and
    /// write-back has made another one.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn conflicts(&self) -> Result<Vec<Conflict>> {
        let found = self.conflicting()?;
        let mut paths = self.paths_of(&found)?;
        Ok(found.into_iter().map(|ino| Conflict { ino, path: paths.remove(&ino) }).collect())
    }

    /// As [`conflicts`](Self::conflicts), without the paths.
    pub(crate) fn conflicting(&self) -> Result<BTreeSet<Ino>> {
        let known = lock(&self.changes.conflicts).clone();
        for ino in known {
            self.try_look(ino, false);
            let kind = self.pool().getattr(ino).map(|attr| attr.kind);
            // A clash of names can concern a directory that is clean.
            if let Ok(kind) = kind
                && kind != FileKind::Dir
                && self.is_clean(ino, kind)?
            {
                self.clear_conflict(ino);
            }
        }
        Ok(lock(&self.changes.conflicts).clone())
    }

    /// Finds a path of each of these inodes among the names that are loaded.
    pub(crate) fn paths_of(&self, wanted: &BTreeSet<Ino>) -> Result<BTreeMap<Ino, Vec<u8>>> {
        let mut paths = BTreeMap::new();
        if wanted.contains(&ROOT) {
            paths.insert(ROOT, Vec::new());
        }
        let mut pending = vec![(ROOT, Vec::new())];
        while let Some((dir, path)) = pending.pop() {
            if paths.len() == wanted.len() {
                break;
            }
            let listed = self.pool().each_name(dir, &mut |name, ino, kind| {
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let path = [&path, slash, name].concat();
                if wanted.contains(&ino) {
                    paths.insert(ino, path.clone());
                }
                if kind == FileKind::Dir {
                    pending.push((ino, path));
                }
            });
            match listed {
                Ok(()) | Err(Errno::STALE) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(paths)
    }

    /// Notes that an inode is in conflict with its object.
    pub(crate) fn note_conflict(&self, ino: Ino) {
        let mut conflicts = lock(&self.changes.conflicts);
        if conflicts.contains(&ino) {
            return;
        }
        tracing::warn!(ino = ino.0, "it is dirty, and its object was changed behind the cache");
        if conflicts.len() < CONFLICTS_MAX {
            conflicts.insert(ino);
        }
    }

    fn clear_conflict(&self, ino: Ino) {
        lock(&self.changes.conflicts).remove(&ino);
    }

    /// Compares an inode once more when changes are followed, or the sweep goes on.
    pub(crate) fn look_again(&self, ino: Ino) {
        lock(&self.changes.again).insert(ino);
    }

    /// Notes what the front end has to forget.
    pub(crate) fn must_forget(&self, change: Change) {
        let mut forget = lock(&self.changes.forget);
        if forget.len() >= FORGET_MAX {
            forget.clear();
            forget.push(Change::Lost);
        }
        if forget.first() != Some(&Change::Lost) {
            forget.push(change);
        }
    }

    // --- watching and sweeping ------------------------------------------------------------------

    /// Starts to watch for changes by others. Then [`follow_changes`](Self::follow_changes) has to
    /// be called all the time. With [`Watch::Permission`], so have the steps for openings, from
    /// before [`guard_loaded`](Self::guard_loaded) on.
    ///
    /// # Errors
    /// As [`Backing::watch`].
    pub fn watch(&self, how: Watch) -> Result<Reach> {
        let reach = self.backing().watch(how)?;
        self.begin_round()?;
        self.changes.has_missed.store(true, Relaxed);
        Ok(reach)
    }

    /// Waits for changes by others, at most for `limit`, and compares what has changed. Then calls
    /// `forget` for everything that the front end may have cached: with inodes of the pool, or with
    /// [`Change::Lost`] for everything.
    ///
    /// # Errors
    /// An error if changes are not reported, or no longer. Errors of single inodes are logged, and
    /// these are compared again.
    pub fn follow_changes(&self, limit: Duration, forget: &dyn Fn(&Change)) -> Result<()> {
        let mut told = std::mem::take(&mut *lock(&self.changes.again));
        let mut suspects = BTreeSet::new();
        let mut has_missed = false;
        // After a loss, the round does not wait.
        let limit = if self.changes.has_missed.load(Relaxed) { Duration::ZERO } else { limit };
        let number = |key: &[u8]| lock(&self.known).find(key);
        let waited = self.backing().wait_for_changes(limit, &number, &mut |change| match change {
            Change::Lost => has_missed = true,
            Change::Content(ino) | Change::Name(ino, _) => {
                told.insert(ino);
            }
            Change::Attributes(ino) => {
                suspects.insert(ino);
            }
        });
        told.iter().for_each(|ino| self.try_look(*ino, true));
        suspects.difference(&told).for_each(|ino| self.try_look(*ino, false));
        if has_missed {
            self.begin_round()?;
            self.changes.has_missed.store(true, Relaxed);
        }
        if self.changes.has_missed.load(Relaxed) {
            let is_over = self.compare_next(AFTER_LOSS)?;
            self.changes.has_missed.store(!is_over, Relaxed);
        }
        self.forget_all(forget);
        waited
    }

    /// Compares `budget` inodes with their objects: those that this round has not compared yet.
    /// Calls `forget` as [`follow_changes`](Self::follow_changes) does. Returns whether the round
    /// is over; the next call begins another one. All changes from before the round are seen then,
    /// whether they were reported or not.
    ///
    /// # Errors
    /// Those of the pool. Errors of single inodes are logged.
    pub fn sweep(&self, budget: usize, forget: &dyn Fn(&Change)) -> Result<bool> {
        let again = std::mem::take(&mut *lock(&self.changes.again));
        again.into_iter().for_each(|ino| self.try_look(ino, true));
        let is_begun = !lock(&self.changes.round).is_empty();
        if !is_begun {
            self.begin_round()?;
        }
        let is_over = self.compare_next(budget)?;
        self.forget_all(forget);
        Ok(is_over)
    }

    fn begin_round(&self) -> Result<()> {
        let mut all = Vec::new();
        self.each_inode(&mut |ino, residence| {
            if !residence.identity.is_empty() {
                all.push(ino);
            }
        })?;
        all.reverse();
        *lock(&self.changes.round) = all;
        Ok(())
    }

    /// Compares the next inodes of a round; returns whether none is left.
    fn compare_next(&self, budget: usize) -> Result<bool> {
        for _ in 0..budget {
            let Some(ino) = lock(&self.changes.round).pop() else { break };
            self.try_look(ino, false);
        }
        Ok(lock(&self.changes.round).is_empty())
    }

    pub(crate) fn try_look(&self, ino: Ino, is_told: bool) {
        match self.compare(ino, is_told) {
            Ok(_) | Err(Errno::STALE) => {}
            Err(e) => {
                tracing::warn!(ino = ino.0, error = %e, "cannot compare with the backing store");
                if is_told {
                    self.look_again(ino);
                }
            }
        }
    }

    /// changes-H3.
    fn forget_all(&self, forget: &dyn Fn(&Change)) {
        let changes = std::mem::take(&mut *lock(&self.changes.forget));
        changes.iter().for_each(forget);
    }
}
