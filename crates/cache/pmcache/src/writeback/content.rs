//! Contents and attributes: makes one object equal to its inode.

use super::Pass;
use crate::BLOCK;
use crate::objects::copy_xattrs;
use backing::Backing;
use std::ops::Range;
use vfs::{
    ABSENT, Attr, Backed, Caller, Errno, Fallocate, FileKind, Ino, Result, Seek, SetAttr, SetTime,
};

/// Bytes of content that one call copies.
const PIECE: u64 = 256 << 10;

impl<P: Backed, B: Backing> Pass<'_, P, B> {
    /// Writes content and attributes of something that is no directory.
    pub(super) fn write_file(&mut self, ino: Ino, kind: FileKind) -> Result<()> {
        if kind == FileKind::File {
            self.write_content(ino)?;
        }
        self.write_attributes(ino)?;
        self.write_times(ino)
    }

    fn write_content(&mut self, ino: Ino) -> Result<()> {
        let object = self.object(ino)?;
        let size = self.pool.getattr(ino)?.size;
        // writeback-W7.
        self.pool.fsync(ino)?;
        let set_size = || {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.backing.setattr(&Caller::ROOT, object, &set).map(drop)
        };
        if self.backing.getattr(object)?.size > size {
            set_size()?;
        }
        let mut at = 0;
        while let Some(dirty) = self.pool.dirty_range(ino, at)? {
            self.copy(ino, object, dirty.clone())?;
            at = dirty.end.next_multiple_of(BLOCK);
        }
        if self.backing.getattr(object)?.size < size {
            set_size()?;
        }
        self.punch_holes(ino, object)
    }

    /// Copies a range of a file, which is in the pool.
    fn copy(&mut self, ino: Ino, object: Ino, range: Range<u64>) -> Result<()> {
        // evict-E5: the reads of a copy are no uses. If there was one, they note it again.
        let is_used = self.pool.take_use(ino);
        let copied = self.copy_pieces(ino, object, range);
        if !is_used {
            self.pool.take_use(ino);
        }
        copied
    }

    fn copy_pieces(&mut self, ino: Ino, object: Ino, range: Range<u64>) -> Result<()> {
        let mut bytes = vec![0; PIECE.min(range.end - range.start) as usize];
        let mut at = range.start;
        while at < range.end {
            let wanted = PIECE.min(range.end - at) as usize;
            let n = match self.pool.read(ino, at, &mut bytes[..wanted]) {
                // The file became shorter.
                Ok(0) => return Ok(()),
                // Its content was replaced. The next pass compares again.
                Err(ABSENT) => return Err(Errno::AGAIN),
                read => read?,
            };
            // writeback-W7.
            self.pool.fsync(ino)?;
            self.backing.write(object, at, &bytes[..n])?;
            self.written.bytes += n as u64;
            at += n as u64;
        }
        Ok(())
    }

    /// Punches holes where the pool has them and the object has data.
    fn punch_holes(&self, ino: Ino, object: Ino) -> Result<()> {
        let mut at = 0;
        while let Some(hole) = self.pool.hole_range(ino, at)? {
            at = hole.end.next_multiple_of(BLOCK);
            match self.backing.seek(object, hole.start, Seek::Data) {
                Ok(data) if data < hole.end => {
                    let (mode, len) = (Fallocate::PunchHole, hole.end - hole.start);
                    // writeback-W7.
                    self.pool.fsync(ino)?;
                    self.backing.fallocate(object, mode, hole.start, len)?;
                }
                Ok(_) | Err(Errno::NXIO) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes what `chown`, `chmod` and `setxattr` change.
    pub(super) fn write_attributes(&mut self, ino: Ino) -> Result<()> {
        let object = self.object(ino)?;
        let wanted = self.pool.getattr(ino)?;
        let found = self.backing.getattr(object)?;
        if (wanted.uid, wanted.gid) != (found.uid, found.gid) {
            let owner =
                SetAttr { uid: Some(wanted.uid), gid: Some(wanted.gid), ..SetAttr::default() };
            self.backing.setattr(&Caller::ROOT, object, &owner)?;
        }
        // A new owner, and new content, took the capability away.
        copy_xattrs((self.pool, ino), (self.backing, object))?;
        let is_link = wanted.kind == FileKind::Symlink;
        if !is_link && self.backing.getattr(object)?.perm != wanted.perm {
            let perm = SetAttr { perm: Some(wanted.perm), ..SetAttr::default() };
            self.backing.setattr(&Caller::ROOT, object, &perm)?;
        }
        Ok(())
    }

    pub(super) fn write_times(&mut self, ino: Ino) -> Result<()> {
        let object = self.object(ino)?;
        let Attr { atime, mtime, .. } = self.pool.getattr(ino)?;
        let found = self.backing.getattr(object)?;
        if (atime, mtime) != (found.atime, found.mtime) {
            let set = SetAttr {
                atime: Some(SetTime::At(atime)),
                mtime: Some(SetTime::At(mtime)),
                ..SetAttr::default()
            };
            self.backing.setattr(&Caller::ROOT, object, &set)?;
        }
        Ok(())
    }

    /// Makes an object's names and attributes durable, and with `has_content` its content, too.
    pub(super) fn sync(&mut self, ino: Ino, has_content: bool) -> Result<()> {
        let object = self.object(ino)?;
        if has_content {
            self.backing.fsync(object)?;
        }
        self.backing.sync_metadata(object)
    }
}
