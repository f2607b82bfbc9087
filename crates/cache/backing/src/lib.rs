//! A directory tree of another file system behind the contract [`vfs::FileSystem`]: what a cache has below it.
//!
//! [`Backing`] says what a cache needs of it beside files: identities that outlive the process, metadata made durable by
//! itself, and the space that is left. [`DirFs`] is a directory of a kernel file system; `model` (a cargo feature of this
//! name) is the contract's model with faults and crashes, for tests of what is above.

#![warn(missing_docs)]

mod behind;
mod caller;
mod descriptors;
mod dirfs;
mod fanotify;
mod locks;
#[cfg(feature = "model")]
pub mod model;
mod nodes;
mod sys;

pub use behind::{Change, Opening, Reach, Watch};
pub use dirfs::{DirFs, Options};

use std::time::Duration;
use vfs::{Entry, Errno, FileSystem, Ino, Result};

/// What a file is called for as long as it exists, whatever its names: its file handle (`name_to_handle_at(2)`), or where the
/// file system has none its device and inode number; and its birth time. Opaque bytes, at most [`Identity::LEN_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub Vec<u8>);

impl Identity {
    /// No identity is longer, in bytes.
    pub const LEN_MAX: usize = 160;
}

/// How a file is kept from being changed, also by the superuser (`chattr(1)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frozen {
    /// It is not.
    #[default]
    No,
    /// Only bytes at its end can be added.
    AppendOnly,
    /// It is immutable.
    Immutable,
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

    /// How a file is kept from being changed. Each call asks the file system.
    fn frozen(&self, _ino: Ino) -> Result<Frozen> {
        Ok(Frozen::No)
    }

    /// Bytes that can still be written, asked anew each time.
    fn room(&self) -> Result<u64>;

    /// Number of changes of names and attributes that only this process has, and that a sync would save. 0 for a kernel file
    /// system, and if no sync can save them any more.
    fn pending_changes(&self) -> u64 {
        0
    }

    /// Begins to notice what others do, so. Once, before a front end looks anything up.
    ///
    /// # Errors
    /// `EPERM` where the process may not; `EOPNOTSUPP` where what is below cannot tell.
    fn watch(&self, _how: Watch) -> Result<Reach> {
        Err(Errno::OPNOTSUPP)
    }

    /// Waits until others have changed something, or for so long, and calls `tell` for all that they have. By one thread at a
    /// time, which `tell` may keep for long: it is called without a lock.
    ///
    /// # Errors
    /// Where changes are not noticed (any more).
    fn wait_for_changes(&self, _limit: Duration, _tell: &mut dyn FnMut(Change)) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// From now on others who open the file wait until they are answered. Does nothing but with [`Watch::Permission`].
    ///
    /// # Errors
    /// Where they would not.
    fn guard(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    /// They wait no more.
    fn unguard(&self, _ino: Ino) {}

    /// Waits until others open a guarded file, or for so long, and calls `tell` for each. By one thread at a time, on which
    /// every such opening in the system waits: so neither this nor `tell` opens a guarded file, or waits for one who does.
    ///
    /// # Errors
    /// Of single openings, which were refused then.
    fn wait_for_openings(&self, _limit: Duration, _tell: &mut dyn FnMut(Opening)) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Implements all methods of [`Backing`] by calling the same of another one, as [`vfs::forward!`] does those of files.
#[macro_export]
macro_rules! forward {
    ($this:ident => $to:expr) => {
        fn identity(&$this, ino: ::vfs::Ino) -> ::vfs::Result<$crate::Identity> {
            $to.identity(ino)
        }
        fn find(&$this, identity: &$crate::Identity, hint: &[u8]) -> ::vfs::Result<::vfs::Entry> {
            $to.find(identity, hint)
        }
        fn path(&$this, ino: ::vfs::Ino) -> Option<Vec<u8>> {
            $to.path(ino)
        }
        fn sync_metadata(&$this, ino: ::vfs::Ino) -> ::vfs::Result<()> {
            $to.sync_metadata(ino)
        }
        fn is_placed(&$this, ino: ::vfs::Ino) -> bool {
            $to.is_placed(ino)
        }
        fn frozen(&$this, ino: ::vfs::Ino) -> ::vfs::Result<$crate::Frozen> {
            $to.frozen(ino)
        }
        fn room(&$this) -> ::vfs::Result<u64> {
            $to.room()
        }
        fn pending_changes(&$this) -> u64 {
            $to.pending_changes()
        }
        fn watch(&$this, how: $crate::Watch) -> ::vfs::Result<$crate::Reach> {
            $to.watch(how)
        }
        fn wait_for_changes(
            &$this,
            limit: ::std::time::Duration,
            tell: &mut dyn FnMut($crate::Change),
        ) -> ::vfs::Result<()> {
            $to.wait_for_changes(limit, tell)
        }
        fn guard(&$this, ino: ::vfs::Ino) -> ::vfs::Result<()> {
            $to.guard(ino)
        }
        fn unguard(&$this, ino: ::vfs::Ino) {
            $to.unguard(ino);
        }
        fn wait_for_openings(
            &$this,
            limit: ::std::time::Duration,
            tell: &mut dyn FnMut($crate::Opening),
        ) -> ::vfs::Result<()> {
            $to.wait_for_openings(limit, tell)
        }
    };
}
