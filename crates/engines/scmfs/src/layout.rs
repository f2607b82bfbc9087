//! The layout of media, word for word: `docs/format/scmfs.md` in Rust. Inodes, directories and
//! attributes are as in [`namespace`].

use namespace::Format;
use pmem::PmOff;
use std::ops::Range;
use vfs::Limits;

pub use namespace::layout::{BLOCK, BlockNo};
pub use namespace::{INODE_SIZE, POOL_USAGE, Superblock, fnv1a};

/// The place of the word that maps the inode table.
pub const INODE_MAP: PmOff = namespace::INODE_ROOT;

/// Map words in the block of a table.
pub const FANOUT: u64 = 512;
/// The highest level of a table: 512^4 blocks are 2^48 bytes.
pub const LEVEL_MAX: u8 = 4;
/// Bytes of an extent: the bytes that a word of a level-2 table maps.
pub const EXTENT: u64 = FANOUT * BLOCK;
/// Bytes per inode (§3.2).
pub const INODE: u64 = 256;
/// The first bytes of a pool.
pub const MAGIC: [u8; 8] = *b"KSTNSCMF";
/// Version of this format. Version 2 records in the superblock how the pool was last used.
pub const VERSION: u32 = 2;
/// Smallest region that can be formatted: the fixed blocks, inode table, root directory and some
/// data.
pub const POOL_MIN: u64 = 64 * BLOCK;
/// Largest region: a run has fewer than 2^31 blocks.
pub const POOL_MAX: u64 = (i32::MAX as u64) * BLOCK;
/// The limits of the engine: a file is as large as tables can map.
pub const LIMITS: Limits =
    Limits { file_size: FANOUT.pow(LEVEL_MAX as u32) * BLOCK, clones: false, ..Limits::MAX };
/// The format of superblocks.
pub const FORMAT: Format = Format {
    layout: crate::LAYOUT,
    magic: MAGIC,
    version: VERSION,
    oldest: 1,
    backed: None,
    usage_since: Some(2),
    shares: false,
    bytes: (POOL_MIN, POOL_MAX),
};

const _: () = {
    let record = size_of::<namespace::layout::InodeRecord>() as u64;
    assert!(INODE.is_multiple_of(pmem::LINE) && INODE >= record);
};

/// The values of the word at [`POOL_USAGE`]; any other value is damage.
pub mod usage {
    /// A process uses the pool, or the last one was killed: the contents of files may lie in
    /// caches.
    pub const IN_USE: u64 = 0;
    /// Everything in the pool is durable, and no process uses it.
    pub const CLOSED: u64 = u64::from_le_bytes(*b"closed\0\0");
    /// As `IN_USE`; in addition, later stores may have persisted in any order.
    pub const UNORDERED: u64 = u64::from_le_bytes(*b"any-ordr");
}

/// The redo journal: its place and size.
pub mod journal {
    use super::BLOCK;
    use pmem::PmOff;

    /// The place of the first record.
    pub const START: PmOff = PmOff::new(BLOCK);
    /// The number of records.
    pub const RECORDS: u64 = 32;
    /// Bytes of a record.
    pub const RECORD: u64 = 512;
    /// Most words in a record.
    pub const WORDS_MAX: usize = 31;
    /// The number of blocks that the journal takes.
    pub const BLOCKS: u64 = RECORDS * RECORD / BLOCK;

    const _: () = assert!(16 + WORDS_MAX as u64 * 16 == RECORD);
}

/// The first block behind the fixed ones.
pub const FIRST_BLOCK: u64 = 1 + journal::BLOCKS;

const TABLE_BIT: u64 = 1 << 63;
const COUNT_SHIFT: u32 = 32;

/// The parts of a map word that was read from PM, as plain numbers: `Maps::check_map` makes a
/// [`Map`] of it that may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// No blocks: zeros.
    Hole,
    /// Contiguous blocks.
    Run {
        /// Number of the first block.
        start: u64,
        /// The number of blocks.
        count: u64,
    },
    /// A table of map words.
    Table {
        /// Number of its block.
        block: u64,
        /// The number of levels of tables, including this one.
        level: u8,
    },
}

impl Unverified {
    /// Decodes a map word, which is not checked.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        let block = word & 0xffff_ffff;
        if word == 0 {
            Self::Hole
        } else if word & TABLE_BIT != 0 {
            Self::Table { block, level: (word >> COUNT_SHIFT) as u8 }
        } else {
            Self::Run { start: block, count: word >> COUNT_SHIFT }
        }
    }

    /// Encodes it as a word.
    #[inline]
    pub const fn pack(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Run { start, count } => start | count << COUNT_SHIFT,
            Self::Table { block, level } => TABLE_BIT | block | (level as u64) << COUNT_SHIFT,
        }
    }
}

/// A map word that was checked when read, or made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// No blocks: zeros.
    Hole,
    /// Contiguous blocks.
    Run(Run),
    /// A table of map words.
    Table {
        /// Its block.
        block: BlockNo,
        /// The number of levels of tables, including this one.
        level: u8,
    },
}

/// Contiguous blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block. If there are no blocks, the place where it would be.
    pub start: BlockNo,
    /// The number of blocks.
    pub count: u64,
}

impl Run {
    /// Makes a run of one block.
    pub const fn one(block: BlockNo) -> Self {
        Self { start: block, count: 1 }
    }

    /// Returns the run of claimed blocks from number `start` on. It is not the superblock's block,
    /// as the bit of that is set.
    #[inline]
    pub fn claimed(start: u64, count: u64) -> Self {
        Self { start: BlockNo::new(start).expect("the bit of the superblock is set"), count }
    }

    /// Returns the block behind its last block.
    #[inline]
    pub fn end(self) -> BlockNo {
        self.start + self.count
    }

    /// Returns the bits of its blocks.
    #[inline]
    pub fn bits(self) -> Range<u64> {
        let first = self.start.get();
        first..first + self.count
    }

    /// Returns its blocks.
    pub fn blocks(self) -> impl Iterator<Item = BlockNo> {
        (0..self.count).map(move |nth| self.start + nth)
    }

    /// Returns the place of its byte `offset` in the pool.
    #[inline]
    pub const fn at(self, offset: u64) -> PmOff {
        self.start.at(offset)
    }

    /// Returns its length in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.count * BLOCK
    }

    /// Returns the rest of it without the first `blocks`.
    #[inline]
    pub fn skip(self, blocks: u64) -> Self {
        Self { start: self.start + blocks, count: self.count - blocks }
    }

    /// Returns its first blocks, at most this number.
    #[inline]
    pub const fn first(self, blocks: u64) -> Self {
        let count = if blocks < self.count { blocks } else { self.count };
        Self { start: self.start, count }
    }

    /// Returns the map of this run; a hole if it has no blocks.
    #[inline]
    pub const fn map(self) -> Map {
        if self.count == 0 { Map::Hole } else { Map::Run(self) }
    }
}

impl Map {
    /// Encodes it as a map word.
    #[inline]
    pub const fn pack(self) -> u64 {
        match self {
            Self::Hole => Unverified::Hole,
            Self::Run(Run { start, count }) => Unverified::Run { start: start.get(), count },
            Self::Table { block, level } => Unverified::Table { block: block.get(), level },
        }
        .pack()
    }

    /// Returns the number of bytes that it can hold before it must be replaced: the virtual size
    /// (§3.3).
    #[inline]
    pub const fn virtual_bytes(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Run(run) => run.bytes(),
            Self::Table { level, .. } => table_bytes(level),
        }
    }
}

/// Returns the number of bytes that a table of this level maps.
pub const fn table_bytes(level: u8) -> u64 {
    BLOCK << (9 * level as u64)
}

/// Returns the number of bytes that a word in a table of this level maps.
pub const fn word_bytes(level: u8) -> u64 {
    table_bytes(level - 1)
}

/// Returns the lowest level of a table that maps this number of bytes.
pub const fn level_for(bytes: u64) -> u8 {
    let mut level = 1;
    while table_bytes(level) < bytes {
        level += 1;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_words_are_what_they_were() {
        let run = Unverified::Run { start: 17, count: (1 << 31) - 1 };
        let table = Unverified::Table { block: u32::MAX as u64, level: 4 };
        for map in [Unverified::Hole, run, table] {
            assert_eq!(Unverified::unpack(map.pack()), map);
        }
        assert_eq!(Map::Run(Run::claimed(17, (1 << 31) - 1)).pack(), run.pack());
        let block = BlockNo::new(u32::MAX as u64).unwrap();
        assert_eq!(Map::Table { block, level: 4 }.pack(), table.pack());
        assert_eq!(level_for(1), 1);
        assert_eq!(level_for(EXTENT), 1);
        assert_eq!(level_for(EXTENT + 1), 2);
        assert_eq!(level_for(LIMITS.file_size), LEVEL_MAX);
        assert_eq!(word_bytes(2), EXTENT);
    }
}
