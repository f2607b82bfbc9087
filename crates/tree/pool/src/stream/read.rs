//! Reads a stream, and checks it (stream-S1).

use super::layout::{CHECKED, RecordHeader, *};
use super::{
    BLOCK, StreamEntry, StreamHead, StreamPosition, StreamRecord, StreamSnapshot, checksum,
};
use crate::check_snapshot_name;
use std::collections::HashSet;
use std::io::{self, Read};
use vfs::{FileKind, Limits};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// Names of one block, as entries of a directory: their bytes are multiples of this.
const ENTRY_UNIT: usize = 16;
/// Bytes of an entry before its name, and the fewest of one.
const ENTRY_HEADER: usize = 16;
const ENTRY_MIN: usize = 32;

/// The reason why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It does not follow the format.
    #[error("byte {offset} of the stream: {what}")]
    Wrong {
        /// Where the record begins.
        offset: u64,
        /// The fault.
        what: String,
    },
    /// It ends before its last record.
    #[error("the stream ends at byte {0}, before its last record")]
    Ended(u64),
    /// The source fails.
    #[error("byte {0} of the stream: {1}")]
    Io(u64, #[source] io::Error),
}

/// Reads records.
pub struct StreamReader<R> {
    source: R,
    /// The number of bytes that were read.
    offset: u64,
    /// The checksum of the record before.
    crc: u64,
    records: u64,
    head: Option<StreamHead>,
    order: StreamOrder,
    has_ended: bool,
}

/// The records that may come next.
#[derive(Default)]
struct StreamOrder {
    /// The first inode that may begin.
    next_ino: u64,
    /// The inode that has begun.
    current: Option<u64>,
    /// The first byte of its content that may follow.
    next_offset: u64,
    /// Whether its attributes may follow.
    attributes: bool,
}

impl StreamOrder {
    /// Begins an inode.
    fn begin(&mut self, ino: u64, head: &StreamHead) -> Result<(), String> {
        if ino == 0 || ino >= head.inodes {
            return Err(format!("inode {ino} is not below {}", head.inodes));
        }
        if ino < self.next_ino {
            return Err(format!("inode {ino} comes after inode {}", self.next_ino - 1));
        }
        *self = Self { next_ino: ino + 1, current: Some(ino), next_offset: 0, attributes: true };
        Ok(())
    }

    /// Continues the inode that has begun, by its content at this offset, up to `end`.
    fn go_on(&mut self, ino: u64, offset: u64, end: Option<u64>) -> Result<(), String> {
        if self.current != Some(ino) {
            return Err(format!("it belongs to inode {ino}, which has not begun"));
        }
        if !offset.is_multiple_of(BLOCK) || offset < self.next_offset {
            return Err(format!("its offset {offset} is not allowed here"));
        }
        let end = end.filter(|end| *end <= Limits::MAX.file_size);
        self.next_offset = end.ok_or("it lies beyond the end of the largest file")?;
        self.attributes = false;
        Ok(())
    }
}

impl<R: Read> StreamReader<R> {
    /// Reads the prefix and the head of a stream.
    ///
    /// # Errors
    /// If it is no stream, or one of another version.
    pub fn new(source: R) -> Result<Self, StreamError> {
        let mut reader = Self {
            source,
            offset: 0,
            crc: 0,
            records: 0,
            head: None,
            order: StreamOrder::default(),
            has_ended: false,
        };
        let mut prefix = Prefix::new_zeroed();
        reader.fill(prefix.as_mut_bytes())?;
        let wrong = |what: String| Err(StreamError::Wrong { offset: 0, what });
        if prefix.magic != MAGIC {
            return wrong("it is no stream of `keepstone send`".to_owned());
        }
        if prefix.version.get() != VERSION || prefix.zero.get() != 0 {
            let version = prefix.version.get();
            return wrong(format!("its version {version} is not {VERSION}, the only known one"));
        }
        match reader.next()? {
            Some(StreamRecord::Head(head)) => {
                let StreamPosition { ino, offset } = head.start;
                reader.order.next_ino = ino;
                if offset > 0 {
                    // The record of the inode is in the stream before.
                    let next_ino = ino + 1;
                    reader.order = StreamOrder {
                        next_ino,
                        current: Some(ino),
                        next_offset: offset,
                        attributes: false,
                    };
                }
                reader.head = Some(head);
                Ok(reader)
            }
            _ => unreachable!("`decode` takes no other record first"),
        }
    }

    /// Returns the head.
    pub fn head(&self) -> &StreamHead {
        self.head.as_ref().expect("`new` has read it")
    }

    /// Returns the number of bytes that were read.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Reads the next record; `None` behind the last one.
    ///
    /// # Errors
    /// The first fault of the stream.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and then there is no next")]
    pub fn next(&mut self) -> Result<Option<StreamRecord>, StreamError> {
        if self.has_ended {
            return Ok(None);
        }
        let offset = self.offset;
        let wrong = |what: String| StreamError::Wrong { offset, what };
        let mut header = RecordHeader::new_zeroed();
        self.fill(header.as_mut_bytes())?;
        let (kind, len) = (header.kind.get(), header.len.get() as usize);
        if len > PAYLOAD_MAX {
            return Err(wrong(format!("the record has {len} bytes, more than {PAYLOAD_MAX}")));
        }
        let mut payload = Vec::new();
        let read = (&mut self.source).take(len as u64).read_to_end(&mut payload);
        self.offset += payload.len() as u64;
        read.map_err(|e| StreamError::Io(self.offset, e))?;
        if payload.len() < len {
            return Err(StreamError::Ended(self.offset));
        }
        self.crc = checksum(self.crc, &header.as_bytes()[..CHECKED], &payload);
        if header.crc.get() != self.crc {
            return Err(wrong("the checksum of the record does not match".to_owned()));
        }
        self.records += 1;
        let record = self.decode(kind, &payload).map_err(wrong)?;
        self.has_ended = matches!(record, StreamRecord::End { .. });
        Ok(Some(record))
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<(), StreamError> {
        let mut done = 0;
        while done < buf.len() {
            match self.source.read(&mut buf[done..]) {
                Ok(0) => return Err(StreamError::Ended(self.offset)),
                Ok(n) => {
                    done += n;
                    self.offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(StreamError::Io(self.offset, e)),
            }
        }
        Ok(())
    }

    /// Decodes and checks a record.
    fn decode(&mut self, kind: u32, payload: &[u8]) -> Result<StreamRecord, String> {
        let Some(head) = &self.head else {
            return match kind {
                kind::HEAD => decode_head(payload).map(StreamRecord::Head),
                _ => Err("the first record is no head".to_owned()),
            };
        };
        let order = &mut self.order;
        Ok(match kind {
            kind::INODE => {
                let inode = exactly::<StreamInode>(payload)?;
                check_inode(&inode, head.base.is_none())?;
                order.begin(inode.number.get(), head)?;
                StreamRecord::Inode(inode)
            }
            kind::ATTRIBUTES => {
                let (ino, rest) = payload.split_first_chunk().ok_or(TOO_SHORT)?;
                let ino = u64::from_le_bytes(*ino);
                if order.current != Some(ino) || !order.attributes {
                    return Err(format!("attributes of inode {ino} are not allowed here"));
                }
                order.attributes = false;
                StreamRecord::Attributes(ino, decode_attributes(rest)?)
            }
            kind::NAMES => {
                let (part, rest) = part(payload)?;
                order.go_on(part.0, part.1, part.1.checked_add(BLOCK))?;
                StreamRecord::Names(part.0, part.1, decode_entries(rest)?)
            }
            kind::DATA => {
                let ((ino, offset), bytes) = part(payload)?;
                if bytes.is_empty() || bytes.len() > DATA_MAX {
                    return Err(format!("it has {} bytes of data", bytes.len()));
                }
                let end = offset.checked_add(bytes.len() as u64);
                // Only at the end of a file there is no whole block; nothing may follow then.
                let end = end.and_then(|end| end.checked_next_multiple_of(BLOCK));
                order.go_on(ino, offset, end)?;
                StreamRecord::Data(ino, offset, bytes.to_vec())
            }
            kind::HOLE => {
                let Hole { ino, offset, len } = exactly(payload)?;
                let (ino, offset, len) = (ino.get(), offset.get(), len.get());
                if len == 0 || !len.is_multiple_of(BLOCK) {
                    return Err(format!("it is a hole of {len} bytes"));
                }
                order.go_on(ino, offset, offset.checked_add(len))?;
                StreamRecord::Hole(ino, offset, len)
            }
            kind::GONE => {
                let Gone { first, count } = exactly(payload)?;
                let (first, count) = (first.get(), count.get());
                if head.base.is_none() || count == 0 || count > head.inodes {
                    return Err(format!("{count} inodes cannot be gone"));
                }
                order.begin(first, head)?;
                if count > 1 {
                    order.begin(first.saturating_add(count - 1), head)?;
                }
                *order = StreamOrder { next_ino: order.next_ino, ..StreamOrder::default() };
                StreamRecord::Gone(first, count)
            }
            kind::END => {
                let EndPayload { inodes, digest, records } = exactly(payload)?;
                if records.get() != self.records {
                    return Err(format!(
                        "the stream has {} records, of which {} were read",
                        records, self.records
                    ));
                }
                StreamRecord::End { inodes: inodes.get(), digest: digest.get() }
            }
            kind::HEAD => return Err("it is another head".to_owned()),
            _ => return Err(format!("{kind} is no kind of record")),
        })
    }
}

const TOO_SHORT: &str = "the record is too short";

/// Decodes a payload that has exactly the bytes of a type.
fn exactly<T: zerocopy::FromBytes>(payload: &[u8]) -> Result<T, String> {
    T::read_from_bytes(payload).map_err(|_| {
        format!("the record has {} bytes instead of {}", payload.len(), size_of::<T>())
    })
}

/// Splits a payload into inode and offset, and what follows.
fn part(payload: &[u8]) -> Result<((u64, u64), &[u8]), String> {
    let (part, rest) = PartHeader::read_from_prefix(payload).map_err(|_| TOO_SHORT)?;
    Ok(((part.ino.get(), part.offset.get()), rest))
}

/// Decodes a name of a snapshot.
fn decode_name(bytes: &[u8], what: &str) -> Result<String, String> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (name, rest) = bytes.split_at(len);
    let name = std::str::from_utf8(name).map_err(|_| format!("{what} is not UTF-8"))?;
    check_snapshot_name(name).map_err(|why| format!("{what}: {why}"))?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(format!("{what} is not padded with zeros"));
    }
    Ok(name.to_owned())
}

fn decode_head(payload: &[u8]) -> Result<StreamHead, String> {
    let head = exactly::<Head>(payload)?;
    let name = decode_name(&head.name, "the name of the snapshot")?;
    let base = match head.base_created.get() {
        0 if head.base_name.iter().all(|byte| *byte == 0) => None,
        created_ns => {
            let name = decode_name(&head.base_name, "the name of the base")?;
            Some(StreamSnapshot { name, created_ns })
        }
    };
    let (created_ns, inodes) = (head.created.get(), head.inodes.get());
    if created_ns == 0 || base.as_ref().is_some_and(|base| base.created_ns == 0) {
        return Err("the snapshot or its base has no time of creation".to_owned());
    }
    if inodes == 0 || !inodes.is_multiple_of(32) || inodes > INODES_MAX {
        return Err(format!("a snapshot cannot have {inodes} inodes"));
    }
    let start = StreamPosition { ino: head.start_ino.get(), offset: head.start_offset.get() };
    let is_first = start == StreamPosition::default();
    if start.ino > inodes
        || start.offset > Limits::MAX.file_size
        || !start.offset.is_multiple_of(BLOCK)
        || !is_first && (start.ino == 0 || start.ino == inodes && start.offset > 0)
        || head.zero != [0; 16]
    {
        return Err(format!("it begins at {start}"));
    }
    Ok(StreamHead {
        pool: uuid::Uuid::from_bytes(head.pool),
        snapshot: StreamSnapshot { name, created_ns },
        base,
        inodes,
        start,
        bytes: head.bytes.get(),
    })
}

fn check_inode(inode: &StreamInode, is_full: bool) -> Result<(), String> {
    let (mode, size, flags) = (inode.mode.get(), inode.size.get(), inode.flags.get());
    let kind = FileKind::from_mode(mode).filter(|kind| mode == kind.mode_bits() | mode & 0o7777);
    let Some(kind) = kind else {
        return Err(format!("an inode cannot have the mode {mode:#o}"));
    };
    let may_have = match kind {
        FileKind::File => size <= Limits::MAX.file_size,
        FileKind::Dir => size.is_multiple_of(BLOCK) && size <= Limits::MAX.file_size,
        FileKind::Symlink => (1..=Limits::MAX.symlink as u64).contains(&size),
        _ => size == 0,
    };
    if !may_have {
        return Err(format!("an inode of the mode {mode:#o} cannot have {size} bytes"));
    }
    let is_device = matches!(kind, FileKind::Char | FileKind::Block);
    if !is_device && inode.rdev.get() != 0 {
        return Err("only device files have a device number".to_owned());
    }
    match flags {
        INODE_NEW => Ok(()),
        0 if !is_full => Ok(()),
        0 => Err("an inode of a full stream is not new".to_owned()),
        _ => Err(format!("an inode cannot have the flags {flags:#x}")),
    }
}

/// An extended attribute: its name and its value.
type NameAndValue = (Vec<u8>, Vec<u8>);

fn decode_attributes(mut rest: &[u8]) -> Result<Vec<NameAndValue>, String> {
    let mut list: Vec<NameAndValue> = Vec::new();
    let (mut names, mut list_bytes) = (HashSet::new(), 0);
    while !rest.is_empty() {
        let (header, after) = Attribute::read_from_prefix(rest).map_err(|_| TOO_SHORT)?;
        let name_len = usize::from(u16::from_le_bytes(header.name_len));
        let value_len = { header.value_len }.get() as usize;
        if !(1..=vfs::XATTR_NAME_MAX).contains(&name_len) || value_len > Limits::MAX.xattr {
            return Err(format!(
                "an attribute has {name_len} bytes of name and {value_len} of value"
            ));
        }
        let (name, after) = after.split_at_checked(name_len).ok_or(TOO_SHORT)?;
        let (value, after) = after.split_at_checked(value_len).ok_or(TOO_SHORT)?;
        if name.contains(&0) || !names.insert(name) {
            return Err(format!(
                "the attribute {:?} is not allowed",
                name.escape_ascii().to_string()
            ));
        }
        list_bytes += name_len + 1;
        if list_bytes > Limits::MAX.xattr_list {
            return Err("the attributes have too many names".to_owned());
        }
        list.push((name.to_vec(), value.to_vec()));
        rest = after;
    }
    Ok(list)
}

fn decode_entries(mut rest: &[u8]) -> Result<Vec<StreamEntry>, String> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while !rest.is_empty() {
        let (header, after) = EntryHeader::read_from_prefix(rest).map_err(|_| TOO_SHORT)?;
        let (name, after) = after.split_at_checked(header.name_len.into()).ok_or(TOO_SHORT)?;
        if Limits::MAX.check_name(name).is_err() {
            return Err(format!("the name {:?} is not allowed", name.escape_ascii().to_string()));
        }
        let (ino, generation) = (header.ino.get(), header.generation.get());
        if ino == 0 || FileKind::from_mode(u32::from(header.kind) << 12).is_none() {
            return Err(format!("the name {:?} has no inode", name.escape_ascii().to_string()));
        }
        bytes += (ENTRY_HEADER + name.len()).next_multiple_of(ENTRY_UNIT).max(ENTRY_MIN);
        entries.push(StreamEntry { ino, generation, kind: header.kind, name: name.to_vec() });
        rest = after;
    }
    if bytes as u64 > BLOCK {
        return Err(format!("names of {bytes} bytes are more than a block has"));
    }
    Ok(entries)
}
