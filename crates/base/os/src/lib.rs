//! Linux and thread utilities for all crates that `std` and `rustix` lack. They do not depend on
//! any format of Keepstone.
//!
//! - [`caller`]: the thread of another process for which a thread works;
//! - [`syscalls`]: system calls that bypass libc;
//! - [`ending`]: processes that are ending, and what they still have;
//! - [`faults`]: handlers of faults, which pass on what does not concern them;
//! - [`nameless`]: files that get their names when they are complete;
//! - [`mapped`]: files that the process has mapped, found by address;
//! - [`threads`]: thread-local cells that cost one instruction, and words that only one process
//!   changes.

pub mod caller;
pub mod ending;
pub mod faults;
pub mod mapped;
pub mod nameless;
pub mod syscalls;
pub mod threads;
