//! Shadow files: how they are found, created, marked and compared with the backing store.

use crate::content::BESIDE;
use crate::counters::count;
pub(crate) use crate::node::Cnode;
use crate::node::{CacheNode, CacheNodeState, Dirty};
use crate::range::{Blocks, joined};
use crate::record::{self, Fingerprint, Flags, Record, ShownCtime};
use crate::{BLOCK, Cache, lock};
use backing::{Backing, Frozen};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vfs::{
    Attr, Caller, Errno, FileSystem, Ino, NewKind, NewNode, Result, SetAttr, SetTime, SetXattr,
    Timestamp,
};

/// The size of a bitmap of the longest file, in bytes.
const BITMAP_MAX: u64 = (record::OFFSET_MAX / BLOCK + 1) / 8;

/// Shadows belong to the server of the cache.
const NEW: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Returns the shadow of a file, and creates it if it does not exist. Compares it with the
    /// backing store unless that was done recently (pmcache-C4). Recalls it from programs.
    pub(crate) fn cnode<'s>(
        &self,
        node: &CacheNode,
        state: &'s mut CacheNodeState,
    ) -> Result<&'s mut Cnode> {
        self.recall(state)?;
        if state.cached.is_none() {
            let mut cnode = match self.load_or_make(node) {
                Err(Errno::NOSPC) if self.evict(BESIDE)? => self.load_or_make(node)?,
                found => found?,
            };
            self.admit(node.ino, &mut cnode);
            state.cached = Some(cnode);
        }
        self.check(node, state)?;
        state.cached.as_mut().ok_or(Errno::IO)
    }

    /// Returns the shadow of a file that is about to be changed. If all its data is written back,
    /// it is always compared with the backing store. So recent changes by other processes are not
    /// overwritten and cause no conflict.
    ///
    /// # Errors
    /// As [`cnode`](Self::cnode); `EPERM` if the backing file is immutable or append-only.
    pub(crate) fn cnode_to_change<'s>(
        &self,
        node: &CacheNode,
        state: &'s mut CacheNodeState,
    ) -> Result<&'s mut Cnode> {
        if state.dirty().is_none() {
            node.is_suspect.store(true, Release);
            state.frozen = None;
        }
        self.cnode(node, state)?;
        let frozen = match state.frozen {
            Some(frozen) => frozen,
            None => *state.frozen.insert(self.backing.frozen(node.ino)?),
        };
        if frozen != Frozen::No {
            return Err(Errno::PERM);
        }
        state.cached.as_mut().ok_or(Errno::IO)
    }

    /// Checks that no other process has changed the backing file. Call it before a change of the
    /// backing file, after which the fingerprint is taken again.
    ///
    /// # Errors
    /// `EAGAIN` if one has; the file then has to be compared first.
    pub(crate) fn check_as_left(&self, node: &CacheNode, cnode: &Cnode) -> Result<()> {
        if cnode.record.state.contains(Flags::BUSY) {
            return Ok(());
        }
        let found = Fingerprint::of(&self.backing.getattr(node.ino)?);
        if found.has_same_content(&cnode.record.left) {
            return Ok(());
        }
        node.is_suspect.store(true, Release);
        Err(Errno::AGAIN)
    }

    /// Loads the shadow of a file, if it has one.
    pub(crate) fn load(&self, node: &CacheNode, state: &mut CacheNodeState) -> Result<()> {
        if state.cached.is_none() {
            let name = record::name_of(&self.backing.identity(node.ino)?.0);
            state.cached = self.find_of(node, &name)?;
            if let Some(cnode) = &mut state.cached {
                self.admit(node.ino, cnode);
            }
        }
        Ok(())
    }

    /// Finds the shadow of a file in the pool, or creates one without data. After a failure removes
    /// the new one again.
    fn load_or_make(&self, node: &CacheNode) -> Result<Cnode> {
        let attr = self.backing.getattr(node.ino)?;
        let identity = self.backing.identity(node.ino)?.0;
        let name = record::name_of(&identity);
        if let Some(cnode) = self.find_of(node, &name)? {
            return Ok(cnode);
        }
        let _shadows = lock(&self.shadows);
        let hint = self.backing.path(node.ino).unwrap_or_default();
        let left = Fingerprint::of(&attr);
        // The content of the backing file may not be synced.
        let state = Flags::UNSYNCED;
        let record = Record { state, left, intent: None, identity, hint };
        // With its record it is a valid shadow (pmcache-C1: the backing file has all of it),
        // without a record it is invalid.
        let made = self.pool.create(&Caller::ROOT, self.nodes, &name, &NEW)?;
        let cnode = Cnode {
            name,
            shadow: made.ino,
            size: attr.size,
            ctime: attr.ctime,
            record,
            birth: None,
            slot: None,
            checked: (self.options.clock)().0.into(),
            is_cut: false,
            dirty: None,
        };
        let begun =
            self.set_shadow_size(&cnode, attr.size).and_then(|()| self.store_record(&cnode));
        if let Err(err) = begun {
            let _ = self.pool.unlink(self.nodes, &cnode.name);
            self.pool.forget(cnode.shadow, 1);
            return Err(err);
        }
        Ok(cnode)
    }

    /// Admits a shadow that was just loaded or made: counts its data to be written back and its
    /// pin, and adds it to the eviction policy.
    pub(crate) fn admit(&self, ino: Ino, cnode: &mut Cnode) {
        if let Some(dirty) = &cnode.dirty {
            self.backlog.grow(dirty.blocks.count() * BLOCK);
            self.backlog.add(self.table.get(ino), (self.options.clock)());
        }
        if cnode.record.state.contains(Flags::PINNED) {
            self.count_old_pin(cnode.shadow);
        }
        cnode.slot =
            Some(self.resident.insert(cnode.shadow, cnode.size.div_ceil(BLOCK), Some(ino)));
    }

    /// Finds the shadow of a file that is about to be used. If it has data that is not written
    /// back, it could not be recovered when the pool was attached; that is done now.
    fn find_of(&self, node: &CacheNode, name: &[u8]) -> Result<Option<Cnode>> {
        let found = {
            let _shadows = lock(&self.shadows);
            self.find(name)?
        };
        let Some(mut cnode) = found else { return Ok(None) };
        let removed = cnode.birth.is_some() && cnode.record.state.contains(Flags::ORPHAN);
        if removed && !self.options.read_only {
            // The next attachment removes it again (births-N2).
            self.release(&cnode);
            return Err(Errno::STALE);
        }
        if cnode.dirty.is_some() {
            self.resume(node, &mut cnode).inspect_err(|_| self.release(&cnode))?;
            lock(&self.lost).retain(|lost| lost.name != name);
        }
        Ok(Some(cnode))
    }

    /// Finds the shadow of this name in the pool. An incomplete shadow that has no data to be
    /// written back is removed.
    pub(crate) fn find(&self, name: &[u8]) -> Result<Option<Cnode>> {
        let shadow = match self.pool.lookup(self.nodes, name) {
            Ok(shadow) => shadow,
            Err(Errno::NOENT) => return Ok(None),
            Err(err) => return Err(err),
        };
        let dirty = self.find_dirty(name);
        let record = self.pool.getxattr(shadow.ino, record::RECORD);
        let record = record.and_then(|bytes| Record::from_bytes(&bytes));
        let birth = self.find_birth(shadow.ino, matches!(dirty, Ok(None)));
        let record = record.and_then(|record| Ok((record, birth?)));
        match (record, dirty) {
            (Ok((record, birth)), Ok(dirty)) if record::name_of(&record.identity) == name => {
                let checked = i64::MIN.into();
                let ctime = match &dirty {
                    Some(_) => record.left.ctime.max(shadow.ctime),
                    None => self.kept_ctime(shadow.ino, &record.left),
                };
                let (name, shadow, size) = (name.to_vec(), shadow.ino, shadow.size);
                let (slot, is_cut) = (None, false);
                let mut cnode = Cnode {
                    name,
                    shadow,
                    size,
                    ctime,
                    record,
                    birth,
                    slot,
                    checked,
                    is_cut,
                    dirty,
                };
                if cnode.dirty.is_none() {
                    cnode.record.state -= Flags::BUSY;
                }
                if cnode.dirty.is_none() && cnode.size != cnode.record.left.size {
                    // Its content was being dropped.
                    cnode.size = cnode.record.left.size;
                    self.set_shadow_size(&cnode, 0)?;
                    self.set_shadow_size(&cnode, cnode.size)?;
                }
                Ok(Some(cnode))
            }
            (Ok(_) | Err(Errno::NODATA | Errno::UCLEAN), Ok(None)) => {
                let removed = self.pool.unlink(self.nodes, name);
                self.pool.forget(shadow.ino, 1);
                removed.map(|()| None)
            }
            (record, dirty) => {
                self.pool.forget(shadow.ino, 1);
                let err = dirty.err().or(record.err()).unwrap_or(Errno::UCLEAN);
                Err(if err == Errno::NODATA { Errno::UCLEAN } else { err })
            }
        }
    }

    /// Loads the bitmap of a shadow, and takes a reference to it. `None` if it has no bitmap.
    fn find_dirty(&self, name: &[u8]) -> Result<Option<Dirty>> {
        let bitmap = match self.pool.lookup(self.dirty, name) {
            Ok(bitmap) => bitmap,
            Err(Errno::NOENT) => return Ok(None),
            Err(err) => return Err(err),
        };
        let blocks = self.read_bitmap(bitmap.ino, bitmap.size);
        let blocks = blocks.inspect_err(|_| self.pool.forget(bitmap.ino, 1))?;
        Ok(Some(Dirty { bitmap: bitmap.ino, blocks, again: None, is_changed: true, reserved: 0 }))
    }

    /// Reads a bitmap of any size; only its allocated parts are read.
    pub(crate) fn read_bitmap(&self, bitmap: Ino, size: u64) -> Result<Blocks> {
        let mut words = Vec::new();
        let mut at = 0;
        let mut piece = vec![0; 64 << 10];
        loop {
            at = match self.pool.seek(bitmap, at, vfs::Seek::Data) {
                Ok(at) if at < size => at / 8 * 8,
                Ok(_) | Err(Errno::NXIO) => return Ok(Blocks::from_words(words)),
                Err(err) => return Err(err),
            };
            // These are marks of blocks that no file can have.
            if at >= BITMAP_MAX {
                return Err(Errno::UCLEAN);
            }
            let len = self.pool.read(bitmap, at, &mut piece)?;
            for (i, word) in piece[..len].chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                words.push((at / 8 + i as u64, word));
            }
            if len == 0 {
                return Ok(Blocks::from_words(words));
            }
            at += len as u64;
        }
    }

    /// Gives a file a bitmap, unless it has one: from now on it may have data that is not written
    /// back.
    pub(crate) fn begin_dirty(&self, node: &CacheNode, cnode: &mut Cnode) -> Result<()> {
        if cnode.dirty.is_some() {
            return Ok(());
        }
        // From now on the shadow has its times, as it has its size (pmcache-C3).
        let now = SetTime::At(cnode.record.left.mtime);
        self.set_shadow(cnode, &SetAttr { mtime: Some(now), ..SetAttr::default() })?;
        // openers-O1.
        self.backing.guard(node.ino)?;
        let bitmap = self.pool.create(&Caller::ROOT, self.dirty, &cnode.name, &NEW)?;
        let blocks = Blocks::default();
        cnode.dirty =
            Some(Dirty { bitmap: bitmap.ino, blocks, again: None, is_changed: true, reserved: 0 });
        self.backlog.add(self.table.get(node.ino), (self.options.clock)());
        Ok(())
    }

    /// Marks blocks as not written back (pmcache-C2).
    pub(crate) fn mark(&self, cnode: &mut Cnode, blocks: &Range<u64>) -> Result<()> {
        let dirty = cnode.dirty.as_mut().ok_or(Errno::IO)?;
        let missing = dirty.blocks.missing(blocks);
        if let Some(again) = &mut dirty.again {
            again.add(blocks);
        }
        if missing == 0 {
            return Ok(());
        }
        let before = dirty.blocks.clone();
        let words = dirty.blocks.add(blocks);
        let stored = self.store_words(dirty, &words);
        if stored.is_err() {
            dirty.blocks = before;
        }
        stored.inspect(|()| self.backlog.grow(missing * BLOCK))
    }

    /// Stores words of a bitmap.
    pub(crate) fn store_words(&self, dirty: &Dirty, words: &[u64]) -> Result<()> {
        for run in joined(words) {
            let start = run.start * 8;
            let bytes: Vec<u8> = run.flat_map(|i| dirty.blocks.word(i).to_le_bytes()).collect();
            self.pool.write(dirty.bitmap, start, &bytes)?;
        }
        Ok(())
    }

    /// Removes the bitmap of a file when all its data is written back.
    pub(crate) fn end_dirty(&self, node: &CacheNode, cnode: &mut Cnode) -> Result<()> {
        if cnode.dirty.is_none() {
            return Ok(());
        }
        self.pool.unlink(self.dirty, &cnode.name)?;
        if let Some(dirty) = cnode.dirty.take() {
            self.backlog.shrink(dirty.blocks.count() * BLOCK);
            self.pool.forget(dirty.bitmap, 1);
        }
        self.backlog.remove(node.ino);
        self.backing.unguard(node.ino);
        Ok(())
    }

    /// Stores the record of a shadow.
    pub(crate) fn store_record(&self, cnode: &Cnode) -> Result<()> {
        let bytes = cnode.record.to_bytes();
        self.pool.setxattr(cnode.shadow, record::RECORD, &bytes, SetXattr::Any)
    }

    /// Sets the flags of a record, durably.
    pub(crate) fn set_state(&self, cnode: &mut Cnode, state: Flags) -> Result<()> {
        if cnode.record.state == state {
            return Ok(());
        }
        let before = std::mem::replace(&mut cnode.record.state, state);
        self.store_record(cnode).inspect_err(|_| cnode.record.state = before)
    }

    pub(crate) fn set_shadow(&self, cnode: &Cnode, set: &SetAttr) -> Result<()> {
        self.pool.setattr(&Caller::ROOT, cnode.shadow, set).map(drop)
    }

    fn set_shadow_size(&self, cnode: &Cnode, size: u64) -> Result<()> {
        self.set_shadow(cnode, &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    /// Changes the backing file and takes its new fingerprint (pmcache-C4). Within another such
    /// change, the outer one takes the fingerprint.
    pub(crate) fn change_below<T>(
        &self,
        node: &CacheNode,
        cnode: &mut Cnode,
        change: impl FnOnce(&B) -> Result<T>,
    ) -> Result<T> {
        let state = cnode.record.state;
        self.set_state(cnode, state | Flags::BUSY)?;
        let result = change(&self.backing);
        if !state.contains(Flags::BUSY) {
            self.take_fingerprint(node, cnode)?;
        }
        result
    }

    /// Takes the fingerprint of the backing file, which the cache has changed and not synced.
    pub(crate) fn take_fingerprint(&self, node: &CacheNode, cnode: &mut Cnode) -> Result<()> {
        let left = Fingerprint::of(&self.backing.getattr(node.ino)?);
        let mut state = cnode.record.state - Flags::BUSY;
        // A change within one tick of the backing store's clock moves no time, but counts, too.
        if state != cnode.record.state || !left.has_same_content(&cnode.record.left) {
            state |= Flags::UNSYNCED;
        }
        if (left, state) == (cnode.record.left, cnode.record.state) {
            return Ok(());
        }
        (cnode.record.left, cnode.record.state) = (left, state);
        if cnode.dirty.is_none() {
            cnode.ctime = left.ctime;
        }
        self.store_record(cnode)
    }

    /// Takes the fingerprint after writing back. `written` is that of the backing file before it
    /// was synced. If the file differs now (space was allocated for an append meanwhile), the
    /// difference is not durable.
    pub(crate) fn take_synced_fingerprint(
        &self,
        node: &CacheNode,
        cnode: &mut Cnode,
        written: &Fingerprint,
    ) -> Result<()> {
        let left = Fingerprint::of(&self.backing.getattr(node.ino)?);
        cnode.record.left = left;
        cnode.record.state -= Flags::BUSY;
        let is_synced = left.has_same_content(written);
        cnode.record.state.set(Flags::UNSYNCED, !is_synced);
        cnode.is_cut &= !is_synced;
        self.store_record(cnode)
    }

    /// Stores the time of the last change of a file that was written back, which gave the backing
    /// file a later time.
    pub(crate) fn keep_ctime(&self, cnode: &Cnode) -> Result<()> {
        let kept = ShownCtime { left: cnode.record.left.ctime, shown: cnode.ctime };
        if kept.left == kept.shown {
            return Ok(());
        }
        self.pool.setxattr(cnode.shadow, record::CTIME, &kept.to_bytes(), SetXattr::Any)
    }

    /// Returns the time of the last change of a file whose data is all written back.
    fn kept_ctime(&self, shadow: Ino, left: &Fingerprint) -> Timestamp {
        let kept = self.pool.getxattr(shadow, record::CTIME).ok();
        let kept = kept.and_then(|bytes| ShownCtime::from_bytes(&bytes));
        kept.filter(|kept| kept.left == left.ctime).map_or(left.ctime, |kept| kept.shown)
    }

    /// Updates the fingerprint after the cache changed only attributes in the backing store.
    pub(crate) fn follow_attributes(&self, ino: Ino) -> Result<()> {
        let Some(node) = self.table.find(ino) else { return Ok(()) };
        let mut state = crate::write(&node.state);
        self.recall(&mut state)?;
        match &mut state.cached {
            Some(cnode) => self.follow(&node, cnode),
            None => Ok(()),
        }
    }

    /// Does the same for a file whose lock is held.
    pub(crate) fn follow(&self, node: &CacheNode, cnode: &mut Cnode) -> Result<()> {
        cnode.ctime = (self.options.clock)();
        if cnode.record.state.contains(Flags::BUSY) {
            return Ok(());
        }
        // It may have been renamed. After a crash this path is tried first.
        if let Some(path) = self.backing.path(node.ino) {
            cnode.record.hint = path;
        }
        self.take_fingerprint(node, cnode)?;
        cnode.ctime = cnode.record.left.ctime;
        Ok(())
    }

    /// Compares a file with the backing store (pmcache-C4). If other processes have changed it,
    /// data that was only read is dropped.
    ///
    /// # Errors
    /// `ESTALE` if they have and the file has data that is not written back.
    pub(crate) fn check(&self, node: &CacheNode, state: &mut CacheNodeState) -> Result<()> {
        let Some(cnode) = &mut state.cached else { return Ok(()) };
        if cnode.record.state.contains(Flags::CONFLICT) {
            return Err(Errno::STALE);
        }
        if !self.needs_check(node, cnode) {
            return Ok(());
        }
        let now = (self.options.clock)();
        // The mark is cleared before the attributes are read: a report that arrives meanwhile sets
        // it again (behind-B1).
        node.is_suspect.store(false, Relaxed);
        let is_stale = cnode.dirty.is_none() && node.is_changed.swap(false, AcqRel);
        let attr = self.backing.getattr(node.ino).inspect_err(|_| {
            node.is_changed.fetch_or(is_stale, Relaxed);
            node.is_suspect.store(true, Release);
        })?;
        cnode.checked.store(now.0, Relaxed);
        let found = Fingerprint::of(&attr);
        // Times may not show a reported change within one tick of the backing store's clock.
        if found == cnode.record.left && !is_stale {
            return Ok(());
        }
        state.frozen = None;
        if cnode.dirty.is_none() {
            count(&self.counts.invalidated, 1);
            tracing::info!(
                "{}: changed by others; what was cached of it is forgotten",
                self.name_for_people(node.ino, cnode)
            );
            return self.forget_content(state, &attr);
        }
        if found.has_same_content(&cnode.record.left) {
            cnode.record.left = found;
            cnode.ctime = cnode.ctime.max(found.ctime);
            return self.store_record(cnode);
        }
        let flags = cnode.record.state | Flags::CONFLICT;
        self.set_state(cnode, flags)?;
        self.recall(state)?;
        let Some(cnode) = &state.cached else { return Err(Errno::STALE) };
        tracing::error!("{}: {CONFLICT}", self.name_for_people(node.ino, cnode));
        Err(Errno::STALE)
    }

    /// Returns whether a file can be used without a comparison that changes something: it was
    /// compared recently, or the backing file is as it was left. Readers that share the lock use
    /// it, as a request for the same file may be waiting for the backing store.
    pub(crate) fn is_as_left(&self, node: &CacheNode, cnode: &Cnode) -> bool {
        if !self.needs_check(node, cnode) {
            return true;
        }
        if node.is_suspect.load(Acquire) || node.is_changed.load(Acquire) {
            return false;
        }
        let now = (self.options.clock)();
        let attr = self.backing.getattr(node.ino);
        let is_same = attr.is_ok_and(|attr| Fingerprint::of(&attr) == cnode.record.left);
        if is_same {
            cnode.checked.store(now.0, Relaxed);
        }
        is_same
    }

    /// Returns whether a file has to be compared with the backing store: not while the cache itself
    /// changes the backing file.
    pub(crate) fn needs_check(&self, node: &CacheNode, cnode: &Cnode) -> bool {
        let age = (self.options.clock)().0.saturating_sub(cnode.checked.load(Relaxed));
        let is_young = (0..self.options.coherence_ns).contains(&age);
        let is_busy = cnode.record.state.contains(Flags::BUSY);
        !is_busy && (!is_young || node.is_suspect.load(Acquire))
    }

    /// Drops the data that was read of a file.
    pub(crate) fn forget_content(&self, state: &mut CacheNodeState, attr: &Attr) -> Result<()> {
        let Some(cnode) = &mut state.cached else { return Ok(()) };
        self.set_shadow_size(cnode, 0)?;
        self.set_shadow_size(cnode, attr.size)?;
        cnode.size = attr.size;
        cnode.record.left = Fingerprint::of(attr);
        cnode.record.state |= Flags::UNSYNCED;
        cnode.ctime = attr.ctime;
        self.store_record(cnode)
    }

    /// Completes attributes from the backing store: compares them with the fingerprint, and adds
    /// the changes that only the cache has.
    pub(crate) fn show(&self, attr: &mut Attr) {
        if attr.kind != vfs::FileKind::File {
            return;
        }
        let Some(node) = self.table.find(attr.ino) else { return };
        let state = crate::read(&node.state);
        let Some(cnode) = &state.cached else { return };
        let found = Fingerprint::of(attr);
        if found != cnode.record.left && !cnode.record.state.contains(Flags::BUSY) {
            node.is_suspect.store(true, Relaxed);
        }
        if cnode.dirty.is_none() {
            // Writing back is not a change that a program has made.
            if found == cnode.record.left {
                attr.ctime = cnode.ctime;
            }
            return;
        }
        let Ok(shadow) = self.pool.getattr(cnode.shadow) else { return };
        attr.blocks = attr.blocks.max(shadow.blocks);
        attr.mtime = shadow.mtime;
        (attr.size, attr.ctime) = match &state.delegation {
            Some(delegated) => (shadow.size, delegated.ctime(cnode, &shadow)),
            None => (cnode.size, cnode.ctime),
        };
    }

    /// Returns the current or last known path of a file.
    pub(crate) fn name_for_people(&self, ino: Ino, cnode: &Cnode) -> String {
        let path = self.backing.path(ino).unwrap_or_else(|| cnode.record.hint.clone());
        record::shown(&path)
    }
}

/// The message about a file that other processes have changed while the cache had data that was not
/// written back.
pub const CONFLICT: &str = "others have changed it while the cache had changes of its own, which are kept and refused; \
     `keepstone attach discard` drops them";
