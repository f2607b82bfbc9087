//! BPFS as the engine under test of the suite.

use bpfs::layout::{BLOCK, FIRST_INODES, INODE, POOL_MAX};
use pmem::Medium;
use pool::{CheckOptions, CheckReport, Error, FormatOptions, PoolInfo};
use vfs::Ino;

/// BPFS.
pub struct Bpfs;

impl suite::Engine for Bpfs {
    const NAME: &'static str = bpfs::LAYOUT;
    const POOL_MAX: u64 = POOL_MAX;
    type Files<M: Medium> = bpfs::Files<M>;

    fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
        bpfs::format(medium, options)
    }

    fn info(medium: &impl Medium) -> Result<PoolInfo, Error> {
        bpfs::info(medium)
    }

    fn check(medium: &impl Medium, options: &CheckOptions) -> Result<CheckReport, Error> {
        bpfs::check(medium, options, &|_, _| {})
    }

    fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error> {
        bpfs::resize(medium, bytes)
    }

    /// Returns the place in the only leaf of the inode file.
    fn inode_at(ino: Ino) -> u64 {
        FIRST_INODES.at(ino.0 * INODE).get()
    }

    fn weak_spot(below: &mut dyn FnMut(u64) -> u64) -> u64 {
        match below(3) {
            0 => 64 + below(2) * 8,
            _ => FIRST_INODES.at(below(32) * INODE + below(16) * 8).get(),
        }
    }

    fn wild_word(blocks: u64, below: &mut dyn FnMut(u64) -> u64) -> u64 {
        match below(2) {
            0 => (below(blocks) * BLOCK) | below(8),
            _ => (blocks + below(blocks)) * BLOCK,
        }
    }
}
