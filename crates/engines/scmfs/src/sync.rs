//! Making the content of files durable: `fsync` and `sync`. Names and attributes are durable when
//! calls return.

use crate::fs::ScmfsFiles;
use crate::layout::BLOCK;
use crate::map::Piece;
use namespace::layout::Word;
use namespace::{Storage, VInode};
use pmem::Medium;
use vfs::{Errno, FileKind, Ino, Result};

impl<M: Medium> ScmfsFiles<M> {
    /// As [`namespace::Files::write_back`]: flushes the bytes that were stored through the cache
    /// since the last call.
    pub fn write_back(&self, ino: Ino) -> Result<()> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live(ino)?;
        if v.kind() == FileKind::File { self.flush_dirty(v) } else { Ok(()) }
    }

    /// As [`namespace::Files::write_back_all`].
    pub fn write_back_all(&self) -> Result<()> {
        if !self.v.is_any_dirty() {
            return Ok(());
        }
        for i in 1..self.v.inode_slots() {
            let v = self.v.vinode(Ino(i))?;
            let may_be_dirty =
                v.is_live() && v.kind() == FileKind::File && !self.v.dirty_blocks(v).is_empty();
            if may_be_dirty {
                match self.write_back(Ino(i)) {
                    Ok(()) | Err(Errno::STALE) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Flushes the blocks of a file that may not be durable. Concurrent callers write back the same
    /// blocks: a block is recorded as durable only after it is.
    pub fn flush_dirty(&self, v: &VInode) -> Result<()> {
        let dirty = self.v.dirty_blocks(v);
        if dirty.is_empty() {
            return Ok(());
        }
        let size = self.load(v, Word::Size).div_ceil(BLOCK);
        let range = dirty.start.min(size)..dirty.end.min(size);
        let map = self.map(v)?;
        self.pieces(map, range.clone(), |_, piece| {
            if let Piece::Run(run) = piece {
                for block in run.blocks().filter(|block| self.v.is_dirty(v, *block)) {
                    self.medium.flush(block.at(0), BLOCK);
                }
            }
            Ok(true)
        })?;
        let _ = self.medium.fence();
        self.pieces(map, range, |_, piece| {
            if let Piece::Run(run) = piece {
                run.blocks().for_each(|block| self.v.clear_dirty(block));
            }
            Ok(true)
        })?;
        self.v.end_dirty(v);
        Ok(())
    }
}
