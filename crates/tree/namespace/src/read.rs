//! Reading, independent of the layout: without the lock if the file does not change meanwhile, or
//! without a copy.
//!
//! Readers that hold pointers to content are counted ([`arena::Pins`]), and blocks that are
//! replaced meanwhile wait for them. Pinned content may change, as some writes are in place, so it
//! is lent as atomics.

use crate::derived::SharedPool as _;
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::store::{Storage, report};
use crate::tables::VInode;
use pmem::{Medium as _, PmOff};
use std::sync::atomic::AtomicU8;
use vfs::{Errno, Ino, Result};

/// The bytes of a hole.
static ZEROS: [AtomicU8; BLOCK as usize] = [const { AtomicU8::new(0) }; BLOCK as usize];

impl<S: Storage> Core<S> {
    /// Implements `FileSystem::read` of a file, whose state is `v`. `copy` copies the requested
    /// content, holes as zeros, and returns the number of bytes.
    #[inline]
    pub fn read_by(
        &self,
        ino: Ino,
        v: &VInode,
        mut copy: impl FnMut(&VInode) -> Result<usize>,
    ) -> Result<usize> {
        if let Some(ticket) = v.lock.begin_optimistic() {
            // The content last: it arrives meanwhile.
            let read = self.live_file(ino).and_then(|v| {
                let is_recorded = self.is_access_recorded(v);
                self.note_read(v);
                Ok((copy(v)?, is_recorded))
            });
            // An answer counts only if the lock did not change meanwhile; this includes errors.
            if let (true, Ok((n, true))) = (v.lock.end_optimistic(ticket), read) {
                return Ok(n);
            }
        }
        self.prepare_access(ino)?;
        let _lock = self.tables().lock_shared(ino)?;
        let v = self.live_file(ino)?;
        let n = copy(v).map_err(|e| report(ino, e))?;
        self.touch_accessed(ino, v);
        self.note_read(v);
        Ok(n)
    }

    /// As [`pool::Engine::get_read_buf`]; `contiguous` returns the place of the content
    /// ([`Files::contiguous`]). To be followed by [`put_read_buf`](Self::put_read_buf).
    /// `EOPNOTSUPP` if the medium is not mapped.
    ///
    /// [`Files::contiguous`]: crate::Files::contiguous
    pub(crate) fn get_read_buf(
        &self,
        contiguous: impl Fn() -> Result<(Option<PmOff>, u64)>,
    ) -> Result<&[AtomicU8]> {
        let (at, len) = self.pin(contiguous)?;
        let medium = self.medium().0;
        match at {
            Some(at) => medium.lend(at.get(), len).ok_or_else(|| {
                self.put_read_buf();
                Errno::OPNOTSUPP
            }),
            None => Ok(&ZEROS[..len as usize]),
        }
    }

    /// Counts a reader of this process, and returns the result of `contiguous`; to be followed by
    /// [`put_read_buf`](Self::put_read_buf).
    pub(crate) fn pin(
        &self,
        contiguous: impl Fn() -> Result<(Option<PmOff>, u64)>,
    ) -> Result<(Option<PmOff>, u64)> {
        let tables = self.tables();
        self.op(|_| {
            tables.pins().add(&tables.arena)?;
            contiguous().inspect_err(|_| self.unpin())
        })
    }

    /// Uncounts a reader of this process.
    pub(crate) fn put_read_buf(&self) {
        let _ = self.op(|_| {
            self.unpin();
            Ok(())
        });
    }

    /// Uncounts a reader. If it was the last, frees the deferred blocks. Called inside an
    /// operation.
    fn unpin(&self) {
        if self.tables().pins().remove(&self.tables().arena) {
            self.clear_deferred();
        }
    }
}
