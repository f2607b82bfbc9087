//! Traces of accesses to memory, as binary streams. `docs/format/memory-trace.md` is the
//! specification.
//!
//! - mod-B1: A reader holds one buffer, which is at most [`LEN_MAX`] bytes longer than
//!   its initial size. It never stores events.
//! - mod-B2: An event that a reader returns has an address range that lies in the region of the
//!   header, and a length from 1 to [`LEN_MAX`]. All other input is an error with its offset.

mod reader;
mod writer;

pub use pmem::StoreWay;
pub use reader::{Reader, TraceError};
pub use writer::Writer;

/// The first bytes of a trace.
pub const MAGIC: [u8; 8] = *b"KSTRACE\0";
/// The version that this program writes and reads.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER: usize = 32;
/// The most bytes of one access. A writer splits longer ones.
pub const LEN_MAX: u32 = 1 << 20;

/// The most bytes of a record before its data: tag, thread, gap, address, length.
const RECORD_HEAD_MAX: usize = 1 + 10 + 10 + 10 + 10;

/// Bits of a tag that select the kind of the record.
const KIND: u8 = 0x0f;
/// The record names a thread; without this bit it is that of the record before.
const HAS_THREAD: u8 = 0x10;
/// The record has a time of computation before the access.
const HAS_GAP: u8 = 0x20;
/// The stored bytes follow.
const HAS_DATA: u8 = 0x40;

/// Kinds of records.
mod kind {
    pub const END: u8 = 0;
    pub const LOAD: u8 = 1;
    pub const STORE: u8 = 2;
    pub const WORD: u8 = 3;
    pub const NT: u8 = 4;
    pub const LINE: u8 = 5;
    pub const FLUSH: u8 = 6;
    pub const FENCE: u8 = 7;
    pub const BARRIER: u8 = 8;
    pub const BEGIN: u8 = 9;
    pub const RETURN: u8 = 10;
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent<'a> {
    /// The thread, counted from 0 in order of appearance.
    pub thread: u16,
    /// Nanoseconds that the thread computed since its last event.
    pub gap_ns: u64,
    /// The action.
    pub action: Action<'a>,
}

/// The action of a step. Addresses and lengths are in bytes, from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Loads bytes.
    Load {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u32,
    },
    /// Stores bytes.
    Store {
        /// Its way to memory.
        way: StoreWay,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u32,
        /// The bytes, if they were recorded.
        data: Option<&'a [u8]>,
    },
    /// Starts writing back the lines of a range.
    Flush {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u32,
    },
    /// Waits until the thread's flushes and stores past the cache are durable.
    Fence,
    /// Ends an epoch (§4.4): later stores of the thread become durable after earlier ones.
    Barrier,
    /// An operation of the thread starts.
    Begin {
        /// Its number.
        op: u32,
    },
    /// The operation returns.
    Return {
        /// Its number.
        op: u32,
    },
}

/// The end of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Number of events.
    pub events: u64,
    /// Nanoseconds that the recorded run took; 0: unknown.
    pub elapsed_ns: u64,
}

/// Returns the numbers of the lines that a range touches.
#[inline]
pub fn lines(addr: u64, len: u32) -> std::ops::Range<u64> {
    addr / crate::LINE..(addr + u64::from(len.max(1)) - 1) / crate::LINE + 1
}

/// Maps signed differences to small unsigned numbers.
fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

/// Reverses [`zigzag`].
fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
