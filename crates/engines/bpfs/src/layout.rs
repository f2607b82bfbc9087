//! The layout of media, word for word: `docs/format/bpfs.md` in Rust.
//!
//! Little-endian; every word that commits something is 8-byte aligned; everything is in 4 KiB
//! blocks. Nothing here is redundant: mount derives whatever can be derived.

use namespace::Format;
use vfs::Limits;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use namespace::layout::{
    BLOCK, BlockNo, DIRENT_HEADER, DIRENT_MIN, DIRENT_UNIT, DirentWord, InodeRecord, Life, Word,
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
pub const VERSION: u32 = 4;
/// Version of a pool with a backing store: pointers may be absent or marked clean, and inodes have
/// a state and an identity.
pub const BACKED_VERSION: u32 = 5;
/// Smallest region that can be formatted: superblock, inode file, root directory and some data.
pub const POOL_MIN: u64 = 64 * BLOCK;
/// Largest region: block numbers are 32 bits in volatile tables.
pub const POOL_MAX: u64 = (u32::MAX as u64) * BLOCK;

/// The limits of the engine: a file is as large as a tree can be.
pub const LIMITS: Limits = Limits { file_size: span(HEIGHT_MAX), ..Limits::MAX };

/// The format of superblocks.
pub const FORMAT: Format = Format {
    layout: crate::LAYOUT,
    magic: MAGIC,
    version: VERSION,
    oldest: VERSION,
    backed: Some(BACKED_VERSION),
    usage_since: None,
    shares: true,
    bytes: (POOL_MIN, POOL_MAX),
};

/// Redo records, for changes in place.
pub mod records {
    use super::BLOCK;
    use pmem::PmOff;

    /// The place of the first record.
    pub const START: PmOff = PmOff::new(BLOCK);
    /// The number of records.
    pub const COUNT: u64 = 32;
    /// Bytes of one record.
    pub const BYTES: u64 = 1024;
    /// Bytes before its data.
    pub const HEADER: u64 = 16;
    /// Most bytes of data in a record.
    pub const DATA_MAX: usize = (BYTES - HEADER) as usize;
    /// Bytes of data for one word: its place, and its value.
    pub const WORD_BYTES: usize = 16;
    /// The shift of the length in the word with the data's target.
    pub const LEN_SHIFT: u32 = 48;
    /// The number of blocks that all records take.
    pub const BLOCKS: u64 = COUNT * BYTES / BLOCK;
}

/// The table of snapshots, behind the superblock in its block.
pub mod snapshots {
    use pmem::PmOff;
    use zerocopy::byteorder::little_endian::U64;
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    /// The place of the first entry.
    pub const START: PmOff = PmOff::new(256);
    /// The number of entries.
    pub const COUNT: u64 = 40;
    /// Bit of the root word of an entry while its snapshot is incomplete.
    pub const INCOMPLETE: u64 = 1 << 11;
    /// Bytes of an entry.
    pub const BYTES: u64 = size_of::<SnapshotEntry>() as u64;

    /// An entry of the table.
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    pub struct SnapshotEntry {
        /// The root pointer of its inode file, perhaps with [`INCOMPLETE`]; 0: the entry is free.
        pub root: U64,
        /// The size of its inode file in bytes.
        pub size: U64,
        /// Creation, ns since 1970.
        pub created: U64,
        /// FNV-1a of all fields, computed with this field and the root zero.
        pub checksum: U64,
        /// Its name, padded with zeros.
        pub name: [u8; pool::SNAPSHOT_NAME_MAX],
    }

    /// The progress of a snapshot that is or was received, in the place of its inode 0.
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    pub struct ProgressRecord {
        /// [`PROGRESS_MAGIC`].
        pub magic: [u8; 8],
        /// Creation of the base, ns since 1970; 0: there was none.
        pub base_created: U64,
        /// The first inode that is not complete.
        pub ino: U64,
        /// The first byte of its content that is missing.
        pub offset: U64,
        /// FNV-1a of the fields before.
        pub checksum: U64,
        /// Among others, the mode of the inode, so that it is not valid.
        pub zero: [u8; 88],
    }

    /// The first bytes of a [`ProgressRecord`].
    pub const PROGRESS_MAGIC: [u8; 8] = *b"KSTNRECV";

    const _: () = assert!(size_of::<ProgressRecord>() as u64 == super::INODE);
    const _: () = assert!(BYTES == 96 && START.get() + COUNT * BYTES == super::BLOCK);

    /// Returns the place of an entry: of its root word.
    pub fn place_of(number: u64) -> PmOff {
        START + number * BYTES
    }
}

/// The place of the inodes of a new pool: behind the fixed blocks.
pub const FIRST_INODES: BlockNo = match BlockNo::new(1 + records::BLOCKS) {
    Some(block) => block,
    None => unreachable!(),
};

/// A pointer as it lies in PM: the offset of a block, or null for a hole. A pointer that was read
/// is not checked yet: `Trees::check_block` makes it a block that may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Pointer(u64);

impl Pointer {
    /// The pointer to a hole.
    pub const NULL: Self = Self(0);

    /// Wraps a word that was read.
    pub const fn read(word: u64) -> Self {
        Self(word)
    }

    /// Makes a pointer to a block, or to a hole.
    #[inline]
    pub fn to(block: impl Into<Option<BlockNo>>) -> Self {
        Self(block.into().map_or(0, |block| block.at(0).get()))
    }

    /// The pointer to content that only the backing store has, at any height.
    pub const ABSENT: Self = Self(8);

    /// The bit that marks a pointer to a block of data clean: the block equals the backing store's.
    pub const CLEAN: u64 = 16;

    /// Makes a pointer to a block of data that is marked clean.
    pub fn clean(block: BlockNo) -> Self {
        Self(Self::to(block).0 | Self::CLEAN)
    }

    /// Returns the pointer without [`CLEAN`](Self::CLEAN).
    pub const fn without_marks(self) -> Self {
        Self(self.0 & !Self::CLEAN)
    }

    /// Returns whether only the backing store has the content.
    pub const fn is_absent(self) -> bool {
        self.0 == Self::ABSENT.0
    }

    /// Returns whether it leads to a block of data that is neither marked clean nor absent.
    pub const fn is_dirty(self) -> bool {
        !self.is_null() && !self.is_absent() && !self.is_clean()
    }

    /// Returns whether it is marked clean.
    pub const fn is_clean(self) -> bool {
        self.0 & Self::CLEAN != 0
    }

    /// Returns whether it leads to a hole.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the word to store.
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// Splits a root word as it lies in PM (§3.1): the pointer to the topmost block, in the high bits,
/// and the height of the tree, in the low three. Neither is checked: see [`Root`].
pub const fn split_root(word: u64) -> (Pointer, u8) {
    (Pointer(word & !7), (word & 7) as u8)
}

/// A tree, as its root word; block and height were checked when read, or made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Root(u64);

impl Root {
    /// Makes a root of this height.
    #[inline]
    pub fn new(block: Option<BlockNo>, height: u8) -> Self {
        Self(Pointer::to(block).word() | u64::from(height))
    }

    /// Returns the topmost block; `None` if the whole tree is a hole.
    #[inline]
    pub const fn block(self) -> Option<BlockNo> {
        BlockNo::new(self.0 / BLOCK)
    }

    /// Hops from the topmost block to the data.
    #[inline]
    pub const fn height(self) -> u8 {
        split_root(self.0).1
    }

    /// Returns the word to store.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Returns the number of bytes that a tree of this height can hold.
    pub const fn span(self) -> u64 {
        span(self.height())
    }
}

/// Returns the number of bytes that a subtree of this height covers.
pub const fn span(height: u8) -> u64 {
    BLOCK << (9 * height as u64)
}

/// Returns the lowest height whose span is at least `bytes`.
pub const fn height_for(bytes: u64) -> u8 {
    let mut h = 0;
    while span(h) < bytes {
        h += 1;
    }
    h
}
