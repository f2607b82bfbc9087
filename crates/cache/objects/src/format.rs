//! The format in the store: `docs/format/objects.md` in Rust.
//!
//! - **format-F1** An object is checked before it is used: its kind, version, length and checksum,
//!   then each number in it. No memory is allocated for a length that the object only states.

use crate::Error;
use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use vfs::{Caller, FileKind, Ino, NewKind, NewNode, SetAttr, SetTime, Timestamp};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of every object except chunks.
pub const MAGIC: [u8; 8] = *b"KSTNOBJS";
/// Version of this format.
pub const VERSION: u32 = 1;
/// The smallest and the largest size of a chunk, in bytes.
pub const CHUNK: std::ops::RangeInclusive<u32> = 4096..=64 << 20;
/// The unit in which zeros at the ends of a chunk are left out, in bytes.
pub const BLOCK: u64 = 4096;
/// The most bytes of a manifest or a lease.
pub const SMALL_MAX: u64 = 1 << 20;
/// The most bytes of a snapshot or a log.
pub const LARGE_MAX: u64 = 1 << 36;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The root of a tree: its replacement is the commit.
    Manifest = 1,
    /// The process that may write.
    Lease = 2,
    /// Changes.
    Log = 3,
    /// A whole tree.
    Snapshot = 4,
}

/// The header before the payload of an object.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    kind: U32,
    version: U32,
    /// Bytes of the payload.
    len: U64,
    /// Checksum of the payload.
    crc: U64,
}

/// Bytes of the header.
pub const HEADER: usize = size_of::<Header>();

const _: () = assert!(HEADER == 32);

/// Computes the checksum of payloads and chunks: CRC-64/NVME.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Makes an object with this payload.
pub fn seal(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        magic: MAGIC,
        kind: (kind as u32).into(),
        version: VERSION.into(),
        len: (payload.len() as u64).into(),
        crc: checksum(payload).into(),
    };
    [header.as_bytes(), payload].concat()
}

/// Checks an object and returns its payload (format-F1). Messages use `name` for the object.
///
/// # Errors
/// [`Error::Damaged`], or [`Error::Version`] if another version of the program has written it.
pub fn open<'b>(kind: Kind, bytes: &'b [u8], name: &str) -> Result<&'b [u8], Error> {
    let damaged = |what: &str| Error::Damaged { object: name.to_owned(), what: what.to_owned() };
    let (header, payload) =
        Header::ref_from_prefix(bytes).map_err(|_| damaged("it is too short for a header"))?;
    if header.magic != MAGIC {
        return Err(damaged("it does not start with KSTNOBJS"));
    }
    if header.version.get() != VERSION {
        return Err(Error::Version { object: name.to_owned(), version: header.version.get() });
    }
    if header.kind.get() != kind as u32 {
        return Err(damaged("it is of another kind than its name says"));
    }
    if header.len.get() != payload.len() as u64 {
        return Err(damaged("its length is not what its header says"));
    }
    if header.crc.get() != checksum(payload) {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(payload)
}

/// Encodes a value as a sealed object.
pub fn encode(kind: Kind, value: &impl Serialize) -> Vec<u8> {
    seal(kind, &postcard::to_allocvec(value).expect("it is plain data"))
}

/// Decodes the value of a sealed object.
///
/// # Errors
/// As [`open`].
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8], name: &str) -> Result<T, Error> {
    let payload = open(kind, bytes, name)?;
    let damaged = |what: String| Error::Damaged { object: name.to_owned(), what };
    let (value, rest) = postcard::take_from_bytes(payload).map_err(|e| damaged(e.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(damaged("something follows its end".to_owned())) }
}

/// The unique part of an object's name: the holder of the lease that has written it, and a number
/// that this holder counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id {
    /// The manifest's epoch, which differs for each holder.
    pub epoch: u64,
    /// A number that the holder increments for each object.
    pub number: u64,
}

/// The folders of the objects that belong to a manifest.
pub const FOLDERS: [&str; 3] = ["data", "log", "snapshot"];

impl Id {
    /// Returns the object's name in one of [`FOLDERS`], relative to the prefix.
    pub fn name(&self, folder: &str) -> String {
        format!("{folder}/{:016x}-{:016x}", self.epoch, self.number)
    }

    /// Parses a name without its folder; `None` if this format has no such name.
    pub fn parse(file: &str) -> Option<Self> {
        let (epoch, number) = file.split_once('-')?;
        let parse = |text: &str| {
            let is_ours =
                text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            is_ours.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        Some(Self { epoch: parse(epoch)?, number: parse(number)? })
    }
}

/// A snapshot or a log that a manifest names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its number.
    pub id: Id,
    /// Bytes of the object.
    pub len: u64,
    /// Checksum of the whole object.
    pub crc: u64,
}

impl Part {
    /// Makes the part for an object with these bytes.
    pub fn of(id: Id, object: &[u8]) -> Self {
        Self { id, len: object.len() as u64, crc: checksum(object) }
    }
}

/// The root of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The ID of the tree, which never changes.
    pub tree: [u8; 16],
    /// The number of holders of the lease so far.
    pub epoch: u64,
    /// The current holder.
    pub holder: [u8; 16],
    /// Counts commits, so that no two manifests are equal.
    pub sequence: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// The tree at the time of the snapshot.
    pub snapshot: Part,
    /// The changes since, in order.
    pub logs: Vec<Part>,
}

impl Manifest {
    /// Decodes the manifest in an object (format-F1).
    ///
    /// # Errors
    /// As [`open`].
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, Error> {
        let manifest: Self = decode(Kind::Manifest, bytes, name)?;
        let damaged = |what: &str| Err(Error::Damaged { object: name.into(), what: what.into() });
        if !CHUNK.contains(&manifest.chunk_bytes) || !manifest.chunk_bytes.is_power_of_two() {
            return damaged("its size of chunks cannot be");
        }
        let parts = || manifest.logs.iter().chain([&manifest.snapshot]);
        if parts().any(|part| part.len > LARGE_MAX || part.id.epoch > manifest.epoch) {
            return damaged("it names an object that cannot be");
        }
        if manifest.epoch > COUNT_MAX || manifest.sequence > COUNT_MAX {
            return damaged("its counters cannot have come so far");
        }
        Ok(manifest)
    }
}

/// The largest plausible value of a counter.
const COUNT_MAX: u64 = 1 << 62;

/// The process that may write to a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// A random ID that each holder makes when it takes the lease.
    pub holder: [u8; 16],
    /// The holder's machine, for users.
    pub host: String,
    /// The boot ID and PID namespace of the holder: a process with the same ones can check whether
    /// the holder lives.
    pub place: String,
    /// The PID of the holder.
    pub pid: u32,
    /// The start time of the holder's process, in ticks since the boot of the machine.
    pub started: u64,
    /// The time when the lease was taken, in ns since 1970 by the holder's clock; for users.
    pub since: Timestamp,
    /// A counter that the holder increments as long as it lives.
    pub counter: u64,
    /// The milliseconds for which the counter may stay the same before the lease ends.
    pub duration_ms: u64,
    /// Whether the holder has given the lease back.
    pub is_released: bool,
}

/// The longest duration of a lease, in milliseconds.
pub const LEASE_MS_MAX: u64 = 3_600_000;

impl Lease {
    /// Decodes the lease in an object (format-F1).
    ///
    /// # Errors
    /// As [`open`].
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, Error> {
        let lease: Self = decode(Kind::Lease, bytes, name)?;
        if lease.duration_ms > LEASE_MS_MAX || lease.counter > COUNT_MAX {
            let what = "its numbers cannot be".to_owned();
            return Err(Error::Damaged { object: name.to_owned(), what });
        }
        Ok(lease)
    }
}

/// The object with the content of a chunk of a file. Bytes of the chunk that the object lacks are
/// zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRef {
    /// Its number.
    pub id: Id,
    /// The offset of its first byte in the chunk: a multiple of [`BLOCK`].
    pub start: u32,
    /// Bytes of the object.
    pub len: u32,
    /// Checksum of the object.
    pub crc: u64,
}

impl ChunkRef {
    /// Returns the offset of its end in the chunk.
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }

    /// Whether it fits into a chunk of `chunk_bytes`.
    pub fn fits(&self, chunk_bytes: u32) -> bool {
        self.len > 0
            && u64::from(self.start).is_multiple_of(BLOCK)
            && self.end() <= chunk_bytes.into()
    }
}

/// The chunks of a file that are not holes, by their index.
pub type Chunks = BTreeMap<u64, ChunkRef>;

/// A change, with the time of the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The time of the call.
    pub time: Timestamp,
    /// The change.
    pub op: Op,
}

/// A change of a tree: a successful call of the contract, or content that was uploaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields are named as the arguments of the calls.
pub enum Op {
    Setattr {
        ino: Ino,
        set: Set,
    },
    Create {
        ino: Ino,
        owner: (u32, u32),
        dir: Ino,
        name: Vec<u8>,
        node: TreeNode,
    },
    Tmpfile {
        ino: Ino,
        owner: (u32, u32),
        dir: Ino,
        mode: u32,
        umask: u32,
    },
    Unlink {
        dir: Ino,
        name: Vec<u8>,
    },
    Rmdir {
        dir: Ino,
        name: Vec<u8>,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Vec<u8>,
    },
    Rename {
        from: (Ino, Vec<u8>),
        to: (Ino, Vec<u8>),
        flags: u32,
    },
    DropPrivileges {
        ino: Ino,
    },
    Setxattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    Removexattr {
        ino: Ino,
        name: Vec<u8>,
    },
    /// The changed chunks of a file, and its size and times with them.
    Content {
        ino: Ino,
        size: u64,
        mtime: Timestamp,
        ctime: Timestamp,
        chunks: Vec<(u64, Option<ChunkRef>)>,
    },
}

/// [`SetAttr`] without a size, which belongs to contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields as in `SetAttr`; an inner `None` is the time of the call.
pub struct Set {
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Option<Timestamp>>,
    pub mtime: Option<Option<Timestamp>>,
    pub ctime: Option<Timestamp>,
}

impl From<&SetAttr> for Set {
    fn from(set: &SetAttr) -> Self {
        let time = |time: SetTime| match time {
            SetTime::Now => None,
            SetTime::At(time) => Some(time),
        };
        let (atime, mtime) = (set.atime.map(time), set.mtime.map(time));
        Self { perm: set.perm, uid: set.uid, gid: set.gid, atime, mtime, ctime: set.ctime }
    }
}

impl From<&Set> for SetAttr {
    fn from(set: &Set) -> Self {
        let time = |time: Option<Timestamp>| time.map_or(SetTime::Now, SetTime::At);
        Self {
            perm: set.perm,
            uid: set.uid,
            gid: set.gid,
            size: None,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
            ctime: set.ctime,
        }
    }
}

/// [`NewNode`] with owned data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeNode {
    kind: FileKind,
    /// The target of a symbolic link.
    target: Vec<u8>,
    /// The number of a device.
    rdev: u32,
    mode: u32,
    umask: u32,
}

impl From<&NewNode<'_>> for TreeNode {
    fn from(node: &NewNode<'_>) -> Self {
        let (target, rdev) = match node.kind {
            NewKind::Symlink(target) => (target.to_vec(), 0),
            NewKind::Char(rdev) | NewKind::Block(rdev) => (Vec::new(), rdev),
            _ => (Vec::new(), 0),
        };
        Self { kind: node.kind.file_kind(), target, rdev, mode: node.mode, umask: node.umask }
    }
}

impl<'n> From<&'n TreeNode> for NewNode<'n> {
    fn from(node: &'n TreeNode) -> Self {
        let kind = match node.kind {
            FileKind::File => NewKind::File,
            FileKind::Dir => NewKind::Dir,
            FileKind::Symlink => NewKind::Symlink(&node.target),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::Char => NewKind::Char(node.rdev),
            FileKind::Block => NewKind::Block(node.rdev),
        };
        Self { kind, mode: node.mode, umask: node.umask }
    }
}

/// Returns the caller with the owner in an [`Op`].
pub fn caller((uid, gid): (u32, u32)) -> Caller {
    Caller { uid, gid }
}

/// The first part of a snapshot's payload; the saved names and attributes follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// The chunks of each file that is not all holes.
    pub files: BTreeMap<Ino, Chunks>,
}
