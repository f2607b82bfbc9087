//! Reads a stream and makes a snapshot of it: groups of records, the check, the end.
//!
//! - received-V1: a snapshot becomes complete only after all of it was checked: its inodes are
//!   those of the sender ([`InodeDigest`]), each name leads to an inode of its generation and kind,
//!   each inode has a name, and a mount of it finds no contradiction.
//! - received-V2: memory holds one group and one record, whatever the stream contains.

use crate::crawler::{Node, Trees};
use crate::layout::*;
use crate::send::{FoundInode, Table, block_of, trees};
use crate::snapshots::{TableEntry, find_entry};
use crate::{Bpfs, MountOptions};
use namespace::Chain;
use pmem::Medium;
use pool::stream::{
    InodeDigest, ReceiveError, ReceiveStep, StreamHead, StreamPosition, StreamReader, StreamRecord,
    StreamToken,
};
use std::io::Read;
use vfs::{Errno, FileKind};

/// The bytes of a group, about, from which on it is applied (received-V2).
const GROUP_BYTES: usize = 8 << 20;
/// The most inodes of a group.
const GROUP_INODES: u64 = 4096;

/// Returns the token of a snapshot that is being received; `None` if it is complete.
///
/// # Errors
/// Those of [`crate::info`]; `ENOENT` if there is no such snapshot, `EUCLEAN` if it is damaged.
pub fn token(medium: &impl Medium, name: &str) -> Result<Option<StreamToken>, pool::Error> {
    let trees = trees(medium)?;
    let entry = find_entry(&trees.medium, trees.bytes, name)?;
    if !entry.is_incomplete() {
        return Ok(None);
    }
    let progress = Table::new(&trees, &entry)?.progress()?;
    let (base_created_ns, position) = progress.ok_or(Errno::UCLEAN)?;
    Ok(Some(StreamToken { created_ns: entry.created(), base_created_ns, position }))
}

/// Makes a snapshot of this name from a stream. Calls `progress` with the number of bytes that were
/// read, after each record. If it fails, what has come stays, and can be resumed ([`token`]).
///
/// # Errors
/// Those of the stream, and of the pool.
pub fn receive<M: Medium>(
    pool: &Bpfs<M>,
    name: &str,
    mut reader: StreamReader<impl Read>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ReceiveError> {
    let head = reader.head().clone();
    begin(pool, name, &head)?;
    let mut group =
        Group { pool, name, records: Vec::new(), bytes: 0, inodes: 0, reached: head.start };
    let (inodes, digest) = loop {
        let record = match reader.next() {
            Ok(record) => record,
            Err(e) => {
                // The records before the fault are sound.
                group.apply(reader.bytes())?;
                return Err(e.into());
            }
        };
        match record.expect("there is none behind the end only") {
            StreamRecord::End { inodes, digest } => break (inodes, digest),
            StreamRecord::Gone(mut first, mut count) => {
                while count > 0 {
                    let part = count.min(GROUP_INODES);
                    group.push(StreamRecord::Gone(first, part), part, reader.bytes())?;
                    (first, count) = (first + part, count - part);
                }
            }
            record => group.push(record, 1, reader.bytes())?,
        }
        progress(reader.bytes());
    };
    group.reached = StreamPosition { ino: head.inodes, offset: 0 };
    group.apply(reader.bytes())?;
    verify(pool.medium(), name, inodes, digest)?;
    Ok(pool.receive(&ReceiveStep::End { name })?)
}

/// Makes the incomplete snapshot, or finds the one to go on with (stream-S2).
fn begin<M: Medium>(pool: &Bpfs<M>, name: &str, head: &StreamHead) -> Result<(), ReceiveError> {
    match token(pool.medium(), name) {
        Ok(None) => Err(ReceiveError::Exists(name.to_owned())),
        Ok(Some(has)) if has != head.token(has.position) => {
            Err(ReceiveError::Other(name.to_owned()))
        }
        Ok(Some(has)) if head.start > has.position => {
            Err(ReceiveError::Gap(has.position, head.start))
        }
        Ok(Some(_)) => Ok(()),
        Err(pool::Error::Errno(Errno::NOENT)) if head.start != StreamPosition::default() => {
            Err(ReceiveError::Gap(StreamPosition::default(), head.start))
        }
        Err(pool::Error::Errno(Errno::NOENT)) => {
            pool.receive(&ReceiveStep::Begin { name, head }).map_err(|e| match (e, &head.base) {
                (Errno::NOENT, Some(base)) => ReceiveError::NoBase(base.name.clone()),
                (e, _) => e.into(),
            })
        }
        Err(e) => Err(e.into()),
    }
}

/// Records that are not applied yet.
struct Group<'a, M> {
    pool: &'a Bpfs<M>,
    name: &'a str,
    records: Vec<StreamRecord>,
    bytes: usize,
    inodes: u64,
    /// The position behind them.
    reached: StreamPosition,
}

impl<M: Medium> Group<'_, M> {
    /// Adds a record about this number of inodes, which ends at a byte of the stream.
    fn push(&mut self, record: StreamRecord, inodes: u64, at: u64) -> Result<(), ReceiveError> {
        self.reached = record.position().unwrap_or(self.reached);
        self.bytes += record.weight();
        self.inodes += inodes;
        self.records.push(record);
        if self.bytes < GROUP_BYTES && self.inodes < GROUP_INODES {
            return Ok(());
        }
        self.apply(at)
    }

    fn apply(&mut self, at: u64) -> Result<(), ReceiveError> {
        let (name, position) = (self.name, self.reached);
        let step = ReceiveStep::Group { name, records: &self.records, position };
        self.pool.receive(&step).map_err(|e| match e {
            Errno::BADMSG => ReceiveError::Misfit(at),
            e => e.into(),
        })?;
        self.records.clear();
        (self.bytes, self.inodes) = (0, 0);
        Ok(())
    }
}

/// Checks all of a snapshot that was received (received-V1).
fn verify<M: Medium>(medium: &M, name: &str, inodes: u64, digest: u64) -> Result<(), ReceiveError> {
    let trees = trees(medium)?;
    let entry = find_entry(&trees.medium, trees.bytes, name)?;
    let mut table = Table::new(&trees, &entry)?;
    let (mut found, mut count) = (InodeDigest::default(), 0);
    for number in 1..entry.inodes() {
        if let Some(inode) = table.inode(number)? {
            found.add(number, &inode.line());
            count += 1;
            verify_inode(&trees, &entry, number, &inode)?;
        }
    }
    if (count, found.finish()) != (inodes, digest) {
        return Err(ReceiveError::OtherInodes);
    }
    let options = MountOptions {
        read_only: true,
        snapshot: Some(name.to_owned()),
        is_incomplete: true,
        ..MountOptions::default()
    };
    let mounted = Bpfs::mount(medium, &options)?;
    let report = mounted.mount_report();
    if report.problems > 0 {
        return Err(ReceiveError::Unsound(format!("{} contradictions", report.problems)));
    }
    if report.inodes != count {
        return Err(ReceiveError::Unsound(format!(
            "{} inodes without a name",
            count - report.inodes
        )));
    }
    Ok(())
}

/// Checks the part of an inode that a mount does not.
fn verify_inode<M: Medium>(
    trees: &Trees<M>,
    entry: &TableEntry,
    number: u64,
    inode: &FoundInode,
) -> Result<(), ReceiveError> {
    let (root, size) = (trees.check_root(inode.record.root.get())?, inode.record.size.get());
    let wrong = |what: &str| Err(ReceiveError::Unsound(format!("inode {number}: {what}")));
    match inode.kind {
        FileKind::File if !trees.ends_within(Node::top(root), size) => {
            wrong("content behind its end")
        }
        FileKind::Symlink => {
            let mut target = vec![0; size as usize];
            match trees.find_block(root, 0)? {
                Some(block) if trees.ends_within(Node::top(root), size) => {
                    trees.medium.read(block.at(0), &mut target);
                    if target.contains(&0) { wrong("a target with a zero byte") } else { Ok(()) }
                }
                _ => wrong("a link without a target"),
            }
        }
        FileKind::Dir => {
            let mut table = Table::new(trees, entry)?;
            for at in (0..size).step_by(BLOCK as usize) {
                let Some(block) = block_of(trees, inode, at)? else {
                    return wrong("a directory without a block of names");
                };
                for raw in Chain::new(&block).flatten() {
                    let Some(life) = raw.life else { continue };
                    let is_named = table.inode(life.ino.0)?.is_some_and(|inode| {
                        inode.record.generation.get() == life.generation
                            && inode.kind.mode_bits() >> 12 == u32::from(raw.word.kind)
                    });
                    if !is_named {
                        return wrong(&format!(
                            "it names inode {}, which is another one",
                            life.ino
                        ));
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
