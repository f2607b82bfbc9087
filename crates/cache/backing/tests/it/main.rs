//! The integration tests of `backing`, in one binary: nextest runs each test in a process of its
//! own.

mod behind;
mod common;
mod conformance;
mod dirfs;
mod model;
