//! The description of how a content grows; [`Store::grow`](crate::store::Store::grow) carries it
//! out.

use crate::layout::EXTENT;
use crate::map::Fill;
use namespace::VInode;
use std::ops::Range;
use vfs::FileKind;

/// A growth of a content.
pub struct Growth<'a> {
    /// The bytes to map.
    pub range: Range<u64>,
    /// The new size, which is not smaller than the old one.
    pub size: u64,
    /// The new bytes in it.
    pub fill: Fill<'a>,
    /// Whether a short run may be replaced by a longer one.
    pub may_move: bool,
    /// Blocks beyond the size to map as well, if they are easy to get (§3.3).
    pub prealloc: u64,
}

impl<'a> Growth<'a> {
    /// Makes the growth of an inode's content, without pre-allocated blocks. It may move if no
    /// other state contains its place: the derived state of directories has the places of entries,
    /// and direct mappings those of files (mapping-D1).
    pub fn of(v: &VInode, range: Range<u64>, size: u64, fill: Fill<'a>) -> Self {
        let may_move = v.kind() == FileKind::File && !v.mappings.are_direct();
        Self { range, size, fill, may_move, prealloc: 0 }
    }

    /// Returns whether it continues a content of `size` bytes: one that is not empty, with a range
    /// that starts at its end or before.
    pub fn continues(&self, size: u64) -> bool {
        size > 0 && self.size > size && self.range.start <= size && self.range.end == self.size
    }

    /// Returns whether it is an append to a content of `size` bytes that is longer than an extent.
    /// As more is likely to follow, it is worth a unit.
    pub fn is_worth_a_unit(&self, size: u64) -> bool {
        size >= EXTENT && self.continues(size) && !self.fill.data.is_empty()
    }
}

/// The longest gap, in blocks, that is mapped rather than left as a hole: no more than a table
/// takes with the blocks it maps.
const GAP_MAX: u64 = 16;

/// Returns whether to continue a run of `count` blocks up to block `first`, rather than to leave a
/// hole.
pub fn is_near(count: u64, first: u64) -> bool {
    first <= count + GAP_MAX
}
