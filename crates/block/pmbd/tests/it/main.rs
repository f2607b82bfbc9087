//! The integration tests of `pmbd`, in one binary: nextest runs each test in a process of its own.

mod devices;
mod processes;
