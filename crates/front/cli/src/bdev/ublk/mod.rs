//! ublk, `/dev/ublkbN`: block devices whose requests the kernel sends to a process by io_uring.
//!
//! It needs the feature `ublk`, off by default: the crate `libublk` needs libclang to build.

#[cfg(not(feature = "ublk"))]
mod absent;
#[cfg(feature = "ublk")]
mod device;
#[cfg(feature = "ublk")]
mod requests;

#[cfg(not(feature = "ublk"))]
pub use absent::{attach, left_behind, let_go, missing};
#[cfg(feature = "ublk")]
pub use device::{attach, left_behind, let_go, missing};

/// Requests of a queue that the kernel may send before one is answered.
pub const DEPTH: u16 = 64;
/// The longest queue that the kernel takes.
pub const DEPTH_MAX: i64 = 4096;
