//! Snapshots of a pool, for engines that have them ([`Files::create_snapshot`]).

use crate::derived::SharedPool as _;
use crate::files::{Files, MediumOf};
use crate::mounted::Pool;
use crate::store::Storage;
use pmem::{Lock, Region};
use pool::stream::ReceiveStep;
use pool::{Error, MountOptions, Snapshots};
use std::ops::Range;
use vfs::{Errno, Result};

impl<F: Files> Pool<F> {
    /// As [`pool::Engine::snapshots`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::snapshots`].
    pub fn snapshots(&self, held: bool) -> Result<Snapshots> {
        self.files.op(|_| self.files.snapshots(held))
    }

    /// As [`pool::Engine::create_snapshot`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::create_snapshot`].
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        self.files.alone(|_| self.files.create_snapshot(name))
    }

    /// As [`pool::Engine::delete_snapshot`], of a snapshot that is not mounted.
    ///
    /// # Errors
    /// Those of [`pool::Engine::delete_snapshot`].
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.files.op(|_| self.files.delete_snapshot(name))
    }

    /// Does a step of receiving a snapshot. The caller ensures that no other one receives it.
    ///
    /// # Errors
    /// Those of [`create_snapshot`](Self::create_snapshot); `ENOENT` if the base is missing, or the
    /// snapshot that a step continues; `EBADMSG` if records do not fit them.
    pub fn receive(&self, step: &ReceiveStep<'_>) -> Result<()> {
        self.files.op(|_| self.files.receive(step))
    }
}

impl<F: Files<Storage: Storage<Medium = Region>>> Pool<F> {
    /// Implements [`pool::Engine::delete_snapshot`].
    pub(crate) fn delete_unmounted_snapshot(&self, name: &str) -> Result<()> {
        self.while_unmounted(pool::snapshot_part(name), || self.delete_snapshot(name))
    }
}

impl<F: Files<Storage: Storage<Medium = Region>>> Pool<F> {
    /// Implements [`pool::Engine::commit_branch`].
    pub(crate) fn commit_unmounted_branch(&self, name: &str, base: Option<&str>) -> Result<()> {
        self.while_unmounted(pool::branch_part(name), || self.commit_branch(name, base))
    }

    /// Runs a function while no process relies on a part of the pool ([`Region::lock_part`]).
    fn while_unmounted(&self, part: Range<u32>, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let region = self.files.medium().0;
        if !region.lock_part(part.clone(), Lock::Exclusive).map_err(|_| Errno::IO)? {
            return Err(Errno::BUSY);
        }
        let done = f();
        let _ = region.lock_part(part, Lock::None);
        done
    }
}

/// Makes the state of a pool that no process uses the one of a snapshot, which stays.
///
/// # Errors
/// `ENOENT` if the pool has no such snapshot, `ENOSPC` if there is no space for a copy of its
/// names and attributes; those of a mount.
pub fn roll_back<F: Files>(medium: MediumOf<F>, name: &str) -> std::result::Result<(), Error> {
    let pool = Pool::<F>::mount(medium, &MountOptions::default())?;
    // The pool is not closed: its derived state is no more.
    Ok(pool.files.op(|_| pool.files.roll_back(name))?)
}
