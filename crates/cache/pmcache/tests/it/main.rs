//! The integration tests of `pmcache`, in one binary: nextest runs each test in a process of its
//! own.

mod behind;
mod changes;
mod common;
mod conformance;
mod control;
mod crash;
mod delegate;
mod evict;
mod faults;
mod full;
mod loading;
mod pinned;
mod recovery;
mod resolve;
mod writeback;
