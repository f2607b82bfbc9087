//! Write-back by comparing: makes the backing store equal to the pool.
//!
//! A pass walks the names that are in the pool, and compares every inode that is not marked clean
//! with its object. Differences are written there, in this order: contents and attributes of files;
//! their sync; names; names that are not wanted any more; attributes of directories; their sync.
//! Marks follow. A pass that was interrupted is repeated: what is equal needs no change.
//!
//! - writeback-W1: content goes below before the name that shows it. A new object gets a private
//!   name in its directory, and is renamed when all of it is durable. A name that the pool has, and
//!   that had a file before, has a file at every moment.
//! - writeback-W2: the identity of a new object is durable in the pool before the object gets its
//!   name. So a crash leaves no second object.
//! - writeback-W3: a mark covers only what was durable below before, and only if the inode has not
//!   changed since it was compared.
//! - writeback-W4: an object loses its last name only if no inode of the pool has its identity,
//!   with a name or without. A directory that was removed in the pool needs its object no longer.
//! - writeback-W5: an object that others have changed, which its stamp shows, is not touched. Its
//!   inode stays dirty, and the pass names it.
//! - writeback-W6: an inode is busy before its object gets or loses a name, also if it was renamed
//!   in the pool after the walk. So its stamp does not tell of a change by others.
//! - writeback-W7: content is durable in the pool before it goes below, also if programs leave that
//!   to a sync. Otherwise a crash could leave an older block that is marked clean. Operations on
//!   names and attributes are durable on return in each mode.
//!
//! - writeback-W8: a name below is replaced or removed only if the pool has had that object there.
//!   A pass lists the object of a directory before the directory becomes busy. If the object has
//!   its stamp then, the pool has had all names in it. The names of a directory that stays busy are
//!   remembered. If the server ends within the pass, they are unknown, unless the stamp still fits.
//!
//! Names that the pool never had stay below. If all other names are equal, the directory is marked
//! clean with a stamp that its object does not have, so that it follows its object. If the pool has
//! something else of that name, that is a conflict. A directory that was removed in the pool loses
//! only the names that the pool has had; with others in it, it stays, and the pool gets it again.
//! So does what was removed in the pool, if the names of its directory are unknown.

mod content;
mod names;

use crate::counters::Written;
use crate::loading::Loading;
use crate::lock;
use crate::names_below::{KnownNames, busy_mark};
use crate::objects::{Below, PoolRef, has_changed, stamp};
use crate::pass::{Dir, Dirty, Extras, SYNCED_TOGETHER};
use backing::{Backing, Identity};
use names::KnownBelow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use vfs::{
    ABSENT, Attr, Backed, Caller, Errno, FileKind, Ino, NewKind, NewNode, ROOT, Residence, Result,
};

/// The start of the private names of objects that are not complete.
pub const PRIVATE: &[u8] = b".keepstone-";

/// One pass.
struct Pass<'a, P: Backed, B: Backing> {
    loading: &'a Loading<P, B>,
    pool: &'a P,
    backing: &'a B,
    next_private: &'a AtomicU64,
    /// The inodes to compare, directories before what they contain.
    dirty: Vec<Dirty>,
    dirs: Vec<Dir>,
    /// The objects of inodes that are compared, and of directories that contain them.
    objects: HashMap<Ino, Below<'a, B>>,
    /// References, so that no inode number gets another life meanwhile: above, and below.
    held: Vec<PoolRef<'a, P>>,
    held_below: Vec<Below<'a, B>>,
    /// Inodes that were compared before, and those that have got their objects in this pass.
    seen: HashSet<Ino>,
    created: HashSet<Ino>,
    /// The names in objects of directories that are compared, or are about to change.
    below: HashMap<Ino, BTreeMap<Vec<u8>, (Identity, FileKind)>>,
    /// The names among them that the pool has had there.
    known: HashMap<Ino, KnownBelow>,
    /// The names of directories in the pool that were compared.
    compared: HashMap<Ino, BTreeSet<Vec<u8>>>,
    extras: Extras,
    /// The identities of objects that got or lost names.
    renamed: HashSet<Vec<u8>>,
    failed: HashSet<Ino>,
    /// Directories with which a later pass has to go on.
    waiting: HashSet<Ino>,
    /// Whether the names below of open files without a name stay (writeback-W4).
    has_held: bool,
    /// Files whose content was marked clean.
    marked: Vec<Ino>,
    written: Written,
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Writes back everything that is dirty. Errors of single inodes are in the result; the others
    /// are written back.
    ///
    /// # Errors
    /// Those of the pool, and of syncs of the whole backing store.
    pub fn write_back(&self) -> Result<Written> {
        let written = self.write_back_in(&self.write_back_turn())?;
        // Some conflicts can be resolved. This waits for loads, which may wait for a write-back.
        let changed = written.conflicts.iter().chain(&written.changed);
        changed.for_each(|ino| self.try_look(*ino, false));
        Ok(written)
    }

    /// Runs a pass in the caller's turn. Settles the bytes that it wrote (below-S2), and notes its
    /// result for the status.
    pub(crate) fn write_back_in(&self, _turn: &MutexGuard<'_, ()>) -> Result<Written> {
        let (begun, gained) = (Instant::now(), self.pool().gained());
        let number = self.passes().begin();
        let mut pass = Pass {
            loading: self,
            pool: self.pool(),
            backing: self.backing(),
            next_private: self.next_private(),
            dirty: Vec::new(),
            dirs: Vec::new(),
            objects: HashMap::new(),
            held: Vec::new(),
            held_below: Vec::new(),
            seen: HashSet::new(),
            created: HashSet::new(),
            below: HashMap::new(),
            known: HashMap::new(),
            compared: HashMap::new(),
            extras: Extras::default(),
            renamed: HashSet::new(),
            failed: HashSet::new(),
            waiting: HashSet::new(),
            has_held: false,
            marked: Vec::new(),
            written: Written::default(),
        };
        let run = pass.run();
        pass.remember_names(run.is_ok());
        run?;
        for ino in &pass.marked {
            self.note_clean(*ino);
        }
        self.passes().end(number, &pass.written);
        self.settle_space_below(gained, &pass.written);
        self.note_pass(begun, &pass.written);
        Ok(pass.written)
    }
}

impl<'a, P: Backed, B: Backing> Pass<'a, P, B> {
    fn run(&mut self) -> Result<()> {
        self.walk()?;
        self.written.inodes = self.dirty.len() as u64;
        if self.dirty.is_empty() {
            return Ok(());
        }
        self.each_dirty(|pass, ino, kind| match kind {
            FileKind::Dir => pass.write_attributes(ino),
            _ => pass.write_file(ino, kind),
        });
        if !self.sync_together() {
            self.each_dirty(|pass, ino, kind| match kind {
                FileKind::Dir => Ok(()),
                _ => pass.sync(ino, kind == FileKind::File),
            });
        }
        let mut dirs = std::mem::take(&mut self.dirs);
        dirs.retain(|dir| !self.failed.contains(&dir.ino));
        for dir in &dirs {
            let listed = self.find_extras(dir);
            self.note(dir.ino, listed);
        }
        // Names are compared only with those that are known.
        dirs.retain(|dir| !self.failed.contains(&dir.ino));
        // writeback-W1: a new directory appears with what is in it. If something cannot be moved
        // into it yet, that follows.
        for dir in
            dirs.iter().rev().filter(|dir| self.created.contains(&dir.ino)).collect::<Vec<_>>()
        {
            for (name, (ino, kind)) in &dir.names {
                let _ = self.place((dir.ino, name), *ino, *kind);
            }
        }
        for dir in &dirs {
            for (name, (ino, kind)) in &dir.names {
                let placed = self.place((dir.ino, name), *ino, *kind);
                self.note(dir.ino, placed);
            }
        }
        for dir in dirs {
            self.compared.insert(dir.ino, dir.names.into_keys().collect());
        }
        self.remove_extras();
        // Changes of names changed the times of directories.
        self.each_dirty(|pass, ino, kind| match kind {
            FileKind::Dir => pass.write_times(ino),
            _ => Ok(()),
        });
        // Files have other names; their content is durable.
        if !self.sync_together() {
            self.each_dirty(|pass, ino, kind| pass.sync(ino, kind == FileKind::Dir));
        }
        self.mark()
    }

    /// Makes everything below durable at once, if there are many inodes, or if the backing store
    /// cannot do less. Otherwise each is synced by itself, also after an error, so that the error
    /// concerns only its inode.
    fn sync_together(&mut self) -> bool {
        if self.backing.syncs_as_whole() {
            // A store that is away makes the pass wait only once.
            let is_any_left = self.dirty.iter().any(|dirty| !self.failed.contains(&dirty.ino));
            let synced = if is_any_left { self.backing.sync() } else { Ok(()) };
            if let Err(e) = synced {
                self.each_dirty(|_, _, _| Err(e));
            }
            return true;
        }
        self.dirty.len() >= SYNCED_TOGETHER && self.backing.sync().is_ok()
    }

    /// Calls `step` for each inode without an error so far.
    fn each_dirty(&mut self, step: impl Fn(&mut Self, Ino, FileKind) -> Result<()>) {
        for i in 0..self.dirty.len() {
            let Dirty { ino, kind, .. } = self.dirty[i];
            if !self.failed.contains(&ino) {
                let done = step(self, ino, kind);
                self.note(ino, done);
            }
        }
    }

    /// Notes the error of an inode, which stays dirty.
    fn note(&mut self, ino: Ino, done: Result<()>) {
        if let Err(e) = done
            && self.failed.insert(ino)
        {
            tracing::warn!(ino = ino.0, error = %e, "cannot write back");
            self.written.errors.push((ino, e));
        }
    }

    /// Leaves a name to a later pass, which goes on with its directory.
    fn wait(&mut self, dir: Ino) -> Result<()> {
        self.waiting.insert(dir);
        Ok(())
    }

    // --- finding what is dirty ------------------------------------------------------------------

    /// Finds the dirty inodes among those whose names are in the pool. Gives objects to those that
    /// have none.
    fn walk(&mut self) -> Result<()> {
        let mut pending = vec![(ROOT, None)];
        while let Some((ino, parent)) = pending.pop() {
            let Some(kind) = self.add(ino, parent)? else { continue };
            if kind != FileKind::Dir {
                continue;
            }
            let mut names = BTreeMap::new();
            let listed = self.pool.readdir(ino, 0, &mut |e| {
                if !matches!(e.name, b"." | b"..") {
                    names.insert(e.name.to_vec(), (e.ino, e.kind));
                }
                true
            });
            match listed {
                Err(ABSENT | Errno::STALE | Errno::NOENT) => continue,
                listed => listed?,
            }
            let is_dirty = self.dirty.last().is_some_and(|dirty| dirty.ino == ino);
            for (name, (child, kind)) in &names {
                let is_clean = |child| self.pool.residence(child).is_ok_and(|r| r.is_clean);
                if *kind != FileKind::Dir && is_clean(*child) {
                    continue;
                }
                // The name may have another inode by now, which the next pass finds.
                if let Ok(found) = self.pool.lookup(ino, name) {
                    self.held.push(PoolRef(self.pool, found.ino));
                    if found.ino == *child {
                        pending.push((*child, Some(ino)));
                    }
                }
            }
            if is_dirty {
                self.dirs.push(Dir { ino, names });
            }
        }
        Ok(())
    }

    /// Adds an inode if it is dirty. Returns its kind, unless it was added before.
    fn add(&mut self, ino: Ino, parent: Option<Ino>) -> Result<Option<FileKind>> {
        let (Ok(attr), Ok(residence)) = (self.pool.getattr(ino), self.pool.residence(ino)) else {
            return Ok(None);
        };
        if !self.seen.insert(ino) {
            return Ok(None);
        }
        if residence.is_clean {
            return Ok(Some(attr.kind));
        }
        if parent.is_some_and(|parent| self.failed.contains(&parent)) {
            // A later pass can place it.
            self.failed.insert(ino);
        } else {
            let begun = self.begin(&attr, &residence, parent);
            self.note(ino, begun);
        }
        // Without a version it is being changed. A later pass compares it again.
        let version = self.pool.version(ino).unwrap_or_else(|| {
            self.failed.insert(ino);
            0
        });
        self.dirty.push(Dirty { ino, kind: attr.kind, version });
        Ok(Some(attr.kind))
    }

    /// Finds the object of an inode, or makes one, and notes that it changes.
    fn begin(&mut self, inode: &Attr, residence: &Residence, parent: Option<Ino>) -> Result<()> {
        let ino = inode.ino;
        self.find_object(inode, Identity(residence.identity.clone()), parent)?;
        if self.failed.contains(&ino) {
            return Ok(());
        }
        let Below(_, object) = self.objects.get(&ino).ok_or(Errno::STALE)?;
        let object = object.ino;
        let (is_created, mark) = (self.created.contains(&ino), busy_mark());
        let mut is_changed = !is_created && has_changed(residence, &self.objects[&ino].1);
        let has_names = inode.kind == FileKind::Dir && !residence.are_names_absent;
        if has_names && !is_changed {
            let is_known = match is_created {
                true => self.learn_created(ino, object)?,
                false => self.learn_names(object, residence)?,
            };
            // Others have just changed it.
            is_changed = !is_known && !residence.is_busy;
        }
        if is_changed {
            self.note_conflict(ino);
            return Ok(());
        }
        if has_names {
            self.pool.begin_names_back(ino, mark)?;
        }
        self.pool.begin_write_back(ino)
    }

    /// Notes that an object was just made, and has no names.
    fn learn_created(&mut self, ino: Ino, object: Ino) -> Result<bool> {
        let identity = self.pool.residence(ino)?.identity;
        self.known.insert(object, KnownBelow { identity, names: KnownNames::new() });
        self.below.insert(object, BTreeMap::new());
        Ok(true)
    }

    /// Leaves the names of busy directories to the next pass.
    fn remember_names(&mut self, is_whole: bool) {
        let names_below = &self.loading.names_below;
        if is_whole && self.written.left == 0 && self.known.is_empty() {
            names_below.forget();
        }
        for KnownBelow { identity, names } in self.known.drain().map(|(_, known)| known) {
            names_below.remember(identity, names);
        }
    }

    /// Finds the object of an inode, or makes one.
    fn find_object(
        &mut self,
        &Attr { ino, kind, rdev, .. }: &Attr,
        identity: Identity,
        parent: Option<Ino>,
    ) -> Result<()> {
        if !identity.0.is_empty() {
            match self.backing.find(&identity) {
                Ok(entry) => {
                    let object = Below(self.backing, entry);
                    if entry.kind == kind {
                        self.objects.insert(ino, object);
                        return Ok(());
                    }
                }
                // The backing store has lost it in a crash, before it had a name. Or others have
                // removed it, and its directory misses the name.
                Err(Errno::STALE) => {}
                Err(e) => return Err(e),
            }
        }
        let parent = parent.ok_or(Errno::STALE)?;
        let above = self.pool.residence(parent)?;
        if above.is_clean {
            // No name would lead to another object: that of a third one is in its place.
            self.note_conflict(ino);
            return Ok(());
        }
        // It may have been clean when the walk came to it.
        if !self.begin_unchanged(parent, &above.identity)? {
            self.failed.insert(ino);
            return Ok(());
        }
        let dir = self.object(parent)?;
        let target = match kind {
            FileKind::Symlink => self.pool.readlink(ino)?,
            _ => Vec::new(),
        };
        let kind = match kind {
            FileKind::File => NewKind::File,
            FileKind::Dir => NewKind::Dir,
            FileKind::Symlink => NewKind::Symlink(&target),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::Char => NewKind::Char(rdev),
            FileKind::Block => NewKind::Block(rdev),
        };
        // Others may use it when it has its attributes.
        let mode = if kind == NewKind::Dir { 0o700 } else { 0o600 };
        let node = NewNode { kind, mode, umask: 0 };
        let backing = self.backing;
        let create = |name: &[u8]| backing.create(&Caller::ROOT, dir, name, &node);
        let (name, entry) = self.with_private_name(create)?;
        let object = Below(backing, entry);
        // writeback-W2, permits-W3.
        let guarded =
            if entry.kind == FileKind::Dir { backing.guard_names(entry.ino) } else { Ok(()) };
        let identity = guarded.and_then(|()| backing.identity(entry.ino));
        if let Ok(identity) = &identity {
            self.note_name((dir, &name), identity, entry.kind);
        }
        let noted = identity.and_then(|identity| {
            self.pool.set_identity(ino, &identity.0)?;
            self.loading.note_known(&mut lock(&self.loading.known), &identity.0, ino)
        });
        if let Err(e) = noted {
            // This is tidiness: the next pass removes what is left.
            let _ = match entry.kind {
                FileKind::Dir => backing.rmdir(dir, &name),
                _ => backing.unlink(dir, &name),
            };
            // Parts of the inode are only in an object that is gone.
            return Err(if e == Errno::BUSY { Errno::STALE } else { e });
        }
        self.objects.insert(ino, object);
        self.created.insert(ino);
        Ok(())
    }

    /// Returns the object of an inode.
    fn object(&mut self, ino: Ino) -> Result<Ino> {
        if let Some(Below(_, entry)) = self.objects.get(&ino) {
            return Ok(entry.ino);
        }
        let identity = self.pool.residence(ino)?.identity;
        if identity.is_empty() {
            return Err(Errno::STALE);
        }
        let object = Below(self.backing, self.backing.find(&Identity(identity))?);
        let found = object.1.ino;
        self.objects.insert(ino, object);
        Ok(found)
    }

    /// Notes that a later pass has to compare the names of all directories of this one. Returns the
    /// number of directories that need nothing else.
    fn wait_for_extras(&mut self) -> u64 {
        let dirs = self.dirty.iter().filter(|dirty| dirty.kind == FileKind::Dir);
        let failed = &self.failed;
        let waiting = &mut self.waiting;
        dirs.filter(|dirty| waiting.insert(dirty.ino) && !failed.contains(&dirty.ino)).count()
            as u64
    }

    fn has_name(&self, ino: Ino) -> bool {
        self.pool.getattr(ino).is_ok_and(|attr| attr.nlink > 0)
    }

    // --- marks ----------------------------------------------------------------------------------

    /// Marks what is equal now (writeback-W3).
    fn mark(&mut self) -> Result<()> {
        self.begin_renamed()?;
        if self.has_held {
            self.written.held = self.wait_for_extras();
        }
        self.written.waiting = self.waiting.union(&self.failed).copied().collect();
        for dirty in std::mem::take(&mut self.dirty) {
            let is_done = !self.waiting.contains(&dirty.ino) && !self.failed.contains(&dirty.ino);
            if !is_done && dirty.kind == FileKind::File {
                self.written.unwritten.push(dirty.ino);
            }
            let is_marked = if is_done { self.mark_one(dirty) } else { Ok(false) };
            if is_marked.is_ok_and(|is_marked| is_marked) && dirty.kind == FileKind::Dir {
                let object = self.object(dirty.ino)?;
                self.known.remove(&object);
            }
            self.written.left += u64::from(!is_marked.is_ok_and(|is_marked| is_marked));
            self.note(dirty.ino, is_marked.map(drop));
        }
        Ok(())
    }

    /// Leaves inodes to a later pass that this one has not compared, but whose objects it changed.
    fn begin_renamed(&mut self) -> Result<()> {
        if self.renamed.is_empty() {
            return Ok(());
        }
        let compared: HashSet<Ino> = self.dirty.iter().map(|dirty| dirty.ino).collect();
        // Some may have got their inodes meanwhile.
        for identity in &self.renamed {
            let ino = self.loading.inode_of(identity)?;
            if let Some(ino) = ino.filter(|ino| !compared.contains(ino)) {
                self.begin_again(ino, identity)?;
                self.written.left += u64::from(self.has_name(ino));
            }
        }
        Ok(())
    }

    /// Marks an inode; returns whether it has not changed since it was compared.
    fn mark_one(&mut self, Dirty { ino, kind, mut version }: Dirty) -> Result<bool> {
        let object = self.object(ino)?;
        let mut stamp = stamp(&self.backing.getattr(object)?);
        let has_names = kind != FileKind::Dir || self.has_compared_names(ino, object)?;
        if !has_names {
            // writeback-W8: a comparison sees that the object has another stamp.
            stamp = if stamp > 1 { stamp - 1 } else { 2 };
        }
        if kind == FileKind::File {
            match self.pool.clean_content(ino, 0..u64::MAX, version) {
                Ok(Some(next)) => {
                    self.marked.push(ino);
                    version = next;
                }
                Ok(None) | Err(Errno::STALE) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        match self.pool.clean_inode(ino, version, stamp) {
            Ok(None) => Ok(false),
            Ok(Some(_)) => {
                if kind == FileKind::Dir {
                    let identity = self.pool.residence(ino)?.identity;
                    self.loading.names_below.note_stamp(&identity, stamp);
                }
                if !has_names {
                    self.written.changed.push(ino);
                    self.loading.look_again(ino);
                }
                Ok(true)
            }
            Err(Errno::STALE) => Ok(false),
            Err(e) => Err(e),
        }
    }
}
