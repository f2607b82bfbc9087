//! Creations that are durable in the pool.
//!
//! That a file exists is the file system's below, and making that durable waits for its journal. So the creation of a regular file
//! is recorded with its shadow when it has to be durable; after a power failure that took it back below, who attaches the pool
//! makes the file again.
//!
//! - **births-N1** A file with a birth on record has a bitmap, and all that is not zeros of its content in the pool, until it is
//!   durable below under this name, or removed durably.
//! - **births-N2** The record is removed when a sync below that began after the creation has ended, and before any mark or the
//!   bitmap is. Where its last name is gone it stays, with [`Flags::ORPHAN`], until a sync of all that is below: it says that
//!   the file is to be removed again where a power failure brings it back.
//! - **births-N3** A file is made again nameless, gets all of its content, durably, is recorded, and only then gets its name. So
//!   who attaches after a crash in between finds it by that record, or finds nothing of it.
//! - **births-N4** No creation is recorded in a directory where names changed that are on no record, until that is durable
//!   below: the name of the new file may be another file's again after a power failure.
//! - **births-N5** Renamed, linked, and given extended attributes are only files whose creation is not on record: it is made
//!   durable below first.
//! - **births-N6** The record has the file's latest permissions and owner. They are set again after a power failure that took them
//!   back below and left the file, because a sync had made it durable earlier.

use crate::node::{Cnode, Node, State};
use crate::record::{self, Birth, Flags};
use crate::{Cache, lock, write};
use backing::{Backing, Identity};
use std::collections::{HashMap, HashSet};
use vfs::{
    Attr, Caller, Entry, Errno, Fallocate, FileKind, FileSystem, Ino, Result, Seek, SetAttr,
    SetTime, SetXattr,
};

/// So many directories, and so many new files of one, are remembered one by one.
const NEWS_MAX: usize = 4096;
/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// What changed in directories since that was made durable below.
#[derive(Default)]
pub struct News {
    dirs: HashMap<Ino, Changed>,
    /// Whether there was more than could be remembered.
    is_lost: bool,
    /// How many syncs below are under way: what changed before them is not known to be durable, and not remembered.
    syncing: u32,
}

/// What changed in a directory.
#[derive(Default)]
struct Changed {
    /// Files that were made in it, and were not removed.
    files: HashSet<Ino>,
    /// Something else that is on no record.
    is_other: bool,
}

impl News {
    fn dir(&mut self, dir: Ino) -> &mut Changed {
        if self.dirs.len() >= NEWS_MAX && !self.dirs.contains_key(&dir) {
            self.dirs.clear();
            self.is_lost = true;
        }
        let is_other = self.is_lost || self.syncing > 0;
        self.dirs.entry(dir).or_insert_with(|| Changed { is_other, ..Changed::default() })
    }

    /// births-N4: whether a power failure may give a directory names back that are on no record, and which new files have now.
    fn may_take_back(&self, dir: Ino) -> bool {
        let is_other = |changed: &Changed| changed.is_other;
        self.is_lost || self.syncing > 0 || self.dirs.get(&dir).is_some_and(is_other)
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Makes durable what was there before, and tells whether creations can be recorded: not where files below cannot be made
    /// without a name, nor where a write returns only when it is below.
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

    pub(crate) fn note_creation(&self, dir: Ino, entry: &Entry) {
        let mut news = lock(&self.news);
        let changed = news.dir(dir);
        if entry.kind != FileKind::File || changed.files.len() >= NEWS_MAX {
            changed.is_other = true;
        } else {
            changed.files.insert(entry.ino);
        }
    }

    /// Something changed in a directory, or of it, that is on no record.
    pub(crate) fn note_change_of(&self, dir: Ino) {
        lock(&self.news).dir(dir).is_other = true;
    }

    /// A file is removed from a directory, whose shadow says so where its creation is on record.
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
            // Whether its creation is durable below or not.
            Some(ino) => _ = changed.files.remove(&ino),
            None => changed.is_other = true,
        }
    }

    /// Makes all durable that is below.
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

    /// Makes durable what is no regular file: a directory, by records in the pool where only files were made in it.
    pub(crate) fn fsync_other(&self, ino: Ino) -> Result<()> {
        if self.keep_names_in(ino)? { Ok(()) } else { self.fsync_below(ino) }
    }

    /// Makes an inode durable below that may be a directory.
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

    /// Records all that changed in a directory; whether that could be.
    fn keep_names_in(&self, dir: Ino) -> Result<bool> {
        let files: Vec<Ino> = {
            let news = lock(&self.news);
            if news.may_take_back(dir) {
                return Ok(false);
            }
            // Where nothing is known of it, nothing has changed since all of it was durable below.
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

    /// Makes it durable that a file exists, and its attributes: in the pool where that can be, otherwise below.
    pub(crate) fn keep_name(&self, node: &Node, state: &mut State) -> Result<()> {
        let made = state.made.clone().filter(|_| self.records_births);
        // A failure leaves it to the file system below: a pool that is full, above all.
        let mut is_kept = self.record_birth(node, state).unwrap_or(false);
        if !is_kept && let Some(made) = made {
            // Once all that is on no record is durable there, this file can be, and then its removal, too: otherwise that would
            // keep the next one from it.
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

    /// Records the creation of a file (births-N1); whether it is on record.
    fn record_birth(&self, node: &Node, state: &mut State) -> Result<bool> {
        if state.dirty().is_some_and(|cnode| cnode.birth.is_some()) {
            return Ok(true);
        }
        let Some(made) = state.made.take_if(|_| self.records_births) else { return Ok(false) };
        if lock(&self.news).may_take_back(made.dir) {
            return Ok(false);
        }
        let attr = self.backing.getattr(node.ino)?;
        // With what they say about programs a record could bring them back to other content (vfs-C5).
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
        // The bitmap is what makes it mean something: a file without a birth that is gone is one that others removed.
        self.store_birth(cnode, &birth)?;
        self.begin_dirty(node, cnode)?;
        cnode.birth = Some(birth);
        Ok(true)
    }

    fn store_birth(&self, cnode: &Cnode, birth: &Birth) -> Result<()> {
        self.pool.setxattr(cnode.shadow, record::BIRTH, &birth.to_bytes(), SetXattr::Any)
    }

    /// What is on record of a shadow's creation. Without a bitmap it means nothing, and is removed.
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

    /// A file is durable below (births-N2).
    pub(crate) fn clear_birth(&self, cnode: &mut Cnode) -> Result<()> {
        if cnode.birth.is_some() {
            self.pool.removexattr(cnode.shadow, record::BIRTH)?;
            cnode.birth = None;
        }
        Ok(())
    }

    /// Attributes of a file are other ones now.
    pub(crate) fn follow_birth(&self, state: &mut State, attr: &Attr) -> Result<()> {
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

    /// A file is about to change in a way that its birth does not tell (births-N5).
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

    /// Removes a file again whose removal is on record and was taken back below (births-N2); whether it is such a one.
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

    /// Gives a file below the permissions and the owner on record (births-N6). To be called only if no other program has changed
    /// it since.
    pub(crate) fn restore_attributes(&self, found: &Attr, cnode: &mut Cnode) -> Result<()> {
        let Some(birth) = &cnode.birth else { return Ok(()) };
        if birth.is_of(found) {
            return Ok(());
        }
        let left = self.backing.setattr(&Caller::ROOT, found.ino, &birth.to_set())?;
        cnode.record.left.ctime = left.ctime;
        self.store_record(cnode)
    }

    /// Makes a file again (births-N3). Durable is then its content, and not yet its name.
    ///
    /// # Errors
    /// `EEXIST` where its name is another file's now. All is as it was, but for a directory entry of the new file.
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

    /// Gives a new file all that the pool has for it, durably.
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

    /// The directory of a file that is to be made or removed again, with a reference.
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
