//! What is on the media, word for word: `docs/format/bpfs.md` in Rust.
//!
//! Little-endian; every word that commits something is 8-byte aligned; everything is in 4 KiB
//! blocks. Nothing here is redundant: what can be derived is derived at mount.

use std::mem::offset_of;
use vfs::Ino;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes per block.
pub const BLOCK: u64 = 4096;
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
/// Bytes of a directory entry before its name.
pub const DIRENT_HEADER: u64 = 16;
/// Directory entries are multiples of this, so that a header never straddles a cache line.
pub const DIRENT_UNIT: u64 = 16;
/// Shortest directory entry: a header and a name of up to 16 bytes.
pub const DIRENT_MIN: u64 = 32;
/// The first bytes of a pool.
pub const MAGIC: [u8; 8] = *b"KSTNBPFS";
/// Version of this format.
pub const VERSION: u32 = 2;
/// Smallest region that can be formatted: superblock, inode file, root directory and some data.
pub const POOL_MIN: u64 = 64 * BLOCK;
/// Largest region: block numbers are 32 bits in volatile tables.
pub const POOL_MAX: u64 = (u32::MAX as u64) * BLOCK;

/// Block 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// [`BLOCK`].
    pub block_bytes: U32,
    /// Blocks in the region, block 0 included.
    pub blocks: U64,
    /// Creation, ns since 1970.
    pub created_ns: U64,
    /// Identity of the pool.
    pub uuid: [u8; 16],
    /// FNV-1a of all fields before the roots and of `label`, computed with this field zero.
    pub checksum: U64,
    reserved: [u8; 8],
    /// Root pointer and height of the inode file: the root of everything.
    pub inode_root: U64,
    /// Size of the inode file in bytes.
    pub inode_size: U64,
    reserved2: [u8; 48],
    /// Name given by the user, padded with zeros.
    pub label: [u8; pool::LABEL_MAX],
}

/// One inode: 128 bytes, of which the first line holds all that changes often, so that stores to
/// root, size and times of one inode persist in program order. Both lines say the generation, which is
/// stored last in each of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeRecord {
    /// Root pointer and height of the file's tree.
    pub root: U64,
    /// Size in bytes; what the tree holds beyond is not part of the file.
    pub size: U64,
    /// Last change of content, ns since 1970.
    pub mtime: U64,
    /// Last change of the inode.
    pub ctime: U64,
    /// Last access.
    pub atime: U64,
    /// Root pointer and height of the attribute tree, 0 where there are no attributes.
    pub xattr: U64,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// `S_IFMT` and permission bits.
    pub mode: U32,
    /// Differs between lives of this number.
    pub generation: U32,
    /// Creation.
    pub btime: U64,
    /// Device number of a device file.
    pub rdev: U32,
    /// The generation again.
    pub generation_again: U32,
    reserved: [u8; 48],
}

const _: () = {
    assert!(size_of::<Superblock>() == 192);
    assert!(offset_of!(Superblock, inode_root) == 64, "the root has a line of its own");
    assert!(size_of::<InodeRecord>() == 128);
    assert!(offset_of!(InodeRecord, btime) == 64, "all else but devices have is in the first line");
};

impl InodeRecord {
    /// An inode with these times and nothing else.
    pub fn born(now: i64) -> Self {
        let t = U64::new(now as u64);
        Self { mtime: t, ctime: t, atime: t, btime: t, ..Self::new_zeroed() }
    }

    /// Sets the generation.
    pub fn set_generation(&mut self, generation: u32) {
        self.generation.set(generation);
        self.generation_again.set(generation);
    }
}

/// The words of an inode that are stored on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Word {
    /// Root pointer.
    Root = 0,
    /// Size.
    Size = 8,
    /// Last change of content.
    Mtime = 16,
    /// Last change of the inode.
    Ctime = 24,
    /// Last access.
    Atime = 32,
    /// Attribute tree.
    Xattr = 40,
    /// Owner (low half) and group.
    Owner = 48,
    /// Mode (low half) and generation.
    Mode = 56,
    /// Birth.
    Btime = 64,
    /// Device number (low half) and generation.
    Rdev = 72,
}

const _: () = {
    assert!(offset_of!(InodeRecord, root) == Word::Root as usize);
    assert!(offset_of!(InodeRecord, size) == Word::Size as usize);
    assert!(offset_of!(InodeRecord, mtime) == Word::Mtime as usize);
    assert!(offset_of!(InodeRecord, ctime) == Word::Ctime as usize);
    assert!(offset_of!(InodeRecord, atime) == Word::Atime as usize);
    assert!(offset_of!(InodeRecord, mode) == Word::Mode as usize);
    assert!(offset_of!(InodeRecord, uid) == Word::Owner as usize);
    assert!(offset_of!(InodeRecord, xattr) == Word::Xattr as usize);
    assert!(offset_of!(InodeRecord, rdev) == Word::Rdev as usize);
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

/// The first word of a directory entry: which life of which inode it names; zero: it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The inode.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
}

impl Life {
    /// As stored: inode number and generation, 32 bits each.
    pub fn pack(self) -> u64 {
        self.ino.0 | u64::from(self.generation) << 32
    }

    /// From what is stored; `None` where the entry is free.
    pub fn unpack(word: u64) -> Option<Self> {
        let ino = Ino(word & 0xffff_ffff);
        (word != 0).then_some(Self { ino, generation: (word >> 32) as u32 })
    }
}

/// The second word of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirentWord {
    /// Bytes to the next entry of the block.
    pub len: u64,
    /// Bytes of the name.
    pub name_len: usize,
    /// `S_IFMT >> 12` of the inode, a hint for listings.
    pub kind: u8,
}

impl DirentWord {
    /// As stored: length, name length, kind (16, 16 and 8 bits).
    pub fn pack(self) -> u64 {
        self.len | (self.name_len as u64) << 16 | u64::from(self.kind) << 32
    }

    /// From what is stored; not checked.
    pub fn unpack(word: u64) -> Self {
        Self {
            len: word & 0xffff,
            name_len: (word >> 16 & 0xffff) as usize,
            kind: (word >> 32) as u8,
        }
    }
}

/// Bytes that an entry with a name of this length takes.
pub const fn dirent_bytes(name_len: usize) -> u64 {
    (DIRENT_HEADER + name_len as u64).next_multiple_of(DIRENT_UNIT)
}

/// FNV-1a, for the superblock's static fields only.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}
