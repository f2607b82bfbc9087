//! The integration tests of `judges`, in one binary: nextest runs each test in a process of its
//! own.

mod backed;
mod blocks;
mod bpfs;
mod caches;
mod careless;
mod catalogue;
mod common;
mod deaths;
mod epochs;
mod lent;
mod lost;
mod modes;
mod mutation;
mod ordered;
mod promises;
mod resize;
mod scmfs;
mod threads;
mod twice;
