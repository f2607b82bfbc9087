//! The integration tests of `bpfs`, in one binary: nextest runs each test in a process of its own.

mod backed;
mod backed_costs;
mod branches;
mod common;
mod copies;
mod cost;
mod dirty_counts;
mod example;
mod growth;
mod identities;
mod leaves;
mod modes;
mod pinned;
mod reload;
mod shared;
mod snapshots;
mod streams;
mod suite;
mod uses;
mod waits;
mod zeroed;
