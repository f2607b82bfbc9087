//! Where the processes meet that share a pool.

use crate::lifecycle;
use pmem::Region;
use pool::{Error, Place};

/// Version of the derived state: whoever has another one cannot share it. No other engine has the same.
pub const STATE_FORMAT: u64 = (1 << 8 | 1) << 1;

/// Where those meet who use the pool in `region`: a copy of its file is another pool.
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] where it lies in no file.
pub fn place(region: &Region) -> std::result::Result<Place, Error> {
    pool::place(region, lifecycle::info(region)?.uuid, STATE_FORMAT)
}
