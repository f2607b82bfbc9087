//! How much address space a process has for what it maps of pools (`RLIMIT_AS`): a limit that a program was given is for what
//! the program needs.

use rustix::process::{Resource, getrlimit};

/// Bytes below which programs leave pools to the mount: what the library reserves before any pool is used is a sixteenth.
pub const ADDRESS_SPACE_MIN: u64 = 2 << 30;

/// The limit of this process, if it has one.
pub fn address_space_limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// The limit of this process, if it is too low for programs to use pools by themselves.
pub fn scarce_address_space() -> Option<u64> {
    address_space_limit().filter(|limit| *limit < ADDRESS_SPACE_MIN)
}
