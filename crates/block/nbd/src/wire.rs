//! The bytes of the protocol: magic numbers, codes, and the fixed parts of messages.
//!
//! Names follow the protocol's specification (NetworkBlockDevice/nbd, `doc/proto.md`), which
//! explains each. All numbers are big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Starts the greeting: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Ends the greeting and starts each option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts a request with extended headers.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Starts a chunk of a reply with extended headers.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Flags of the greeting and of its answer.
pub mod handshake {
    /// Options can be answered by errors (both sides).
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeros at the end of a negotiation by `EXPORT_NAME` can be left out (both sides).
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options.
pub mod option {
    /// Use an export; the reply cannot be an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Go on under TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and use it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the kinds of metadata of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose kinds of metadata.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A kind of metadata.
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option is not allowed here.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// TLS is required before this option.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server is ending.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    /// The client must ask for block sizes and keep to them.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR + 8;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Facts about an export, in replies to `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// Its description.
    pub const DESCRIPTION: u16 = 2;
    /// Its block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The capabilities of an export ("transmission flags").
pub mod export {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// It cannot be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// It takes `FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// It takes forced unit access.
    pub const SEND_FUA: u16 = 1 << 3;
    /// It takes `TRIM`.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// It takes `WRITE_ZEROES`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// It takes the flag `DF` of reads.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush covers what other connections wrote.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// It takes `CACHE`.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// It takes the flag `FAST_ZERO`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Requests.
pub mod command {
    /// Send content.
    pub const READ: u16 = 0;
    /// Store the payload.
    pub const WRITE: u16 = 1;
    /// End the session; not answered.
    pub const DISC: u16 = 2;
    /// Make everything durable.
    pub const FLUSH: u16 = 3;
    /// Discard content that is not needed any more.
    pub const TRIM: u16 = 4;
    /// Prefetch content that will be read soon.
    pub const CACHE: u16 = 5;
    /// Store zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report the extents with data.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod flag {
    /// Durable when answered.
    pub const FUA: u16 = 1 << 0;
    /// Keep the space of zeros.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk of content at most.
    pub const DF: u16 = 1 << 2;
    /// One extent at most.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero fast or fail.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of a payload.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of structured replies.
pub mod chunk {
    /// Flag: the last chunk of a reply.
    pub const DONE: u16 = 1 << 0;
    /// No content, only the end of the reply.
    pub const NONE: u16 = 0;
    /// Content.
    pub const OFFSET_DATA: u16 = 1;
    /// Content that is all zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents, in 32 bits.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents, in 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The only supported kind of metadata.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Flag of an extent: takes no space.
pub const STATE_HOLE: u32 = 1 << 0;
/// Flag of an extent: reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// Zeros at the end of a negotiation by `EXPORT_NAME`.
pub const OLD_PADDING: usize = 124;
/// Longest name or description of an export.
pub const STRING_BYTES_MAX: usize = 4096;

/// Errors of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are errno(3)'s")]
pub enum Code {
    Perm = 1,
    Io = 5,
    Inval = 22,
    NoSpc = 28,
    Overflow = 75,
    NotSup = 95,
    Shutdown = 108,
}

/// The server's greeting.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`INIT_MAGIC`]
    pub init: U64,
    /// [`OPTION_MAGIC`]
    pub option: U64,
    /// [`handshake`]
    pub flags: U16,
}

/// The fixed part of an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`]
    pub magic: U64,
    /// [`option`]
    pub code: U32,
    /// Bytes that follow.
    pub len: U32,
}

/// The fixed part of a reply to an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReply {
    /// [`OPTION_REPLY_MAGIC`]
    pub magic: U64,
    /// The option that is answered.
    pub code: U32,
    /// [`reply`]
    pub kind: U32,
    /// Bytes that follow.
    pub len: U32,
}

/// A request, without its payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CompactRequest {
    /// [`REQUEST_MAGIC`]
    pub magic: U32,
    /// [`flag`]
    pub flags: U16,
    /// [`command`]
    pub kind: U16,
    /// The number that its replies repeat.
    pub cookie: U64,
    /// First byte.
    pub off: U64,
    /// Bytes.
    pub len: U32,
}

/// The same with extended headers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedRequest {
    /// [`EXTENDED_REQUEST_MAGIC`]
    pub magic: U32,
    /// [`flag`]
    pub flags: U16,
    /// [`command`]
    pub kind: U16,
    /// The number that its replies repeat.
    pub cookie: U64,
    /// First byte.
    pub off: U64,
    /// Bytes; with [`flag::PAYLOAD_LEN`] those of the payload.
    pub len: U64,
}

/// A simple reply, without content.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`]
    pub magic: U32,
    /// [`Code`], or 0.
    pub error: U32,
    /// The number of the request.
    pub cookie: U64,
}

/// The fixed part of a chunk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StructuredChunk {
    /// [`STRUCTURED_REPLY_MAGIC`]
    pub magic: U32,
    /// [`chunk::DONE`]
    pub flags: U16,
    /// [`chunk`]
    pub kind: U16,
    /// The number of the request.
    pub cookie: U64,
    /// Bytes that follow.
    pub len: U32,
}

/// The same with extended headers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedChunk {
    /// [`EXTENDED_REPLY_MAGIC`]
    pub magic: U32,
    /// [`chunk::DONE`]
    pub flags: U16,
    /// [`chunk`]
    pub kind: U16,
    /// The number of the request.
    pub cookie: U64,
    /// Offset of the request.
    pub off: U64,
    /// Bytes that follow.
    pub len: U64,
}

const _: () = assert!(size_of::<Greeting>() == 18);
const _: () = assert!(size_of::<OptionHeader>() == 16);
const _: () = assert!(size_of::<OptionReply>() == 20);
const _: () = assert!(size_of::<CompactRequest>() == 28);
const _: () = assert!(size_of::<ExtendedRequest>() == 32);
const _: () = assert!(size_of::<SimpleReply>() == 16);
const _: () = assert!(size_of::<StructuredChunk>() == 20);
const _: () = assert!(size_of::<ExtendedChunk>() == 32);
