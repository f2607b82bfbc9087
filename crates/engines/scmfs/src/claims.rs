//! The scan of maps, for the scan that opens a pool ([`namespace::Scan`]).
//!
//! - claims-S1: a block has one owner. The first claim of its bit succeeds; a second claim is a
//!   problem, and is not followed, so cycles end.
//! - claims-S2: blocks that are mapped beyond the end of a file are pre-allocated; a crash or the
//!   last user of the pool has left them. The scan does not claim them, and a mount for writing
//!   takes them out of the map.
//! - claims-S3: a file's size is at most what its map word can hold: the virtual size of a run, or
//!   of a table. (If the word is zero, content of any size is zeros.)

use crate::journal;
use crate::layout::*;
use crate::store::Store;
use namespace::{Scan, Storage};
use pmem::{Medium, PmOff};

/// A walk through a map.
struct ClaimsWalk<'a> {
    scan: &'a Scan,
    /// The owner of the map, for reports.
    object: &'a dyn Fn() -> String,
    /// Blocks of the content, without pre-allocated ones.
    keep: u64,
    /// Blocks claimed, tables included.
    blocks: u64,
    is_sound: bool,
    /// Called with each block of content, and its offset in the content.
    each: &'a mut dyn FnMut(PmOff, u64),
}

impl ClaimsWalk<'_> {
    /// Records a problem that is repaired by making a hole.
    fn bad(&mut self, slot: PmOff, what: String) {
        self.scan.problem(self.object, what, Some(((slot, 0), "make it a hole")));
        self.is_sound = false;
    }
}

impl<M: Medium> Store<M> {
    /// Finishes interrupted operations, then claims the blocks of the inode table. Flushes whatever
    /// can be changed in place (scan-S6). Returns whether the table is sound.
    pub fn scan_inode_table(&self, scan: &Scan) -> bool {
        self.scan_usage(scan);
        if !self.is_read_only() {
            journal::replay(&self.medium, self.bytes);
        }
        for block in 0..FIRST_BLOCK {
            self.v.blocks.set(&self.v.arena, block);
        }
        self.medium.flush(PmOff::new(0), BLOCK);
        let object = || "the inode table".to_owned();
        let size = self.medium.load_u64(INODE_SIZE);
        if !self.v.is_inode_file_size(size, INODE) {
            scan.problem(object, format!("its size {size} is impossible"), None);
            return false;
        }
        let mut next = 0;
        let (_, is_sound) = self.claim_map(scan, &object, INODE_MAP, size, &mut |block, base| {
            self.medium.flush(block, BLOCK);
            if base == next {
                self.v.add_leaf(block, INODE);
                next += BLOCK;
            }
        });
        if is_sound && next != size {
            scan.problem(object, format!("it has a hole at byte {next}"), None);
        }
        is_sound && next == size
    }

    /// Claims the blocks of a map word, for content of `size` bytes; calls `each(block, base)` for
    /// its blocks, in order. Returns the number of claimed blocks, including those of tables, and
    /// whether all of the map is sound.
    pub fn claim_map(
        &self,
        scan: &Scan,
        object: &dyn Fn() -> String,
        slot: PmOff,
        size: u64,
        each: &mut dyn FnMut(PmOff, u64),
    ) -> (u64, bool) {
        let keep = size.div_ceil(BLOCK);
        let mut walk = ClaimsWalk { scan, object, keep, blocks: 0, is_sound: true, each };
        match self.map_at(slot) {
            Ok(map) => self.claim(&mut walk, slot, map, 0),
            Err(_) => self.report_word(&mut walk, slot),
        }
        (walk.blocks, walk.is_sound)
    }

    fn report_word(&self, walk: &mut ClaimsWalk<'_>, slot: PmOff) {
        let map = self.load_map(slot);
        walk.bad(slot, format!("the map word at {slot:#x} cannot be: {map:?}"));
    }

    /// Claims the blocks of a valid word; its first block is the `base`th of the content.
    fn claim(&self, walk: &mut ClaimsWalk<'_>, slot: PmOff, map: Map, base: u64) {
        let keep = walk.keep.saturating_sub(base);
        match map {
            Map::Hole => {}
            // It is beyond the end (claims-S2).
            _ if keep == 0 => walk.scan.note_stale(slot),
            Map::Run(run) => {
                let kept = run.first(keep);
                if !self.claim_blocks(walk, slot, kept) {
                    return;
                }
                for i in 0..kept.count {
                    (walk.each)(kept.at(i * BLOCK), (base + i) * BLOCK);
                }
                if kept != run {
                    walk.scan.note_excess(slot, kept.map().pack());
                }
            }
            Map::Table { block, level } => {
                if !self.claim_blocks(walk, slot, Run::one(block)) {
                    return;
                }
                self.medium.flush(block.at(0), BLOCK);
                let each = word_bytes(level) / BLOCK;
                for index in 0..FANOUT {
                    let slot = block.at(index * 8);
                    match self.check_entry(self.load_map(slot), level) {
                        Ok(map) => self.claim(walk, slot, map, base + index * each),
                        Err(_) => self.report_word(walk, slot),
                    }
                }
            }
        }
    }

    /// Claims the blocks of a run, which must have no other owner (claims-S1).
    fn claim_blocks(&self, walk: &mut ClaimsWalk<'_>, slot: PmOff, run: Run) -> bool {
        for block in run.bits() {
            if !self.v.blocks.set(&self.v.arena, block) {
                walk.bad(slot, format!("block {block}, named at {slot:#x}, has another owner"));
                return false;
            }
            walk.blocks += 1;
        }
        true
    }
}
