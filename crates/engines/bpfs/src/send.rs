//! Sends a snapshot as a stream ([`pool::stream`]), beside other users of the pool.
//!
//! - send-E1: an incremental stream has all that differs. Contents are the same if the pointers to
//!   them are, because nothing of a snapshot changes. Inodes are compared as they lie in PM. Names
//!   and attributes, which each snapshot has for itself, are the same without a look at them if the
//!   time of the last change is, and if it lies well before the older snapshot: times are as coarse
//!   as the clock of the kernel.
//! - send-E2: the order is that of the inode numbers, and of offsets within an inode. So a position
//!   divides the stream, and a resumed one reads nothing before it except the inode file.
//! - send-E3: a damaged pool gives `EUCLEAN`. No pointer is followed before it was checked
//!   (crawler-T4).

use crate::crawler::{Node, Trees};
use crate::layout::*;
use crate::receive::progress_of;
use crate::snapshots::{TableEntry, find_entry, kind_of};
use namespace::Chain;
use pmem::{Medium, Pm, PmOff};
use pool::stream::{
    DATA_MAX, INODE_NEW, InodeDigest, SendError, SendRequest, StreamEntry, StreamHead, StreamInode,
    StreamPosition, StreamRecord, StreamSnapshot,
};
use std::collections::HashSet;
use std::ops::Range;
use vfs::{Attr, Errno, FileKind, Ino, Result, Timestamp};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

/// A time of change counts as exact if it lies this long before a snapshot, in nanoseconds. The
/// clock of the kernel advances every 10 ms or less.
const SETTLED_NS: u64 = 1_000_000_000;

/// Bytes of data in a record.
const RUN: usize = 256 << 10;
const _: () = assert!(RUN <= DATA_MAX);

/// Returns the trees of a pool, for a reader without derived state.
pub fn trees<M: Medium>(medium: &M) -> std::result::Result<Trees<&M>, pool::Error> {
    let bytes = FORMAT.load(medium)?.blocks.get() * BLOCK;
    Ok(Trees { medium: Pm(medium), bytes, marks: 0 })
}

/// The receiver of records.
type Sink<'a> = &'a mut dyn FnMut(StreamRecord) -> std::result::Result<(), SendError>;

/// The first line of an inode: all that changes.
const LINE: usize = pmem::LINE as usize;

/// An inode of a snapshot.
#[derive(Clone, Copy)]
pub struct FoundInode {
    at: PmOff,
    /// Its first line; all else is zero.
    pub record: InodeRecord,
    pub kind: FileKind,
}

impl FoundInode {
    /// Returns whether the first lines are the same, without the places of content and attributes,
    /// and perhaps without the time of the last access.
    fn has_attributes_of(&self, other: &Self, atime: bool) -> bool {
        let (ours, theirs) = (self.line(), other.line());
        let times = if atime { 8..40 } else { 8..32 };
        ours[times.clone()] == theirs[times] && ours[48..] == theirs[48..]
    }

    /// Returns the first line.
    pub fn line(&self) -> [u8; LINE] {
        self.record.as_bytes()[..LINE].try_into().expect("a line")
    }
}

/// The blocks of the inode file of a snapshot.
pub struct Table<'a, M> {
    trees: &'a Trees<M>,
    root: Root,
    inodes: u64,
    /// The last block that was asked for, and its number in the file.
    leaf: Option<(u64, BlockNo)>,
}

impl<'a, M: Medium> Table<'a, M> {
    /// Begins to read the inodes of a snapshot.
    pub fn new(trees: &'a Trees<M>, entry: &TableEntry) -> Result<Self> {
        let root = trees.check_root(entry.root_word())?;
        Ok(Self { trees, root, inodes: entry.inodes(), leaf: None })
    }

    /// Returns the place of an inode.
    fn place(&mut self, number: u64) -> Result<Option<PmOff>> {
        if number >= self.inodes {
            return Ok(None);
        }
        let (leaf, at) = (number / INODES_PER_BLOCK, number * INODE);
        let block = match self.leaf {
            Some((last, block)) if last == leaf => block,
            _ => self.trees.find_block(self.root, at)?.ok_or(Errno::UCLEAN)?,
        };
        self.leaf = Some((leaf, block));
        Ok(Some(block.at(at % BLOCK)))
    }

    /// Reads the first line of an inode.
    pub fn inode(&mut self, number: u64) -> Result<Option<FoundInode>> {
        let Some(at) = self.place(number)? else { return Ok(None) };
        let mut record = InodeRecord::new_zeroed();
        self.trees.medium.read(at, &mut record.as_mut_bytes()[..LINE]);
        Ok(kind_of(&record)?.map(|kind| FoundInode { at, record, kind }))
    }

    /// Reads the progress of a snapshot that is being received: the creation of its base, and the
    /// position. `None` if the record is damaged.
    pub fn progress(&mut self) -> Result<Option<(u64, StreamPosition)>> {
        let mut bytes = [0; INODE as usize];
        self.trees.medium.read(self.place(0)?.ok_or(Errno::UCLEAN)?, &mut bytes);
        let record =
            snapshots::ProgressRecord::read_from_bytes(&bytes).map_err(|_| Errno::UCLEAN)?;
        Ok(progress_of(&record))
    }

    /// Returns a number above those of all inodes.
    fn end(&mut self) -> Result<u64> {
        let mut end = self.inodes;
        while end > INODES_PER_BLOCK {
            let first = self.place(end - INODES_PER_BLOCK)?.ok_or(Errno::UCLEAN)?;
            let mode = |i| self.trees.medium.load_u64(first + i * INODE + Word::Mode as u64) as u32;
            if (0..INODES_PER_BLOCK).any(|i| mode(i) != 0) {
                break;
            }
            end -= INODES_PER_BLOCK;
        }
        Ok(end)
    }
}

/// Returns the entry of a complete snapshot (send-E3).
fn find<M: Medium>(trees: &Trees<M>, name: &str) -> std::result::Result<TableEntry, SendError> {
    match find_entry(&trees.medium, trees.bytes, name) {
        Ok(entry) if !entry.is_incomplete() => Ok(entry),
        Ok(_) | Err(Errno::NOENT) => Err(SendError::NoSnapshot(name.to_owned())),
        Err(e) => Err(e.into()),
    }
}

/// Sends a stream: calls `sink` for each record.
///
/// # Errors
/// If there is no such stream, or the sink fails; `EUCLEAN` if the pool is damaged.
pub fn send(
    medium: &impl Medium,
    request: &SendRequest,
    sink: Sink<'_>,
) -> std::result::Result<(), SendError> {
    let trees = trees(medium)?;
    let entry = find(&trees, &request.snapshot)?;
    let base = request.base.as_ref().map(|base| find(&trees, base)).transpose()?;
    let mut new = Table::new(&trees, &entry)?;
    let mut old = base.as_ref().map(|entry| Table::new(&trees, entry)).transpose()?;
    let named =
        |e: &TableEntry| StreamSnapshot { name: e.name().to_owned(), created_ns: e.created() };
    let mut head = StreamHead {
        pool: crate::info(medium)?.uuid,
        snapshot: named(&entry),
        base: base.as_ref().map(named),
        inodes: new.end()?,
        start: StreamPosition::default(),
        bytes: 0,
    };
    if let Some(token) = request.resume {
        if token != head.token(token.position) || token.position.ino > head.inodes {
            return Err(SendError::OtherStream);
        }
        head.start = token.position;
    }
    let (start, inodes) = (head.start, head.inodes);
    sink(StreamRecord::Head(head))?;
    let settled = base.as_ref().map_or(0, |base| base.created().saturating_sub(SETTLED_NS));
    let mut sender =
        Sender { trees: &trees, settled, sink, run: None, gone: None, is_brief: false };
    let (mut digest, mut count) = (InodeDigest::default(), 0);
    for number in 1..inodes {
        let now = new.inode(number)?;
        if let Some(now) = &now {
            digest.add(number, &now.line());
            count += 1;
        }
        // send-E2.
        if number < start.ino {
            continue;
        }
        let from = if number == start.ino { start.offset } else { 0 };
        let before = old.as_mut().map_or(Ok(None), |old| old.inode(number))?;
        sender.inode(number, before.as_ref(), now.as_ref(), from)?;
    }
    sender.flush_gone()?;
    (sender.sink)(StreamRecord::End { inodes: count, digest: digest.finish() })
}

/// Returns the numbers of the inodes that two snapshots have, and that differ in attributes, names
/// or content. Reads no content.
///
/// # Errors
/// Those of [`send`].
pub fn changed(
    medium: &impl Medium,
    from: &str,
    to: &str,
) -> std::result::Result<HashSet<Ino>, SendError> {
    let trees = trees(medium)?;
    let (base, entry) = (find(&trees, from)?, find(&trees, to)?);
    let (mut old, mut new) = (Table::new(&trees, &base)?, Table::new(&trees, &entry)?);
    let mut all = HashSet::new();
    let mut sink = |record| {
        if let StreamRecord::Inode(inode) = record {
            all.insert(Ino(inode.number.get()));
        }
        Ok(())
    };
    let settled = base.created().min(entry.created()).saturating_sub(SETTLED_NS);
    let mut sender =
        Sender { trees: &trees, settled, sink: &mut sink, run: None, gone: None, is_brief: true };
    for number in 1..old.inodes.min(new.inodes) {
        let (before, now) = (old.inode(number)?, new.inode(number)?);
        sender.inode(number, before.as_ref(), now.as_ref(), 0)?;
    }
    Ok(all)
}

/// An inode, as a directory of a snapshot names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedInode {
    /// Its number.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// Its kind.
    pub kind: FileKind,
}

/// Returns the names in a directory of a complete snapshot, without a mount of it.
///
/// # Errors
/// Those of [`send`]; `EUCLEAN` if there is no such directory.
pub fn names_in_snapshot(
    medium: &impl Medium,
    name: &str,
    dir: Ino,
) -> std::result::Result<Vec<(Vec<u8>, NamedInode)>, SendError> {
    let trees = trees(medium)?;
    let dir = Table::new(&trees, &find(&trees, name)?)?.inode(dir.0)?;
    let dir = dir.filter(|dir| dir.kind == FileKind::Dir).ok_or(Errno::UCLEAN)?;
    let size = dir.record.size.get();
    if size > trees.bytes {
        return Err(Errno::UCLEAN.into());
    }
    let mut names = Vec::new();
    for offset in (0..size).step_by(BLOCK as usize) {
        let block = block_of(&trees, &dir, offset)?.ok_or(Errno::UCLEAN)?;
        for entry in entries_of(&block)? {
            let kind = FileKind::from_mode(u32::from(entry.kind) << 12).ok_or(Errno::UCLEAN)?;
            let (ino, generation) = (Ino(entry.ino.into()), entry.generation);
            names.push((entry.name, NamedInode { ino, generation, kind }));
        }
    }
    Ok(names)
}

/// Returns the attributes of the root directory of a complete snapshot, without a mount of it, and
/// whether it has extended attributes. The birth time is missing: 0.
///
/// # Errors
/// Those of [`names_in_snapshot`].
pub fn root_of_snapshot(
    medium: &impl Medium,
    name: &str,
) -> std::result::Result<(Attr, bool), SendError> {
    let trees = trees(medium)?;
    let root = Table::new(&trees, &find(&trees, name)?)?.inode(vfs::ROOT.0)?;
    let record = root.ok_or(Errno::UCLEAN)?.record;
    let names = names_in_snapshot(medium, name, vfs::ROOT)?;
    let subdirs = names.iter().filter(|(_, named)| named.kind == FileKind::Dir).count();
    let time = |ns: u64| Timestamp(ns as i64);
    let attr = Attr {
        ino: vfs::ROOT,
        generation: record.generation.get(),
        kind: FileKind::Dir,
        perm: record.mode.get() & 0o7777,
        nlink: 2 + u32::try_from(subdirs).map_err(|_| Errno::UCLEAN)?,
        uid: record.uid.get(),
        gid: record.gid.get(),
        size: record.size.get(),
        blocks: record.size.get() / 512,
        atime: time(record.atime.get()),
        mtime: time(record.mtime.get()),
        ctime: time(record.ctime.get()),
        ..Attr::NONE
    };
    Ok((attr, record.xattr.get() != 0))
}

/// Reads a block of a directory.
pub fn block_of<M: Medium>(
    trees: &Trees<M>,
    dir: &FoundInode,
    offset: u64,
) -> Result<Option<[u8; BLOCK as usize]>> {
    let root = trees.check_root(dir.record.root.get())?;
    Ok(trees.find_block(root, offset)?.map(|block| {
        let mut bytes = [0; BLOCK as usize];
        trees.medium.read(block.at(0), &mut bytes);
        bytes
    }))
}

/// Returns the entries of a block of a directory.
fn entries_of(block: &[u8; BLOCK as usize]) -> Result<Vec<StreamEntry>> {
    let mut entries = Vec::new();
    for entry in Chain::new(block) {
        let entry = entry.map_err(|_| Errno::UCLEAN)?;
        let Some(life) = entry.life else { continue };
        let at = (entry.off + DIRENT_HEADER) as usize;
        let name = block[at..at + entry.word.name_len].to_vec();
        let ino = u32::try_from(life.ino.0).map_err(|_| Errno::UCLEAN)?;
        let (generation, kind) = (life.generation, entry.word.kind);
        entries.push(StreamEntry { ino, generation, kind, name });
    }
    Ok(entries)
}

/// A range of contents that is about to be sent.
enum PendingRun {
    Data(u64, u64, Vec<u8>),
    Hole(u64, u64, u64),
}

struct Sender<'a, M> {
    trees: &'a Trees<M>,
    /// Times of change before this one are exact (send-E1).
    settled: u64,
    sink: Sink<'a>,
    run: Option<PendingRun>,
    /// Inodes that are gone, and not sent yet.
    gone: Option<Range<u64>>,
    /// Whether only the records that begin inodes are of interest.
    is_brief: bool,
}

/// An inode of which something may be sent.
struct Open<'f> {
    number: u64,
    /// Its state in the base, if it is the same inode there.
    old: Option<&'f FoundInode>,
    new: &'f FoundInode,
    /// The first byte of its content to be sent.
    from: u64,
    has_begun: bool,
}

impl<M: Medium> Sender<'_, M> {
    /// Sends what differs between two states of an inode, its content from a byte on.
    fn inode(
        &mut self,
        number: u64,
        old: Option<&FoundInode>,
        new: Option<&FoundInode>,
        from: u64,
    ) -> std::result::Result<(), SendError> {
        let Some(new) = new else {
            if old.is_some() {
                match &mut self.gone {
                    Some(gone) if gone.end == number => gone.end += 1,
                    _ => {
                        self.flush_gone()?;
                        self.gone = Some(number..number + 1);
                    }
                }
            }
            return Ok(());
        };
        // Both snapshots share its leaf.
        if from == 0 && old.is_some_and(|old| old.at == new.at) {
            return Ok(());
        }
        let generation = new.record.generation.get();
        let is_same =
            |old: &&FoundInode| old.record.generation.get() == generation && old.kind == new.kind;
        // An inode whose record is in the stream before has begun.
        let mut open = Open { number, old: old.filter(is_same), new, from, has_begun: from > 0 };
        if !open.has_begun {
            if open.old.is_none_or(|old| !old.has_attributes_of(new, !self.is_brief)) {
                self.begin(&mut open)?;
            }
            self.attributes(&mut open)?;
        }
        match new.kind {
            FileKind::File | FileKind::Symlink => self.content(&mut open)?,
            FileKind::Dir => self.names(&mut open)?,
            _ => {}
        }
        self.flush_run()
    }

    /// Sends the record that begins an inode, unless it was sent.
    fn begin(&mut self, open: &mut Open<'_>) -> std::result::Result<(), SendError> {
        if open.has_begun {
            return Ok(());
        }
        open.has_begun = true;
        self.flush_gone()?;
        let mut record = open.new.record;
        let second = LINE as u64;
        self.trees.medium.read(open.new.at + second, &mut record.as_mut_bytes()[LINE..]);
        let is_device = matches!(open.new.kind, FileKind::Char | FileKind::Block);
        (self.sink)(StreamRecord::Inode(StreamInode {
            number: open.number.into(),
            size: record.size,
            mtime: record.mtime,
            ctime: record.ctime,
            atime: record.atime,
            btime: record.btime,
            uid: record.uid,
            gid: record.gid,
            mode: record.mode,
            generation: record.generation,
            rdev: if is_device { record.rdev } else { 0.into() },
            flags: if open.old.is_some() { 0 } else { INODE_NEW }.into(),
        }))
    }

    fn flush_gone(&mut self) -> std::result::Result<(), SendError> {
        match self.gone.take() {
            Some(gone) => (self.sink)(StreamRecord::Gone(gone.start, gone.end - gone.start)),
            None => Ok(()),
        }
    }

    /// Returns whether all that is of interest was sent of an inode.
    fn is_done(&self, open: &Open<'_>) -> bool {
        self.is_brief && open.has_begun
    }

    /// Returns whether what the inode has for itself has not changed (send-E1).
    fn is_settled(&self, open: &Open<'_>) -> bool {
        let ctime = open.new.record.ctime.get();
        open.old.is_some_and(|old| old.record.ctime.get() == ctime) && ctime < self.settled
    }

    /// Sends the extended attributes, if they differ.
    fn attributes(&mut self, open: &mut Open<'_>) -> std::result::Result<(), SendError> {
        let words = (open.old.map_or(0, |old| old.record.xattr.get()), open.new.record.xattr.get());
        if words == (0, 0) || self.is_settled(open) || self.is_done(open) {
            return Ok(());
        }
        let list = |word| self.trees.load_attributes(word);
        let (old, new) = (list(words.0)?, list(words.1)?);
        if old == new {
            return Ok(());
        }
        self.begin(open)?;
        let list = new.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
        (self.sink)(StreamRecord::Attributes(open.number, list.collect()))
    }

    /// Sends the blocks of a directory that differ.
    fn names(&mut self, open: &mut Open<'_>) -> std::result::Result<(), SendError> {
        let size = open.new.record.size.get();
        if size > self.trees.bytes || !size.is_multiple_of(BLOCK) {
            return Err(Errno::UCLEAN.into());
        }
        if self.is_settled(open) {
            return Ok(());
        }
        for offset in (open.from..size).step_by(BLOCK as usize) {
            if self.is_done(open) {
                break;
            }
            let block = block_of(self.trees, open.new, offset)?.ok_or(Errno::UCLEAN)?;
            let old = match open.old {
                Some(old) if offset < old.record.size.get() => block_of(self.trees, old, offset)?,
                _ => None,
            };
            if old.is_some_and(|old| old == block) {
                continue;
            }
            let entries = entries_of(&block)?;
            self.begin(open)?;
            (self.sink)(StreamRecord::Names(open.number, offset, entries))?;
        }
        Ok(())
    }

    /// Sends the content that differs.
    fn content(&mut self, open: &mut Open<'_>) -> std::result::Result<(), SendError> {
        let (new, size) = (open.new.record.root.get(), open.new.record.size.get());
        if size > LIMITS.file_size {
            return Err(Errno::UCLEAN.into());
        }
        let (old, old_size) = match open.old {
            Some(old) => (old.record.root.get(), old.record.size.get()),
            None => (0, 0),
        };
        if (new, size) == (old, old_size) {
            return Ok(());
        }
        let new = Node::top(self.trees.check_root(new)?);
        let old = Node::top(self.trees.check_root(old)?);
        // A file that became longer: what lay behind its end counts now.
        let tail = old_size / BLOCK * BLOCK;
        let range = open.from..size;
        if size > old_size && tail < old_size {
            self.compare(open, old, new, &(range.start..range.end.min(tail)))?;
            self.compare(
                open,
                Node { block: None, ..old },
                new,
                &(range.start.max(tail)..tail + BLOCK),
            )?;
            return self.compare(open, old, new, &(range.start.max(tail + BLOCK)..range.end));
        }
        self.compare(open, old, new, &range)
    }

    /// Sends what differs between two subtrees within a range. They begin at the same byte, and may
    /// have different heights.
    fn compare(
        &mut self,
        open: &mut Open<'_>,
        old: Node,
        new: Node,
        range: &Range<u64>,
    ) -> std::result::Result<(), SendError> {
        let height = old.height.max(new.height);
        if self.is_done(open) {
            return Ok(());
        }
        if new.base >= range.end || new.base + span(height) <= range.start {
            return Ok(());
        }
        if old.block == new.block && (old.block.is_none() || old.height == new.height) {
            return Ok(());
        }
        if height == 0 {
            return match new.block {
                Some(block) => self.data(open, block, new.base),
                None => self.hole(open, new.base, BLOCK),
            };
        }
        if new.block.is_none() && range.start <= new.base {
            return self.hole(open, new.base, span(height));
        }
        let of = |node: Node| (node.height == height).then(|| self.trees.load_pointers(node.block));
        let (olds, news) = (of(old), of(new));
        for i in 0..FANOUT {
            let child = |node: Node, pointers: &Option<[Pointer; FANOUT as usize]>| -> Result<_> {
                Ok(match pointers {
                    Some(pointers) => node.child(i, self.trees.check_block(pointers[i as usize])?),
                    // A lower tree is the first child of a higher one.
                    None if i == 0 => node,
                    None => Node {
                        block: None,
                        height: height - 1,
                        base: node.base + i * span(height - 1),
                    },
                })
            };
            let (old, new) = (child(old, &olds)?, child(new, &news)?);
            self.compare(open, old, new, range)?;
        }
        Ok(())
    }

    /// Sends a block of data, as far as it lies before the end of the file.
    fn data(
        &mut self,
        open: &mut Open<'_>,
        block: BlockNo,
        at: u64,
    ) -> std::result::Result<(), SendError> {
        let len = (open.new.record.size.get() - at).min(BLOCK) as usize;
        let fits = |run: &PendingRun| {
            matches!(run, PendingRun::Data(_, start, bytes)
                if start + bytes.len() as u64 == at && bytes.len() + len <= RUN)
        };
        if self.is_brief {
            return self.begin(open);
        }
        if !self.run.as_ref().is_some_and(fits) {
            self.begin(open)?;
            self.flush_run()?;
            self.run = Some(PendingRun::Data(open.number, at, Vec::with_capacity(RUN)));
        }
        if let Some(PendingRun::Data(_, _, bytes)) = &mut self.run {
            let before = bytes.len();
            bytes.resize(before + len, 0);
            self.trees.medium.read(block.at(0), &mut bytes[before..]);
        }
        Ok(())
    }

    /// Sends a hole.
    fn hole(
        &mut self,
        open: &mut Open<'_>,
        at: u64,
        len: u64,
    ) -> std::result::Result<(), SendError> {
        if let Some(PendingRun::Hole(_, start, sum)) = &mut self.run
            && *start + *sum == at
        {
            *sum += len;
            return Ok(());
        }
        self.begin(open)?;
        self.flush_run()?;
        self.run = Some(PendingRun::Hole(open.number, at, len));
        Ok(())
    }

    fn flush_run(&mut self) -> std::result::Result<(), SendError> {
        match self.run.take() {
            Some(PendingRun::Data(ino, at, bytes)) => {
                (self.sink)(StreamRecord::Data(ino, at, bytes))
            }
            Some(PendingRun::Hole(ino, at, len)) => (self.sink)(StreamRecord::Hole(ino, at, len)),
            None => Ok(()),
        }
    }
}
