//! Writing back.
//!
//! - **drain-W1** A file's marks are cleared when what they stand for is below, durably, and only of blocks that nobody has written
//!   since they were read for that.
//! - **drain-W2** Before bytes go below, the record is marked busy and the known size of the backing file covers them: so who
//!   cuts the file meanwhile knows that it has to be cut below, too.

use crate::content::{BESIDE, set_size};
use crate::counters::count;
use crate::node::{Cnode, NOBODY, Node};
use crate::range::Blocks;
use crate::record::{Fingerprint, Flags};
use crate::{BLOCK, Cache, lock, read, write};
use backing::Backing;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::{Caller, Errno, FileSystem, Ino, Result, Seek, SetAttr, SetTime, Timestamp};

/// So many bytes are written below by one call.
const PIECE: u64 = 1 << 20;
/// So many files are written back together, by one sync of the file system below where they are more than
/// [`EACH_MAX`].
const BATCH: usize = 64;
const EACH_MAX: usize = 4;
/// Who has failed waits for this long, in nanoseconds, and then twice as long, up to 64 times.
const RETRY_NS: i64 = 100_000_000;

/// What is not below yet.
#[derive(Default)]
pub struct Backlog {
    /// Marked blocks.
    bytes: AtomicU64,
    /// And those that programs may have marked themselves since.
    credit: AtomicU64,
    /// Files that have such, and since when.
    files: Mutex<HashMap<Ino, (Timestamp, Arc<Node>)>>,
    /// Some of them could not be written back.
    has_failed: AtomicBool,
}

/// A file of which all that was marked has been written to the file system below.
struct Written {
    node: Arc<Node>,
    blocks: Blocks,
    /// The backing file then.
    left: Fingerprint,
}

impl Backlog {
    /// As many as there may be.
    pub fn bytes(&self) -> u64 {
        self.marked() + self.credit.load(Relaxed)
    }

    /// As many as are known of.
    pub fn marked(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Programs may mark so many blocks (delegate-G5).
    pub fn give_credit(&self, blocks: u64) {
        self.credit.fetch_add(blocks * BLOCK, Relaxed);
    }

    /// They may no more: what they have marked is known now.
    pub fn take_credit(&self, blocks: u64) {
        self.credit.fetch_sub(blocks * BLOCK, Relaxed);
    }

    pub fn grow(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    pub fn add(&self, node: Arc<Node>, now: Timestamp) {
        lock(&self.files).entry(node.ino).or_insert((now, node));
    }

    pub fn remove(&self, ino: Ino) {
        lock(&self.files).remove(&ino);
    }

    /// What is left was written now.
    fn renew(&self, ino: Ino, now: Timestamp) {
        if let Some((since, _)) = lock(&self.files).get_mut(&ino) {
            *since = now;
        }
    }

    /// A file that has such.
    pub fn find(&self, ino: Ino) -> Option<Arc<Node>> {
        lock(&self.files).get(&ino).map(|(_, node)| node.clone())
    }

    /// Since when the oldest file has such; `None`: there is none.
    pub fn oldest(&self) -> Option<Timestamp> {
        lock(&self.files).values().map(|(since, _)| *since).min()
    }

    /// All files, the oldest first.
    pub fn files(&self) -> Vec<(Timestamp, Arc<Node>)> {
        let mut files: Vec<_> = lock(&self.files).values().cloned().collect();
        files.sort_by_key(|(since, node)| (*since, node.ino));
        files
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Writes files back: when it returns, what they had is below, durably.
    ///
    /// # Errors
    /// The first one; each is kept with its file, too.
    pub(crate) fn drain(&self, nodes: &[Arc<Node>]) -> Result<()> {
        let mut failed = Ok(());
        let mut note = |node: &Arc<Node>, err: Errno| {
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

    /// Writes back what waits for it, which gives back what was allocated ahead; whether anything did. A failure is each file's
    /// own to tell.
    pub(crate) fn drain_waiting(&self) -> bool {
        let waiting: Vec<_> = self.backlog.files().into_iter().map(|(_, node)| node).collect();
        let _ = self.drain(&waiting);
        !waiting.is_empty()
    }

    /// Hands what is marked to the file system below; `None` where that is nothing.
    fn write_back(&self, node: &Arc<Node>) -> Result<Option<Written>> {
        let _io = lock(&node.io);
        let Some(blocks) = self.begin(node)? else { return Ok(None) };
        let written = self.write_below(node, &blocks);
        let left = match written {
            Ok(left) => left,
            Err(err) => return Err(self.note_unwritten(node, err)),
        };
        Ok(Some(Written { node: node.clone(), blocks, left }))
    }

    /// Notes that writing back has failed on the way.
    fn note_unwritten(&self, node: &Node, err: Errno) -> Errno {
        let mut state = write(&node.state);
        if let Some(cnode) = &mut state.cached {
            if let Some(dirty) = &mut cnode.dirty {
                (dirty.again, dirty.is_changed) = (None, true);
            }
            let _ = self.take_fingerprint(node, cnode);
        }
        err
    }

    /// Takes what is marked, if nobody else writes it back.
    fn begin(&self, node: &Node) -> Result<Option<Blocks>> {
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
            // The next attempt writes the same.
            (dirty.again, dirty.is_changed) = (None, true);
        }
        begun.map(|()| Some(blocks))
    }

    /// Marks the record busy (drain-W2). That takes a block of the pool, for which clean blocks of this file go if there is no
    /// other.
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

    /// Writes blocks below, and the size and the time of the file.
    fn write_below(&self, node: &Node, blocks: &Blocks) -> Result<Fingerprint> {
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
            // Also gives back what was allocated beyond the end.
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

    /// Reads what the shadow has of a range, up to a hole or so many bytes (drain-W2); `None` where that is nothing.
    fn read_piece(
        &self,
        node: &Node,
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

    /// Clears the marks of what is below (drain-W1).
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
            // Before anything is cleared that it would need to be made again (births-N2).
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

    fn note_failure(&self, node: &Node, err: Errno) {
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

    /// Tries those again that have failed and waited for long enough. Further failures are each file's own.
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

    /// Files to be written back next, at most so many: the oldest, without those that wait after a failure.
    fn next_batch(&self, most: usize) -> Vec<Arc<Node>> {
        let now = (self.options.clock)();
        let may = |node: &Arc<Node>| read(&node.state).retry_at <= now;
        let files = self.backlog.files().into_iter().map(|(_, node)| node);
        files.filter(may).take(most).collect()
    }

    /// Writes back before a write of so many bytes, where there would be more than there may be; the writer does it itself, so
    /// that who writes faster than the file system below is slowed down to it.
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
            // A failure is with its file now, which then waits.
            let _ = self.drain(&batch);
            if self.backlog.bytes() >= before {
                // Others are writing it back, or write as fast as that.
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Writes back what is due; whether there is more.
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

    /// Makes changes of names and attributes durable below that only this process has.
    ///
    /// # Errors
    /// Of the backing store. They are kept, and the next call tries again.
    pub fn sync_names(&self) -> Result<()> {
        if self.backing.pending_changes() > 0 { self.sync_below() } else { Ok(()) }
    }

    /// Writes everything back, also what other threads are writing back, and tells how many bytes are left now and then.
    ///
    /// # Errors
    /// Of the first file that could not be; all others are.
    pub fn drain_all(&self, progress: &dyn Fn(u64)) -> Result<()> {
        let mut result = Ok(());
        // What is written meanwhile is not waited for: so it ends.
        let files = self.backlog.files();
        for few in files.chunks(BATCH) {
            let nodes: Vec<Arc<Node>> = few.iter().map(|(_, node)| node.clone()).collect();
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

/// Whether a thread has handed content of a file to the file system below, and has not finished that.
pub fn is_being_written_back(node: &Node) -> bool {
    read(&node.state)
        .dirty()
        .is_some_and(|cnode| cnode.dirty.as_ref().is_some_and(|dirty| dirty.again.is_some()))
}
