//! A pool with a backing store as a file system: loads what a call needs, and repeats the call.
//!
//! The pool holds the tree ([`vfs::Backed`]). A call that needs what is absent fails there and
//! changes nothing (backed-K1). [`Loading`] then loads from the backing store what the arguments of
//! the call cover: directories whole, with everything that their objects have except contents, and
//! ranges of contents. A sequential reader gets more of the file than it asks for.
//!
//! - loading-A1: one thread at a time loads the names of a directory, or the content of a file.
//!   Others that need the same wait for it.
//! - loading-A2: all loaded names of one backing object are names of one inode of the pool. The map
//!   of [`Links`] has each loaded file that may have other names.
//! - loading-A3: the error of a load is the error of the call. A call that fails changes nothing.
//!
//! [`write_back`](Loading::write_back) brings changes below. Loaded parts are not compared with the
//! backing store again. [`make_room`](Loading::make_room) and [`keep_room`](Loading::keep_room)
//! evict.

use crate::evict::{Evict, EvictOptions};
use crate::{BLOCK, lock};
use backing::{Backing, Identity};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use vfs::{
    ABSENT, Attr, Backed, Caller, Delegations, DirEntry, Entry, Errno, Fallocate, FileKind,
    FileSystem, IDENTITY_MAX, Ino, LoadedObject, Mappings, NewNode, Openings, ROOT, RenameFlags,
    Residence, Result, Seek, SetAttr, SetTime, SetXattr,
};

/// Most bytes of one read of the backing store.
const READ_AHEAD: u64 = 256 << 10;

/// Most bytes that one call copies between files.
const COPY_MAX: u64 = 16 << 20;

/// Attempts of a call that finds nothing to load, while other threads evict what it needs.
const IDLE_ATTEMPTS: u32 = 16;

/// Most files whose last load is remembered.
const STREAMS: usize = 1024;

/// A part of the pool that a call may need.
#[derive(Clone, Copy)]
enum Need<'a> {
    /// All names of a directory.
    Names(Ino),
    /// The same, and that its entry of this name can go.
    Removal(Ino, &'a [u8]),
    /// A range of a file's content; if it reaches behind the end, the last block.
    Content(Ino, u64, u64),
    /// The content from a byte on, until the call finds what it searches.
    Search(Ino, u64),
}

/// Loaded files that may have other names, by the identity of their objects (loading-A2).
#[derive(Default)]
struct Links {
    inodes: HashMap<Vec<u8>, Ino>,
    /// The number of entries at which those of inodes that are gone are removed.
    prune_at: usize,
}

/// A pool with a backing store, and the backing store.
pub struct Loading<P, B> {
    pool: P,
    backing: B,
    links: Mutex<Links>,
    /// Inodes of which a thread loads names or content (loading-A1).
    busy: Mutex<HashSet<Ino>>,
    is_free: Condvar,
    /// The ends of the last loads of files, for read-ahead.
    streams: Mutex<HashMap<Ino, u64>>,
    /// One thread at a time writes back.
    writing: Mutex<()>,
    /// The number of the next private name.
    next_private: AtomicU64,
    /// What can be evicted.
    evict: Evict,
}

/// The right to load names or content of an inode.
struct LoadTurn<'a, P: Backed, B: Backing>(&'a Loading<P, B>, Ino);

impl<P: Backed, B: Backing> Drop for LoadTurn<'_, P, B> {
    fn drop(&mut self) {
        lock(&self.0.busy).remove(&self.1);
        self.0.is_free.notify_all();
    }
}

/// An inode of the backing store, with a reference.
pub(crate) struct Below<'a, B: Backing>(pub &'a B, pub Entry);

impl<B: Backing> Drop for Below<'_, B> {
    fn drop(&mut self) {
        self.0.forget(self.1.ino, 1);
    }
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Attaches a pool to its backing store. The first time, the root of the pool becomes that of
    /// the backing store.
    ///
    /// # Errors
    /// `EXDEV` if the pool belongs to another backing store; errors of either.
    pub fn attach(pool: P, backing: B) -> Result<Self> {
        let (links, busy, streams) = (Mutex::default(), Mutex::default(), Mutex::default());
        let is_free = Condvar::new();
        let (writing, next_private) = (Mutex::default(), AtomicU64::default());
        let evict = Evict::new(EvictOptions::for_pool(&pool.statfs()));
        let loading =
            Self { pool, backing, links, busy, is_free, streams, writing, next_private, evict };
        loading.adopt_root()?;
        loading.find_links()?;
        Ok(loading)
    }

    /// Changes the options of eviction, before the first call.
    pub fn with_eviction(self, options: EvictOptions) -> Self {
        Self { evict: Evict::new(options), ..self }
    }

    /// Returns what can be evicted.
    pub(crate) fn evict(&self) -> &Evict {
        &self.evict
    }

    /// Returns the pool.
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// Returns the backing store.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Waits until no other thread writes back.
    pub(crate) fn write_back_turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.writing)
    }

    /// Returns the counter of private names.
    pub(crate) fn next_private(&self) -> &AtomicU64 {
        &self.next_private
    }

    /// Returns the pool again.
    pub fn into_pool(self) -> P {
        self.pool
    }

    /// Makes the names of a directory absent, if that is possible ([`Backed::evict_names`]).
    ///
    /// # Errors
    /// Those of the pool.
    pub fn evict_names(&self, dir: Ino) -> Result<bool> {
        // No name of a file comes while its inode goes (loading-A2).
        let _links = lock(&self.links);
        self.pool.evict_names(dir)
    }

    fn adopt_root(&self) -> Result<()> {
        let root = self.backing.root();
        let identity = self.backing.identity(root)?;
        let known = self.pool.residence(ROOT)?.identity;
        if known == identity.0 {
            return Ok(());
        }
        if !known.is_empty() {
            return Err(Errno::XDEV);
        }
        let attr = self.backing.getattr(root)?;
        // Other processes do not use the pool yet.
        self.pool.set_identity(ROOT, &identity.0)?;
        self.adopt(ROOT, &attr)?;
        self.load_names(ROOT).map(drop)
    }

    /// Gives an inode the attributes of its object, and marks it clean.
    fn adopt(&self, ino: Ino, object: &Attr) -> Result<()> {
        copy_xattrs((&self.backing, object.ino), (&self.pool, ino))?;
        let set = SetAttr {
            perm: Some(object.perm),
            uid: Some(object.uid),
            gid: Some(object.gid),
            atime: Some(SetTime::At(object.atime)),
            mtime: Some(SetTime::At(object.mtime)),
            ctime: Some(object.ctime),
            ..SetAttr::default()
        };
        self.pool.setattr(&Caller::ROOT, ino, &set)?;
        let version = self.pool.version(ino).ok_or(Errno::IO)?;
        // A change meanwhile keeps it dirty.
        self.pool.clean_inode(ino, version, stamp(object)).map(drop)
    }

    /// Finds the loaded files that may have other names, after a mount.
    fn find_links(&self) -> Result<()> {
        self.each_directory(false, |entries| {
            for (ino, kind) in entries {
                if *kind != FileKind::Dir && self.pool.getattr(*ino).is_ok_and(|a| a.nlink > 1) {
                    self.note_link(&mut lock(&self.links), *ino)?;
                }
            }
            Ok(true)
        })
    }

    /// Calls `each` with the inodes in every directory of the tree, until it returns `false`. Loads
    /// directories whose names are absent, or leaves them out.
    fn each_directory(
        &self,
        loads: bool,
        mut each: impl FnMut(&[(Ino, FileKind)]) -> Result<bool>,
    ) -> Result<()> {
        let mut pending = vec![ROOT];
        while let Some(dir) = pending.pop() {
            let mut entries = Vec::new();
            let list = || {
                entries.clear();
                self.pool.readdir(dir, 0, &mut |e| {
                    if !matches!(e.name, b"." | b"..") {
                        entries.push((e.ino, e.kind));
                    }
                    true
                })
            };
            let listed = if loads { self.load_for(&[Need::Names(dir)], list) } else { once(list) };
            match listed {
                Ok(()) => {}
                // It is gone, or not loaded.
                Err(Errno::STALE | Errno::NOENT | ABSENT) => continue,
                Err(e) => return Err(e),
            }
            if !each(&entries)? {
                return Ok(());
            }
            let dirs = entries.iter().filter(|(_, kind)| *kind == FileKind::Dir);
            pending.extend(dirs.map(|(ino, _)| *ino));
        }
        Ok(())
    }

    // --- calls ----------------------------------------------------------------------------------

    /// Makes a call on the pool. Loads what it needs and repeats it while something is absent.
    fn load_for<T>(&self, needs: &[Need<'_>], mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let mut idle = 0;
        loop {
            match call() {
                Err(ABSENT) => {}
                done => return done,
            }
            let mut has_loaded = false;
            for need in needs {
                // loading-A3.
                has_loaded |= self.load(*need)?;
            }
            idle = if has_loaded { 0 } else { idle + 1 };
            if idle > IDLE_ATTEMPTS {
                tracing::error!("a call needs what nothing loads: unmount and check the pool");
                return Err(Errno::UCLEAN);
            }
        }
    }

    /// Loads what is absent of a need; returns whether anything was.
    fn load(&self, need: Need<'_>) -> Result<bool> {
        match need {
            Need::Names(dir) => self.load_names(dir),
            Need::Removal(dir, name) => {
                let has_loaded = self.load_names(dir)?;
                let Ok(Attr { ino, kind, .. }) = self.pool.peek(dir, name) else {
                    return Ok(has_loaded);
                };
                let more = match kind {
                    FileKind::Dir => self.load_names(ino)?,
                    _ => self.load_links(ino)?,
                };
                Ok(has_loaded | more)
            }
            Need::Content(ino, start, end) => {
                let Ok(Attr { size, kind: FileKind::File, .. }) = self.pool.getattr(ino) else {
                    return Ok(false);
                };
                let has_loaded = self.load_content(ino, start..end.min(size))?;
                let tail = if end > size { size.saturating_sub(1)..size } else { 0..0 };
                Ok(self.load_content(ino, tail)? | has_loaded)
            }
            Need::Search(ino, from) => match self.pool.absent_range(ino, from)? {
                Some(absent) => {
                    let from = absent.start.max(from);
                    self.load_content(ino, from..from + 1)
                }
                None => Ok(false),
            },
        }
    }

    // --- loading --------------------------------------------------------------------------------

    /// Waits until no other thread loads names or content of an inode (loading-A1).
    fn turn(&self, ino: Ino) -> LoadTurn<'_, P, B> {
        let mut busy = lock(&self.busy);
        while !busy.insert(ino) {
            busy = self.is_free.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        LoadTurn(self, ino)
    }

    /// Finds the backing object of an inode, to load parts of it.
    ///
    /// # Errors
    /// `EIO` if it is gone, or has changed behind the cache: what is in the pool does not belong to
    /// what would be loaded.
    fn object_of(&self, ino: Ino) -> Result<Below<'_, B>> {
        let (residence, object) = self.any_object_of(ino)?;
        if has_changed(&residence, &object.1) {
            return Err(changed_behind(ino));
        }
        Ok(object)
    }

    /// As [`object_of`](Self::object_of), whether it has changed or not.
    fn any_object_of(&self, ino: Ino) -> Result<(Residence, Below<'_, B>)> {
        let mut residence = self.pool.residence(ino)?;
        loop {
            let identity = residence.identity.clone();
            if identity.is_empty() {
                // Only objects of the backing store have absent parts.
                return Err(Errno::UCLEAN);
            }
            let found = self.backing.find(&Identity(identity), b"");
            // The object is gone, but its name is loaded: the backing store changed behind the
            // cache.
            let found = found.map_err(|e| if e == Errno::STALE { Errno::IO } else { e })?;
            let object = Below(&self.backing, found);
            if !has_changed(&residence, &object.1) {
                return Ok((residence, object));
            }
            // Write-back may have changed the object meanwhile, which the residence shows
            // (backed-B5).
            let now = self.pool.residence(ino)?;
            if now == residence {
                return Ok((residence, object));
            }
            residence = now;
        }
    }

    /// Loads the names of a directory if they are absent; returns whether they were.
    fn load_names(&self, dir: Ino) -> Result<bool> {
        let is_absent = || match self.pool.residence(dir) {
            Ok(residence) => Ok(residence.are_names_absent),
            // The call reports that.
            Err(Errno::STALE) => Ok(false),
            Err(e) => Err(e),
        };
        if !is_absent()? {
            return Ok(false);
        }
        let _turn = self.turn(dir);
        if !is_absent()? {
            return Ok(false);
        }
        let (residence, below) = self.any_object_of(dir)?;
        if has_changed(&residence, &below.1) {
            if !residence.is_clean {
                return Err(changed_behind(dir));
            }
            self.adopt(dir, &below.1)?;
        }
        each_entry(&self.backing, below.1.ino, |name, entry| self.load_entry(dir, name, entry))?;
        self.pool.finish_names(dir)?;
        Ok(true)
    }

    /// Loads one name of a directory, and its object if that has no inode yet.
    fn load_entry(&self, dir: Ino, name: &[u8], object: &Below<'_, B>) -> Result<()> {
        let Below(backing, attr) = object;
        let Identity(identity) = backing.identity(attr.ino)?;
        if identity.len() > IDENTITY_MAX {
            return Err(Errno::OVERFLOW);
        }
        let has_links = attr.kind != FileKind::Dir && attr.nlink > 1;
        let mut links = has_links.then(|| lock(&self.links));
        if let Some(links) = &mut links
            && let Some(ino) = self.linked(links, &identity)
        {
            return existing(self.pool.load_link(dir, name, ino));
        }
        let target = match attr.kind {
            FileKind::Symlink => backing.readlink(attr.ino)?,
            _ => Vec::new(),
        };
        let xattrs = xattrs(*backing, attr.ino)?;
        let (stamp, target) = (stamp(attr), &target[..]);
        let loaded =
            LoadedObject { attr: *attr, identity: &identity, stamp, target, xattrs: &xattrs };
        match self.pool.load_name(dir, name, &loaded) {
            Ok(ino) => {
                let noted = links.map_or(Ok(()), |mut links| self.note_link(&mut links, ino));
                self.pool.forget(ino, 1);
                noted
            }
            // An earlier load or eviction was interrupted.
            Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Returns the inode that an object with several names has, if it still has it.
    fn linked(&self, links: &Links, identity: &[u8]) -> Option<Ino> {
        let ino = *links.inodes.get(identity)?;
        self.is_inode_of(ino, identity).then_some(ino)
    }

    fn is_inode_of(&self, ino: Ino, identity: &[u8]) -> bool {
        self.pool.residence(ino).is_ok_and(|residence| residence.identity == identity)
    }

    /// Notes a loaded file that may have other names.
    fn note_link(&self, links: &mut Links, ino: Ino) -> Result<()> {
        let identity = self.pool.residence(ino)?.identity;
        if identity.is_empty() {
            return Ok(());
        }
        if links.inodes.len() >= links.prune_at {
            links.inodes.retain(|identity, ino| self.is_inode_of(*ino, identity));
            links.prune_at = 2 * links.inodes.len().max(32);
        }
        links.inodes.insert(identity, ino);
        Ok(())
    }

    /// Finds the absent names of a file, in all directories if need be; returns whether there were
    /// any (backed-B4).
    fn load_links(&self, ino: Ino) -> Result<bool> {
        let absent = || self.pool.residence(ino).map_or(0, |residence| residence.absent_links);
        if absent() == 0 {
            return Ok(false);
        }
        self.each_directory(true, |_| Ok(absent() > 0))?;
        // Names outside of the tree do not count any more.
        self.pool.finish_links(ino)?;
        Ok(true)
    }

    /// Loads a range of a file; returns whether any of it was absent.
    fn load_content(&self, ino: Ino, range: Range<u64>) -> Result<bool> {
        let next = |from| -> Result<Option<Range<u64>>> {
            let found = self.pool.absent_range(ino, from)?;
            Ok(found.filter(|absent| absent.start < range.end))
        };
        if range.is_empty() || next(range.start)?.is_none() {
            return Ok(false);
        }
        let _turn = self.turn(ino);
        let mut at = range.start;
        let mut has_loaded = false;
        let mut below = None;
        while let Some(absent) = next(at)? {
            let below = match &below {
                Some(below) => below,
                None => below.insert(self.object_of(ino)?),
            };
            let start = absent.start.max(at - at % BLOCK);
            let wanted = range.end.next_multiple_of(BLOCK).min(absent.end);
            at = self.load_piece(ino, below.1.ino, start, wanted, absent.end)?;
            has_loaded = true;
        }
        Ok(has_loaded)
    }

    /// Loads a hole, or a piece of data, that begins at `start`: at least one block, up to
    /// `wanted`, and by read-ahead up to `end`, where the content is present or the file ends.
    /// Returns the end of the piece.
    fn load_piece(&self, ino: Ino, below: Ino, start: u64, wanted: u64, end: u64) -> Result<u64> {
        let data = match self.backing.seek(below, start, Seek::Data) {
            Ok(data) => (data - data % BLOCK).min(end),
            Err(Errno::NXIO) => end,
            Err(e) => return Err(e),
        };
        if data > start {
            self.pool.load_hole(ino, start..data)?;
            return Ok(data);
        }
        let is_next = lock(&self.streams).get(&ino).copied().unwrap_or(0) == start;
        let most = start + READ_AHEAD;
        let stop = if is_next { most.min(end) } else { wanted.min(most) };
        let hole = self.backing.seek(below, start, Seek::Hole)?;
        let stop = stop.min(hole.next_multiple_of(BLOCK).max(start + BLOCK)).min(end);
        let mut bytes = vec![0; (stop - start) as usize];
        if self.backing.read(below, start, &mut bytes)? < bytes.len() {
            // The file became shorter behind the cache.
            return Err(Errno::IO);
        }
        let loaded = self.pool.load_content(ino, start, &bytes);
        // Part of it may have been loaded before an error.
        self.note_loaded(ino, start..stop);
        loaded?;
        let mut streams = lock(&self.streams);
        if streams.len() >= STREAMS {
            streams.clear();
        }
        streams.insert(ino, stop);
        Ok(stop)
    }
}

/// Makes a call once.
fn once<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    call()
}

/// Returns a value that is another one when an object has changed, and is not 0.
pub(crate) fn stamp(object: &Attr) -> u32 {
    let size = if object.kind == FileKind::File { object.size } else { 0 };
    let changed = object.ctime.0 as u64;
    // The high bits of a product depend on all bits of its factors.
    let mixed = (changed ^ size.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) as u32).max(1)
}

/// Whether others have changed an object since it equalled its inode.
pub(crate) fn has_changed(inode: &Residence, object: &Attr) -> bool {
    !inode.is_busy && inode.stamp != 0 && inode.stamp != stamp(object)
}

/// Logs that others have changed the object of an inode. Returns the error of a load that needs it
/// as it was.
fn changed_behind(ino: Ino) -> Errno {
    tracing::warn!(ino = ino.0, "its object has changed behind the cache");
    Errno::IO
}

/// Calls `each` with each name in a directory of the backing store, and its inode.
pub(crate) fn each_entry<'b, B: Backing>(
    backing: &'b B,
    dir: Ino,
    mut each: impl FnMut(&[u8], &Below<'b, B>) -> Result<()>,
) -> Result<()> {
    let mut names = Vec::new();
    backing.readdir(dir, 0, &mut |e| {
        if !matches!(e.name, b"." | b"..") {
            names.push(e.name.to_vec());
        }
        true
    })?;
    for name in names {
        match backing.lookup(dir, &name) {
            Ok(entry) => each(&name, &Below(backing, entry))?,
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Treats a name that exists as loaded.
fn existing(loaded: Result<()>) -> Result<()> {
    match loaded {
        Err(Errno::EXIST) => Ok(()),
        done => done,
    }
}

/// Gives an inode the extended attributes of another one.
pub(crate) fn copy_xattrs<F: FileSystem, T: FileSystem>(
    from: (&F, Ino),
    (fs, ino): (&T, Ino),
) -> Result<()> {
    let (wanted, found) = (xattrs(from.0, from.1)?, xattrs(fs, ino)?);
    for (name, _) in &found {
        if !wanted.iter().any(|(wanted, _)| wanted == name) {
            fs.removexattr(ino, name)?;
        }
    }
    for (name, value) in wanted.iter().filter(|xattr| !found.contains(xattr)) {
        fs.setxattr(ino, name, value, SetXattr::Any)?;
    }
    Ok(())
}

/// Returns all extended attributes of an inode.
fn xattrs(fs: &impl FileSystem, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = fs.listxattr(ino)?.into_iter();
    let value = |name: Vec<u8>| Ok((name.clone(), fs.getxattr(ino, &name)?));
    names.map(value).collect()
}

/// Returns the range of a file from `offset` on, as a need.
fn content(ino: Ino, offset: u64, len: u64) -> Need<'static> {
    Need::Content(ino, offset, offset.saturating_add(len))
}

impl<P: Backed, B: Backing> FileSystem for Loading<P, B> {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, forget, getattr,
        tmpfile, readlink, drop_privileges, fsync, sync, close, getxattr, setxattr, listxattr,
        removexattr, statfs);

    fn version(&self, ino: Ino) -> Option<u64> {
        self.pool.version(ino)
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.load_for(&[Need::Names(dir)], || self.pool.lookup(dir, name))
    }

    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        self.load_for(&[Need::Names(dir)], || self.pool.lookup_into(dir, name, entry))
    }

    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        self.load_for(&[Need::Names(dir)], || self.pool.peek_into(dir, name, attr))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let size = set.size.unwrap_or(0);
        let need = content(ino, size.saturating_sub(1), 1);
        self.load_for(&[need], || self.pool.setattr(caller, ino, set))
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.load_for(&[Need::Names(dir)], || self.pool.create(caller, dir, name, node))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.load_for(&[Need::Removal(dir, name)], || self.pool.unlink(dir, name))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.load_for(&[Need::Removal(dir, name)], || self.pool.rmdir(dir, name))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.load_for(&[Need::Names(dir)], || self.pool.link(ino, dir, name))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        let needs = [Need::Names(from.0), Need::Removal(to.0, to.1)];
        self.load_for(&needs, || self.pool.rename(from, to, flags))
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let needs = [Need::Names(from.0), Need::Removal(to.0, to.1)];
        self.load_for(&needs, || self.pool.rename_whiteout(caller, from, to, flags))
    }

    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.load_for(&[Need::Names(dir)], || self.pool.readdir(dir, cookie, emit))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Ok(attr) = self.pool.getattr(ino) else { return self.pool.read(ino, offset, buf) };
        let end = offset.saturating_add(buf.len() as u64).min(attr.size);
        self.load_for(&[Need::Content(ino, offset, end)], || self.pool.read(ino, offset, buf))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let need = content(ino, offset, data.len() as u64);
        self.load_for(&[need], || self.pool.write(ino, offset, data))
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.load_for(&[Need::Content(ino, u64::MAX, u64::MAX)], || self.pool.append(ino, data))
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let need = match mode {
            Fallocate::Collapse | Fallocate::Insert => content(ino, 0, u64::MAX),
            _ => content(ino, offset, len),
        };
        self.load_for(&[need], || self.pool.fallocate(ino, mode, offset, len))
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.load_for(&[Need::Search(ino, offset)], || self.pool.seek(ino, offset, whence))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let len = len.min(COPY_MAX);
        let needs = [content(from.0, from.1, len), content(to.0, to.1, len)];
        self.load_for(&needs, || self.pool.copy_range(from, to, len))
    }
}

/// Mappings are not offered.
impl<P: Backed, B: Backing> Mappings for Loading<P, B> {}

impl<P: Backed, B: Backing> Openings for Loading<P, B> {
    fn opened(&self, ino: Ino) {
        self.pool.opened(ino);
    }

    fn closed(&self, ino: Ino) {
        self.pool.closed(ino);
    }
}

impl<P: Backed, B: Backing> Delegations for Loading<P, B> {}
