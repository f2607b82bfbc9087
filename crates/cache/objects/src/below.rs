//! The contract of `backing`: operations that a cache needs besides those on files.

use crate::ObjectFs;
use crate::fs::ROOM;
use crate::lock;
use backing::{Backing, Identity};
use vfs::{Entry, Errno, FileSystem as _, Ino, ROOT, Result};

/// The most directories in a path.
const DEPTH_MAX: usize = 4096;

impl ObjectFs {
    /// Notes the inodes on a path, as far as it exists.
    fn follow(&self, path: &[u8]) {
        let mut dir = ROOT;
        for name in vfs::path::names(path) {
            let Ok(found) = self.core.tree.peek(dir, name) else { return };
            self.place(dir, name, found.ino);
            dir = found.ino;
        }
    }
}

impl Backing for ObjectFs {
    /// Consists of the tree's ID, the inode's number and its time of creation. A number is used
    /// again if a crash has undone the creation of its inode.
    fn identity(&self, ino: Ino) -> Result<Identity> {
        let attr = self.getattr(ino)?;
        Ok(Identity(
            [&self.core.id[..], &ino.0.to_le_bytes(), &attr.btime.0.to_le_bytes()].concat(),
        ))
    }

    fn find(&self, identity: &Identity, hint: &[u8]) -> Result<Entry> {
        let (tree, rest) = identity.0.split_first_chunk::<16>().ok_or(Errno::INVAL)?;
        let (ino, btime) = rest.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
        if *tree != self.core.id {
            return Err(Errno::STALE);
        }
        let ino = Ino(u64::from_le_bytes(*ino));
        let found = self.lookup(ino, b".")?;
        if found.btime.0.to_le_bytes() == btime {
            self.follow(hint);
            return Ok(found);
        }
        self.forget(ino, 1);
        Err(Errno::STALE)
    }

    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let places = lock(&self.core.places);
        let (mut at, mut names) = (ino, Vec::new());
        while at != ROOT && names.len() < DEPTH_MAX {
            let (dir, name) = places.get(&at)?;
            let found = self.core.tree.peek(*dir, name).ok()?;
            if found.ino != at {
                return None;
            }
            names.push(&name[..]);
            at = *dir;
        }
        names.reverse();
        (at == ROOT).then(|| names.join(&b'/'))
    }

    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        self.held()?.tree.getattr(ino)?;
        if lock(&self.core.journal).is_committed(ino) { Ok(()) } else { self.core.commit() }
    }

    fn is_placed(&self, ino: Ino) -> bool {
        lock(&self.core.journal).is_placed(ino)
    }

    fn room(&self) -> Result<u64> {
        self.held().map(|_| ROOM)
    }

    fn pending_changes(&self) -> u64 {
        self.held().map_or(0, |core| lock(&core.journal).pending())
    }
}
