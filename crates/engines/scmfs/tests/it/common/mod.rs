//! SCMFS as the engine under test of the suite.

use pmem::Medium;
use pool::{CheckOptions, CheckReport, Error, FormatOptions, MountOptions, PoolInfo, Prealloc};
use scmfs::layout::{
    BLOCK, FIRST_BLOCK, INODE, INODE_MAP, INODE_SIZE, POOL_MAX, POOL_USAGE, Unverified, fnv1a,
    journal, usage,
};
use vfs::Ino;

/// Defines an engine with this name and these settings.
macro_rules! engine {
    ($name:ident: $prealloc:expr) => {
        impl suite::Engine for $name {
            const NAME: &'static str = scmfs::LAYOUT;
            const POOL_MAX: u64 = POOL_MAX;
            type Files<M: Medium> = scmfs::ScmfsFiles<M>;

            fn options() -> MountOptions {
                MountOptions { prealloc: $prealloc, ..MountOptions::default() }
            }

            fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
                scmfs::format(medium, options)
            }

            fn info(medium: &impl Medium) -> Result<PoolInfo, Error> {
                scmfs::info(medium)
            }

            fn check(medium: &impl Medium, options: &CheckOptions) -> Result<CheckReport, Error> {
                scmfs::check(medium, options, &|_, _| {})
            }

            fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error> {
                scmfs::resize(medium, bytes)
            }

            /// Returns the place in the first block of the inode table.
            fn inode_at(ino: Ino) -> u64 {
                FIRST_BLOCK * BLOCK + ino.0 * INODE
            }

            fn weak_spot(below: &mut dyn FnMut(u64) -> u64) -> u64 {
                match below(8) {
                    0 => [INODE_MAP, INODE_SIZE, POOL_USAGE][below(3) as usize].get(),
                    1 => journal::START.get() + below(journal::BLOCKS * BLOCK / 8) * 8,
                    _ => Self::inode_at(Ino(below(32))) + below(16) * 8,
                }
            }

            fn wild_word(blocks: u64, below: &mut dyn FnMut(u64) -> u64) -> u64 {
                // Some runs lie outside, or reach there.
                let start = below(blocks + 10);
                match below(3) {
                    0 => Unverified::Run { start, count: below(4) }.pack(),
                    1 => Unverified::Run { start, count: below(2 * blocks) }.pack(),
                    _ => Unverified::Table { block: start, level: below(6) as u8 }.pack(),
                }
            }

            /// Writes random records of the journal, and a random word for the usage of the pool.
            fn forge(image: &mut [u8], below: &mut dyn FnMut(u64) -> u64) {
                let blocks = image.len() as u64 / BLOCK;
                if below(4) == 0 {
                    let says = [usage::CLOSED, usage::UNORDERED, below(1 << 40)][below(3) as usize];
                    image[POOL_USAGE.get() as usize..][..8].copy_from_slice(&says.to_le_bytes());
                }
                for _ in 0..=below(2) {
                    let number = below(journal::RECORDS);
                    let count = 1 + below(journal::WORDS_MAX as u64);
                    let mut record = count.to_le_bytes().to_vec();
                    for _ in 0..count {
                        let at = match below(20) {
                            0 => below(blocks * BLOCK + 100),
                            1..5 => Self::weak_spot(below),
                            _ => {
                                FIRST_BLOCK * BLOCK + below((blocks - FIRST_BLOCK) * BLOCK / 8) * 8
                            }
                        };
                        let value = if below(3) == 0 { 0 } else { Self::wild_word(blocks, below) };
                        record.extend(at.to_le_bytes());
                        record.extend(value.to_le_bytes());
                    }
                    let checksum = (fnv1a(&record) ^ fnv1a(&number.to_le_bytes())).max(1);
                    let at = (journal::START + number * journal::RECORD).get() as usize;
                    image[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
                    image[at + 8..at + 8 + record.len()].copy_from_slice(&record);
                }
            }
        }
    };
}

/// SCMFS as it is mounted by default.
pub struct Scmfs;

/// SCMFS without pre-allocation: it allocates only the needed blocks.
pub struct OnDemand;

engine!(Scmfs: Prealloc::default());
engine!(OnDemand: Prealloc::off());
