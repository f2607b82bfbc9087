//! Names: create, link, unlink, and listings.
//!
//! | operation | commit |
//! |---|---|
//! | create, mkdir, mknod, symlink, link | the entry's inode number, in place |
//! | unlink, rmdir | zero into the entry's inode number, in place |

use crate::derived::{REMOVED, SharedPool as _, UNNAMED};
use crate::fs::Core;
use crate::index::{Found, Next};
use crate::layout::*;
use crate::store::Storage;
use crate::tables::VInode;
use crate::xattr::Attributes;
use arena::Ticket;
use pmem::LINE;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use vfs::rules::NewInode;
use vfs::{Attr, Caller, DirEntry, Entry, Errno, FileKind, Ino, NewKind, NewNode, ROOT, Result};

/// Where listings continue after `.` and `..`; an entry's cookie adds its offset in units.
const COOKIE_ENTRIES: u64 = 2;

/// The target of a name when the ticket of its directory's lock was taken.
pub struct Resolved {
    pub found: Option<Found>,
    ticket: Ticket,
}

/// Returns the kind as an entry stores it.
pub fn kind_bits(kind: FileKind) -> u8 {
    (kind.mode_bits() >> 12) as u8
}

impl<S: Storage> Core<S> {
    /// Implements `FileSystem::lookup`.
    pub fn lookup(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        if name == b"." {
            let _lock = self.tables().lock_shared(dir)?;
            let v = self.live(dir)?;
            self.hold(dir, v);
            self.attr_into(dir, v, entry);
            return Ok(());
        }
        let target = match self.hold_optimistic(dir, name)? {
            Some(held) => held?,
            None => {
                let _lock = self.tables().lock_shared(dir)?;
                let d = self.live_dir(dir)?;
                S::LIMITS.check_component(name)?;
                let target = match name {
                    b".." if d.state.load(Relaxed) & REMOVED != 0 => return Err(Errno::NOENT),
                    b".." => self.parent(dir, d),
                    _ => self.find_name(dir, name).ok_or_else(|| self.missing(d))?.ino,
                };
                // The name, guarded by the directory's lock, keeps the inode alive until it is
                // held.
                self.hold(target, self.tables().vinode(target)?);
                target
            }
        };
        if self.attr_optimistic(target, entry) {
            self.prefetch_content(self.tables().vinode(target)?, entry);
            return Ok(());
        }
        let _lock = self.tables().lock_shared(target).inspect_err(|_| {
            if let (Ok(v), Ok(process)) =
                (self.tables().vinode(target), self.tables().arena.process())
            {
                self.tables().drop_refs(process, target, v, 1);
            }
        })?;
        match self.live(target) {
            Ok(v) => {
                self.attr_into(target, v, entry);
                Ok(())
            }
            Err(e) => {
                tracing::error!(%dir, %target, "a name leads to a dead inode");
                Err(e)
            }
        }
    }

    /// Holds the inode that a name in a directory leads to, without a lock; `None` if the directory
    /// changes meanwhile.
    ///
    /// The directory's ticket, checked after the reference was added, guarantees that the name
    /// still exists. An operation that removes the name checks the references later, so one of the
    /// two sees the other (both here are sequentially consistent, `drop_name` fences). A reference
    /// to an inode that had died before is given back, even if another inode lives there now.
    fn hold_optimistic(&self, dir: Ino, name: &[u8]) -> Result<Option<Result<Ino>>> {
        let d = self.tables().vinode(dir)?;
        let Some(seen) = d.lock.begin_optimistic() else { return Ok(None) };
        let is_plain = !matches!(name, b"." | b"..") && S::LIMITS.check_component(name).is_ok();
        if !is_plain || self.live_dir(dir).is_err() {
            return Ok(None);
        }
        let Some(Found { ino, .. }) = self.find_name_before(Next::Hold, dir, name) else {
            let missing = self.missing(d);
            return Ok(d.lock.end_optimistic(seen).then_some(Err(missing)));
        };
        let v = self.tables().vinode(ino)?;
        self.hold(ino, v);
        if d.lock.end_optimistic(seen) {
            return Ok(Some(Ok(ino)));
        }
        if self.tables().drop_refs(self.tables().arena.process()?, ino, v, 1) {
            self.reap_if_unused(ino, v)?;
        }
        Ok(None)
    }

    /// Implements `FileSystem::peek_into` if nothing changes meanwhile, without a store to shared
    /// memory; else `None`. The inode's ticket guarantees its attributes. The directory's ticket,
    /// which is older and checked last, guarantees that the name led there all the time.
    pub fn peek(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Option<Result<()>> {
        let d = self.tables().vinode(dir).ok()?;
        let seen = d.lock.begin_optimistic()?;
        if matches!(name, b"." | b"..") || S::LIMITS.check_component(name).is_err() {
            return None;
        }
        self.live_dir(dir).ok()?;
        let Some(found) = self.find_name_before(Next::Look, dir, name) else {
            let missing = self.missing(d);
            return d.lock.end_optimistic(seen).then_some(Err(missing));
        };
        let v = self.tables().vinode(found.ino).ok()?;
        let seen_inode = v.lock.begin_optimistic()?;
        self.common_attr_into(found.ino, self.live(found.ino).ok()?, attr);
        (v.lock.end_optimistic(seen_inode) && d.lock.end_optimistic(seen)).then_some(Ok(()))
    }

    fn parent(&self, dir: Ino, d: &VInode) -> Ino {
        if dir == ROOT { ROOT } else { Ino(u64::from(d.parent.load(Relaxed))) }
    }

    /// Implements `FileSystem::create`.
    pub fn create(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Result<Entry> {
        self.check_writable()?;
        let ino = self.new_inode()?;
        self.prefetch_inode(Next::Hold, ino);
        let kind = node.kind.file_kind();
        let is_present = || self.check_names(&[dir]);
        let made = self.change_if(&[dir, ino], is_present, || {
            let d = self.live_dir(dir)?;
            S::LIMITS.check_name(name)?;
            if let NewKind::Symlink(target) = node.kind {
                S::LIMITS.check_target(target)?;
            }
            if self.find_name(dir, name).is_some() {
                return Err(Errno::EXIST);
            }
            self.open_dir(dir)?;
            let v = self.tables().vinode(ino)?;
            v.begin(kind, 0);
            let prepare = |core: &Self| core.make_slot((dir, d), name, (ino, v));
            let (record, slot) =
                self.write_new(caller, dir, d, v, node, prepare).inspect_err(|_| v.end())?;
            self.touch_modified(d);
            let has_content = record.size.get() != 0 || record.xattr.get() != 0;
            // Not loaded from PM: to load a line that is being flushed takes as long as a fence.
            let life = Life { ino, generation: record.generation.get() };
            self.commit_slot(&slot, life, !has_content);
            self.update_index_after_add(d, &slot)?;
            if kind == FileKind::Dir {
                v.parent.store(dir.0 as u32, Relaxed);
                d.add_links(1);
            } else {
                v.links.store(1, Relaxed);
            }
            self.count_inode(v);
            let mut attr = v.attr(ino, &record);
            if self.is_backed() {
                v.count_absent(&mut attr, 0);
            }
            Ok(attr)
        });
        if made.is_err() {
            self.tables().release_inode(ino);
        }
        made
    }

    /// Implements `FileSystem::tmpfile`.
    pub fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.check_writable()?;
        let ino = self.new_inode()?;
        let node = NewNode { kind: NewKind::File, mode, umask };
        let made = self.change(&[dir, ino], || {
            let d = self.live_dir(dir)?;
            let v = self.tables().vinode(ino)?;
            v.begin(FileKind::File, UNNAMED);
            let (record, ()) =
                self.write_new(caller, dir, d, v, &node, |_| Ok(())).inspect_err(|_| v.end())?;
            // Another thread may name it later, and that thread's fence covers only its own stores.
            let _ = self.medium().fence();
            self.note_unnamed(ino);
            self.hold(ino, v);
            Ok(v.attr(ino, &record))
        });
        if made.is_err() {
            self.tables().release_inode(ino);
        }
        made
    }

    /// Writes a new inode with the attributes that it inherits from its directory and, for a
    /// symbolic link, its target. `prepare` does everything else that can fail. It runs shortly
    /// before, because an atomic operation waits for the flushes before it.
    pub(crate) fn write_new<T>(
        &self,
        caller: &Caller,
        dir: Ino,
        d: &VInode,
        v: &VInode,
        node: &NewNode<'_>,
        prepare: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(InodeRecord, T)> {
        let default = match self.load(d, Word::Xattr) {
            0 => None,
            _ => self.attributes(d)?.get(ACL_DEFAULT).map(Acl::parse).transpose()?,
        };
        let new = NewInode::derive(caller, &self.attr(dir, d), default.as_ref(), node);
        let mut acls = Attributes::default();
        for (name, acl) in [(ACL_ACCESS, new.access), (ACL_DEFAULT, new.default)] {
            if let Some(acl) = acl {
                acls.set(name, acl.to_bytes());
            }
        }
        let target: &[u8] = match node.kind {
            NewKind::Symlink(target) => target,
            _ => &[],
        };
        let mut record = InodeRecord::born(self.now().0);
        record.mode = (node.kind.file_kind().mode_bits() | new.perm).into();
        record.set_generation(self.next_generation(v));
        record.uid = caller.uid.into();
        record.gid = new.gid.into();
        record.size = (target.len() as u64).into();
        if let NewKind::Char(rdev) | NewKind::Block(rdev) = node.kind {
            record.rdev = rdev.into();
        }
        self.write_new_inode(v, record, target, &acls, || prepare(self))
    }

    /// Chooses a generation for the next life of an inode. It differs from the one in the record,
    /// which may belong to a creation that a crash cut off.
    pub fn next_generation(&self, v: &VInode) -> u32 {
        let [first, second] = self.generations(v);
        match first.wrapping_add(1) {
            next if next == second => next.wrapping_add(1),
            next => next,
        }
    }

    /// Implements `FileSystem::readlink`.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.prepare_access(ino)?;
        let _lock = self.tables().lock_shared(ino)?;
        let v = self.live(ino)?;
        if v.kind() != FileKind::Symlink {
            return Err(Errno::INVAL);
        }
        let size = self.load(v, Word::Size);
        if !(1..=S::LIMITS.symlink as u64).contains(&size) {
            return Err(Errno::UCLEAN);
        }
        let mut target = vec![0; size as usize];
        self.read_target(v, &mut target)?;
        self.touch_accessed(ino, v);
        Ok(target)
    }

    /// Implements `FileSystem::link`.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let inos = [ino, dir];
        let inos = if ino == dir { &inos[..1] } else { &inos[..] };
        let is_present = || self.check_names(&[dir]);
        self.change_if(inos, is_present, || {
            let v = self.live(ino)?;
            let d = self.live_dir(dir)?;
            if v.kind() == FileKind::Dir {
                return Err(Errno::PERM);
            }
            S::LIMITS.check_name(name)?;
            if self.find_name(dir, name).is_some() {
                return Err(Errno::EXIST);
            }
            self.open_dir(dir)?;
            let links = v.links.load(Relaxed);
            if links == 0 && v.state.load(Relaxed) & UNNAMED == 0 {
                return Err(Errno::NOENT);
            }
            if links >= S::LIMITS.links {
                return Err(Errno::MLINK);
            }
            let life = self.life(ino, v);
            let slot = self.make_slot((dir, d), name, (ino, v))?;
            self.touch_modified(d);
            self.touch_changed(v);
            self.commit_slot(&slot, life, true);
            self.update_index_after_add(d, &slot)?;
            v.links.store(links + 1, Relaxed);
            v.state.fetch_and(!UNNAMED, Relaxed);
            self.count_inode(v);
            Ok(self.attr(ino, v))
        })
    }

    /// Implements `FileSystem::unlink`.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove(dir, name, |core, ino| match core.live(ino)?.kind() {
            FileKind::Dir => Err(Errno::ISDIR),
            _ => Ok(()),
        })
    }

    /// Implements `FileSystem::rmdir`.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if name == b".." {
            let _lock = self.tables().lock_shared(dir)?;
            return self.live_dir(dir).and(Err(Errno::NOTEMPTY));
        }
        self.remove(dir, name, Self::check_empty)
    }

    /// Fails with `ENOTDIR` or `ENOTEMPTY` unless `ino` is an empty directory.
    pub(crate) fn check_empty(&self, ino: Ino) -> Result<()> {
        match self.live_dir(ino)?.entries.load(Relaxed) {
            0 => Ok(()),
            _ => Err(Errno::NOTEMPTY),
        }
    }

    /// Removes a name if `check` allows that for its inode, durably. Calls `check` under the locks
    /// of both inodes.
    fn remove(
        &self,
        dir: Ino,
        name: &[u8],
        check: impl Fn(&Self, Ino) -> Result<()>,
    ) -> Result<()> {
        self.check_writable()?;
        loop {
            let resolved = self.resolve(dir, name)?;
            let missing = || self.tables().vinode(dir).map_or(Errno::STALE, |d| self.missing(d));
            let Found { ino, pos } = resolved.found.ok_or_else(missing)?;
            // Prefetches the lines that clearing the entry and giving the blocks back will read.
            self.medium().prefetch(self.tables().entry_at(pos), (BLOCK - pos.off()).min(2 * LINE));
            self.prefetch_reap(self.tables().vinode(ino)?);
            let is_present = || {
                self.check_names(&[dir])?;
                self.check_removable(ino)
            };
            let removed = self.change_if(&[dir, ino], is_present, || {
                let d = self.live_dir(dir)?;
                let Some(found) = self.resolve_again(dir, name, &resolved)?.flatten() else {
                    return Ok(false);
                };
                check(self, ino)?;
                let v = self.live(ino)?;
                // Before the first flush, as in `make_slot`.
                self.unindex_name(dir, name, found.pos);
                self.touch_modified(d);
                if v.links.load(Relaxed) > 1 || v.refs.load(Relaxed) > 0 {
                    self.touch_changed(v);
                }
                let cleared = self.clear_entry(found.pos);
                let _ = self.medium().fence();
                self.update_index_after_clear(d, found.pos.block(), cleared)?;
                self.drop_name(d, ino, v);
                Ok(true)
            })?;
            if removed {
                return Ok(());
            }
        }
    }

    /// Finds a name in order to lock the inode that it names.
    pub(crate) fn resolve(&self, dir: Ino, name: &[u8]) -> Result<Resolved> {
        let d = self.tables().vinode(dir)?;
        let find = || -> Result<Option<Found>> {
            self.live_dir(dir)?;
            S::LIMITS.check_name(name)?;
            Ok(self.find_name(dir, name))
        };
        if let Some(ticket) = d.lock.begin_optimistic() {
            let found = find();
            if d.lock.end_optimistic(ticket) {
                return Ok(Resolved { found: found?, ticket });
            }
        }
        let _lock = self.tables().lock_shared(dir)?;
        let ticket = d.lock.begin_optimistic().expect("readers keep writers out");
        Ok(Resolved { found: find()?, ticket })
    }

    /// Returns the entry of a name now, under the directory's exclusive lock; `None` if it leads
    /// elsewhere.
    pub(crate) fn resolve_again(
        &self,
        dir: Ino,
        name: &[u8],
        resolved: &Resolved,
    ) -> Result<Option<Option<Found>>> {
        let found = resolved.found;
        if self.tables().vinode(dir)?.lock.is_first_since(resolved.ticket) {
            return Ok(Some(found));
        }
        let now = self.find_name(dir, name);
        let is_same = now.map(|now| now.ino) == found.map(|found| found.ino);
        Ok(is_same.then_some(now))
    }

    /// Updates the links after the removal of one name of `ino`, in the directory `d`.
    pub(crate) fn drop_name(&self, d: &VInode, ino: Ino, v: &VInode) {
        let last = if v.kind() == FileKind::Dir {
            d.add_links(-1);
            v.state.fetch_or(REMOVED, Relaxed);
            true
        } else {
            v.add_links(-1) == 0
        };
        self.count_inode(v);
        // See `hold_optimistic`.
        fence(SeqCst);
        if !last {
            return;
        }
        match v.refs.load(Acquire) {
            0 => self.reap(ino, v),
            _ => {
                self.note_unnamed(ino);
                self.notify_unnamed(ino);
            }
        }
    }

    /// Implements `FileSystem::readdir`.
    pub fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.prepare_access(dir)?;
        let _lock = self.tables().lock_shared(dir)?;
        let d = self.live_dir(dir)?;
        self.open_dir(dir)?;
        self.touch_accessed(dir, d);
        let dots: [(Ino, &[u8]); 2] = [(dir, b"."), (self.parent(dir, d), b"..")];
        for (i, (ino, name)) in dots.into_iter().enumerate().skip(cookie.min(2) as usize) {
            let e = DirEntry { ino, kind: FileKind::Dir, name, cookie: i as u64 + 1 };
            if !emit(&e) {
                return Ok(());
            }
        }
        let from = cookie.saturating_sub(COOKIE_ENTRIES).saturating_mul(DIRENT_UNIT);
        self.list(d, from, &mut |e| {
            emit(&DirEntry {
                ino: e.ino,
                kind: FileKind::from_mode(u32::from(e.kind) << 12).unwrap_or(FileKind::File),
                name: e.name,
                cookie: e.off / DIRENT_UNIT + 1 + COOKIE_ENTRIES,
            })
        })
    }
}
