//! File systems with a backing store: part of the tree lies only there, and is loaded when a call needs it.
//!
//! - backed-K1: a call that needs what is absent fails with [`ABSENT`] and changes nothing. Its caller loads what the call
//!   covers and repeats it.
//! - backed-K2: what is marked clean equals what the backing store has. The mark is taken off durably before the first change,
//!   or with it.
//! - backed-K3: only what is clean becomes absent.

use crate::{Attr, Errno, FileSystem, Ino, Result};
use std::ops::Range;

/// The error of a call that needs what only the backing store has. Front ends never pass it on.
pub const ABSENT: Errno = Errno::REMOTE;

/// Longest identity of an object in the backing store, in bytes.
pub const IDENTITY_MAX: usize = 39;

/// Where an inode and what belongs to it lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residence {
    /// Names, attributes and size equal those of the backing object.
    pub is_clean: bool,
    /// The entries of this directory are not all in the pool.
    pub are_names_absent: bool,
    /// Which object of the backing store it is; empty if there is none yet.
    pub identity: Vec<u8>,
}

/// An object of the backing store that gets an inode.
#[derive(Clone, Debug)]
pub struct LoadedObject<'a> {
    /// Its attributes; `ino`, `generation` and `blocks` do not count.
    pub attr: Attr,
    /// Its identity, 1 to [`IDENTITY_MAX`] bytes.
    pub identity: &'a [u8],
    /// The target of a symbolic link; else empty.
    pub target: &'a [u8],
    /// Its extended attributes, access control lists included.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// A file system whose pool has a backing store. One process loads, cleans and evicts: the server.
pub trait Backed: FileSystem {
    /// Where an inode lies.
    fn residence(&self, ino: Ino) -> Result<Residence>;

    /// Adds a name to a directory whose names are absent, and an inode for it, clean; the content of a file and the names of a
    /// directory are absent. Adds a reference. `EINVAL` if the names are there, `EEXIST`.
    fn load_name(&self, dir: Ino, name: &[u8], object: &LoadedObject<'_>) -> Result<Ino>;

    /// Adds another name for an inode to a directory whose names are absent. Errors as [`load_name`](Self::load_name).
    fn load_link(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<()>;

    /// Ends the loading of a directory: its names are all there from now on.
    fn finish_names(&self, dir: Ino) -> Result<()>;

    /// The first absent range of a file's content at or after `from`, in whole blocks.
    fn absent_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>>;

    /// Puts content where it is absent; what is there stays. `offset` is a multiple of 4096, and so is the end unless it is
    /// the end of the file. Returns the number of bytes that were absent.
    fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64>;

    /// The first range at or after `from` whose blocks are in the pool and not marked clean.
    fn dirty_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>>;

    /// Marks blocks of a file clean that were read when its [version](FileSystem::version) was this one, unless it changed
    /// meanwhile; returns whether it did so.
    fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> Result<bool>;

    /// Marks an inode clean, which is this object of the backing store, unless it changed since `version`; returns whether it
    /// did so.
    fn clean_inode(&self, ino: Ino, identity: &[u8], version: u64) -> Result<bool>;

    /// Makes blocks of a range absent that are marked clean; returns the number of bytes that are free then.
    fn evict_content(&self, ino: Ino, range: Range<u64>) -> Result<u64>;

    /// Makes the names of a directory absent, if it and all that they name are clean, absent themselves as far as they are
    /// directories, and unused; returns whether it did so.
    fn evict_names(&self, dir: Ino) -> Result<bool>;
}
