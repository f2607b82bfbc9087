//! The POSIX process layer: descriptors, open file descriptions, paths and permissions over an
//! engine of the contract [`vfs`], for a process that has no server in the path.
//!
//! A front end (`preload`) hands over each call it intercepts; [`Process`] answers with
//! [`Served::Done`] or with [`Served::Kernel`]: make the call as it stands, the mount serves it.

mod calls;
mod mount;
mod process;
mod served;

pub use calls::DirItem;
pub use mount::{Attached, MountSpec};
pub use process::Process;
pub use served::Served;
pub use vfs::Errno;
