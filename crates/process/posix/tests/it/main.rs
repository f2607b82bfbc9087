//! The integration tests of `posix`, in one binary. nextest runs each test in a process of its own.

mod attach;
mod common;
mod cost;
mod descriptors;
mod differential;
mod durability;
mod limits;
mod lowest_descriptor;
mod path_cache;
mod paths;
mod permissions;
mod promote;
mod threads;
