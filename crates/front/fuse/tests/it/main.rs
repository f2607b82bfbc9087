//! The integration tests of `fuse`, in one binary: nextest runs each test in a process of its own.

mod create;
mod mount;
mod privileges;
mod programs;
mod waits;
