//! The directory index (§3.3): from directory and name to inode and entry, for the whole pool in one
//! hash table. Names themselves stay in PM and are compared there.

use crate::fs::Core;
use crate::layout::{BLOCK, DIRENT_HEADER, DirentWord, INODE, dirent_bytes};
use crate::volatile::{EntryPos, IndexNode};
use arena::Handle;
use pmem::Medium;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;
use vfs::{Errno, Ino, Result};

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode it names.
    pub ino: Ino,
    /// Where the entry is.
    pub pos: EntryPos,
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
        let hash = self.name_hash(dir, name);
        self.v.index.find(&self.v.arena, &self.v.nodes, hash, |n| {
            if !self.is_candidate(n, dir, hash) {
                return None;
            }
            let ino = Ino(u64::from(n.ino.load(Relaxed)));
            if let Some(record) = self.v.prefetch_inode(ino) {
                self.medium.prefetch(record, INODE);
            }
            let pos = EntryPos(n.pos.load(Relaxed));
            let at = self.v.entry_off(pos);
            // The search may meet what is no entry any more: its name need not end in the block.
            let ends_in_block = pos.off() + dirent_bytes(name.len()) <= BLOCK;
            (ends_in_block
                && DirentWord::unpack(self.medium.load_u64(at + 8)).name_len == name.len()
                && self.medium.equals(at + DIRENT_HEADER, name))
            .then_some(Found { ino, pos })
        })
    }

    fn is_candidate(&self, n: &IndexNode, dir: Ino, hash: u64) -> bool {
        n.hash.load(Relaxed) == (hash >> 32) as u32 && n.dir.load(Relaxed) == dir.0 as u32
    }

    /// Adds a name.
    pub fn index_name(&self, dir: Ino, name: &[u8], found: Found) -> Result<()> {
        let node = self.v.nodes.take(&self.v.arena).ok_or(Errno::NOSPC)?;
        self.index_node(node, dir, name, found);
        Ok(())
    }

    fn index_node(&self, node: Handle, dir: Ino, name: &[u8], found: Found) {
        let hash = self.name_hash(dir, name);
        let n = self.v.nodes.get(&self.v.arena, node);
        n.dir.store(dir.0 as u32, Relaxed);
        n.hash.store((hash >> 32) as u32, Relaxed);
        n.ino.store(found.ino.0 as u32, Relaxed);
        n.pos.store(found.pos.0, Relaxed);
        self.v.index.insert(&self.v.arena, &self.v.nodes, hash, node);
    }

    /// Removes the name whose entry is at `pos`.
    pub fn unindex_name(&self, dir: Ino, name: &[u8], pos: EntryPos) {
        let hash = self.name_hash(dir, name);
        let is = |n: &IndexNode| self.is_candidate(n, dir, hash) && n.pos.load(Relaxed) == pos.0;
        if let Some(node) = self.v.index.remove(&self.v.arena, &self.v.nodes, hash, is) {
            self.v.nodes.give(&self.v.arena, node);
        }
    }

    /// Takes a name, whose entry is at `pos`, out of the index and adds another for `now`.
    pub fn move_name(
        &self,
        from: (Ino, &[u8]),
        pos: EntryPos,
        to: (Ino, &[u8]),
        now: Found,
    ) -> Result<()> {
        let hash = self.name_hash(from.0, from.1);
        let is = |n: &IndexNode| self.is_candidate(n, from.0, hash) && n.pos.load(Relaxed) == pos.0;
        match self.v.index.remove(&self.v.arena, &self.v.nodes, hash, is) {
            Some(node) => {
                // H2, as when a node is taken from the slab.
                fence(Release);
                self.index_node(node, to.0, to.1, now);
                Ok(())
            }
            None => self.index_name(to.0, to.1, now),
        }
    }

    /// Lets a name lead to another inode.
    pub fn reindex_name(&self, dir: Ino, name: &[u8], now: Found) {
        let hash = self.name_hash(dir, name);
        self.v.index.find_locked(&self.v.arena, &self.v.nodes, hash, |n| {
            (self.is_candidate(n, dir, hash) && n.pos.load(Relaxed) == now.pos.0)
                .then(|| n.ino.store(now.ino.0 as u32, Relaxed))
        });
    }
}
