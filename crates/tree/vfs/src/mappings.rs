//! Mappings of file content into the memory of programs (SCMFS).

use crate::{Errno, Extent, Ino, Result};
use std::ops::Range;

/// Content that programs map directly, without pages of the kernel. An engine that offers none keeps the default methods.
pub trait Mappings {
    /// Counts a mapping of `range` of a file to where it lies, which it says: in order, without gaps, whole blocks. Until the
    /// mapping is taken back by [`unmap_range`](Self::unmap_range) these blocks stay the file's, and stay where they are: what
    /// is cut off or punched out is zeroed there, what would shift them gives `EBUSY`. `stores`: bytes may be stored through
    /// the mapping, so [`fsync`](crate::FileSystem::fsync) makes all of the file durable. `range` begins at a multiple of 4096; what of it is
    /// not allocated becomes so, also beyond the end of the file, which stays where it is. The caller holds the inode.
    ///
    /// # Errors
    /// `EBUSY` where pages of the kernel's are mapped; `EOPNOTSUPP` where the engine cannot do that, or it is not worth it:
    /// much would have to be allocated, or the range is in many pieces; `ENOSPC`. Then nothing is counted.
    fn map_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<Vec<Extent>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Counts one more mapping of what this process, or the one that forked it, has mapped. `EOPNOTSUPP` where it has not.
    fn map_again(&self, _ino: Ino, _stores: bool) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Takes a mapping back that was counted so, when nothing is mapped any more. `is_durable`: what was stored through it
    /// has been synced.
    fn unmap_range(&self, _ino: Ino, _stores: bool, _is_durable: bool) {}

    /// Makes durable what was stored through mappings to `range` of a file (`msync`); where it `stores`, that is recorded as a
    /// change of content.
    fn sync_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
