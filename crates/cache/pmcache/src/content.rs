//! Reads and writes of file contents.

use crate::counters::count;
use crate::node::{CacheNode, CacheNodeState, Cnode, Dirty, Io};
use crate::options::Mode;
use crate::range::blocks_of;
use crate::record::Flags;
use crate::{BLOCK, Cache, lock, read, write};
use backing::{Backing, Frozen};
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, RwLockWriteGuard};
use vfs::{Errno, Fallocate, FileKind, FileSystem, Ino, Result, Seek, SetAttr, SetTime, Timestamp};

/// The reason why a step was not done.
pub(crate) enum Stop {
    /// It failed.
    Errno(Errno),
    /// It has to change the backing file: repeat it with the lock of that.
    Below,
    /// The backing store has no space.
    Full,
}

impl From<Errno> for Stop {
    fn from(err: Errno) -> Self {
        Self::Errno(err)
    }
}

/// The maximum number of bytes read from the backing file at a time.
pub(crate) const FETCH_MAX: u64 = 1 << 20;
/// The maximum number of blocks that a write needs in addition to its own: tree nodes, bitmap,
/// record.
pub(crate) const BESIDE: u64 = 64;
/// The minimum number of free blocks in the pool at which a clean file may become dirty: writing
/// back needs some for records.
const KEPT_FREE: u64 = BESIDE;
/// The number of attempts to make space in the pool before `ENOSPC`.
const TRIES: usize = 8;

/// The place of a write.
#[derive(Clone, Copy)]
pub(crate) enum WriteOffset {
    At(u64),
    End,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Runs a step on a file under its lock. Repeats it with the lock of the backing file if it
    /// needs that, and after evictions if the pool has no space.
    pub(crate) fn change<T>(
        &self,
        node: &CacheNode,
        blocks: u64,
        step: impl Fn(&mut CacheNodeState, Option<&Io>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        self.change_if_it_fits(node, blocks, step)?.ok_or(Errno::NOSPC)
    }

    /// Does the same; `None` if the pool has no space for it, whatever is evicted.
    pub(crate) fn change_if_it_fits<T>(
        &self,
        node: &CacheNode,
        blocks: u64,
        step: impl Fn(&mut CacheNodeState, Option<&Io>) -> std::result::Result<T, Stop>,
    ) -> Result<Option<T>> {
        if self.options.read_only {
            return Err(Errno::ROFS);
        }
        self.throttle(blocks * BLOCK)?;
        for attempt in 1..=TRIES {
            let first = {
                let mut state = write(&node.state);
                if state.has_intent() { Err(Stop::Below) } else { step(&mut state, None) }
            };
            let result = match first {
                Err(Stop::Below) => {
                    let io = lock(&node.io);
                    let mut state = write(&node.state);
                    let again = self.punch_again(node, &mut state).map_err(Stop::from);
                    again.and_then(|()| step(&mut state, Some(&io)))
                }
                other => other,
            };
            match result {
                Ok(done) => return Ok(Some(done)),
                Err(Stop::Below) => return Err(Errno::IO),
                Err(Stop::Full) if attempt == 1 && self.drain_waiting() => {}
                Err(Stop::Full) => return Err(Errno::NOSPC),
                Err(Stop::Errno(Errno::NOSPC)) if self.make_room(blocks + BESIDE)? => {}
                Err(Stop::Errno(Errno::NOSPC)) => break,
                // Another process has truncated it, which the next comparison detects.
                Err(Stop::Errno(Errno::AGAIN)) if attempt < TRIES => {}
                Err(Stop::Errno(err)) => return Err(err),
            }
        }
        Ok(None)
    }

    /// Changes the backing file directly, after all earlier data was written back. The cached data
    /// of the file is dropped.
    fn change_past<T>(
        &self,
        node: &Arc<CacheNode>,
        change: impl Fn(&B, &Cnode) -> Result<T>,
    ) -> Result<T> {
        loop {
            self.drain(std::slice::from_ref(node))?;
            let done = self.change(node, 2, |state, io| {
                io.ok_or(Stop::Below)?;
                self.cnode(node, state)?;
                self.before_change(node, state)?;
                let cnode = state.cached.as_ref().ok_or(Errno::IO)?;
                // A bitmap without marks may exist for the file's birth (births-N2).
                let has_more = |dirty: &Dirty| dirty.blocks.count() > 0 || dirty.is_changed;
                if cnode.dirty.as_ref().is_some_and(has_more) {
                    return Ok(None);
                }
                // Until the fingerprint is taken again, it does not match the backing file.
                let done = change(&self.backing, cnode)?;
                let attr = self.backing.getattr(node.ino)?;
                self.forget_content(state, &attr)?;
                // The backing file now has data that the pool lacks.
                state.made = None;
                Ok(Some(done))
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// Returns a regular file.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `other` for anything else.
    pub(crate) fn file(&self, ino: Ino, other: Errno) -> Result<Arc<CacheNode>> {
        if let Some(node) = self.table.find(ino) {
            return Ok(node);
        }
        match self.backing.getattr(ino)?.kind {
            FileKind::File => Ok(self.table.get(ino)),
            FileKind::Dir => Err(Errno::ISDIR),
            _ => Err(other),
        }
    }

    // --- reading --------------------------------------------------------------------------------

    /// Reads through the cache, and returns the number of bytes. Tries again if another process
    /// truncates the backing file meanwhile; `EAGAIN` if that goes on.
    pub(crate) fn read_file(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.file(ino, Errno::INVAL)?;
        for _ in 1..TRIES {
            match self.try_read(&node, offset, buf) {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
        self.try_read(&node, offset, buf)
    }

    /// Reads a file; `EAGAIN` as for [`fetch`](Self::fetch).
    fn try_read(&self, node: &CacheNode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let is_sequential = node.read_end.swap(range.end, Relaxed) == offset && offset > 0;
        let mut state = read(&node.state);
        let is_own = state.delegation.is_none() && !state.is_offered;
        let cnode = state.cached.as_ref().filter(|cnode| {
            is_own && !cnode.record.state.contains(Flags::CONFLICT) && self.is_as_left(node, cnode)
        });
        let is_known = cnode.is_some();
        if let Some(cnode) = cnode
            && self.holes(cnode, &range, 1)?.is_empty()
        {
            self.resident.touch(cnode.slot);
            count(&self.counts.read_hits, 1);
            let len = self.pool.read(cnode.shadow, offset, buf)?;
            count(&self.counts.read_bytes, len as u64);
            return Ok(len);
        }
        let run = if is_sequential { node.read_run.load(Relaxed) + buf.len() as u64 } else { 0 };
        node.read_run.store(run, Relaxed);
        let passes_by = self.options.bypass > 0 && run > self.options.bypass;
        if !is_known {
            drop(state);
            let mut changed = write(&node.state);
            self.cnode(node, &mut changed)?;
            // A fetch may take long. Readers of cached blocks and requests for attributes need not
            // wait for it.
            state = RwLockWriteGuard::downgrade(changed);
        }
        let cnode = state.cached.as_ref().ok_or(Errno::IO)?;
        count(&self.counts.read_misses, 1);
        if offset >= cnode.size {
            return Ok(0);
        }
        let range = offset..range.end.min(cnode.size);
        let ahead = if is_sequential && !passes_by { self.options.read_ahead } else { 0 };
        let wanted = offset / BLOCK * BLOCK..(range.end + ahead).next_multiple_of(BLOCK);
        let mut apart = Vec::new();
        for hole in self.holes(cnode, &wanted, usize::MAX)? {
            let is_needed = hole.start < range.end;
            let found = match self.fetch(node, cnode, &hole, passes_by) {
                Err(_) if !is_needed => break,
                found => found?,
            };
            match found {
                Some(bytes) if is_needed => apart.push((hole.start, bytes)),
                Some(_) => break,
                None => {}
            }
        }
        self.resident.enter(cnode.shadow);
        let len = self.pool.read(cnode.shadow, offset, buf)?;
        for (at, bytes) in apart {
            overlay(&mut buf[..len], offset, &bytes, at);
        }
        count(&self.counts.read_bytes, len as u64);
        Ok(len)
    }

    /// Returns the blocks of a range that are not in the cache and may differ from zeros in the
    /// backing file (pmcache-C1), as at most `most` runs.
    pub(crate) fn holes(
        &self,
        cnode: &Cnode,
        range: &Range<u64>,
        most: usize,
    ) -> Result<Vec<Range<u64>>> {
        let end = range.end.min(cnode.size).min(cnode.record.left.size);
        let mut holes = Vec::new();
        let mut at = range.start / BLOCK * BLOCK;
        while at < end && holes.len() < most {
            let start = self.pool.seek(cnode.shadow, at, Seek::Hole)?;
            if start >= end {
                break;
            }
            let data = match self.pool.seek(cnode.shadow, start, Seek::Data) {
                Err(Errno::NXIO) => u64::MAX,
                data => data?,
            };
            let stop = data.min(end.next_multiple_of(BLOCK)).min(start + FETCH_MAX);
            holes.push(start..stop);
            at = stop;
        }
        Ok(holes)
    }

    /// Reads blocks from the backing file that the cache lacks, and keeps them. Returns their bytes
    /// if they could not be kept.
    ///
    /// # Errors
    /// `EAGAIN` if another process has truncated the file since it was compared; it has to be
    /// compared again.
    fn fetch(
        &self,
        node: &CacheNode,
        cnode: &Cnode,
        hole: &Range<u64>,
        passes_by: bool,
    ) -> Result<Option<Vec<u8>>> {
        let end = hole.end.min(cnode.size);
        let mut bytes = vec![0; (end - hole.start) as usize];
        let below = (cnode.record.left.size.min(end) - hole.start) as usize;
        let mut filled = 0;
        while filled < below {
            let at = hole.start + filled as u64;
            match self.backing.read(node.ino, at, &mut bytes[filled..below])? {
                // The size may already cover bytes that the cache is about to write there
                // (drain-W2).
                0 if cnode.record.state.contains(Flags::BUSY) => break,
                0 => {
                    node.is_suspect.store(true, Release);
                    return Err(Errno::AGAIN);
                }
                n => filled += n,
            }
        }
        count(&self.counts.fetched_bytes, filled as u64);
        if passes_by {
            count(&self.counts.bypassed, 1);
            return Ok(Some(bytes));
        }
        let blocks = (hole.end - hole.start) / BLOCK + BESIDE;
        loop {
            match self.keep(node, cnode, hole.start, &bytes) {
                Ok(()) => return Ok(None),
                Err(Errno::NOSPC) if self.evict(blocks)? => {}
                Err(Errno::NOSPC) => return Ok(Some(bytes)),
                Err(err) => return Err(err),
            }
        }
    }

    /// Stores data of the backing file in the shadow, without a change of times.
    fn keep(&self, node: &CacheNode, cnode: &Cnode, offset: u64, bytes: &[u8]) -> Result<()> {
        // Several threads may fetch at the same time, and each restores the times from before its
        // store.
        let _keeping = lock(&node.keeping);
        let times = match cnode.dirty {
            Some(_) => Some(self.pool.getattr(cnode.shadow)?),
            None => None,
        };
        self.pool.write(cnode.shadow, offset, bytes)?;
        let Some(times) = times else { return Ok(()) };
        let mtime = Some(SetTime::At(times.mtime));
        self.set_shadow(cnode, &SetAttr { mtime, ctime: Some(times.ctime), ..SetAttr::default() })
    }

    // --- writing --------------------------------------------------------------------------------

    /// Writes to the shadow, and returns the offset of the write. If the write does not fit into an
    /// empty cache, or the file is append-only, writes to the backing file and syncs that. With
    /// `write_through`, also writes the file back.
    pub(crate) fn write_file(&self, ino: Ino, offset: WriteOffset, data: &[u8]) -> Result<u64> {
        let node = self.file(ino, Errno::INVAL)?;
        if data.is_empty() {
            let state = read(&node.state);
            return Ok(state.cached.as_ref().map_or(0, |cnode| cnode.size));
        }
        let blocks = data.len() as u64 / BLOCK + 2;
        let at = self.change_if_it_fits(&node, blocks, |state, io| {
            let (at, cnode) = self.prepare(&node, state, io, offset, data.len() as u64)?;
            self.pool.write(cnode.shadow, at, data)?;
            cnode.size = cnode.size.max(at + data.len() as u64);
            cnode.ctime = (self.options.clock)();
            self.resident.touch(cnode.slot);
            Ok(at)
        });
        let at = match at {
            Err(Errno::PERM) if self.adds_to_append_only(&node, offset) => None,
            at => at?,
        };
        let at = match at {
            Some(at) => at,
            // The write would not fit into an empty cache, or cannot be written back in place.
            None => self.change_past(&node, |below, cnode| {
                let at = if let WriteOffset::At(at) = offset { at } else { cnode.size };
                below.write(node.ino, at, data)?;
                below.fsync(node.ino).map(|()| at)
            })?,
        };
        count(&self.counts.writes, 1);
        count(&self.counts.written_bytes, data.len() as u64);
        if self.options.write_through {
            self.drain(std::slice::from_ref(&node))?;
        }
        Ok(at)
    }

    /// Returns whether a write that the file refuses only appends, so that it can be made in the
    /// backing file at once.
    fn adds_to_append_only(&self, node: &CacheNode, offset: WriteOffset) -> bool {
        let state = read(&node.state);
        let is_end = |cnode: &Cnode| match offset {
            WriteOffset::At(at) => at == cnode.size,
            WriteOffset::End => true,
        };
        state.frozen == Some(Frozen::AppendOnly) && state.cached.as_ref().is_some_and(is_end)
    }

    /// Prepares a shadow for a write. Returns the offset of the write.
    pub(crate) fn prepare<'s>(
        &self,
        node: &CacheNode,
        state: &'s mut CacheNodeState,
        io: Option<&Io>,
        offset: WriteOffset,
        len: u64,
    ) -> std::result::Result<(u64, &'s mut Cnode), Stop> {
        let size = self.cnode_to_change(node, state)?.size;
        let start = match offset {
            WriteOffset::At(start) => start,
            WriteOffset::End => size,
        };
        let end = self.limits().end_of(start, len)?;
        self.before_change(node, state)?;
        let cnode = state.cached.as_mut().ok_or(Errno::IO)?;
        if end > cnode.size {
            self.cut_below(node, cnode, io)?;
        }
        if cnode.dirty.is_none() && self.pool.statfs().blocks_free < KEPT_FREE {
            return Err(Errno::NOSPC.into());
        }
        self.begin_dirty(node, cnode)?;
        let blocks = blocks_of(&(start..end));
        self.reserve(node, cnode, &blocks, end)?;
        let is_cut = |at: u64, is_last: bool| !at.is_multiple_of(BLOCK) && (!is_last || at < size);
        for (at, is_last) in [(start, false), (end, true)] {
            if is_cut(at, is_last) {
                let block = at / BLOCK * BLOCK;
                self.fetch_whole(node, cnode, &(block..block + BLOCK))?;
            }
        }
        self.mark(cnode, &blocks)?;
        Ok((start, cnode))
    }

    /// Fetches the missing parts of whole blocks.
    pub(crate) fn fetch_whole(
        &self,
        node: &CacheNode,
        cnode: &Cnode,
        range: &Range<u64>,
    ) -> Result<()> {
        for hole in self.holes(cnode, range, usize::MAX)? {
            if self.fetch(node, cnode, &hole, false)?.is_some() {
                return Err(Errno::NOSPC);
            }
        }
        Ok(())
    }

    /// Does the steps before each change of a file's content or size.
    pub(crate) fn before_change(&self, node: &CacheNode, state: &mut CacheNodeState) -> Result<()> {
        // The kernel makes appends to an append-only file, and removes the capability.
        if !state.is_plain && state.frozen != Some(Frozen::AppendOnly) {
            // vfs-C5.
            match self.backing.removexattr(node.ino, CAPABILITY) {
                Ok(()) => {
                    if let Some(cnode) = &mut state.cached {
                        self.take_fingerprint(node, cnode)?;
                    }
                }
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(err) => return Err(err),
            }
            state.is_plain = true;
        }
        if !state.is_named && !state.is_unlinked && self.mode_of(node.ino, state) == Mode::Journal {
            self.keep_name(node, state)?;
        }
        if state.is_unlinked
            && let Some(cnode) = &mut state.cached
        {
            let orphan = cnode.record.state | Flags::ORPHAN;
            self.set_state(cnode, orphan)?;
        }
        Ok(())
    }

    /// Truncates a backing file that is longer than the file, before the file grows (pmcache-C3).
    pub(crate) fn cut_below(
        &self,
        node: &CacheNode,
        cnode: &mut Cnode,
        io: Option<&Io>,
    ) -> std::result::Result<(), Stop> {
        let size = cnode.size;
        let is_longer = cnode.record.left.size > size;
        if !is_longer && !cnode.is_cut {
            return Ok(());
        }
        io.ok_or(Stop::Below)?;
        if is_longer {
            self.check_as_left(node, cnode)?;
            cnode.is_cut = true;
            self.change_below(node, cnode, |below| set_size(below, node.ino, size))?;
            cnode.record.left.size = cnode.record.left.size.min(size);
            if let Some(dirty) = &mut cnode.dirty {
                (dirty.reserved, dirty.is_changed) = (0, true);
            }
        }
        // If a power failure brought the longer file back, it would show the bytes that were cut
        // off.
        self.backing.fsync(node.ino)?;
        cnode.is_cut = false;
        Ok(())
    }

    /// Allocates space in the backing file for blocks that are to be written back (pmcache-C5).
    /// `end` is the end of the write.
    pub(crate) fn reserve(
        &self,
        node: &CacheNode,
        cnode: &mut Cnode,
        blocks: &Range<u64>,
        end: u64,
    ) -> std::result::Result<(), Stop> {
        let Some(dirty) = &cnode.dirty else { return Ok(()) };
        let (start, stop) = (blocks.start * BLOCK, blocks.end * BLOCK);
        let is_reserved = cnode.record.left.size <= start && stop <= dirty.reserved;
        if is_reserved || dirty.blocks.missing(blocks) == 0 {
            return Ok(());
        }
        let ino = node.ino;
        let is_allocated =
            || self.backing.seek(ino, start, Seek::Hole).is_ok_and(|hole| hole >= stop);
        if stop <= cnode.record.left.size && is_allocated() {
            return Ok(());
        }
        self.check_as_left(node, cnode)?;
        let keep = Fallocate::Allocate { keep_size: true };
        let ahead = (end + end.min(self.options.reserve)).next_multiple_of(BLOCK).max(stop);
        let most = if end > cnode.record.left.size { ahead } else { stop };
        let most = most.min(self.limits().file_size);
        let result = self.change_below(node, cnode, |below| {
            match below.fallocate(ino, keep, start, most - start) {
                Err(Errno::NOSPC) if most > end => {
                    below.fallocate(ino, keep, start, end - start).map(|()| end)
                }
                other => other.map(|()| most),
            }
        });
        let reserved = match result {
            Ok(reserved) => reserved,
            Err(Errno::OPNOTSUPP) => {
                let needed = self.backlog.bytes() + (stop - start);
                return if self.backing.room()? >= needed { Ok(()) } else { Err(Stop::Full) };
            }
            Err(Errno::NOSPC) => return Err(Stop::Full),
            Err(err) => return Err(err.into()),
        };
        let left = cnode.record.left.size;
        // Nothing is allocated in a gap between them.
        let goes_on = |dirty: &Dirty| start <= dirty.reserved.max(left.next_multiple_of(BLOCK));
        if let Some(dirty) = cnode.dirty.as_mut().filter(|dirty| reserved > left && goes_on(dirty))
        {
            dirty.reserved = reserved;
        }
        Ok(())
    }

    // --- sizes and ranges -----------------------------------------------------------------------

    /// Truncates or extends a file in the pool. Writing it back resizes the backing file.
    pub(crate) fn resize(&self, node: &CacheNode, size: u64) -> Result<()> {
        self.change(node, 2, |state, io| {
            self.cnode_to_change(node, state)?;
            self.before_change(node, state)?;
            let cnode = state.cached.as_mut().ok_or(Errno::IO)?;
            if size > cnode.size {
                self.cut_below(node, cnode, io)?;
            }
            self.begin_dirty(node, cnode)?;
            self.set_shadow(cnode, &SetAttr { size: Some(size), ..SetAttr::default() })?;
            self.note_change(cnode);
            let before = std::mem::replace(&mut cnode.size, size);
            self.unmark(cnode, &(size.div_ceil(BLOCK)..before.div_ceil(BLOCK)))?;
            Ok(())
        })
    }

    /// Removes the marks of blocks that were removed.
    pub(crate) fn unmark(&self, cnode: &mut Cnode, blocks: &Range<u64>) -> Result<()> {
        let Some(dirty) = &mut cnode.dirty else { return Ok(()) };
        if blocks.is_empty() {
            return Ok(());
        }
        let before = dirty.blocks.count();
        let words = dirty.blocks.remove(blocks);
        self.backlog.shrink((before - dirty.blocks.count()) * BLOCK);
        self.store_words(dirty, &words)
    }

    /// Implements `FileSystem::fallocate`.
    pub(crate) fn allocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let attr = self.getattr(ino)?;
        let range = self.limits().check_fallocate((attr.kind, attr.size), mode, offset, len)?;
        let node = self.file(ino, Errno::NODEV)?;
        match mode {
            Fallocate::Allocate { keep_size } => {
                self.allocate_below(&node, &range)?;
                if !keep_size && range.end > attr.size {
                    self.resize(&node, range.end)
                } else {
                    Ok(())
                }
            }
            Fallocate::PunchHole => self.zero(&node, mode, &range),
            Fallocate::ZeroRange { keep_size } => {
                self.zero(&node, mode, &range)?;
                if !keep_size && range.end > attr.size {
                    self.resize(&node, range.end)
                } else {
                    Ok(())
                }
            }
            Fallocate::Collapse | Fallocate::Insert => self.shift(&node, mode, &range),
        }
    }

    /// Allocates space in the backing file, whose size stays. Changes the times of the file.
    fn allocate_below(&self, node: &CacheNode, range: &Range<u64>) -> Result<()> {
        self.change(node, 2, |state, _| {
            self.cnode_to_change(node, state)?;
            self.before_change(node, state)?;
            let cnode = state.cached.as_mut().ok_or(Errno::IO)?;
            self.begin_dirty(node, cnode)?;
            let keep = Fallocate::Allocate { keep_size: true };
            let len = range.end - range.start;
            self.check_as_left(node, cnode)?;
            self.change_below(node, cnode, |below| {
                below.fallocate(node.ino, keep, range.start, len)
            })?;
            self.touch_times(cnode)?;
            Ok(())
        })
    }

    pub(crate) fn touch_times(&self, cnode: &mut Cnode) -> Result<()> {
        self.note_change(cnode);
        self.set_shadow(cnode, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() })
    }

    /// Removes a range or inserts one in the backing file, after all data was written back. The
    /// cached data of the file is dropped.
    fn shift(&self, node: &Arc<CacheNode>, mode: Fallocate, range: &Range<u64>) -> Result<()> {
        let (start, len) = (range.start, range.end - range.start);
        self.change_past(node, |below, _| {
            below.fallocate(node.ino, mode, start, len)?;
            below.fsync(node.ino)
        })
    }

    /// Implements `FileSystem::seek`: data in the pool or in the backing file counts as data.
    pub(crate) fn seek_file(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let node = self.file(ino, Errno::INVAL)?;
        let mut state = write(&node.state);
        let cnode = self.cnode(&node, &mut state)?;
        let size = cnode.size;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        // Bytes of a backing file beyond the end of the file do not belong to the file.
        let below = cnode.record.left.size.min(size);
        let in_pool = |at, whence| self.pool.seek(cnode.shadow, at, whence);
        let in_backing = |at, whence| match self.backing.seek(ino, at, whence) {
            Ok(found) if found < below => Ok(found),
            Ok(_) | Err(Errno::NXIO) => Err(Errno::NXIO),
            Err(err) => Err(err),
        };
        if whence == Seek::Data {
            let found = [in_pool(offset, Seek::Data), in_backing(offset, Seek::Data)];
            let found = found.into_iter().filter(|found| *found != Err(Errno::NXIO));
            let mut first = Err(Errno::NXIO);
            for found in found {
                first = Ok(first.unwrap_or(u64::MAX).min(found?));
            }
            return first.and_then(|at| if at < size { Ok(at) } else { Err(Errno::NXIO) });
        }
        let mut at = offset;
        loop {
            at = in_pool(at, Seek::Hole)?;
            if at >= below {
                return Ok(at.min(size));
            }
            match in_backing(at, Seek::Hole) {
                Ok(hole) if hole == at => return Ok(at),
                Ok(hole) => at = hole,
                Err(Errno::NXIO) => at = below,
                Err(err) => return Err(err),
            }
            if at >= size {
                return Ok(size);
            }
        }
    }

    /// Notes that a file has to be written back although its blocks may be unmarked.
    pub(crate) fn note_change(&self, cnode: &mut Cnode) {
        cnode.ctime = (self.options.clock)();
        if let Some(dirty) = &mut cnode.dirty {
            dirty.is_changed = true;
        }
    }

    /// Returns the modification time of the shadow, which is the file's if it has a bitmap.
    pub(crate) fn own_mtime(&self, cnode: &Cnode) -> Result<Timestamp> {
        Ok(self.pool.getattr(cnode.shadow)?.mtime)
    }
}

/// The attribute that every change of content removes (vfs-C5).
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Sets the size of a backing file.
pub(crate) fn set_size<B: Backing>(below: &B, ino: Ino, size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    below.setattr(&vfs::Caller::ROOT, ino, &set).map(drop)
}

/// Copies the part of `bytes`, which begin at `at`, that overlaps with `buf`, which begins at
/// `offset`.
fn overlay(buf: &mut [u8], offset: u64, bytes: &[u8], at: u64) {
    let start = at.max(offset);
    let end = (at + bytes.len() as u64).min(offset + buf.len() as u64);
    if start < end {
        let (from, to) = ((start - at) as usize, (start - offset) as usize);
        let len = (end - start) as usize;
        buf[to..to + len].copy_from_slice(&bytes[from..from + len]);
    }
}
