//! Files that programs read and write in the pool themselves, without a request to who serves the cache
//! ([`FileSystem::delegate`]).
//!
//! A program asks by the attribute [`DELEGATION`], and is told by which number it may; what it is going to write it announces
//! ([`FileSystem::announce`]). So its calls cost what calls on files of a pool cost, and nothing is written that is not
//! accounted for.
//!
//! - **delegate-G1** While a file is delegated, the shadow has every block that is below, as nothing is evicted that has a bitmap;
//!   and the front end has kept nothing of the file, neither content nor attributes.
//! - **delegate-G2** Programs write only to blocks that were marked under the same number, for them or by them. What goes before
//!   each write of the cache's own (marks, space below, the cut of a longer backing file, a name that is durable where that is
//!   promised) was done before, so there is nothing to sync, either.
//! - **delegate-G3** Whoever else uses the file recalls it first; then its size is the shadow's, as C3 has it. Writing it back is
//!   such a use, so a delegation ends with the age of what is dirty at the latest.
//! - **delegate-G4** Between the moment at which the front end is told to forget a file and that at which it is delegated, nobody
//!   else has used it: then it would have been kept again, and it is not delegated.
//! - **delegate-G5** A program marks blocks itself by the credit that it has: only such as the backing file has, or has space
//!   for, so that nothing but the mark goes before a write to them, and no more than were counted as not written back when it was
//!   given. As long as there is credit the bitmap in the pool counts, and nobody but [`FileSystem::set_bits_delegated`] changes
//!   it; a recall reads it. While a file is being written back there is none: what is marked meanwhile has to be known.
//! - **delegate-G6** Where somebody else may have mapped the file by the kernel, a program makes the kernel ask for the size when
//!   it has written beyond the end: so it is told with each answer to an announcement, and a file is recalled when somebody opens
//!   it.

use crate::content::CAPABILITY;
use crate::counters::count;
use crate::node::{Cnode, Delegated, Dirty, Node, State};
use crate::range::Blocks;
use crate::{BLOCK, Cache, read, write};
use backing::Backing;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{
    Announcement, Attr, Credit, Delegation, Errno, FileSystem, Ino, Result, Seek, Timestamp,
};

/// The attribute that delegates a file, if it can be, and tells the number, the shadow and the path of the pool, with
/// spaces between them.
pub const DELEGATION: &str = "keepstone.cache.delegation";

/// The attribute that says the same of a file that is delegated already, and nothing of others.
pub const JOIN: &str = "keepstone.cache.delegated";

/// So many blocks can be announced at once.
const MARKED_MAX: u64 = 16 << 10;
/// A file of more than this part of the pool is not delegated: all of it would have to be there.
const PART_OF_POOL: u64 = 8;
/// So many blocks a program may mark itself before it asks for more.
const CREDIT: u64 = 1024;
/// As many programs at least can have credit before there is more than may wait to be written back.
const CREDITS: u64 = 64;
/// Set-user-ID and set-group-ID, which a write takes away.
const PRIVILEGES: u32 = 0o6000;

/// Makes a front end forget all that it keeps of a file.
pub type Forget = Box<dyn Fn(Ino) -> Result<()> + Send + Sync>;

/// How files are delegated.
pub(crate) struct Delegating {
    /// The pool's path.
    pool: Vec<u8>,
    forget: Forget,
    /// Held by who delegates: the front end answers nobody with the thread that makes it forget.
    one: Mutex<()>,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// From now on delegates files to programs that ask: they find the pool at this path. Once; by a front end that goes on
    /// answering while it forgets.
    pub fn delegate_to_programs(&self, pool: Vec<u8>, forget: Forget) {
        let can = !self.options.read_only && !self.options.write_through;
        if can && self.options.coherence_ns > 0 {
            let _ = self.delegating.set(Delegating { pool, forget, one: Mutex::new(()) });
        }
    }

    /// Delegates a file: by which number, the shadow, and the pool.
    ///
    /// # Errors
    /// `ENODATA` where that cannot be; `EAGAIN` where it may be possible later.
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

    /// What a program is told of a file that is delegated already.
    ///
    /// # Errors
    /// `ENODATA` where it is not.
    pub(crate) fn join(&self, ino: Ino) -> Result<Vec<u8>> {
        let way = self.delegating.get().ok_or(Errno::NODATA)?;
        let node = self.table.find(ino).ok_or(Errno::NODATA)?;
        told(&read(&node.state), way).ok_or(Errno::NODATA)
    }

    /// Prepares all that a program will not.
    fn offer(&self, node: &Node) -> Result<()> {
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

    /// Makes ready for writes by a delegation to these blocks (delegate-G2).
    ///
    /// # Errors
    /// As [`FileSystem::announce`]; `ENOSPC` where there is no space for them below.
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

    /// Somebody has opened a file who may map it (delegate-G6).
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

    /// Marks blocks where programs do so, too (delegate-G5).
    fn mark_beside(&self, by: Delegation, cnode: &mut Cnode, blocks: &Range<u64>) -> Result<()> {
        let dirty = cnode.dirty.as_mut().ok_or(Errno::IO)?;
        self.pool.set_bits_delegated(by, dirty.bitmap, blocks.clone())?;
        self.backlog.grow(dirty.blocks.missing(blocks) * BLOCK);
        dirty.blocks.add(blocks);
        Ok(())
    }

    /// Lets a program that has announced blocks up to `end` mark so many more of the file (delegate-G5).
    fn give_credit(
        &self,
        node: &Node,
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
        // Who writes beyond what is below goes on there.
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

    /// Takes in what programs have marked, which no longer do (delegate-G5).
    fn take_credit(&self, delegated: &Delegated, cnode: &mut Cnode) {
        if delegated.credit == 0 {
            return;
        }
        if let Some(dirty) = &mut cnode.dirty {
            self.backlog.shrink(dirty.blocks.count() * BLOCK);
            match self.marked_in_pool(dirty) {
                Ok(blocks) => dirty.blocks = blocks,
                // Any may be.
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

    /// Bytes of a file that are only in the cache, those included that programs have marked.
    pub(crate) fn dirty_bytes(&self, state: &State) -> u64 {
        let Some(cnode) = &state.cached else { return 0 };
        let has_credit = |delegated: Delegated| delegated.credit > 0;
        let dirty = cnode.dirty.as_ref().filter(|_| state.delegation.is_some_and(has_credit));
        let blocks = dirty.and_then(|dirty| self.marked_in_pool(dirty).ok());
        blocks.map_or(cnode.dirty_bytes(), |blocks| blocks.count() * BLOCK)
    }

    /// Recalls a file from programs (delegate-G3). To be called by who uses it in any other way, with its state locked.
    ///
    /// # Errors
    /// `EAGAIN` where one of them may still be at work.
    pub(crate) fn recall(&self, state: &mut State) -> Result<()> {
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
        // What was announced and not written.
        self.unmark(cnode, &(shadow.size.div_ceil(BLOCK)..u64::MAX))?;
        self.resident.enter(cnode.shadow);
        Ok(())
    }

    /// Whether programs may be changing the file now, or will in a moment.
    pub(crate) fn is_with_programs(&self, ino: Ino) -> bool {
        let with_programs = |node: std::sync::Arc<Node>| {
            let state = read(&node.state);
            state.delegation.is_some() || state.is_offered
        };
        self.table.find(ino).is_some_and(with_programs)
    }
}

impl Delegated {
    /// When the file changed last, programs included, by the attributes that its shadow has now.
    pub fn ctime(&self, cnode: &Cnode, shadow: &Attr) -> Timestamp {
        if shadow.mtime == self.mtime { cnode.ctime } else { cnode.ctime.max(shadow.mtime) }
    }
}

/// What a program is told of a file that is delegated: number, shadow, path of the pool.
fn told(state: &State, way: &Delegating) -> Option<Vec<u8>> {
    let Delegation(number) = state.delegation?.by;
    let Ino(shadow) = state.cached.as_ref()?.shadow;
    let mut told = format!("{number} {shadow} ").into_bytes();
    told.extend_from_slice(&way.pool);
    Some(told)
}
