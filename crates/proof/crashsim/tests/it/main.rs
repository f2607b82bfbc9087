//! The integration tests of `crashsim`, in one binary: nextest runs each test in a process of its
//! own.

mod rules;
