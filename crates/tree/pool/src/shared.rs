//! Where the processes meet that share a pool: a file with the derived state.

use crate::{Error, Place};
use pmem::Region;
use std::io;
use std::path::Path;

/// Where the directories of shared states are.
const ARENAS: &str = "/dev/shm";

/// Where those meet who use the pool in `region`: a copy of its file is another pool. `format` is the version of
/// the derived state; no two engines have the same.
///
/// # Errors
/// [`Error::Shared`] where the region lies in no file.
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

/// Removes the shared states with one of these `formats` of pools whose users have all been killed. Returns how many bytes of
/// memory that gave back.
///
/// # Errors
/// Of the system.
pub fn remove_abandoned(formats: &[u64]) -> io::Result<u64> {
    arena::remove_abandoned(Path::new(ARENAS), formats)
}

/// Whether a pool or a shared state is mapped there: larger than all that is a program's own, and sparse.
pub fn is_mapped(address: usize) -> bool {
    arena::is_mapped(address) || pmem::is_mapped(address)
}

/// To be called in a handler of SIGBUS with the address that was touched: whether the instruction can be executed
/// again, as it was in a shared state for which there was no room, and now there is, or in a shared state or pool whose file
/// was truncated: then all operations of that pool fail with `EIO`.
pub fn handle_fault(address: usize) -> bool {
    arena::handle_fault(address) || pmem::handle_fault(address)
}
