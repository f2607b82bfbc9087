//! The address space that a process has for mapping pools (`RLIMIT_AS`): a program's limit is meant
//! for the program's own needs.

use rustix::process::{Resource, getrlimit};

/// Bytes below which programs leave pools to the mount. The library reserves a sixteenth of this
/// before any pool is used.
pub const ADDRESS_SPACE_MIN: u64 = 2 << 30;

/// Returns the limit of this process, if it has one.
pub fn address_space_limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Returns the limit of this process, if it is too low for using pools directly.
pub fn scarce_address_space() -> Option<u64> {
    address_space_limit().filter(|limit| *limit < ADDRESS_SPACE_MIN)
}
