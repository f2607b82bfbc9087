//! The integration tests of `pmcache`, in one binary: nextest runs each test in a process of its
//! own.

mod changes;
mod common;
mod evict;
mod loading;
mod others;
mod pinned;
mod resolve;
mod writeback;
