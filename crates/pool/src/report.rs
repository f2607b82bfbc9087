//! What pools say of themselves, and what mounting and checking find.

use crate::{LABEL_MAX, Problem};
use serde::Serialize;

/// The label that a superblock holds, padded with zeros.
pub fn label(padded: &[u8; LABEL_MAX]) -> String {
    let label = padded.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(label).into_owned()
}

/// What a pool says of itself.
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
    /// Bytes formatted.
    pub size_bytes: u64,
    /// When, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Bytes per block.
    pub block_bytes: u32,
}

/// What mounting found and did. A process that joins others finds nothing but the space in use.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MountReport {
    /// Live inodes.
    pub inodes: u64,
    /// Names.
    pub names: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Words that a crash had left and that are cleared: pointers beyond the end of files, entries of
    /// inodes that had not come to be.
    pub stale_cleared: u64,
    /// Problems (read-only mounts of damaged pools).
    pub problems: u64,
    /// Duration of the scan in microseconds.
    pub scan_us: u64,
}

/// What a check found.
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
    /// Words left by a crash, as in [`MountReport::stale_cleared`]; harmless, cleared by the next mount.
    pub stale_words: u64,
    /// What is wrong, in the order of objects.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn clean(&self) -> bool {
        self.problems.is_empty()
    }
}
