//! What is on the media, word for word: `docs/format/bpfs.md` in Rust.
//!
//! Little-endian; every word that commits something is 8-byte aligned; everything is in 4 KiB
//! blocks. Nothing here is redundant: what can be derived is derived at mount.

use namespace::Format;

pub use namespace::layout::{
    BLOCK, DIRENT_HEADER, DIRENT_MIN, DIRENT_UNIT, DirentWord, InodeRecord, Life, Word,
    dirent_bytes,
};
pub use namespace::{INODE_ROOT, INODE_SIZE, Superblock};

/// Pointers per interior block.
pub const FANOUT: u64 = 512;
/// Pointers in a line.
pub const LINE_POINTERS: u64 = pmem::LINE / 8;
/// Height of the tallest tree: 512^4 blocks are 2^48 bytes (§3.1).
pub const HEIGHT_MAX: u8 = 4;
/// Bytes per inode.
pub const INODE: u64 = size_of::<InodeRecord>() as u64;
/// Inodes per leaf of the inode file.
pub const INODES_PER_BLOCK: u64 = BLOCK / INODE;
/// The first bytes of a pool.
pub const MAGIC: [u8; 8] = *b"KSTNBPFS";
/// Version of this format.
pub const VERSION: u32 = 2;
/// Smallest region that can be formatted: superblock, inode file, root directory and some data.
pub const POOL_MIN: u64 = 64 * BLOCK;
/// Largest region: block numbers are 32 bits in volatile tables.
pub const POOL_MAX: u64 = (u32::MAX as u64) * BLOCK;

/// What superblocks say.
pub const FORMAT: Format = Format {
    layout: crate::LAYOUT,
    magic: MAGIC,
    version: VERSION,
    oldest: VERSION,
    usage_since: None,
    bytes: (POOL_MIN, POOL_MAX),
};

/// A root pointer: block offset in the high bits, height of the tree in the low three (§3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root(pub u64);

impl Root {
    /// A tree of this height.
    pub const fn new(block: u64, height: u8) -> Self {
        Self(block | height as u64)
    }

    /// Offset of the topmost block; 0 where the whole tree is a hole.
    pub const fn block(self) -> u64 {
        self.0 & !7
    }

    /// Hops from the topmost block to the data.
    pub const fn height(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// Bytes that a tree of this height can hold.
    pub const fn span(self) -> u64 {
        span(self.height())
    }
}

/// Bytes that a subtree of this height covers.
pub const fn span(height: u8) -> u64 {
    BLOCK << (9 * height as u64)
}

/// The least height whose span is at least `bytes`.
pub const fn height_for(bytes: u64) -> u8 {
    let mut h = 0;
    while span(h) < bytes {
        h += 1;
    }
    h
}
