//! A protected block device in persistent memory: "A Protected Block Device for Persistent Memory"
//! (PMBD), in user space.
//!
//! Front ends (NBD, a loop device, ublk) serve a [`BlockDevice`]. [`open`] makes one of a region:
//!
//! ```
//! use pmbd::{Durability, Options};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("disk");
//! pmem::Region::create(&path, 1 << 20)?;
//! let device = pmbd::open(&path, &Options::default())?;
//! device.write(4096, b"data", Durability::Now)?;
//! let mut back = [0; 4];
//! device.read(4096, &mut back)?;
//! assert_eq!(&back, b"data");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: [`device`](BlockDevice) (the contract), `options` (how to open a device), [`raw`]
//! (a device whose bytes are those of the region), [`atomic`] (blocks that are never torn),
//! `buffered` (the paper's buffers in DRAM), `frame` (work for a request in all kinds of devices:
//! checks, counting, waiting).

#![forbid(unsafe_code)]

pub mod atomic;
mod buffered;
mod device;
mod dirty;
mod error;
mod frame;
mod inflight;
mod options;
pub mod raw;
mod stats;
mod times;

pub use buffered::{Buffering, buffered};
pub use device::{BlockDevice, BlockSizes, DeviceExtent, Durability, Zeroing};
pub use error::Error;
pub use options::{
    Options, Scheme, UnknownScheme, check, create, format, grow, open, open_observed,
};
pub use pmem::Protection;
pub use stats::{Cycles, Stats};
pub use times::{RequestTimes, TimedRequest};
