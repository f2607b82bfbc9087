//! Attributes of files, and the space of a pool.

use std::time::{Duration, SystemTime};

use vfs::{Attr, FileKind, StatFs, Timestamp};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileType(pub(crate) FileKind);

impl FileType {
    /// Returns whether it is a regular file.
    pub fn is_file(self) -> bool {
        self.0 == FileKind::File
    }

    /// Returns whether it is a directory.
    pub fn is_dir(self) -> bool {
        self.0 == FileKind::Dir
    }

    /// Returns whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self.0 == FileKind::Symlink
    }

    /// Returns the bits of this kind in [`Metadata::mode`] (`S_IFMT`).
    pub fn mode_bits(self) -> u32 {
        self.0.mode_bits()
    }
}

/// The attributes of a file, as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// Returns the kind of file.
    pub fn file_type(&self) -> FileType {
        FileType(self.0.kind)
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Returns whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Returns the size of a file in bytes, or the length of the target of a symbolic link.
    #[allow(clippy::len_without_is_empty)] // as in std
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Returns the inode number.
    pub fn ino(&self) -> u64 {
        self.0.ino.0
    }

    /// Returns the kind and the permission bits (`st_mode`).
    pub fn mode(&self) -> u32 {
        self.0.kind.mode_bits() | self.0.perm
    }

    /// Returns the number of names.
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Returns the owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Returns the group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Returns the number of a device file.
    pub fn rdev(&self) -> u32 {
        self.0.rdev
    }

    /// Returns the allocated space in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Returns the time of the last access.
    pub fn accessed(&self) -> SystemTime {
        to_system_time(self.0.atime)
    }

    /// Returns the time of the last change of content.
    pub fn modified(&self) -> SystemTime {
        to_system_time(self.0.mtime)
    }

    /// Returns the time of the last change of the inode.
    pub fn changed(&self) -> SystemTime {
        to_system_time(self.0.ctime)
    }

    /// Returns the times of access, of modification and of change, each as seconds since 1970 and
    /// nanoseconds.
    #[doc(hidden)]
    pub fn times(&self) -> [(i64, u32); 3] {
        [self.0.atime, self.0.mtime, self.0.ctime].map(Timestamp::parts)
    }
}

/// Returns a time that a pool holds as one of the program.
pub(crate) fn to_system_time(time: Timestamp) -> SystemTime {
    let (seconds, nanos) = time.parts();
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = match seconds {
        0.. => SystemTime::UNIX_EPOCH + whole,
        _ => SystemTime::UNIX_EPOCH - whole,
    };
    whole + Duration::from_nanos(nanos.into())
}

/// Returns the time nearest to `time` that a pool can hold.
pub(crate) fn from_system_time(time: SystemTime) -> Timestamp {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => nanos(after),
        Err(before) => -nanos(before.duration()),
    })
}

/// The space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpace(pub(crate) StatFs);

impl PoolSpace {
    /// Returns the bytes of all blocks.
    pub fn total(&self) -> u64 {
        self.0.blocks * u64::from(self.0.block_size)
    }

    /// Returns the bytes of free blocks.
    pub fn free(&self) -> u64 {
        self.0.blocks_free * u64::from(self.0.block_size)
    }

    /// Returns the bytes that the content of one file can still get.
    pub fn available(&self) -> u64 {
        self.0.blocks_available * u64::from(self.0.block_size)
    }

    /// Returns the bytes of a block.
    pub fn block_size(&self) -> u32 {
        self.0.block_size
    }

    /// Returns the number of inodes: those that exist, and those that can be created.
    pub fn inodes(&self) -> u64 {
        self.0.inodes
    }

    /// Returns the number of inodes that can still be created.
    pub fn inodes_free(&self) -> u64 {
        self.0.inodes_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_the_nanosecond() {
        for nanos in [0, 1, -1, 1_500_000_000, -1_500_000_000, i64::MAX, -i64::MAX] {
            let time = Timestamp(nanos);
            assert_eq!(from_system_time(to_system_time(time)), time);
        }
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(from_system_time(far), Timestamp(i64::MAX));
    }
}
