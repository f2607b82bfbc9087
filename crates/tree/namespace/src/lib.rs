//! Inodes, names and attributes of a file system on persistent memory: all of it that does not depend on how content is
//! laid out.
//!
//! Engines have in common that an inode is a record at a fixed place, that a directory is an array of entries
//! ([`layout`]), and that one store commits what an operation changes. They differ in how content lies, which space is
//! free, and how several words are committed at once. So an engine implements [`Storage`], and gets all operations on names
//! and attributes as [`Core`]; it is known when they are compiled, and nothing here is called through a pointer.
//!
//! Reading order, from below; nothing calls what is above it:
//!
//! - [`layout`]: what is on the media;
//! - `tables`, `free`, `space`: derived state, of which all engines have more in [`derived`];
//! - `store`: [`Storage`]: what an engine has to do, and one inode;
//! - `dir`, `index`, `scan`: one directory or entry, and how all of them are found when a pool is opened;
//! - `fs`, `xattr`, `attr`, `names`, `rename`, `read`, `share`: [`Core`]: the operations;
//! - `mounted`, `check`, `overlay`: [`Pool`], which adds those on contents ([`Files`]) and is what front ends use.
//!
//! What this crate leaves out: contents of files, and which space is free (the engines); permission checks and descriptors
//! (front ends).

mod attr;
mod check;
pub mod derived;
mod dir;
mod free;
mod fs;
mod index;
pub mod layout;
mod mounted;
mod names;
mod overlay;
mod read;
mod rename;
mod scan;
mod share;
mod space;
mod store;
mod superblock;
mod tables;
mod xattr;

pub use check::check;
pub use dir::{Chain, RawEntry};
pub use free::{FreeRun, FreeUnits};
pub use fs::Core;
pub use index::Found;
pub use mounted::{Files, MediumOf, Pool, interrupted, open, place};
pub use overlay::Overlay;
pub use rename::Words;
pub use scan::{Scan, ScanOptions};
pub use store::{Change, MODIFIED, Storage, report};
pub use superblock::{Format, INODE_ROOT, INODE_SIZE, POOL_USAGE, Superblock, fnv1a, version};
pub use tables::{
    DirBlock, DirState, EntryPos, HeldRecord, MAY_BE_CAPABLE, Memory, Plan, RecordLocks, Tables,
    VInode,
};
pub use xattr::Attributes;
