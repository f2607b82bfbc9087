//! What lies in the store: `docs/format/objects.md` in Rust.
//!
//! - **format-F1** What was read is checked before anything follows it: kind, version, length and checksum of an object, then each
//!   number in it. No memory is taken for what it only says it has.

use crate::Error;
use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use vfs::{Caller, FileKind, Ino, NewKind, NewNode, SetAttr, SetTime, Timestamp};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of every object but those of contents.
pub const MAGIC: [u8; 8] = *b"KSTNOBJS";
/// Version of this format.
pub const VERSION: u32 = 1;
/// Smallest and largest number of bytes in a chunk.
pub const CHUNK: std::ops::RangeInclusive<u32> = 4096..=64 << 20;
/// Unit of what is kept of a chunk, in bytes.
pub const BLOCK: u64 = 4096;
/// A manifest or a lease has no more bytes.
pub const SMALL_MAX: u64 = 1 << 20;
/// A snapshot or a log has no more bytes.
pub const LARGE_MAX: u64 = 1 << 36;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The root of a tree: its change is the commit.
    Manifest = 1,
    /// Who may write.
    Lease = 2,
    /// Changes.
    Log = 3,
    /// A whole tree.
    Snapshot = 4,
}

/// What stands before the payload of an object.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    kind: U32,
    version: U32,
    /// Bytes of the payload.
    len: U64,
    /// Of the payload.
    crc: U64,
}

/// Bytes of the header.
pub const HEADER: usize = size_of::<Header>();

const _: () = assert!(HEADER == 32);

/// The checksum of payloads and chunks: CRC-64/NVME.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// An object with this payload.
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

/// The payload of an object (format-F1), which is called `name` in messages.
///
/// # Errors
/// [`Error::Damaged`], or [`Error::Version`] where another program has written it.
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

/// A value as a sealed object.
pub fn encode(kind: Kind, value: &impl Serialize) -> Vec<u8> {
    seal(kind, &postcard::to_allocvec(value).expect("it is plain data"))
}

/// The value of a sealed object.
///
/// # Errors
/// As [`open`].
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8], name: &str) -> Result<T, Error> {
    let payload = open(kind, bytes, name)?;
    let damaged = |what: String| Error::Damaged { object: name.to_owned(), what };
    let (value, rest) = postcard::take_from_bytes(payload).map_err(|e| damaged(e.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(damaged("something follows its end".to_owned())) }
}

/// What makes the name of an object its own: which holder of the lease has written it, and as its how manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id {
    /// The manifest's epoch, another one for each holder.
    pub epoch: u64,
    /// Counted up by the holder.
    pub number: u64,
}

/// Where objects are that a manifest leads to.
pub const FOLDERS: [&str; 3] = ["data", "log", "snapshot"];

impl Id {
    /// The object's name in one of [`FOLDERS`], relative to the prefix.
    pub fn name(&self, folder: &str) -> String {
        format!("{folder}/{:016x}-{:016x}", self.epoch, self.number)
    }

    /// The number in a name without its folder, if we could have given it.
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
    /// Of an object of these bytes.
    pub fn of(id: Id, object: &[u8]) -> Self {
        Self { id, len: object.len() as u64, crc: checksum(object) }
    }
}

/// The root of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Which tree it is, for as long as it exists.
    pub tree: [u8; 16],
    /// How many have held the lease.
    pub epoch: u64,
    /// Who does now.
    pub holder: [u8; 16],
    /// Counts commits, so that no two manifests are equal.
    pub sequence: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// The tree as it was once.
    pub snapshot: Part,
    /// Changes since, in order.
    pub logs: Vec<Part>,
}

impl Manifest {
    /// The manifest in an object (format-F1).
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

/// No counter comes so far.
const COUNT_MAX: u64 = 1 << 62;

/// Who may write to a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Drawn anew by each who takes it.
    pub holder: [u8; 16],
    /// The holder's machine, for people.
    pub host: String,
    /// What names the machine's uptime and its processes: whoever is in the same place can tell whether the holder lives.
    pub place: String,
    /// The holder's process, …
    pub pid: u32,
    /// … and when that was started, in ticks since the machine was.
    pub started: u64,
    /// When it was taken, ns since 1970 by the holder's clock: for people.
    pub since: Timestamp,
    /// Counted up by the holder, as long as it lives.
    pub counter: u64,
    /// For so long the counter may stand still, in milliseconds.
    pub duration_ms: u64,
    /// The holder has given it back.
    pub is_released: bool,
}

/// A lease lasts no longer, in milliseconds.
pub const LEASE_MS_MAX: u64 = 3_600_000;

impl Lease {
    /// The lease in an object (format-F1).
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

/// The object that has what a chunk of a file has. What of the chunk it does not have is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRef {
    /// Its number.
    pub id: Id,
    /// Where in the chunk its first byte belongs: a multiple of [`BLOCK`].
    pub start: u32,
    /// Bytes of the object.
    pub len: u32,
    /// Checksum of the object.
    pub crc: u64,
}

impl ChunkRef {
    /// Where it ends in its chunk.
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }

    /// Whether it can be in a chunk of so many bytes.
    pub fn fits(&self, chunk_bytes: u32) -> bool {
        self.len > 0
            && u64::from(self.start).is_multiple_of(BLOCK)
            && self.end() <= chunk_bytes.into()
    }
}

/// The chunks of a file that are no holes, by their index.
pub type Chunks = BTreeMap<u64, ChunkRef>;

/// A change, with the time of the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What the clock said.
    pub time: Timestamp,
    /// What was done.
    pub op: Op,
}

/// What was done to a tree: calls of the contract that succeeded, and contents that are in the store.
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
        node: Node,
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
    /// The chunks that changed, and what the file is like with them.
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
#[allow(missing_docs)] // As there; a time within is `None` for the time of the call.
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

/// [`NewNode`] with what it borrows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    kind: FileKind,
    /// Of a symbolic link.
    target: Vec<u8>,
    /// Of a device.
    rdev: u32,
    mode: u32,
    umask: u32,
}

impl From<&NewNode<'_>> for Node {
    fn from(node: &NewNode<'_>) -> Self {
        let (target, rdev) = match node.kind {
            NewKind::Symlink(target) => (target.to_vec(), 0),
            NewKind::Char(rdev) | NewKind::Block(rdev) => (Vec::new(), rdev),
            _ => (Vec::new(), 0),
        };
        Self { kind: node.kind.file_kind(), target, rdev, mode: node.mode, umask: node.umask }
    }
}

impl<'n> From<&'n Node> for NewNode<'n> {
    fn from(node: &'n Node) -> Self {
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

/// Who creates what an [`Op`] says.
pub fn caller((uid, gid): (u32, u32)) -> Caller {
    Caller { uid, gid }
}

/// A snapshot's payload begins with this; the saved names and attributes follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// Of each file that is not all holes.
    pub files: BTreeMap<Ino, Chunks>,
}
