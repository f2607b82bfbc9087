//! Snapshots and branches of a pool.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use engines::branching::Branches;
use pmem::{Access, Lock};
use pool::{MountOptions, Otherwise};
use std::os::unix::ffi::OsStringExt as _;
use vfs::Errno;

use crate::error::errno_of;
use crate::{Pool, PoolError};

/// A snapshot or a branch in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTree {
    name: String,
    created_ns: u64,
}

impl NamedTree {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the time of its creation.
    pub fn created(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.created_ns)
    }
}

/// The result of [`Pool::commit_branch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchCommit {
    is_done: bool,
    merged: Vec<PathBuf>,
    conflicts: Vec<PathBuf>,
}

impl BranchCommit {
    /// Returns whether the branch is the tree of the pool now. If not, it has
    /// [`conflicts`](Self::conflicts), and stays a branch.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the paths that only the pool had changed since the branch was made, and which the
    /// branch got.
    pub fn merged(&self) -> &[PathBuf] {
        &self.merged
    }

    /// Returns the paths that both had changed.
    pub fn conflicts(&self) -> &[PathBuf] {
        &self.conflicts
    }
}

/// Returns the error of a call on the whole pool.
fn failed(error: &pool::Error) -> io::Error {
    errno_of(error).into()
}

/// Snapshots and branches. Pools of the layout `bpfs` can have them; a handle of a branch gives
/// `EOPNOTSUPP`.
///
/// ```
/// # use keepstone_library as keepstone;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// let pool = keepstone::NewPool::new(64 << 20).create(&path)?;
/// pool.write("database", "prepared")?;
///
/// pool.create_branch("test-1")?;
/// let branch = keepstone::Pool::open_branch(&path, "test-1")?;
/// branch.write("database", "changed by a test")?;
/// assert_eq!(pool.read_to_string("database")?, "prepared");
/// branch.close()?;
/// pool.discard_branch("test-1")?;
///
/// pool.create_snapshot("monday")?;
/// assert_eq!(pool.snapshots()?[0].name(), "monday");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Pool {
    /// Opens a branch of a pool, by the path of the pool. It stays while a handle of it, or of a
    /// file in it, is open.
    ///
    /// # Errors
    /// As [`open`](Self::open); `ENOENT` if there is no such branch, `EBUSY` if it is being
    /// removed.
    pub fn open_branch(path: impl AsRef<Path>, name: &str) -> Result<Self, PoolError> {
        let path = path.as_ref();
        // library-L2.
        pool::handle_faults(Otherwise::PassOn).map_err(|err| PoolError::new(path, err))?;
        let options =
            pmem::OpenOptions { lock: Some(Lock::Shared), ..pmem::OpenOptions::default() };
        let region = options.open(path, Access::ReadWrite).map_err(|e| PoolError::new(path, e))?;
        let engine = engines::attach_branch(region, name, &MountOptions::default());
        let engine = engine.map_err(|err| PoolError::new(path, err))?;
        Self::over(engine).map_err(|errno| PoolError::new(path, io::Error::from(errno)))
    }

    /// Keeps the present state of the pool as a snapshot: what all calls had done that returned
    /// before, of all programs.
    ///
    /// # Errors
    /// `EINVAL` for a name that no snapshot can have, `EEXIST`, `EMLINK` if there are too many,
    /// `ENOSPC`, `EOPNOTSUPP` if the pool can have none.
    pub fn create_snapshot(&self, name: &str) -> io::Result<()> {
        pool::check_snapshot_name(name).map_err(|_| Errno::INVAL)?;
        Ok(self.fs().create_snapshot(name)?)
    }

    /// Returns the snapshots, in the order of their creation, without those that are being
    /// received.
    ///
    /// # Errors
    /// `EUCLEAN` if the pool is damaged.
    pub fn snapshots(&self) -> io::Result<Vec<NamedTree>> {
        let found = engines::snapshots(self.fs().region()).map_err(|error| failed(&error))?;
        let complete = found.into_iter().filter(|snapshot| !snapshot.is_incomplete);
        let listed = complete.map(|s| NamedTree { name: s.name, created_ns: s.created_ns });
        Ok(listed.collect())
    }

    /// Deletes a snapshot. All blocks that only it held become free.
    ///
    /// # Errors
    /// `ENOENT`, `EBUSY` if it is mounted.
    pub fn delete_snapshot(&self, name: &str) -> io::Result<()> {
        pool::check_snapshot_name(name).map_err(|_| Errno::INVAL)?;
        Ok(self.fs().delete_snapshot(name)?)
    }

    /// Makes the tree of the pool the one of a snapshot, in one step, while this program and others
    /// use it. Snapshots and branches stay. Files that are open in the pool stay open, without a
    /// name.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot, `ENOSPC`; `ETIMEDOUT` if other programs change
    /// branches for a minute.
    pub fn roll_back(&self, snapshot: &str) -> io::Result<()> {
        pool::check_snapshot_name(snapshot).map_err(|_| Errno::INVAL)?;
        self.with_branches(true, |branches| branches.roll_back(snapshot))
    }

    /// Makes a branch of the present state of the pool, which [`open_branch`](Self::open_branch)
    /// and `keepstone mount POOL@NAME` open.
    ///
    /// # Errors
    /// As [`create_snapshot`](Self::create_snapshot); `ETIMEDOUT` if other programs change branches
    /// for a minute.
    pub fn create_branch(&self, name: &str) -> io::Result<()> {
        self.with_branches(true, |branches| branches.create(name))
    }

    /// Makes a branch the tree of the pool, in one step; the branch ends. Paths that only the pool
    /// has changed since the branch was made are merged before. If both have changed a path,
    /// nothing changes, unless `force`: then the pool gets the state of the branch for these paths.
    /// Files that are open in the pool stay open, without a name.
    ///
    /// # Errors
    /// `ENOENT`, `EBUSY` if the branch is open or mounted, `EAGAIN` if programs change the pool all
    /// the time, `ENOSPC`.
    pub fn commit_branch(&self, name: &str, force: bool) -> io::Result<BranchCommit> {
        let done = self.with_branches(false, |branches| branches.commit(name, force))?;
        let paths = |all: Vec<Vec<u8>>| -> Vec<PathBuf> {
            let path = |path: Vec<u8>| if path.is_empty() { b"/".to_vec() } else { path };
            all.into_iter().map(|bytes| std::ffi::OsString::from_vec(path(bytes)).into()).collect()
        };
        let (merged, conflicts) = (paths(done.paths.merged), paths(done.paths.conflicts));
        Ok(BranchCommit { is_done: done.is_done, merged, conflicts })
    }

    /// Removes a branch. All its space becomes free.
    ///
    /// # Errors
    /// `ENOENT`, `EBUSY` if it is open or mounted.
    pub fn discard_branch(&self, name: &str) -> io::Result<()> {
        self.with_branches(false, |branches| branches.discard(name))
    }

    /// Returns the branches, in the order of their names, without unfinished ones.
    ///
    /// # Errors
    /// `EUCLEAN` if the pool is damaged.
    pub fn branches(&self) -> io::Result<Vec<NamedTree>> {
        let found = engines::branches(self.fs().region()).map_err(|error| failed(&error))?;
        let finished = found.into_iter().filter(|branch| branch.is_finished);
        let listed = finished.map(|b| NamedTree { name: b.name, created_ns: b.created_ns });
        Ok(listed.collect())
    }

    fn with_branches<T>(
        &self,
        creates: bool,
        f: impl FnOnce(&Branches<'_>) -> Result<T, pool::Error>,
    ) -> io::Result<T> {
        let done = Branches::open(self.fs(), creates).and_then(|branches| f(&branches));
        done.map_err(|error| failed(&error))
    }
}
