//! Backing stores of a cache: directory trees of other file systems behind the contract
//! [`vfs::FileSystem`].
//!
//! [`Backing`] adds to that contract what a cache needs: identities that outlive the process,
//! separate syncs of metadata, and reports of changes by others. [`DirFs`] is a directory of a
//! kernel file system. `model` (behind a cargo feature of this name) is the contract's model with
//! faults and crashes, for tests of caches.

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
pub use dirfs::{DirFs, DirOptions};

use std::time::Duration;
use vfs::{Entry, Errno, FileSystem, Ino, Result};

/// The identity of a file, which stays the same as long as the file exists, whatever its names. It
/// consists of the file handle (`name_to_handle_at(2)`), of a number for a handle that is too long,
/// or of device and inode number if the file system has no handles; and of the birth time. Opaque
/// bytes, at most [`Identity::LEN_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub Vec<u8>);

impl Identity {
    /// The maximum length of an identity, in bytes.
    pub const LEN_MAX: usize = vfs::IDENTITY_MAX;
}

/// A file system that can back a cache.
pub trait Backing: FileSystem {
    /// Returns the identity of a referenced inode.
    fn identity(&self, ino: Ino) -> Result<Identity>;

    /// Finds the inode of an identity and adds a reference to it, as [`lookup`](FileSystem::lookup)
    /// does. May search the whole tree, if inodes cannot be opened by their identity.
    ///
    /// # Errors
    /// `ESTALE` if and only if the inode no longer exists. Any other error that prevents finding it
    /// is returned unchanged.
    fn find(&self, identity: &Identity) -> Result<Entry>;

    /// Makes an inode's creation, names and attributes durable, but not necessarily its content;
    /// the size and the times that writes change belong to the content. Does nothing if none of
    /// these changed through this object since the last call. `EIO` if they are not known to be
    /// durable.
    fn sync_metadata(&self, ino: Ino) -> Result<()>;

    /// Starts to watch for changes by other processes. Called once, before a front end looks up
    /// anything.
    ///
    /// # Errors
    /// `EPERM` if the process may not watch; `EOPNOTSUPP` if the file system cannot report changes.
    fn watch(&self, _how: Watch) -> Result<Reach> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the part of an identity by which [`wait_for_changes`](Self::wait_for_changes) knows
    /// its inode.
    fn key<'i>(&self, identity: &'i [u8]) -> &'i [u8] {
        identity
    }

    /// Waits until other processes have changed something, at most for `limit`, and calls `tell`
    /// for every change. `number` returns the caller's own number of the inode with this
    /// [key](Self::key), if the caller knows it; only changes of such inodes are reported, with
    /// these numbers. With [`Reach::Directories`], the kernel may have dropped the mark of a
    /// directory that is not referenced. Only one thread may call it at a time. `tell` may take
    /// long, as it is called without a lock.
    ///
    /// # Errors
    /// An error if changes are not watched, or no longer.
    fn wait_for_changes(
        &self,
        _limit: Duration,
        _number: &dyn Fn(&[u8]) -> Option<Ino>,
        _tell: &mut dyn FnMut(Change),
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Whether a sync of one inode makes all of the backing store durable, and takes as long.
    fn syncs_as_whole(&self) -> bool {
        false
    }

    /// Makes other processes that open a file by a name in this directory wait for an answer
    /// ([`Opening`]), until the backing ends. Does nothing except with [`Watch::Permission`].
    ///
    /// # Errors
    /// An error if they would not wait.
    fn guard_names(&self, _dir: Ino) -> Result<()> {
        Ok(())
    }

    /// Waits until other processes open files by [guarded names](Self::guard_names), at most for
    /// `limit`, and calls `tell` for each. Only one thread may call it at a time. Every such
    /// opening in the system waits for this thread. So `tell` must not open a file by a guarded
    /// name, nor wait for another thread that uses the backing, or for a lock that it holds.
    ///
    /// # Errors
    /// The error of a single opening, which was permitted.
    fn wait_for_openings(&self, _limit: Duration, _tell: &mut dyn FnMut(Opening)) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Implements all methods of [`Backing`] by calls of the same methods of another object, as
/// [`vfs::forward!`] does for those of files.
#[macro_export]
macro_rules! forward {
    ($this:ident => $to:expr) => {
        fn identity(&$this, ino: ::vfs::Ino) -> ::vfs::Result<$crate::Identity> {
            $to.identity(ino)
        }
        fn find(&$this, identity: &$crate::Identity) -> ::vfs::Result<::vfs::Entry> {
            $to.find(identity)
        }
        fn sync_metadata(&$this, ino: ::vfs::Ino) -> ::vfs::Result<()> {
            $to.sync_metadata(ino)
        }
        fn watch(&$this, how: $crate::Watch) -> ::vfs::Result<$crate::Reach> {
            $to.watch(how)
        }
        fn key<'i>(&$this, identity: &'i [u8]) -> &'i [u8] {
            $to.key(identity)
        }
        fn wait_for_changes(
            &$this,
            limit: ::std::time::Duration,
            number: &dyn Fn(&[u8]) -> Option<::vfs::Ino>,
            tell: &mut dyn FnMut($crate::Change),
        ) -> ::vfs::Result<()> {
            $to.wait_for_changes(limit, number, tell)
        }
        fn syncs_as_whole(&$this) -> bool {
            $to.syncs_as_whole()
        }
        fn guard_names(&$this, dir: ::vfs::Ino) -> ::vfs::Result<()> {
            $to.guard_names(dir)
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
