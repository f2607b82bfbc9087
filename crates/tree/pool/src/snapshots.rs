//! Snapshots: read-only states of a pool that it keeps. Branches: other trees in it.

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

/// Longest name of a branch, in bytes: those of its snapshots have up to two more.
pub const BRANCH_NAME_MAX: usize = SNAPSHOT_NAME_MAX - 2;

/// Checks the name of a branch: as that of a snapshot, but it is shorter.
///
/// # Errors
/// The reason why no branch can have this name.
pub fn check_branch_name(name: &str) -> Result<(), &'static str> {
    match name.len() {
        0..=BRANCH_NAME_MAX => check_snapshot_name(name),
        _ => Err("it has more than 62 bytes"),
    }
}

/// Splits the name of an entry in the directory of branches: returns the name of the branch, and
/// whether it is finished. An unfinished one is being made or removed; its name follows `@`. `None`
/// if no entry can have this name.
pub fn split_branch(entry: &str) -> Option<(&str, bool)> {
    let (name, is_finished) = match entry.strip_prefix('@') {
        Some(name) => (name, false),
        None => (entry, true),
    };
    check_branch_name(name).is_ok().then_some((name, is_finished))
}

/// Returns the name of an entry in the directory of branches for an unfinished branch, and of the
/// snapshot that is its base.
pub fn base_of_branch(name: &str) -> String {
    format!("@{name}")
}

/// Returns the name of the snapshot of the state that a commit merges into a branch.
pub fn later_of_branch(name: &str) -> String {
    format!("@@{name}")
}

/// Returns the branch to which a snapshot belongs; `None` for a snapshot of the user.
pub fn branch_of_snapshot(snapshot: &str) -> Option<&str> {
    let name = snapshot.strip_prefix('@')?;
    let name = name.strip_prefix('@').unwrap_or(name);
    check_branch_name(name).is_ok().then_some(name)
}

/// Checks the name of an entry in the table of snapshots: of a snapshot of the user, or of a
/// branch.
pub fn is_snapshot_entry(name: &str) -> bool {
    check_snapshot_name(name).is_ok() || branch_of_snapshot(name).is_some()
}

/// Returns the part of a region that a process locks while it relies on a branch, as
/// [`snapshot_part`].
pub fn branch_part(name: &str) -> Range<u32> {
    snapshot_part(&format!("@@@{name}"))
}

/// Returns the part of a region that a command on branches locks: one runs at a time.
pub fn branches_part() -> Range<u32> {
    snapshot_part("@")
}

/// A branch of a pool: a tree beside its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BranchInfo {
    /// Its name, which no other branch or snapshot of the pool has.
    pub name: String,
    /// Time of creation, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Whether it is complete. Others are being made or removed, or a crash has ended that; the
    /// next command on branches removes these.
    pub is_finished: bool,
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

    #[test]
    fn names_of_branches_are_split() {
        assert_eq!(split_branch("a"), Some(("a", true)));
        assert_eq!(split_branch("@a"), Some(("a", false)));
        for bad in ["", "@", "@@a", "a@", ".", "@..", "a/b", &"x".repeat(63)] {
            assert_eq!(split_branch(bad), None, "{bad}");
        }
        let longest = "x".repeat(BRANCH_NAME_MAX);
        for of in [base_of_branch(&longest), later_of_branch(&longest)] {
            assert_eq!(branch_of_snapshot(&of), Some(&*longest));
            assert!(of.len() <= SNAPSHOT_NAME_MAX && is_snapshot_entry(&of));
        }
        assert!(is_snapshot_entry("a") && !is_snapshot_entry("@@@a") && !is_snapshot_entry("@"));
        assert_eq!(branch_of_snapshot("a"), None);
    }
}
