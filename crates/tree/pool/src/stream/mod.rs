//! Streams of snapshots, which `keepstone send` writes and `keepstone receive` reads:
//! `docs/format/stream.md` in Rust. This module knows the bytes and no pool.
//!
//! - stream-S1: a [`StreamReader`] returns a record only after its checksum and all that the format
//!   requires of it were checked: lengths, names, the order of inodes and of offsets. It reads one
//!   record at a time, and allocates no more than a record may have.
//! - stream-S2: a record is applied any number of times with the same effect. So a stream may begin
//!   at any earlier position than the one that the receiver has reached.

mod layout;
mod read;
mod token;
mod write;

pub use layout::{DATA_MAX, INODE_NEW, PAYLOAD_MAX, StreamInode, VERSION};
pub use read::{StreamError, StreamReader};
pub use token::StreamToken;
pub use write::StreamWriter;

use crate::Error;
use crc::{CRC_64_NVME, Crc, Digest, Table};
use std::{fmt, io};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// A place in a stream: all before it has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamPosition {
    /// The first inode that is not complete.
    pub ino: u64,
    /// The first byte of its names or content that is missing. If 0, the whole inode is.
    pub offset: u64,
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of inode {}", self.offset, self.ino)
    }
}

/// A snapshot, as a stream names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamSnapshot {
    /// Its name in the sending pool.
    pub name: String,
    /// Time of creation, in nanoseconds since 1970.
    pub created_ns: u64,
}

/// The first record of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// The UUID of the sending pool.
    pub pool: uuid::Uuid,
    /// The snapshot.
    pub snapshot: StreamSnapshot,
    /// The snapshot that the receiver has; `None`: the stream is full.
    pub base: Option<StreamSnapshot>,
    /// All inode numbers are lower.
    pub inodes: u64,
    /// Where the stream begins.
    pub start: StreamPosition,
    /// Bytes that the content may have; 0: not known.
    pub bytes: u64,
}

impl StreamHead {
    /// Returns the token for a position in a stream of the same snapshot and base.
    pub fn token(&self, position: StreamPosition) -> StreamToken {
        let base = self.base.as_ref().map_or(0, |base| base.created_ns);
        StreamToken { created_ns: self.snapshot.created_ns, base_created_ns: base, position }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// The inode.
    pub ino: u32,
    /// Its generation.
    pub generation: u32,
    /// `S_IFMT >> 12` of the inode.
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRecord {
    /// Begins a stream.
    Head(StreamHead),
    /// Begins an inode.
    Inode(StreamInode),
    /// Replaces the attributes of an inode: names and values.
    Attributes(u64, Vec<(Vec<u8>, Vec<u8>)>),
    /// Replaces the names of a block of a directory, at this offset.
    Names(u64, u64, Vec<StreamEntry>),
    /// Bytes of a file or a symbolic link, from this offset on.
    Data(u64, u64, Vec<u8>),
    /// A range of a file without blocks: offset and length.
    Hole(u64, u64, u64),
    /// Inodes that the snapshot does not have: the first number, and their count.
    Gone(u64, u64),
    /// Ends a stream.
    End {
        /// The number of inodes of the snapshot.
        inodes: u64,
        /// Their digest ([`InodeDigest`]).
        digest: u64,
    },
}

impl StreamRecord {
    /// Returns the number of bytes that the record takes in memory, about.
    pub fn weight(&self) -> usize {
        let content = match self {
            Self::Attributes(_, list) => list.iter().map(|(n, v)| n.len() + v.len() + 64).sum(),
            Self::Names(_, _, entries) => entries.iter().map(|e| e.name.len() + 64).sum(),
            Self::Data(_, _, bytes) => bytes.len(),
            _ => 0,
        };
        size_of::<Self>() + content
    }

    /// Returns the position behind the record; `None` of a record that does not move it.
    pub fn position(&self) -> Option<StreamPosition> {
        let at = |ino, offset| Some(StreamPosition { ino, offset });
        match self {
            Self::Inode(inode) => at(inode.number.get(), 0),
            Self::Names(ino, offset, _) => at(*ino, offset + BLOCK),
            Self::Data(ino, offset, bytes) => {
                at(*ino, (offset + bytes.len() as u64).next_multiple_of(BLOCK))
            }
            Self::Hole(ino, offset, len) => at(*ino, offset + len),
            Self::Gone(first, count) => at(first + count, 0),
            Self::Head(_) | Self::Attributes(..) | Self::End { .. } => None,
        }
    }
}

/// A step of receiving a snapshot.
#[derive(Debug)]
pub enum ReceiveStep<'a> {
    /// Makes an incomplete snapshot of this name.
    Begin {
        /// The name.
        name: &'a str,
        /// The head of the stream.
        head: &'a StreamHead,
    },
    /// Applies records: all of them, durably, or none.
    Group {
        /// The name of the snapshot.
        name: &'a str,
        /// The records, in their order.
        records: &'a [StreamRecord],
        /// The position that is reached.
        position: StreamPosition,
    },
    /// Makes the snapshot complete.
    End {
        /// The name of the snapshot.
        name: &'a str,
    },
}

/// The request for a stream.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// The name of the snapshot.
    pub snapshot: String,
    /// The name of the base; `None`: a full stream.
    pub base: Option<String>,
    /// The position that a receiver has reached.
    pub resume: Option<StreamToken>,
}

/// The reason why a stream was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The pool cannot give it.
    #[error(transparent)]
    Pool(#[from] Error),
    /// There is no snapshot of this name.
    #[error("has no snapshot {0}, or it is incomplete")]
    NoSnapshot(String),
    /// The token belongs to another stream.
    #[error("the token is not one of this snapshot and base; send without `--resume`")]
    OtherStream,
    /// The sink failed.
    #[error(transparent)]
    Sink(#[from] io::Error),
}

impl From<vfs::Errno> for SendError {
    fn from(errno: vfs::Errno) -> Self {
        Self::Pool(errno.into())
    }
}

/// The reason why a snapshot was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The stream is damaged, or ends early.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The pool cannot take it.
    #[error(transparent)]
    Pool(#[from] Error),
    /// There is a snapshot of this name.
    #[error("has a snapshot {0} already")]
    Exists(String),
    /// A snapshot of this name is being received from another stream.
    #[error("a part of another stream is there under the name {0}")]
    Other(String),
    /// The stream is incremental, and its base is missing.
    #[error("has no snapshot that is the base {0} of the stream")]
    NoBase(String),
    /// The stream begins behind the position that was reached.
    #[error("the stream begins at {1}, but only what lies before {0} is there")]
    Gap(StreamPosition, StreamPosition),
    /// Records do not fit the snapshot.
    #[error("records before byte {0} of the stream do not fit the inodes that are there")]
    Misfit(u64),
    /// The digest is another one.
    #[error("the received inodes are not those that the sender has")]
    OtherInodes,
    /// The snapshot contradicts itself.
    #[error("the received snapshot is not sound: {0}")]
    Unsound(String),
}

impl From<vfs::Errno> for ReceiveError {
    fn from(errno: vfs::Errno) -> Self {
        Self::Pool(errno.into())
    }
}

/// CRC-64/NVME. (`crc-fast` would be faster, but its C interface would be visible in each program
/// that has the library.)
static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_NVME);

/// Computes the digest of the inodes of a snapshot.
pub struct InodeDigest(Digest<'static, u64, Table<16>>);

impl Default for InodeDigest {
    fn default() -> Self {
        Self(CRC.digest())
    }
}

impl InodeDigest {
    /// Adds an inode: its number, and the first line of its record in a pool, in which the places
    /// of content (bytes 0–7) and attributes (bytes 40–47) do not count.
    pub fn add(&mut self, number: u64, line: &[u8; 64]) {
        self.0.update(&number.to_le_bytes());
        self.0.update(&line[8..40]);
        self.0.update(&line[48..64]);
    }

    /// Returns the digest.
    pub fn finish(&self) -> u64 {
        self.0.clone().finalize()
    }
}

/// Computes the checksum of a record.
fn checksum(before: u64, header: &[u8], payload: &[u8]) -> u64 {
    let mut digest = CRC.digest();
    digest.update(&before.to_le_bytes());
    digest.update(header);
    digest.update(payload);
    digest.finalize()
}

#[cfg(test)]
mod tests;
