//! The integration tests of `preload`, in one binary: nextest runs each test in a process of its
//! own.

mod direct;
mod next;
mod symbols;
