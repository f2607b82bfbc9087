//! The operations of the file system: those on names and attributes are [`namespace::Core`]'s, those on the content of
//! files are here and in the modules of that name.

use crate::store::Store;
use namespace::{Storage, VInode};
use pmem::Medium;
use std::ops::Deref;
use vfs::{Errno, FILE_SIZE_MAX, FileKind, Ino, Result};

/// The operations. Each may use all that is below, and others.
pub struct Files<M>(pub namespace::Core<Store<M>>);

/// What is below is used as if it were its own.
impl<M> Deref for Files<M> {
    type Target = namespace::Core<Store<M>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<M: Medium> Files<M> {
    /// A live regular file; `EISDIR` or `EINVAL` for anything else.
    pub fn live_file(&self, ino: Ino) -> Result<&VInode> {
        let v = self.live(ino)?;
        match v.kind() {
            FileKind::File => Ok(v),
            FileKind::Dir => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }
}

/// The end of a range of a file; `EFBIG` where no file can reach it.
pub fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::FBIG)
}
