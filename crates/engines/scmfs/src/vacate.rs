//! Moving blocks away from the end of a pool that is to become shorter (resize-Z2 in
//! [`namespace`]).

use crate::layout::*;
use crate::map::tables_for;
use crate::store::Store;
use namespace::Storage as _;
use namespace::layout::Word;
use pmem::{Medium, PmOff};
use vfs::{Errno, Ino, Result};

impl<M: Medium> Store<M> {
    /// As [`namespace::Storage::vacate_contents`].
    pub fn vacate_maps(&self, from: u64) -> Result<()> {
        for number in 1..self.v.inode_slots() {
            let v = self.v.vinode(Ino(number))?;
            if !v.is_live() {
                continue;
            }
            for word in [Word::Root, Word::Xattr] {
                self.vacate_map(self.word_at(v, word), from, LEVEL_MAX + 1)?;
            }
        }
        Ok(())
    }

    /// Moves the blocks of the map word at `slot`, in a table of this level or, for the highest, in
    /// an inode. Returns whether it moved any. A run moves as a whole.
    pub fn vacate_map(&self, slot: PmOff, from: u64, level: u8) -> Result<bool> {
        let word = self.load_map(slot);
        let map = if level > LEVEL_MAX {
            self.check_map(word, LEVEL_MAX)?
        } else {
            self.check_entry(word, level)?
        };
        match map {
            Map::Hole => Ok(false),
            Map::Run(run) if run.bits().end <= from => Ok(false),
            Map::Run(run) => {
                // A word of the lowest table maps one block.
                let table = if level > LEVEL_MAX { level_for(run.bytes()) } else { level - 1 };
                let new = self.move_run(run, table)?;
                self.publish_map(slot, new);
                Ok(true)
            }
            Map::Table { block, level } => {
                let (mut table, moves) = (block, block.get() >= from);
                if moves {
                    table = self.v.transact(1, 0, |txn| Ok::<_, Errno>(txn.take()))?;
                    self.medium.copy_nt(table.at(0), block.at(0), BLOCK);
                    self.publish_map(slot, Map::Table { block: table, level });
                }
                let mut have_moved = moves;
                for index in 0..FANOUT {
                    have_moved |= self.vacate_map(table.at(index * 8), from, level)?;
                }
                Ok(have_moved)
            }
        }
    }

    /// Copies a run to free blocks, durable after the next fence: to contiguous ones, or else to
    /// pieces under a table of this level. The old blocks stay claimed: those behind the new end
    /// are to go, and the next mount frees the others.
    fn move_run(&self, run: Run, level: u8) -> Result<Map> {
        self.v.transact(run.count + tables_for(run.count), 0, |txn| {
            let mut copied = 0;
            let mut copy = |new: Run| {
                self.medium.copy_nt(new.at(0), run.at(copied * BLOCK), new.bytes());
                copied += new.count;
                copied
            };
            if let Some(new) = txn.take_run(run.count, run.count) {
                copy(new);
                return Ok(Map::Run(new));
            }
            let (mut pieces, mut at) = (Vec::new(), 0);
            while at < run.count {
                let new = txn.take_some(run.count - at);
                pieces.push((at, new));
                at = copy(new);
            }
            Ok(self.build(txn, level, &pieces))
        })
    }
}
