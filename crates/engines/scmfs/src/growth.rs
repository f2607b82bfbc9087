//! How contents grow, as operations say it: [`Store::grow`](crate::store::Store::grow) does it.

use crate::layout::EXTENT;
use crate::map::Fill;
use namespace::VInode;
use std::ops::Range;
use vfs::FileKind;

/// How a content grows.
pub struct Growth<'a> {
    /// The bytes that are to be mapped.
    pub range: Range<u64>,
    /// The size then, which is no less than before.
    pub size: u64,
    /// What is new in it.
    pub fill: Fill<'a>,
    /// Whether a short run may be exchanged for a longer one.
    pub may_move: bool,
    /// Blocks beyond the size that are to be mapped as well, where that is easy to have (§3.3).
    pub prealloc: u64,
}

impl<'a> Growth<'a> {
    /// How the content of an inode grows, without pre-allocated blocks. It may move where nobody knows its place: of directories,
    /// that is what is known of their entries; of files, those who map them do (mapping-D1).
    pub fn of(v: &VInode, range: Range<u64>, size: u64, fill: Fill<'a>) -> Self {
        let may_move = v.kind() == FileKind::File && !v.mappings.are_direct();
        Self { range, size, fill, may_move, prealloc: 0 }
    }

    /// Whether a content of so many bytes is continued: one that is not empty, from no further than its end on.
    pub fn continues(&self, size: u64) -> bool {
        size > 0 && self.size > size && self.range.start <= size && self.range.end == self.size
    }

    /// Whether it is a write that appends to a content of so many bytes which is longer than an extent: as more is likely to
    /// follow, it is worth a unit.
    pub fn is_worth_a_unit(&self, size: u64) -> bool {
        size >= EXTENT && self.continues(size) && !self.fill.data.is_empty()
    }
}

/// A gap of so many blocks is mapped rather than left as a hole: it is no more than what a table takes with what it
/// maps.
const GAP_MAX: u64 = 16;

/// Whether a run of `count` blocks is worth to be continued up to block `first`, rather than to leave a hole.
pub fn is_near(count: u64, first: u64) -> bool {
    first <= count + GAP_MAX
}
