//! SCMFS with a collector that always finds work. Before each change it frees pre-allocated blocks,
//! a step at a time, and moves files.

use super::Scmfs;
use crate::{mounted, text};
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, Target};
use namespace::{Files, Pool};
use pmem::Medium;
use pool::{MountOptions, Prealloc};
use vfs::{FileSystem, Mappings, Openings};

/// SCMFS with a collector that always finds work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collected;

/// A pool whose collector makes a step before each change.
struct Collecting<F>(Pool<F>);

impl<F: Files> Collecting<F> {
    fn step(&self) -> &Pool<F> {
        // An error that the collector finds, the call finds as well.
        let _ = self.0.maintain();
        &self.0
    }
}

impl<F: Files> FileSystem for Collecting<F> {
    // Calls that read the state after a crash must not change it.
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, forget, statfs, lookup,
        getattr, readlink, readdir, read, seek, getxattr, listxattr);
    vfs::forward!(self => self.step(); setattr, create, tmpfile, unlink, rmdir, link, rename,
        rename_whiteout, write, append, drop_privileges, fallocate, copy_range, clone_range, fsync, sync,
        setxattr, removexattr);
}

impl<F: Files> Mappings for Collecting<F> {
    vfs::forward!(self => self.step(); map_range, unmap_range, sync_range);
}

impl<F: Files> Openings for Collecting<F> {}

impl<F: Files> SharingProcess for Collecting<F> {
    fn fs(&self) -> &dyn FileSystem {
        self
    }

    fn recover(&self) -> Result<(), String> {
        self.0.rehearse_recovery().map_err(text)
    }

    fn reap(&self) -> Result<(), String> {
        self.0.reap_processes().map(drop).map_err(text)
    }
}

/// Returns mount options with few blocks for each step, so that the collector stops often.
fn options() -> MountOptions {
    let prealloc = Prealloc {
        null_min: 1,
        null_blocks: 2,
        blocks_min: 2,
        collect_above: 0,
        cold_after: 0,
        step: 2,
        relocate: 100,
        whole_below: 100,
        // This lets files of one block move.
        unit: 1,
        ..Prealloc::default()
    };
    MountOptions { prealloc, ..mounted::mount_options() }
}

impl Target for Collected {
    crashsim::forward_target!(Scmfs; strength, format, is_pool, check, blocks_of_fresh, repair, describe, harmless,
        may_stay_unflushed);

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        let fs =
            Pool::<scmfs::ScmfsFiles<Sited<&M>>>::mount(Sited(medium), &options()).map_err(text)?;
        let blocks_used = fs.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(Collecting(fs)), blocks_used })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn share<'m, M: Medium>(
        &self,
        medium: &'m M,
        at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        let fs = mounted::attach::<M, scmfs::ScmfsFiles<Sited<&M>>>(medium, at, &options())?;
        Ok(Box::new(Collecting(fs)))
    }
}
