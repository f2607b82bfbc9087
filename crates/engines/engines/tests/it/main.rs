//! The integration tests of `engines`, in one binary: nextest runs each test in a process of its
//! own.

mod layouts;
