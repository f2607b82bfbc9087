//! The extent of a file: a stretch of it whose blocks are contiguous in the pool, so that they are
//! found without the tree. Allocation makes most files a single such stretch (the contiguity that
//! SCMFS §3 demands).
//!
//! - extent-U1: an extent agrees with the tree, for the holder of the file's lock. An optimistic
//!   reader checks afterwards that the lock has not changed.
//! - extent-U2: so an extent is shortened before the tree changes there, and made longer after.
//!
//! A file has neither parent nor entries nor free space of entries: those words of its [`VInode`]
//! hold the extent.

use crate::append::{AppendContent, blocks_to_append};
use crate::blocks::KEEP;
use crate::layout::{BLOCK, BlockNo, Root, Word};
use crate::store::Store;
use namespace::{MODIFIED, Storage as _, VInode};
use pmem::{Medium, PmOff};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, FileKind, Result};

/// An extent of fewer blocks is replaced by the one that is being appended.
const WORTH_KEEPING: u64 = 64;

/// Bytes to prefetch; the CPU fetches what follows on its own. (To prefetch 1536 or more costs more
/// than it saves, as the CPU can wait for few lines at a time.)
const PREFETCHED: u64 = 512;

/// An extent: blocks `first..first + count` of a file are the blocks of the pool from the number
/// `block` on. A loaded extent is checked before it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    first: u64,
    block: u64,
    count: u64,
}

impl Extent {
    /// Makes the extent of only the block `first` of a file.
    pub fn of(first: u64, block: BlockNo) -> Self {
        Self { first, block: block.get(), count: 1 }
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the block `first` of the file, if it continues the extent; returns whether it did.
    pub fn extend(&mut self, first: u64, block: BlockNo) -> bool {
        self.join(Self::of(first, block))
    }

    /// Adds another extent, if it continues this one; returns whether it did.
    fn join(&mut self, next: Self) -> bool {
        if self.count == 0 {
            *self = next;
            return true;
        }
        let ends = (self.first + self.count, self.block + self.count);
        let follows = ends == (next.first, next.block);
        self.count += if follows { next.count } else { 0 };
        follows
    }
}

/// The extent of a file, in its derived state.
pub trait FileExtent {
    /// Returns the extent of a file. It agrees with the tree if the caller holds the lock
    /// (extent-U1); other readers check the lock afterwards.
    fn extent(&self) -> Extent;

    /// Sets the extent of a file whose lock is held. An extent that does not fit into the words is
    /// dropped.
    fn set_extent(&self, extent: Extent);

    /// Records an append to a file: the new extent continues the old one, or replaces one that is
    /// short. Does nothing for other inodes.
    fn append_to_extent(&self, appended: Extent);

    /// Takes bytes of a file out of its extent, before their blocks change (extent-U2): the longer
    /// side stays.
    fn cut_extent(&self, bytes: &Range<u64>);
}

impl FileExtent for VInode {
    #[inline]
    fn extent(&self) -> Extent {
        let load = |word: &std::sync::atomic::AtomicU32| u64::from(word.load(Relaxed));
        Extent { first: load(&self.parent), block: load(&self.entries), count: load(&self.dir) }
    }

    fn set_extent(&self, extent: Extent) {
        let fits = |word: u64| u32::try_from(word).ok();
        let words = (fits(extent.first), fits(extent.block), fits(extent.count));
        let (first, block, count) = match words {
            (Some(first), Some(block), Some(count)) => (first, block, count),
            _ => (0, 0, 0),
        };
        self.parent.store(first, Relaxed);
        self.entries.store(block, Relaxed);
        self.dir.store(count, Relaxed);
    }

    fn append_to_extent(&self, appended: Extent) {
        if self.kind() != FileKind::File || appended.count == 0 {
            return;
        }
        let extent = self.extent();
        let mut longer = extent;
        if longer.join(appended) {
            self.set_extent(longer);
        } else if appended.count > extent.count || extent.count < WORTH_KEEPING {
            self.set_extent(appended);
        }
    }

    fn cut_extent(&self, bytes: &Range<u64>) {
        let extent = self.extent();
        let cut = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let end = extent.first + extent.count;
        if cut.end <= extent.first || cut.start >= end {
            return;
        }
        let before = cut.start.saturating_sub(extent.first);
        let after = end.saturating_sub(cut.end);
        self.set_extent(match before >= after {
            true => Extent { count: before, ..extent },
            false => Extent {
                first: cut.end,
                block: extent.block + (cut.end - extent.first),
                count: after,
            },
        });
    }
}

impl<M: Medium> Store<M> {
    /// Appends `range`, which starts at or after the end of the file, in place.
    pub fn append_content(
        &self,
        v: &VInode,
        root: Root,
        size: u64,
        range: Range<u64>,
        content: AppendContent<'_>,
    ) -> Result<()> {
        let end = range.end;
        let root = match self.v.shares() && v.kind() == FileKind::File {
            true => self.own(v, size, !size.is_multiple_of(BLOCK), KEEP)?,
            false => root,
        };
        self.transact(blocks_to_append(root, &range), KEEP, |txn| {
            if !size.is_multiple_of(BLOCK) {
                self.unmark_block(v, root, size)?;
            }
            if v.kind() == FileKind::Dir {
                txn.take_apart();
            }
            let (new, extent) = self.fill(txn, root, size, range, content)?;
            // A directory also grows while its names are loaded, which is no change.
            if v.kind() == FileKind::File {
                self.date(v, MODIFIED);
                self.keep_mode(txn, v)?;
            }
            let (root_off, size_off) = (self.word_at(v, Word::Root), self.word_at(v, Word::Size));
            let ready = txn.fence(&self.medium);
            self.publish_append((root_off, root), new, (size_off, end), ready);
            match v.kind() {
                FileKind::File => txn.end_commit(&self.medium, size_off),
                // The block is used for names at once (order-O6).
                _ => {
                    self.medium.flush(size_off, 8);
                    let _ = self.medium.fence();
                }
            }
            v.append_to_extent(extent);
            self.gain(v, txn.delta());
            Ok(())
        })
    }

    /// Returns the place of byte `at` of a file in PM; `None` in a hole.
    #[inline]
    pub fn find_byte(&self, v: &VInode, root: Root, at: u64) -> Result<Option<PmOff>> {
        match self.in_extent(v, at)? {
            Some((pm, _)) => Ok(Some(pm)),
            None => Ok(self.find_block(root, at)?.map(|block| block.at(at % BLOCK))),
        }
    }

    /// Prefetches up to `len` bytes from `at` on, if they are in the extent.
    #[inline]
    pub fn prefetch_extent(&self, v: &VInode, at: u64, len: u64) {
        if let Ok(Some((pm, have))) = self.in_extent(v, at) {
            self.medium.prefetch(pm, have.min(len).min(PREFETCHED));
        }
    }

    /// Returns the place of byte `at` of a file in PM, if it is in the extent, and the number of
    /// contiguous bytes from there on.
    #[inline]
    pub fn in_extent(&self, v: &VInode, at: u64) -> Result<Option<(PmOff, u64)>> {
        let extent = v.extent();
        let index = (at / BLOCK).wrapping_sub(extent.first);
        if index >= extent.count {
            return Ok(None);
        }
        // An optimistic reader can meet inconsistent words (crawler-T4).
        if (extent.block + extent.count) * BLOCK > self.bytes {
            return Err(Errno::UCLEAN);
        }
        let inside = at % BLOCK;
        let pm = PmOff::new((extent.block + index) * BLOCK + inside);
        Ok(Some((pm, (extent.count - index) * BLOCK - inside)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn v() -> VInode {
        VInode::default()
    }

    #[test]
    fn appending_continues_or_replaces() {
        let v = v();
        v.append_to_extent(Extent { first: 0, block: 10, count: 3 });
        v.append_to_extent(Extent { first: 3, block: 13, count: 2 });
        assert_eq!(v.extent(), Extent { first: 0, block: 10, count: 5 });
        v.append_to_extent(Extent { first: 5, block: 99, count: 1 });
        assert_eq!(v.extent(), Extent { first: 5, block: 99, count: 1 }, "the old one is short");
        v.set_extent(Extent { first: 0, block: 10, count: 100 });
        v.append_to_extent(Extent { first: 100, block: 300, count: 99 });
        assert_eq!(v.extent(), Extent { first: 0, block: 10, count: 100 });
        v.append_to_extent(Extent::default());
        v.append_to_extent(Extent { first: 199, block: 500, count: 101 });
        assert_eq!(v.extent(), Extent { first: 199, block: 500, count: 101 });
        v.set_extent(Extent { first: 1 << 32, block: 1, count: 1 });
        assert_eq!(v.extent(), Extent::default());
    }

    proptest! {
           /// An extent agrees with a map of the file's blocks.
           #[test]
           fn what_it_says_is_true(steps in prop::collection::vec((0..3u8, 0..40u64, 0..9u64), 0..60)) {
               let v = v();
               let (mut map, mut end, mut next) = (BTreeMap::new(), 0u64, 1000u64);
               for (what, at, n) in steps {
                   match what {
                       0 | 1 => {
                           next += u64::from(at == 7);
                           let extent = Extent { first: end, block: next, count: n };
                           for i in 0..n {
                               map.insert(end + i, next + i);
                           }
                           (end, next) = (end + n, next + n);
                           v.append_to_extent(extent);
                       }
                       _ => {
                           v.cut_extent(&(at * BLOCK + 1..(at + n) * BLOCK + 2));
                           for i in at..at + n + 1 {
                               if let Some(block) = map.get_mut(&i) {
    next += 2;
    *block = next - 1;
    }
                           }
                       }
                   }
                   let extent = v.extent();
                   for i in 0..extent.count {
                       prop_assert_eq!(map.get(&(extent.first + i)), Some(&(extent.block + i)));
                   }
               }
           }
       }
}
