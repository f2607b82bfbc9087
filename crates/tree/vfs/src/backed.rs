//! File systems with a backing store: part of the tree lies only there, and is loaded when a call
//! needs it.
//!
//! - backed-K1: a call that needs what is absent fails with [`ABSENT`] and changes nothing. Its
//!   caller loads what the call covers and repeats the call.
//! - backed-K2: an inode or block that is marked clean equals that of the backing store. The mark
//!   goes durably before the first change, or with it.
//! - backed-K3: only what is marked clean becomes absent.
//! - backed-K4: an object that others change differs from what is marked clean. The stamp of the
//!   object tells that, until the inode is [reloaded](Backed::reload).
//!
//! The time of the last access is not part of what a mark covers.

use crate::{Attr, Errno, FileKind, FileSystem, Ino, Result};
use std::ops::Range;

/// The error of a call that needs what only the backing store has. Front ends never pass it on.
pub const ABSENT: Errno = Errno::REMOTE;

/// Longest identity of an object in the backing store, in bytes.
pub const IDENTITY_MAX: usize = 39;

/// The parts of an inode that a pool has, and its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residence {
    /// Whether names, attributes and size equal those of the backing object.
    pub is_clean: bool,
    /// Whether the entries of this directory are not all in the pool.
    pub are_names_absent: bool,
    /// Whether write-back may have changed its object since the stamp.
    pub is_busy: bool,
    /// Whether its content and its name stay in the pool ([`Backed::set_pinned`]).
    pub is_pinned: bool,
    /// The stamp of its object, when they were equal the last time; 0: it has no stamp. Of a busy
    /// directory, the mark of [`Backed::begin_names_back`].
    pub stamp: u32,
    /// The number of names of this file that only the backing store has.
    pub absent_links: u32,
    /// The identity of its backing object; empty if it has no object yet.
    pub identity: Vec<u8>,
}

/// An object of the backing store that gets an inode.
#[derive(Clone, Debug)]
pub struct LoadedObject<'a> {
    /// Its attributes; `ino`, `generation` and `blocks` do not count.
    pub attr: Attr,
    /// Its identity, of 1 to [`IDENTITY_MAX`] bytes.
    pub identity: &'a [u8],
    /// A value that is another one when the object has changed. Devices, and objects without such a
    /// value, have 0.
    pub stamp: u32,
    /// The target of a symbolic link; else empty.
    pub target: &'a [u8],
    /// Its extended attributes, access control lists included.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// The calls that end when their changes are in the backing store, durably there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitingCalls {
    /// None: the pool has the changes.
    #[default]
    Nothing,
    /// Syncs.
    Syncs,
    /// Syncs, and calls that change the content of files.
    Writes,
}

/// A count of changes that the backing store lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyCount {
    /// Inodes with names that are not marked clean.
    pub inodes: u64,
    /// Bytes of content of these inodes that are in the pool and not marked clean, in whole blocks.
    pub bytes: u64,
}

/// A file system whose pool has a backing store. One process loads, cleans and evicts: the server.
///
/// These calls fail with `EOPNOTSUPP` if the pool has no backing store. A call that changes
/// something fails with `EROFS` on a read-only mount.
pub trait Backed: FileSystem {
    /// Returns which parts of an inode the pool has.
    fn residence(&self, ino: Ino) -> Result<Residence>;

    /// Adds a name to a directory whose names are absent, and a clean inode for it. The content of
    /// a file and the names of a directory are absent. Adds a reference.
    ///
    /// # Errors
    /// `EINVAL` if the names are there, or if the identity is too long; `EEXIST`; `ENOSPC`.
    fn load_name(&self, dir: Ino, name: &[u8], object: &LoadedObject<'_>) -> Result<Ino>;

    /// Adds another name for a file to a directory whose names are absent: one of its absent links.
    ///
    /// # Errors
    /// As [`load_name`](Self::load_name), and `EPERM` for a directory.
    fn load_link(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<()>;

    /// Ends the loading of a directory: all of its names are in the pool from now on.
    fn finish_names(&self, dir: Ino) -> Result<()>;

    /// Ends the search for the absent links of a file: it has no others in this tree. A crash may
    /// bring back absent links that [`load_link`](Self::load_link) or this call has taken away;
    /// they cost another search.
    fn finish_links(&self, ino: Ino) -> Result<()>;

    /// Returns the first absent range of a file's content at or after `from`: whole blocks, up to
    /// the end of the file.
    fn absent_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>>;

    /// Stores content where it is absent; other content stays. `offset` is a multiple of 4096. So
    /// is the end, unless it is the end of the file. Returns the number of bytes that were absent.
    /// After a crash of the machine, they may be absent again.
    fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64>;

    /// Makes absent blocks in `range` holes, which the backing store has there. A block that lies
    /// only in part in the range stays absent, unless the rest of it is behind the file.
    fn load_hole(&self, ino: Ino, range: Range<u64>) -> Result<()>;

    /// Returns the first range at or after `from` whose blocks are in the pool and not marked
    /// clean. A hole is not such a block.
    fn dirty_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>>;

    /// Returns the first range at or after `from` whose blocks are in the pool and marked clean.
    fn clean_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>>;

    /// Returns the first range at or after `from` that is a hole in the pool, in whole blocks.
    fn hole_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>>;

    /// Marks the blocks of a file that lie in `range` clean, if the file has not changed since it
    /// had this [version](FileSystem::version). Then returns the version that this call leaves:
    /// further calls of this kind may name that one. Otherwise returns `None`. Durable on return.
    ///
    /// # Errors
    /// `EINVAL` if the file has no object.
    fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> Result<Option<u64>>;

    /// Records the backing object of an inode, durably. The inode is busy from now on.
    ///
    /// # Errors
    /// `EINVAL` if the identity is too long. `EBUSY` if a part of the inode is absent or marked
    /// clean: that belongs to the object that it had.
    fn set_identity(&self, ino: Ino, identity: &[u8]) -> Result<()>;

    /// Notes that the object of an inode is about to change by write-back: the inode is busy until
    /// it is clean. Durable on return.
    fn begin_write_back(&self, ino: Ino) -> Result<()>;

    /// As [`begin_write_back`](Self::begin_write_back), for a directory whose names are about to
    /// change below. If it was not busy, or has no stamp, `mark` takes the place of the stamp until
    /// the directory is clean.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else.
    fn begin_names_back(&self, dir: Ino, mark: u32) -> Result<()>;

    /// Marks an inode clean, and records the stamp of its object, if the inode has not changed
    /// since `version`. The result and the errors are those of
    /// [`clean_content`](Self::clean_content).
    fn clean_inode(&self, ino: Ino, version: u64, stamp: u32) -> Result<Option<u64>>;

    /// Gives an inode that is marked clean the attributes, extended attributes and stamp of its
    /// object, which others have changed since it had the stamp `was`. The content of a file
    /// becomes absent. The names of a directory stay: its caller has made them equal. All of this
    /// happens in a step that is durable on return. Returns whether it was done: not if the inode
    /// or its content is dirty, or if it has another stamp.
    ///
    /// # Errors
    /// `EINVAL` if the object is another one, or of another kind; `ENOSPC`.
    fn reload(&self, ino: Ino, object: &LoadedObject<'_>, was: u32) -> Result<bool>;

    /// As [`reload`](Self::reload), also if the inode or its content is dirty: its changes are gone
    /// then. Not if it is busy. Fails with `EISDIR` for a directory.
    fn replace(&self, ino: Ino, object: &LoadedObject<'_>, was: u32) -> Result<bool>;

    /// Takes the marks off an inode and its content: all of it that is in the pool counts as
    /// changed. Durable on return.
    fn make_dirty(&self, ino: Ino) -> Result<()>;

    /// Records the stamp of the object of a dirty inode, if it had the stamp `was`: from now on,
    /// the inode differs from this state of its object by its own changes. Returns whether it did
    /// so. Durable on return.
    fn note_stamp(&self, ino: Ino, was: u32, stamp: u32) -> Result<bool>;

    /// Makes the names of a directory absent and keeps its entries, so that no name in it changes
    /// until [`finish_names`](Self::finish_names), except by its caller. A crash may undo it.
    fn begin_names(&self, dir: Ino) -> Result<()>;

    /// Calls `each` with every name of a directory that is in the pool, whether others are absent
    /// or not.
    fn each_name(&self, dir: Ino, each: &mut dyn FnMut(&[u8], Ino, FileKind)) -> Result<()>;

    /// Removes a name that the backing store does not have any more from a directory whose names
    /// are absent. Durable on return. Returns whether it did so: not if the name does not lead to
    /// `ino`, or is the last one of an inode with something dirty, or leads to a directory with
    /// entries.
    ///
    /// # Errors
    /// `EINVAL` if the names are there.
    fn unload_name(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<bool>;

    /// As [`unload_name`](Self::unload_name), also if something of the inode is dirty: with its
    /// last name, its changes are gone.
    fn drop_name(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<bool>;

    /// Calls `each` with every inode that is in use, whether it has a name or not, and its
    /// residence.
    fn each_inode(&self, each: &mut dyn FnMut(Ino, &Residence)) -> Result<()>;

    /// Pins an inode, or unpins it. The names that lead to a pinned inode are not evicted. The pool
    /// only records what its user makes of the content. Durable on return; a pin ends with the
    /// inode.
    fn set_pinned(&self, ino: Ino, is_pinned: bool) -> Result<()>;

    /// Returns whether changes of the content of a file wait for the backing store because of its
    /// attribute `user.keepstone.data`, whatever [`through`](Self::through) returns.
    fn is_through(&self, ino: Ino) -> Result<bool>;

    /// Returns whether any process has used an inode since the last call of this kind: it has read
    /// or written its content, or changed it otherwise. The calls of this trait are no uses.
    /// `false` if the inode is gone.
    fn take_use(&self, ino: Ino) -> bool;

    /// Sets which calls of all processes that use the pool wait for the backing store
    /// ([`Loader`](crate::Loader)). The calls of this trait never do.
    fn set_through(&self, through: WaitingCalls);

    /// Returns what was [set](Self::set_through).
    fn through(&self) -> WaitingCalls;

    /// Makes the blocks in `range` absent that are marked clean. Returns the number of bytes that
    /// became free.
    fn evict_content(&self, ino: Ino, range: Range<u64>) -> Result<u64>;

    /// Makes the names of a directory absent, if the directory and everything that it names are
    /// clean and unused: no process has a reference. A directory in it must have absent names
    /// itself, and a file no other loaded name; nothing in it is pinned. Returns whether it did so.
    ///
    /// The cookies of its entries change. So a process that lists a directory over several calls
    /// has to hold a reference meanwhile.
    fn evict_names(&self, dir: Ino) -> Result<bool>;

    /// Returns what the backing store lacks, without a look at inodes. Changes that other threads
    /// are making may count in part.
    fn dirty_count(&self) -> DirtyCount;

    /// Returns the number of bytes that files gained, in whole blocks, and that were not settled.
    fn gained(&self) -> u64;

    /// Counts bytes as gained.
    fn gain(&self, bytes: u64);

    /// Notes that this number of bytes was written back: files may gain as many again.
    fn settle(&self, bytes: u64);

    /// Limits what files may gain without being settled: calls beyond that give `ENOSPC`. At first
    /// there is no limit.
    fn limit_growth(&self, bytes: u64);
}
