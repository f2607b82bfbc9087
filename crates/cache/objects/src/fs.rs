//! The contract of `vfs`: names and attributes in the tree, contents in the store.

use crate::commit::Core;
use crate::content::{ObjectFile, Space};
use crate::format::{BLOCK, CHUNK, Op, Set, TreeNode};
use crate::journal::Journal;
use crate::lease::HeldLease;
use crate::manifest::{Committed, check_prefix};
use crate::staging::Staging;
use crate::upkeep::Upkeep;
use crate::{Error, Location, StoreOptions, lock, read};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::{
    Attr, Caller, Durability, Entry, Errno, Fallocate, FileKind, FileSystem, Ino, KernelCache,
    Limits, Mappings, NewNode, Openings, ROOT, RenameFlags, Result, Seek, SetAttr, SetXattr,
    StatFs,
};

/// The most bytes that one call copies.
const COPY_MAX: u64 = 16 << 20;
/// The reported room of a store, in bytes: stores do not report any.
const ROOM: u64 = 1 << 60;

/// A directory tree in an object store.
pub struct ObjectFs {
    /// Dropped first.
    upkeep: Option<Upkeep>,
    pub(crate) core: Arc<Core>,
}

impl ObjectFs {
    /// Opens the tree at a location, or makes one at an empty location, and holds its lease until
    /// dropped. Work in the background needs [`start_upkeep`](Self::start_upkeep).
    ///
    /// # Errors
    /// [`Error::Held`] if another process has it; all others of [`Error`].
    pub fn open(location: Location, options: StoreOptions) -> std::result::Result<Self, Error> {
        assert!(CHUNK.contains(&options.chunk_bytes) && options.chunk_bytes.is_power_of_two());
        let store = location.open()?;
        check_prefix(&store)?;
        let mut lease = HeldLease::take(&store, options.lease)?;
        let begun = Committed::begin(&store, lease.holder(), options.chunk_bytes);
        let begun = begun.and_then(|(committed, loaded)| {
            let chunk_bytes = committed.manifest.chunk_bytes.into();
            Ok((Staging::new(&options.staging, chunk_bytes)?, committed, loaded))
        });
        let (staging, committed, loaded) = match begun {
            Ok(begun) => begun,
            Err(err) => {
                // If this fails, the lease ends by itself.
                let _ = lease.release(&store);
                return Err(err);
            }
        };
        let manifest = &committed.manifest;
        let space = Space::new(store, staging, manifest.chunk_bytes.into(), manifest.epoch);
        let needed = committed.needed(&loaded.contents);
        let files = loaded.contents.files.iter().map(|(ino, chunks)| {
            let size = loaded.tree.getattr(*ino).map_or(0, |attr| attr.size);
            (*ino, Arc::new(ObjectFile::new(chunks.clone(), size)))
        });
        let files: HashMap<_, _> = files.collect();
        let core = Core {
            options,
            id: manifest.tree,
            space,
            tree: loaded.tree,
            clock: loaded.clock,
            files: Mutex::new(files),
            changed: Mutex::default(),
            journal: Mutex::new(Journal::new(loaded.contents)),
            committed: Mutex::new(committed),
            lease: Mutex::new(lease),
            is_fenced: AtomicBool::new(false),
            garbage: Mutex::default(),
            needed: Mutex::new(Some(needed)),
        };
        Ok(Self { upkeep: None, core: Arc::new(core) })
    }

    /// Starts threads that renew the lease, commit names and attributes that no call syncs, and
    /// delete unused objects.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start_upkeep(&mut self) -> std::result::Result<(), Error> {
        self.upkeep = Some(Upkeep::start(&self.core)?);
        Ok(())
    }

    /// Renews the lease once.
    pub fn renew(&self) {
        self.core.renew();
    }

    /// Deletes unused objects: those that commits replaced, and those that earlier holders of the
    /// tree left. Returns the number of the latter.
    ///
    /// # Errors
    /// `EIO`. It may be called again.
    pub fn collect(&self) -> Result<usize> {
        self.core.delete_garbage();
        self.core.collect()
    }

    /// Returns `EIO` if another holder has the tree (objects-O2).
    pub(crate) fn held(&self) -> Result<&Core> {
        if self.core.is_fenced.load(Relaxed) { Err(Errno::IO) } else { Ok(&self.core) }
    }

    /// As [`held`](Self::held), but never fails for the root, whose attributes show the state of
    /// the cache.
    fn held_or_root(&self, ino: Ino) -> Result<&Core> {
        if ino == ROOT { Ok(&self.core) } else { self.held() }
    }

    /// Returns a file's content; `None` if it always was all holes.
    fn known(&self, ino: Ino) -> Option<Arc<ObjectFile>> {
        lock(&self.core.files).get(&ino).cloned()
    }

    /// Returns a file's content, for a change. `EISDIR` or `EINVAL` if the inode is not a file.
    fn file(&self, ino: Ino) -> Result<Arc<ObjectFile>> {
        let mut files = lock(&self.core.files);
        if let Some(file) = files.get(&ino) {
            return Ok(file.clone());
        }
        let attr = self.core.tree.getattr(ino)?;
        check_file(&attr)?;
        let file = Arc::new(ObjectFile::new(crate::format::Chunks::new(), attr.size));
        files.insert(ino, file.clone());
        Ok(file)
    }

    /// Fills in the space that a file takes.
    fn counted(&self, mut attr: Attr) -> Attr {
        if attr.kind == FileKind::File
            && let Some(file) = self.known(attr.ino)
        {
            let bytes = file.chunks.load(Relaxed) * self.core.space.chunk_bytes;
            attr.blocks = bytes.min(attr.size.next_multiple_of(BLOCK)) / 512;
        }
        attr
    }

    /// Writes at the offset that `offset` returns for the file's size. Returns the offset.
    fn write_at(&self, ino: Ino, offset: impl FnOnce(u64) -> u64, data: &[u8]) -> Result<u64> {
        let core = &self.core;
        let mut attr = core.tree.getattr(ino)?;
        check_file(&attr)?;
        let file = self.file(ino)?;
        let _io = lock(&file.io);
        attr = core.tree.getattr(ino)?;
        let at = offset(attr.size);
        if data.is_empty() {
            return Ok(at);
        }
        let end = self.limits().end_of(at, data.len() as u64)?;
        if core.is_fenced.load(Relaxed) {
            return Err(Errno::ROFS);
        }
        core.make_room(ino, &file, at / core.space.chunk_bytes)?;
        core.change_file(ino, &file, |content| {
            content.prepare(&core.space, at..end)?;
            content.write(&core.space, at, data)?;
            let grow = Fallocate::Allocate { keep_size: false };
            core.change_content(ino, |tree| tree.fallocate(ino, grow, at, data.len() as u64))
        })?;
        Ok(at)
    }

    /// Changes the size and all other attributes in `set`.
    fn resize(&self, ino: Ino, size: u64, set: &SetAttr) -> Result<Attr> {
        let core = &self.core;
        let file = match core.tree.getattr(ino)?.kind {
            FileKind::File if size > self.limits().file_size => return Err(Errno::FBIG),
            FileKind::File => self.file(ino)?,
            FileKind::Dir => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        };
        let _io = lock(&file.io);
        let old = core.tree.getattr(ino)?.size;
        if core.is_fenced.load(Relaxed) {
            return Err(Errno::ROFS);
        }
        core.change_file(ino, &file, |content| {
            if size < old {
                content.zero(&core.space, old, size..old)?;
            }
            core.change_content(ino, |tree| tree.setattr(&Caller::ROOT, ino, set))
        })?;
        // One step has set all attributes. Record those that do not belong to the content.
        let rest = SetAttr { size: None, ..*set };
        if rest != SetAttr::default() {
            self.set(ino, &rest)?;
        }
        core.tree.getattr(ino)
    }

    /// Sets attributes except the size.
    fn set(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.core.change(|tree, now, journal| {
            let attr = tree.setattr(&Caller::ROOT, ino, set)?;
            if *set != SetAttr::default() {
                journal.record(now, Op::Setattr { ino, set: Set::from(set) });
                journal.note_change(ino);
            }
            Ok(attr)
        })
    }

    /// Removes a name by `act`, and records that as `op`.
    fn remove(
        &self,
        dir: Ino,
        name: &[u8],
        op: Op,
        act: impl FnOnce(&vfs::model::Model) -> Result<()>,
    ) -> Result<()> {
        self.core.change(|tree, now, journal| {
            let going = tree.peek(dir, name);
            act(tree)?;
            let ino = going?.ino;
            journal.record(now, op);
            journal.note_name(ino, dir);
            self.core.bury(journal, ino);
            Ok(())
        })
    }
}

/// Gives the lease back. Uncommitted changes are lost, as when the machine fails.
impl Drop for ObjectFs {
    fn drop(&mut self) {
        self.upkeep = None;
        self.core.delete_garbage();
        self.core.release();
    }
}

/// Returns `EISDIR` for a directory, `EINVAL` for anything else except a regular file.
fn check_file(attr: &Attr) -> Result<()> {
    match attr.kind {
        FileKind::File => Ok(()),
        FileKind::Dir => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

impl FileSystem for ObjectFs {
    vfs::forward!(self => self.core.tree; root);
    vfs::forward!(self => self.held()?.tree; readlink, readdir, listxattr);

    fn durability(&self) -> Durability {
        Durability::OnSync
    }

    fn kernel_cache(&self) -> KernelCache {
        KernelCache::WhileAlone
    }

    fn limits(&self) -> &'static Limits {
        const LIMITS: &Limits = &Limits { clones: false, ..Limits::MAX };
        LIMITS
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let entry = self.held()?.tree.lookup(dir, name)?;
        Ok(self.counted(entry))
    }

    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        *attr = self.counted(self.held()?.tree.peek(dir, name)?);
        Ok(())
    }

    fn forget(&self, ino: Ino, refs: u64) {
        let mut journal = lock(&self.core.journal);
        self.core.tree.forget(ino, refs);
        self.core.bury(&mut journal, ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.counted(self.held_or_root(ino)?.tree.getattr(ino)?))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.held_or_root(ino)?.tree.getxattr(ino, name)
    }

    fn setattr(&self, _caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = match set.size {
            Some(size) => self.resize(ino, size, set)?,
            None => self.set(ino, set)?,
        };
        Ok(self.counted(attr))
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.core.change(|tree, now, journal| {
            let entry = tree.create(caller, dir, name, node)?;
            let (ino, owner) = (entry.ino, (caller.uid, caller.gid));
            let op =
                Op::Create { ino, owner, dir, name: name.to_vec(), node: TreeNode::from(node) };
            journal.record(now, op);
            journal.note_name(ino, dir);
            Ok(entry)
        })
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.core.change(|tree, now, journal| {
            let entry = tree.tmpfile(caller, dir, mode, umask)?;
            let (ino, owner) = (entry.ino, (caller.uid, caller.gid));
            journal.record(now, Op::Tmpfile { ino, owner, dir, mode, umask });
            journal.note_name(ino, ino);
            Ok(entry)
        })
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let op = Op::Unlink { dir, name: name.to_vec() };
        self.remove(dir, name, op, |tree| tree.unlink(dir, name))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let op = Op::Rmdir { dir, name: name.to_vec() };
        self.remove(dir, name, op, |tree| tree.rmdir(dir, name))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let entry = self.core.change(|tree, now, journal| {
            let entry = tree.link(ino, dir, name)?;
            journal.record(now, Op::Link { ino, dir, name: name.to_vec() });
            journal.note_name(ino, dir);
            Ok(entry)
        })?;
        Ok(self.counted(entry))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.core.change(|tree, now, journal| {
            let (moved, other) = (tree.peek(from.0, from.1), tree.peek(to.0, to.1));
            tree.rename(from, to, flags)?;
            let (moved, other) = (moved?.ino, other.ok().map(|other| other.ino));
            let (old, new) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
            let op = Op::Rename { from: old, to: new, flags: flags.bits() };
            journal.record(now, op);
            journal.note_name(moved, from.0);
            journal.note_name(moved, to.0);
            if let Some(other) = other {
                journal.note_name(other, to.0);
                self.core.bury(journal, other);
            }
            Ok(())
        })
    }

    /// Renames, and creates a whiteout at the old name (`RENAME_WHITEOUT`). Records both under one
    /// hold of the journal, so one commit has both.
    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.core.change(|tree, now, journal| {
            let (moved, other) = (tree.peek(from.0, from.1), tree.peek(to.0, to.1));
            tree.rename_whiteout(caller, from, to, flags)?;
            let (moved, other) = (moved?.ino, other.ok().map(|other| other.ino));
            let (old, new) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
            journal.record(now, Op::Rename { from: old, to: new, flags: flags.bits() });
            let left = tree.peek(from.0, from.1)?.ino;
            if left == moved {
                return Ok(());
            }
            let (owner, node) = ((caller.uid, caller.gid), TreeNode::from(&NewNode::WHITEOUT));
            let (dir, name) = (from.0, from.1.to_vec());
            journal.record(now, Op::Create { ino: left, owner, dir, name, node });
            [(moved, from.0), (moved, to.0), (left, from.0)]
                .into_iter()
                .for_each(|(ino, dir)| journal.note_name(ino, dir));
            if let Some(other) = other {
                journal.note_name(other, to.0);
                self.core.bury(journal, other);
            }
            Ok(())
        })
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let core = self.held()?;
        check_file(&core.tree.getattr(ino)?)?;
        let file = self.known(ino);
        let content = file.as_ref().map(|file| read(&file.content));
        // A thread that changes the size holds the content's lock.
        let size = core.tree.getattr(ino)?.size;
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        buf[..len].fill(0);
        if let Some(content) = content.filter(|_| len > 0) {
            content.read(&core.space, offset, &mut buf[..len])?;
        }
        Ok(len)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(ino, |_| offset, data).map(drop)
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.write_at(ino, |size| size, data)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.core.change(|tree, now, journal| {
            tree.drop_privileges(ino)?;
            journal.record(now, Op::DropPrivileges { ino });
            journal.note_change(ino);
            Ok(())
        })
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let core = &self.core;
        let attr = core.tree.getattr(ino)?;
        self.limits().check_fallocate((attr.kind, attr.size), mode, offset, len)?;
        let file = self.file(ino)?;
        let _io = lock(&file.io);
        let size = core.tree.getattr(ino)?.size;
        let range = self.limits().check_fallocate((attr.kind, size), mode, offset, len)?;
        if core.is_fenced.load(Relaxed) {
            return Err(Errno::ROFS);
        }
        core.change_file(ino, &file, |content| {
            match mode {
                Fallocate::Allocate { .. } => {}
                Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                    content.zero(&core.space, size, range.clone())?;
                }
                Fallocate::Collapse => content.shift(&core.space, size, range.end, range.start)?,
                Fallocate::Insert => content.shift(&core.space, size, range.start, range.end)?,
            }
            core.change_content(ino, |tree| tree.fallocate(ino, mode, offset, len))
        })
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let core = self.held()?;
        check_file(&core.tree.getattr(ino)?)?;
        let file = self.known(ino);
        let content = file.as_ref().map(|file| read(&file.content));
        let size = core.tree.getattr(ino)?.size;
        let found = match content {
            Some(content) => content.seek(&core.space, size, offset, whence),
            None => (whence == Seek::Hole && offset < size).then_some(offset),
        };
        found.ok_or(Errno::NXIO)
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let core = &self.core;
        for ino in [from.0, to.0] {
            check_file(&core.tree.getattr(ino)?)?;
        }
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        let (first, second) = if from.0 < to.0 { (&source, &target) } else { (&target, &source) };
        let _first = lock(&first.io);
        let _second = (from.0 != to.0).then(|| lock(&second.io));
        let size = core.tree.getattr(from.0)?.size;
        let len = len.min(size.saturating_sub(from.1));
        if len == 0 {
            return Ok(0);
        }
        let end = self.limits().end_of(to.1, len)?;
        if from.0 == to.0 && from.1 < end && to.1 < from.1 + len {
            return Err(Errno::INVAL);
        }
        if core.is_fenced.load(Relaxed) {
            return Err(Errno::ROFS);
        }
        let len = len.min(COPY_MAX);
        core.make_room(to.0, &target, to.1 / core.space.chunk_bytes)?;
        let mut bytes = vec![0; len as usize];
        read(&source.content).read(&core.space, from.1, &mut bytes)?;
        core.change_file(to.0, &target, |content| {
            content.prepare(&core.space, to.1..to.1 + len)?;
            content.write(&core.space, to.1, &bytes)?;
            let grow = Fallocate::Allocate { keep_size: false };
            core.change_content(to.0, |tree| tree.fallocate(to.0, grow, to.1, len))
        })?;
        Ok(len)
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        self.core.tree.getattr(ino)?;
        if let Some(file) = self.known(ino) {
            self.core.record_content(ino, &file)?;
        }
        self.core.commit()
    }

    fn sync(&self) -> Result<()> {
        self.core.sync()
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.core.change(|tree, now, journal| {
            tree.setxattr(ino, name, value, mode)?;
            let op = Op::Setxattr { ino, name: name.to_vec(), value: value.to_vec() };
            journal.record(now, op);
            journal.note_change(ino);
            Ok(())
        })
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.core.change(|tree, now, journal| {
            tree.removexattr(ino, name)?;
            journal.record(now, Op::Removexattr { ino, name: name.to_vec() });
            journal.note_change(ino);
            Ok(())
        })
    }

    fn statfs(&self) -> StatFs {
        let chunks: u64 =
            lock(&self.core.files).values().map(|file| file.chunks.load(Relaxed)).sum();
        let used = chunks * self.core.space.chunk_bytes / BLOCK;
        let blocks = ROOM / BLOCK;
        let blocks_free = blocks.saturating_sub(used);
        let (block_size, blocks_available) = (BLOCK as u32, blocks_free);
        StatFs { block_size, blocks, blocks_free, blocks_available, ..self.core.tree.statfs() }
    }
}

impl Mappings for ObjectFs {}

impl Openings for ObjectFs {}
