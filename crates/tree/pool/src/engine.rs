//! An engine that has opened a pool.

use crate::{DurabilityMode, FreeSpace, MountReport, Snapshots, TreeSource};
use arena::Paused;
use mounts::MountEvents;
use pmem::Region;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use vfs::{Backed, Cloned, FileSystem, Ino, Result};

/// A pool that is open, with the functions that front ends need besides file access.
///
/// Several processes may have the same pool open ([`place`](crate::place)), unless the engine is
/// [`Alone`].
pub trait Engine: FileSystem + MountEvents + Processes {
    /// Returns the memory that the pool lies in.
    fn region(&self) -> &Region;

    /// Returns the descriptors that the engine keeps open, for front ends that hide them from the
    /// program in which they run.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns the findings of the mount.
    fn mount_report(&self) -> &MountReport;

    /// Reads from the derived state how free space lies. This takes time that grows with the pool.
    /// It takes no lock, so the answer is exact only while nothing changes.
    fn free_space(&self) -> FreeSpace;

    /// Sets whether accesses to `files` and to `dirs` update access times, for all processes that
    /// use the pool. With `strictly`, each access does; otherwise only one that `relatime` would
    /// record. The initial state is `(true, true, false)`.
    fn record_access(&self, files: bool, dirs: bool, strictly: bool);

    /// Sets the time at which operations are durable, for all processes that use the pool, from now
    /// on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the engine does not have this mode; that of
    /// [`FileSystem::sync`] otherwise.
    fn set_durability(&self, mode: DurabilityMode) -> Result<()> {
        if mode == DurabilityMode::default() { Ok(()) } else { Err(vfs::Errno::OPNOTSUPP) }
    }

    /// Returns the mode that was set.
    fn durability_mode(&self) -> DurabilityMode {
        DurabilityMode::default()
    }

    /// Lends the content of a file from `offset` on without a copy (Chell §6): up to `count` bytes,
    /// fewer at the end of the file, at the end of a contiguous piece, and in holes. Blocks that
    /// are replaced meanwhile are not used again before all such buffers are dropped.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<ReadBuf<'_>>;

    /// Does a bounded step of deferred work; returns whether more is to be done. Long-lived
    /// processes call this periodically.
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` if the pool is lost or damaged.
    fn maintain(&self) -> Result<bool> {
        Ok(false)
    }

    /// Gives the space of free blocks back to the file system that holds the pool, if the pool is
    /// thin. Other processes may use the pool meanwhile.
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` if the pool is lost or damaged.
    fn trim(&self) -> Result<()> {
        Ok(())
    }

    /// Gives the pool another size in bytes, rounded down to 64 KiB, up to
    /// [`PoolInfo::max_size_bytes`](crate::PoolInfo::max_size_bytes). Other processes may use the
    /// pool meanwhile. Returns the size.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if this pool can get another size only while no process uses it, `EINVAL` if it
    /// cannot have this one; `ENOSPC` if it has more in use, or if its free blocks lie between
    /// those in use.
    fn resize(&self, _bytes: u64) -> Result<u64> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Returns the snapshots of the pool; with `held`, also the space that they take.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the pool can have none; `EUCLEAN` if it is damaged.
    fn snapshots(&self, _held: bool) -> Result<Snapshots> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Makes a snapshot: the state of the pool when all operations that have begun have ended.
    /// Operations of all processes wait meanwhile. In a pool of one process, the caller ensures
    /// that no other thread is inside an operation.
    ///
    /// # Errors
    /// `EINVAL` if no snapshot can have this name, `EEXIST` if one has it, `EMLINK` if there are
    /// too many, `ENOSPC` if there is no space, `EOPNOTSUPP` if the pool can have none.
    fn create_snapshot(&self, _name: &str) -> Result<()> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Deletes a snapshot. All blocks that only it held become free.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot, `EBUSY` if it is mounted, `EOPNOTSUPP` if the pool
    /// can have none.
    fn delete_snapshot(&self, _name: &str) -> Result<()> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Returns the directory of branches: each directory in it is the root of a branch, by its
    /// name, or by one that [`split_branch`](crate::split_branch) knows. Ordinary calls make and
    /// remove them. `None` if the pool has no such directory, unless `creates`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the pool can have no branches; those of [`FileSystem::create`].
    fn branches_dir(&self, _creates: bool) -> Result<Option<Ino>> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Makes a branch the tree of the pool, in one step. The tree before loses its names:
    /// open files live on until they are closed. Operations of all processes wait meanwhile. In a
    /// pool of one process, the pool has to be opened again afterwards.
    ///
    /// # Errors
    /// `EAGAIN` if `base` names a snapshot, and the tree of the pool differs from that; `EBUSY` if
    /// the branch is mounted; `ENOENT` if there is no such branch or snapshot, `EOPNOTSUPP` if the
    /// pool can have none.
    fn commit_branch(&self, _name: &str, _base: Option<&str>) -> Result<()> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Makes a copy of a directory tree at a new name, in one step: it appears as a whole, or not
    /// at all. It shares the contents of files with the source; all else is as
    /// [`vfs::clone_tree()`] promises. The caller ensures that the name lies outside of a source in
    /// the pool. A copy of a snapshot in the [directory of branches](Self::branches_dir) is a
    /// branch.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot; `EOPNOTSUPP` if the engine cannot do it in one step;
    /// those of [`vfs::clone_tree()`].
    fn copy_tree(&self, _from: &TreeSource<'_>, _to: (Ino, &[u8])) -> Result<Cloned> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Makes a file have the content of a file in a snapshot of the pool, by sharing it, in one
    /// step. `from` is the inode number in the snapshot.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot, `ESTALE` if it has no such inode; those of
    /// [`FileSystem::clone_range`].
    fn clone_from_snapshot(&self, _name: &str, _from: Ino, _to: Ino) -> Result<()> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Returns a number for the content of a file. Two files of a pool, also in snapshots and
    /// branches of it, that have the same number and size have the same content. The reverse need
    /// not hold. Any change of the content may let another file have the number.
    ///
    /// # Errors
    /// As [`FileSystem::read`]; `EOPNOTSUPP` if the engine has no such numbers.
    fn content_id(&self, _ino: Ino) -> Result<u64> {
        Err(vfs::Errno::OPNOTSUPP)
    }

    /// Returns the pool as one with a backing store; `None` if it has none.
    fn backed(&self) -> Option<&dyn Backed> {
        None
    }

    /// Does the work of dropping a [`ReadBuf`], for front ends whose buffers have no owner in Rust,
    /// and which have forgotten them ([`std::mem::forget`]).
    fn put_read_buf(&self);
}

/// The relations of an engine to other processes that have the pool open.
pub trait Processes {
    /// Takes back the references and other state of dead processes. Long-lived processes call this
    /// periodically. Returns the number of dead processes.
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` if the pool is lost or damaged.
    fn reap_processes(&self) -> Result<usize>;

    /// Gives the shared state the current owner, group and mode of the pool file, so that the same
    /// users may open both. The server of a mount calls this periodically.
    ///
    /// # Errors
    /// Those of the system calls.
    fn follow_owner(&self) -> io::Result<()>;

    /// Keeps the other threads of this process out of the pool until dropped: before `execve`,
    /// which would kill them anywhere.
    fn pause(&self) -> Option<Paused<'_>>;

    /// Begins a fork: until [`end_fork`](Self::end_fork), references of this process stay, even if
    /// it dies.
    fn begin_fork(&self);

    /// Takes an own reference to an inode that the parent holds; called in the child of a fork,
    /// before [`end_fork`](Self::end_fork).
    ///
    /// # Errors
    /// `EIO` and `EUCLEAN` if the pool is lost or damaged.
    fn inherit(&self, ino: Ino) -> Result<()>;

    /// Ends a fork. The child calls this when it has taken references for what it inherits; the
    /// parent, when the child has done so or there is no child.
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

/// Bytes of a file in place, without a copy. They do not change until the buffer is dropped, except
/// by writes in place. A thread that holds one may call the file system.
pub struct ReadBuf<'a> {
    engine: &'a dyn Engine,
    bytes: &'a [AtomicU8],
}

impl<'a> ReadBuf<'a> {
    /// Wraps bytes that the engine has lent; the buffer gives them back when dropped.
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
