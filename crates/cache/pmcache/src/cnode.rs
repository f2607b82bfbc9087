//! Shadow files: found, made, marked, compared with what is below.

use crate::content::BESIDE;
use crate::counters::count;
pub(crate) use crate::node::Cnode;
use crate::node::{Dirty, Node, State};
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

/// Bytes of a bitmap of the longest file.
const BITMAP_MAX: u64 = (record::OFFSET_MAX / BLOCK + 1) / 8;

/// Shadows belong to who serves the cache.
const NEW: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// The shadow of a file; made where there is none. Compares it with what is below where that was not done just now
    /// (pmcache-C4). Recalls it from programs.
    pub(crate) fn cnode<'s>(&self, node: &Node, state: &'s mut State) -> Result<&'s mut Cnode> {
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

    /// The shadow of a file that is about to be changed. One that has nothing which is not below is compared however young it
    /// is: so nothing is written over what others have changed shortly before, and nothing is in conflict with it.
    ///
    /// # Errors
    /// As [`cnode`](Self::cnode); `EPERM` if the backing file is immutable or append-only.
    pub(crate) fn cnode_to_change<'s>(
        &self,
        node: &Node,
        state: &'s mut State,
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

    /// Before the backing file is changed, after which its fingerprint is what it is then: that nobody else has changed it.
    ///
    /// # Errors
    /// `EAGAIN` where somebody has, and the file is to be compared first.
    pub(crate) fn check_as_left(&self, node: &Node, cnode: &Cnode) -> Result<()> {
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

    /// The shadow of a file, if it has one.
    pub(crate) fn load(&self, node: &Node, state: &mut State) -> Result<()> {
        if state.cached.is_none() {
            let name = record::name_of(&self.backing.identity(node.ino)?.0);
            state.cached = self.find_of(node, &name)?;
            if let Some(cnode) = &mut state.cached {
                self.admit(node.ino, cnode);
            }
        }
        Ok(())
    }

    fn load_or_make(&self, node: &Node) -> Result<Cnode> {
        let attr = self.backing.getattr(node.ino)?;
        let identity = self.backing.identity(node.ino)?.0;
        let name = record::name_of(&identity);
        if let Some(cnode) = self.find_of(node, &name)? {
            return Ok(cnode);
        }
        let _shadows = lock(&self.shadows);
        let hint = self.backing.path(node.ino).unwrap_or_default();
        let left = Fingerprint::of(&attr);
        // Nobody may have synced what it has.
        let state = Flags::UNSYNCED;
        let record = Record { state, left, intent: None, identity, hint };
        // With its record it is one (C1: all of it is below); without, nothing.
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

    /// Admits a shadow to the cache: counts what it has to write back, and lets the eviction policy know of it.
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

    /// The shadow of a file that is about to be used. If it has something which is not below, it could not be taken up when the
    /// pool was attached: then it is now.
    fn find_of(&self, node: &Node, name: &[u8]) -> Result<Option<Cnode>> {
        let found = {
            let _shadows = lock(&self.shadows);
            self.find(name)?
        };
        let Some(mut cnode) = found else { return Ok(None) };
        let removed = cnode.birth.is_some() && cnode.record.state.contains(Flags::ORPHAN);
        if removed && !self.options.read_only {
            // The next attach removes it again (births-N2).
            self.release(&cnode);
            return Err(Errno::STALE);
        }
        if cnode.dirty.is_some() {
            self.resume(node, &mut cnode).inspect_err(|_| self.release(&cnode))?;
            lock(&self.lost).retain(|lost| lost.name != name);
        }
        Ok(Some(cnode))
    }

    /// What the pool has under this name. What is no whole shadow, and has nothing that is not below, is removed.
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
                    // It was being forgotten.
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

    /// A bitmap of any size, of which only what is allocated is read.
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
            // Marks of blocks that no file can have.
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

    /// Whether a file may have something that is not below; from now on it is so.
    pub(crate) fn begin_dirty(&self, node: &Node, cnode: &mut Cnode) -> Result<()> {
        if cnode.dirty.is_some() {
            return Ok(());
        }
        // Its times are the shadow's from now on, as its size is (C3).
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

    /// Marks blocks as what is not below yet (pmcache-C2).
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

    /// All of it is below.
    pub(crate) fn end_dirty(&self, node: &Node, cnode: &mut Cnode) -> Result<()> {
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

    /// Stores what a shadow knows of its file.
    pub(crate) fn store_record(&self, cnode: &Cnode) -> Result<()> {
        let bytes = cnode.record.to_bytes();
        self.pool.setxattr(cnode.shadow, record::RECORD, &bytes, SetXattr::Any)
    }

    /// Sets or clears what a record says, durably.
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

    /// Changes the backing file and takes its new fingerprint (pmcache-C4). Who does that within another such change leaves
    /// the fingerprint to it.
    pub(crate) fn change_below<T>(
        &self,
        node: &Node,
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

    /// The backing file is as the cache has left it, which is not synced.
    pub(crate) fn take_fingerprint(&self, node: &Node, cnode: &mut Cnode) -> Result<()> {
        let left = Fingerprint::of(&self.backing.getattr(node.ino)?);
        let mut state = cnode.record.state - Flags::BUSY;
        // A change that moved no time, within one tick of the clock below, is one, too.
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

    /// The same after writing back, which left the backing file as `written` before it was synced. If it is another one now
    /// (space was allocated for an append meanwhile), that is not durable.
    pub(crate) fn take_synced_fingerprint(
        &self,
        node: &Node,
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

    /// Keeps the time of the last change of a file that has been written back, which took a later time below.
    pub(crate) fn keep_ctime(&self, cnode: &Cnode) -> Result<()> {
        let kept = ShownCtime { left: cnode.record.left.ctime, shown: cnode.ctime };
        if kept.left == kept.shown {
            return Ok(());
        }
        self.pool.setxattr(cnode.shadow, record::CTIME, &kept.to_bytes(), SetXattr::Any)
    }

    /// When a file changed last of which the cache has nothing that is not below.
    fn kept_ctime(&self, shadow: Ino, left: &Fingerprint) -> Timestamp {
        let kept = self.pool.getxattr(shadow, record::CTIME).ok();
        let kept = kept.and_then(|bytes| ShownCtime::from_bytes(&bytes));
        kept.filter(|kept| kept.left == left.ctime).map_or(left.ctime, |kept| kept.shown)
    }

    /// Attributes were changed below by the cache, and nothing else.
    pub(crate) fn follow_attributes(&self, ino: Ino) -> Result<()> {
        let Some(node) = self.table.find(ino) else { return Ok(()) };
        let mut state = crate::write(&node.state);
        self.recall(&mut state)?;
        match &mut state.cached {
            Some(cnode) => self.follow(&node, cnode),
            None => Ok(()),
        }
    }

    /// The same for a file whose lock is held.
    pub(crate) fn follow(&self, node: &Node, cnode: &mut Cnode) -> Result<()> {
        cnode.ctime = (self.options.clock)();
        if cnode.record.state.contains(Flags::BUSY) {
            return Ok(());
        }
        // It may have been renamed: after a crash this path is tried first.
        if let Some(path) = self.backing.path(node.ino) {
            cnode.record.hint = path;
        }
        self.take_fingerprint(node, cnode)?;
        cnode.ctime = cnode.record.left.ctime;
        Ok(())
    }

    /// Compares a file with what is below (pmcache-C4): what was only read is forgotten where others have changed it.
    ///
    /// # Errors
    /// `ESTALE` where they have, and the cache has something for it.
    pub(crate) fn check(&self, node: &Node, state: &mut State) -> Result<()> {
        let Some(cnode) = &mut state.cached else { return Ok(()) };
        if cnode.record.state.contains(Flags::CONFLICT) {
            return Err(Errno::STALE);
        }
        if !self.needs_check(node, cnode) {
            return Ok(());
        }
        let now = (self.options.clock)();
        // Before it is looked at: who is told of a change meanwhile looks again (behind-B1).
        node.is_suspect.store(false, Relaxed);
        let is_stale = cnode.dirty.is_none() && node.is_changed.swap(false, AcqRel);
        let attr = self.backing.getattr(node.ino).inspect_err(|_| {
            node.is_changed.fetch_or(is_stale, Relaxed);
            node.is_suspect.store(true, Release);
        })?;
        cnode.checked.store(now.0, Relaxed);
        let found = Fingerprint::of(&attr);
        // Of what is told, times may say nothing, within one tick of the clock below.
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

    /// Whether a file needs no comparison that changes something: it is young, or is found below as it was left. Readers
    /// that share the lock use it, as a request for the same file may be waiting for the backing store.
    pub(crate) fn is_as_left(&self, node: &Node, cnode: &Cnode) -> bool {
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

    /// Whether a file has to be compared with what is below: not so while the cache itself changes that.
    pub(crate) fn needs_check(&self, node: &Node, cnode: &Cnode) -> bool {
        let age = (self.options.clock)().0.saturating_sub(cnode.checked.load(Relaxed));
        let is_young = (0..self.options.coherence_ns).contains(&age);
        let is_busy = cnode.record.state.contains(Flags::BUSY);
        !is_busy && (!is_young || node.is_suspect.load(Acquire))
    }

    /// Forgets what was read of a file.
    pub(crate) fn forget_content(&self, state: &mut State, attr: &Attr) -> Result<()> {
        let Some(cnode) = &mut state.cached else { return Ok(()) };
        self.set_shadow_size(cnode, 0)?;
        self.set_shadow_size(cnode, attr.size)?;
        cnode.size = attr.size;
        cnode.record.left = Fingerprint::of(attr);
        cnode.record.state |= Flags::UNSYNCED;
        cnode.ctime = attr.ctime;
        self.store_record(cnode)
    }

    /// Looks at attributes from below: whether they fit, and what the file has beyond them.
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
            // Writing back is no change that anybody has made.
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

    /// Where a file is, or was.
    pub(crate) fn name_for_people(&self, ino: Ino, cnode: &Cnode) -> String {
        let path = self.backing.path(ino).unwrap_or_else(|| cnode.record.hint.clone());
        record::shown(&path)
    }
}

/// What is said of a file that others have changed while the cache had something for it.
pub const CONFLICT: &str = "others have changed it while the cache had changes of its own, which are kept and refused; \
     `keepstone attach discard` drops them";
