//! What a mount of a pool and those who use the pool beside it have to agree on: how the mount is
//! called in the kernel's table, and how a file is named by its inode ([`Alias`]).

#![forbid(unsafe_code)]

mod alias;
mod table;

pub use alias::Alias;
pub use table::{FS_TYPE, Line, unescape};
