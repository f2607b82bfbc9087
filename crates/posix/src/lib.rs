//! The POSIX process layer: descriptors, open file descriptions, paths and permissions over an
//! engine of the contract [`vfs`], for a process that has no server in the path.
//!
//! A front end (`preload`) hands over each call it intercepts; [`Process`] answers with
//! [`Served::Done`] or with [`Served::Kernel`]: make the call as it stands, the mount serves it.

mod attributes;
mod content;
mod creds;
mod descriptors;
mod directories;
mod family;
mod materialise;
mod mount;
mod names;
mod noted;
mod process;
mod served;
mod sys;
mod text;
mod transfer;
mod walk;
mod xattrs;

pub use directories::DirItem;
pub use materialise::alias;
pub use mount::{Attached, MountSpec};
pub use process::Process;
pub use served::Served;
pub use sys::{Kernel, Raw};
pub use vfs::Errno;
