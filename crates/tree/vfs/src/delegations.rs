//! Delegations: files that other processes with the same storage read and write without asking the server.

use crate::{Announcement, Credit, Delegation, Errno, Ino, Result};
use std::ops::Range;

/// Delegated files, as the cache uses them. An engine without other processes keeps the default methods.
pub trait Delegations {
    /// A number by which other processes that have the same storage may read and write one of its files with
    /// [`read_delegated`](Self::read_delegated), [`write_delegated`](Self::write_delegated) and
    /// [`append_delegated`](Self::append_delegated), until it is recalled: who serves the file tells them which, and changes
    /// nothing of it meanwhile.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where there are no such processes, or what they write would not be durable on return; `ENOSPC` where there
    /// are too many delegations.
    fn delegate(&self) -> Result<Delegation> {
        Err(Errno::OPNOTSUPP)
    }

    /// Recalls a delegation, or all: when it returns, nobody is at work by it, and nobody begins.
    ///
    /// # Errors
    /// `EAGAIN` where somebody may still be at work; nobody begins then, either.
    fn recall(&self, _delegation: Option<Delegation>) -> Result<()> {
        Ok(())
    }

    /// As [`read`](crate::FileSystem::read), by a delegation.
    ///
    /// # Errors
    /// `ESTALE` where it was recalled; nothing is read then.
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
    /// `ESTALE` where it was recalled; nothing is written then.
    fn write_delegated(
        &self,
        _by: Delegation,
        _ino: Ino,
        _offset: u64,
        _data: &[u8],
    ) -> Result<()> {
        Err(Errno::STALE)
    }

    /// As [`append`](crate::FileSystem::append), by a delegation, where the bytes come to lie `within` this range of the file.
    ///
    /// # Errors
    /// `ESTALE` where it was recalled, `ERANGE` where they would lie elsewhere; nothing is written then.
    fn append_delegated(
        &self,
        _by: Delegation,
        _ino: Ino,
        _within: Range<u64>,
        _data: &[u8],
    ) -> Result<u64> {
        Err(Errno::STALE)
    }

    /// Sets bits of a file of bits by a delegation, whoever sets others at the same time: bit `j` of its `i`th word of 8 bytes,
    /// little-endian, is number 64 `i` + `j`. A crash may leave some of them set.
    ///
    /// # Errors
    /// `ESTALE` where it was recalled; none is set then.
    fn set_bits_delegated(&self, _by: Delegation, _ino: Ino, _bits: Range<u64>) -> Result<()> {
        Err(Errno::STALE)
    }

    /// Makes ready for what a program will write by a delegation, and says which blocks it may mark itself from now on. To be
    /// called for who may write to the file.
    ///
    /// # Errors
    /// `ENOTTY` where files are not delegated; `ESTALE` where the delegation was recalled, `EINVAL` for no range of blocks, or too
    /// many at once, `EFBIG` beyond the end of what a file can have, and as [`write`](crate::FileSystem::write).
    fn announce(&self, _ino: Ino, _announced: &Announcement) -> Result<Credit> {
        Err(Errno::NOTTY)
    }

    /// Whether others may change the file now without asking: who asks for its attributes is to remember nothing of them.
    fn is_delegated(&self, _ino: Ino) -> bool {
        false
    }
}
