//! An edit of single words: inodes in the inode file, entries in directories. What it changes is a [`Patch`], by offset in
//! the file.

use crate::blocks::Txn;
use crate::crawler::{Change, Edit, Mode, Trees};
use crate::layout::{BLOCK, BlockNo};
use namespace::{Moved, Patch};
use pmem::{LINE, Medium};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Errno, Result};

/// Bytes that are copied at a time.
const PIECE: usize = 512;

/// Applies a patch.
pub struct WordsEdit<'a, M> {
    trees: &'a Trees<M>,
    patch: Patch<'a>,
    /// One for each leaf.
    ranges: SmallVec<[Range<u64>; 4]>,
    /// The leaves that the edit copied.
    pub moved: SmallVec<[Moved; 2]>,
}

impl<'a, M: Medium> WordsEdit<'a, M> {
    /// An edit that applies a patch.
    pub fn new(trees: &'a Trees<M>, mut patch: Patch<'a>) -> Self {
        patch.words.sort_unstable();
        let leaves = patch.words.chunk_by(|(a, _), (b, _)| a / BLOCK == b / BLOCK);
        let ranges = leaves.map(|words| words[0].0..words[words.len() - 1].0 + 8).collect();
        Self { trees, patch, ranges, moved: SmallVec::new() }
    }

    /// Copies what means something of a leaf through the cache, where the next operation looks for it,
    /// changes it and starts writing it back.
    fn copy(&self, old: BlockNo, new: BlockNo, base: u64) {
        let medium = &self.trees.medium;
        let leaf = base..base + BLOCK;
        let idle = self.patch.idle.iter().filter(|idle| leaf.contains(&idle.start));
        // Whole lines.
        let idle = idle.map(|idle| idle.start.next_multiple_of(LINE)..idle.end / LINE * LINE);
        let mut idle: SmallVec<[Range<u64>; 3]> = idle.filter(|idle| !idle.is_empty()).collect();
        idle.sort_unstable_by_key(|idle| idle.start);
        idle.push(leaf.end..leaf.end);
        let parts = || {
            let begins = [base].into_iter().chain(idle.iter().map(|idle| idle.end));
            begins.zip(&idle).map(|(start, idle)| start - base..idle.start - base)
        };
        for part in parts() {
            let mut piece = [0; PIECE];
            for at in part.clone().step_by(PIECE) {
                let piece = &mut piece[..PIECE.min((part.end - at) as usize)];
                medium.read(old.at(at), piece);
                medium.write(new.at(at), piece);
            }
        }
        if let Some((at, bytes)) = self.patch.bytes.filter(|(at, _)| leaf.contains(at)) {
            medium.write(new.at(at - base), bytes);
        }
        for (at, value) in self.patch.words.iter().filter(|(at, _)| leaf.contains(at)) {
            medium.store_u64(new.at(at - base), *value);
        }
        for part in parts() {
            medium.flush(new.at(part.start), part.end - part.start);
        }
    }
}

impl<M: Medium> Edit for WordsEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        mode: Mode,
    ) -> Result<Change> {
        let old = old.ok_or(Errno::UCLEAN)?;
        if let ([(at, value)], None, Mode::Atomic) = (&self.patch.words[..], self.patch.bytes, mode)
        {
            self.trees.commit(old.at(at - base), *value);
            return Ok(Change::Done);
        }
        let new = txn.take();
        self.copy(old, new, base);
        txn.free(old);
        self.moved.push(Moved { base, old: old.at(0), new: new.at(0) });
        Ok(Change::Shadow(Some(new)))
    }
}
