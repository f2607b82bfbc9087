//! What is on the media, word for word: `docs/format/scmfs.md` in Rust. Inodes, directories and attributes are as
//! [`namespace`] has them.

use namespace::Format;
use vfs::Limits;

pub use namespace::layout::{BLOCK, BlockNo};
pub use namespace::{Superblock, fnv1a};

/// Where the word lies that says where the inodes are.
pub const INODE_MAP: u64 = namespace::INODE_ROOT.get();
/// Where the size of all inodes lies.
pub const INODE_SIZE: u64 = namespace::INODE_SIZE.get();
/// Where the word lies that says how the pool was last used.
pub const POOL_USAGE: u64 = namespace::POOL_USAGE.get();

/// Map words in the block of a table.
pub const FANOUT: u64 = 512;
/// The highest level of a table: 512^4 blocks are 2^48 bytes.
pub const LEVEL_MAX: u8 = 4;
/// Bytes of an extent: what a word of a level-2 table stands for.
pub const EXTENT: u64 = FANOUT * BLOCK;
/// Bytes per inode (§3.2).
pub const INODE: u64 = 256;
/// The first bytes of a pool.
pub const MAGIC: [u8; 8] = *b"KSTNSCMF";
/// Version of this format: 2 says in the superblock how the pool was last used.
pub const VERSION: u32 = 2;
/// Smallest region that can be formatted: what is fixed, inode table, root directory and some data.
pub const POOL_MIN: u64 = 64 * BLOCK;
/// Largest region: a run has fewer than 2^31 blocks.
pub const POOL_MAX: u64 = (i32::MAX as u64) * BLOCK;
/// How large things can be: what tables can map.
pub const LIMITS: Limits =
    Limits { file_size: FANOUT.pow(LEVEL_MAX as u32) * BLOCK, ..Limits::MAX };
/// What superblocks say.
pub const FORMAT: Format = Format {
    layout: crate::LAYOUT,
    magic: MAGIC,
    version: VERSION,
    oldest: 1,
    usage_since: Some(2),
    bytes: (POOL_MIN, POOL_MAX),
};

const _: () = {
    let record = size_of::<namespace::layout::InodeRecord>() as u64;
    assert!(INODE.is_multiple_of(pmem::LINE) && INODE >= record);
};

/// What the word at [`POOL_USAGE`] says. Anything else, no pool says.
pub mod usage {
    /// Somebody uses the pool, or did last and was killed: the contents of files may lie in caches.
    pub const IN_USE: u64 = 0;
    /// All that is in the pool is durable, and nobody uses it.
    pub const CLOSED: u64 = u64::from_le_bytes(*b"closed\0\0");
    /// As `IN_USE`; and stores since have persisted in any order, or have not.
    pub const UNORDERED: u64 = u64::from_le_bytes(*b"any-ordr");
}

/// The redo journal: where it is, and how much there is of it.
pub mod journal {
    use super::BLOCK;

    /// Offset of the first record.
    pub const START: u64 = BLOCK;
    /// How many there are.
    pub const RECORDS: u64 = 32;
    /// Bytes of one.
    pub const RECORD: u64 = 512;
    /// Words that one holds at the most.
    pub const WORDS_MAX: usize = 31;
    /// Its blocks.
    pub const BLOCKS: u64 = RECORDS * RECORD / BLOCK;

    const _: () = assert!(16 + WORDS_MAX as u64 * 16 == RECORD);
}

/// The first block behind what is fixed.
pub const FIRST_BLOCK: u64 = 1 + journal::BLOCKS;

const TABLE_BIT: u64 = 1 << 63;
const COUNT_SHIFT: u32 = 32;

/// What a map word says, as it is stored: to be checked before it is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Nothing: zeros.
    Hole,
    /// Blocks that lie behind each other.
    Run(Run),
    /// A table of map words.
    Table {
        /// Number of its block.
        block: u64,
        /// How many levels of tables it is, itself included.
        level: u8,
    },
}

/// Blocks that lie behind each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of the first.
    pub start: u64,
    /// How many.
    pub count: u64,
}

impl Run {
    /// The number behind the last.
    pub const fn end(self) -> u64 {
        self.start + self.count
    }

    /// Where its byte `offset` lies in the pool.
    pub const fn at(self, offset: u64) -> u64 {
        self.start * BLOCK + offset
    }

    /// Bytes of it.
    pub const fn bytes(self) -> u64 {
        self.count * BLOCK
    }

    /// What is left of it without the first `blocks`.
    pub const fn skip(self, blocks: u64) -> Self {
        Self { start: self.start + blocks, count: self.count - blocks }
    }

    /// The first blocks of it, at the most so many.
    pub const fn first(self, blocks: u64) -> Self {
        let count = if blocks < self.count { blocks } else { self.count };
        Self { start: self.start, count }
    }

    /// As a map; a hole where there are no blocks.
    pub const fn map(self) -> Map {
        if self.count == 0 { Map::Hole } else { Map::Run(self) }
    }
}

impl Map {
    /// From what is stored.
    pub const fn unpack(word: u64) -> Self {
        let block = word & 0xffff_ffff;
        if word == 0 {
            Self::Hole
        } else if word & TABLE_BIT != 0 {
            Self::Table { block, level: (word >> COUNT_SHIFT) as u8 }
        } else {
            Self::Run(Run { start: block, count: word >> COUNT_SHIFT })
        }
    }

    /// As it is stored.
    pub const fn pack(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Run(Run { start, count }) => start | count << COUNT_SHIFT,
            Self::Table { block, level } => TABLE_BIT | block | (level as u64) << COUNT_SHIFT,
        }
    }

    /// Bytes that it can hold without becoming another one: the virtual size (§3.3).
    pub const fn virtual_bytes(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Run(run) => run.bytes(),
            Self::Table { level, .. } => table_bytes(level),
        }
    }
}

/// Bytes that a table of this level stands for.
pub const fn table_bytes(level: u8) -> u64 {
    BLOCK << (9 * level as u64)
}

/// Bytes that a word in a table of this level stands for.
pub const fn word_bytes(level: u8) -> u64 {
    table_bytes(level - 1)
}

/// The least level of a table that stands for so many bytes.
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
        let run = Run { start: 17, count: (1 << 31) - 1 };
        for map in [Map::Hole, Map::Run(run), Map::Table { block: u32::MAX as u64, level: 4 }] {
            assert_eq!(Map::unpack(map.pack()), map);
        }
        assert_eq!(level_for(1), 1);
        assert_eq!(level_for(EXTENT), 1);
        assert_eq!(level_for(EXTENT + 1), 2);
        assert_eq!(level_for(LIMITS.file_size), LEVEL_MAX);
        assert_eq!(word_bytes(2), EXTENT);
    }
}
