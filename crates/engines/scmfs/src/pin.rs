//! Reading without a copy: finding the content of a file in PM.

use crate::fs::ScmfsFiles;
use crate::layout::BLOCK;
use crate::map::Piece;
use namespace::layout::Word;
use namespace::{Storage, report};
use pmem::{Medium, PmOff};
use vfs::{Ino, Result};

impl<M: Medium> ScmfsFiles<M> {
    /// As [`namespace::Files::contiguous`].
    pub fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let end = self.load(v, Word::Size).min(offset.saturating_add(count));
        if offset >= end {
            return Ok((None, 0));
        }
        self.touch_accessed(ino, v);
        let map = self.map(v)?;
        let within = offset % BLOCK;
        let blocks = (end - offset + within).div_ceil(BLOCK);
        match self.piece(map, offset / BLOCK, blocks).map_err(|e| report(ino, e))? {
            Piece::Hole(_) => Ok((None, (BLOCK - within).min(end - offset))),
            Piece::Run(run) => Ok((Some(run.at(within)), (run.bytes() - within).min(end - offset))),
        }
    }
}
