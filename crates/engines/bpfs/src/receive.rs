//! Receives a snapshot from a stream ([`pool::stream`]): the operations of the engine.
//! [`crate::received`] reads the stream and calls them.
//!
//! - receive-I1: a snapshot that is being received is an *incomplete* one: its root word has
//!   [`INCOMPLETE`]. Its blocks are counted as those of any snapshot. Nothing reads it but its
//!   receiver, whose process locks its part of the region. So it may change.
//! - receive-I2: a group of records is prepared as copies from the changed blocks up to the root of
//!   the inode file, with the progress, and committed by the root word. So the progress is that of
//!   what is there, also after a crash.
//! - receive-I3: the reader of a stream has checked its records (stream-S1). Here they are checked
//!   against the inode that they belong to. The blocks of a group are reserved before it begins.
//! - receive-I4: a group holds the lock of snapshots: none is deleted or counted meanwhile.
//!
//! | operation | prepared | stored | fences |
//! |---|---|---|---:|
//! | begin | the inodes of the base, as a snapshot; the entry | the root word of the entry | 2 |
//! | a group | copies of what changes | the root word of the entry | 2 |
//! | end | – | the root word of the entry | 1 |

use crate::blocks::{KEEP, Txn};
use crate::crawler::{CommitMode, CrawlChange, Edit, Node, Trees};
use crate::fs::Files;
use crate::layout::snapshots::*;
use crate::layout::*;
use crate::snapshots::{TableEntry, blocks_over, entries, find_entry, kind_of};
use crate::store::Store;
use crate::xattr::{LIST_MAX, blocks_of};
use namespace::{Attributes, Storage as _, fnv1a};
use pmem::{Fenced, Medium};
use pool::stream::{
    ReceiveStep, StreamEntry, StreamHead, StreamInode, StreamPosition, StreamRecord, StreamSnapshot,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use vfs::{Errno, FileKind, Result};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// Returns the base and the progress that a record has; `None` if it is damaged.
pub fn progress_of(record: &ProgressRecord) -> Option<(u64, StreamPosition)> {
    let position = StreamPosition { ino: record.ino.get(), offset: record.offset.get() };
    let is_sound = record.magic == PROGRESS_MAGIC
        && record.zero == [0; 88]
        && record.checksum.get() == fnv1a(&record.as_bytes()[..32]);
    is_sound.then_some((record.base_created.get(), position))
}

/// Makes the record of inode 0 with a progress.
fn progress_record(base_created: u64, position: StreamPosition) -> InodeRecord {
    let mut record = ProgressRecord::new_zeroed();
    record.magic = PROGRESS_MAGIC;
    record.base_created.set(base_created);
    record.ino.set(position.ino);
    record.offset.set(position.offset);
    record.checksum.set(fnv1a(&record.as_bytes()[..32]));
    InodeRecord::read_from_bytes(record.as_bytes()).expect("as many bytes")
}

/// Finds the base of a stream among the snapshots of a pool.
fn find_base(all: &[TableEntry], base: &StreamSnapshot) -> Option<TableEntry> {
    let mut same = all.iter().filter(|e| !e.is_incomplete() && e.created() == base.created_ns);
    let named = same.clone().find(|entry| entry.name() == base.name);
    // A snapshot may have another name here, unless several are as old.
    named.or_else(|| same.next().filter(|_| same.next().is_none())).copied()
}

/// Replaces a part of a tree.
struct Replace<'a, M> {
    trees: &'a Trees<M>,
    range: Range<u64>,
    with: With<'a>,
}

/// The content that a part of a tree gets.
enum With<'a> {
    /// These bytes, and zeros behind them in their last block.
    Bytes(&'a [u8]),
    Hole,
    /// The present bytes of its only block up to a byte, then zeros.
    ZerosFrom(usize),
}

impl<M: Medium> Edit for Replace<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn prunes(&self) -> bool {
        matches!(self.with, With::Hole)
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        _mode: CommitMode,
    ) -> Result<CrawlChange> {
        let mut bytes = [0; BLOCK as usize];
        let new = match (&self.with, old) {
            (With::Hole, _) | (With::ZerosFrom(_), None) => None,
            (With::Bytes(all), _) => {
                let from = (base - self.range.start) as usize;
                let part = &all[from..all.len().min(from + BLOCK as usize)];
                bytes[..part.len()].copy_from_slice(part);
                Some(txn.take())
            }
            (With::ZerosFrom(at), Some(old)) => {
                self.trees.medium.read(old.at(0), &mut bytes[..*at]);
                Some(txn.take())
            }
        };
        if let Some(new) = new {
            self.trees.medium.write_nt(new.at(0), &bytes);
        }
        if let Some(old) = old {
            txn.free(old);
        }
        Ok(if new == old { CrawlChange::Done } else { CrawlChange::Shadow(new) })
    }
}

/// Replaces inodes in blocks of the inode file.
struct ReplaceInodes<'a, M> {
    trees: &'a Trees<M>,
    ranges: Vec<Range<u64>>,
    inodes: &'a BTreeMap<u64, InodeRecord>,
}

impl<M: Medium> Edit for ReplaceInodes<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        _mode: CommitMode,
    ) -> Result<CrawlChange> {
        let old = old.ok_or(Errno::UCLEAN)?;
        let mut leaf = [0; BLOCK as usize];
        self.trees.medium.read(old.at(0), &mut leaf);
        let first = base / INODE;
        for (number, record) in self.inodes.range(first..first + INODES_PER_BLOCK) {
            let at = ((number - first) * INODE) as usize;
            leaf[at..at + INODE as usize].copy_from_slice(record.as_bytes());
        }
        let new = txn.take();
        self.trees.medium.write_nt(new.at(0), &leaf);
        txn.free(old);
        Ok(CrawlChange::Shadow(Some(new)))
    }
}

/// Returns the block of a directory with these names, which fit into it.
fn block_of_names(entries: &[StreamEntry]) -> Result<[u8; BLOCK as usize]> {
    let mut block = [0; BLOCK as usize];
    let mut at = 0_usize;
    let mut put = |at: usize, life: u64, word: DirentWord| {
        block[at..at + 8].copy_from_slice(&life.to_le_bytes());
        block[at + 8..at + 16].copy_from_slice(&word.pack().to_le_bytes());
    };
    let mut places = Vec::with_capacity(entries.len());
    for entry in entries {
        let name_len = entry.name.len();
        let len = dirent_bytes(name_len).max(DIRENT_MIN);
        if at as u64 + len > BLOCK {
            return Err(Errno::BADMSG);
        }
        let life = Life { ino: vfs::Ino(entry.ino.into()), generation: entry.generation };
        put(at, life.pack(), DirentWord { len, name_len, kind: entry.kind });
        places.push(at + DIRENT_HEADER as usize);
        at += len as usize;
    }
    // Free entries of a line each, as in a new block. A rest that is too short for one belongs to
    // the last entry.
    while at < BLOCK as usize {
        let rest = BLOCK as usize - at;
        let len = match (64 - at % 64).min(rest) {
            len if len < DIRENT_MIN as usize => (len + 64).min(rest),
            len => len,
        };
        if len < DIRENT_MIN as usize {
            break;
        }
        put(at, 0, DirentWord { len: len as u64, name_len: 0, kind: 0 });
        at += len;
    }
    let rest = BLOCK - at as u64;
    if rest > 0 {
        let last = places.last().ok_or(Errno::BADMSG)? - DIRENT_HEADER as usize;
        let word = u64::from_le_bytes(block[last + 8..last + 16].try_into().expect("eight bytes"));
        let word = DirentWord::unpack(word);
        let word = DirentWord { len: word.len + rest, ..word };
        block[last + 8..last + 16].copy_from_slice(&word.pack().to_le_bytes());
    }
    for (place, entry) in places.iter().zip(entries) {
        block[*place..*place + entry.name.len()].copy_from_slice(&entry.name);
    }
    Ok(block)
}

/// Returns the number of blocks that a change of these leaves can take, in a tree of this height:
/// each is copied once, with those above it.
fn blocks_above(height: u8, places: &BTreeSet<u64>) -> u64 {
    let at = |h: u8| places.iter().map(|at| at / span(h)).collect::<BTreeSet<_>>().len() as u64;
    (0..=height).map(at).sum()
}

/// The heights of the contents of inodes, while the blocks for a group are counted.
struct Heights<'a, M> {
    store: &'a Store<M>,
    entry: &'a TableEntry,
    known: BTreeMap<u64, u8>,
}

impl<M: Medium> Heights<'_, M> {
    /// Returns the height of the content of an inode.
    fn of(&mut self, number: u64) -> Result<u8> {
        if let Some(height) = self.known.get(&number) {
            return Ok(*height);
        }
        let record = self.store.inode_of(self.entry, number)?;
        let height = match kind_of(&record)? {
            Some(_) => self.store.check_root(record.root.get())?.height(),
            None => 0,
        };
        self.known.insert(number, height);
        Ok(height)
    }

    /// Counts the blocks for a change of a range, with those that make the tree tall enough.
    fn change(&mut self, number: u64, range: &Range<u64>) -> Result<u64> {
        let before = self.of(number)?;
        let height = before.max(height_for(range.end));
        self.known.insert(number, height);
        Ok(crate::crawler::blocks_for(height, std::slice::from_ref(range))
            + u64::from(height - before))
    }

    /// Counts the blocks that a record can take, without those of the inode file.
    fn record(&mut self, record: &StreamRecord) -> Result<u64> {
        Ok(match record {
            StreamRecord::Inode(inode) if inode.is_new() => {
                self.known.insert(inode.number.get(), 0);
                0
            }
            // Both ends of what goes, and a block that gets zeros.
            StreamRecord::Inode(inode) => 2 * u64::from(self.of(inode.number.get())?) + 1,
            StreamRecord::Attributes(_, list) => blocks_of(&attributes(list)),
            StreamRecord::Names(ino, at, _) => self.change(*ino, &(*at..at + BLOCK))?,
            StreamRecord::Data(ino, at, data) => {
                self.change(*ino, &(*at..at + data.len() as u64))?
            }
            StreamRecord::Hole(ino, ..) => 2 * u64::from(self.of(*ino)?),
            StreamRecord::Gone(..) | StreamRecord::Head(_) | StreamRecord::End { .. } => 0,
        })
    }
}

fn attributes(list: &[(Vec<u8>, Vec<u8>)]) -> Attributes {
    let mut all = Attributes::default();
    list.iter().for_each(|(name, value)| all.set(name, value.clone()));
    all
}

/// A group that is being applied.
struct Group<'g, 't, M> {
    store: &'g Store<M>,
    txn: &'g mut Txn<'t>,
    entry: &'g TableEntry,
    /// The inodes that it changes.
    inodes: BTreeMap<u64, InodeRecord>,
}

impl<M: Medium> Group<'_, '_, M> {
    fn load(&self, number: u64) -> Result<InodeRecord> {
        match self.inodes.get(&number) {
            Some(record) => Ok(*record),
            None => self.store.inode_of(self.entry, number),
        }
    }

    /// Loads an inode that the stream has begun, and its kind.
    fn begun(&self, number: u64) -> Result<(InodeRecord, FileKind)> {
        let record = self.load(number)?;
        Ok((record, kind_of(&record)?.ok_or(Errno::BADMSG)?))
    }

    /// Applies a record, if it fits its inode (receive-I3).
    fn apply(&mut self, record: &StreamRecord) -> Result<()> {
        match record {
            StreamRecord::Inode(inode) => self.inode(inode),
            StreamRecord::Attributes(ino, list) => self.attributes(*ino, list),
            StreamRecord::Names(ino, at, entries) => {
                let (inode, kind) = self.begun(*ino)?;
                if kind != FileKind::Dir || at + BLOCK > inode.size.get() {
                    return Err(Errno::BADMSG);
                }
                let block = block_of_names(entries)?;
                self.replace(*ino, inode, *at..at + BLOCK, With::Bytes(&block))
            }
            StreamRecord::Data(ino, at, data) => {
                let (inode, kind) = self.begun(*ino)?;
                let (end, size) = (at + data.len() as u64, inode.size.get());
                let is_whole = end == size || end < size && end.is_multiple_of(BLOCK);
                if !matches!(kind, FileKind::File | FileKind::Symlink) || !is_whole {
                    return Err(Errno::BADMSG);
                }
                self.replace(*ino, inode, *at..end, With::Bytes(data))
            }
            StreamRecord::Hole(ino, at, len) => {
                let (inode, kind) = self.begun(*ino)?;
                if kind != FileKind::File || *at >= inode.size.get() {
                    return Err(Errno::BADMSG);
                }
                self.replace(*ino, inode, *at..at + len, With::Hole)
            }
            StreamRecord::Gone(first, count) => {
                for number in *first..first + count {
                    self.remove(number)?;
                }
                Ok(())
            }
            StreamRecord::Head(_) | StreamRecord::End { .. } => Err(Errno::INVAL),
        }
    }

    /// Drops the trees of an inode, if it is valid.
    fn remove(&mut self, number: u64) -> Result<()> {
        let record = self.load(number)?;
        if kind_of(&record)?.is_some() {
            for word in [record.root.get(), record.xattr.get()] {
                let root = self.store.check_root(word)?;
                self.store.drop_subtree(self.txn, Node::top(root))?;
            }
            self.inodes.insert(number, InodeRecord::new_zeroed());
        }
        Ok(())
    }

    fn inode(&mut self, to: &StreamInode) -> Result<()> {
        let (number, size) = (to.number.get(), to.size.get());
        if to.is_new() {
            self.remove(number)?;
            self.inodes.insert(number, InodeRecord::new_zeroed());
        }
        let mut record = self.load(number)?;
        let kind = FileKind::from_mode(to.mode.get()).ok_or(Errno::BADMSG)?;
        if !to.is_new() {
            if kind_of(&record)? != Some(kind) || record.generation.get() != to.generation.get() {
                return Err(Errno::BADMSG);
            }
            let old = record.size.get();
            if size < old {
                let end = size.next_multiple_of(BLOCK);
                self.replace(number, record, end..u64::MAX, With::Hole)?;
            } else if size > old && !old.is_multiple_of(BLOCK) {
                let from = old / BLOCK * BLOCK;
                let zeros = With::ZerosFrom((old % BLOCK) as usize);
                self.replace(number, record, from..from + BLOCK, zeros)?;
            }
            record = self.load(number)?;
        }
        record.size.set(size);
        (record.mtime, record.ctime, record.atime, record.btime) =
            (to.mtime, to.ctime, to.atime, to.btime);
        (record.uid, record.gid, record.mode, record.rdev) = (to.uid, to.gid, to.mode, to.rdev);
        record.set_generation(to.generation.get());
        self.inodes.insert(number, record);
        Ok(())
    }

    fn attributes(&mut self, number: u64, list: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let (mut record, kind) = self.begun(number)?;
        for (name, value) in list {
            let is_acl = name == ACL_ACCESS || name == ACL_DEFAULT;
            let checked = LIMITS
                .check_xattr(kind, name, value.len())
                .and_then(|()| self.store.check_attribute(kind, name, value))
                .and_then(|()| if is_acl { Acl::parse_valid(value).map(drop) } else { Ok(()) });
            checked.map_err(|_| Errno::BADMSG)?;
        }
        let list = attributes(list);
        if list.bytes() > LIST_MAX {
            return Err(Errno::BADMSG);
        }
        let old = self.store.check_root(record.xattr.get())?;
        self.store.drop_subtree(self.txn, Node::top(old))?;
        record.xattr.set(self.store.store_attributes(self.txn, &list)?);
        self.inodes.insert(number, record);
        Ok(())
    }

    /// Replaces a range of the content of an inode.
    fn replace(
        &mut self,
        number: u64,
        mut record: InodeRecord,
        mut range: Range<u64>,
        with: With<'_>,
    ) -> Result<()> {
        let mut root = self.store.check_root(record.root.get())?;
        if matches!(with, With::Bytes(_)) {
            root = self.store.raise(self.txn, root, range.end);
        }
        range.end = range.end.min(root.span());
        if range.is_empty() {
            return Ok(());
        }
        let mut edit = Replace { trees: &self.store.trees, range, with };
        let top = Node::top(root);
        if let CrawlChange::Shadow(block) =
            self.store.edit(self.txn, top, CommitMode::Copy, &mut edit)?
        {
            root = Root::new(block, root.height());
        }
        record.root.set(root.word());
        self.inodes.insert(number, record);
        Ok(())
    }
}

impl<M: Medium> Trees<M> {
    /// Makes a tree at least as tall as `end` bytes need. Nothing leads to the new top yet.
    fn raise(&self, txn: &mut Txn<'_>, root: Root, end: u64) -> Root {
        let height = height_for(end).max(root.height());
        let mut top = root.block();
        if let Some(mut block) = top {
            for _ in root.height()..height {
                let mut pointers = [Pointer::NULL; FANOUT as usize];
                pointers[0] = Pointer::to(block);
                block = txn.take_pointers();
                self.medium.write_nt(block.at(0), pointers.as_bytes());
            }
            top = Some(block);
        }
        Root::new(top, height)
    }
}

impl<M: Medium> Files<M> {
    /// Implements [`namespace::Files::receive`].
    pub fn receive(&self, step: &ReceiveStep<'_>) -> Result<()> {
        match step {
            ReceiveStep::Begin { name, head } => self.begin_to_receive(name, head),
            ReceiveStep::Group { name, records, position } => {
                self.receive_group(name, records, *position)
            }
            ReceiveStep::End { name } => self.end_to_receive(name),
        }
    }

    /// Makes an incomplete snapshot.
    fn begin_to_receive(&self, name: &str, head: &StreamHead) -> Result<()> {
        self.check_may_change(name)?;
        let inode_file = blocks_over(head.inodes / INODES_PER_BLOCK);
        if inode_file > self.v.blocks.len() || head.inodes > self.v.inodes().len() as u64 {
            return Err(Errno::NOSPC);
        }
        let _lock = self.v.snapshots.hold(&self.v, 0)?;
        let base = match &head.base {
            Some(base) => {
                let found = find_base(&entries(&self.medium), base).ok_or(Errno::NOENT)?;
                found.check(self.bytes).map_err(|_| Errno::UCLEAN)?;
                Some(found)
            }
            None => None,
        };
        let at = self.free_entry(name)?;
        let base_created = head.base.as_ref().map_or(0, |base| base.created_ns);
        let first = progress_record(base_created, StreamPosition::default());
        let source = |number| match (&base, number) {
            (_, 0) => Ok(first),
            (Some(base), _) => self.inode_of(base, number),
            (None, _) => Ok(InodeRecord::new_zeroed()),
        };
        let need = match base {
            Some(_) => self.blocks_to_copy(head.inodes, &source)?,
            None => inode_file,
        };
        self.transact(need, KEEP, |txn| {
            let root = self.copy_inodes(txn, head.inodes, &source)?;
            let entry = SnapshotEntry::new(name, head.inodes * INODE, head.snapshot.created_ns);
            self.publish_entry(at, &entry, root.word() | INCOMPLETE);
            Ok(())
        })
    }

    /// Returns the entry of a snapshot that is being received.
    fn find_incomplete(&self, name: &str) -> Result<TableEntry> {
        let entry = find_entry(&self.medium, self.bytes, name)?;
        if entry.is_incomplete() { Ok(entry) } else { Err(Errno::NOENT) }
    }

    /// Applies a group of records (receive-I2).
    fn receive_group(
        &self,
        name: &str,
        records: &[StreamRecord],
        position: StreamPosition,
    ) -> Result<()> {
        self.check_may_change(name)?;
        // receive-I4.
        let _lock = self.v.snapshots.hold(&self.v, 0)?;
        let entry = self.find_incomplete(name)?;
        let root = self.check_root(entry.root_word())?;
        let record = self.inode_of(&entry, 0)?;
        let progress = ProgressRecord::read_from_bytes(record.as_bytes());
        let (base_created, _) =
            progress.ok().as_ref().and_then(progress_of).ok_or(Errno::UCLEAN)?;
        let need = self.blocks_of_group(&entry, root, records)?;
        self.transact(need, KEEP, |txn| {
            let inodes = BTreeMap::from([(0, progress_record(base_created, position))]);
            let mut group = Group { store: self, txn, entry: &entry, inodes };
            records.iter().try_for_each(|record| group.apply(record))?;
            let inodes = group.inodes;
            txn.take_apart();
            let places: BTreeSet<u64> = inodes.keys().map(|n| n * INODE / BLOCK * BLOCK).collect();
            let ranges = places.into_iter().map(|at| at..at + BLOCK).collect();
            let mut edit = ReplaceInodes { trees: &self.trees, ranges, inodes: &inodes };
            let CrawlChange::Shadow(Some(top)) =
                self.edit(txn, Node::top(root), CommitMode::Copy, &mut edit)?
            else {
                return Err(Errno::UCLEAN);
            };
            let root = Root::new(Some(top), root.height());
            let ready = self.medium.fence();
            let _ = self.medium.publish(entry.root_at, root.word() | INCOMPLETE, ready);
            Ok(())
        })
    }

    /// Counts the blocks that a group can take.
    fn blocks_of_group(
        &self,
        entry: &TableEntry,
        root: Root,
        records: &[StreamRecord],
    ) -> Result<u64> {
        let mut heights = Heights { store: self, entry, known: BTreeMap::new() };
        let mut leaves = BTreeSet::from([0]);
        let mut blocks = 0;
        for record in records {
            blocks += heights.record(record)?;
            let numbers = match record {
                StreamRecord::Gone(first, count) => *first..first + count,
                StreamRecord::Inode(inode) => inode.number.get()..inode.number.get() + 1,
                StreamRecord::Attributes(ino, ..)
                | StreamRecord::Names(ino, ..)
                | StreamRecord::Data(ino, ..)
                | StreamRecord::Hole(ino, ..) => *ino..ino + 1,
                StreamRecord::Head(_) | StreamRecord::End { .. } => 0..0,
            };
            leaves.extend(numbers.map(|number| number * INODE / BLOCK * BLOCK));
        }
        if leaves.last().is_some_and(|last| *last >= entry.inodes() * INODE) {
            return Err(Errno::BADMSG);
        }
        Ok(blocks + blocks_above(root.height(), &leaves))
    }

    /// Makes a snapshot complete that was checked.
    fn end_to_receive(&self, name: &str) -> Result<()> {
        self.check_may_change(name)?;
        let _lock = self.v.snapshots.hold(&self.v, 0)?;
        let entry = self.find_incomplete(name)?;
        let ready = Fenced::not_needed("all groups are durable");
        let _ = self.medium.publish(entry.root_at, entry.root_word(), ready);
        Ok(())
    }
}
