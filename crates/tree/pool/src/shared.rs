//! The shared state of processes that use one pool: a file (an arena) with the derived state.

use crate::{Error, Place};
use os::faults::Otherwise;
use pmem::Region;
use std::io;
use std::path::Path;

/// The directory with the directories of shared states.
const ARENAS: &str = "/dev/shm";

/// Returns the name and access rights of the shared state of the pool in `region`. The name
/// contains device and inode of the pool's file, so a copy of it is another pool. `format` is the
/// version of the derived state; no two engines have the same.
///
/// # Errors
/// [`Error::Shared`] if the region lies in no file.
pub fn place(region: &Region, pool: uuid::Uuid, format: u64) -> Result<Place, Error> {
    let file =
        region.file_id().ok_or_else(|| Error::Shared(io::Error::other("it is not a file")))?;
    Ok(Place {
        root: ARENAS.into(),
        name: format!("{}-{:x}-{:x}", pool.simple(), file.device, file.inode),
        owner: file.owner,
        group: file.group,
        mode: file.mode,
        format,
    })
}

/// Removes the shared states with one of these `formats` of pools whose users have all been killed.
/// Returns the number of bytes of memory that this freed.
///
/// # Errors
/// Those of the system.
pub fn remove_abandoned(formats: &[u64]) -> io::Result<u64> {
    arena::remove_abandoned(Path::new(ARENAS), formats)
}

/// Returns whether a pool or a shared state is mapped at `address`: it is larger than all mappings
/// of the program itself, and sparse.
pub fn is_mapped(address: usize) -> bool {
    arena::is_mapped(address) || pmem::is_mapped(address)
}

/// Installs a handler of SIGBUS that calls [`handle_fault`], once in a process. The kernel raises
/// it if it has no page for a mapped address.
///
/// # Errors
/// Those of the system.
pub fn handle_faults(otherwise: Otherwise) -> io::Result<()> {
    os::faults::handle_sigbus(handle_fault, otherwise)
}

/// Handles a SIGBUS; called in its handler with the faulting address. Returns whether the
/// instruction can be executed again. That is so in two cases: a shared state had no room, and now
/// has; or a shared state or pool file was truncated. Then all operations of that pool fail with
/// `EIO`.
pub fn handle_fault(address: usize) -> bool {
    arena::handle_fault(address) || pmem::handle_fault(address)
}
