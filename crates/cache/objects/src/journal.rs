//! Changes that are not committed, in the order of the calls.
//!
//! - **objects-J1** A change of names or attributes is made and recorded while the journal is
//!   locked. So is the content of a file after its upload. So replaying the records on the
//!   committed tree, one by one, gives the tree that the calls have returned.

use crate::content::ObjectFile;
use crate::format::{ChunkRef, Contents, Op, Record};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use vfs::{Ino, Timestamp};

/// The journal of changes that are not committed.
#[derive(Default)]
pub struct Journal {
    /// Records, encoded one after another.
    pending: Vec<u8>,
    /// The numbers of records that were ever made, and that are committed (`committed`).
    recorded: u64,
    committed: u64,
    /// The last record of each inode whose names, attributes or entries changed.
    changed: HashMap<Ino, u64>,
    /// The contents that are committed or recorded.
    pub contents: Contents,
    /// Deleted files, whose objects are to be deleted once that is committed.
    dead: Vec<Arc<ObjectFile>>,
    /// The time when the oldest pending record was made, or of the last commit.
    since: Option<Instant>,
}

/// Records that a commit makes durable.
pub struct Taken {
    /// Encoded records.
    pub records: Vec<u8>,
    /// Files that are deleted then.
    pub dead: Vec<Arc<ObjectFile>>,
    upto: u64,
}

impl Journal {
    /// Makes the journal of a tree with these contents.
    pub fn new(contents: Contents) -> Self {
        Self { contents, ..Self::default() }
    }

    /// Records a change.
    pub fn record(&mut self, time: Timestamp, op: Op) {
        let record = Record { time, op };
        let pending = std::mem::take(&mut self.pending);
        self.pending = postcard::to_extend(&record, pending).expect("it is plain data");
        self.recorded += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Notes that the last record changed attributes of an inode, or entries of a directory.
    pub fn note_change(&mut self, ino: Ino) {
        self.changed.insert(ino, self.recorded);
    }

    /// Notes that the last record created an inode, or added or removed its name in a directory.
    pub fn note_name(&mut self, ino: Ino, dir: Ino) {
        self.note_change(ino);
        self.note_change(dir);
    }

    /// Notes that a file is deleted.
    pub fn bury(&mut self, ino: Ino, file: Arc<ObjectFile>) {
        self.contents.files.remove(&ino);
        self.dead.push(file);
    }

    /// Notes the new objects of a file's chunks, which the caller is about to record.
    pub fn note_content(&mut self, ino: Ino, changes: &[(u64, Option<ChunkRef>)]) {
        let chunks = self.contents.files.entry(ino).or_default();
        for (index, object) in changes {
            match object {
                Some(object) => chunks.insert(*index, *object),
                None => chunks.remove(index),
            };
        }
        if chunks.is_empty() {
            self.contents.files.remove(&ino);
        }
    }

    /// Whether the names, attributes and entries of an inode are committed.
    pub fn is_committed(&self, ino: Ino) -> bool {
        self.changed.get(&ino).is_none_or(|record| *record <= self.committed)
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the bytes of records to commit.
    pub fn len(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Returns the time of the oldest change that is not committed, or of the last commit if that
    /// was later.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Takes the records for the next commit.
    pub fn take(&mut self) -> Taken {
        let dead = std::mem::take(&mut self.dead);
        Taken { records: self.pending.clone(), dead, upto: self.recorded }
    }

    /// Takes back records that could not be committed.
    pub fn give_back(&mut self, taken: Taken) {
        self.dead.extend(taken.dead);
    }

    /// Removes records that are committed.
    pub fn is_durable(&mut self, taken: &Taken) {
        self.pending.drain(..taken.records.len());
        self.committed = taken.upto;
        self.changed.retain(|_, record| *record > taken.upto);
        self.since = (!self.pending.is_empty()).then(Instant::now);
    }
}
