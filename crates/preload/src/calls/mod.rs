//! The exported functions, by subject.

mod attributes;
mod content;
mod copying;
mod descriptors;
mod kinds;
mod listing;
pub mod locking;
mod mapping;
mod names;
mod numbers;
mod raw;
mod waiting;
mod xattr;
