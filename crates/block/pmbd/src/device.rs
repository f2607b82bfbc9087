//! The contract between block devices and the servers in front of them.

use crate::{Error, Stats};
use std::sync::atomic::AtomicU8;

/// A device of blocks, used by many threads at once.
///
/// - **device-B1** All later requests see the effect of a request that has returned. Requests that
///   overlap in time and in place give a mix, except that a block of [`BlockSizes::atomic`] bytes
///   is never torn.
/// - **device-B2** Written data is durable when a later [`barrier`](Self::barrier) has returned, or
///   on return of the request if it asks for that ([`Durability::Now`]).
/// - **device-B3** After a power failure each block of [`BlockSizes::atomic`] bytes holds the data
///   of one request. Without atomic blocks it may be a mix of words of 8 bytes.
///
/// Offsets and lengths are in bytes and multiples of [`BlockSizes::minimum`]; other requests may
/// fail with [`Error::Misaligned`]. Requests beyond the end fail with [`Error::OutOfRange`]. A
/// request that stores fails with [`Error::ReadOnly`] on a read-only device.
pub trait BlockDevice: Send + Sync {
    /// Returns the size in bytes. It only grows.
    fn size(&self) -> u64;

    /// Returns the units of requests.
    fn block_sizes(&self) -> BlockSizes;

    /// Whether requests that store are refused.
    fn is_read_only(&self) -> bool;

    /// Reads into `buf` from `off`.
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Stores `data` at `off`.
    fn write(&self, off: u64, data: &[u8], durability: Durability) -> Result<(), Error>;

    /// Waits for requests in flight on all connections, then makes everything written durable.
    fn barrier(&self) -> Result<(), Error>;

    /// Discards the content of the range, which is not needed any more. Each byte reads as zero or
    /// as before.
    fn discard(&self, off: u64, len: u64) -> Result<(), Error>;

    /// Makes the range read as zeros.
    fn write_zeroes(
        &self,
        off: u64,
        len: u64,
        how: Zeroing,
        durability: Durability,
    ) -> Result<(), Error>;

    /// Calls `each` for the parts of the range in ascending order, with whether they hold data,
    /// until it returns false.
    fn extents(
        &self,
        off: u64,
        len: u64,
        each: &mut dyn FnMut(DeviceExtent) -> bool,
    ) -> Result<(), Error>;

    /// Prefetches the range, which will be read soon.
    fn prefetch(&self, off: u64, len: u64) -> Result<(), Error>;

    /// Returns the bytes of the range in place, so that the reader copies them only once. `None` if
    /// the content has to be checked or gathered first.
    fn bytes(&self, off: u64, len: u64) -> Option<&[AtomicU8]>;

    /// Makes the device `size` bytes long.
    fn grow(&self, size: u64) -> Result<(), Error>;

    /// Returns the statistics since the device was opened.
    fn stats(&self) -> Stats;
}

/// Units of requests, in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// The unit of requests.
    pub minimum: u32,
    /// The unit of the fastest requests.
    pub preferred: u32,
    /// The longest request.
    pub maximum: u32,
    /// The blocks that are written whole or not at all, across power failures; 0 if there is no
    /// such guarantee.
    pub atomic: u32,
}

/// The time from which on a request is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the next barrier.
    AtBarrier,
    /// When the request returns ("forced unit access").
    Now,
}

/// Conditions for zeroing a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroing {
    /// Do not give space back.
    pub keep_space: bool,
    /// Fail with [`Error::NotSupported`] rather than take as long as writing zeros would.
    pub only_fast: bool,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// First byte.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it reads as zeros.
    pub zero: bool,
    /// Whether it takes space.
    pub allocated: bool,
}
