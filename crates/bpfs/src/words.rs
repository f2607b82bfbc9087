//! An edit of single words: inodes in the inode file, entries in directories.

use crate::crawler::{Change, Edit, Mode};
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::volatile::Txn;
use pmem::Medium;
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Errno, Result};

/// A leaf that was copied.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// First byte of the file that the leaf covers.
    pub base: u64,
    /// The block it was.
    pub old: u64,
    /// The block it is.
    pub new: u64,
}

/// Sets words of a file: `(file offset, value)`.
pub struct WordsEdit<'a, M> {
    core: &'a Core<M>,
    words: SmallVec<[(u64, u64); 4]>,
    ranges: SmallVec<[Range<u64>; 4]>,
    /// The leaves that the edit copied.
    pub moved: SmallVec<[Moved; 2]>,
}

impl<'a, M: Medium> WordsEdit<'a, M> {
    /// An edit of these words.
    pub fn new(core: &'a Core<M>, words: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut words: SmallVec<[(u64, u64); 4]> = words.collect();
        words.sort_unstable();
        let ranges = words.iter().map(|(at, _)| *at..at + 8).collect();
        Self { core, words, ranges, moved: SmallVec::new() }
    }
}

impl<M: Medium> Edit for WordsEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    fn leaf(&mut self, txn: &mut Txn<'_>, old: u64, base: u64, mode: Mode) -> Result<Change> {
        if old == 0 {
            return Err(Errno::UCLEAN);
        }
        let medium = &self.core.medium;
        let mine: SmallVec<[(u64, u64); 4]> = self
            .words
            .iter()
            .filter(|(at, _)| (base..base + BLOCK).contains(at))
            .copied()
            .collect();
        if let ([(at, value)], Mode::Atomic) = (&mine[..], mode) {
            self.core.commit(old + at - base, *value);
            return Ok(Change::Done);
        }
        let mut data = [0; BLOCK as usize];
        medium.read(old, &mut data);
        for (at, value) in mine {
            let i = (at - base) as usize;
            data[i..i + 8].copy_from_slice(&value.to_le_bytes());
        }
        let new = txn.take();
        medium.write_nt(new, &data);
        txn.free(old);
        self.moved.push(Moved { base, old, new });
        Ok(Change::Shadow(new))
    }
}
