//! The exported functions, by subject.

mod attributes;
mod content;
mod copying;
mod descriptors;
mod inside;
mod kernel_descriptors;
mod kinds;
mod listing;
pub mod locking;
mod mapping;
mod names;
mod raw;
mod requests;
mod sending;
mod streams;
mod waiting;
mod xattr;

pub use attributes::fstat;
pub use content::{lseek, read, write};
pub use descriptors::close;
