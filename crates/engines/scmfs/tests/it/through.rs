//! The same tests with all writes past the cache.

use crate::common::Scmfs;
use pmem::Medium;
use pool::{CheckOptions, CheckReport, Error, FormatOptions, MountOptions, PoolInfo, WritePolicy};
use vfs::Ino;

/// SCMFS mounted with this policy.
pub struct Through;

impl suite::Engine for Through {
    // Another name, as both sets of tests run at once.
    const NAME: &'static str = "scmfs-through";
    const POOL_MAX: u64 = Scmfs::POOL_MAX;
    type Files<M: Medium> = scmfs::ScmfsFiles<M>;

    fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
        Scmfs::format(medium, options)
    }

    fn info(medium: &impl Medium) -> Result<PoolInfo, Error> {
        Scmfs::info(medium)
    }

    fn check(medium: &impl Medium, options: &CheckOptions) -> Result<CheckReport, Error> {
        Scmfs::check(medium, options)
    }

    fn options() -> MountOptions {
        MountOptions { write_policy: WritePolicy::Through, ..MountOptions::default() }
    }

    fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error> {
        Scmfs::resize(medium, bytes)
    }

    fn inode_at(ino: Ino) -> u64 {
        Scmfs::inode_at(ino)
    }

    fn weak_spot(below: &mut dyn FnMut(u64) -> u64) -> u64 {
        Scmfs::weak_spot(below)
    }

    fn wild_word(blocks: u64, below: &mut dyn FnMut(u64) -> u64) -> u64 {
        Scmfs::wild_word(blocks, below)
    }
}

suite::tests!(Through: entries, pins, scan, smoke, writers);
