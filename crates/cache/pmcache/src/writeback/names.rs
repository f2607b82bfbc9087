//! Names: makes those in objects of directories equal to those in the pool.
//!
//! Only names that the pool has had below are replaced or removed (writeback-W8). Before a call
//! changes a name, the pass looks at what has it now.

use super::{PRIVATE, Pass};
use crate::names_below::{KnownNames, busy_mark, is_before, is_before_mark};
use crate::objects::{Below, each_entry, has_changed, stamp};
use crate::pass::{Dir, Extra, NAMES_MAX, NameBelow};
use backing::{Backing, Identity};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Attr, Backed, Errno, FileKind, Ino, ROOT, RenameFlags, Residence, Result, Timestamp};

/// The names in an object that the pool has had there.
pub(super) struct KnownBelow {
    /// The identity of the object.
    pub identity: Vec<u8>,
    pub names: KnownNames,
}

/// Whether write-back gives objects such names.
fn is_private(name: &[u8]) -> bool {
    name.strip_prefix(PRIVATE)
        .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_hexdigit))
}

impl<P: Backed, B: Backing> Pass<'_, P, B> {
    // --- what the pool has had ------------------------------------------------------------------

    /// Lists the object of a directory that is about to become busy, or is. Returns whether its
    /// stamp covers all names in it, or the pass knows the names that the pool has had.
    pub(super) fn learn_names(&mut self, object: Ino, residence: &Residence) -> Result<bool> {
        let Residence { stamp: known, is_busy, .. } = *residence;
        let is_known = |now: &Attr| known != 0 && stamp(now) == known;
        let is_old = |time| is_busy && known != 0 && is_before_mark(known, time);
        self.learn(object, &residence.identity, is_busy, &is_known, &is_old)
    }

    /// As [`learn_names`](Self::learn_names). `is_known` tells whether the pool has had all names
    /// of the object in this state; otherwise, `is_old` tells whether it has had a name of an
    /// object that was changed at this time.
    fn learn(
        &mut self,
        object: Ino,
        identity: &[u8],
        is_busy: bool,
        is_known: &dyn Fn(&Attr) -> bool,
        is_old: &dyn Fn(Timestamp) -> bool,
    ) -> Result<bool> {
        if self.known.contains_key(&object) {
            return Ok(true);
        }
        let (mut listed, mut old) = (BTreeMap::new(), KnownNames::new());
        each_entry(self.backing, object, |name, Below(backing, entry)| {
            let identity = backing.identity(entry.ino)?;
            if is_old(entry.ctime) {
                old.insert(name.to_vec(), identity.clone());
            }
            listed.insert(name.to_vec(), (identity, entry.kind));
            Ok(())
        })?;
        let remembered = self.loading.names_below.take(identity).filter(|_| is_busy);
        let is_whole = remembered.is_none() && is_known(&self.backing.getattr(object)?);
        let is_sure = is_whole || remembered.is_some();
        let names = match remembered {
            Some(names) => names,
            None if is_whole => {
                listed.iter().map(|(name, (of, _))| (name.clone(), of.clone())).collect()
            }
            // A server ended within a pass.
            None => old,
        };
        self.known.insert(object, KnownBelow { identity: identity.to_vec(), names });
        self.below.insert(object, listed);
        Ok(is_sure)
    }

    /// Whether the pool has had an object under this name.
    fn has_had(&self, dir: Ino, name: &[u8], identity: &Identity) -> bool {
        self.known.get(&dir).is_some_and(|known| known.names.get(name) == Some(identity))
    }

    /// Notes that an object has got a name.
    pub(super) fn note_name(
        &mut self,
        (dir, name): (Ino, &[u8]),
        identity: &Identity,
        kind: FileKind,
    ) {
        if let Some(known) = self.known.get_mut(&dir) {
            known.names.insert(name.to_vec(), identity.clone());
            self.below.entry(dir).or_default().insert(name.to_vec(), (identity.clone(), kind));
        }
    }

    /// Notes that nothing has a name any more.
    fn note_no_name(&mut self, (dir, name): (Ino, &[u8])) {
        if let Some(known) = self.known.get_mut(&dir) {
            known.names.remove(name);
        }
        if let Some(names) = self.below.get_mut(&dir) {
            names.remove(name);
        }
    }

    /// Returns what has a name now.
    fn look(&self, dir: Ino, name: &[u8]) -> Result<Option<(Identity, FileKind)>> {
        match self.backing.lookup(dir, name) {
            Ok(entry) => {
                let found = Below(self.backing, entry);
                Ok(Some((self.backing.identity(found.1.ino)?, found.1.kind)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether an object has a name still.
    fn has_still(&self, (dir, name): (Ino, &[u8]), identity: &Identity) -> Result<bool> {
        Ok(self.look(dir, name)?.is_some_and(|(found, _)| found == *identity))
    }

    /// Finds the names in the object of a directory that the pool does not have, and those in all
    /// directories that were removed in the pool.
    pub(super) fn find_extras(&mut self, dir: &Dir) -> Result<()> {
        let object = self.object(dir.ino)?;
        // Its names may have been loaded since it became busy, which noted them.
        let identity = self.pool.residence(dir.ino)?.identity;
        self.learn(object, &identity, true, &|_| false, &|_| false)?;
        let removed_at = self.pool.getattr(dir.ino)?.ctime;
        let mut pending = self.extras_in(object, |name| !dir.names.contains_key(name));
        while let Some(extra) = pending.pop() {
            if extra.kind == FileKind::Dir && extra.is_known && !self.has_inode(&extra.identity)? {
                let inside = Below(self.backing, self.backing.find(&extra.identity)?);
                let identity = &extra.identity.0;
                let known = self.loading.names_below.stamp_of(identity);
                let is_known = |now: &Attr| known == Some(stamp(now));
                let is_old = |time| known.is_none() && is_before(removed_at, time);
                self.learn(inside.1.ino, identity, true, &is_known, &is_old)?;
                pending.extend(self.extras_in(inside.1.ino, |_| true));
                self.held_below.push(inside);
            }
            self.extras.push(extra);
        }
        Ok(())
    }

    fn extras_in(&self, dir: Ino, is_extra: impl Fn(&[u8]) -> bool) -> Vec<Extra> {
        let listed = self.below.get(&dir).into_iter().flatten();
        let extra = |(name, (identity, kind)): (&Vec<u8>, &(Identity, FileKind))| Extra {
            place: (dir, name.clone()),
            identity: identity.clone(),
            kind: *kind,
            is_known: is_private(name) || self.has_had(dir, name, identity),
        };
        listed.filter(|(name, _)| is_extra(name)).map(extra).collect()
    }

    /// Whether an object has an inode with a name.
    fn has_inode(&self, identity: &Identity) -> Result<bool> {
        Ok(self.inode_of(identity)?.is_some_and(|ino| self.has_name(ino)))
    }

    /// Whether the object of a directory has the names that the pass has compared. If not, others
    /// have changed them meanwhile.
    pub(super) fn has_compared_names(&self, dir: Ino, object: Ino) -> Result<bool> {
        match self.compared.get(&dir) {
            Some(names) => {
                let found = vfs::names_in(self.backing, object)?;
                Ok(BTreeSet::from_iter(found) == *names)
            }
            None => Ok(true),
        }
    }

    // --- changes --------------------------------------------------------------------------------

    /// Notes that an object is about to get or lose a name, which changes it (writeback-W6).
    /// Returns `false` if others have changed it (writeback-W5): its names stay.
    fn note_renamed(&mut self, identity: &Identity) -> Result<bool> {
        if let Some(ino) = self.inode_of(identity)?
            && !self.begin_unchanged(ino, &identity.0)?
        {
            return Ok(false);
        }
        self.renamed.insert(identity.0.clone());
        Ok(true)
    }

    /// Returns the inode of an object, whether it has a name or not.
    fn inode_of(&self, identity: &Identity) -> Result<Option<Ino>> {
        self.loading.inode_of(&identity.0)
    }

    /// Makes an inode busy, if this is its object. Returns `false` if others have changed that.
    pub(super) fn begin_unchanged(&mut self, ino: Ino, identity: &[u8]) -> Result<bool> {
        let residence = match self.pool.residence(ino) {
            Ok(residence) if residence.identity == identity && !residence.is_busy => residence,
            Ok(_) | Err(Errno::STALE) => return Ok(true),
            Err(e) => return Err(e),
        };
        let object = match self.backing.find(&Identity(identity.to_vec())) {
            Ok(entry) => Below(self.backing, entry),
            Err(Errno::STALE) => return self.begin_again(ino, identity).map(|()| true),
            Err(e) => return Err(e),
        };
        let has_names = object.1.kind == FileKind::Dir && !residence.are_names_absent;
        let mut is_changed = has_changed(&residence, &object.1);
        let mark = busy_mark();
        if !is_changed && has_names {
            is_changed = !self.learn_names(object.1.ino, &residence)?;
        }
        self.held_below.push(object);
        if is_changed {
            if residence.is_clean {
                self.loading.look_again(ino);
            } else {
                self.note_conflict(ino);
            }
            return Ok(false);
        }
        if has_names {
            self.pool.begin_names_back(ino, mark)?;
        }
        self.begin_again(ino, identity).map(|()| true)
    }

    /// Notes that the object with this identity changes, if it is still that of the inode.
    pub(super) fn begin_again(&self, ino: Ino, identity: &[u8]) -> Result<()> {
        let begun = self.pool.residence(ino).and_then(|residence| {
            let is_other = residence.identity != identity || residence.is_busy;
            if is_other { Ok(()) } else { self.pool.begin_write_back(ino) }
        });
        begun.or_else(|e| if e == Errno::STALE { Ok(()) } else { Err(e) })
    }

    /// Leaves an inode as it is: others have changed its object, or have another one of its name.
    pub(super) fn note_conflict(&mut self, ino: Ino) {
        self.failed.insert(ino);
        if !self.written.conflicts.contains(&ino) {
            self.written.conflicts.push(ino);
        }
    }

    /// Notes that others have given a name to an object, which an inode of the pool has.
    fn note_clash(&mut self, dir: Ino, ino: Ino) -> Result<()> {
        if self.pool.residence(ino)?.is_clean {
            self.pool.make_dirty(ino)?;
        }
        self.loading.note_conflict(ino);
        self.note_conflict(ino);
        self.wait(dir)
    }

    /// Gives an object one of its names, if another object that the pool had there, or none has it.
    pub(super) fn place(
        &mut self,
        (dir_ino, name): (Ino, &[u8]),
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        let identity = Identity(match self.pool.residence(ino) {
            Ok(residence) => residence.identity,
            // It is gone: a later pass removes the name.
            Err(Errno::STALE) => return self.wait(dir_ino),
            Err(e) => return Err(e),
        });
        let dir = self.object(dir_ino)?;
        let listed = self.below.get(&dir).and_then(|names| names.get(name));
        if listed.is_some_and(|(found, _)| *found == identity) {
            self.note_name((dir, name), &identity, kind);
            return Ok(());
        }
        if identity.0.is_empty() || self.failed.contains(&ino) {
            return self.wait(dir_ino);
        }
        let found = self.look(dir, name)?;
        if let Some((found, _)) = &found {
            if *found == identity {
                self.note_name((dir, name), &identity, kind);
                return Ok(());
            }
            // writeback-W8.
            if !self.has_had(dir, name, found) {
                return self.note_clash(dir_ino, ino);
            }
        }
        if !self.note_renamed(&identity)? {
            return self.wait(dir_ino);
        }
        let mut is_free = found.is_none();
        if let Some((found, found_kind)) = found {
            is_free = found_kind == FileKind::Dir || kind == FileKind::Dir;
            if !self.note_renamed(&found)? {
                return self.wait(dir_ino);
            }
            self.move_aside((dir, name), found, found_kind, is_free)?;
        }
        match self.move_to((dir, name), ino, &identity, kind, is_free) {
            Ok(true) => self.note_name((dir, name), &identity, kind),
            // Another directory has to be moved first, or others have moved the object.
            Ok(false) => return self.wait(dir_ino),
            Err(Errno::EXIST) => return self.note_clash(dir_ino, ino),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Gives an object a name that is free, or that an object has which may lose it. Returns
    /// `false` if that has to wait.
    fn move_to(
        &mut self,
        to: (Ino, &[u8]),
        ino: Ino,
        identity: &Identity,
        kind: FileKind,
        is_free: bool,
    ) -> Result<bool> {
        let extra = match self.extras.take(identity) {
            Some(extra) => extra,
            // It lies where another directory has to be.
            None if kind == FileKind::Dir => {
                let Some(place) = self.find_below(identity) else { return Ok(false) };
                Extra { place, identity: identity.clone(), kind, is_known: true }
            }
            None => {
                let object = self.object(ino)?;
                if is_free {
                    return self.link(object, to.0, to.1).map(|()| true);
                }
                let link = |private: &[u8]| self.link(object, to.0, private);
                let place = (to.0, self.with_private_name(link)?.0);
                Extra { place, identity: identity.clone(), kind, is_known: true }
            }
        };
        let from = (extra.place.0, &extra.place.1[..]);
        let renamed = match self.has_still(from, identity) {
            Ok(false) => return Ok(false),
            Ok(true) => self.rename(&extra.place, to, is_free),
            Err(e) => Err(e),
        };
        match renamed {
            Ok(()) => self.note_no_name(from),
            Err(_) => self.extras.push(extra),
        }
        renamed.map(|()| true)
    }

    /// Renames an object to a name that is free, or replaces what has it.
    fn rename(&self, from: &NameBelow, to: (Ino, &[u8]), is_free: bool) -> Result<()> {
        let from = (from.0, &from.1[..]);
        if is_free {
            match self.backing.rename(from, to, RenameFlags::NOREPLACE) {
                // Not every file system has it. Just now, the name was free.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
                renamed => return renamed,
            }
        }
        self.backing.rename(from, to, RenameFlags::empty())
    }

    /// Gives an object another name.
    fn link(&self, object: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.backing.link(object, dir, name).map(|entry| self.backing.forget(entry.ino, 1))
    }

    /// Makes something with a private name that is free. Returns the name, too.
    pub(super) fn with_private_name<T>(
        &self,
        make: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<(Vec<u8>, T)> {
        for _ in 0..NAMES_MAX {
            let number = self.next_private.fetch_add(1, Relaxed);
            let name = [PRIVATE, format!("{number:x}").as_bytes()].concat();
            match make(&name) {
                Err(Errno::EXIST) => {}
                made => return Ok((name, made?)),
            }
        }
        Err(Errno::EXIST)
    }

    /// Keeps an object whose name another one gets: under a private name as well, if the pool has
    /// the object; by a rename, if the other cannot replace it.
    fn move_aside(
        &mut self,
        (dir, name): (Ino, &[u8]),
        identity: Identity,
        kind: FileKind,
        must_go: bool,
    ) -> Result<()> {
        let backing = self.backing;
        let private = if must_go {
            let rename = |private: &[u8]| {
                backing.rename((dir, name), (dir, private), RenameFlags::NOREPLACE)
            };
            let private = self.with_private_name(rename)?.0;
            self.note_no_name((dir, name));
            private
        } else if self.inode_of(&identity)?.is_some() {
            let object = Below(backing, backing.find(&identity)?);
            self.with_private_name(|private| self.link(object.1.ino, dir, private))?.0
        } else {
            return Ok(());
        };
        self.extras.push(Extra { place: (dir, private), identity, kind, is_known: true });
        Ok(())
    }

    /// Returns a name below of an object.
    fn find_below(&self, identity: &Identity) -> Option<NameBelow> {
        self.below.iter().find_map(|(dir, names)| {
            let found = names.iter().find(|(_, (found, _))| found == identity);
            found.map(|(name, _)| (*dir, name.clone()))
        })
    }

    /// Removes names below that the pool has had and does not have any more (writeback-W4).
    pub(super) fn remove_extras(&mut self) {
        let extras: Vec<Extra> =
            std::mem::take(&mut self.extras).list.into_iter().flatten().collect();
        // Entries of a directory came after it.
        for extra in extras.into_iter().rev().filter(|extra| extra.is_known) {
            match self.remove_extra(&extra) {
                Ok(()) => self.note_no_name((extra.place.0, &extra.place.1)),
                Err(Errno::NOENT) => {}
                // Names of others are in it, so it stays with these, and the pool gets it again.
                Err(Errno::NOTEMPTY) if self.has_held || self.is_nothing_left() => {}
                // Directories with such names are compared again.
                Err(Errno::BUSY | Errno::NOTEMPTY) => _ = self.wait_for_extras(),
                Err(e) => {
                    self.wait_for_extras();
                    self.written.errors.push((ROOT, e));
                }
            }
        }
    }

    /// Whether no name has to wait for a later pass.
    fn is_nothing_left(&self) -> bool {
        self.waiting.is_empty() && self.failed.is_empty()
    }

    fn remove_extra(&mut self, extra: &Extra) -> Result<()> {
        let Extra { place: (dir, name), identity, kind, .. } = extra;
        let owner = self.inode_of(identity)?;
        if !self.has_still((*dir, name), identity)? {
            return Err(Errno::NOENT);
        }
        if !self.note_renamed(identity)? {
            return Err(Errno::BUSY);
        }
        match (kind, owner) {
            (FileKind::Dir, Some(ino)) if self.has_name(ino) => Err(Errno::BUSY),
            (FileKind::Dir, _) => {
                self.backing.rmdir(*dir, name)?;
                self.known.retain(|_, known| known.identity != identity.0);
                Ok(())
            }
            (_, Some(ino)) if self.links(identity)? < 2 => {
                let has_name = self.has_name(ino);
                self.has_held |= !has_name;
                if has_name { Err(Errno::BUSY) } else { Err(Errno::NOENT) }
            }
            _ => self.backing.unlink(*dir, name),
        }
    }

    fn links(&self, identity: &Identity) -> Result<u32> {
        match self.backing.find(identity) {
            Ok(entry) => Ok(Below(self.backing, entry).1.nlink),
            Err(Errno::STALE) => Ok(0),
            Err(e) => Err(e),
        }
    }
}
