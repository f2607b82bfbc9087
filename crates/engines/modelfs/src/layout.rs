//! What is on the media: `docs/format/model.md` in Rust.

use pool::LABEL_MAX;
use std::mem::offset_of;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes per block.
pub const BLOCK: u64 = 4096;
/// The first bytes of a pool.
pub const MAGIC: [u8; 8] = *b"KSTNMODL";
/// Version of this format.
pub const VERSION: u32 = 1;
/// Smallest region that can be formatted.
pub const POOL_MIN: u64 = 16 * BLOCK;
/// Largest region.
pub const POOL_MAX: u64 = 1 << 40;
/// Where in a half the saved bytes begin; their number is its first word.
pub const HEADER: u64 = pmem::LINE;

/// Block 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    reserved: [u8; 4],
    /// Bytes formatted.
    pub size: U64,
    /// Creation, ns since 1970.
    pub created_ns: U64,
    /// Identity of the pool.
    pub uuid: [u8; 16],
    reserved2: [u8; 16],
    /// Name given by the user, padded with zeros.
    pub label: [u8; LABEL_MAX],
    /// How often the tree was saved: the last time in the half of this number's parity.
    pub saved: U64,
}

impl Superblock {
    /// Of a pool of `size` bytes that nothing was saved in.
    pub fn new(size: u64, created_ns: u64, uuid: [u8; 16], label: &[u8]) -> Self {
        let mut sb = Self::new_zeroed();
        sb.magic = MAGIC;
        sb.version.set(VERSION);
        sb.size.set(size);
        sb.created_ns.set(created_ns);
        sb.uuid = uuid;
        sb.label[..label.len()].copy_from_slice(label);
        sb
    }
}

/// Where the word is that says how often the tree was saved: the commit.
pub const SAVED: u64 = offset_of!(Superblock, saved) as u64;

/// Bytes of each half of a pool.
pub fn half_bytes(size: u64) -> u64 {
    (size - BLOCK) / 2 / BLOCK * BLOCK
}

/// Most bytes of a saved model.
pub fn capacity(size: u64) -> u64 {
    half_bytes(size) - HEADER
}

/// Where the half begins that the tree is saved in for the `number`th time.
pub fn half(size: u64, number: u64) -> u64 {
    BLOCK + number % 2 * half_bytes(size)
}
