//! Births: creations of files that are durable in the pool.
//!
//! Making the existence of a file durable in the backing store waits for its journal. So when the
//! creation of a regular file has to be durable, it is recorded with its shadow. If a power failure
//! undoes the creation in the backing store, the next attachment of the pool creates the file
//! again.
//!
//! - **births-N1** A file with a recorded birth has a bitmap, and the pool has all of its content
//!   that is not zeros. That lasts until the file is durable in the backing store under this name,
//!   or durably removed.
//! - **births-N2** The record is removed after a sync of the backing store that began after the
//!   creation, and before any mark or the bitmap is removed. If the last name of the file is
//!   removed, the record stays, with [`Flags::ORPHAN`], until everything in the backing store is
//!   synced. It then means that a file which a power failure brings back has to be removed again.
//! - **births-N3** A file is created again without a name, gets all of its content, durably, and is
//!   recorded; only then it gets its name. So an attachment after a crash in between finds the file
//!   by that record, or finds no trace of it.
//! - **births-N4** No creation is recorded in a directory with changes of names that are not
//!   recorded, until these are durable in the backing store. Otherwise the name of the new file may
//!   belong to another file after a power failure.
//! - **births-N5** Before a file is renamed, linked or given extended attributes, its creation is
//!   made durable in the backing store and its record removed.
//! - **births-N6** The record has the latest permissions and owner of the file. They are set again
//!   if a power failure undid them in the backing store and left the file, because an earlier sync
//!   had made it durable.

use crate::node::{CacheNode, CacheNodeState, Cnode};
use crate::record::{self, Birth, Flags};
use crate::{Cache, lock, write};
use backing::{Backing, Identity};
use std::collections::{HashMap, HashSet};
use vfs::{
    Attr, Caller, Entry, Errno, Fallocate, FileKind, FileSystem, Ino, Result, Seek, SetAttr,
    SetTime, SetXattr,
};

/// The maximum number of directories, and of new files of each, that are remembered one by one.
const NEWS_MAX: usize = 4096;
/// The number of bytes copied at a time.
const PIECE: usize = 1 << 20;

/// The changes in directories since the backing store was last synced.
#[derive(Default)]
pub struct News {
    dirs: HashMap<Ino, Changed>,
    /// Whether there were more changes than could be remembered.
    is_lost: bool,
    /// The number of syncs of the backing store under way. Changes made meanwhile are not known to
    /// be durable, so they count as unrecorded.
    syncing: u32,
}

/// The changes in a directory.
#[derive(Default)]
struct Changed {
    /// Files that were created in it and not removed.
    files: HashSet<Ino>,
    /// Whether there was another change, which is not recorded.
    is_other: bool,
}

impl News {
    /// Returns the changes in a directory. If there are too many directories, forgets all of them
    /// and notes that changes were lost.
    fn dir(&mut self, dir: Ino) -> &mut Changed {
        if self.dirs.len() >= NEWS_MAX && !self.dirs.contains_key(&dir) {
            self.dirs.clear();
            self.is_lost = true;
        }
        let is_other = self.is_lost || self.syncing > 0;
        self.dirs.entry(dir).or_insert_with(|| Changed { is_other, ..Changed::default() })
    }

    /// Returns whether a power failure may restore names in a directory that are not recorded and
    /// that new files have now (births-N4).
    fn may_take_back(&self, dir: Ino) -> bool {
        let is_other = |changed: &Changed| changed.is_other;
        self.is_lost || self.syncing > 0 || self.dirs.get(&dir).is_some_and(is_other)
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Makes earlier changes durable. Returns whether creations can be recorded: not if the backing
    /// store cannot create files without a name, nor if writes return only when the backing file
    /// has the data.
    pub(crate) fn begin_births(&self) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        self.discard_removed()?;
        if self.options.write_through {
            return Ok(false);
        }
        let nameless = self.backing.tmpfile(&Caller::ROOT, self.backing.root(), 0o600, 0);
        Ok(nameless.map(|made| self.backing.forget(made.ino, 1)).is_ok())
    }

    // --- what changed in directories ------------------------------------------------------------

    /// Notes that a call created an entry in a directory.
    pub(crate) fn note_creation(&self, dir: Ino, entry: &Entry) {
        let mut news = lock(&self.news);
        let changed = news.dir(dir);
        if entry.kind != FileKind::File || changed.files.len() >= NEWS_MAX {
            changed.is_other = true;
        } else {
            changed.files.insert(entry.ino);
        }
    }

    /// Notes a change in a directory, or of its attributes, that is not recorded.
    pub(crate) fn note_change_of(&self, dir: Ino) {
        lock(&self.news).dir(dir).is_other = true;
    }

    /// Notes that a file was removed from a directory. If its creation is recorded, its shadow
    /// records the removal.
    pub(crate) fn note_removal(&self, dir: Ino, file: Option<Ino>) {
        let is_recorded = |ino: &Ino| {
            let node = self.table.find(*ino);
            node.is_some_and(|node| {
                let state = crate::read(&node.state);
                let is_marked = |cnode: &Cnode| cnode.record.state.contains(Flags::ORPHAN);
                state.dirty().is_some_and(|cnode| cnode.birth.is_some() && is_marked(cnode))
            })
        };
        let recorded = file.filter(is_recorded);
        let mut news = lock(&self.news);
        let changed = news.dir(dir);
        match recorded {
            // This holds whether or not its creation is durable in the backing store.
            Some(ino) => _ = changed.files.remove(&ino),
            None => changed.is_other = true,
        }
    }

    /// Makes everything in the backing store durable.
    pub(crate) fn sync_below(&self) -> Result<()> {
        let (dirs, is_lost) = {
            let mut news = lock(&self.news);
            news.syncing += 1;
            (std::mem::take(&mut news.dirs), std::mem::take(&mut news.is_lost))
        };
        let synced = self.backing.sync();
        let mut news = lock(&self.news);
        news.syncing -= 1;
        if synced.is_err() {
            news.is_lost |= is_lost;
            dirs.into_keys().for_each(|dir| news.dir(dir).is_other = true);
        }
        synced
    }

    /// Makes an inode durable that is not a regular file. For a directory in which only files were
    /// created, records in the pool suffice.
    pub(crate) fn fsync_other(&self, ino: Ino) -> Result<()> {
        if self.keep_names_in(ino)? { Ok(()) } else { self.fsync_below(ino) }
    }

    /// Makes an inode durable in the backing store, which may be a directory.
    fn fsync_below(&self, ino: Ino) -> Result<()> {
        let changed = {
            let mut news = lock(&self.news);
            news.syncing += 1;
            news.dirs.remove(&ino)
        };
        let synced = self.backing.fsync(ino);
        let mut news = lock(&self.news);
        news.syncing -= 1;
        if synced.is_err() && changed.is_some() {
            news.dir(ino).is_other = true;
        }
        synced
    }

    /// Records all changes in a directory. Returns whether that was possible.
    fn keep_names_in(&self, dir: Ino) -> Result<bool> {
        let files: Vec<Ino> = {
            let news = lock(&self.news);
            if news.may_take_back(dir) {
                return Ok(false);
            }
            // A directory without notes has not changed since everything was durable in the backing
            // store.
            let changed = news.dirs.get(&dir);
            changed.into_iter().flat_map(|changed| changed.files.iter().copied()).collect()
        };
        if !self.records_births || !self.backing.is_placed(dir) {
            return Ok(false);
        }
        for ino in files {
            let Some(node) = self.table.find(ino) else { return Ok(false) };
            let mut state = write(&node.state);
            if state.is_unlinked || !self.record_birth(&node, &mut state).unwrap_or(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    // --- births ---------------------------------------------------------------------------------

    /// Makes the existence of a file and its attributes durable: in the pool if possible, otherwise
    /// in the backing store.
    pub(crate) fn keep_name(&self, node: &CacheNode, state: &mut CacheNodeState) -> Result<()> {
        let made = state.made.clone().filter(|_| self.records_births);
        // After a failure, above all in a full pool, the backing store does it.
        let mut is_kept = self.record_birth(node, state).unwrap_or(false);
        if !is_kept && let Some(made) = made {
            // A sync of the directory makes the unrecorded changes durable. Then this file can be
            // recorded, and later its removal, which would otherwise prevent the next record.
            self.fsync_below(made.dir)?;
            state.made = Some(made);
            is_kept = self.record_birth(node, state).unwrap_or(false);
        }
        if !is_kept {
            self.backing.sync_metadata(node.ino)?;
            state.made = None;
        }
        state.is_named = true;
        Ok(())
    }

    /// Records the creation of a file (births-N1). Returns whether it is recorded.
    fn record_birth(&self, node: &CacheNode, state: &mut CacheNodeState) -> Result<bool> {
        if state.dirty().is_some_and(|cnode| cnode.birth.is_some()) {
            return Ok(true);
        }
        let Some(made) = state.made.take_if(|_| self.records_births) else { return Ok(false) };
        if lock(&self.news).may_take_back(made.dir) {
            return Ok(false);
        }
        let attr = self.backing.getattr(node.ino)?;
        // A record of privilege bits could restore them with other content (vfs-C5).
        if attr.perm & !0o777 != 0 || attr.nlink != 1 || !self.backing.is_placed(made.dir) {
            return Ok(false);
        }
        let birth = Birth {
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            parent: self.backing.identity(made.dir)?.0,
            name: made.name.into_vec(),
            again: Vec::new(),
        };
        let cnode = self.cnode(node, state)?;
        let unsynced = cnode.record.state | Flags::UNSYNCED;
        self.set_state(cnode, unsynced)?;
        // The bitmap makes the record valid: a file without a birth that is missing was removed by
        // other processes.
        self.store_birth(cnode, &birth)?;
        self.begin_dirty(node, cnode)?;
        cnode.birth = Some(birth);
        Ok(true)
    }

    fn store_birth(&self, cnode: &Cnode, birth: &Birth) -> Result<()> {
        self.pool.setxattr(cnode.shadow, record::BIRTH, &birth.to_bytes(), SetXattr::Any)
    }

    /// Returns the recorded creation of a shadow. Without a bitmap it is invalid and is removed.
    pub(crate) fn find_birth(&self, shadow: Ino, is_clean: bool) -> Result<Option<Birth>> {
        match self.pool.getxattr(shadow, record::BIRTH) {
            Err(Errno::NODATA) => Ok(None),
            Ok(_) if is_clean => {
                self.pool.removexattr(shadow, record::BIRTH)?;
                Ok(None)
            }
            bytes => Birth::from_bytes(&bytes?).map(Some),
        }
    }

    /// Removes the record of a file that is durable in the backing store (births-N2).
    pub(crate) fn clear_birth(&self, cnode: &mut Cnode) -> Result<()> {
        if cnode.birth.is_some() {
            self.pool.removexattr(cnode.shadow, record::BIRTH)?;
            cnode.birth = None;
        }
        Ok(())
    }

    /// Updates the record after a change of the file's attributes.
    pub(crate) fn follow_birth(&self, state: &mut CacheNodeState, attr: &Attr) -> Result<()> {
        let Some(cnode) = state.dirty_mut() else { return Ok(()) };
        let Some(birth) = &cnode.birth else { return Ok(()) };
        if birth.is_of(attr) {
            return Ok(());
        }
        if attr.perm & !0o777 != 0 {
            self.backing.sync_metadata(attr.ino)?;
            return self.clear_birth(cnode);
        }
        let birth = birth.clone().with(attr);
        self.store_birth(cnode, &birth)?;
        cnode.birth = Some(birth);
        Ok(())
    }

    /// Makes a file durable in the backing store before a change that its birth does not record
    /// (births-N5).
    pub(crate) fn name_below(&self, ino: Ino) -> Result<()> {
        let Some(node) = self.table.find(ino) else { return Ok(()) };
        let mut state = write(&node.state);
        self.recall(&mut state)?;
        state.made = None;
        let Some(cnode) = state.dirty_mut().filter(|cnode| cnode.birth.is_some()) else {
            return Ok(());
        };
        self.backing.sync_metadata(ino)?;
        self.clear_birth(cnode)
    }

    // --- after a crash --------------------------------------------------------------------------

    /// Removes a file again whose removal is recorded and was undone in the backing store
    /// (births-N2). Returns whether it is such a file.
    pub(crate) fn remove_again(&self, entry: &Entry, cnode: &Cnode) -> Result<bool> {
        let is_orphan = cnode.record.state.contains(Flags::ORPHAN);
        let Some(birth) = cnode.birth.as_ref().filter(|_| is_orphan) else { return Ok(false) };
        if self.options.read_only || entry.nlink != 1 {
            return Ok(false);
        }
        let parent = match self.find_parent(cnode, birth) {
            Err(Errno::STALE) => return Ok(false),
            parent => parent?,
        };
        let found = self.backing.peek(parent, &birth.name);
        let is_it = found.is_ok_and(|found| found.ino == entry.ino);
        let removed = if is_it { self.backing.unlink(parent, &birth.name) } else { Ok(()) };
        self.backing.forget(parent, 1);
        removed?;
        if is_it {
            self.backing.forget(entry.ino, 1);
        }
        Ok(is_it)
    }

    /// Gives a backing file the recorded permissions and owner (births-N6). Call it only if no
    /// other program has changed them since.
    pub(crate) fn restore_attributes(&self, found: &Attr, cnode: &mut Cnode) -> Result<()> {
        let Some(birth) = &cnode.birth else { return Ok(()) };
        if birth.is_of(found) {
            return Ok(());
        }
        let left = self.backing.setattr(&Caller::ROOT, found.ino, &birth.to_set())?;
        cnode.record.left.ctime = left.ctime;
        self.store_record(cnode)
    }

    /// Creates a file again (births-N3). Afterwards its content is durable, but its name not yet.
    ///
    /// # Errors
    /// `EEXIST` if its name belongs to another file now. Nothing has changed except, possibly, a
    /// directory entry of the new file.
    pub(crate) fn make_again(&self, cnode: &Cnode) -> Result<()> {
        let Some(birth) = &cnode.birth else { return Err(Errno::STALE) };
        if !birth.again.is_empty() {
            match self.backing.find(&Identity(birth.again.clone()), &cnode.record.hint) {
                Ok(found) => {
                    self.backing.forget(found.ino, 1);
                    return Ok(());
                }
                Err(Errno::STALE) => {}
                Err(err) => return Err(err),
            }
        }
        let parent = self.find_parent(cnode, birth)?;
        let made = self.make_again_in(parent, cnode, birth);
        self.backing.forget(parent, 1);
        made
    }

    /// Creates a file again in `parent`, with content and attributes from its shadow and record.
    /// Gives it its name last.
    fn make_again_in(&self, parent: Ino, cnode: &Cnode, birth: &Birth) -> Result<()> {
        let made = self.backing.tmpfile(&Caller::ROOT, parent, 0o600, 0)?.ino;
        let named = self.fill(made, cnode, birth).and_then(|()| {
            let again = self.backing.identity(made)?.0;
            self.store_birth(cnode, &Birth { again, ..birth.clone() })?;
            self.backing.link(made, parent, &birth.name)
        });
        self.backing.forget(made, 1);
        named.map(|entry| self.backing.forget(entry.ino, 1))
    }

    /// Fills a new file with everything that the pool has for it, durably.
    fn fill(&self, file: Ino, cnode: &Cnode, birth: &Birth) -> Result<()> {
        if let Some(punch) = cnode.record.intent {
            let (at, len) = (punch.offset, punch.len);
            self.pool.fallocate(cnode.shadow, Fallocate::PunchHole, at, len)?;
        }
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            at = match self.pool.seek(cnode.shadow, at, Seek::Data) {
                Ok(at) => at,
                Err(Errno::NXIO) => break,
                Err(err) => return Err(err),
            };
            let len = self.pool.read(cnode.shadow, at, &mut piece)?;
            if len == 0 {
                break;
            }
            self.backing.write(file, at, &piece[..len])?;
            at += len as u64;
        }
        let set = SetAttr {
            size: Some(cnode.size),
            mtime: Some(SetTime::At(self.own_mtime(cnode)?)),
            ..birth.to_set()
        };
        self.backing.setattr(&Caller::ROOT, file, &set)?;
        self.backing.fsync(file)
    }

    /// Returns the directory of a file that has to be created or removed again, with a reference.
    fn find_parent(&self, cnode: &Cnode, birth: &Birth) -> Result<Ino> {
        let slash = cnode.record.hint.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let found =
            self.backing.find(&Identity(birth.parent.clone()), &cnode.record.hint[..slash])?;
        if found.kind == FileKind::Dir {
            return Ok(found.ino);
        }
        self.backing.forget(found.ino, 1);
        Err(Errno::STALE)
    }
}
