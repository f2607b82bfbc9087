//! The engine as the tests of all engines see it.

use pmem::Medium;
use pool::{CheckOptions, CheckReport, Error, FormatOptions, PoolInfo};
use scmfs::layout::{
    BLOCK, FIRST_BLOCK, INODE, INODE_MAP, INODE_SIZE, Map, POOL_MAX, Run, journal,
};
use vfs::Ino;

/// SCMFS.
pub struct Scmfs;

impl suite::Engine for Scmfs {
    const NAME: &'static str = scmfs::LAYOUT;
    const POOL_MAX: u64 = POOL_MAX;
    type Files<M: Medium> = scmfs::Files<M>;

    fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
        scmfs::format(medium, options)
    }

    fn info(medium: &impl Medium) -> Result<PoolInfo, Error> {
        scmfs::info(medium)
    }

    fn check(medium: &impl Medium, options: &CheckOptions) -> Result<CheckReport, Error> {
        scmfs::check(medium, options, &|_, _| {})
    }

    /// In the first block of the inode table.
    fn inode_at(ino: Ino) -> u64 {
        FIRST_BLOCK * BLOCK + ino.0 * INODE
    }

    fn weak_spot(below: &mut dyn FnMut(u64) -> u64) -> u64 {
        match below(8) {
            0 => [INODE_MAP, INODE_SIZE][below(2) as usize],
            1 => journal::START + below(journal::BLOCKS * BLOCK / 8) * 8,
            _ => Self::inode_at(Ino(below(32))) + below(16) * 8,
        }
    }

    fn wild_word(blocks: u64, below: &mut dyn FnMut(u64) -> u64) -> u64 {
        // Some lie outside, or reach there.
        let start = below(blocks + 10);
        match below(3) {
            0 => Map::Run(Run { start, count: below(4) }).pack(),
            1 => Map::Run(Run { start, count: below(2 * blocks) }).pack(),
            _ => Map::Table { block: start, level: below(6) as u8 }.pack(),
        }
    }
}
