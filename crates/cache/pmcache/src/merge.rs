//! Names of directories that others change below.
//!
//! A directory follows its object by a merge, which is also how its names are loaded. Meanwhile its
//! names count as absent, so no call changes them. Names that the backing store does not have any
//! more go, if their inodes are clean; names that it has are loaded. A crash leaves a directory
//! that has its old stamp, and the next comparison merges again (backed-B6).
//!
//! - merge-M1: a directory gets the stamp of its object that was read before the names were listed.
//!   So a change meanwhile is seen by the next comparison.
//! - merge-M2: what is dirty keeps its name. If the backing store has nothing of that name, the
//!   directory is dirty, and write-back brings the name there. If it has another object of that
//!   name, both stay where they are, and the inode is a conflict.
//! - merge-M3: no thread waits for the turn of one inode while it has the turn of another.
//!
//! The names of a directory that is dirty, and whose object others have changed, are not merged.
//! There, names that others added look like names that were removed in the pool. If all names below
//! are also in the pool, and nothing else is unclear, the directory gets the stamp and stays dirty.
//! Otherwise it is a conflict.

use crate::loading::Loading;
use crate::names_below::KnownNames;
use crate::objects::{Below, ObjectParts, each_entry, has_changed, stamp, xattrs};
use crate::writeback::PRIVATE;
use backing::{Backing, Change, Identity};
use std::collections::{BTreeMap, BTreeSet};
use vfs::{Attr, Backed, Errno, FileKind, Ino, Residence, Result};

/// The names of a directory in the pool.
type Names = BTreeMap<Vec<u8>, (Ino, FileKind)>;

/// The names of the pool that a merge keeps although the backing store differs.
pub(crate) enum MergeKeep {
    /// Those of what is dirty (merge-M2).
    Dirty,
    /// These, except those of one inode.
    AllBut(Ino),
    /// These, except names that have another object below.
    New,
}

impl MergeKeep {
    /// Whether the name of an inode goes, dirty or not, if another object has it below.
    fn drops_replaced(&self, ino: Ino) -> bool {
        matches!(self, Self::New) || self.drops_removed(ino)
    }

    /// Whether the name of an inode goes, dirty or not, if no object has it below.
    fn drops_removed(&self, ino: Ino) -> bool {
        matches!(self, Self::AllBut(other) if *other == ino)
    }
}

/// The result of a merge.
#[derive(Default)]
struct Merged {
    /// The result of [`Loading::follow_names`].
    is_settled: bool,
    /// Files whose objects were changed, too; and with `true` those that lost a name, so that the
    /// number of their absent names may be another one.
    suspects: Vec<(Ino, bool)>,
    /// Directories that others moved into this one, and that have another name in the pool. The
    /// names of the directory are still absent if there are any and the merge was not the last.
    elsewhere: Vec<Ino>,
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Makes the names of a directory those of its object, if they are absent, or with `begins` in
    /// any case. The caller has no turn. Returns whether the directory has the state of its object
    /// now, or only differs by its own changes.
    pub(crate) fn follow_names(&self, dir: Ino, begins: bool) -> Result<bool> {
        let merged = self.merge_once(dir, begins, false, &MergeKeep::Dirty)?;
        if merged.elsewhere.is_empty() {
            return Ok(merged.is_settled);
        }
        // Directories lose those names that others have moved.
        for moved in &merged.elsewhere {
            if let Ok(parent) = self.pool().lookup(*moved, b"..") {
                self.pool().forget(parent.ino, 1);
                if parent.ino != dir {
                    self.merge_once(parent.ino, true, false, &MergeKeep::Dirty)?;
                    self.merge_once(parent.ino, false, true, &MergeKeep::Dirty)?;
                }
            }
        }
        Ok(self.merge_once(dir, false, true, &MergeKeep::Dirty)?.is_settled)
    }

    /// Makes the names of a directory those of its object, though some of the pool's are dirty, as
    /// `keep` decides. The caller has no turn.
    pub(crate) fn follow_names_forced(&self, dir: Ino, keep: &MergeKeep) -> Result<()> {
        self.merge_once(dir, true, true, keep).map(drop)
    }

    fn merge_once(
        &self,
        dir: Ino,
        begins: bool,
        is_last: bool,
        keep: &MergeKeep,
    ) -> Result<Merged> {
        // merge-M3.
        let turn = self.turn(dir);
        let residence = match self.pool().residence(dir) {
            Err(Errno::STALE) => return Ok(Merged::default()),
            residence => residence?,
        };
        if !residence.are_names_absent {
            let is_forced = !matches!(keep, MergeKeep::Dirty);
            if !begins || residence.is_busy || !residence.is_clean && !is_forced {
                return Ok(Merged::default());
            }
            self.pool().begin_names(dir)?;
        }
        let merged = self.any_object_of(dir).and_then(|(now, below)| match keep {
            // A merge would bring back what was removed in the pool.
            MergeKeep::AllBut(ino) if !now.is_clean => self.drop_names(dir, *ino, &below),
            _ => self.merge(dir, &now, &below, is_last, keep),
        });
        let is_over = merged.is_err() || matches!(keep, MergeKeep::AllBut(_));
        if is_over && !residence.are_names_absent {
            // They were there before, and what was merged is right.
            self.pool().finish_names(dir)?;
        }
        drop(turn);
        let merged = merged?;
        merged.suspects.iter().for_each(|(ino, is_told)| self.try_look(*ino, *is_told));
        Ok(merged)
    }

    /// Merges the names of a directory that are absent, and ends that.
    fn merge(
        &self,
        dir: Ino,
        residence: &Residence,
        below: &Below<'_, B>,
        is_last: bool,
        keep: &MergeKeep,
    ) -> Result<Merged> {
        // permits-W3.
        self.backing().guard_names(below.1.ino)?;
        // merge-M1.
        let object = &below.1;
        let mut merged = Merged::default();
        let mut here = self.names_of(dir)?;
        let is_first = here.is_empty();
        let mut has_clash = false;
        let mut known = KnownNames::new();
        let changed = |name: &[u8]| {
            if !is_first {
                self.must_forget(Change::Name(dir, name.to_vec()));
            }
        };
        each_entry(self.backing(), object.ino, |name, entry| {
            let Identity(identity) = self.backing().identity(entry.1.ino)?;
            if self.is_private(name, &identity) {
                return Ok(());
            }
            if residence.is_busy {
                known.insert(name.to_vec(), Identity(identity.clone()));
            }
            if let Some((ino, kind)) = here.remove(name) {
                let residence = self.pool().residence(ino).unwrap_or_default();
                if residence.identity == identity {
                    let is_suspect = kind != FileKind::Dir && has_changed(&residence, &entry.1);
                    merged.suspects.extend(is_suspect.then_some((ino, false)));
                    return Ok(());
                }
                let drops = keep.drops_replaced(ino);
                if !self.unload((dir, name), ino, kind, &mut merged.suspects, drops)? {
                    // merge-M2.
                    has_clash = true;
                    self.note_conflict(ino);
                    return Ok(());
                }
            }
            changed(name);
            let elsewhere = self.load_entry(dir, name, entry, &identity)?;
            merged.elsewhere.extend(elsewhere);
            Ok(())
        })?;
        if residence.is_busy {
            // Write-back has begun to change the object when no names were here.
            self.names_below.remember(residence.identity.clone(), known);
        }
        let mut has_kept = false;
        for (name, (ino, kind)) in here {
            let drops = keep.drops_removed(ino);
            if self.unload((dir, &name), ino, kind, &mut merged.suspects, drops)? {
                changed(&name);
            } else {
                has_kept = true;
                self.note_conflict(ino);
            }
        }
        if !merged.elsewhere.is_empty() {
            if !is_last {
                return Ok(merged);
            }
            merged.elsewhere.iter().for_each(|ino| self.note_conflict(*ino));
        }
        if has_kept {
            self.pool().make_dirty(dir)?;
        }
        let is_whole = !has_clash && merged.elsewhere.is_empty();
        merged.is_settled = is_whole && self.settle(dir, residence, object)?;
        if !merged.is_settled {
            self.note_conflict(dir);
            if !has_changed(residence, object) {
                // No stamp shows it.
                self.look_again(dir);
            }
        }
        self.pool().finish_names(dir)?;
        Ok(merged)
    }

    /// Removes the names of one inode from a directory whose names are absent, and loads what has
    /// them below.
    fn drop_names(&self, dir: Ino, ino: Ino, below: &Below<'_, B>) -> Result<Merged> {
        let mut merged = Merged::default();
        for (name, (found, kind)) in self.names_of(dir)? {
            if found != ino || !self.unload((dir, &name), ino, kind, &mut merged.suspects, true)? {
                continue;
            }
            self.must_forget(Change::Name(dir, name.clone()));
            match self.backing().lookup(below.1.ino, &name) {
                Ok(entry) => {
                    let entry = Below(self.backing(), entry);
                    let Identity(identity) = self.backing().identity(entry.1.ino)?;
                    // A directory that has a name elsewhere is found by a comparison.
                    self.load_entry(dir, &name, &entry, &identity)?;
                }
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(merged)
    }

    /// Gives a directory the attributes and the stamp of its object, whose names it has. Returns
    /// whether it has them, or differs only by its own changes.
    fn settle(&self, dir: Ino, residence: &Residence, object: &Attr) -> Result<bool> {
        if !has_changed(residence, object) {
            return Ok(true);
        }
        let parts = ObjectParts::of(self.backing(), object)?;
        let loaded = parts.loaded(object, &residence.identity);
        if self.pool().reload(dir, &loaded, residence.stamp)? {
            self.names_below.note_stamp(&residence.identity, stamp(object));
            self.must_forget(Change::Attributes(dir));
            return Ok(true);
        }
        self.settle_dirty(dir, residence, object)
    }

    /// Gives a dirty directory the stamp of its object, if their attributes are equal.
    fn settle_dirty(&self, dir: Ino, residence: &Residence, object: &Attr) -> Result<bool> {
        let of = |attr: &Attr| (attr.perm, attr.uid, attr.gid);
        let is_same = of(&self.pool().getattr(dir)?) == of(object)
            && sorted(xattrs(self.pool(), dir)?) == sorted(xattrs(self.backing(), object.ino)?);
        Ok(is_same && self.note_names(dir, residence, object)?)
    }

    /// Gives a dirty directory the stamp of its object, unless it has another one than before.
    pub(crate) fn note_names(
        &self,
        dir: Ino,
        residence: &Residence,
        object: &Attr,
    ) -> Result<bool> {
        let is_noted = self.pool().note_stamp(dir, residence.stamp, stamp(object))?;
        if is_noted {
            self.names_below.note_stamp(&residence.identity, stamp(object));
        }
        Ok(is_noted)
    }

    /// Compares a dirty directory, whose object others have changed. Returns whether it differs
    /// only by its own changes.
    pub(crate) fn settle_names(
        &self,
        dir: Ino,
        residence: &Residence,
        below: &Below<'_, B>,
    ) -> Result<bool> {
        let mut here = self.names_of(dir)?;
        let mut is_clear = true;
        each_entry(self.backing(), below.1.ino, |name, entry| {
            let Identity(identity) = self.backing().identity(entry.1.ino)?;
            let found = here.remove(name);
            is_clear &= self.is_private(name, &identity)
                || found.is_some_and(|(ino, _)| self.is_inode_of(ino, &identity));
            Ok(())
        })?;
        // A clean inode was under its name below.
        let is_ours = |ino: Ino| self.pool().residence(ino).is_ok_and(|r| !r.is_clean);
        is_clear &= here.values().all(|(ino, _)| is_ours(*ino));
        Ok(is_clear && self.settle_dirty(dir, residence, &below.1)?)
    }

    /// Whether write-back has given this name to an object of the pool.
    fn is_private(&self, name: &[u8], identity: &[u8]) -> bool {
        name.starts_with(PRIVATE) && self.known_inode(&crate::lock(&self.known), identity).is_some()
    }

    pub(crate) fn names_of(&self, dir: Ino) -> Result<Names> {
        let mut names = Names::new();
        self.pool().each_name(dir, &mut |name, ino, kind| {
            names.insert(name.to_vec(), (ino, kind));
        })?;
        Ok(names)
    }

    /// Removes a name that the backing store does not have from a directory whose names are absent,
    /// with everything in it. Returns whether all of that is clean; otherwise it stays, unless the
    /// call `drops` it. Adds the files that have lost a name to `unlinked`.
    fn unload(
        &self,
        (dir, name): (Ino, &[u8]),
        ino: Ino,
        kind: FileKind,
        unlinked: &mut Vec<(Ino, bool)>,
        drops: bool,
    ) -> Result<bool> {
        let unload_name = |dir, name: &[u8], ino| match drops {
            true => self.pool().drop_name(dir, name, ino),
            false => self.pool().unload_name(dir, name, ino),
        };
        if kind != FileKind::Dir {
            unlinked.push((ino, true));
            return unload_name(dir, name, ino);
        }
        let mut inside = vec![(dir, name.to_vec(), ino, kind)];
        let mut next = 0;
        while let Some((_, _, ino, kind)) = inside.get(next).cloned() {
            next += 1;
            if !drops && !self.is_clean(ino, kind)? {
                self.note_conflict(ino);
                return Ok(false);
            }
            if kind == FileKind::Dir {
                let names = self.names_of(ino)?.into_iter();
                inside.extend(names.map(|(name, (child, kind))| (ino, name, child, kind)));
            }
        }
        // Names in a directory come after it.
        let mut begun = BTreeSet::new();
        for (parent, name, ino, kind) in inside.into_iter().rev() {
            if parent != dir && begun.insert(parent) {
                self.pool().begin_names(parent)?;
            }
            unlinked.extend((kind != FileKind::Dir).then_some((ino, true)));
            if !unload_name(parent, &name, ino)? {
                // It has become dirty just now. The directories keep what is left.
                self.note_conflict(ino);
                for dir in begun {
                    match self.pool().finish_names(dir) {
                        Ok(()) | Err(Errno::STALE) => {}
                        Err(e) => return Err(e),
                    }
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the backing store has all of an inode, as far as the pool tells.
    pub(crate) fn is_clean(&self, ino: Ino, kind: FileKind) -> Result<bool> {
        let has_dirty = kind == FileKind::File && self.pool().dirty_range(ino, 0)?.is_some();
        Ok(!has_dirty && self.pool().residence(ino)?.is_clean)
    }
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}
