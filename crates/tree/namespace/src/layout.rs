//! The layout of inodes and names on media: the part of `docs/format/bpfs.md` that all engines
//! share, word for word in Rust.
//!
//! Little-endian; every word that commits something is 8-byte aligned.

use pmem::PmOff;
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::ops::Add;
use vfs::Ino;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes per block of directory entries.
pub const BLOCK: u64 = 4096;
/// Bytes of a directory entry before its name.
pub const DIRENT_HEADER: u64 = 16;
/// Directory entries are multiples of this, so that a header never straddles a cache line.
pub const DIRENT_UNIT: u64 = 16;
/// Shortest directory entry: a header and a name of up to 16 bytes.
pub const DIRENT_MIN: u64 = 32;

/// The number of a block that content may lie in, as the bitmaps of a pool count it. So it is never
/// 0, the number of the superblock's block. Places that may have no block use an `Option`.
///
/// It is stored as the offset of the block in PM, the value that most callers need, and the value
/// of a pointer in PM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct BlockNo(NonZeroU64);

impl BlockNo {
    /// Returns the block of this number; `None` for 0.
    #[inline]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number * BLOCK) {
            Some(offset) => Some(Self(offset)),
            None => None,
        }
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get() / BLOCK
    }

    /// Returns the place in PM of its byte `offset`.
    #[inline]
    pub const fn at(self, offset: u64) -> PmOff {
        PmOff::new(self.0.get() + offset)
    }
}

/// The block that many blocks later; beyond the end of a pool, the place where it would be.
impl Add<u64> for BlockNo {
    type Output = Self;

    #[inline]
    #[expect(clippy::suspicious_arithmetic_impl, reason = "it is kept in bytes")]
    fn add(self, blocks: u64) -> Self {
        Self(self.0.saturating_add(blocks * BLOCK))
    }
}

/// The number of the block's bit.
impl From<BlockNo> for u64 {
    #[inline]
    fn from(block: BlockNo) -> Self {
        block.get()
    }
}

/// An inode, or its first 128 bytes. The first line holds all that changes often, so that stores to
/// root, size and times of one inode persist in program order. Both lines contain the generation,
/// which is stored last in each of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeRecord {
    /// The place of its content, in the engine's encoding.
    pub root: U64,
    /// Size in bytes; bytes of the content beyond it are not part of the file.
    pub size: U64,
    /// Last change of content, ns since 1970.
    pub mtime: U64,
    /// Last change of the inode.
    pub ctime: U64,
    /// Last access.
    pub atime: U64,
    /// The place of its attributes; 0: it has none.
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
    /// Device number of a device file. In pools with a backing store, the stamp of other files.
    pub rdev: U32,
    /// The generation again.
    pub generation_again: U32,
    /// [`STATE_CLEAN`], [`STATE_NAMES_ABSENT`], [`STATE_BUSY`] and [`STATE_PINNED`]. This field and
    /// those that follow are zero in pools without a backing store.
    pub state: U32,
    /// The number of names of a file that only the backing store has; the number of subdirectories
    /// of a directory whose names are absent.
    pub absent_links: U32,
    /// The length and the bytes of its identity in the backing store; the length is 0 if there is
    /// no object yet.
    pub identity: [u8; IDENTITY],
}

const _: () = {
    assert!(size_of::<InodeRecord>() == 128);
    assert!(offset_of!(InodeRecord, btime) == 64, "all else but devices have is in the first line");
};

/// The bit of an inode's state that marks it clean: the backing store has the same (backed-K2).
pub const STATE_CLEAN: u32 = 1;
/// The bit of a directory's state if its entries are not all in the pool.
pub const STATE_NAMES_ABSENT: u32 = 2;
/// The bit of an inode's state while its object changes by write-back, so that the stamp does not
/// count.
pub const STATE_BUSY: u32 = 4;
/// The bit of an inode's state if its content and its names are not evicted.
pub const STATE_PINNED: u32 = 8;
/// Bytes of an identity with its length.
pub const IDENTITY: usize = vfs::IDENTITY_MAX + 1;

impl InodeRecord {
    /// Makes an inode with these times and nothing else.
    pub fn born(now: i64) -> Self {
        let t = U64::new(now as u64);
        Self { mtime: t, ctime: t, atime: t, btime: t, ..Self::new_zeroed() }
    }

    /// Returns one of its words.
    pub fn word(&self, word: Word) -> u64 {
        let bytes = &self.as_bytes()[word as usize..][..8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Sets the generation.
    pub fn set_generation(&mut self, generation: u32) {
        self.generation.set(generation);
        self.generation_again.set(generation);
    }
}

/// The words of an inode that are stored individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Word {
    /// The place of the content.
    Root = 0,
    /// Size.
    Size = 8,
    /// Last change of content.
    Mtime = 16,
    /// Last change of the inode.
    Ctime = 24,
    /// Last access.
    Atime = 32,
    /// The place of the attributes.
    Xattr = 40,
    /// Owner (low half) and group.
    Owner = 48,
    /// Mode (low half) and generation.
    Mode = 56,
    /// Birth.
    Btime = 64,
    /// Device number or stamp (low half) and generation.
    Rdev = 72,
    /// State (low half) and absent links.
    State = 80,
    /// Length and first bytes of the identity.
    Identity = 88,
}

/// The half of the word [`Word::Mode`] that is the mode.
pub const MODE_HALF: u64 = u32::MAX as u64;

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
    assert!(offset_of!(InodeRecord, state) == Word::State as usize);
    assert!(offset_of!(InodeRecord, identity) == Word::Identity as usize);
};

/// The first word of a directory entry: an inode and its generation; zero: the entry is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The inode.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
}

impl Life {
    /// Encodes it as stored: inode number and generation, 32 bits each.
    pub fn pack(self) -> u64 {
        self.ino.0 | u64::from(self.generation) << 32
    }

    /// Decodes a stored word; `None` if the entry is free.
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
    /// Encodes it as stored: length, name length, kind (16, 16 and 8 bits).
    pub fn pack(self) -> u64 {
        self.len | (self.name_len as u64) << 16 | u64::from(self.kind) << 32
    }

    /// Decodes a stored word without checking it.
    pub fn unpack(word: u64) -> Self {
        Self {
            len: word & 0xffff,
            name_len: (word >> 16 & 0xffff) as usize,
            kind: (word >> 32) as u8,
        }
    }
}

/// Returns the number of bytes that an entry with a name of this length takes.
pub const fn dirent_bytes(name_len: usize) -> u64 {
    (DIRENT_HEADER + name_len as u64).next_multiple_of(DIRENT_UNIT)
}
