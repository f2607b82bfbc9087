//! The integration tests of `pmem`, in one binary: nextest runs each test in a process of its own.

mod guard;
mod region;
