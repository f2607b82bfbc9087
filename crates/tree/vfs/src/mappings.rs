//! Mappings of file content into the memory of programs (SCMFS).

use crate::{Errno, Extent, Ino, Result};
use std::ops::Range;

/// Content that programs map directly, without pages of the kernel. An engine that offers none
/// keeps the default methods.
pub trait Mappings {
    /// Counts a mapping of `range` of a file, and returns where the range lies: whole blocks, in
    /// order, without gaps. Until [`unmap_range`](Self::unmap_range) takes the mapping back, these
    /// blocks stay the file's, at the same place. Parts that are cut off or punched out are zeroed
    /// there; a call that would shift blocks gives `EBUSY`. `stores`: the program may store through
    /// the mapping, so [`fsync`](crate::FileSystem::fsync) makes all of the file durable. `range`
    /// begins at a multiple of 4096. Its unallocated parts become allocated, also beyond the end of
    /// the file; the size does not change. The caller holds the inode.
    ///
    /// # Errors
    /// `EBUSY` if pages of the kernel are mapped. `EOPNOTSUPP` if the engine cannot map, or if
    /// mapping is not worth it: much would have to be allocated, or the range is in many pieces.
    /// `ENOSPC`. After an error nothing is counted.
    fn map_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<Vec<Extent>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Counts one more mapping of a range that this process, or the one that forked it, has mapped.
    /// `EOPNOTSUPP` if it has not.
    fn map_again(&self, _ino: Ino, _stores: bool) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Takes back a counted mapping, when it is no longer mapped. `is_durable`: the bytes stored
    /// through it have been synced.
    fn unmap_range(&self, _ino: Ino, _stores: bool, _is_durable: bool) {}

    /// Makes durable the bytes that were stored through mappings to `range` of a file (`msync`). If
    /// the mapping `stores`, this is recorded as a change of content.
    fn sync_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
