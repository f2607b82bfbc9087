//! Writes a stream.

use super::layout::{CHECKED, RecordHeader, *};
use super::{StreamEntry, StreamHead, StreamRecord, StreamSnapshot, checksum};
use crate::SNAPSHOT_NAME_MAX;
use std::io::{self, Write};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Writes records.
pub struct StreamWriter<W> {
    out: W,
    /// The checksum of the record before.
    crc: u64,
    records: u64,
    bytes: u64,
    payload: Vec<u8>,
}

impl<W: Write> StreamWriter<W> {
    /// Writes the prefix of a stream.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn new(mut out: W) -> io::Result<Self> {
        let prefix = Prefix { magic: MAGIC, version: VERSION.into(), zero: 0.into() };
        out.write_all(prefix.as_bytes())?;
        let bytes = size_of::<Prefix>() as u64;
        Ok(Self { out, crc: 0, records: 0, bytes, payload: Vec::new() })
    }

    /// Writes a record that the format allows here.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn write(&mut self, record: &StreamRecord) -> io::Result<()> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        let kind = encode(record, self.records + 1, &mut payload);
        let written = self.write_payload(kind, &payload);
        self.payload = payload;
        written
    }

    /// Writes a record of this kind with this payload. Readers refuse a payload that does not
    /// follow the format.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn write_payload(&mut self, kind: u32, payload: &[u8]) -> io::Result<()> {
        let len = payload.len();
        assert!(len <= PAYLOAD_MAX, "a record of {len} bytes");
        let (kind, crc) = (kind.into(), 0.into());
        let mut header = RecordHeader { kind, len: (len as u32).into(), crc };
        self.crc = checksum(self.crc, &header.as_bytes()[..CHECKED], payload);
        header.crc.set(self.crc);
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(payload)?;
        self.records += 1;
        self.bytes += (size_of::<RecordHeader>() + len) as u64;
        Ok(())
    }

    /// Returns the number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Flushes and returns the sink.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Encodes a payload; `records` is the number of this record. Returns the kind.
fn encode(record: &StreamRecord, records: u64, out: &mut Vec<u8>) -> u32 {
    let mut part = |ino: u64, offset: u64| {
        out.extend(PartHeader { ino: ino.into(), offset: offset.into() }.as_bytes());
    };
    match record {
        StreamRecord::Head(head) => {
            out.extend(encode_head(head).as_bytes());
            kind::HEAD
        }
        StreamRecord::Inode(inode) => {
            out.extend(inode.as_bytes());
            kind::INODE
        }
        StreamRecord::Attributes(ino, list) => {
            out.extend(ino.to_le_bytes());
            for (name, value) in list {
                out.extend((name.len() as u16).to_le_bytes());
                out.extend((value.len() as u32).to_le_bytes());
                out.extend(name);
                out.extend(value);
            }
            kind::ATTRIBUTES
        }
        StreamRecord::Names(ino, offset, entries) => {
            part(*ino, *offset);
            for StreamEntry { ino, generation, kind, name } in entries {
                let name_len = name.len() as u8;
                let (ino, generation) = ((*ino).into(), (*generation).into());
                out.extend(EntryHeader { ino, generation, kind: *kind, name_len }.as_bytes());
                out.extend(name);
            }
            kind::NAMES
        }
        StreamRecord::Data(ino, offset, bytes) => {
            part(*ino, *offset);
            out.extend(bytes);
            kind::DATA
        }
        StreamRecord::Hole(ino, offset, len) => {
            part(*ino, *offset);
            out.extend(len.to_le_bytes());
            kind::HOLE
        }
        StreamRecord::Gone(first, count) => {
            out.extend(Gone { first: (*first).into(), count: (*count).into() }.as_bytes());
            kind::GONE
        }
        StreamRecord::End { inodes, digest } => {
            let (inodes, digest) = ((*inodes).into(), (*digest).into());
            out.extend(EndPayload { inodes, digest, records: records.into() }.as_bytes());
            kind::END
        }
    }
}

fn encode_head(head: &StreamHead) -> Head {
    let mut to = Head::new_zeroed();
    let name_of = |snapshot: &StreamSnapshot| {
        let mut name = [0; SNAPSHOT_NAME_MAX];
        name[..snapshot.name.len()].copy_from_slice(snapshot.name.as_bytes());
        name
    };
    to.pool = *head.pool.as_bytes();
    to.created.set(head.snapshot.created_ns);
    to.name = name_of(&head.snapshot);
    if let Some(base) = &head.base {
        to.base_created.set(base.created_ns);
        to.base_name = name_of(base);
    }
    to.inodes.set(head.inodes);
    to.start_ino.set(head.start.ino);
    to.start_offset.set(head.start.offset);
    to.bytes.set(head.bytes);
    to
}
