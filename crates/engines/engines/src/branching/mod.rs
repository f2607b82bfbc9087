//! The branches of a pool that is open: making, committing and removing them.
//!
//! - branching-B1: one [`Branches`] of a pool exists at a time, in all processes. Each first
//!   removes what a killed one has left.
//! - branching-B2: a branch is made by one operation of the engine, from a snapshot that is its
//!   base. It is removed by ordinary calls, below a name that no mount knows
//!   (`@NAME`, branches-W3).
//! - branching-B3: a branch that is used is neither committed nor removed.
//! - branching-B4: a rollback makes an unfinished branch of a snapshot and commits it, whatever the
//!   tree of the pool is. A killed one leaves that branch (branching-B1).

mod changes;
mod merge;

use crate::{branches, mount_snapshot, snapshots};
use pmem::{Access, Lock, OpenOptions, Region};
use pool::{
    BranchInfo, Engine, Error, MountOptions, TreeSource, base_of_branch, branch_part,
    branches_part, check_branch_name, later_of_branch,
};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vfs::{Errno, Ino, RenameFlags};

pub use changes::PathBytes;
pub use merge::{CommittedBranch, MergedPaths};

/// Longest time to wait for others that have the branches of the pool.
const OTHERS_END_WITHIN: Duration = Duration::from_secs(60);

/// Locks of parts of a region do not exclude threads of one process.
static IN_PROCESS: Mutex<()> = Mutex::new(());

/// The branches of a pool that is open, and not used elsewhere (branching-B1).
pub struct Branches<'a> {
    fs: &'a dyn Engine,
    /// The directory of branches.
    dir: Ino,
    /// The unfinished branches that were removed.
    removed: Vec<String>,
    /// Given back before the lock in this process.
    _part: HeldPart<'a>,
    _in_process: MutexGuard<'static, ()>,
}

/// A part of the pool that is locked until this is dropped.
struct HeldPart<'a> {
    region: &'a Region,
    part: Range<u32>,
}

impl<'a> HeldPart<'a> {
    /// Locks a part; `None` if another process relies on it.
    fn new(region: &'a Region, part: Range<u32>) -> Result<Option<Self>, Error> {
        let is_held = region.lock_part(part.clone(), Lock::Exclusive)?;
        Ok(is_held.then_some(Self { region, part }))
    }
}

impl Drop for HeldPart<'_> {
    fn drop(&mut self) {
        let _ = self.region.lock_part(self.part.clone(), Lock::None);
    }
}

impl<'a> Branches<'a> {
    /// Waits until no one else has the branches of a pool, and removes what was left unfinished. A
    /// pool without branches gets a directory for them if the caller `creates` one.
    ///
    /// # Errors
    /// `ENOENT` if the pool has no branches, `EOPNOTSUPP` if it can have none, `ETIMEDOUT` if
    /// others do not end.
    pub fn open(fs: &'a dyn Engine, creates: bool) -> Result<Self, Error> {
        let in_process = IN_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + OTHERS_END_WITHIN;
        let part = loop {
            match HeldPart::new(fs.region(), branches_part())? {
                Some(part) => break part,
                None if Instant::now() >= deadline => return Err(Errno::TIMEDOUT.into()),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let dir = fs.branches_dir(creates)?.ok_or(Errno::NOENT)?;
        let removed = Vec::new();
        let mut opened = Self { fs, dir, removed, _part: part, _in_process: in_process };
        for branch in opened.list()?.into_iter().filter(|branch| !branch.is_finished) {
            opened.remove(&branch.name)?;
            opened.removed.push(branch.name);
        }
        Ok(opened)
    }

    /// Returns the branches.
    ///
    /// # Errors
    /// Those of [`branches`].
    pub fn list(&self) -> Result<Vec<BranchInfo>, Error> {
        branches(self.fs.region())
    }

    /// Makes a branch of the present state of the pool (branching-B2). If that fails, nothing of it
    /// stays.
    ///
    /// # Errors
    /// `EINVAL` if no branch can have this name, `EEXIST` if a branch or a snapshot has it; those
    /// of [`Engine::create_snapshot`] and [`Engine::copy_tree`].
    pub fn create(&self, name: &str) -> Result<(), Error> {
        check_branch_name(name).map_err(|_| Errno::INVAL)?;
        let is_of_snapshot = snapshots(self.fs.region())?.iter().any(|other| other.name == name);
        if is_of_snapshot || self.has(name)? {
            return Err(Errno::EXIST.into());
        }
        let base = base_of_branch(name);
        let make = || {
            self.fs.create_snapshot(&base)?;
            let to = (self.dir, name.as_bytes());
            self.fs.copy_tree(&TreeSource::Snapshot(&base), to).map(drop)
        };
        make().map_err(|errno| {
            let _ = self.remove(name);
            errno.into()
        })
    }

    /// Makes the tree of the pool the one of a snapshot, in one step, while programs use the pool
    /// (branching-B4). Snapshots and branches stay. Files that are open lose their names.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot, `ENOSPC`.
    pub fn roll_back(&self, snapshot: &str) -> Result<(), Error> {
        let branches = self.list()?;
        let is_free = |name: &String| !branches.iter().any(|branch| branch.name == *name);
        let mut names = (0..=branches.len()).map(|n| format!("rollback-{n}"));
        let name = names.find(is_free).ok_or(Errno::EXIST)?;
        let unfinished = base_of_branch(&name);
        let to = (self.dir, unfinished.as_bytes());
        let done = self
            .fs
            .copy_tree(&TreeSource::Snapshot(snapshot), to)
            .and_then(|_| self.fs.commit_branch(&unfinished, None));
        done.map_err(|errno| {
            let _ = self.remove(&name);
            errno.into()
        })
    }

    /// Removes a branch: all its space becomes free. One that a killed process was removing counts
    /// as a branch still.
    ///
    /// # Errors
    /// `ENOENT` if there is no such branch, `EBUSY` if it is used.
    pub fn discard(&self, name: &str) -> Result<(), Error> {
        if self.removed.iter().any(|removed| removed == name) && !self.has(name)? {
            return Ok(());
        }
        let _unused = self.hold_unused(name)?;
        let (from, base) = ((self.dir, name.as_bytes()), base_of_branch(name));
        self.fs.rename(from, (self.dir, base.as_bytes()), RenameFlags::NOREPLACE)?;
        self.remove(name)
    }

    /// Removes an unfinished branch, and the snapshots of a branch.
    fn remove(&self, name: &str) -> Result<(), Error> {
        let ignore_missing = |removed| match removed {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        };
        let base = base_of_branch(name);
        ignore_missing(vfs::remove_tree(self.fs, self.dir, base.as_bytes()))?;
        for snapshot in [later_of_branch(name), base] {
            ignore_missing(self.fs.delete_snapshot(&snapshot))?;
        }
        Ok(())
    }

    /// Returns whether there is a branch of this name.
    fn has(&self, name: &str) -> Result<bool, Error> {
        Ok(self.list()?.iter().any(|branch| branch.name == name))
    }

    /// Excludes uses of a branch (branching-B3). `ENOENT` if it does not exist, `EBUSY` if it is
    /// used.
    fn hold_unused(&self, name: &str) -> Result<HeldPart<'a>, Error> {
        if !self.has(name)? {
            return Err(Errno::NOENT.into());
        }
        let part = HeldPart::new(self.fs.region(), branch_part(name))?;
        part.ok_or_else(|| Errno::BUSY.into())
    }

    /// Opens a snapshot of the pool.
    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Engine>, Error> {
        let region = self.fs.region();
        // The path may be relative to a directory that is not the current one any more.
        let path = match region.descriptor() {
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => region.path().to_owned(),
        };
        let options = OpenOptions { lock: Some(Lock::None), ..OpenOptions::default() };
        let region = options.open(&path, Access::ReadOnly).map_err(std::io::Error::other)?;
        mount_snapshot(region, name, &MountOptions::default())
    }
}
