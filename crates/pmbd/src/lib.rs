//! A protected block device in persistent memory: "A Protected Block Device for Persistent Memory"
//! (PMBD), in user space.
//!
//! [`BlockDevice`] is what front ends serve: NBD, a loop device, ublk.

#![forbid(unsafe_code)]

mod device;
mod error;

pub use device::{BlockDevice, BlockSizes, Durability, Extent, Zeroing};
pub use error::Error;
