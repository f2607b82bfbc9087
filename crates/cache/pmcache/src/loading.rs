//! A pool with a backing store as a file system: loads what a call needs, and repeats the call.
//!
//! The pool holds the tree ([`vfs::Backed`]). A call that needs what is absent fails there and
//! changes nothing (backed-K1). [`Loading`] then loads from the backing store what the arguments of
//! the call cover: directories whole, with everything that their objects have except contents, and
//! ranges of contents. A sequential reader gets more of the file than it asks for.
//!
//! - loading-A1: one thread at a time loads the names of a directory, or the content of a file.
//!   Others that need the same wait for it.
//! - loading-A2: all loaded names of one backing object are names of one inode of the pool: a name
//!   is loaded, and an inode goes by eviction, only under the lock of [`KnownInodes`].
//! - loading-A3: the error of a load is the error of the call. A call that fails changes nothing.
//!
//! [`write_back`](Loading::write_back) brings changes below. The crate's `changes` module brings
//! those that others make there into the pool. [`make_room`](Loading::make_room) and
//! [`keep_room`](Loading::keep_room) evict.

use crate::changes::{ChangesBehind, Comparison};
use crate::commands::History;
use crate::evict::{Evict, EvictOptions};
use crate::known::KnownInodes;
use crate::names_below::NamesBelow;
use crate::objects::{Below, ObjectParts, copy_xattrs, has_changed, stamp};
use crate::permits::WaitingOpenings;
use crate::pinned::PinnedFiles;
use crate::through::Passes;
use crate::{BLOCK, lock};
use backing::{Backing, Identity};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use vfs::{
    Attr, Backed, Caller, Errno, FileKind, Ino, Loader, Mappings, Need, Openings, ROOT, Residence,
    Result, Seek, SetAttr, SetTime, StatFs, WaitingCalls, load_for,
};

/// Most bytes of one read of the backing store.
const READ_AHEAD: u64 = 256 << 10;

/// Most times that one load waits for room.
const ROOM_ATTEMPTS: u32 = 64;

/// Most changes by others that a load starts again for.
const CHANGES_MAX: u32 = 8;

/// Most files whose last load is remembered.
const STREAMS: usize = 1024;

/// A pool with a backing store, and the backing store.
pub struct Loading<P, B> {
    /// Programs that wait to open files below. Dropped before `backing` (behind-D4).
    openings: WaitingOpenings,
    pool: P,
    backing: B,
    pub(crate) known: Mutex<KnownInodes>,
    /// The names that write-back may remove below.
    pub(crate) names_below: NamesBelow,
    pub(crate) changes: ChangesBehind,
    /// Inodes of which a thread loads names or content (loading-A1).
    busy: Mutex<HashSet<Ino>>,
    is_free: Condvar,
    /// The ends of the last loads of files, for read-ahead.
    streams: Mutex<HashMap<Ino, u64>>,
    /// One thread at a time writes back.
    writing: Mutex<()>,
    /// The number of the next private name.
    next_private: AtomicU64,
    history: Mutex<History>,
    /// Bytes that were loaded.
    loaded: AtomicU64,
    /// The number of looks at all inodes of the pool.
    walks: AtomicU64,
    /// The parts of the pool that can be evicted.
    evict: Evict,
    pinned: PinnedFiles,
    /// The name of the pool's mode of durability, for the status.
    mode: String,
    passes: Passes,
    /// The end of the last write-back for space below, and the bytes that were not settled then
    /// (below-S3).
    room_below: Mutex<Option<(Instant, u64)>>,
}

/// The right to load names or content of an inode.
pub(crate) struct LoadTurn<'a, P: Backed, B: Backing>(&'a Loading<P, B>, Ino);

impl<P: Backed, B: Backing> Drop for LoadTurn<'_, P, B> {
    fn drop(&mut self) {
        lock(&self.0.busy).remove(&self.1);
        self.0.is_free.notify_all();
    }
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Attaches a pool to its backing store. The first time, the root of the pool becomes that of
    /// the backing store.
    ///
    /// # Errors
    /// `EXDEV` if the pool belongs to another backing store; errors of either.
    pub fn attach(pool: P, backing: B) -> Result<Self> {
        let (known, busy, streams) = (Mutex::default(), Mutex::default(), Mutex::default());
        let changes = ChangesBehind::default();
        let is_free = Condvar::new();
        let evict = Evict::new(EvictOptions::for_pool(&pool.statfs()));
        let loading = Self {
            openings: WaitingOpenings::default(),
            pool,
            backing,
            known,
            names_below: NamesBelow::default(),
            changes,
            busy,
            is_free,
            streams,
            writing: Mutex::default(),
            next_private: AtomicU64::default(),
            history: Mutex::default(),
            loaded: AtomicU64::default(),
            walks: AtomicU64::default(),
            evict,
            pinned: PinnedFiles::default(),
            mode: String::new(),
            passes: Passes::default(),
            room_below: Mutex::default(),
        };
        let mut pinned = Vec::new();
        loading.find_known(&mut lock(&loading.known), &mut |ino, residence| {
            pinned.extend(residence.is_pinned.then_some(ino));
            let is_dir = |ino| loading.pool.getattr(ino).is_ok_and(|a| a.kind == FileKind::Dir);
            if !residence.is_busy && is_dir(ino) {
                loading.names_below.note_stamp(&residence.identity, residence.stamp);
            }
        })?;
        loading.find_pins(&pinned)?;
        loading.adopt_root()?;
        loading.begin_space_below();
        Ok(loading)
    }

    /// Changes the options of eviction, before the first call.
    pub fn with_eviction(self, options: EvictOptions) -> Self {
        Self { evict: Evict::new(options), ..self }
    }

    /// Sets which calls wait for the backing store, and notes the name of the pool's mode of
    /// durability, which the caller has set.
    #[must_use]
    pub fn with_promise(self, mode: String, through: WaitingCalls) -> Self {
        self.pool.set_through(through);
        Self { mode, ..self }
    }

    /// Describes both.
    pub(crate) fn promise(&self) -> String {
        match self.pool.through() {
            WaitingCalls::Nothing => self.mode.clone(),
            WaitingCalls::Syncs => format!("{}, fsync through", self.mode),
            WaitingCalls::Writes => format!("{}, write-through", self.mode),
        }
    }

    /// Returns the passes of write-back so far.
    pub(crate) fn passes(&self) -> &Passes {
        &self.passes
    }

    /// Returns the end of the last write-back for space below, and the bytes not settled then.
    pub(crate) fn room_below(&self) -> &Mutex<Option<(Instant, u64)>> {
        &self.room_below
    }

    /// Returns what can be evicted.
    pub(crate) fn evict(&self) -> &Evict {
        &self.evict
    }

    /// Returns the programs that wait to open files below.
    pub(crate) fn openings(&self) -> &WaitingOpenings {
        &self.openings
    }

    /// Returns the pinned files.
    pub(crate) fn pinned(&self) -> &PinnedFiles {
        &self.pinned
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

    /// Returns the record of write-backs.
    pub(crate) fn history(&self) -> &Mutex<History> {
        &self.history
    }

    /// Returns the bytes that were loaded.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        self.loaded.load(Relaxed)
    }

    /// Returns the number of looks at all inodes of the pool.
    pub(crate) fn inode_walks(&self) -> u64 {
        self.walks.load(Relaxed)
    }

    /// Calls `each` with every inode of the pool ([`Backed::each_inode`]).
    pub(crate) fn each_inode(&self, each: &mut dyn FnMut(Ino, &Residence)) -> Result<()> {
        self.walks.fetch_add(1, Relaxed);
        self.pool.each_inode(each)
    }

    /// Loads all of a file.
    pub(crate) fn warm(&self, ino: Ino, size: u64) -> Result<()> {
        self.load(&Need::Content(ino, 0, size)).map(drop)
    }

    /// Returns the pool again.
    pub fn into_pool(self) -> P {
        self.pool
    }

    /// Makes the names of a directory absent, if that is possible ([`Backed::evict_names`]) and no
    /// thread loads or compares them.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn evict_names(&self, dir: Ino) -> Result<bool> {
        let Some(_turn) = self.try_turn(dir) else { return Ok(false) };
        // No name of a file comes while its inode goes (loading-A2).
        let _known = lock(&self.known);
        self.pool.evict_names(dir)
    }

    fn adopt_root(&self) -> Result<()> {
        let root = self.backing.root();
        let identity = self.backing.identity(root)?;
        let known = self.pool.residence(ROOT)?;
        if known.identity.is_empty() {
            // Other processes do not use the pool yet.
            self.pool.set_identity(ROOT, &identity.0)?;
            self.note_known(&mut lock(&self.known), &identity.0, ROOT)?;
        } else if known.identity != identity.0 {
            return Err(Errno::XDEV);
        }
        // Without a stamp it has never had the attributes of its object, or a crash came between.
        if known.stamp == 0 {
            self.adopt(ROOT, &self.backing.getattr(root)?)?;
        }
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

    /// Loads the names of every directory of the tree, until `goes_on` returns `false` after one.
    fn load_directories(&self, goes_on: impl Fn() -> bool) -> Result<()> {
        let mut pending = vec![ROOT];
        while let Some(dir) = pending.pop() {
            let mut dirs = Vec::new();
            let listed = load_for(self, &[Need::Names(dir)], || {
                dirs.clear();
                self.pool.readdir(dir, 0, &mut |e| {
                    let is_inside = e.kind == FileKind::Dir && !matches!(e.name, b"." | b"..");
                    dirs.extend(is_inside.then_some(e.ino));
                    true
                })
            });
            match listed {
                Ok(()) => {}
                // It is gone.
                Err(Errno::STALE | Errno::NOENT) => continue,
                Err(e) => return Err(e),
            }
            if !goes_on() {
                return Ok(());
            }
            pending.append(&mut dirs);
        }
        Ok(())
    }

    // --- needs ----------------------------------------------------------------------------------

    /// Loads what is absent of a need; returns whether anything was.
    fn load_need(&self, need: Need<'_>) -> Result<bool> {
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
            Need::Content(ino, start, end) | Need::Extension(ino, start, end) => {
                let Ok(Attr { size, kind: FileKind::File, .. }) = self.pool.getattr(ino) else {
                    return Ok(false);
                };
                let has_loaded = self.load_content(ino, start..end.min(size))?;
                let is_tail = matches!(need, Need::Extension(..)) && end > size;
                let tail = if is_tail { size.saturating_sub(1)..size } else { 0..0 };
                Ok(self.load_content(ino, tail)? | has_loaded)
            }
            Need::Holes(ino, from) => self.load_holes(ino, from),
            Need::Room(_) | Need::Synced(_) => Ok(false),
        }
    }

    // --- loading --------------------------------------------------------------------------------

    /// Waits until no other thread loads names or content of an inode (loading-A1).
    pub(crate) fn turn(&self, ino: Ino) -> LoadTurn<'_, P, B> {
        let mut busy = lock(&self.busy);
        while !busy.insert(ino) {
            busy = self.is_free.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        LoadTurn(self, ino)
    }

    /// As [`turn`](Self::turn), but does not wait.
    fn try_turn(&self, ino: Ino) -> Option<LoadTurn<'_, P, B>> {
        lock(&self.busy).insert(ino).then(|| LoadTurn(self, ino))
    }

    /// Finds the backing object of a file, to load parts of it. If others have changed it, first
    /// makes the file follow. The caller has the file's turn.
    ///
    /// # Errors
    /// `EIO` if it is gone, or if the file is dirty and others have changed it: what is in the pool
    /// does not belong to what would be loaded.
    fn object_of(&self, ino: Ino) -> Result<Below<'_, B>> {
        let (residence, object) = self.any_object_of(ino)?;
        match self.renew(ino, residence, &object, false)? {
            Comparison::Conflict => Err(Errno::IO),
            _ => Ok(object),
        }
    }

    /// As [`object_of`](Self::object_of), whether it has changed or not.
    pub(crate) fn any_object_of(&self, ino: Ino) -> Result<(Residence, Below<'_, B>)> {
        let mut residence = self.pool.residence(ino)?;
        loop {
            let identity = residence.identity.clone();
            if identity.is_empty() {
                // Only objects of the backing store have absent parts.
                return Err(Errno::UCLEAN);
            }
            let found = self.backing.find(&Identity(identity));
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
        self.follow_names(dir, false).map(drop)?;
        Ok(true)
    }

    /// Loads one name of a directory, and its object if that has no inode yet. Returns the inode if
    /// it is a directory that has a name elsewhere in the pool: then it gets none here.
    pub(crate) fn load_entry(
        &self,
        dir: Ino,
        name: &[u8],
        object: &Below<'_, B>,
        identity: &[u8],
    ) -> Result<Option<Ino>> {
        let Below(backing, attr) = object;
        let parts = ObjectParts::of(*backing, attr)?;
        let mut known = lock(&self.known);
        if let Some(ino) = self.known_inode(&known, identity) {
            if attr.kind == FileKind::Dir {
                return Ok(Some(ino));
            }
            return existing(self.pool.load_link(dir, name, ino)).map(|()| None);
        }
        match self.pool.load_name(dir, name, &parts.loaded(attr, identity)) {
            Ok(ino) => {
                let noted = self.note_known(&mut known, identity, ino);
                if attr.kind == FileKind::Dir {
                    self.names_below.note_stamp(identity, stamp(attr));
                }
                self.pool.forget(ino, 1);
                noted.map(|()| None)
            }
            // An earlier load or eviction was interrupted.
            Err(Errno::EXIST) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Finds all inodes of the pool that have objects (known-N1). Calls `each` with every inode.
    fn find_known(
        &self,
        known: &mut KnownInodes,
        each: &mut dyn FnMut(Ino, &Residence),
    ) -> Result<()> {
        known.begin();
        self.each_inode(&mut |ino, residence| {
            each(ino, residence);
            if !residence.identity.is_empty() {
                known.add(self.backing.key(&residence.identity), ino);
            }
        })?;
        known.end();
        Ok(())
    }

    /// Notes that an inode has an object.
    pub(crate) fn note_known(
        &self,
        known: &mut KnownInodes,
        identity: &[u8],
        ino: Ino,
    ) -> Result<()> {
        if known.is_full() {
            self.find_known(known, &mut |_, _| {})?;
        }
        known.add(self.backing.key(identity), ino);
        Ok(())
    }

    /// Returns the inode of an object, if it has one with a name.
    pub(crate) fn known_inode(&self, known: &KnownInodes, identity: &[u8]) -> Option<Ino> {
        let ino = known.find(self.backing.key(identity))?;
        let has_name = || self.pool.getattr(ino).is_ok_and(|attr| attr.nlink > 0);
        (self.is_inode_of(ino, identity) && has_name()).then_some(ino)
    }

    /// Returns the inode of an object, whether it has a name or not.
    pub(crate) fn inode_of(&self, identity: &[u8]) -> Result<Option<Ino>> {
        let mut known = lock(&self.known);
        let find = |known: &KnownInodes| known.find(self.backing.key(identity));
        let Some(ino) = find(&known) else { return Ok(None) };
        if self.is_inode_of(ino, identity) {
            return Ok(Some(ino));
        }
        // That inode is gone. One without a name may have the object still.
        self.find_known(&mut known, &mut |_, _| {})?;
        Ok(find(&known).filter(|ino| self.is_inode_of(*ino, identity)))
    }

    pub(crate) fn is_inode_of(&self, ino: Ino, identity: &[u8]) -> bool {
        self.pool.residence(ino).is_ok_and(|residence| residence.identity == identity)
    }

    /// Finds the absent names of a file, in all directories if need be; returns whether there were
    /// any (backed-B4).
    fn load_links(&self, ino: Ino) -> Result<bool> {
        let absent = || self.pool.residence(ino).map_or(0, |residence| residence.absent_links);
        if absent() == 0 {
            return Ok(false);
        }
        self.load_directories(|| absent() > 0)?;
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
        let (mut at, mut changes, mut object) = (range.start, 0, None);
        while let Some(absent) = next(at)? {
            let below = match &object {
                Some(below) => below,
                None => object.insert(self.object_of(ino)?),
            };
            let start = absent.start.max(at - at % BLOCK);
            let wanted = range.end.next_multiple_of(BLOCK).min(absent.end);
            let is_checked = changes < CHANGES_MAX;
            match self.load_piece((ino, below), start, wanted, absent.end, is_checked) {
                Err(Errno::AGAIN) if is_checked => {
                    (at, changes, object) = (range.start, changes + 1, None);
                }
                end => at = end?,
            }
        }
        Ok(true)
    }

    /// Returns the first block with data at or after `from` in an object, at most `end`.
    fn next_data(&self, object: Ino, from: u64, end: u64) -> Result<u64> {
        match self.backing.seek(object, from, Seek::Data) {
            Ok(data) => Ok((data - data % BLOCK).min(end)),
            Err(Errno::NXIO) => Ok(end),
            Err(e) => Err(e),
        }
    }

    /// Makes holes of what is absent and a hole below; returns whether there was any.
    fn load_holes(&self, ino: Ino, from: u64) -> Result<bool> {
        if self.pool.absent_range(ino, from)?.is_none() {
            return Ok(false);
        }
        let _turn = self.turn(ino);
        let (mut at, mut has_loaded) = (from, false);
        let object = self.object_of(ino)?;
        while let Some(absent) = self.pool.absent_range(ino, at)? {
            let start = absent.start.max(at);
            let hole = match self.backing.seek(object.1.ino, start, Seek::Hole) {
                Ok(hole) => hole.next_multiple_of(BLOCK).min(absent.end),
                Err(Errno::NXIO) => return Ok(has_loaded),
                Err(e) => return Err(e),
            };
            let end = self.next_data(object.1.ino, hole, absent.end)?;
            if hole < end {
                self.pool.load_hole(ino, hole..end)?;
                has_loaded = true;
            }
            at = end.max(hole).max(start + 1);
        }
        Ok(has_loaded)
    }

    /// Loads a hole, or a piece of data, that begins at `start`: at least one block, up to
    /// `wanted`, and by read-ahead up to `end`, where the content is present or the file ends.
    /// Returns the end of the piece. With `is_checked`, fails with `EAGAIN` if others change the
    /// object meanwhile.
    fn load_piece(
        &self,
        (ino, object): (Ino, &Below<'_, B>),
        start: u64,
        wanted: u64,
        end: u64,
        is_checked: bool,
    ) -> Result<u64> {
        let below = object.1.ino;
        let check = || match is_checked && stamp(&self.backing.getattr(below)?) != stamp(&object.1)
        {
            true if !self.pool.residence(ino)?.is_busy => Err(Errno::AGAIN),
            _ => Ok(()),
        };
        let data = self.next_data(below, start, end)?;
        if data > start {
            check()?;
            self.pool.load_hole(ino, start..data)?;
            return Ok(data);
        }
        let is_next = lock(&self.streams).get(&ino).copied().unwrap_or(0) == start;
        let stop = (start + READ_AHEAD).min(if is_next { end } else { wanted });
        let cut_off_below = if is_checked { Errno::AGAIN } else { Errno::IO };
        let hole = self.backing.seek(below, start, Seek::Hole);
        let hole = hole.map_err(|e| if e == Errno::NXIO { cut_off_below } else { e })?;
        let stop = stop.min(hole.next_multiple_of(BLOCK).max(start + BLOCK)).min(end);
        let mut bytes = vec![0; (stop - start) as usize];
        if self.backing.read(below, start, &mut bytes)? < bytes.len() {
            return Err(cut_off_below);
        }
        check()?;
        let loaded = self.pool.load_content(ino, start, &bytes);
        // Part of it may have been loaded before an error.
        self.note_loaded(ino, start..stop);
        self.loaded.fetch_add(loaded?, Relaxed);
        let mut streams = lock(&self.streams);
        if streams.len() >= STREAMS {
            streams.clear();
        }
        streams.insert(ino, stop);
        Ok(stop)
    }
}

/// Treats a name that exists as loaded.
fn existing(loaded: Result<()>) -> Result<()> {
    match loaded {
        Err(Errno::EXIST) => Ok(()),
        done => done,
    }
}

impl<P: Backed, B: Backing> Loader for Loading<P, B> {
    type Pool = P;

    fn pool(&self) -> &P {
        &self.pool
    }

    /// Makes room for what is loaded.
    fn load(&self, need: &Need<'_>) -> Result<bool> {
        let bytes = match *need {
            Need::Room(bytes) => return self.make_room(bytes),
            Need::Synced(ino) => return self.sync_below(ino).map(|()| false),
            Need::Content(_, start, end) | Need::Extension(_, start, end) => {
                end.saturating_sub(start).min(READ_AHEAD)
            }
            _ => READ_AHEAD,
        };
        for _ in 0..ROOM_ATTEMPTS {
            match self.load_need(*need) {
                Err(Errno::NOSPC) if self.make_room_in_pool(bytes)? => {}
                done => return done,
            }
        }
        Err(Errno::NOSPC)
    }

    fn backed(&self) -> Option<&dyn Backed> {
        Some(&self.pool)
    }

    /// Returns the space of the backing store. All that the pool holds counts as if it needed new
    /// space there.
    fn space(&self) -> StatFs {
        let below = self.backing.statfs();
        let taken = self.taken_below().div_ceil(u64::from(below.block_size.max(1)));
        StatFs {
            blocks_free: below.blocks_free.saturating_sub(taken),
            blocks_available: below.blocks_available.saturating_sub(taken),
            ..below
        }
    }

    /// Writes everything back first. The pool keeps the rest.
    fn finish(&self) -> Result<()> {
        let written = self.write_back_at_end();
        self.pool.close()?;
        written
    }

    fn ask(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.read_command(ino, name)
    }

    fn tell(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_command(ino, name)
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
