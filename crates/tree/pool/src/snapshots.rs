//! Snapshots: read-only states of a pool that it keeps.

use serde::Serialize;
use std::ops::Range;

/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_MAX: usize = 64;

/// A snapshot of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Its name, which no other snapshot of the pool has.
    pub name: String,
    /// Time of creation, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Bytes that become free if it is deleted, and no other one. Null unless that was asked for:
    /// to count them takes time that grows with the number of files.
    pub held_bytes: Option<u64>,
    /// Whether it is being received, and cannot be read yet.
    pub is_incomplete: bool,
}

/// The snapshots of a pool, and the space that they take.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshots {
    /// The snapshots, in the order of their creation.
    pub list: Vec<Snapshot>,
    /// Bytes that become free if all of them are deleted. Null as
    /// [`held_bytes`](Snapshot::held_bytes).
    pub held_bytes: Option<u64>,
}

/// Checks the name of a snapshot: it stands behind the pool's name and an `@`, and may name a
/// directory.
///
/// # Errors
/// The reason why no snapshot can have this name.
pub fn check_snapshot_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("it is empty"),
        _ if name.len() > SNAPSHOT_NAME_MAX => Err("it has more than 64 bytes"),
        "." | ".." => Err("`.` and `..` name directories"),
        _ if name.contains(['/', '@']) => Err("it contains `/` or `@`"),
        _ if name.chars().any(char::is_control) => Err("it contains a control character"),
        _ => Ok(()),
    }
}

/// Returns the part of a region that a process locks while it relies on a snapshot of this name
/// ([`pmem::Region::lock_part`]). Two names may have the same.
pub fn snapshot_part(name: &str) -> Range<u32> {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x100_0193));
    let byte = hash % ALL_SNAPSHOTS.end;
    byte..byte + 1
}

/// The parts of all snapshots.
pub const ALL_SNAPSHOTS: Range<u32> = 0..1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let long = "x".repeat(SNAPSHOT_NAME_MAX);
        for good in ["a", "2026-11-29 02:14", "...", "\u{e4}", &long] {
            assert_eq!(check_snapshot_name(good), Ok(()), "{good}");
        }
        let longer = "x".repeat(SNAPSHOT_NAME_MAX + 1);
        for bad in ["", ".", "..", "a/b", "a@b", "a\nb", "\0", "\u{85}", &longer] {
            assert!(check_snapshot_name(bad).is_err(), "{bad}");
        }
    }
}
