//! The name index: from directory and name to inode and entry, for a whole pool in one hash table.
//! Names themselves stay in PM, where the engine compares them.

use arena::{Arena, HashEntry, HashIndex};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use vfs::{Errno, Ino, Result};

/// A name.
#[derive(Default)]
#[repr(C)]
pub struct NameEntry {
    /// The position of the entry in the engine's encoding, and above it the highest [`TAG_BITS`] of
    /// the name's hash.
    place: AtomicU64,
    dir: AtomicU32,
    /// The inode; 0: the slot is free.
    ino: AtomicU32,
}

const _: () = assert!(size_of::<NameEntry>() == 16);

/// Bits of a place that belong to the hash.
const TAG_BITS: u32 = 20;
/// Bits for the engine's position of an entry.
pub const POS_BITS: u32 = u64::BITS - TAG_BITS;

impl NameEntry {
    /// Returns whether this may be the name in `dir` with this hash.
    #[inline]
    fn may_be(&self, dir: Ino, hash: u64) -> bool {
        self.place.load(Relaxed) >> POS_BITS == hash >> POS_BITS
            && self.dir.load(Relaxed) == dir.0 as u32
    }

    #[inline]
    fn pos(&self) -> u64 {
        self.place.load(Relaxed) & (u64::MAX >> TAG_BITS)
    }

    #[inline]
    fn ino(&self) -> Ino {
        Ino(u64::from(self.ino.load(Relaxed)))
    }

    /// Fills the entry; stores the inode number last.
    fn fill(&self, dir: Ino, hash: u64, pos: u64, ino: Ino) {
        self.place.store(hash >> POS_BITS << POS_BITS | pos, Relaxed);
        self.dir.store(dir.0 as u32, Relaxed);
        self.ino.store(ino.0 as u32, Relaxed);
    }
}

impl HashEntry for NameEntry {
    #[inline]
    fn is_none(&self) -> bool {
        self.ino.load(Relaxed) == 0
    }
    fn clear(&self) {
        self.ino.store(0, Relaxed);
    }
}

/// The index. Positions have [`POS_BITS`].
pub struct NameIndex {
    table: HashIndex<NameEntry>,
    /// The key of the hash, so that names cannot be chosen to collide.
    seed: u64,
}

impl NameIndex {
    pub(crate) fn new(table: HashIndex<NameEntry>, seed: u64) -> Self {
        Self { table, seed }
    }

    /// Backs the first `bytes` of the index by huge pages.
    pub(crate) fn back(&self, arena: &Arena, bytes: usize) {
        self.table.back(arena, bytes / 64);
    }

    /// Folds 8 bytes at a time by a 128-bit multiplication, keyed by the seed.
    #[inline]
    fn hash(&self, dir: Ino, name: &[u8]) -> u64 {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |a: u64, b: u64| {
            let p = u128::from(a) * u128::from(b);
            (p as u64) ^ (p >> 64) as u64
        };
        let mut h = fold(self.seed ^ dir.0, K ^ name.len() as u64);
        let (words, rest) = name.as_chunks::<8>();
        for word in words {
            h = fold(h ^ u64::from_le_bytes(*word), K);
        }
        // The bytes behind the last full word; of a name of 8 bytes or more, together with some
        // bytes before them.
        let last = match name.last_chunk::<8>() {
            _ if rest.is_empty() => 0,
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        fold(h ^ last, self.seed | 1)
    }

    /// Finds a name: calls `is_it` with the inode and position of each candidate. Without the
    /// directory's lock the answer may be out of date when it arrives, and `is_it` may be called
    /// for a former entry.
    #[inline]
    pub fn find(
        &self,
        arena: &Arena,
        dir: Ino,
        name: &[u8],
        is_it: impl Fn(Ino, u64) -> bool,
    ) -> Option<(Ino, u64)> {
        let hash = self.hash(dir, name);
        self.table.find(arena, hash, |n| {
            if !n.may_be(dir, hash) {
                return None;
            }
            let (ino, pos) = (n.ino(), n.pos());
            is_it(ino, pos).then_some((ino, pos))
        })
    }

    /// Adds a name. `ENOSPC` if there is no room.
    #[inline]
    pub fn insert(&self, arena: &Arena, dir: Ino, name: &[u8], ino: Ino, pos: u64) -> Result<()> {
        let hash = self.hash(dir, name);
        let fill = |n: &NameEntry| n.fill(dir, hash, pos, ino);
        if self.table.insert(arena, hash, fill) { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Removes the name whose entry is at `pos`.
    #[inline]
    pub fn remove(&self, arena: &Arena, dir: Ino, name: &[u8], pos: u64) {
        let hash = self.hash(dir, name);
        self.table.remove(arena, hash, |n| n.may_be(dir, hash) && n.pos() == pos);
    }

    /// Makes the name whose entry is at `pos` lead to another inode.
    #[inline]
    pub fn replace(&self, arena: &Arena, dir: Ino, name: &[u8], pos: u64, now: Ino) {
        let hash = self.hash(dir, name);
        self.table.find_locked(arena, hash, |n| {
            (n.may_be(dir, hash) && n.pos() == pos).then(|| n.ino.store(now.0 as u32, Relaxed))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arena::Layout;

    #[test]
    fn a_name_leads_to_its_inode_until_it_is_removed() {
        let mut layout = Layout::default();
        let table = HashIndex::plan(&mut layout, 1 << 7, 1000);
        let arena = &Arena::anonymous(&layout).unwrap();
        let index = NameIndex::new(table, 42);
        let names: Vec<Vec<u8>> = (0..500).map(|i| format!("name-{i}").into_bytes()).collect();
        // Instead of the engine, positions stand for names here.
        let find = |dir, i: usize| {
            index.find(arena, Ino(dir), &names[i], |_, pos| pos == (i as u64 | dir << 20))
        };
        for dir in [1, 2] {
            for (i, name) in names.iter().enumerate() {
                let pos = i as u64 | dir << 20;
                index.insert(arena, Ino(dir), name, Ino(i as u64 + 1), pos).unwrap();
            }
        }
        for i in 0..500 {
            assert_eq!(find(2, i), Some((Ino(i as u64 + 1), i as u64 | 2 << 20)));
        }
        index.replace(arena, Ino(1), &names[3], 3 | 1 << 20, Ino(77));
        assert_eq!(find(1, 3), Some((Ino(77), 3 | 1 << 20)));
        index.remove(arena, Ino(1), &names[4], 4 | 1 << 20);
        assert_eq!(find(1, 4), None);
        assert_eq!(find(2, 4).map(|(ino, _)| ino), Some(Ino(5)));
        assert_eq!(index.find(arena, Ino(1), b"none", |_, _| true), None);
    }
}
