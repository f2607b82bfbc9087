//! Delegations: files that other processes with the same storage read and write without asking the
//! server.

use crate::{Announcement, Credit, Delegation, Errno, Ino, Result};
use std::ops::Range;

/// Delegated files, as the cache uses them. An engine without other processes keeps the default
/// methods.
pub trait Delegations {
    /// Creates a delegation: a number by which other processes with the same storage may read and
    /// write one of its files. They use [`read_delegated`](Self::read_delegated),
    /// [`write_delegated`](Self::write_delegated) and [`append_delegated`](Self::append_delegated)
    /// until the delegation is recalled. The server of the file names the file to them, and changes
    /// nothing in it meanwhile.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if there are no such processes, or if their writes would not be durable on
    /// return; `ENOSPC` if there are too many delegations.
    fn delegate(&self) -> Result<Delegation> {
        Err(Errno::OPNOTSUPP)
    }

    /// Recalls a delegation, or all. When it returns, no process works by the delegation, and none
    /// can begin.
    ///
    /// # Errors
    /// `EAGAIN` if a process may still be at work; none can begin then, either.
    fn recall(&self, _delegation: Option<Delegation>) -> Result<()> {
        Ok(())
    }

    /// As [`read`](crate::FileSystem::read), by a delegation.
    ///
    /// # Errors
    /// `ESTALE` if it was recalled; nothing is read then.
    fn read_delegated(
        &self,
        _by: Delegation,
        _ino: Ino,
        _offset: u64,
        _buf: &mut [u8],
    ) -> Result<usize> {
        Err(Errno::STALE)
    }

    /// As [`write`](crate::FileSystem::write), by a delegation.
    ///
    /// # Errors
    /// `ESTALE` if it was recalled; nothing is written then.
    fn write_delegated(
        &self,
        _by: Delegation,
        _ino: Ino,
        _offset: u64,
        _data: &[u8],
    ) -> Result<()> {
        Err(Errno::STALE)
    }

    /// As [`append`](crate::FileSystem::append), by a delegation, if the bytes would lie `within`
    /// this range of the file.
    ///
    /// # Errors
    /// `ESTALE` if it was recalled, `ERANGE` if they would lie elsewhere; nothing is written then.
    fn append_delegated(
        &self,
        _by: Delegation,
        _ino: Ino,
        _within: Range<u64>,
        _data: &[u8],
    ) -> Result<u64> {
        Err(Errno::STALE)
    }

    /// Sets bits in a bitmap file by a delegation, even while other processes set other bits in it.
    /// Bit `j` of its `i`th little-endian word of 8 bytes has the number 64 `i` + `j`. A crash may
    /// leave some of the bits set.
    ///
    /// # Errors
    /// `ESTALE` if it was recalled; no bit is set then.
    fn set_bits_delegated(&self, _by: Delegation, _ino: Ino, _bits: Range<u64>) -> Result<()> {
        Err(Errno::STALE)
    }

    /// Prepares a file for the writes of a program by a delegation, and returns which blocks the
    /// program may now mark itself. The caller makes sure that the program may write to the file.
    ///
    /// # Errors
    /// `ENOTTY` if files are not delegated; `ESTALE` if the delegation was recalled; `EINVAL` for
    /// an invalid range of blocks or one that is too long; `EFBIG` beyond the largest file; and
    /// those of [`write`](crate::FileSystem::write).
    fn announce(&self, _ino: Ino, _announced: &Announcement) -> Result<Credit> {
        Err(Errno::NOTTY)
    }

    /// Returns whether other processes may now change the file without asking. A front end must not
    /// cache its attributes then.
    fn is_delegated(&self, _ino: Ino) -> bool {
        false
    }
}
