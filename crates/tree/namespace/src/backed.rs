//! Names and inodes of a pool with a backing store ([`vfs::Backed`]): loaded, marked clean, and
//! evicted.
//!
//! - backed-B1: a record is marked clean in PM only while the derived state has [`CLEAN`]. The mark
//!   goes durably before an inode changes, and comes last.
//! - backed-B2: the entries of a directory whose names are absent are right, but others may be
//!   missing. So every call that changes names, or lists them, needs all of them.
//! - backed-B3: the identity in a record is whole, or its length is 0: it changes within one line,
//!   where stores persist in program order. Marks, and what is absent, belong to the object that it
//!   names: so it changes only while there are none.
//! - backed-B5: a record is busy, durably, before write-back changes its object, until the stamp of
//!   the changed object is recorded. So a stamp that differs tells of a change by others.
//! - backed-B6: an entry of a directory whose object others have changed may be wrong, whether its
//!   names are absent or not. Its stamp tells that, so it gets another stamp only after the entries
//!   were made right.
//! - backed-B4: a file does not lose its last name in the pool while it has absent links. Otherwise
//!   the file would go, and its content would be missing under those names.
//! - backed-B7: eviction takes no name of a pinned inode, and so none of a directory that leads to
//!   it. The pin is a bit of the record, which every other change of the state keeps.

use crate::fs::Core;
use crate::index::Found;
use crate::layout::*;
use crate::own_mode::OwnMode;
use crate::store::Storage;
use crate::tables::{BUSY, CLEAN, MAY_BE_ABSENT, MAY_BE_CAPABLE, NAMES_ABSENT, PINNED, VInode};
use crate::xattr::Attributes;
use pmem::Fenced;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{ABSENT, Attr, Errno, FileKind, IDENTITY_MAX, Ino, LoadedObject, Residence, Result};

/// The shift of the absent links in the word of the state.
const LINKS_SHIFT: u32 = 32;

impl<S: Storage> Core<S> {
    /// Takes the marks off clean inodes before they change, and notes their use. The caller holds
    /// their locks exclusively (backed-B1).
    pub fn mark_dirty(&self, inos: &[Ino]) {
        let mut has_marks = false;
        for v in inos.iter().filter_map(|ino| self.live(*ino).ok()) {
            v.note_use();
            if v.state.load(Relaxed) & CLEAN != 0 {
                self.store_state(v, CLEAN, 0, self.absent_links(v));
                has_marks = true;
            }
        }
        if has_marks {
            let _ = self.medium().fence();
        }
    }

    /// Fails with [`ABSENT`] if one of these directories has absent names (backed-B2).
    pub(crate) fn check_names(&self, dirs: &[Ino]) -> Result<()> {
        let is_absent = |dir: &Ino| {
            self.live_dir(*dir).is_ok_and(|d| d.state.load(Relaxed) & NAMES_ABSENT != 0)
        };
        if dirs.iter().any(is_absent) { Err(ABSENT) } else { Ok(()) }
    }

    /// Fails with [`ABSENT`] if a name of this inode cannot be removed before more is loaded: the
    /// names in a directory that seems empty, or the other names of a file (backed-B4).
    pub(crate) fn check_removable(&self, ino: Ino) -> Result<()> {
        let Ok(v) = self.live(ino) else { return Ok(()) };
        match v.kind() {
            FileKind::Dir if v.entries.load(Relaxed) == 0 => self.check_names(&[ino]),
            FileKind::Dir => Ok(()),
            _ if v.links.load(Relaxed) == 1 && self.absent_links(v) > 0 => Err(ABSENT),
            _ => Ok(()),
        }
    }

    fn absent_links(&self, v: &VInode) -> u32 {
        (self.load(v, Word::State) >> LINKS_SHIFT) as u32
    }

    /// Stores the state of an inode, in PM and derived; durable after the next fence.
    fn store_state(&self, v: &VInode, off: u32, on: u32, links: u32) {
        let now = v.state.load(Relaxed) & !off | on;
        let bit = |flag: u32, stored: u32| if now & flag != 0 { u64::from(stored) } else { 0 };
        let at = self.word_at(v, Word::State);
        let state = bit(CLEAN, STATE_CLEAN)
            | bit(NAMES_ABSENT, STATE_NAMES_ABSENT)
            | bit(BUSY, STATE_BUSY)
            | bit(PINNED, STATE_PINNED);
        let word = u64::from(links) << LINKS_SHIFT | state;
        self.medium().publish_word(at, word, Fenced::not_needed("the caller fences"));
        self.medium().flush(at, 8);
        v.state.fetch_and(!off, Relaxed);
        v.state.fetch_or(on, Relaxed);
        self.count_inode(v);
    }

    /// Returns the flags of an inode that its record contains.
    pub(crate) fn residence_flags(&self, v: &VInode, kind: FileKind) -> u32 {
        if !self.is_backed() {
            return 0;
        }
        let state = self.load(v, Word::State) as u32;
        let clean = if state & STATE_CLEAN != 0 { CLEAN } else { 0 };
        let is_absent = kind == FileKind::Dir && state & STATE_NAMES_ABSENT != 0;
        let busy = if state & STATE_BUSY != 0 { BUSY } else { 0 };
        let pinned = if state & STATE_PINNED != 0 { PINNED } else { 0 };
        clean | busy | pinned | if is_absent { NAMES_ABSENT } else { 0 }
    }

    fn check_backed(&self) -> Result<()> {
        self.check_writable()?;
        if self.is_backed() { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    /// Implements [`vfs::Backed::residence`].
    pub fn residence(&self, ino: Ino) -> Result<Residence> {
        if !self.is_backed() {
            return Err(Errno::OPNOTSUPP);
        }
        let _lock = self.tables().lock_shared(ino)?;
        let v = self.live(ino)?;
        let mut bytes = [0; IDENTITY];
        self.medium().read(self.word_at(v, Word::Identity), &mut bytes);
        let identity = bytes.get(1..=usize::from(bytes[0])).ok_or(Errno::UCLEAN)?;
        let state = v.state.load(Relaxed);
        Ok(Residence {
            is_clean: state & CLEAN != 0,
            are_names_absent: state & NAMES_ABSENT != 0,
            is_busy: state & BUSY != 0,
            is_pinned: state & PINNED != 0,
            stamp: self.stamp(v),
            absent_links: if v.kind() == FileKind::Dir { 0 } else { self.absent_links(v) },
            identity: identity.to_vec(),
        })
    }

    /// Returns a directory whose names are absent, and which has no such name yet.
    fn dir_to_load(&self, dir: Ino, name: &[u8]) -> Result<&VInode> {
        let d = self.live_dir(dir)?;
        S::LIMITS.check_name(name)?;
        if d.state.load(Relaxed) & NAMES_ABSENT == 0 {
            return Err(Errno::INVAL);
        }
        if self.find_name(dir, name).is_some() { Err(Errno::EXIST) } else { Ok(d) }
    }

    /// Implements [`vfs::Backed::load_name`].
    pub fn load_name(&self, dir: Ino, name: &[u8], object: &LoadedObject<'_>) -> Result<Ino> {
        self.check_backed()?;
        if !(1..=IDENTITY_MAX).contains(&object.identity.len()) {
            return Err(Errno::INVAL);
        }
        let ino = self.new_inode()?;
        let load = || {
            let _locks = self.tables().lock_for_change(&[dir, ino])?;
            self.settle();
            let d = self.dir_to_load(dir, name)?;
            let v = self.tables().vinode(ino)?;
            let kind = object.attr.kind;
            let xattrs = loaded_attributes(object);
            let may_be_capable = if xattrs.is_empty() { 0 } else { MAY_BE_CAPABLE };
            let absent = match kind {
                FileKind::Dir => NAMES_ABSENT,
                FileKind::File if object.attr.size > 0 => MAY_BE_ABSENT,
                _ => 0,
            };
            v.begin(kind, CLEAN | absent | may_be_capable | OwnMode::bits(&xattrs));
            let record = self.loaded_record(v, object);
            let prepare = || self.make_slot((dir, d), name, (ino, v));
            let written = self.write_new_inode(v, record, object.target, &xattrs, prepare);
            let (record, slot) = written.inspect_err(|_| v.end())?;
            let is_ready = object.target.is_empty() && xattrs.is_empty();
            let life = Life { ino, generation: record.generation.get() };
            self.commit_slot(&slot, life, is_ready);
            self.update_index_after_add(d, &slot)?;
            if kind == FileKind::Dir {
                v.parent.store(dir.0 as u32, Relaxed);
                d.add_links(1);
            } else {
                v.links.store(1, Relaxed);
            }
            Ok(ino)
        };
        load().inspect_err(|_| self.tables().release_inode(ino))
    }

    /// Returns the record of an inode for an object.
    fn loaded_record(&self, v: &VInode, object: &LoadedObject<'_>) -> InodeRecord {
        let Attr { kind, perm, nlink, uid, gid, rdev, size, .. } = object.attr;
        let mut record = InodeRecord::born(0);
        record.mtime = (object.attr.mtime.0 as u64).into();
        record.ctime = (object.attr.ctime.0 as u64).into();
        record.atime = (object.attr.atime.0 as u64).into();
        record.btime = (object.attr.btime.0 as u64).into();
        record.mode = (kind.mode_bits() | perm).into();
        record.set_generation(self.next_generation(v));
        let rdev = if has_device(kind) { rdev } else { object.stamp };
        (record.uid, record.gid, record.rdev) = (uid.into(), gid.into(), rdev.into());
        (record.state, record.absent_links) = (STATE_CLEAN.into(), nlink.saturating_sub(1).into());
        match kind {
            FileKind::File => {
                record.size = size.into();
                record.root = self.absent_root(size).into();
            }
            FileKind::Symlink => record.size = (object.target.len() as u64).into(),
            FileKind::Dir => {
                record.state = (STATE_CLEAN | STATE_NAMES_ABSENT).into();
                record.absent_links = nlink.saturating_sub(2).into();
            }
            _ => {}
        }
        record.identity = stored(object.identity);
        record
    }

    /// Implements [`vfs::Backed::load_link`].
    pub fn load_link(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.check_backed()?;
        let _locks = self.tables().lock_for_change(&[ino, dir])?;
        let v = self.live(ino)?;
        let d = self.dir_to_load(dir, name)?;
        if v.kind() == FileKind::Dir {
            return Err(Errno::PERM);
        }
        let life = self.life(ino, v);
        let slot = self.make_slot((dir, d), name, (ino, v))?;
        self.commit_slot(&slot, life, true);
        // A crash before this is durable leaves one absent link too many. `finish_links` corrects
        // that. One too few would violate backed-B4.
        self.store_state(v, 0, 0, self.absent_links(v).saturating_sub(1));
        self.update_index_after_add(d, &slot)?;
        v.add_links(1);
        self.count_inode(v);
        // The reference of `make_slot`.
        self.tables().drop_refs(self.tables().arena.process()?, ino, v, 1);
        Ok(())
    }

    /// Implements [`vfs::Backed::finish_names`].
    pub fn finish_names(&self, dir: Ino) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[dir])?;
        self.settle();
        let d = self.live_dir(dir)?;
        if d.state.load(Relaxed) & NAMES_ABSENT != 0 {
            // Each entry was committed durably before (backed-B2).
            self.store_state(d, NAMES_ABSENT, 0, 0);
            let _ = self.medium().fence();
        }
        Ok(())
    }

    /// Implements [`vfs::Backed::finish_links`].
    pub fn finish_links(&self, ino: Ino) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live(ino)?;
        if v.kind() != FileKind::Dir && self.absent_links(v) > 0 {
            // A crash before this is durable costs another search.
            self.store_state(v, 0, 0, 0);
        }
        Ok(())
    }

    /// Implements [`vfs::Backed::set_identity`].
    pub fn set_identity(&self, ino: Ino, identity: &[u8]) -> Result<()> {
        self.check_backed()?;
        if !(1..=IDENTITY_MAX).contains(&identity.len()) {
            return Err(Errno::INVAL);
        }
        let _lock = self.tables().lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live(ino)?;
        let at = self.word_at(v, Word::Identity);
        let (mut old, new) = ([0; IDENTITY], stored(identity));
        self.medium().read(at, &mut old);
        if old == new {
            return Ok(());
        }
        let state = v.state.load(Relaxed);
        // mkfs makes the names of the root absent before it has an object.
        let has_absent_names = state & NAMES_ABSENT != 0 && self.has_identity(v);
        if state & CLEAN != 0 || has_absent_names || self.has_marks(v)? {
            return Err(Errno::BUSY);
        }
        // The stamp is not that of the new object. This is in the same line.
        self.store_state(v, 0, BUSY, self.absent_links(v));
        // backed-B3: the word with the length goes first, and comes last.
        self.medium().store_u64(at, 0);
        let word = |i: usize| new[i..i + 8].try_into().map_or(0, u64::from_le_bytes);
        for i in (0..IDENTITY).step_by(8).rev() {
            self.medium().store_u64(at + i as u64, word(i));
        }
        self.medium().flush(at, IDENTITY as u64);
        let _ = self.medium().fence();
        Ok(())
    }

    /// Whether an inode has an object in the backing store.
    pub fn has_identity(&self, v: &VInode) -> bool {
        self.load(v, Word::Identity) as u8 != 0
    }

    /// Implements [`vfs::Backed::begin_write_back`].
    pub fn begin_write_back(&self, ino: Ino) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live(ino)?;
        if v.state.load(Relaxed) & BUSY == 0 {
            self.store_state(v, CLEAN, BUSY, self.absent_links(v));
            let _ = self.medium().fence();
        }
        Ok(())
    }

    /// Implements [`vfs::Backed::begin_names_back`].
    pub fn begin_names_back(&self, dir: Ino, mark: u32) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[dir])?;
        self.settle();
        let d = self.live(dir)?;
        if d.kind() != FileKind::Dir {
            return Err(Errno::NOTDIR);
        }
        let is_busy = d.state.load(Relaxed) & BUSY != 0;
        if !is_busy {
            self.store_state(d, CLEAN, BUSY, self.absent_links(d));
        }
        if !is_busy || self.stamp(d) == 0 {
            // The state went before it in its line, so the mark is never a stamp (backed-B5).
            let (at, word) = (self.word_at(d, Word::Rdev), self.stamped(d, mark));
            let _ = self.medium().publish(at, word, Fenced::not_needed("the directory is busy"));
        }
        Ok(())
    }

    /// Implements [`vfs::Backed::clean_inode`].
    pub fn clean_inode(&self, ino: Ino, version: u64, stamp: u32) -> Result<Option<u64>> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live(ino)?;
        if !self.has_identity(v) {
            return Err(Errno::INVAL);
        }
        let Some(next) = self.tables().version_after(ino, version)? else { return Ok(None) };
        if !has_device(v.kind()) {
            // The line of the state, so before it (backed-B5).
            let word = self.stamped(v, stamp);
            let ready = Fenced::not_needed("the state follows in its line");
            self.medium().publish_word(self.word_at(v, Word::Rdev), word, ready);
        }
        self.store_state(v, BUSY, CLEAN, self.absent_links(v));
        let _ = self.medium().fence();
        Ok(Some(next))
    }

    /// Implements [`vfs::Backed::take_use`].
    pub fn take_use(&self, ino: Ino) -> bool {
        self.is_backed() && self.live(ino).is_ok_and(VInode::take_use)
    }

    /// Returns the stamp of an inode's object; 0 if it has none.
    fn stamp(&self, v: &VInode) -> u32 {
        if has_device(v.kind()) { 0 } else { self.load(v, Word::Rdev) as u32 }
    }

    /// Returns the word with the stamp, with another one.
    fn stamped(&self, v: &VInode, stamp: u32) -> u64 {
        self.load(v, Word::Rdev) >> 32 << 32 | u64::from(stamp)
    }

    /// Implements [`vfs::Backed::set_pinned`].
    pub fn set_pinned(&self, ino: Ino, is_pinned: bool) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[ino])?;
        let v = self.live(ino)?;
        let (off, on) = if is_pinned { (0, PINNED) } else { (PINNED, 0) };
        self.store_state(v, off, on, self.absent_links(v));
        let _ = self.medium().fence();
        Ok(())
    }

    /// Takes the mark off an inode; durable after the next fence. The caller holds its lock.
    pub fn unmark(&self, v: &VInode) {
        self.store_state(v, CLEAN, 0, self.absent_links(v));
    }

    /// Returns whether an inode can be [reloaded](vfs::Backed::reload), or with `is_forced`
    /// [replaced](vfs::Backed::replace), and has the stamp `was`. The caller holds its lock.
    ///
    /// # Errors
    /// `EINVAL` if the object is not that of the inode.
    pub fn is_reloadable(
        &self,
        v: &VInode,
        object: &LoadedObject<'_>,
        was: u32,
        is_forced: bool,
    ) -> Result<bool> {
        let mut identity = [0; IDENTITY];
        self.medium().read(self.word_at(v, Word::Identity), &mut identity);
        let is_its = (1..=IDENTITY_MAX).contains(&object.identity.len())
            && stored(object.identity) == identity
            && object.attr.kind == v.kind();
        if !is_its {
            return Err(Errno::INVAL);
        }
        let state = v.state.load(Relaxed);
        let may = match is_forced {
            // The object may be in no state that its stamp tells.
            true => state & BUSY == 0,
            false => state & CLEAN != 0 && !self.has_dirty_content(v)?,
        };
        Ok(may && self.stamp(v) == was)
    }

    /// Returns the words of a clean inode that its object changes, except for the place of its
    /// attributes. The caller holds its lock.
    pub fn reloaded_words(&self, v: &VInode, object: &LoadedObject<'_>) -> Vec<(Word, u64)> {
        let mut record = self.loaded_record(v, object);
        // It is the same life.
        record.set_generation(self.generations(v)[0]);
        let names_absent = v.state.load(Relaxed) & NAMES_ABSENT != 0;
        match v.kind() {
            FileKind::Dir if names_absent => {}
            FileKind::Dir => {
                record.state = STATE_CLEAN.into();
                record.absent_links = 0.into();
            }
            _ => {
                let links = object.attr.nlink.saturating_sub(v.links.load(Relaxed));
                record.absent_links = links.into();
            }
        }
        if v.state.load(Relaxed) & PINNED != 0 {
            record.state.set(record.state.get() | STATE_PINNED);
        }
        let common = [
            Word::Mtime,
            Word::Ctime,
            Word::Atime,
            Word::Owner,
            Word::Mode,
            Word::Rdev,
            Word::State,
        ];
        let of_files: &[Word] =
            if v.kind() == FileKind::File { &[Word::Root, Word::Size] } else { &[] };
        of_files
            .iter()
            .chain(&common)
            .map(|word| (*word, record.word(*word)))
            .filter(|(word, value)| self.load(v, *word) != *value)
            .collect()
    }

    /// Marks an inode clean by `commit`, which stores the words of its object (backed-B1).
    pub fn mark_by(&self, v: &VInode, commit: impl FnOnce() -> Result<()>) -> Result<()> {
        let was = v.state.fetch_or(CLEAN, Relaxed);
        let done = commit().inspect_err(|_| {
            if was & CLEAN == 0 {
                v.state.fetch_and(!CLEAN, Relaxed);
            }
        });
        self.count_inode(v);
        done
    }

    /// Updates the derived state of an inode that was reloaded, with its extended attributes.
    pub fn note_reloaded(&self, v: &VInode, xattrs: &Attributes) {
        let capable = if xattrs.is_empty() { 0 } else { MAY_BE_CAPABLE };
        let absent = if v.kind() == FileKind::File { MAY_BE_ABSENT } else { 0 };
        v.state.fetch_or(capable | absent, Relaxed);
        self.note_attributes(v, xattrs);
    }

    /// Implements [`vfs::Backed::note_stamp`].
    pub fn note_stamp(&self, ino: Ino, was: u32, stamp: u32) -> Result<bool> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[ino])?;
        self.settle();
        let v = self.live(ino)?;
        let is_its = v.state.load(Relaxed) & (CLEAN | BUSY) == 0 && self.stamp(v) == was;
        if !is_its || has_device(v.kind()) {
            return Ok(false);
        }
        let (at, word) = (self.word_at(v, Word::Rdev), self.stamped(v, stamp));
        let _ = self.medium().publish(at, word, Fenced::not_needed("the inode is dirty"));
        Ok(true)
    }

    /// Implements [`vfs::Backed::begin_names`].
    pub fn begin_names(&self, dir: Ino) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[dir])?;
        self.settle();
        let d = self.live_dir(dir)?;
        if d.state.load(Relaxed) & NAMES_ABSENT == 0 {
            // backed-B6: after a crash the stamp tells that the entries are those of another state.
            self.store_state(d, 0, NAMES_ABSENT, d.links.load(Relaxed));
        }
        Ok(())
    }

    /// Implements [`vfs::Backed::each_name`].
    pub fn each_name(&self, dir: Ino, each: &mut dyn FnMut(&[u8], Ino, FileKind)) -> Result<()> {
        let _lock = self.tables().lock_shared(dir)?;
        self.list(self.live_dir(dir)?, 0, &mut |e| {
            let kind = FileKind::from_mode(u32::from(e.kind) << 12).unwrap_or(FileKind::File);
            each(e.name, e.ino, kind);
            true
        })
    }

    /// Implements [`vfs::Backed::unload_name`], and with `is_forced` [`vfs::Backed::drop_name`].
    pub fn unload_name(&self, dir: Ino, name: &[u8], ino: Ino, is_forced: bool) -> Result<bool> {
        self.check_backed()?;
        let _locks = self.tables().lock_for_change(&[dir, ino])?;
        self.settle();
        let d = self.live_dir(dir)?;
        if d.state.load(Relaxed) & NAMES_ABSENT == 0 {
            return Err(Errno::INVAL);
        }
        let Some(found) = self.find_name(dir, name).filter(|found| found.ino == ino) else {
            return Ok(false);
        };
        let v = self.live(ino)?;
        let may_go = || -> Result<bool> {
            let is_clean = v.state.load(Relaxed) & CLEAN != 0 && !self.has_dirty_content(v)?;
            Ok(is_forced || is_clean)
        };
        let can_go = match v.kind() {
            FileKind::Dir => v.entries.load(Relaxed) == 0 && may_go()?,
            // Another name keeps what is dirty.
            _ => v.links.load(Relaxed) > 1 || may_go()?,
        };
        if !can_go {
            return Ok(false);
        }
        self.unindex_name(dir, name, found.pos);
        let cleared = self.clear_entry(found.pos);
        // No inode, and no block, is used again before the entry is durably gone.
        let _ = self.medium().fence();
        self.update_index_after_clear(d, found.pos.block(), cleared)?;
        self.drop_name(d, ino, v);
        Ok(true)
    }

    /// Implements [`vfs::Backed::each_inode`].
    pub fn each_inode(&self, each: &mut dyn FnMut(Ino, &Residence)) -> Result<()> {
        // To look at the numbers behind would give memory to the part of the table that is empty.
        let numbers = (0..self.tables().inode_slots()).map(Ino);
        for (ino, v) in numbers.zip(self.tables().inodes()) {
            if v.is_live() {
                match self.residence(ino) {
                    Ok(residence) => each(ino, &residence),
                    Err(Errno::STALE) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Implements [`vfs::Backed::evict_names`]. A directory with references keeps its names: the
    /// cookies of a process that lists it would lead elsewhere.
    pub fn evict_names(&self, dir: Ino) -> Result<bool> {
        self.check_backed()?;
        let mut children = Vec::new();
        {
            let _lock = self.tables().lock_shared(dir)?;
            self.list(self.live_dir(dir)?, 0, &mut |e| {
                children.push((e.ino, e.name.to_vec()));
                true
            })?;
        }
        // The list may be out of date under the locks, so everything is checked again.
        let inos: Vec<Ino> = children.iter().map(|(ino, _)| *ino).chain([dir]).collect();
        let _locks = self.tables().lock_for_change(&inos)?;
        self.settle();
        let d = self.live_dir(dir)?;
        let state = d.state.load(Relaxed) & (CLEAN | NAMES_ABSENT);
        let is_done = state & NAMES_ABSENT != 0 && children.is_empty();
        let is_listed = d.entries.load(Relaxed) as usize == children.len();
        let is_unused = d.refs.load(Relaxed) == 0;
        if state & CLEAN == 0 || is_done || !is_listed || !is_unused {
            return Ok(false);
        }
        let mut found = Vec::with_capacity(children.len());
        for (ino, name) in &children {
            match self.find_name(dir, name).filter(|found| found.ino == *ino) {
                Some(at) if self.is_evictable(self.live(*ino)?)? => found.push(at),
                _ => return Ok(false),
            }
        }
        // backed-B2: the flag is durable before an entry goes. A crash before the last one goes
        // leaves entries, which are right; another call goes on.
        if state & NAMES_ABSENT == 0 {
            self.store_state(d, 0, NAMES_ABSENT, d.links.load(Relaxed));
            let _ = self.medium().fence();
        }
        for ((_, name), Found { pos, .. }) in children.iter().zip(found) {
            self.unindex_name(dir, name, pos);
            let cleared = self.clear_entry(pos);
            self.update_index_after_clear(d, pos.block(), cleared)?;
        }
        // No inode, and no block, is used again before the entries are durably gone.
        let _ = self.medium().fence();
        for (ino, _) in &children {
            self.drop_name(d, *ino, self.live(*ino)?);
        }
        self.free_dir_blocks(dir, d);
        Ok(true)
    }

    /// Returns whether the backing store has all of an inode that no process uses, and whether it
    /// can go together with one name (backed-K3).
    fn is_evictable(&self, v: &VInode) -> Result<bool> {
        let state = v.state.load(Relaxed);
        let goes_with_name = match v.kind() {
            FileKind::Dir => state & NAMES_ABSENT != 0 && v.entries.load(Relaxed) == 0,
            _ => v.links.load(Relaxed) == 1,
        };
        // backed-B7.
        let may_go = v.refs.load(Relaxed) == 0 && state & PINNED == 0;
        Ok(state & CLEAN != 0 && goes_with_name && may_go && !self.has_dirty_content(v)?)
    }
}

/// Returns the extended attributes of an object.
pub fn loaded_attributes(object: &LoadedObject<'_>) -> Attributes {
    let mut list = Attributes::default();
    object.xattrs.iter().for_each(|(name, value)| list.set(name, value.clone()));
    list
}

/// Whether an inode of this kind has a device number, and no stamp.
pub(crate) fn has_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::Char | FileKind::Block)
}

/// Returns an identity of at most [`IDENTITY_MAX`] bytes as a record contains it.
fn stored(identity: &[u8]) -> [u8; IDENTITY] {
    let mut bytes = [0; IDENTITY];
    bytes[0] = identity.len() as u8;
    bytes[1..=identity.len()].copy_from_slice(identity);
    bytes
}
