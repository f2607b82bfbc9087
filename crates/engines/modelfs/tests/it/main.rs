//! The integration tests of `modelfs`, in one binary: nextest runs each test in a process of its
//! own.

mod conformance;
