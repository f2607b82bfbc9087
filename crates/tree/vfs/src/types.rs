//! The nouns of the contract.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// An inode number. 1 is the root; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ino(pub u64);

/// The root directory.
pub const ROOT: Ino = Ino(1);

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// Nanoseconds since 1970-01-01 UTC; the range covers the years 1677 to 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the time of day at the resolution that the kernel's own file systems use (one tick).
    pub fn now() -> Self {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self::from_parts(t.tv_sec, t.tv_nsec as u32)
    }

    /// Makes a time from seconds and nanoseconds, clamped to the range.
    pub fn from_parts(secs: i64, nanos: u32) -> Self {
        Self(secs.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos)))
    }

    /// Splits it into seconds (rounded down) and nanoseconds (0..10^9).
    #[inline]
    pub fn parts(self) -> (i64, u32) {
        const SECOND: u64 = 1_000_000_000;
        match u64::try_from(self.0) {
            Ok(nanos) => ((nanos / SECOND) as i64, (nanos % SECOND) as u32),
            Err(_) => {
                let before = SECOND as i64;
                (self.0.div_euclid(before), self.0.rem_euclid(before) as u32)
            }
        }
    }
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device.
    Char,
    /// Block device.
    Block,
}

impl FileKind {
    /// Returns the `S_IFMT` bits of a mode.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010000,
            Self::Char => 0o020000,
            Self::Dir => 0o040000,
            Self::Block => 0o060000,
            Self::File => 0o100000,
            Self::Symlink => 0o120000,
            Self::Socket => 0o140000,
        }
    }

    /// Returns the kind that `mode`'s `S_IFMT` bits name, if they name one.
    #[inline]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        const BY_BITS: [Option<FileKind>; 16] = {
            use FileKind::*;
            let all = [File, Dir, Symlink, Fifo, Socket, Char, Block];
            let mut table = [None; 16];
            let mut i = 0;
            while i < all.len() {
                table[(all[i].mode_bits() >> 12) as usize] = Some(all[i]);
                i += 1;
            }
            table
        };
        BY_BITS[(mode >> 12 & 15) as usize]
    }
}

/// The user on whose behalf a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Effective user ID; 0 is privileged.
    pub uid: u32,
    /// Effective group ID.
    pub gid: u32,
}

impl Caller {
    /// The superuser.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };
}

/// The attributes of an inode (`stat(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Differs between two lives of one inode number.
    pub generation: u32,
    /// Kind of object.
    pub kind: FileKind,
    /// Permission bits, `0o7777`.
    pub perm: u32,
    /// Number of names (2 plus the number of subdirectories for a directory).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number (`makedev` encoding of Linux) of a device file.
    pub rdev: u32,
    /// Bytes: file size, symlink target length; for a directory, the engine's choice.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Attr {
    /// A placeholder for attributes that a call will store.
    pub const NONE: Self = Self {
        ino: Ino(0),
        generation: 0,
        kind: FileKind::File,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        btime: Timestamp(0),
    };
}

/// The inode attributes of a resolved name. Carries one reference (contract vfs-C4).
pub type Entry = Attr;

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, `0o7777`.
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// File size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; if absent, the time of the call.
    pub ctime: Option<Timestamp>,
}

/// A node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode<'a> {
    /// Kind, with its data.
    pub kind: NewKind<'a>,
    /// Permission bits, `0o7777`, before the umask.
    pub mode: u32,
    /// Bits to take away unless a default ACL decides.
    pub umask: u32,
}

/// Kind of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link with its target.
    Symlink(&'a [u8]),
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device with its number.
    Char(u32),
    /// Block device with its number.
    Block(u32),
}

impl NewKind<'_> {
    /// Returns the kind without its data.
    pub const fn file_kind(&self) -> FileKind {
        match self {
            Self::File => FileKind::File,
            Self::Dir => FileKind::Dir,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::Char(_) => FileKind::Char,
            Self::Block(_) => FileKind::Block,
        }
    }
}

/// One entry of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Kind of object.
    pub kind: FileKind,
    /// Name, without `/`.
    pub name: &'a [u8],
    /// Where a later listing continues after this entry.
    pub cookie: u64,
}

impl NewNode<'static> {
    /// The node that a rename leaves with `RENAME_WHITEOUT`: a character device 0:0.
    pub const WHITEOUT: Self = Self { kind: NewKind::Char(0), mode: 0, umask: 0 };
}

bitflags! {
    /// Flags of a rename (`renameat2(2)`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// `EEXIST` if the target exists.
        const NOREPLACE = 1;
        /// Swap the two names; both must exist.
        const EXCHANGE = 2;
    }
}

/// The operation of `fallocate` (`fallocate(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocate the range (holes become zeros); grow the file unless `keep_size`.
    Allocate {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Free the range; it reads as zeros. The size stays.
    PunchHole,
    /// Make the range read as zeros; grow the file unless `keep_size`.
    ZeroRange {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Remove the range and close the gap.
    Collapse,
    /// Insert a hole; the content behind it moves up.
    Insert,
}

/// The kind of place that `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// The condition for setting an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Create or replace.
    Any,
    /// `EEXIST` if it exists.
    Create,
    /// `ENODATA` if it does not exist.
    Replace,
}

/// Space of a file system (`statvfs(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StatFs {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that the content of one file can get by allocation: those left after the blocks
    /// that lead to them.
    pub blocks_available: u64,
    /// Inodes in all: those that exist, and those that can be created.
    pub inodes: u64,
    /// Inodes that can still be created.
    pub inodes_free: u64,
}

/// The parts of a mounted file system that the kernel may cache: names, attributes, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelCache {
    /// Everything, for as long as no process changes the pool by direct access.
    #[default]
    WhileAlone,
    /// Names and attributes for this duration, and no pages: the backing store may change on its
    /// own.
    UpTo(std::time::Duration),
}

/// The point from which a change survives a crash. Before it, a crash may undo the change, whole or
/// in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the call has returned: there is nothing to sync.
    OnReturn,
    /// Names and attributes when the call has returned, the content of files when
    /// [`FileSystem::fsync`](crate::FileSystem::fsync) has returned.
    MetadataOnReturn,
    /// When [`FileSystem::fsync`](crate::FileSystem::fsync) has returned.
    OnSync,
}

/// The users besides root who may use an attribute. The kernel has checked that the caller may read
/// the file, or write to it in order to change the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Every user.
    Anyone,
    /// The owner of the file.
    Owner,
    /// The user of the server, besides root.
    Server,
}

/// Contiguous bytes of a file in the pool's memory: whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the pool, in bytes.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}
