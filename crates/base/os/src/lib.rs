//! What every crate needs of Linux and of threads, beyond what `std` and `rustix` offer. Nothing here knows files of ours.
//!
//! - [`syscalls`]: system calls that bypass libc;
//! - [`mapped`]: files that the process has mapped, found by address;
//! - [`threads`]: thread-local cells that cost one instruction, and words that only one process changes.

pub mod mapped;
pub mod syscalls;
pub mod threads;
