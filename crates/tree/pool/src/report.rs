//! Descriptions of pools, and the findings of mounting and checking.

use crate::{LABEL_MAX, Problem};
use serde::Serialize;
use std::ops::Range;

/// Decodes the label of a superblock, which is padded with zeros.
pub fn label(padded: &[u8; LABEL_MAX]) -> String {
    let label = padded.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(label).into_owned()
}

/// The description of a pool in its superblock.
#[derive(Clone, Debug, Serialize)]
pub struct PoolInfo {
    /// The name of its layout, and so of the engine that keeps it.
    pub layout: &'static str,
    /// Identity.
    pub uuid: uuid::Uuid,
    /// Name given by the user.
    pub label: String,
    /// Version of the format.
    pub version: u32,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The largest size that the pool can get while programs use it, if it can change.
    pub max_size_bytes: Option<u64>,
    /// Time of creation, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Bytes per block.
    pub block_bytes: u32,
    /// Whether the pool holds parts of a tree whose whole is in a backing store.
    pub has_backing_store: bool,
    /// Whether the pool takes space of the file below when it needs it, and gives it back.
    pub is_thin: bool,
}

/// Bytes of an aligned unit of space that a huge page can map.
const UNIT: u64 = 2 << 20;

/// The distribution of a pool's free space: how much contiguous space a file can get. Space that
/// waits for readers counts as used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreeSpace {
    /// Bytes that are free.
    pub bytes: u64,
    /// The number of runs of free blocks.
    pub runs: u64,
    /// Bytes of the longest run.
    pub longest_bytes: u64,
    /// Bytes in aligned units of 2 MiB that are free as a whole, for huge pages.
    pub huge_bytes: u64,
    /// Numbers of runs by size: element `i` counts runs of 2^i blocks up to less than 2^(i+1).
    pub runs_by_size: Vec<u64>,
}

impl FreeSpace {
    /// Adds a run of free blocks, each of `block` bytes.
    pub fn add(&mut self, run: Range<u64>, block: u64) {
        if run.is_empty() {
            return;
        }
        let (start, end) = (run.start * block, run.end * block);
        self.bytes += end - start;
        self.runs += 1;
        self.longest_bytes = self.longest_bytes.max(end - start);
        self.huge_bytes += (end - end % UNIT).saturating_sub(start.next_multiple_of(UNIT));
        let class = (run.end - run.start).ilog2() as usize;
        if self.runs_by_size.len() <= class {
            self.runs_by_size.resize(class + 1, 0);
        }
        self.runs_by_size[class] += 1;
    }

    /// Returns the share of free space that huge pages can map; 1 if no space is free.
    pub fn huge_share(&self) -> f64 {
        if self.bytes == 0 { 1.0 } else { self.huge_bytes as f64 / self.bytes as f64 }
    }
}

/// The findings and actions of a mount. For a process that joins others, only the space in use is
/// set.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MountReport {
    /// Live inodes.
    pub inodes: u64,
    /// Names.
    pub names: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Words that a crash had left and that are cleared: pointers beyond the end of files, entries
    /// of inodes that were never completed.
    pub stale_cleared: u64,
    /// Problems (read-only mounts of damaged pools).
    pub problems: u64,
    /// Duration of the scan in microseconds.
    pub scan_us: u64,
}

/// The findings of a check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Live inodes.
    pub inodes: u64,
    /// Names.
    pub names: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Words left by a crash, as in [`MountReport::stale_cleared`]; harmless, cleared by the next
    /// mount.
    pub stale_words: u64,
    /// The problems, in the order of objects.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Returns whether there is no problem.
    pub fn clean(&self) -> bool {
        self.problems.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_size_and_whole_units_by_alignment() {
        let mut free = FreeSpace::default();
        free.add(1..2, 4096);
        free.add(10..13, 4096);
        assert_eq!((free.bytes, free.runs, free.huge_bytes), (4 * 4096, 2, 0));
        assert_eq!(free.huge_share(), 0.0);
        // A block, one unit and another block; then a whole unit less one block.
        free.add(511..1025, 4096);
        free.add(1536..2047, 4096);
        assert_eq!(free.huge_bytes, UNIT);
        assert_eq!(free.longest_bytes, 514 * 4096);
        assert_eq!(free.runs_by_size, [1, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        free.add(5..5, 4096);
        assert_eq!(free.runs, 4);
        assert_eq!(FreeSpace::default().huge_share(), 1.0);
    }
}
