//! The integration tests of `objects`, in one binary: nextest runs each test in a process of its
//! own.

mod common;
mod conformance;
mod crash;
mod holders;
mod hostile;
mod replies;
mod stores;
