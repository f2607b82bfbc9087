//! Names and inodes of a pool with a backing store ([`vfs::Backed`]): loaded, marked clean, and evicted.
//!
//! - state-B1: the record of an inode says that it is clean only while the derived state may say so ([`CLEAN`]); the record
//!   is changed first when the mark goes, durably, and last when it comes.
//! - state-B2: a directory whose names are absent may have some entries: those are right. Only that a name is missing
//!   means nothing.

use crate::fs::Core;
use crate::index::Found;
use crate::layout::*;
use crate::store::Storage;
use crate::tables::{CLEAN, NAMES_ABSENT, VInode};
use crate::xattr::Attributes;
use pmem::Fenced;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Attr, Errno, FileKind, IDENTITY_MAX, Ino, LoadedObject, Residence, Result};

impl<S: Storage> Core<S> {
    /// Takes the marks of clean inodes off before they change. The caller holds their locks exclusively (state-B1).
    pub fn mark_dirty(&self, inos: &[Ino]) {
        let mut has_marks = false;
        for v in inos.iter().filter_map(|ino| self.live(*ino).ok()) {
            if v.state.load(Relaxed) & CLEAN != 0 {
                self.store_state(v, CLEAN, 0);
                has_marks = true;
            }
        }
        if has_marks {
            let _ = self.medium().fence();
        }
    }

    /// Changes the state of an inode, in PM and derived; durable after the next fence.
    fn store_state(&self, v: &VInode, off: u32, on: u32) {
        let now = v.state.load(Relaxed) & !off | on;
        let bit = |flag: u32, stored: u32| if now & flag != 0 { u64::from(stored) } else { 0 };
        let at = self.word_at(v, Word::State);
        let links = self.medium().load_u64(at) >> 32 << 32;
        let state = bit(CLEAN, STATE_CLEAN) | bit(NAMES_ABSENT, STATE_NAMES_ABSENT);
        self.medium().publish_word(at, links | state, Fenced::not_needed("the caller fences"));
        self.medium().flush(at, 8);
        v.state.fetch_and(!off, Relaxed);
        v.state.fetch_or(on, Relaxed);
    }

    /// The flags of an inode that its record states.
    pub(crate) fn residence_flags(&self, v: &VInode, kind: FileKind) -> u32 {
        if !self.is_backed() {
            return 0;
        }
        let state = self.load(v, Word::State) as u32;
        let clean = if state & STATE_CLEAN != 0 { CLEAN } else { 0 };
        let is_absent = kind == FileKind::Dir && state & STATE_NAMES_ABSENT != 0;
        clean | if is_absent { NAMES_ABSENT } else { 0 }
    }

    /// [`vfs::Backed::residence`].
    pub fn residence(&self, ino: Ino) -> Result<Residence> {
        let _lock = self.tables().lock_shared(ino)?;
        let v = self.live(ino)?;
        let mut bytes = [0; IDENTITY];
        self.medium().read(self.word_at(v, Word::Identity), &mut bytes);
        let len = usize::from(bytes[0]);
        if len > IDENTITY_MAX {
            return Err(Errno::UCLEAN);
        }
        let state = v.state.load(Relaxed);
        Ok(Residence {
            is_clean: state & CLEAN != 0,
            are_names_absent: state & NAMES_ABSENT != 0,
            identity: bytes[1..=len].to_vec(),
        })
    }

    fn check_backed(&self) -> Result<()> {
        self.check_writable()?;
        if self.is_backed() { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    /// A directory whose names are absent, that has no such name yet.
    fn dir_to_load(&self, dir: Ino, name: &[u8]) -> Result<&VInode> {
        let d = self.live_dir(dir)?;
        S::LIMITS.check_name(name)?;
        if d.state.load(Relaxed) & NAMES_ABSENT == 0 {
            return Err(Errno::INVAL);
        }
        if self.find_name(dir, name).is_some() { Err(Errno::EXIST) } else { Ok(d) }
    }

    /// [`vfs::Backed::load_name`].
    pub fn load_name(&self, dir: Ino, name: &[u8], object: &LoadedObject<'_>) -> Result<Ino> {
        self.check_backed()?;
        if !(1..=IDENTITY_MAX).contains(&object.identity.len()) {
            return Err(Errno::INVAL);
        }
        let ino = self.new_inode()?;
        let load = || {
            let _locks = self.tables().lock_for_change(&[dir, ino])?;
            let d = self.dir_to_load(dir, name)?;
            let v = self.tables().vinode(ino)?;
            let kind = object.attr.kind;
            let absent = if kind == FileKind::Dir { NAMES_ABSENT } else { 0 };
            v.begin(kind, CLEAN | absent);
            let mut xattrs = Attributes::default();
            object.xattrs.iter().for_each(|(name, value)| xattrs.set(name, value.clone()));
            if !xattrs.is_empty() {
                v.state.fetch_or(crate::tables::MAY_BE_CAPABLE, Relaxed);
            }
            let record = self.loaded_record(v, object, absent != 0);
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

    /// The record of an inode for an object.
    fn loaded_record(&self, v: &VInode, object: &LoadedObject<'_>, is_dir: bool) -> InodeRecord {
        let Attr { kind, perm, nlink, uid, gid, rdev, size, .. } = object.attr;
        let mut record = InodeRecord::born(0);
        record.mtime = (object.attr.mtime.0 as u64).into();
        record.ctime = (object.attr.ctime.0 as u64).into();
        record.atime = (object.attr.atime.0 as u64).into();
        record.btime = (object.attr.btime.0 as u64).into();
        record.mode = (kind.mode_bits() | perm).into();
        record.set_generation(self.next_generation(v));
        (record.uid, record.gid, record.rdev) = (uid.into(), gid.into(), rdev.into());
        match kind {
            FileKind::File => {
                record.size = size.into();
                record.root = self.absent_root(size).into();
            }
            FileKind::Symlink => record.size = (object.target.len() as u64).into(),
            _ => {}
        }
        let names_absent = if is_dir { STATE_NAMES_ABSENT } else { 0 };
        record.state = (STATE_CLEAN | names_absent).into();
        record.absent_links = if is_dir { 0 } else { nlink.saturating_sub(1) }.into();
        record.identity[0] = object.identity.len() as u8;
        record.identity[1..=object.identity.len()].copy_from_slice(object.identity);
        record
    }

    /// [`vfs::Backed::load_link`].
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
        // A crash between the two leaves a link too many, which the next load of the attributes mends.
        let at = self.word_at(v, Word::State);
        let word = self.medium().load_u64(at);
        if word >> 32 > 0 {
            self.medium().publish_word(at, word - (1 << 32), Fenced::not_needed("a count"));
            self.medium().flush(at, 8);
        }
        self.commit_slot(&slot, life, true);
        self.update_index_after_add(d, &slot)?;
        v.add_links(1);
        self.drop_hold(ino, v)
    }

    /// Gives a reference back that [`make_slot`](Self::make_slot) took.
    fn drop_hold(&self, ino: Ino, v: &VInode) -> Result<()> {
        self.tables().drop_refs(self.tables().arena.process()?, ino, v, 1);
        Ok(())
    }

    /// [`vfs::Backed::finish_names`].
    pub fn finish_names(&self, dir: Ino) -> Result<()> {
        self.check_backed()?;
        let _lock = self.tables().lock_exclusive(&[dir])?;
        let d = self.live_dir(dir)?;
        if d.state.load(Relaxed) & NAMES_ABSENT != 0 {
            // The entries are durable: each was committed.
            self.store_state(d, NAMES_ABSENT, 0);
            let _ = self.medium().fence();
        }
        Ok(())
    }

    /// [`vfs::Backed::clean_inode`].
    pub fn clean_inode(&self, ino: Ino, identity: &[u8], version: u64) -> Result<bool> {
        self.check_backed()?;
        if !(1..=IDENTITY_MAX).contains(&identity.len()) {
            return Err(Errno::INVAL);
        }
        let _lock = self.tables().lock_exclusive(&[ino])?;
        let v = self.live(ino)?;
        if !v.lock.is_first_since_version(version as u32) {
            return Ok(false);
        }
        let mut bytes = [0; IDENTITY];
        bytes[0] = identity.len() as u8;
        bytes[1..=identity.len()].copy_from_slice(identity);
        let at = self.word_at(v, Word::Identity);
        self.medium().write(at, &bytes);
        self.medium().flush(at, IDENTITY as u64);
        // The mark lies in the line of the identity, and is stored after it.
        self.store_state(v, 0, CLEAN);
        let _ = self.medium().fence();
        Ok(true)
    }

    /// [`vfs::Backed::evict_names`].
    pub fn evict_names(&self, dir: Ino) -> Result<bool> {
        self.check_backed()?;
        // Of what was listed before the locks were taken nothing is believed.
        let mut children = Vec::new();
        {
            let _lock = self.tables().lock_shared(dir)?;
            let d = self.live_dir(dir)?;
            self.list(d, 0, &mut |e| {
                children.push((e.ino, e.name.to_vec()));
                true
            })?;
        }
        let inos: Vec<Ino> = children.iter().map(|(ino, _)| *ino).chain([dir]).collect();
        let _locks = self.tables().lock_for_change(&inos)?;
        let d = self.live_dir(dir)?;
        let is_listed = d.entries.load(Relaxed) as usize == children.len();
        let is_idle = |v: &VInode| v.refs.load(Relaxed) == 0;
        if !is_listed || d.state.load(Relaxed) & (CLEAN | NAMES_ABSENT) != CLEAN {
            return Ok(false);
        }
        let mut found = Vec::with_capacity(children.len());
        for (ino, name) in &children {
            let Some(at) = self.find_name(dir, name).filter(|found| found.ino == *ino) else {
                return Ok(false);
            };
            let v = self.live(*ino)?;
            let state = v.state.load(Relaxed);
            let is_whole = v.kind() == FileKind::Dir && state & NAMES_ABSENT == 0;
            // Of a file with several names the others would be lost.
            let has_more = v.kind() != FileKind::Dir && v.links.load(Relaxed) != 1;
            if state & CLEAN == 0
                || is_whole
                || has_more
                || !is_idle(v)
                || self.has_dirty_content(v)?
            {
                return Ok(false);
            }
            found.push(at);
        }
        self.store_state(d, 0, NAMES_ABSENT);
        let _ = self.medium().fence();
        for ((ino, name), Found { pos, .. }) in children.iter().zip(found) {
            let v = self.live(*ino)?;
            self.unindex_name(dir, name, pos);
            let cleared = self.clear_entry(pos);
            let _ = self.medium().fence();
            self.update_index_after_clear(d, pos.block(), cleared)?;
            self.drop_name(d, *ino, v);
        }
        Ok(true)
    }
}
