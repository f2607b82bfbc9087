//! The records as they lie in a stream.

use crate::SNAPSHOT_NAME_MAX;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a stream.
pub const MAGIC: [u8; 8] = *b"KSTNSEND";
/// Version of this format.
pub const VERSION: u32 = 1;
/// Most bytes of a payload.
pub const PAYLOAD_MAX: usize = 4 << 20;
/// Most bytes of a record of data.
pub const DATA_MAX: usize = 1 << 20;
/// The flag of an inode that keeps nothing of the base.
pub const INODE_NEW: u32 = 1;
/// Most inodes of a snapshot.
pub const INODES_MAX: u64 = 1 << 31;

/// The kinds of records.
pub mod kind {
    /// The kind of the first record.
    pub const HEAD: u32 = 1;
    /// The kind of a record that begins an inode.
    pub const INODE: u32 = 2;
    /// The kind of a record with attributes.
    pub const ATTRIBUTES: u32 = 3;
    /// The kind of a record with names.
    pub const NAMES: u32 = 4;
    /// The kind of a record with data.
    pub const DATA: u32 = 5;
    /// The kind of a record of a hole.
    pub const HOLE: u32 = 6;
    /// The kind of a record of inodes that are gone.
    pub const GONE: u32 = 7;
    /// The kind of the last record.
    pub const END: u32 = 8;
}

/// The bytes before the first record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Prefix {
    pub magic: [u8; 8],
    pub version: U32,
    pub zero: U32,
}

/// The bytes before a payload.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    pub kind: U32,
    pub len: U32,
    pub crc: U64,
}

/// Bytes of a header that its checksum covers.
pub const CHECKED: usize = 8;

/// The payload of the first record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Head {
    pub pool: [u8; 16],
    pub created: U64,
    pub base_created: U64,
    pub inodes: U64,
    pub start_ino: U64,
    pub start_offset: U64,
    pub bytes: U64,
    pub name: [u8; SNAPSHOT_NAME_MAX],
    pub base_name: [u8; SNAPSHOT_NAME_MAX],
    pub zero: [u8; 16],
}

/// The payload of a record that begins an inode.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct StreamInode {
    /// Its number.
    pub number: U64,
    /// Size in bytes.
    pub size: U64,
    /// Last change of content, ns since 1970.
    pub mtime: U64,
    /// Last change of the inode.
    pub ctime: U64,
    /// Last access.
    pub atime: U64,
    /// Creation.
    pub btime: U64,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// `S_IFMT` and permission bits.
    pub mode: U32,
    /// Differs between lives of this number.
    pub generation: U32,
    /// Device number of a device file.
    pub rdev: U32,
    /// [`INODE_NEW`], or zero.
    pub flags: U32,
}

impl StreamInode {
    /// Returns whether it keeps nothing of the base.
    pub fn is_new(&self) -> bool {
        self.flags.get() & INODE_NEW != 0
    }
}

/// The start of the payloads with names and data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PartHeader {
    pub ino: U64,
    pub offset: U64,
}

/// The bytes of an entry before its name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EntryHeader {
    pub ino: U32,
    pub generation: U32,
    pub kind: u8,
    pub name_len: u8,
}

/// The bytes of an attribute before its name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub struct Attribute {
    pub name_len: [u8; 2],
    pub value_len: U32,
}

/// The payload of a hole.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hole {
    pub ino: U64,
    pub offset: U64,
    pub len: U64,
}

/// The payload of inodes that are gone.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Gone {
    pub first: U64,
    pub count: U64,
}

/// The payload of the last record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EndPayload {
    pub inodes: U64,
    pub digest: U64,
    pub records: U64,
}

const _: () = {
    assert!(size_of::<Prefix>() == 16 && size_of::<RecordHeader>() == 16);
    assert!(size_of::<Head>() == 208 && size_of::<StreamInode>() == 72);
    assert!(
        size_of::<PartHeader>() == 16
            && size_of::<EntryHeader>() == 10
            && size_of::<Attribute>() == 6
    );
    assert!(size_of::<Hole>() == 24 && size_of::<Gone>() == 16 && size_of::<EndPayload>() == 24);
};
