//! The engine's own derived state, besides that of [`namespace`]: blocks that may not be durable
//! yet, and locks of the journal's records.

use crate::layout::{BLOCK, BlockNo, INODE, journal};
use crate::prealloc;
use crate::settings::{self, Settings};
use arena::{Bitmap, FreeRuns, Layout, Span};
use namespace::{ApartRuns, Memory, PoolLength, RecordLocks, Tables, VInode};
use pmem::Domain;
use pool::{MountOptions, WritePolicy};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// State bit of a file: it is unknown which of its blocks are durable.
const ALL_DIRTY: u32 = namespace::derived::ENGINE_BITS << 1;
const _: () = assert!(ALL_DIRTY != namespace::MAY_BE_CAPABLE);
/// State bit of a file: a program has set its time of modification while mappings could store.
const HAS_SET_TIME: u32 = namespace::derived::ENGINE_BITS << 2;
/// Two state bits: the number of the file's own write policy; 0: it has none.
const POLICY: u32 = 3 * POLICY_UNIT;
const POLICY_UNIT: u32 = namespace::derived::ENGINE_BITS << 3;

/// All volatile state of one mounted pool.
pub struct Volatile {
    tables: Tables,
    /// The bounds on runs of free blocks (space-P3).
    pub free_runs: FreeRuns,
    /// Blocks of files that were stored to through the cache since they were last flushed.
    dirty: Bitmap,
    /// The number of files with such blocks; and whether any file was mapped directly. Derived, so
    /// that a recovery starts with zeros.
    dirty_files: Span<AtomicU64>,
    /// Single blocks for inodes and directories.
    pub apart: ApartRuns,
    /// The locks of the journal's records.
    pub records: RecordLocks,
    /// Pre-allocation.
    pub prealloc: prealloc::Plan,
    /// The settings of all users of the pool.
    pub settings: Settings,
}

/// The volatile state before it has memory.
pub struct Plan {
    tables: namespace::Plan,
    free_runs: FreeRuns,
    dirty: Bitmap,
    dirty_files: Span<AtomicU64>,
    apart: ApartRuns,
    records: RecordLocks,
    prealloc: prealloc::Plan,
}

impl Plan {
    /// Plans the state for a pool that one process uses, or several.
    pub fn new(is_shared: bool, length: PoolLength) -> Self {
        let mut tables = namespace::Plan::new(is_shared, length, BLOCK / INODE);
        let map = tables.blocks();
        let l = tables.layout();
        let free_runs = FreeRuns::plan(l, map);
        let dirty = Bitmap::plan(l, length.blocks);
        let dirty_files = l.table(8);
        let apart = ApartRuns::plan(l, 1);
        let records = RecordLocks::plan(l, journal::RECORDS);
        let prealloc = prealloc::Plan::new(l);
        Self { free_runs, dirty, dirty_files, apart, records, prealloc, tables }
    }

    /// Returns the places of all tables.
    pub fn layout(&mut self) -> &Layout {
        self.tables.layout()
    }

    /// Opens the state in this memory, with the settings of the options, unless other processes
    /// have set theirs.
    pub fn open(self, memory: Memory, domain: Domain, o: &MountOptions) -> Volatile {
        let Self { tables, free_runs, dirty, dirty_files, apart, records, prealloc } = self;
        let is_first = matches!(memory, Memory::Fresh { .. });
        let tables = tables.open(memory);
        let settings = Settings::agree(&tables, is_first, domain, o);
        Volatile { tables, free_runs, dirty, dirty_files, apart, records, prealloc, settings }
    }
}

/// The engine-independent state.
impl Deref for Volatile {
    type Target = Tables;

    #[inline]
    fn deref(&self) -> &Tables {
        &self.tables
    }
}

impl Volatile {
    // --- what is not durable --------------------------------------------------------------------

    /// Records that a file's blocks from its `first` on, which lie at `blocks`, are about to be
    /// stored to through the cache. It is called before the store, so that a death between leaves
    /// no store unrecorded. Under the file's exclusive lock.
    #[inline]
    pub fn mark_dirty(&self, v: &VInode, first: u64, blocks: Range<u64>) {
        let last = first + (blocks.end - blocks.start);
        for block in blocks {
            if !self.dirty.get(&self.arena, block) {
                self.dirty.set(&self.arena, block);
            }
        }
        let (start, end) = (clamp(first), clamp(last));
        let had = dirty_words(v);
        if had.1 == 0 {
            self.dirty_files().fetch_add(1, Relaxed);
        }
        if had.1 == 0 || had.0 > start {
            v.parent.store(start, Relaxed);
        }
        if had.1 < end {
            v.entries.store(end, Relaxed);
        }
    }

    fn dirty_files(&self) -> &AtomicU64 {
        &self.arena.table(self.dirty_files)[0]
    }

    /// Returns whether any file was mapped directly since this state was derived: stores through
    /// mappings are not recorded (mapping-D3).
    fn are_mapped(&self) -> &AtomicU64 {
        &self.arena.table(self.dirty_files)[1]
    }

    /// Records that a file is mapped directly.
    pub fn note_direct_mapping(&self) {
        self.are_mapped().store(1, Relaxed);
    }

    /// Returns whether any file may not be durable. It takes two loads, for callers that ask
    /// regularly.
    pub fn is_any_dirty(&self) -> bool {
        self.dirty_files().load(Relaxed) != 0 || self.are_mapped().load(Relaxed) != 0
    }

    /// Returns the blocks of a file that may not be durable; all others are.
    pub fn dirty_blocks(&self, v: &VInode) -> Range<u64> {
        // Stores through mappings are not recorded.
        if v.mappings.may_store() {
            return 0..u64::MAX;
        }
        let (start, end) = dirty_words(v);
        let end = if end == u32::MAX { u64::MAX } else { u64::from(end) };
        u64::from(start).min(end)..end
    }

    /// Returns whether a block may not be durable.
    pub fn is_dirty(&self, v: &VInode, block: BlockNo) -> bool {
        v.state.load(Relaxed) & ALL_DIRTY != 0
            || v.mappings.may_store()
            || self.dirty.get(&self.arena, block.get())
    }

    /// Records that a block is durable.
    pub fn clear_dirty(&self, block: BlockNo) {
        let block = block.get();
        if self.dirty.get(&self.arena, block) {
            self.dirty.clear(&self.arena, block);
        }
    }

    /// Records that all of a file is durable.
    pub fn end_dirty(&self, v: &VInode) {
        // Of several threads that wrote back the same blocks, one decrements the count.
        if v.entries.swap(0, Relaxed) != 0 {
            self.dirty_files().fetch_sub(1, Relaxed);
        }
        v.parent.store(0, Relaxed);
        v.state.fetch_and(!ALL_DIRTY, Relaxed);
    }

    /// Records that it is unknown which blocks of a file are durable.
    pub fn set_all_dirty(&self, v: &VInode) {
        v.parent.store(0, Relaxed);
        if v.entries.swap(u32::MAX, Relaxed) == 0 {
            self.dirty_files().fetch_add(1, Relaxed);
        }
        v.state.fetch_or(ALL_DIRTY, Relaxed);
    }

    /// Returns whether a program has set the file's time of modification since the last change that
    /// is known, while mappings could store (mapping-D4).
    pub fn has_set_time(&self, v: &VInode) -> bool {
        v.state.load(Relaxed) & HAS_SET_TIME != 0
    }

    /// Records that, or the end of it, under the file's exclusive lock.
    pub fn set_has_set_time(&self, v: &VInode, has: bool) {
        if has {
            v.state.fetch_or(HAS_SET_TIME, Relaxed);
        } else if self.has_set_time(v) {
            v.state.fetch_and(!HAS_SET_TIME, Relaxed);
        }
    }

    // --- what files have chosen -----------------------------------------------------------------

    /// Returns the file's own write policy.
    #[inline]
    pub fn write_policy(&self, v: &VInode) -> Option<WritePolicy> {
        match v.state.load(Relaxed) & POLICY {
            0 => None,
            chosen => settings::numbered(chosen / POLICY_UNIT),
        }
    }

    /// Sets or clears the file's own write policy.
    pub fn set_write_policy(&self, v: &VInode, policy: Option<WritePolicy>) {
        v.state.fetch_and(!POLICY, Relaxed);
        v.state.fetch_or(policy.map_or(0, settings::number) * POLICY_UNIT, Relaxed);
    }
}

/// Returns the range of a file's blocks that may not be durable: the first, and the one behind the
/// last. It is in two words that directories use otherwise; the highest number stands for all
/// higher ones.
fn dirty_words(v: &VInode) -> (u32, u32) {
    (v.parent.load(Relaxed), v.entries.load(Relaxed))
}

fn clamp(block: u64) -> u32 {
    block.min(u64::from(u32::MAX)) as u32
}
