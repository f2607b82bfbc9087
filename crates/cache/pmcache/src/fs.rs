//! The implementation of the contract: names and attributes come from the backing file system,
//! contents from the cache.

use crate::content::WriteOffset;
use crate::counters::{Status, Trouble};
use crate::node::{CacheNode, CacheNodeState, EntryName as Name, NOBODY};
use crate::record::Flags;
use crate::{Cache, Command, DELEGATION, JOIN, cnode, control, lock, read, write};
use backing::{Backing, Frozen, Watch};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;
use vfs::{
    Announcement, Attr, Caller, Credit, Delegations, Durability, Entry, Errno, Fallocate, FileKind,
    FileSystem, Ino, KernelCache, Mappings, NewNode, Openings, RenameFlags, Result, Seek, SetAttr,
    SetTime, SetXattr, StatFs, Timestamp,
};

/// The reason why a file that was made immutable or append-only since it was written through the
/// cache is not written back.
const FROZEN: &str = "it is immutable or append-only below; `chattr -i -a` lets it be, `keepstone attach discard` drops it";

/// A name that is about to be removed, and its file.
struct Going {
    ino: Ino,
    /// Whether it is the last name.
    is_last: bool,
    /// The name of its shadow, if this is the last name of a file that is not in use.
    unused: Option<Vec<u8>>,
}

impl<P: FileSystem, B: Backing> FileSystem for Cache<P, B> {
    vfs::forward!(self => self.backing; root, limits, readlink, readdir, listxattr);

    /// Contents are durable on return, with [`Mode::Journal`](crate::Mode) also as the content of
    /// their file. Names and attributes are durable when they are synced.
    fn durability(&self) -> Durability {
        Durability::OnSync
    }

    /// The kernel may cache for as long as the cache itself relies on a comparison with the backing
    /// store. If that time is zero, the kernel asks before each read whether its pages are valid:
    /// `FOPEN_DIRECT_IO` would not move the position of asynchronous requests.
    fn kernel_cache(&self) -> KernelCache {
        KernelCache::Checked(Duration::from_nanos(self.options.coherence_ns.max(0) as u64))
    }

    /// Data that is to be written back counts as used space.
    fn statfs(&self) -> StatFs {
        let below = self.backing.statfs();
        let taken = self.backlog.marked().div_ceil(u64::from(below.block_size.max(1)));
        let [blocks_free, blocks_available] =
            [below.blocks_free, below.blocks_available].map(|blocks| blocks.saturating_sub(taken));
        StatFs { blocks_free, blocks_available, ..below }
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let entry = self.backing.lookup(dir, name)?;
        if entry.kind == FileKind::File {
            self.find_lost(entry.ino).inspect_err(|_| self.backing.forget(entry.ino, 1))?;
        }
        Ok(self.hold(entry))
    }

    fn forget(&self, ino: Ino, refs: u64) {
        let Some(node) = self.table.forget(ino, refs) else {
            return self.backing.forget(ino, refs);
        };
        let is_needed = read(&node.state).is_needed();
        if is_needed && refs > 0 {
            self.table.keep(ino);
            return self.backing.forget(ino, refs - 1);
        }
        self.retire(&node);
        self.backing.forget(ino, refs);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let mut attr = self.backing.getattr(ino)?;
        self.show(&mut attr);
        Ok(attr)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.writable()?;
        let Some(size) = set.size else { return self.set_attributes(caller, ino, set) };
        let node = self.file(ino, Errno::INVAL)?;
        if size > self.limits().file_size {
            return Err(Errno::FBIG);
        }
        self.resize(&node, size)?;
        self.set_attributes(caller, ino, &SetAttr { size: None, ..*set })
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        let below = self.writable()?;
        let _names = lock(&self.names);
        let entry = below.create(caller, dir, name, node)?;
        self.note_creation(dir, &entry);
        let entry = self.hold_new(entry);
        if let Some(node) = self.table.find(entry.ino) {
            write(&node.state).made = Some(Name { dir, name: name.into() });
        }
        Ok(entry)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        let entry = self.writable()?.tmpfile(caller, dir, mode, umask)?;
        Ok(self.hold_new(entry))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let below = self.writable()?;
        let _names = lock(&self.names);
        let going = self.begin_removal(dir, name, None)?;
        let result = below.unlink(dir, name);
        self.note_removal(dir, going.as_ref().map(|going| going.ino));
        self.end_removal(going, result.is_ok())?;
        result
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let below = self.writable()?;
        let _names = lock(&self.names);
        let result = below.rmdir(dir, name);
        self.note_change_of(dir);
        result
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let below = self.writable()?;
        let _names = lock(&self.names);
        self.name_below(ino)?;
        let entry = below.link(ino, dir, name)?;
        self.note_change_of(dir);
        self.follow_attributes(ino)?;
        let entry = self.hold(entry);
        if let Some(node) = self.table.find(ino) {
            let mut state = write(&node.state);
            (state.is_unlinked, state.is_named) = (false, false);
            drop(state);
            self.set_orphan(&node, false)?;
        }
        Ok(entry)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.rename_below(from, to, flags, &|below| below.rename(from, to, flags))
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let rename = |below: &B| below.rename_whiteout(caller, from, to, flags);
        self.rename_below(from, to, flags, &rename)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_file(ino, offset, buf)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_file(ino, WriteOffset::At(offset), data).map(drop)
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.write_file(ino, WriteOffset::End, data)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        let below = self.writable()?;
        self.change_attributes(ino, |_| below.drop_privileges(ino))
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        self.allocate(ino, mode, offset, len)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.seek_file(ino, offset, whence)
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.writable()?;
        self.copy(from, to, len)
    }

    /// Makes content, name and attributes durable in the pool, or the name in the backing store.
    /// Does not write back. Returns an earlier error of writing back, once.
    fn fsync(&self, ino: Ino) -> Result<()> {
        let Some(node) = self.table.find(ino) else { return self.fsync_other(ino) };
        let mut state = write(&node.state);
        if let Some(cnode) = &state.cached {
            self.pool.fsync(cnode.shadow)?;
        }
        if !state.is_unlinked {
            self.keep_name(&node, &mut state)?;
        }
        // The data is durable, but cannot be written back. That error is returned once.
        state.error.take().map_or(Ok(()), Err)
    }

    fn sync(&self) -> Result<()> {
        self.pool.sync()?;
        self.discard_removed()
    }

    fn close(&self) -> Result<()> {
        let drained = if self.options.read_only { Ok(()) } else { self.drain_all(&|_| {}) };
        let synced = self.sync();
        self.pool.close()?;
        drained.and(synced)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if name == control::COHERENCE.as_bytes() {
            let ns = self.options.coherence_ns;
            return if ns > 0 { Ok(ns.to_string().into_bytes()) } else { Err(Errno::NODATA) };
        }
        if name == DELEGATION.as_bytes() {
            return self.delegation(ino);
        }
        if name == JOIN.as_bytes() {
            return self.join(ino);
        }
        match Command::of_attribute(name) {
            Some(command) => self.control(ino, command?),
            None => self.backing.getxattr(ino, name),
        }
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        if let Some(command) = Command::of_attribute(name) {
            return self.control_to_change(ino, command?);
        }
        let below = self.writable()?;
        if name == control::DATA.as_bytes() {
            self.check_mode(ino, value)?;
        }
        self.name_below(ino)?;
        self.change_attributes(ino, |state| {
            (state.is_plain, state.mode) = (false, None);
            below.setxattr(ino, name, value, mode)
        })
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let below = self.writable()?;
        self.name_below(ino)?;
        self.change_attributes(ino, |state| {
            state.mode = None;
            below.removexattr(ino, name)
        })
    }
}

impl<P: FileSystem, B: Backing> Mappings for Cache<P, B> {}

impl<P: FileSystem, B: Backing> Openings for Cache<P, B> {
    fn opened(&self, ino: Ino) {
        self.count_opening(ino);
    }

    fn closed(&self, ino: Ino) {
        if let Some(node) = self.table.find(ino) {
            node.openings.fetch_sub(1, SeqCst);
        }
    }
}

impl<P: FileSystem, B: Backing> Delegations for Cache<P, B> {
    fn announce(&self, ino: Ino, announced: &Announcement) -> Result<Credit> {
        self.mark_delegated(ino, announced)
    }

    fn is_delegated(&self, ino: Ino) -> bool {
        self.is_with_programs(ino)
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Returns the backing store for changes.
    ///
    /// # Errors
    /// `EROFS` in a read-only cache.
    fn writable(&self) -> Result<&B> {
        if self.options.read_only { Err(Errno::ROFS) } else { Ok(&self.backing) }
    }

    /// Counts a reference for an entry that goes to a front end.
    fn hold(&self, mut entry: Entry) -> Entry {
        if entry.kind == FileKind::File {
            self.table.hold(entry.ino);
            self.show(&mut entry);
        }
        entry
    }

    /// Counts a reference of the front end to an inode that was just created.
    fn hold_new(&self, entry: Entry) -> Entry {
        let entry = self.hold(entry);
        if let Some(node) = self.table.find(entry.ino) {
            let mut state = write(&node.state);
            state.made = None;
            (state.is_named, state.is_plain, state.is_unlinked) = (false, true, entry.nlink == 0);
        }
        entry
    }

    /// Sets attributes, except the size, in the backing store, and follows in the shadow. Returns
    /// the attributes of the file.
    fn set_attributes(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if *set == SetAttr::default() {
            return self.getattr(ino);
        }
        if set.atime.is_some() {
            self.name_below(ino)?;
        }
        let node = self.table.find(ino).filter(|_| set.mtime.is_some());
        self.change_attributes(ino, |state| {
            let attr = match (&node, state.dirty_mut()) {
                // After a crash, a new time must not look like a change by another process.
                (Some(node), Some(cnode)) => {
                    self.change_below(node, cnode, |below| below.setattr(caller, ino, set))?
                }
                _ => self.backing.setattr(caller, ino, set)?,
            };
            state.is_named &= set.mtime.is_none();
            self.follow_birth(state, &attr)?;
            let Some(cnode) = state.dirty() else { return Ok(()) };
            if set.mtime.is_none() {
                return Ok(());
            }
            let mtime = Some(SetTime::At(attr.mtime));
            self.set_shadow(cnode, &SetAttr { mtime, ..SetAttr::default() })
        })?;
        self.getattr(ino)
    }

    /// Changes attributes in the backing store and updates the fingerprint (pmcache-C4).
    fn change_attributes(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut CacheNodeState) -> Result<()>,
    ) -> Result<()> {
        let Some(node) = self.table.find(ino) else {
            let result = change(&mut CacheNodeState::default());
            self.note_change_of(ino);
            return result;
        };
        let mut state = write(&node.state);
        self.recall(&mut state)?;
        self.load(&node, &mut state)?;
        change(&mut state)?;
        state.cached.as_mut().map_or(Ok(()), |cnode| self.follow(&node, cnode))
    }

    /// Renames a file by `rename`, which is called on the backing store.
    fn rename_below(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
        rename: &dyn Fn(&B) -> Result<()>,
    ) -> Result<()> {
        let below = self.writable()?;
        let _names = lock(&self.names);
        let moved = self.backing.peek(from.0, from.1).map(|attr| attr.ino);
        let replaced = self.backing.peek(to.0, to.1).map(|attr| attr.ino);
        for ino in [moved, replaced].into_iter().flatten() {
            self.name_below(ino)?;
        }
        let going = match flags.contains(RenameFlags::EXCHANGE) {
            true => None,
            false => self.begin_removal(to.0, to.1, moved.ok())?,
        };
        let result = rename(below);
        [from.0, to.0].iter().for_each(|dir| self.note_change_of(*dir));
        self.end_removal(going, result.is_ok())?;
        if let (Ok(()), Ok(moved)) = (result, moved) {
            self.follow_attributes(moved)?;
            if flags.contains(RenameFlags::EXCHANGE)
                && let Ok(other) = self.backing.peek(from.0, from.1)
            {
                self.follow_attributes(other.ino)?;
            }
        }
        result
    }

    /// Prepares the removal of a name, unless its file is `moved`. If it is the last name, the data
    /// of the file in the cache is marked as an orphan's (pmcache-C6).
    fn begin_removal(&self, dir: Ino, name: &[u8], moved: Option<Ino>) -> Result<Option<Going>> {
        let found = match self.backing.lookup(dir, name) {
            Ok(found) => found,
            // The removal itself returns the error.
            Err(_) => return Ok(None),
        };
        let ino = found.ino;
        if found.kind != FileKind::File || moved == Some(ino) {
            self.backing.forget(ino, 1);
            return Ok(None);
        }
        let mut unused = None;
        let is_last = found.nlink == 1;
        if is_last {
            match self.table.find(ino) {
                Some(node) => self.set_orphan(&node, true)?,
                None => unused = self.backing.identity(ino).ok(),
            }
        }
        let unused = unused.map(|identity| crate::record::name_of(&identity.0));
        Ok(Some(Going { ino, is_last, unused }))
    }

    /// Ends the removal of a name, which was done or failed. If the inode has no name any more,
    /// marks its shadow as an orphan or removes it.
    fn end_removal(&self, going: Option<Going>, is_done: bool) -> Result<()> {
        let Some(going) = going else { return Ok(()) };
        // If the store does not answer, the removal still counts.
        let has_none = |attr: vfs::Attr| attr.nlink == 0;
        let is_gone = is_done && self.backing.getattr(going.ino).map_or(going.is_last, has_none);
        let result = match (self.table.find(going.ino), is_gone) {
            (Some(node), true) => {
                write(&node.state).is_unlinked = true;
                // A thread that recorded the creation meanwhile did not know of the removal.
                let marked = self.set_orphan(&node, true);
                self.retire(&node);
                marked
            }
            (Some(node), false) => self
                .set_orphan(&node, false)
                .and_then(|()| if is_done { self.follow_attributes(going.ino) } else { Ok(()) }),
            (None, true) => going.unused.map_or(Ok(()), |name| self.remove_unused(name)),
            (None, false) => Ok(()),
        };
        self.backing.forget(going.ino, 1);
        result
    }

    /// Marks the record of a file with data to be written back as that of a removed file, or not.
    fn set_orphan(&self, node: &CacheNode, is_orphan: bool) -> Result<()> {
        let mut state = write(&node.state);
        self.recall(&mut state)?;
        let Some(cnode) = state.dirty_mut() else { return Ok(()) };
        let mut flags = cnode.record.state;
        flags.set(Flags::ORPHAN, is_orphan);
        self.set_state(cnode, flags)
    }

    /// Removes from the table a file that no front end holds and whose data is all written back. If
    /// its last name was removed, its shadow is removed, too.
    pub(crate) fn retire(&self, node: &CacheNode) {
        let mut state = write(&node.state);
        if state.is_needed() || self.recall(&mut state).is_err() {
            return;
        }
        let Some(kept) = self.table.remove(node.ino) else { return };
        if let Some(mut cnode) = state.cached.take() {
            if state.is_unlinked {
                let removed = match cnode.dirty.is_some() {
                    true => self.keep_removed(node, &mut cnode),
                    false => self.remove_shadow(&cnode),
                };
                if let Err(err) = removed {
                    tracing::error!("what was cached of a removed file stays: {err}");
                }
            } else {
                self.resident.release(cnode.shadow);
            }
            self.pool.forget(cnode.shadow, 1);
        }
        drop(state);
        if kept > 0 {
            self.backing.forget(node.ino, kept);
        }
    }

    fn remove_shadow(&self, cnode: &cnode::Cnode) -> Result<()> {
        self.resident.remove(cnode.shadow);
        self.pool.unlink(self.nodes, &cnode.name)
    }

    /// Returns the status.
    pub fn status(&self) -> Status {
        let space = self.pool.statfs();
        let block = u64::from(space.block_size);
        let files = self.backlog.files();
        let now = (self.options.clock)();
        let oldest = files.first().map_or(now, |(since, _)| *since);
        let counters = self.counts.snapshot();
        let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
        let mut troubles = self.lost();
        troubles.extend(files.iter().filter_map(|(_, node)| self.trouble(node)));
        let watching = self.watching();
        let is_told = watching.how != Watch::Off;
        Status {
            mode: self.options.mode.to_string(),
            watch: watching.how.to_string(),
            watch_reach: is_told.then(|| watching.reach.name().to_owned()),
            watch_problem: watching.problem,
            size_bytes: space.blocks * block,
            used_bytes: (space.blocks - space.blocks_free) * block,
            pinned_bytes: self.resident.pins.bytes(),
            pinned_bytes_max: self.options.pin_max,
            dirty_bytes: files.iter().map(|(_, node)| self.dirty_bytes(&read(&node.state))).sum(),
            dirty_files: files.len() as u64,
            oldest_dirty_ms: (now.0.saturating_sub(oldest.0) / 1_000_000).max(0) as u64,
            pending_changes: self.backing.pending_changes(),
            hit_rate: share(counters.read_hits, counters.read_hits + counters.read_misses),
            write_amplification: share(counters.drained_bytes, counters.written_bytes),
            counters,
            troubled_files: troubles.len() as u64,
            troubles,
        }
    }

    /// Describes why the data of a file is not written back; `None` if there is no such reason.
    fn trouble(&self, node: &Arc<CacheNode>) -> Option<Trouble> {
        let state = read(&node.state);
        let cnode = state.cached.as_ref()?;
        let refused = node.refused.load(Relaxed);
        let what = if cnode.record.state.contains(Flags::CONFLICT) {
            cnode::CONFLICT.to_owned()
        } else if state.retry_at > Timestamp(i64::MIN) && state.retries > 0 {
            let why = match state.error {
                Some(Errno::PERM) if self.is_frozen(node.ino) => format!(": {FROZEN}"),
                Some(Errno::STALE) => ": it is not in the directory any more".to_owned(),
                error => error.map_or_else(String::new, |err| format!(": {err}")),
            };
            format!("cannot be written back{why}; tried {} times, goes on", state.retries)
        } else if refused != NOBODY {
            "is not written back yet".to_owned()
        } else {
            return None;
        };
        let what = match refused {
            NOBODY => what,
            pid => format!("{what}; process {pid} was refused to open it behind the cache"),
        };
        let path = self.name_for_people(node.ino, cnode);
        Some(Trouble { path, what, dirty_bytes: self.dirty_bytes(&state) })
    }

    /// Returns whether the backing file is immutable or append-only.
    pub(crate) fn is_frozen(&self, ino: Ino) -> bool {
        self.backing.frozen(ino).is_ok_and(|frozen| frozen != Frozen::No)
    }

    /// Does a bounded step of background work: writes back files that are due, and evicts. Returns
    /// whether there is more to do.
    ///
    /// # Errors
    /// Errors of files that cannot be written back, which are tried again later.
    pub fn maintain(&self) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        let crawled = self.crawl()?;
        self.discard_removed_due()?;
        let evicted = self.evict_due()?;
        let drained = self.drain_due()?;
        Ok(crawled || evicted || drained)
    }
}
