//! The integration tests of `eviction`, in one binary: nextest runs each test in a process of its
//! own.

mod memory;
mod models;
