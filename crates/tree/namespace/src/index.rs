//! The directory index (§3.3): from directory and name to inode and entry, for the whole pool in
//! one hash table ([`crate::derived::NameIndex`]). Names themselves stay in PM and are compared
//! here.

use crate::fs::Core;
use crate::layout::{BLOCK, DIRENT_HEADER, DirentWord, InodeRecord, dirent_bytes};
use crate::store::Storage;
use crate::tables::EntryPos;
use pmem::LINE;
use vfs::{Ino, Result};

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode it names.
    pub ino: Ino,
    /// The position of the entry.
    pub pos: EntryPos,
}

/// The next use of an inode that was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The first line of its record is read.
    Look,
    /// All of the [`InodeRecord`] is read.
    Scan,
    /// It gets a reference, and its record is read or written.
    Hold,
}

impl<S: Storage> Core<S> {
    /// Finds a name. Without the directory's lock the answer may be out of date when it arrives.
    pub(crate) fn find_name(&self, dir: Ino, name: &[u8]) -> Option<Found> {
        self.find_name_before(Next::Look, dir, name)
    }

    /// As [`find_name`](Self::find_name), for callers that will use the inode in this way next.
    #[inline]
    pub(crate) fn find_name_before(&self, next: Next, dir: Ino, name: &[u8]) -> Option<Found> {
        let found = self.tables().names.find(&self.tables().arena, dir, name, |ino, pos| {
            self.prefetch_inode(next, ino);
            let pos = EntryPos(pos);
            let at = self.tables().entry_at(pos);
            // The search may meet a former entry, whose name need not end in the block.
            let ends_in_block = pos.off() + dirent_bytes(name.len()) <= BLOCK;
            ends_in_block
                && DirentWord::unpack(self.medium().load_u64(at + 8)).name_len == name.len()
                && self.medium().equals(at + DIRENT_HEADER, name)
        });
        found.map(|(ino, pos)| Found { ino, pos: EntryPos(pos) })
    }

    /// Prefetches an inode for its next use.
    #[inline]
    pub(crate) fn prefetch_inode(&self, next: Next, ino: Ino) {
        let bytes = match next {
            Next::Look => LINE,
            Next::Scan | Next::Hold => size_of::<InodeRecord>() as u64,
        };
        if let Some(record) = self.tables().prefetch_inode(ino, S::INODE) {
            self.medium().prefetch(record, bytes);
        }
        if next == Next::Hold {
            self.tables().prefetch_refs(ino);
        }
    }

    /// Adds a name.
    pub(crate) fn index_name(&self, dir: Ino, name: &[u8], found: Found) -> Result<()> {
        self.tables().names.insert(&self.tables().arena, dir, name, found.ino, found.pos.0)
    }

    /// Removes the name whose entry is at `pos`.
    pub(crate) fn unindex_name(&self, dir: Ino, name: &[u8], pos: EntryPos) {
        self.tables().names.remove(&self.tables().arena, dir, name, pos.0);
    }

    /// Makes a name lead to another inode.
    pub(crate) fn reindex_name(&self, dir: Ino, name: &[u8], now: Found) {
        self.tables().names.replace(&self.tables().arena, dir, name, now.pos.0, now.ino);
    }
}
