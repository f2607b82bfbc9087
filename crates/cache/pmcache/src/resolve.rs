//! Conflicts that a user resolves: of an inode that is dirty and whose object others have changed
//! or removed, one side is kept.
//!
//! | what | the cache is kept | the directory is kept |
//! |---|---|---|
//! | both have changed it | all of it counts as dirty, and it gets the stamp of its object | it gets the state of its object |
//! | its object is gone, or another one has its name | the other object goes; write-back makes a new one | its names go from the pool |
//! | the names of a directory | write-back makes them below those of the pool | the pool gets those below, and keeps what only the pool has |
//!
//! - resolve-V1: the last step resolves the conflict. It stores once, durably: the stamp, the
//!   record of a reload, or the entry of a name. A crash before it leaves the conflict.
//! - resolve-V2: what the pool never had cannot be kept. If a part of what the cache is to keep is
//!   absent, the call fails with `EIO`: that part was only in an object that is another one by now,
//!   and two states are not mixed.
//! - resolve-V3: an object below that is also known under another name in the pool is not removed.

use crate::loading::Loading;
use crate::merge::MergeKeep;
use crate::objects::{Below, copy_xattrs, each_entry, has_changed, stamp};
use backing::{Backing, Change, Identity};
use vfs::{Attr, Backed, Caller, Errno, FileKind, Ino, ROOT, Residence, Result, SetAttr};

/// Attempts to resolve a conflict while write-back or programs change the inode.
const ATTEMPTS: u32 = 16;

/// The side of a conflict that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptSide {
    /// The state in the pool.
    Cache,
    /// The state of the backing store.
    Directory,
}

/// A name of an inode that is in conflict.
struct ConflictName<'a, B: Backing> {
    dir: Ino,
    name: Vec<u8>,
    /// The object of the directory, and another object that has the name there.
    other: Option<(Below<'a, B>, Below<'a, B>)>,
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Resolves the conflict of an inode by keeping one side. If that of the cache is kept, writes
    /// back.
    ///
    /// # Errors
    /// `EALREADY` if it is in no conflict; `ENOENT` if its directory is gone below, which is to be
    /// resolved first; `EIO` by resolve-V2; `EBUSY` by resolve-V3; `EAGAIN` if it changes all the
    /// time; those of the pool and of the backing store.
    pub fn resolve(&self, ino: Ino, keep: KeptSide) -> Result<()> {
        let mut done = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            done = self.resolve_once(ino, keep);
            if done != Err(Errno::AGAIN) {
                break;
            }
        }
        done?;
        self.note_resolved(ino);
        if keep == KeptSide::Cache {
            let written = self.write_back()?;
            let error = written.errors.iter().find(|(other, _)| *other == ino);
            error.map_or(Ok(()), |(_, e)| Err(*e))?;
        }
        self.try_look(ino, false);
        Ok(())
    }

    fn resolve_once(&self, ino: Ino, keep: KeptSide) -> Result<()> {
        let kind = self.pool().getattr(ino)?.kind;
        let residence = self.pool().residence(ino)?;
        let object = self.object_if_any(&residence.identity)?;
        let names = self.names_leading_to(ino, &residence)?;
        let has_changed = object.as_ref().is_some_and(|object| has_changed(&residence, &object.1));
        let is_gone = object.is_none() && !residence.identity.is_empty();
        // Something in a directory keeps its name.
        let is_dirty = is_gone && kind == FileKind::Dir || !self.is_clean(ino, kind)?;
        let is_replaced = names.iter().any(|name| name.other.is_some());
        if kind == FileKind::Dir && !is_gone && !is_replaced {
            let is_noted = self.conflicting()?.contains(&ino);
            return match (object, keep) {
                (Some(object), KeptSide::Cache) if has_changed && is_dirty || is_noted => {
                    self.keep_names(ino, &residence, &object.1)
                }
                (Some(object), KeptSide::Directory) if has_changed && is_dirty || is_noted => {
                    self.take_names(ino, &residence, &object.1)
                }
                _ => Err(Errno::ALREADY),
            };
        }
        if is_dirty && (is_gone || is_replaced) {
            return match keep {
                KeptSide::Cache => self.keep_inode(ino, is_gone || has_changed, names),
                KeptSide::Directory => self.drop_inode(ino, &residence.identity, &names),
            };
        }
        match (object, keep) {
            (Some(object), KeptSide::Cache) if has_changed && is_dirty => {
                self.keep_content(ino, &residence, &object.1)
            }
            (Some(object), KeptSide::Directory) if has_changed && is_dirty => {
                self.take_content(ino, &residence, &object)
            }
            _ => Err(Errno::ALREADY),
        }
    }

    fn object_if_any(&self, identity: &[u8]) -> Result<Option<Below<'_, B>>> {
        if identity.is_empty() {
            return Ok(None);
        }
        match self.backing().find(&Identity(identity.to_vec())) {
            Ok(found) => Ok(Some(Below(self.backing(), found))),
            Err(Errno::STALE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Finds the names of an inode in the pool, and the other objects that have them below.
    fn names_leading_to(
        &self,
        ino: Ino,
        residence: &Residence,
    ) -> Result<Vec<ConflictName<'_, B>>> {
        let (mut names, mut pending) = (Vec::new(), vec![ROOT]);
        while let Some(dir) = pending.pop() {
            let listed = self.pool().each_name(dir, &mut |name, found, kind| {
                if found == ino {
                    names.push((dir, name.to_vec()));
                }
                if kind == FileKind::Dir {
                    pending.push(found);
                }
            });
            match listed {
                Ok(()) | Err(Errno::STALE) => {}
                Err(e) => return Err(e),
            }
        }
        let mut found = Vec::new();
        for (dir, name) in names {
            let mut other = None;
            let parent = self.pool().residence(dir)?.identity;
            let found_parent = self.object_if_any(&parent)?;
            if found_parent.is_none() && !parent.is_empty() {
                return Err(Errno::NOENT);
            }
            if let Some(parent) = found_parent {
                match self.backing().lookup(parent.1.ino, &name) {
                    Ok(entry) => {
                        let entry = Below(self.backing(), entry);
                        let identity = self.backing().identity(entry.1.ino)?.0;
                        other = (identity != residence.identity).then_some((parent, entry));
                    }
                    Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
            }
            found.push(ConflictName { dir, name, other });
        }
        Ok(found)
    }

    // --- the cache is kept ----------------------------------------------------------------------

    /// Makes all of an inode dirty, and gives it the stamp of its object.
    fn keep_content(&self, ino: Ino, residence: &Residence, object: &Attr) -> Result<()> {
        let _turn = self.turn(ino);
        self.check_whole(ino, object.kind)?;
        self.pool().make_dirty(ino)?;
        // resolve-V1.
        match self.pool().note_stamp(ino, residence.stamp, stamp(object))? {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }

    /// Makes the names of a directory below those of the pool, by the next write-back.
    fn keep_names(&self, dir: Ino, residence: &Residence, object: &Attr) -> Result<()> {
        let names = self.pool().residence(dir).map(|now| !now.are_names_absent);
        if !names? {
            // A merge is under way, or was interrupted.
            self.follow_names(dir, false)?;
            return Err(Errno::AGAIN);
        }
        self.know_all(object.ino)?;
        for (child, kind) in self.names_of(dir)?.into_values() {
            let identity = self.pool().residence(child)?.identity;
            if !identity.is_empty() && self.object_if_any(&identity)?.is_none() {
                self.make_tree_dirty(child, kind)?;
            }
        }
        let _turn = self.turn(dir);
        self.pool().make_dirty(dir)?;
        // resolve-V1.
        match self.note_names(dir, residence, object)? {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }

    /// Notes that write-back may remove all that others have in the directories of an object, as
    /// far as the pool does not have these (writeback-W8).
    fn know_all(&self, object: Ino) -> Result<()> {
        each_entry(self.backing(), object, |_, inside| {
            if inside.1.kind != FileKind::Dir {
                return Ok(());
            }
            let Identity(identity) = self.backing().identity(inside.1.ino)?;
            if self.inode_of(&identity)?.is_none() {
                self.names_below.note_stamp(&identity, stamp(&inside.1));
                self.know_all(inside.1.ino)?;
            }
            Ok(())
        })
    }

    /// Keeps an inode whose object is gone, or whose names other objects have. With `is_all`, parts
    /// of it that are absent cannot be loaded any more.
    fn keep_inode(&self, ino: Ino, is_all: bool, names: Vec<ConflictName<'_, B>>) -> Result<()> {
        for (_, other) in names.iter().filter_map(|name| name.other.as_ref()) {
            self.check_unknown(other)?;
        }
        if is_all {
            let kind = self.pool().getattr(ino)?.kind;
            self.make_tree_dirty(ino, kind)?;
        }
        for ConflictName { dir, name, other } in names {
            if let Some((parent, other)) = other {
                self.remove_below(parent.1.ino, &name, &other)?;
            }
            // It follows its object first: what others have added there stays.
            self.try_look(dir, false);
            if self.pool().residence(dir)?.is_clean {
                self.pool().make_dirty(dir)?;
            }
        }
        Ok(())
    }

    /// Makes an inode dirty, with everything in it (resolve-V2).
    fn make_tree_dirty(&self, ino: Ino, kind: FileKind) -> Result<()> {
        let mut all = vec![(ino, kind)];
        let mut next = 0;
        while let Some((ino, kind)) = all.get(next).copied() {
            next += 1;
            self.check_whole(ino, kind)?;
            if kind == FileKind::Dir {
                all.extend(self.names_of(ino)?.into_values());
            }
        }
        all.into_iter().try_for_each(|(ino, _)| self.pool().make_dirty(ino))
    }

    /// resolve-V2.
    fn check_whole(&self, ino: Ino, kind: FileKind) -> Result<()> {
        let is_whole = match kind {
            FileKind::File => self.pool().absent_range(ino, 0)?.is_none(),
            FileKind::Dir => !self.pool().residence(ino)?.are_names_absent,
            _ => true,
        };
        if is_whole { Ok(()) } else { Err(Errno::IO) }
    }

    /// resolve-V3.
    fn check_unknown(&self, object: &Below<'_, B>) -> Result<()> {
        let Identity(identity) = self.backing().identity(object.1.ino)?;
        let known = self.known_inode(&crate::lock(&self.known), &identity);
        if known.is_some() {
            return Err(Errno::BUSY);
        }
        if object.1.kind == FileKind::Dir {
            each_entry(self.backing(), object.1.ino, |_, inside| self.check_unknown(inside))?;
        }
        Ok(())
    }

    /// Removes an object below, with everything in it.
    fn remove_below(&self, parent: Ino, name: &[u8], object: &Below<'_, B>) -> Result<()> {
        let removed = if object.1.kind == FileKind::Dir {
            let dir = object.1.ino;
            each_entry(self.backing(), dir, |name, inside| self.remove_below(dir, name, inside))?;
            self.backing().rmdir(parent, name)
        } else {
            self.backing().unlink(parent, name)
        };
        removed.or_else(|e| if e == Errno::NOENT { Ok(()) } else { Err(e) })
    }

    // --- the directory is kept ------------------------------------------------------------------

    /// Gives an inode the state of its object.
    fn take_content(&self, ino: Ino, residence: &Residence, object: &Below<'_, B>) -> Result<()> {
        let _turn = self.turn(ino);
        let parts = crate::objects::ObjectParts::of(self.backing(), &object.1)?;
        let loaded = parts.loaded(&object.1, &residence.identity);
        // resolve-V1.
        if !self.pool().replace(ino, &loaded, residence.stamp)? {
            return Err(Errno::AGAIN);
        }
        self.note_renewed(ino, object.1.kind, residence);
        Ok(())
    }

    /// Removes all names of an inode from the pool. Objects that have these names below are loaded.
    fn drop_inode(&self, ino: Ino, identity: &[u8], names: &[ConflictName<'_, B>]) -> Result<()> {
        for ConflictName { dir, name, .. } in names {
            // resolve-V1, for each name.
            self.follow_names_forced(*dir, &MergeKeep::AllBut(ino))?;
            // The object that has the name below may have got the same number.
            let is_left = self.pool().peek(*dir, name).is_ok_and(|attr| attr.ino == ino)
                && self.is_inode_of(ino, identity);
            if is_left {
                return Err(Errno::AGAIN);
            }
        }
        Ok(())
    }

    /// Gives a directory the names and attributes of its object. Names of what only the pool has
    /// stay, so the directory may be dirty still.
    fn take_names(&self, dir: Ino, residence: &Residence, object: &Attr) -> Result<()> {
        if residence.is_busy {
            return Err(Errno::AGAIN);
        }
        // merge-M1: the object's state was read before its names.
        self.follow_names_forced(dir, &MergeKeep::New)?;
        let _turn = self.turn(dir);
        let now = self.pool().residence(dir)?;
        if now.are_names_absent {
            return Err(Errno::AGAIN);
        }
        if now.stamp != residence.stamp || !has_changed(&now, object) {
            return Ok(());
        }
        copy_xattrs((self.backing(), object.ino), (self.pool(), dir))?;
        let Attr { perm, uid, gid, .. } = *object;
        let set =
            SetAttr { perm: Some(perm), uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.pool().setattr(&Caller::ROOT, dir, &set)?;
        self.must_forget(Change::Attributes(dir));
        // resolve-V1.
        match self.note_names(dir, residence, object)? {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }
}
