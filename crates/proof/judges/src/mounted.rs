//! Code shared by all targets whose pools are mounted by [`namespace`].

use crate::text;
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, clock, start_clock};
use namespace::{Files, Pool, Storage};
use pmem::Medium;
use pool::{CheckOptions, MountOptions, Prealloc};
use vfs::FileSystem;

/// Words that may be lost although other threads have loaded them: how their descriptions end, and
/// why that is harmless.
const HARMLESS: [(&str, &str); 1] = [(
    ": atime",
    "access times are stored without a fence; none is atomic with anything (§3.6), and all that one \
     decides is whether the next is stored",
)];

/// See [`crashsim::target::Target::harmless`].
pub fn harmless(word: &str) -> Option<&'static str> {
    HARMLESS.iter().find(|(end, _)| word.ends_with(end)).map(|(_, why)| *why)
}

/// Returns mount options under which runs are repeatable, and engines pre-allocate although pools
/// are small. Starts the clock. From now on, schedules may switch threads at words of the derived
/// state.
pub fn mount_options() -> MountOptions {
    start_clock();
    arena::atomic::on_change(crashsim::schedule::step_at_word);
    let prealloc = Prealloc { collect_above: 100, collect_below: 0, ..Prealloc::default() };
    MountOptions { threads: Some(1), clock, seed: Some(7), prealloc, ..MountOptions::default() }
}

/// Returns the options of a check.
pub fn options(repair: bool) -> CheckOptions {
    CheckOptions { repair, threads: Some(1) }
}

/// Mounts a medium.
pub fn mount<'m, M, F>(medium: M) -> Result<Mounted<'m>, String>
where
    M: Medium + 'm,
    F: Files<Storage: Storage<Medium = M>> + 'm,
{
    mount_with::<M, F>(medium, &mount_options())
}

/// Mounts a medium with these options.
pub fn mount_with<'m, M, F>(medium: M, options: &MountOptions) -> Result<Mounted<'m>, String>
where
    M: Medium + 'm,
    F: Files<Storage: Storage<Medium = M>> + 'm,
{
    let fs = Pool::<F>::mount(medium, options).map_err(text)?;
    let blocks_used = fs.mount_report().blocks_used;
    Ok(Mounted { fs: Box::new(fs), blocks_used })
}

/// One of several processes that share a pool.
struct SharedMount<F: Files>(Pool<F>);

impl<F: Files> SharingProcess for SharedMount<F> {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    fn recover(&self) -> Result<(), String> {
        self.0.rehearse_recovery().map_err(text)
    }

    fn reap(&self) -> Result<(), String> {
        self.0.reap_processes().map(drop).map_err(text)
    }
}

/// Mounts a medium as one of several processes.
pub fn share<'m, M, F>(medium: &'m M, at: &Meeting) -> Result<Box<dyn SharingProcess + 'm>, String>
where
    M: Medium,
    F: Files<Storage: Storage<Medium = Sited<&'m M>>> + 'm,
{
    Ok(sharing(attach::<M, F>(medium, at, &mount_options())?))
}

/// Makes a process of a pool that is shared.
pub fn sharing<'m, F: Files + 'm>(pool: Pool<F>) -> Box<dyn SharingProcess + 'm> {
    Box::new(SharedMount(pool))
}

/// Attaches to a medium as one of several processes.
pub fn attach<'m, M, F>(
    medium: &'m M,
    at: &Meeting,
    options: &MountOptions,
) -> Result<Pool<F>, String>
where
    M: Medium,
    F: Files<Storage: Storage<Medium = Sited<&'m M>>> + 'm,
{
    let place = arena::Place::private("/dev/shm", &at.name(), 0);
    Pool::<F>::attach(Sited(medium), &place, options).map_err(text)
}
