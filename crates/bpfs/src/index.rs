//! The directory index (§3.3): from directory and name to inode and entry, for the whole pool in one
//! hash table. Names themselves stay in PM and are compared there.

use crate::fs::Core;
use crate::layout::{BLOCK, DIRENT_HEADER, DirentWord, INODE, dirent_bytes};
use crate::volatile::{EntryPos, IndexEntry};
use pmem::{LINE, Medium};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Ino, Result};

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode it names.
    pub ino: Ino,
    /// Where the entry is.
    pub pos: EntryPos,
}

/// What is done with an inode that was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The first line of its record is read.
    Look,
    /// All of its record is read.
    Scan,
    /// It gets a reference, and its record is read or written.
    Hold,
}

impl<M: Medium> Core<M> {
    /// Folds 8 bytes at a time by a 128-bit multiplication, keyed by the mount's secret.
    #[inline]
    fn name_hash(&self, dir: Ino, name: &[u8]) -> u64 {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |a: u64, b: u64| {
            let p = u128::from(a) * u128::from(b);
            (p as u64) ^ (p >> 64) as u64
        };
        let mut h = fold(self.v.seed ^ dir.0, K ^ name.len() as u64);
        let (words, rest) = name.as_chunks::<8>();
        for word in words {
            h = fold(h ^ u64::from_le_bytes(*word), K);
        }
        // The bytes behind the last word; where there is one, with some of it.
        let last = match name.last_chunk::<8>() {
            _ if rest.is_empty() => 0,
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        fold(h ^ last, self.v.seed | 1)
    }

    /// Finds a name. Without the directory's lock the answer may be out of date when it arrives.
    pub fn find_name(&self, dir: Ino, name: &[u8]) -> Option<Found> {
        self.find_name_before(Next::Look, dir, name)
    }

    /// As [`find_name`](Self::find_name), for those who then do this with the inode.
    #[inline]
    pub fn find_name_before(&self, next: Next, dir: Ino, name: &[u8]) -> Option<Found> {
        let hash = self.name_hash(dir, name);
        self.v.index.find(&self.v.arena, hash, |n| {
            if !n.may_be(dir, hash) {
                return None;
            }
            let ino = Ino(u64::from(n.ino.load(Relaxed)));
            self.prefetch_inode(next, ino);
            let pos = n.pos();
            let at = self.v.entry_off(pos);
            // The search may meet what is no entry any more: its name need not end in the block.
            let ends_in_block = pos.off() + dirent_bytes(name.len()) <= BLOCK;
            (ends_in_block
                && DirentWord::unpack(self.medium.load_u64(at + 8)).name_len == name.len()
                && self.medium.equals(at + DIRENT_HEADER, name))
            .then_some(Found { ino, pos })
        })
    }

    /// Announces what is done with an inode next.
    #[inline]
    pub fn prefetch_inode(&self, next: Next, ino: Ino) {
        let bytes = match next {
            Next::Look => LINE,
            Next::Scan | Next::Hold => INODE,
        };
        if let Some(record) = self.v.prefetch_inode(ino) {
            self.medium.prefetch(record, bytes);
        }
        if next == Next::Hold {
            self.v.prefetch_refs(ino);
        }
    }

    /// Adds a name.
    pub fn index_name(&self, dir: Ino, name: &[u8], found: Found) -> Result<()> {
        let hash = self.name_hash(dir, name);
        let fill = |n: &IndexEntry| n.fill(dir, hash, found.pos, found.ino);
        if self.v.index.insert(&self.v.arena, hash, fill) { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Removes the name whose entry is at `pos`.
    pub fn unindex_name(&self, dir: Ino, name: &[u8], pos: EntryPos) {
        let hash = self.name_hash(dir, name);
        self.v.index.remove(&self.v.arena, hash, |n| n.may_be(dir, hash) && n.pos() == pos);
    }

    /// Lets a name lead to another inode.
    pub fn reindex_name(&self, dir: Ino, name: &[u8], now: Found) {
        let hash = self.name_hash(dir, name);
        self.v.index.find_locked(&self.v.arena, hash, |n| {
            (n.may_be(dir, hash) && n.pos() == now.pos)
                .then(|| n.ino.store(now.ino.0 as u32, Relaxed))
        });
    }
}
