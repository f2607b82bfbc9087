//! The integration tests of `nbd`, in one binary: nextest runs each test in a process of its own.

mod common;
mod crowd;
mod fuzz;
mod sessions;
