//! The integration tests of `vfs`, in one binary: nextest runs each test in a process of its own.

mod acl;
mod clone_tree;
mod conformance;
mod faults;
mod model;
mod script;
