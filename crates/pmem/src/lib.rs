//! Persistent memory as a [`Medium`]: regions, persistence domains, flush instructions, counters.

#![allow(missing_docs)] // lifted when the module set is complete
mod medium;
pub use medium::{Fenced, Medium};

/// Placeholder.
#[derive(Clone, Copy, Debug)]
pub enum Domain {
    Volatile,
}
/// Placeholder.
#[derive(Debug, Default)]
pub struct Counters;
