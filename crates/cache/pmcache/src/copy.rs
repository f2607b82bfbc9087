//! Copies between files: by the pool, if the cache has all of the source, else by reads and writes.

use crate::content::{FETCH_MAX, WriteOffset};
use crate::node::{CacheNode, Cnode};
use crate::{BLOCK, Cache};
use backing::Backing;
use vfs::{Errno, FileSystem, Ino, Result, Seek};

/// A larger copy, in bytes, is read into the cache first if the pool cannot make it. Smaller ones
/// are read and written in one piece.
const COPY_MAX: u64 = 4 << 20;

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Implements `FileSystem::copy_range`.
    pub(crate) fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.file(from.0, Errno::INVAL)?, self.file(to.0, Errno::INVAL)?);
        let size = self.getattr(from.0)?.size;
        let len = len.min(size.saturating_sub(from.1));
        if len == 0 {
            return Ok(0);
        }
        self.limits().end_of(to.1, len)?;
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            return Err(Errno::INVAL);
        }
        // This read compares the file with the backing store, as any reader does.
        self.read_file(from.0, from.1, &mut [0])?;
        let in_pool = || self.copy_in_pool((&source, from.1), (&target, to.1), len);
        if let Some(copied) = in_pool()? {
            return Ok(copied);
        }
        if len > COPY_MAX
            && self.read_all(&source, from.1, len)?
            && let Some(copied) = in_pool()?
        {
            return Ok(copied);
        }
        let mut bytes = vec![0; len.min(COPY_MAX) as usize];
        let mut at = 0;
        while at < len {
            let most = (len - at).min(COPY_MAX) as usize;
            let n = self.read_file(from.0, from.1 + at, &mut bytes[..most])?;
            if n == 0 {
                break;
            }
            self.write_file(to.0, WriteOffset::At(to.1 + at), &bytes[..n])?;
            at += n as u64;
        }
        Ok(at)
    }

    /// Reads all of a range into the cache. Returns whether the file has that many bytes.
    fn read_all(&self, source: &CacheNode, offset: u64, len: u64) -> Result<bool> {
        let mut piece = vec![0; FETCH_MAX as usize];
        let mut at = offset;
        while at < offset + len {
            let most = (offset + len - at).min(FETCH_MAX) as usize;
            match self.read_file(source.ino, at, &mut piece[..most])? {
                0 => return Ok(false),
                n => at += n as u64,
            }
        }
        Ok(true)
    }

    /// Copies from one shadow to another in the pool. Returns `None` if the cache does not have, or
    /// cannot have, all of the source.
    fn copy_in_pool(
        &self,
        (source, from): (&CacheNode, u64),
        (target, to): (&CacheNode, u64),
        len: u64,
    ) -> Result<Option<u64>> {
        loop {
            let copied = self.change_if_it_fits(target, len / BLOCK + 2, |state, io| {
                let held;
                let shadow = if source.ino == target.ino {
                    self.cnode(target, state)?;
                    state.cached.as_ref()
                } else {
                    // The order of locks forbids to wait for this one while the other is held.
                    held = source.state.try_read().map_err(|_| Errno::AGAIN)?;
                    held.cached.as_ref().filter(|_| held.delegation.is_none())
                };
                let shadow = match shadow {
                    Some(cnode) if self.is_whole(cnode, from, len)? => cnode.shadow,
                    _ => return Ok(None),
                };
                let (at, cnode) = self.prepare(target, state, io, WriteOffset::At(to), len)?;
                let copied = self.pool.copy_range((shadow, from), (cnode.shadow, at), len)?;
                cnode.ctime = (self.options.clock)();
                cnode.size = cnode.size.max(at + copied);
                Ok(Some(copied))
            });
            match copied {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                other => return Ok(other?.flatten()),
            }
        }
    }

    /// Returns whether all of these bytes are in the cache, without a hole that a copy would keep.
    fn is_whole(&self, cnode: &Cnode, offset: u64, len: u64) -> Result<bool> {
        Ok(self.pool.seek(cnode.shadow, offset, Seek::Hole)? >= offset + len)
    }
}
