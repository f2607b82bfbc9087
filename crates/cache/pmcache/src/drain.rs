//! Writing back.
//!
//! - **drain-W1** The mark of a block is cleared when its data is durable in the backing file,
//!   unless the block was written again since it was read for that.
//! - **drain-W2** Before bytes go to the backing file, the record is marked busy and the known size
//!   of the backing file is extended to cover them. So a truncation meanwhile knows that it has to
//!   truncate the backing file, too.

use crate::content::{BESIDE, set_size};
use crate::counters::count;
use crate::node::{CacheNode, Cnode, NOBODY};
use crate::range::Blocks;
use crate::record::{Fingerprint, Flags};
use crate::{BLOCK, Cache, lock, read, write};
use backing::Backing;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::{Caller, Errno, FileSystem, Ino, Result, Seek, SetAttr, SetTime, Timestamp};

/// The maximum number of bytes written to the backing file by one call.
const PIECE: u64 = 1 << 20;
/// The maximum number of files that are written back together. If these are more than [`EACH_MAX`],
/// one sync of the whole backing store follows.
const BATCH: usize = 64;
const EACH_MAX: usize = 4;
/// The time until a failed file is tried again, in nanoseconds. It doubles with each failure, up to
/// the 64-fold.
const RETRY_NS: i64 = 100_000_000;

/// Data that is not written back yet.
#[derive(Default)]
pub struct Backlog {
    /// The bytes of marked blocks.
    bytes: AtomicU64,
    /// The bytes of blocks that programs may have marked themselves since.
    credit: AtomicU64,
    /// The files with such data, and the times since when.
    files: Mutex<HashMap<Ino, (Timestamp, Arc<CacheNode>)>>,
    /// Whether some of them could not be written back.
    has_failed: AtomicBool,
}

/// A file whose marked blocks have all been written to the backing file.
struct Written {
    node: Arc<CacheNode>,
    blocks: Blocks,
    /// The backing file at that time.
    left: Fingerprint,
}

impl Backlog {
    /// Returns the maximum number of bytes that are not written back, including those that programs
    /// may have marked.
    pub fn bytes(&self) -> u64 {
        self.marked() + self.credit.load(Relaxed)
    }

    /// Returns the number of bytes in blocks that are known to be marked.
    pub fn marked(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Notes that programs may mark `blocks` blocks (delegate-G5).
    pub fn give_credit(&self, blocks: u64) {
        self.credit.fetch_add(blocks * BLOCK, Relaxed);
    }

    /// Notes that they may no longer, as their marks are known now.
    pub fn take_credit(&self, blocks: u64) {
        self.credit.fetch_sub(blocks * BLOCK, Relaxed);
    }

    /// Adds to the bytes of marked blocks.
    pub fn grow(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts from the bytes of marked blocks.
    pub fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Enters a file that has such data since `now`, unless it is entered already.
    pub fn add(&self, node: Arc<CacheNode>, now: Timestamp) {
        lock(&self.files).entry(node.ino).or_insert((now, node));
    }

    /// Removes a file that has no such data any more.
    pub fn remove(&self, ino: Ino) {
        lock(&self.files).remove(&ino);
    }

    /// Notes that the remaining data of a file was written now.
    fn renew(&self, ino: Ino, now: Timestamp) {
        if let Some((since, _)) = lock(&self.files).get_mut(&ino) {
            *since = now;
        }
    }

    /// Returns a file with such data.
    pub fn find(&self, ino: Ino) -> Option<Arc<CacheNode>> {
        lock(&self.files).get(&ino).map(|(_, node)| node.clone())
    }

    /// Returns the time since when the oldest file has such data; `None` without such files.
    pub fn oldest(&self) -> Option<Timestamp> {
        lock(&self.files).values().map(|(since, _)| *since).min()
    }

    /// Returns the files with such data, and since when they have it, in the order of that time.
    pub fn files(&self) -> Vec<(Timestamp, Arc<CacheNode>)> {
        let mut files: Vec<_> = lock(&self.files).values().cloned().collect();
        files.sort_by_key(|(since, node)| (*since, node.ino));
        files
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Writes files back. When it returns, their data is durable in the backing store.
    ///
    /// # Errors
    /// The first error; each is also recorded with its file.
    pub(crate) fn drain(&self, nodes: &[Arc<CacheNode>]) -> Result<()> {
        let mut failed = Ok(());
        let mut note = |node: &Arc<CacheNode>, err: Errno| {
            self.note_failure(node, err);
            failed = failed.and(Err(err));
        };
        let mut all = Vec::new();
        for node in nodes {
            match self.write_back(node) {
                Ok(Some(written)) => all.push(written),
                Ok(None) => {}
                Err(err) => note(node, err),
            }
        }
        let together = (all.len() > EACH_MAX).then(|| self.backing.sync());
        for written in all {
            let synced = together.unwrap_or_else(|| self.backing.fsync(written.node.ino));
            let done = self.finish(&written, synced);
            if let Err(err) = done {
                note(&written.node, err);
            }
        }
        failed
    }

    /// Writes back all waiting files, which releases space that was allocated ahead. Returns
    /// whether there were any. A failure is reported only with its file.
    pub(crate) fn drain_waiting(&self) -> bool {
        let waiting: Vec<_> = self.backlog.files().into_iter().map(|(_, node)| node).collect();
        let _ = self.drain(&waiting);
        !waiting.is_empty()
    }

    /// Writes the marked blocks to the backing file; `None` if there are none.
    fn write_back(&self, node: &Arc<CacheNode>) -> Result<Option<Written>> {
        let _io = lock(&node.io);
        let Some(blocks) = self.begin(node)? else { return Ok(None) };
        let written = self.write_below(node, &blocks);
        let left = match written {
            Ok(left) => left,
            Err(err) => return Err(self.note_unwritten(node, err)),
        };
        Ok(Some(Written { node: node.clone(), blocks, left }))
    }

    /// Notes that writing back failed midway.
    fn note_unwritten(&self, node: &CacheNode, err: Errno) -> Errno {
        let mut state = write(&node.state);
        if let Some(cnode) = &mut state.cached {
            if let Some(dirty) = &mut cnode.dirty {
                (dirty.again, dirty.is_changed) = (None, true);
            }
            let _ = self.take_fingerprint(node, cnode);
        }
        err
    }

    /// Returns the marked blocks, unless another thread writes them back.
    fn begin(&self, node: &CacheNode) -> Result<Option<Blocks>> {
        let mut state = write(&node.state);
        self.recall(&mut state)?;
        node.is_suspect.store(true, Relaxed);
        self.check(node, &mut state)?;
        self.punch_again(node, &mut state)?;
        let Some(cnode) = &mut state.cached else { return Ok(None) };
        let Some(dirty) = cnode.dirty.as_mut().filter(|dirty| dirty.again.is_none()) else {
            return Ok(None);
        };
        (dirty.again, dirty.is_changed) = (Some(Blocks::default()), false);
        let blocks = dirty.blocks.clone();
        let begun = self.begin_busy(cnode);
        if let (Err(_), Some(dirty)) = (begun, &mut cnode.dirty) {
            // The next attempt writes the same blocks.
            (dirty.again, dirty.is_changed) = (None, true);
        }
        begun.map(|()| Some(blocks))
    }

    /// Marks the record busy (drain-W2). That needs a block of the pool. If there is no other,
    /// clean blocks of this file are evicted for it.
    fn begin_busy(&self, cnode: &mut Cnode) -> Result<()> {
        let busy = cnode.record.state | Flags::BUSY;
        match self.set_state(cnode, busy) {
            Err(Errno::NOSPC) => {}
            done => return done,
        }
        if !self.evict(BESIDE)? {
            self.evict_clean(cnode, BESIDE)?;
        }
        self.set_state(cnode, busy)
    }

    /// Writes blocks, the size and the time of the file to the backing file.
    fn write_below(&self, node: &CacheNode, blocks: &Blocks) -> Result<Fingerprint> {
        let mut bytes = Vec::new();
        for range in blocks.ranges() {
            let mut at = range.start * BLOCK;
            let end = range.end * BLOCK;
            while let Some(piece) = self.read_piece(node, &(at..end), &mut bytes)? {
                self.backing.write(node.ino, piece.start, &bytes)?;
                count(&self.counts.drained_bytes, bytes.len() as u64);
                at = piece.end.next_multiple_of(BLOCK);
            }
        }
        let mut state = write(&node.state);
        let Some(cnode) = &mut state.cached else { return Ok(Fingerprint::default()) };
        let reserved = cnode.dirty.as_ref().map_or(0, |dirty| dirty.reserved);
        let found = self.backing.getattr(node.ino)?;
        let is_more_to_come = cnode
            .dirty
            .as_ref()
            .is_some_and(|dirty| dirty.again.as_ref().is_some_and(|again| again.count() > 0));
        if found.size != cnode.size || reserved > cnode.size && !is_more_to_come {
            // This also releases space that was allocated beyond the end.
            cnode.is_cut |= found.size > cnode.size;
            set_size(&self.backing, node.ino, cnode.size)?;
            cnode.record.left.size = cnode.size;
            if let Some(dirty) = &mut cnode.dirty {
                dirty.reserved = 0;
            }
        }
        let mtime = Some(SetTime::At(self.own_mtime(cnode)?));
        let set = SetAttr { mtime, ..SetAttr::default() };
        self.backing.setattr(&Caller::ROOT, node.ino, &set).map(|left| Fingerprint::of(&left))
    }

    /// Reads a piece of a range from the shadow, up to a hole and at most `PIECE` bytes (drain-W2);
    /// `None` if there is nothing.
    fn read_piece(
        &self,
        node: &CacheNode,
        range: &Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<Range<u64>>> {
        let mut state = write(&node.state);
        let Some(cnode) = &mut state.cached else { return Ok(None) };
        let end = range.end.min(cnode.size);
        if range.start >= end {
            return Ok(None);
        }
        let start = match self.pool.seek(cnode.shadow, range.start, Seek::Data) {
            Err(Errno::NXIO) => return Ok(None),
            start => start?,
        };
        if start >= end {
            return Ok(None);
        }
        let hole = self.pool.seek(cnode.shadow, start, Seek::Hole)?;
        let end = end.min(hole).min(start + PIECE);
        bytes.resize((end - start) as usize, 0);
        let len = self.pool.read(cnode.shadow, start, bytes)?;
        bytes.truncate(len);
        let end = start + len as u64;
        cnode.record.left.size = cnode.record.left.size.max(end);
        Ok((len > 0).then_some(start..end))
    }

    /// Ends the writing back of a file; `synced` is the result of the sync. After success clears
    /// the marks of the written blocks (drain-W1). Otherwise keeps them, and returns the error.
    fn finish(&self, written: &Written, synced: Result<()>) -> Result<()> {
        let node = &written.node;
        let _io = lock(&node.io);
        let mut state = write(&node.state);
        let is_unlinked = state.is_unlinked;
        let Some(cnode) = &mut state.cached else { return synced };
        let Some(dirty) = &mut cnode.dirty else { return synced };
        let again = dirty.again.take().unwrap_or_default();
        if let Err(err) = synced {
            dirty.is_changed = true;
            self.take_fingerprint(node, cnode)?;
            return Err(err);
        }
        if !is_unlinked && !cnode.record.state.contains(Flags::ORPHAN) {
            // This comes before the marks are cleared, which creating the file again would need
            // (births-N2).
            self.clear_birth(cnode)?;
        }
        let Some(dirty) = &mut cnode.dirty else { return Ok(()) };
        let before = dirty.blocks.count();
        let words = dirty.blocks.remove_all(&written.blocks, &again);
        self.backlog.shrink((before - dirty.blocks.count()) * BLOCK);
        self.store_words(dirty, &words)?;
        let is_done = dirty.blocks.count() == 0 && !dirty.is_changed && cnode.birth.is_none();
        self.take_synced_fingerprint(node, cnode, &written.left)?;
        count(&self.counts.drained_files, 1);
        if is_done {
            self.keep_ctime(cnode)?;
            self.end_dirty(node, cnode)?;
        } else {
            self.backlog.renew(node.ino, (self.options.clock)());
        }
        (state.retries, state.retry_at) = (0, Timestamp(i64::MIN));
        node.refused.store(NOBODY, Relaxed);
        state.made = None;
        drop(state);
        if is_done {
            self.retire(node);
        }
        Ok(())
    }

    /// Records an error of writing back in the file, for its next `fsync`, and the time of the next
    /// attempt.
    fn note_failure(&self, node: &CacheNode, err: Errno) {
        count(&self.counts.failures, 1);
        let mut state = write(&node.state);
        if state.error != Some(err) {
            let path = state.cached.as_ref().map(|cnode| self.name_for_people(node.ino, cnode));
            tracing::error!("{}: cannot be written back: {err}", path.unwrap_or_default());
        }
        state.error = Some(err);
        let wait = RETRY_NS << state.retries.min(6);
        state.retries = state.retries.saturating_add(1);
        state.retry_at = Timestamp((self.options.clock)().0.saturating_add(wait));
        self.backlog.has_failed.store(true, Relaxed);
    }

    /// Tries failed files again that have waited long enough. Further failures are reported only
    /// with each file.
    fn retry(&self) {
        if !self.backlog.has_failed.swap(false, Relaxed) {
            return;
        }
        let now = (self.options.clock)();
        let mut due = Vec::new();
        for (_, node) in self.backlog.files() {
            let state = read(&node.state);
            if state.retries > 0 && state.retry_at > now {
                self.backlog.has_failed.store(true, Relaxed);
            } else if state.retries > 0 {
                drop(state);
                due.push(node);
            }
        }
        for few in due.chunks(BATCH) {
            let _ = self.drain(few);
        }
    }

    /// Returns the files to be written back next, at most `most`: the oldest, without those that
    /// wait after a failure.
    fn next_batch(&self, most: usize) -> Vec<Arc<CacheNode>> {
        let now = (self.options.clock)();
        let may = |node: &Arc<CacheNode>| read(&node.state).retry_at <= now;
        let files = self.backlog.files().into_iter().map(|(_, node)| node);
        files.filter(may).take(most).collect()
    }

    /// Writes back data, the oldest first, until a write of `bytes` bytes keeps within the limit.
    /// The writer does it itself, and so is slowed down to the speed of the backing store.
    ///
    /// # Errors
    /// The error of a waiting file, or `ENOSPC`, if all files wait after failures.
    pub(crate) fn throttle(&self, bytes: u64) -> Result<()> {
        let is_over = || {
            let backlog = self.backlog.bytes();
            backlog > 0 && backlog + bytes > self.options.cap
        };
        if !is_over() {
            return Ok(());
        }
        count(&self.counts.throttled, 1);
        while is_over() {
            let batch = self.next_batch(1);
            if batch.is_empty() {
                let files = self.backlog.files();
                let held = files.iter().find_map(|(_, node)| read(&node.state).error);
                return Err(held.unwrap_or(Errno::NOSPC));
            }
            let before = self.backlog.bytes();
            // A failure is recorded with its file, which then waits.
            let _ = self.drain(&batch);
            if self.backlog.bytes() >= before {
                // Other threads are writing it back, or writing as fast as that.
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Writes back the files that are due. Returns whether there are more.
    pub(crate) fn drain_due(&self) -> Result<bool> {
        self.retry();
        let Some(oldest) = self.backlog.oldest() else { return Ok(false) };
        let age = (self.options.clock)().0.saturating_sub(oldest.0);
        let is_above = self.backlog.bytes() > self.options.high;
        if !is_above && age < self.options.max_age_ns {
            return Ok(false);
        }
        let batch = self.next_batch(BATCH);
        if batch.is_empty() {
            return Ok(false);
        }
        let enough = if is_above { self.options.low } else { u64::MAX };
        for few in batch.chunks(EACH_MAX * 4) {
            self.drain(few)?;
            if self.backlog.bytes() <= enough && is_above {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes durable in the backing store changes of names and attributes that only this process
    /// has.
    ///
    /// # Errors
    /// Errors of the backing store. The changes are kept, and the next call tries again.
    pub fn sync_names(&self) -> Result<()> {
        if self.backing.pending_changes() > 0 { self.sync_below() } else { Ok(()) }
    }

    /// Writes everything back, including data that other threads are writing back. Calls `progress`
    /// now and then with the number of bytes left.
    ///
    /// # Errors
    /// The error of the first file that could not be written back; all others are.
    pub fn drain_all(&self, progress: &dyn Fn(u64)) -> Result<()> {
        let mut result = Ok(());
        // Data written meanwhile is not waited for, so that this ends.
        let files = self.backlog.files();
        for few in files.chunks(BATCH) {
            let nodes: Vec<Arc<CacheNode>> = few.iter().map(|(_, node)| node.clone()).collect();
            result = result.and(self.drain(&nodes));
            progress(self.backlog.marked());
        }
        for (_, node) in files.iter().filter(|(_, node)| is_being_written_back(node)) {
            result = result.and(self.flush(node));
            progress(self.backlog.marked());
        }
        result.and(self.sync_names())
    }
}

/// Returns whether a thread is writing content of a file back.
pub fn is_being_written_back(node: &CacheNode) -> bool {
    read(&node.state)
        .dirty()
        .is_some_and(|cnode| cnode.dirty.as_ref().is_some_and(|dirty| dirty.again.is_some()))
}
