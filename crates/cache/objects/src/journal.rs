//! Changes that are not committed, in the order they were made.
//!
//! - **objects-J1** What changes names or attributes is recorded while the journal is locked, as is what a file's content is once
//!   it is in the store. So records give, one by one on what was committed, what calls were told.

use crate::content::File;
use crate::format::{ChunkRef, Contents, Op, Record};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use vfs::{Ino, Timestamp};

/// Changes that are not committed.
#[derive(Default)]
pub struct Journal {
    /// Records, encoded one after another.
    pending: Vec<u8>,
    /// How many were ever recorded, and committed.
    recorded: u64,
    committed: u64,
    /// The last record of an inode whose names changed, or that was made.
    named: HashMap<Ino, u64>,
    /// The last one of an inode whose names, attributes or entries changed.
    changed: HashMap<Ino, u64>,
    /// What was committed or recorded of contents.
    pub contents: Contents,
    /// Files that are gone, with objects to be deleted once that is committed.
    dead: Vec<Arc<File>>,
    /// When the oldest pending record was made.
    since: Option<Instant>,
}

/// What a commit is to make durable.
pub struct Taken {
    /// Encoded records.
    pub records: Vec<u8>,
    /// Files that are gone then.
    pub dead: Vec<Arc<File>>,
    upto: u64,
}

impl Journal {
    /// Of a tree with these contents.
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

    /// The last record changed attributes of an inode, or entries of a directory.
    pub fn note_change(&mut self, ino: Ino) {
        self.changed.insert(ino, self.recorded);
    }

    /// The last record made an inode, or gave or took a name of it in a directory.
    pub fn note_name(&mut self, ino: Ino, dir: Ino) {
        self.named.insert(ino, self.recorded);
        self.note_change(ino);
        self.note_change(dir);
    }

    /// A file is gone.
    pub fn bury(&mut self, ino: Ino, file: Arc<File>) {
        self.contents.files.remove(&ino);
        self.dead.push(file);
    }

    /// Chunks of a file are these objects now, as is about to be recorded.
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

    /// Whether an inode's creation and names are committed.
    pub fn is_placed(&self, ino: Ino) -> bool {
        self.named.get(&ino).is_none_or(|record| *record <= self.committed)
    }

    /// Whether its names, attributes and entries are.
    pub fn is_committed(&self, ino: Ino) -> bool {
        self.changed.get(&ino).is_none_or(|record| *record <= self.committed)
    }

    /// Number of records that are not committed.
    pub fn pending(&self) -> u64 {
        self.recorded - self.committed
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Bytes of what there is to commit.
    pub fn len(&self) -> u64 {
        self.pending.len() as u64
    }

    /// When the oldest change was made that is not committed.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// What is to be committed next.
    pub fn take(&mut self) -> Taken {
        let dead = std::mem::take(&mut self.dead);
        Taken { records: self.pending.clone(), dead, upto: self.recorded }
    }

    /// It could not be committed.
    pub fn give_back(&mut self, taken: Taken) {
        self.dead.extend(taken.dead);
    }

    /// It is committed.
    pub fn is_durable(&mut self, taken: &Taken) {
        self.pending.drain(..taken.records.len());
        self.committed = taken.upto;
        for last in [&mut self.named, &mut self.changed] {
            last.retain(|_, record| *record > taken.upto);
        }
        self.since = (!self.pending.is_empty()).then(Instant::now);
    }
}
