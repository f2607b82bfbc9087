//! The contract between block devices and those who serve them.

use crate::{Error, Stats};
use std::sync::atomic::AtomicU8;

/// A device of blocks, used by many threads at once.
///
/// - **device-B1** A request that has returned is seen by all later ones. Requests that overlap in time and
///   in place give a mix, except that a block of [`BlockSizes::atomic`] bytes is never torn.
/// - **device-B2** What was written is durable when a later [`barrier`](Self::barrier) has returned, or at
///   return where the request asked for it ([`Durability::Now`]).
/// - **device-B3** After a power failure each block of [`BlockSizes::atomic`] bytes holds what one request
///   wrote. Without atomic blocks it may be a mix at 8 bytes.
///
/// Offsets and lengths are in bytes and multiples of [`BlockSizes::minimum`].
pub trait BlockDevice: Send + Sync {
    /// Size in bytes. It only grows.
    fn size(&self) -> u64;

    /// Units of requests.
    fn block_sizes(&self) -> BlockSizes;

    /// Whether requests that store are refused.
    fn is_read_only(&self) -> bool;

    /// Fills `buf` from `off`.
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Stores `data` at `off`.
    fn write(&self, off: u64, data: &[u8], durability: Durability) -> Result<(), Error>;

    /// Waits for requests in flight on all connections, then makes everything written durable.
    fn barrier(&self) -> Result<(), Error>;

    /// Says that the content of the range is not needed any more. It reads as zeros or as before.
    fn discard(&self, off: u64, len: u64) -> Result<(), Error>;

    /// Makes the range read as zeros.
    fn write_zeroes(
        &self,
        off: u64,
        len: u64,
        how: Zeroing,
        durability: Durability,
    ) -> Result<(), Error>;

    /// The parts of the range in ascending order, with whether each holds data, until `each` answers
    /// false.
    fn extents(
        &self,
        off: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<(), Error>;

    /// Announces that the range will be read soon.
    fn prefetch(&self, off: u64, len: u64) -> Result<(), Error>;

    /// The bytes of the range where they lie, for a reader that copies them once to where they are
    /// needed. `None` where content has to be checked or gathered first.
    fn bytes(&self, off: u64, len: u64) -> Option<&[AtomicU8]>;

    /// Makes the device `size` bytes long.
    fn grow(&self, size: u64) -> Result<(), Error>;

    /// What has been done since it was opened.
    fn stats(&self) -> Stats;
}

/// Units of requests, in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Requests consist of such blocks.
    pub minimum: u32,
    /// Requests in such blocks are served best.
    pub preferred: u32,
    /// No request may be longer.
    pub maximum: u32,
    /// Written whole or not at all, across power failures; 0 where there is no such promise.
    pub atomic: u32,
}

/// When a request is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the next barrier.
    AtBarrier,
    /// When the request returns ("forced unit access").
    Now,
}

/// How a range becomes zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroing {
    /// Space must not be given back.
    pub keep_space: bool,
    /// Fail with [`Error::NotSupported`] rather than take as long as writing zeros would.
    pub only_fast: bool,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Reads as zeros.
    pub zero: bool,
    /// Takes space.
    pub allocated: bool,
}
