//! Inodes, names and attributes of a file system on persistent memory: all of it that does not
//! depend on the layout of content.
//!
//! Engines have three things in common: an inode is a record at a fixed place, a directory is an
//! array of entries ([`layout`]), and one store commits the changes of an operation. They differ in
//! the layout of content, in the search for free space, and in the way several words are committed
//! at once. So an engine implements [`Storage`], and gets all operations on names and attributes as
//! [`Core`]. Engines are type parameters, so no call here goes through a pointer.
//!
//! Reading order, from the lowest layer up; no module calls a higher one:
//!
//! - [`layout`]: the bytes on the media;
//! - `tables`, `free`, `space`: derived state, of which [`derived`] has the part that all engines
//!   share;
//! - `store`: [`Storage`], the trait that an engine implements, and single inodes;
//! - `dir`, `index`, `scan`: one directory or entry, and the search for all of them when a pool is
//!   opened;
//! - `fs`, `xattr`, [`own_mode`], `attr`, `names`, `rename`, `read`, `share`: [`Core`], the
//!   operations;
//! - `apart`, `thin`, `surplus`, `dirty`: blocks that lie together; space of the file below, and
//!   the part of it that a pool does not need; counts of what a backing store lacks;
//! - `branches`, `branch`, `copied`: other trees in the pool, and trees that get their name last;
//! - `files`, `mounted`, `check`, `resize`, `snapshots`, `overlay`: [`Pool`], which adds the
//!   operations on contents ([`Files`]) and serves front ends.
//!
//! This crate leaves out: contents of files and free space (the engines), permission checks and
//! descriptors (front ends).

mod apart;
mod attr;
mod backed;
mod backed_pool;
mod branch;
mod branches;
mod check;
mod copied;
pub mod derived;
mod dir;
mod dirty;
mod files;
mod free;
mod fs;
mod index;
pub mod layout;
mod mounted;
mod names;
mod overlay;
pub mod own_mode;
mod read;
mod rename;
mod resize;
mod scan;
mod share;
mod snapshots;
mod space;
mod store;
mod superblock;
mod surplus;
mod tables;
mod thin;
mod xattr;

pub use apart::ApartRuns;
pub use backed::loaded_attributes;
pub use branch::Branch;
pub use branches::InodeSet;
pub use check::check;
pub use dir::{Chain, RawEntry};
pub use dirty::DirtyCounts;
pub use files::{Files, MediumOf};
pub use free::{FreeRun, FreeUnits};
pub use fs::Core;
pub use index::Found;
pub use mounted::{Pool, interrupted, open, place};
pub use overlay::Overlay;
pub use rename::Words;
pub use resize::resize;
pub use scan::{Scan, ScanOptions, is_possible};
pub use snapshots::roll_back;
pub use store::{Change, MODIFIED, Storage, report};
pub use superblock::{
    Format, INODE_ROOT, INODE_SIZE, POOL_BRANCHES, POOL_RESIZED, POOL_SHARED, POOL_SIZE,
    POOL_SNAPSHOTS, POOL_USAGE, Superblock, branches_dir, branches_word, fnv1a, is_thin,
    may_have_snapshots, may_share, shared_word, snapshots_word, version,
};
pub use tables::{
    CLEAN, DirBlock, DirState, EntryPos, HeldRecord, MAY_BE_ABSENT, MAY_BE_CAPABLE, Memory,
    NAMES_ABSENT, Plan, PoolLength, RecordLocks, Tables, VInode,
};
pub use thin::Trim;
pub use xattr::Attributes;
