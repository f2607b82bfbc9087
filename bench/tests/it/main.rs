//! The integration tests of `bench`, in one binary: nextest runs each test in a process of its own.

mod commands;
mod targets;
