//! The integration tests of `scmfs`, in one binary: nextest runs each test in a process of its own.

mod common;
mod configurations;
mod content;
mod cost;
mod mapping;
mod options;
mod prealloc;
mod space;
mod suite;
mod through;
