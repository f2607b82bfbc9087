//! The bytes on the media: `docs/format/model.md` in Rust.

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
/// The offset in a half at which the saved bytes begin; the first word of the half is their number.
pub const HEADER: u64 = pmem::LINE;

/// Block 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModelSuperblock {
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
    /// The number of saves so far: the parity of this number names the half with the last save.
    pub saved: U64,
}

impl ModelSuperblock {
    /// Makes the superblock of a pool of `size` bytes in which nothing was saved.
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

/// The place of the word that counts the saves: the commit.
pub const SAVED: u64 = offset_of!(ModelSuperblock, saved) as u64;

/// Returns the number of bytes of each half of a pool.
pub fn half_bytes(size: u64) -> u64 {
    (size - BLOCK) / 2 / BLOCK * BLOCK
}

/// Returns the most bytes of a saved model.
pub fn capacity(size: u64) -> u64 {
    half_bytes(size) - HEADER
}

/// Returns the start of the half in which the `number`th save lies.
pub fn half(size: u64, number: u64) -> u64 {
    BLOCK + number % 2 * half_bytes(size)
}
