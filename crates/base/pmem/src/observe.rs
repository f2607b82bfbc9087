//! Observers of a region: they see each access as the caller of [`Medium`](crate::Medium) asked for
//! it, with its address. `memsim` has a recorder of traces.
//!
//! An observed region flushes and fences as persistent memory does, also in DRAM, so that the
//! accesses are the same on every machine. Content that is lent ([`Medium::lend`]) or mapped is
//! accessed unseen.
//!
//! [`Medium::lend`]: crate::Medium::lend

use crate::emulation::{Direction, Moved};
use crate::flush::lines;
use std::fmt::Debug;
use std::sync::Arc;

/// The way of a store to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreWay {
    /// Through the cache.
    Cached,
    /// An aligned word through the cache, which never tears.
    Word,
    /// Past the cache.
    PastCache,
    /// An aligned line past the cache, which never tears.
    Line,
}

impl StoreWay {
    /// Whether the store bypasses the cache.
    pub fn is_past_cache(self) -> bool {
        matches!(self, Self::PastCache | Self::Line)
    }
}

/// An access to a region. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<'a> {
    /// A load.
    Load {
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
    },
    /// A store.
    Store {
        /// Its way to memory.
        way: StoreWay,
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
        /// The bytes; `None` if the region does not have them (stores by the kernel).
        data: Option<&'a [u8]>,
    },
    /// A store of zeros, past the cache.
    Zero {
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
    },
    /// A copy within the region, past the cache.
    Copy {
        /// First byte that is stored.
        dst: u64,
        /// First byte that is loaded.
        src: u64,
        /// Bytes.
        len: u64,
        /// The bytes, if the observer wants them.
        data: Option<&'a [u8]>,
    },
    /// A flush of the lines of a range.
    Flush {
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
    },
    /// A fence.
    Fence,
}

impl Observed<'_> {
    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::Load { .. } => Direction::Read,
            _ => Direction::Write,
        }
    }

    /// Returns the lines that the access moves.
    pub(crate) fn moved(&self) -> Moved {
        let written = |lines_written| Moved { lines_read: 0, lines_written };
        match *self {
            Self::Load { off, len } => Moved { lines_read: lines(off, len), lines_written: 0 },
            Self::Store { way: StoreWay::Cached | StoreWay::Word, .. } | Self::Fence => {
                Moved::default()
            }
            Self::Store { off, len, .. } | Self::Zero { off, len } | Self::Flush { off, len } => {
                written(lines(off, len))
            }
            Self::Copy { dst, src, len, .. } => {
                Moved { lines_read: lines(src, len), lines_written: lines(dst, len) }
            }
        }
    }
}

/// Sees the accesses of a region, in the thread that makes them.
pub trait Observer: Debug + Send + Sync {
    /// A region of up to `len` bytes is opened. No access is beyond that.
    fn open(&self, len: u64);

    /// An access begins.
    fn begin(&self, access: &Observed<'_>);

    /// The access that this thread began has ended.
    fn end(&self);

    /// Whether the observer wants the bytes of copies.
    fn wants_data(&self) -> bool {
        false
    }
}

/// An observer that several owners share.
pub type SharedObserver = Arc<dyn Observer>;
