//! The directory of snapshots below a mount, and the inode numbers of what it contains.

use vfs::Ino;

/// The name of the directory, in the root of a mount. It is never listed. An entry of this name in
/// the root of the pool hides the directory.
///
/// Only the server of a mount shows it. A process that uses the pool directly leaves the name to
/// the kernel, unless the pool has such an entry.
pub const SNAPSHOTS_NAME: &str = ".snapshots";

/// The number of the directory.
pub const SNAPSHOTS_DIR: Ino = Ino(SNAPSHOT_INODES | 1);

/// A bit of the numbers of all inodes below the directory, and of the directory itself. Pools have
/// no such numbers.
const SNAPSHOT_INODES: u64 = 1 << 52;

/// Bits of the number of an inode in its snapshot.
const INO_BITS: u32 = 32;

/// The largest number by which [`snapshot_inode`] identifies a snapshot. The least is 1.
pub const SNAPSHOT_NUMBER_MAX: u32 = (1 << (52 - INO_BITS)) - 1;

/// Returns whether an inode of a mount is the directory of snapshots, or lies below it.
pub const fn is_in_snapshots(ino: Ino) -> bool {
    ino.0 & SNAPSHOT_INODES != 0 && ino.0 < 2 * SNAPSHOT_INODES
}

/// Returns the number that an inode of a snapshot has in the mount. `None` if the engine's number
/// is too large.
pub fn snapshot_inode(snapshot: u32, ino: Ino) -> Option<Ino> {
    debug_assert!((1..=SNAPSHOT_NUMBER_MAX).contains(&snapshot));
    let fits = ino.0 < 1 << INO_BITS;
    fits.then_some(Ino(SNAPSHOT_INODES | u64::from(snapshot) << INO_BITS | ino.0))
}

/// Returns the snapshot and the inode in it to which a number of the mount belongs. `None` for
/// other inodes, [`SNAPSHOTS_DIR`] included.
pub fn split_snapshot_inode(ino: Ino) -> Option<(u32, Ino)> {
    let number = (ino.0 & (SNAPSHOT_INODES - 1)) >> INO_BITS;
    let snapshot = u32::try_from(number).ok().filter(|number| *number != 0)?;
    is_in_snapshots(ino).then_some((snapshot, Ino(ino.0 & ((1 << INO_BITS) - 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_split_again() {
        for snapshot in [1, 7, SNAPSHOT_NUMBER_MAX] {
            for ino in [1, 2, u64::from(u32::MAX)] {
                let shown = snapshot_inode(snapshot, Ino(ino)).unwrap();
                assert!(is_in_snapshots(shown) && shown != SNAPSHOTS_DIR);
                assert_eq!(split_snapshot_inode(shown), Some((snapshot, Ino(ino))));
            }
        }
        assert_eq!(snapshot_inode(1, Ino(1 << 32)), None);
        assert!(is_in_snapshots(SNAPSHOTS_DIR));
        assert_eq!(split_snapshot_inode(SNAPSHOTS_DIR), None);
        for ino in [0, 1, u64::from(u32::MAX), 1 << 63, 1 << 63 | 1 << 52] {
            assert!(!is_in_snapshots(Ino(ino)), "{ino}");
            assert_eq!(split_snapshot_inode(Ino(ino)), None);
        }
    }
}
