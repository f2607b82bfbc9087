//! Delegation: programs read and write files in the pool themselves, without a request to the
//! server of the cache ([`vfs::Delegations::delegate`]).
//!
//! A program requests a delegation by the attribute [`DELEGATION`], which returns the number of the
//! delegation. It announces the blocks that it is going to write ([`vfs::Delegations::announce`]).
//! So its calls cost as much as calls on files of a pool, and every write is accounted for.
//!
//! - **delegate-G1** While a file is delegated, the shadow has every block of the backing file, as
//!   eviction skips the file. The front end has cached neither content nor attributes of the file.
//! - **delegate-G2** Programs write only to blocks that were marked under the same number, for them
//!   or by them. All steps that precede a write by the cache itself were done before. These are
//!   marks, space in the backing store, truncation of a longer backing file, and, if promised, a
//!   durable name. So there is nothing to sync, either.
//! - **delegate-G3** Any other use of the file recalls it first; then its size is the shadow's, as
//!   pmcache-C3 demands. Writing back is such a use, so a delegation ends at the latest when its
//!   dirty data has to be written back.
//! - **delegate-G4** If the file is used otherwise between the request that the front end forget it
//!   and the delegation, the front end may have cached it again. Then it is not delegated.
//! - **delegate-G5** A program marks blocks itself within its credit. It may mark only blocks that
//!   the backing file has, or has space for, so that nothing except the mark precedes a write to
//!   them. It may mark only as many as were counted as not written back when it got the credit.
//!   While there is credit, the bitmap in the pool is authoritative, and only
//!   [`vfs::Delegations::set_bits_delegated`] changes it; a recall reads it. While a file is being
//!   written back there is no credit, as the cache has to know the blocks that are marked
//!   meanwhile.
//! - **delegate-G6** If other processes may have mapped the file through the kernel, a program that
//!   has written beyond the end makes the kernel ask for the size. So each answer to an
//!   announcement reports such mappings, and an opening by another process recalls the file.

use crate::content::CAPABILITY;
use crate::counters::count;
use crate::node::{CacheNode, CacheNodeState, Cnode, Delegated, Dirty};
use crate::range::Blocks;
use crate::{BLOCK, Cache, read, write};
use backing::Backing;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{
    Announcement, Attr, Credit, Delegation, Errno, FileSystem, Ino, Result, Seek, Timestamp,
};

/// The attribute that delegates a file, if that is possible. It returns the number, the shadow and
/// the path of the pool, separated by spaces.
pub const DELEGATION: &str = "keepstone.cache.delegation";

/// The attribute that returns the same for a file that is delegated already, and does not exist for
/// others.
pub const JOIN: &str = "keepstone.cache.delegated";

/// The maximum number of blocks in one announcement.
const MARKED_MAX: u64 = 16 << 10;
/// A file larger than the pool divided by this number is not delegated, as all of it would have to
/// be in the pool.
const PART_OF_POOL: u64 = 8;
/// The number of blocks that a program may mark itself before it has to announce more.
const CREDIT: u64 = 1024;
/// The minimum number of programs that can have credit within the limit of data that is not written
/// back.
const CREDITS: u64 = 64;
/// The set-user-ID and set-group-ID bits, which a write clears.
const PRIVILEGES: u32 = 0o6000;

/// A function that makes a front end forget everything that it has cached of a file.
pub type Forget = Box<dyn Fn(Ino) -> Result<()> + Send + Sync>;

/// The state of delegating.
pub(crate) struct Delegating {
    /// The path of the pool.
    pool: Vec<u8>,
    forget: Forget,
    /// Held while a file is delegated: the thread that makes the front end forget cannot answer
    /// requests meanwhile.
    one: Mutex<()>,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Starts to delegate files to programs that request it and find the pool at this path. Called
    /// once, by a front end that can answer requests while it forgets.
    pub fn delegate_to_programs(&self, pool: Vec<u8>, forget: Forget) {
        let can = !self.options.read_only && !self.options.write_through;
        if can && self.options.coherence_ns > 0 {
            let _ = self.delegating.set(Delegating { pool, forget, one: Mutex::new(()) });
        }
    }

    /// Delegates a file. Returns the number, the shadow and the pool.
    ///
    /// # Errors
    /// `ENODATA` if that is impossible; `EAGAIN` if it may be possible later.
    pub(crate) fn delegation(&self, ino: Ino) -> Result<Vec<u8>> {
        if let Ok(told) = self.join(ino) {
            return Ok(told);
        }
        let way = self.delegating.get().ok_or(Errno::NODATA)?;
        let node = self.table.find(ino).ok_or(Errno::NODATA)?;
        let _one = way.one.try_lock().map_err(|_| Errno::AGAIN)?;
        self.offer(&node)?;
        (way.forget)(ino)?;
        let mut state = write(&node.state);
        // delegate-G4.
        if !std::mem::take(&mut state.is_offered) {
            return Err(Errno::AGAIN);
        }
        let cnode = state.cached.as_ref().ok_or(Errno::AGAIN)?;
        if !self.holes(cnode, &(0..cnode.size), 1)?.is_empty() {
            return Err(Errno::AGAIN);
        }
        let mtime = self.own_mtime(cnode)?;
        state.delegation = Some(Delegated { by: self.pool.delegate()?, mtime, credit: 0 });
        count(&self.counts.delegated, 1);
        told(&state, way).ok_or(Errno::AGAIN)
    }

    /// Returns the number, the shadow and the pool of a file that is delegated already.
    ///
    /// # Errors
    /// `ENODATA` if it is not.
    pub(crate) fn join(&self, ino: Ino) -> Result<Vec<u8>> {
        let way = self.delegating.get().ok_or(Errno::NODATA)?;
        let node = self.table.find(ino).ok_or(Errno::NODATA)?;
        told(&read(&node.state), way).ok_or(Errno::NODATA)
    }

    /// Does all the preparation that programs cannot do.
    fn offer(&self, node: &CacheNode) -> Result<()> {
        let space = self.pool.statfs();
        let most = space.blocks * u64::from(space.block_size) / PART_OF_POOL;
        let (size, has_intent) = {
            let mut state = write(&node.state);
            (self.cnode(node, &mut state)?.size, state.has_intent())
        };
        if has_intent || size > most || self.backlog.bytes() > self.options.high {
            return Err(Errno::NODATA);
        }
        self.warm(node)?;
        let mut state = write(&node.state);
        self.cnode_to_change(node, &mut state)?;
        if state.is_unlinked || self.backing.getattr(node.ino)?.perm & PRIVILEGES != 0 {
            return Err(Errno::NODATA);
        }
        if !state.is_plain && self.backing.getxattr(node.ino, CAPABILITY) != Err(Errno::NODATA) {
            return Err(Errno::NODATA);
        }
        self.before_change(node, &mut state)?;
        self.keep_name(node, &mut state)?;
        let cnode = state.cached.as_mut().ok_or(Errno::IO)?;
        self.begin_dirty(node, cnode)?;
        state.is_offered = true;
        Ok(())
    }

    /// Prepares these blocks for writes by a delegation (delegate-G2).
    ///
    /// # Errors
    /// As [`vfs::Delegations::announce`]; `ENOSPC` if there is no space for them in the backing
    /// store.
    pub(crate) fn mark_delegated(&self, ino: Ino, announced: &Announcement) -> Result<Credit> {
        let Announcement { by, blocks } = announced;
        if !(1..=MARKED_MAX).contains(&blocks.end.saturating_sub(blocks.start)) {
            return Err(Errno::INVAL);
        }
        let end = blocks.end.checked_mul(BLOCK).filter(|end| *end <= self.limits().file_size);
        let end = end.ok_or(Errno::FBIG)?;
        let node = self.table.find(ino).ok_or(Errno::STALE)?;
        let credit = CREDIT.min(self.options.cap / BLOCK / CREDITS);
        self.change(&node, blocks.end - blocks.start + credit, |state, io| {
            let is_its = |delegated: &Delegated| delegated.by == *by;
            if !state.delegation.as_ref().is_some_and(is_its) {
                return Err(Errno::STALE.into());
            }
            self.check(&node, state)?;
            let (Some(delegated), Some(cnode)) = (&mut state.delegation, &mut state.cached) else {
                return Err(Errno::STALE.into());
            };
            cnode.size = self.pool.getattr(cnode.shadow)?.size;
            if end > cnode.size {
                self.cut_below(&node, cnode, io)?;
            }
            self.reserve(&node, cnode, blocks, end)?;
            if delegated.credit == 0 {
                self.mark(cnode, blocks)?;
            } else {
                self.mark_beside(*by, cnode, blocks)?;
            }
            let others_map = node.openings.load(SeqCst) > 1;
            let credit = self.give_credit(&node, delegated, cnode, blocks.end, credit);
            Ok(Credit { others_map, ..credit })
        })
    }

    /// Counts an opening of a file by a process that may map it (delegate-G6).
    pub(crate) fn count_opening(&self, ino: Ino) {
        let Some(node) = self.table.find(ino) else { return };
        let is_only = node.openings.fetch_add(1, SeqCst) == 0;
        if is_only || !self.is_with_programs(ino) {
            return;
        }
        if let Err(err) = self.recall(&mut write(&node.state)) {
            tracing::warn!("a program is stopped while it writes to inode {ino}: {err}");
        }
    }

    /// Marks blocks in a bitmap that programs change, too (delegate-G5).
    fn mark_beside(&self, by: Delegation, cnode: &mut Cnode, blocks: &Range<u64>) -> Result<()> {
        let dirty = cnode.dirty.as_mut().ok_or(Errno::IO)?;
        self.pool.set_bits_delegated(by, dirty.bitmap, blocks.clone())?;
        self.backlog.grow(dirty.blocks.missing(blocks) * BLOCK);
        dirty.blocks.add(blocks);
        Ok(())
    }

    /// Gives credit for `blocks` more blocks of a file to a program that has announced blocks up to
    /// `end` (delegate-G5).
    fn give_credit(
        &self,
        node: &CacheNode,
        delegated: &mut Delegated,
        cnode: &Cnode,
        end: u64,
        blocks: u64,
    ) -> Credit {
        let Some(dirty) = cnode.dirty.as_ref().filter(|dirty| dirty.again.is_none()) else {
            return Credit::NONE;
        };
        let left = cnode.record.left.size;
        let both = cnode.size.min(left.max(dirty.reserved));
        // A program that writes beyond the end of the backing file will continue there.
        if blocks == 0 || end * BLOCK > both.next_multiple_of(BLOCK) {
            return Credit::NONE;
        }
        let has_hole = |hole| hole < left.min(cnode.size);
        if self.backing.seek(node.ino, 0, Seek::Hole).is_ok_and(has_hole) {
            return Credit::NONE;
        }
        delegated.credit += blocks;
        self.backlog.give_credit(blocks);
        Credit { bitmap: dirty.bitmap, end: both.div_ceil(BLOCK), blocks, ..Credit::NONE }
    }

    /// Reads the marks that programs have made. They make no more now (delegate-G5).
    fn take_credit(&self, delegated: &Delegated, cnode: &mut Cnode) {
        if delegated.credit == 0 {
            return;
        }
        if let Some(dirty) = &mut cnode.dirty {
            self.backlog.shrink(dirty.blocks.count() * BLOCK);
            match self.marked_in_pool(dirty) {
                Ok(blocks) => dirty.blocks = blocks,
                // Any block may be marked.
                Err(_) => drop(dirty.blocks.add(&(0..cnode.size.div_ceil(BLOCK)))),
            }
            self.backlog.grow(dirty.blocks.count() * BLOCK);
        }
        self.backlog.take_credit(delegated.credit);
    }

    fn marked_in_pool(&self, dirty: &Dirty) -> Result<Blocks> {
        let size = self.pool.getattr(dirty.bitmap)?.size;
        self.read_bitmap(dirty.bitmap, size)
    }

    /// Returns the number of bytes of a file that are only in the cache, including those that
    /// programs have marked.
    pub(crate) fn dirty_bytes(&self, state: &CacheNodeState) -> u64 {
        let Some(cnode) = &state.cached else { return 0 };
        let has_credit = |delegated: Delegated| delegated.credit > 0;
        let dirty = cnode.dirty.as_ref().filter(|_| state.delegation.is_some_and(has_credit));
        let blocks = dirty.and_then(|dirty| self.marked_in_pool(dirty).ok());
        blocks.map_or(cnode.dirty_bytes(), |blocks| blocks.count() * BLOCK)
    }

    /// Recalls a file from programs (delegate-G3). Any other use of the file calls it first, with
    /// the state locked.
    ///
    /// # Errors
    /// `EAGAIN` if a program may still be writing.
    pub(crate) fn recall(&self, state: &mut CacheNodeState) -> Result<()> {
        state.is_offered = false;
        let Some(delegated) = state.delegation else { return Ok(()) };
        self.pool.recall(Some(delegated.by))?;
        state.delegation = None;
        count(&self.counts.recalled, 1);
        let Some(cnode) = &mut state.cached else { return Ok(()) };
        self.take_credit(&delegated, cnode);
        let shadow = self.pool.getattr(cnode.shadow)?;
        (cnode.size, cnode.ctime) = (shadow.size, delegated.ctime(cnode, &shadow));
        if let Some(dirty) = &mut cnode.dirty {
            dirty.is_changed = true;
        }
        // These blocks were announced and not written.
        self.unmark(cnode, &(shadow.size.div_ceil(BLOCK)..u64::MAX))?;
        self.resident.enter(cnode.shadow);
        Ok(())
    }

    /// Returns whether programs may be changing the file now, or soon.
    pub(crate) fn is_with_programs(&self, ino: Ino) -> bool {
        let with_programs = |node: std::sync::Arc<CacheNode>| {
            let state = read(&node.state);
            state.delegation.is_some() || state.is_offered
        };
        self.table.find(ino).is_some_and(with_programs)
    }
}

impl Delegated {
    /// Returns the time of the last change of the file, including changes by programs, from the
    /// current attributes of its shadow.
    pub fn ctime(&self, cnode: &Cnode, shadow: &Attr) -> Timestamp {
        if shadow.mtime == self.mtime { cnode.ctime } else { cnode.ctime.max(shadow.mtime) }
    }
}

/// Returns the answer to a program about a delegated file: number, shadow, path of the pool.
fn told(state: &CacheNodeState, way: &Delegating) -> Option<Vec<u8>> {
    let Delegation(number) = state.delegation?.by;
    let Ino(shadow) = state.cached.as_ref()?.shadow;
    let mut told = format!("{number} {shadow} ").into_bytes();
    told.extend_from_slice(&way.pool);
    Some(told)
}
