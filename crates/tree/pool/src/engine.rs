//! An engine that has opened a pool.

use crate::{FreeSpace, MountReport};
use arena::Paused;
use mounts::MountEvents;
use pmem::Region;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use vfs::{FileSystem, Ino, Result};

/// A pool that is open, with what front ends need beside its files.
///
/// Several processes may have the same pool open ([`place`](crate::place)), unless the engine is [`Alone`].
pub trait Engine: FileSystem + MountEvents + Processes {
    /// The memory that the pool lies in.
    fn region(&self) -> &Region;

    /// The descriptors that it keeps open: for those who live in a program that is to know nothing of them.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// What mounting found.
    fn mount_report(&self) -> &MountReport;

    /// How free space lies, read from the derived state: in time that grows with the pool, and without a lock, so that
    /// it is exact where nobody else works.
    fn free_space(&self) -> FreeSpace;

    /// Whether accesses to files, and to directories, change their access times, for all who use the pool: each does
    /// (`strictly`), or only where `relatime` would record it. As long as nobody says so they do, as `relatime` would.
    fn record_access(&self, files: bool, dirs: bool, strictly: bool);

    /// The content of a file from `offset` on without a copy (Chell §6): up to `count` bytes, fewer
    /// at the end of the file, where the file is not contiguous, and in holes.
    /// What is replaced meanwhile is not used again before all such buffers are dropped.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<ReadBuf<'_>>;

    /// Does a bounded step of what may wait until somebody has time for it; whether more is to be done. To be called now and then
    /// by somebody who stays.
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` where the pool is lost or damaged.
    fn maintain(&self) -> Result<bool> {
        Ok(false)
    }

    /// What dropping a [`ReadBuf`] does; for those whose buffers have no owner in Rust, and who have
    /// forgotten them ([`std::mem::forget`]).
    fn put_read_buf(&self);
}

/// What an engine does about the other processes that have the pool open.
pub trait Processes {
    /// Clears away what processes that died have left: to be called now and then by somebody who
    /// stays. Returns how many there were.
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` where the pool is lost or damaged.
    fn reap_processes(&self) -> Result<usize>;

    /// Lets those into the shared state who may open the pool meanwhile, and nobody else.
    ///
    /// # Errors
    /// Of the system.
    fn follow_owner(&self) -> io::Result<()>;

    /// Keeps the other threads of this process out of the pool until dropped: before `execve`,
    /// which would kill them anywhere.
    fn pause(&self) -> Option<Paused<'_>>;

    /// Before a fork: until [`end_fork`](Self::end_fork), what this process holds stays, also if it dies.
    fn begin_fork(&self);

    /// In the child of a fork, before [`end_fork`](Self::end_fork): takes a reference of its own to an inode that its parent
    /// holds.
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` where the pool is lost or damaged.
    fn inherit(&self, ino: Ino) -> Result<()>;

    /// In the child of a fork, when it has taken references for what it inherits; and in the parent, when it
    /// has or there is no child.
    fn end_fork(&self);
}

/// An engine whose pools one process uses at a time.
pub trait Alone: Send + Sync {}

impl<T: Alone + FileSystem> Processes for T {
    fn reap_processes(&self) -> Result<usize> {
        Ok(0)
    }

    fn follow_owner(&self) -> io::Result<()> {
        Ok(())
    }

    fn pause(&self) -> Option<Paused<'_>> {
        None
    }

    fn begin_fork(&self) {}

    fn inherit(&self, ino: Ino) -> Result<()> {
        self.lookup(ino, b".").map(drop)
    }

    fn end_fork(&self) {}
}

/// Bytes of a file, where they are. They stay what they are until dropped, except for writes in
/// place; a thread that holds one may call the file system.
pub struct ReadBuf<'a> {
    engine: &'a dyn Engine,
    bytes: &'a [AtomicU8],
}

impl<'a> ReadBuf<'a> {
    /// Gives back to the engine what it has lent, when dropped.
    pub fn new(engine: &'a dyn Engine, bytes: &'a [AtomicU8]) -> Self {
        Self { engine, bytes }
    }
}

impl Deref for ReadBuf<'_> {
    type Target = [AtomicU8];

    fn deref(&self) -> &[AtomicU8] {
        self.bytes
    }
}

impl Drop for ReadBuf<'_> {
    fn drop(&mut self) {
        self.engine.put_read_buf();
    }
}
