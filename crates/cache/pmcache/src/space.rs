//! Space in the pool: eviction of files and blocks.

use crate::counters::count;
use crate::node::Cnode;
use crate::pins::Pins;
use crate::range::Blocks;
use crate::record::{self, Flags, Record};
use crate::{BLOCK, Cache, lock};
use backing::Backing;
use eviction::{MarkSlot, Marks, Policy};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use vfs::{Errno, Fallocate, FileSystem, Ino, Result, Seek, SetAttr, SetTime};

/// The maximum size of files that are evicted as a whole, in blocks.
const WHOLE_MAX: u64 = 1024;
/// The number of files from earlier attachments that are added to the policy at a time.
const CRAWL: usize = 1024;

/// The files in the pool.
pub struct Resident {
    order: Mutex<Order>,
    marks: Arc<Marks>,
    /// The pinned shadows.
    pub pins: Pins,
}

struct Order {
    policy: Box<dyn Policy>,
    /// The files in use, by their shadows.
    used: HashMap<Ino, Ino>,
    /// The position in the listing of files to be added to the policy; `None` if all are added.
    crawled: Option<u64>,
}

impl Resident {
    pub fn new(kind: eviction::PolicyKind) -> Self {
        let (policy, marks) = kind.policy();
        let order = Order { policy, used: HashMap::new(), crawled: Some(0) };
        Self { order: Mutex::new(order), marks, pins: Pins::default() }
    }

    /// Adds a shadow, which is in use by this file.
    pub fn insert(&self, shadow: Ino, blocks: u64, file: Option<Ino>) -> MarkSlot {
        let mut order = lock(&self.order);
        if let Some(file) = file {
            order.used.insert(shadow, file);
        }
        order.policy.insert(shadow.0, blocks)
    }

    /// Notes that a shadow is not in use any more.
    pub fn release(&self, shadow: Ino) {
        lock(&self.order).used.remove(&shadow);
    }

    /// Notes that a shadow was removed.
    pub fn remove(&self, shadow: Ino) {
        let mut order = lock(&self.order);
        order.used.remove(&shadow);
        order.policy.remove(shadow.0);
        drop(order);
        self.pins.remove(shadow);
    }

    /// Notes a hit on a file.
    pub fn touch(&self, slot: Option<MarkSlot>) {
        if let Some(slot) = slot {
            self.marks.touch(slot);
        }
    }

    /// Notes that part of a file was missing in the cache.
    pub fn enter(&self, shadow: Ino) {
        lock(&self.order).policy.entered(shadow.0);
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Makes room for `blocks` blocks after an operation found none; the caller holds no lock.
    /// Returns whether there may be room now.
    pub(crate) fn make_room(&self, blocks: u64) -> Result<bool> {
        if self.evict(blocks)? {
            return Ok(true);
        }
        if self.has_removed() {
            self.sync()?;
            return Ok(true);
        }
        // The oldest files come first. If one cannot be written back, the others still make room.
        let mut failed = Ok(());
        for (_, node) in self.backlog.files() {
            match self.drain(std::slice::from_ref(&node)) {
                Ok(()) if self.evict(blocks)? => return Ok(true),
                Ok(()) => {}
                Err(err) => failed = failed.and(Err(err)),
            }
        }
        failed.map(|()| false)
    }

    /// Evicts at least `blocks` blocks, if the backing store has that many as well. Returns whether
    /// any were evicted. The caller may hold the lock of one file, which then stays.
    pub(crate) fn evict(&self, blocks: u64) -> Result<bool> {
        let mut freed = 0;
        let mut passed = HashSet::new();
        while freed < blocks {
            let victim = {
                let mut order = lock(self.order());
                order.policy.victim(&mut |key| passed.contains(&key)).map(Ino)
            };
            let Some(shadow) = victim else {
                if self.crawl()? {
                    continue;
                }
                freed += self.evict_beyond_pins(blocks - freed)?;
                break;
            };
            match self.evict_file(shadow, blocks - freed)? {
                0 => drop(passed.insert(shadow.0)),
                n => freed += n,
            }
        }
        count(&self.counts.evicted_blocks, freed);
        Ok(freed > 0)
    }

    fn order(&self) -> &Mutex<Order> {
        &self.resident.order
    }

    /// Evicts a file, or `blocks` blocks of a large one. Returns the number of blocks evicted.
    fn evict_file(&self, shadow: Ino, blocks: u64) -> Result<u64> {
        let file = lock(self.order()).used.get(&shadow).copied();
        let Some(node) = file.and_then(|ino| self.table.find(ino)) else {
            return self.evict_unused(shadow);
        };
        let Ok(mut state) = node.state.try_write() else { return Ok(0) };
        // A delegated file has all its blocks in the pool (delegate-G1).
        let is_delegated = state.delegation.is_some() || state.is_offered;
        let Some(cnode) = state.cached.as_ref().filter(|cnode| cnode.shadow == shadow) else {
            return Ok(0);
        };
        if cnode.dirty.is_some() {
            let is_kept = is_delegated || cnode.record.state.contains(Flags::PINNED);
            return if is_kept { Ok(0) } else { self.evict_clean(cnode, blocks) };
        }
        if cnode.record.state.contains(Flags::PINNED) && self.resident.pins.blocks(shadow) > 0 {
            // It is added again when it is unpinned, or when the pool is attached again.
            lock(self.order()).policy.remove(shadow.0);
            if let Some(cnode) = &mut state.cached {
                cnode.slot = None;
            }
            return Ok(0);
        }
        let used = self.pool.getattr(shadow)?.blocks / (BLOCK / 512);
        if used > WHOLE_MAX.max(2 * blocks) {
            return self.evict_part(shadow, blocks);
        }
        self.pool.unlink(self.nodes, &cnode.name)?;
        self.resident.remove(shadow);
        self.pool.forget(shadow, 1);
        state.cached = None;
        Ok(used.max(1))
    }

    /// Evicts a file that was not used since the pool was attached.
    fn evict_unused(&self, shadow: Ino) -> Result<u64> {
        let _shadows = lock(&self.shadows);
        let record = self.pool.getxattr(shadow, record::RECORD);
        let record = record.and_then(|bytes| Record::from_bytes(&bytes));
        let name = match record {
            Ok(record)
                if record.state.contains(Flags::PINNED)
                    && self.resident.pins.blocks(shadow) > 0 =>
            {
                lock(self.order()).policy.remove(shadow.0);
                return Ok(0);
            }
            Ok(record) => record::name_of(&record.identity),
            Err(_) => {
                self.resident.remove(shadow);
                return Ok(0);
            }
        };
        if lock(self.order()).used.contains_key(&shadow) || self.has_bitmap(&name)? {
            return Ok(0);
        }
        let used = self.pool.getattr(shadow)?.blocks / (BLOCK / 512);
        self.resident.remove(shadow);
        match self.pool.peek(self.nodes, &name) {
            Ok(found) if found.ino == shadow => {
                self.pool.unlink(self.nodes, &name)?;
                Ok(used.max(1))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(0),
            Err(err) => Err(err),
        }
    }

    /// Evicts up to `blocks` blocks by which pinned files have grown since they were pinned
    /// (pins-P2). Returns how many.
    fn evict_beyond_pins(&self, blocks: u64) -> Result<u64> {
        let mut freed = 0;
        for shadow in self.resident.pins.shadows() {
            if freed >= blocks {
                break;
            }
            let Ok(attr) = self.pool.getattr(shadow) else { continue };
            let pinned = self.resident.pins.blocks(shadow);
            // The nodes of its tree count as blocks, too.
            let kept = pinned + pinned / 128 + 16;
            let beyond = (attr.blocks / (BLOCK / 512)).saturating_sub(kept);
            if beyond == 0 {
                continue;
            }
            let file = lock(self.order()).used.get(&shadow).copied();
            let node = file.and_then(|ino| self.table.find(ino));
            let state = match node.as_ref().map(|node| node.state.try_write()) {
                Some(Err(_)) => continue,
                state => state.and_then(std::result::Result::ok),
            };
            let _shadows = lock(&self.shadows);
            let is_dirty = match &state {
                Some(state) => state.dirty().is_some(),
                None => {
                    let record = self.pool.getxattr(shadow, record::RECORD);
                    let record = record.and_then(|bytes| Record::from_bytes(&bytes));
                    record.map_or(Ok(true), |r| self.has_bitmap(&record::name_of(&r.identity)))?
                }
            };
            if !is_dirty {
                freed += self.evict_part(shadow, beyond.min(blocks - freed))?;
            }
        }
        Ok(freed)
    }

    /// Returns whether the shadow of this name has a bitmap: data to be written back.
    pub(crate) fn has_bitmap(&self, name: &[u8]) -> Result<bool> {
        match self.pool.peek(self.dirty, name) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Evicts the first existing blocks of a file.
    fn evict_part(&self, shadow: Ino, blocks: u64) -> Result<u64> {
        self.punch_unmarked(shadow, &Blocks::default(), blocks)
    }

    /// Evicts up to `blocks` blocks of a dirty file that the backing file has as well (pmcache-C2).
    /// Returns how many.
    pub(crate) fn evict_clean(&self, cnode: &Cnode, blocks: u64) -> Result<u64> {
        let Some(dirty) = &cnode.dirty else { return Ok(0) };
        let differs = cnode.record.state.intersects(Flags::CONFLICT | Flags::ORPHAN);
        if differs || cnode.birth.is_some() || cnode.record.intent.is_some() {
            return Ok(0);
        }
        let before = self.pool.getattr(cnode.shadow)?;
        let freed = self.punch_unmarked(cnode.shadow, &dirty.blocks, blocks);
        // The shadow has the file's times (pmcache-C3), and the content of the file does not
        // change.
        let (mtime, ctime) = (Some(SetTime::At(before.mtime)), Some(before.ctime));
        self.set_shadow(cnode, &SetAttr { mtime, ctime, ..SetAttr::default() })?;
        freed
    }

    /// Frees up to `blocks` blocks of a shadow that are not `marked`, from its beginning on.
    /// Returns how many.
    fn punch_unmarked(&self, shadow: Ino, marked: &Blocks, blocks: u64) -> Result<u64> {
        let mut freed = 0;
        let mut at = 0;
        while freed < blocks {
            let start = match self.pool.seek(shadow, at, Seek::Data) {
                Err(Errno::NXIO) => break,
                start => start?,
            };
            let kept = marked.next(start / BLOCK).unwrap_or(u64::MAX..u64::MAX);
            if kept.start <= start / BLOCK {
                at = kept.end.saturating_mul(BLOCK);
                continue;
            }
            let hole = self.pool.seek(shadow, start, Seek::Hole)?;
            let end = hole.min(start + (blocks - freed) * BLOCK);
            let end = end.min(kept.start.saturating_mul(BLOCK));
            self.pool.fallocate(shadow, Fallocate::PunchHole, start, end - start)?;
            freed += (end - start).div_ceil(BLOCK);
            at = end;
        }
        Ok(freed)
    }

    /// Adds some more files from earlier attachments to the policy. Returns whether there were any.
    /// One call takes a bounded time. All calls together, which follow after the cache was
    /// attached, take time in proportion to the number of files.
    pub(crate) fn crawl(&self) -> Result<bool> {
        let Some(from) = lock(self.order()).crawled else { return Ok(false) };
        let mut found = Vec::new();
        let mut next = None;
        self.pool.readdir(self.nodes, from, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                found.push(entry.ino);
            }
            next = Some(entry.cookie);
            found.len() < CRAWL
        })?;
        found.iter().for_each(|shadow| self.count_old_pin(*shadow));
        let mut order = lock(self.order());
        order.crawled = next;
        for shadow in &found {
            if order.policy.slot(shadow.0).is_none() {
                order.policy.insert(shadow.0, 1);
            }
        }
        Ok(next.is_some())
    }

    /// Evicts files if little space is free. Returns whether more is to be done.
    pub(crate) fn evict_due(&self) -> Result<bool> {
        let space = self.pool.statfs();
        let wanted = space.blocks * self.options.free_percent / 100;
        if space.blocks_free >= wanted {
            return Ok(false);
        }
        self.evict((2 * wanted - space.blocks_free).min(16 << 10))
    }
}
