//! The contract of `backing`: operations that a cache needs besides those on files.

use crate::ObjectFs;
use crate::lock;
use backing::{Backing, Identity};
use vfs::{Entry, Errno, FileSystem as _, Ino, Result};

impl Backing for ObjectFs {
    /// Consists of the tree's ID, the inode's number and its time of creation. A number is used
    /// again if a crash has undone the creation of its inode.
    fn identity(&self, ino: Ino) -> Result<Identity> {
        let attr = self.getattr(ino)?;
        Ok(Identity(
            [&self.core.id[..], &ino.0.to_le_bytes(), &attr.btime.0.to_le_bytes()].concat(),
        ))
    }

    fn find(&self, identity: &Identity) -> Result<Entry> {
        let (tree, rest) = identity.0.split_first_chunk::<16>().ok_or(Errno::INVAL)?;
        let (ino, btime) = rest.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
        if *tree != self.core.id {
            return Err(Errno::STALE);
        }
        let ino = Ino(u64::from_le_bytes(*ino));
        let found = self.lookup(ino, b".")?;
        if found.btime.0.to_le_bytes() == btime {
            return Ok(found);
        }
        self.forget(ino, 1);
        Err(Errno::STALE)
    }

    fn syncs_as_whole(&self) -> bool {
        true
    }

    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        self.held()?.tree.getattr(ino)?;
        if lock(&self.core.journal).is_committed(ino) { Ok(()) } else { self.core.commit() }
    }
}
