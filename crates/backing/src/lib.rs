//! A directory tree of another file system behind the contract [`vfs::FileSystem`]: what a cache has below it.
//!
//! [`Backing`] says what a cache needs of it beside files: identities that outlive the process, metadata made durable by
//! itself, and the space that is left. [`DirFs`] is a directory of a kernel file system; `model` (a cargo feature of this
//! name) is the contract's model with faults and crashes, for tests of what is above.

#![warn(missing_docs)]

mod caller;
mod descriptors;
mod dirfs;
mod locks;
#[cfg(feature = "model")]
pub mod model;
mod nodes;
mod sys;

pub use dirfs::{DirFs, Options};

use vfs::{Entry, FileSystem, Ino, Result};

/// What a file is called for as long as it exists, whatever its names: its file handle (`name_to_handle_at(2)`), or where the
/// file system has none its device and inode number; and its birth time. Opaque bytes, at most [`Identity::LEN_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub Vec<u8>);

impl Identity {
    /// No identity is longer, in bytes.
    pub const LEN_MAX: usize = 160;
}

/// A file system that a cache can be put over.
pub trait Backing: FileSystem {
    /// The identity of an inode that is referenced.
    fn identity(&self, ino: Ino) -> Result<Identity>;

    /// The inode of an identity, with a reference more, as [`lookup`](FileSystem::lookup) gives it. `hint` is a path relative
    /// to the root by which it was reached last: it is asked first where inodes cannot be opened by their identity, before the
    /// whole tree is.
    ///
    /// # Errors
    /// `ESTALE` where it exists no more, and only then: whatever keeps it from being found is passed on as it is.
    fn find(&self, identity: &Identity, hint: &[u8]) -> Result<Entry>;

    /// A path of the inode relative to the root (the root's is empty), for messages and hints, if one is known.
    fn path(&self, ino: Ino) -> Option<Vec<u8>>;

    /// Makes an inode's creation, names and attributes durable, but not necessarily what it holds: size and times that come
    /// of writing belong to that. Does nothing where nothing of these changed through this object since the last time. `EIO`
    /// where they are not known to be durable.
    fn sync_metadata(&self, ino: Ino) -> Result<()>;

    /// Whether an inode's own creation and names are known to be durable, as far as they changed through this object.
    fn is_placed(&self, ino: Ino) -> bool;

    /// Bytes that can still be written, asked anew each time.
    fn room(&self) -> Result<u64>;
}
