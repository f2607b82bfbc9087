//! Reading without a copy: where the content of a file lies in PM. Who holds such pointers is counted ([`arena::Pins`]), and
//! blocks that are replaced meanwhile wait.
//!
//! What is pinned may change: writes are in place. So it is given as atomics.

use crate::fs::Files;
use crate::layout::BLOCK;
use crate::map::Piece;
use derived::SharedPool as _;
use namespace::layout::Word;
use namespace::{Storage, report};
use pmem::Medium;
use std::sync::atomic::AtomicU8;
use vfs::{Errno, Ino, Result};

/// What a hole reads as.
static ZEROS: [AtomicU8; BLOCK as usize] = [const { AtomicU8::new(0) }; BLOCK as usize];

impl<M: Medium> Files<M> {
    /// Where the content of a file from `offset` on lies in PM, up to `count` bytes that are contiguous there: offset
    /// (`None`: a hole) and length, 0 at the end of the file. The caller has counted itself.
    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<u64>, u64)> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let end = self.load(v, Word::Size).min(offset.saturating_add(count));
        if offset >= end {
            return Ok((None, 0));
        }
        self.touch_accessed(v);
        let map = self.map(v)?;
        let within = offset % BLOCK;
        let blocks = (end - offset + within).div_ceil(BLOCK);
        match self.piece(map, offset / BLOCK, blocks).map_err(|e| report(ino, e))? {
            Piece::Hole(_) => Ok((None, (BLOCK - within).min(end - offset))),
            Piece::Run(run) => Ok((Some(run.at(within)), (run.bytes() - within).min(end - offset))),
        }
    }

    /// As [`pool::Engine::get_read_buf`]; to be followed by [`put_read_buf`](Self::put_read_buf). `EOPNOTSUPP` where the
    /// medium is not mapped.
    pub fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<&[AtomicU8]> {
        let pins = self.v.pins();
        let (at, len) = self.0.op(|_| {
            pins.add(&self.v.arena)?;
            self.contiguous(ino, offset, count).inspect_err(|_| self.unpin())
        })?;
        match at {
            Some(at) => self.medium.lend(at, len).ok_or_else(|| {
                self.put_read_buf();
                Errno::OPNOTSUPP
            }),
            None => Ok(&ZEROS[..len as usize]),
        }
    }

    /// A reader of this process is done.
    pub fn put_read_buf(&self) {
        let _ = self.0.op(|_| {
            self.unpin();
            Ok(())
        });
    }

    fn unpin(&self) {
        if self.v.pins().remove(&self.v.arena) {
            self.v.clear_deferred();
        }
    }
}
