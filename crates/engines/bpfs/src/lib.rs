//! BPFS: a file system on persistent memory in which every operation is atomic and durable, by
//! short-circuit shadow paging (Condit et al., SOSP 2009; section numbers refer to that paper).
//!
//! PM contains a tree of 4 KiB blocks: the inode file, and below it directories and files. An
//! operation prepares its changes where they are invisible, then stores one word that makes them
//! visible. It can prepare in three ways (§3.2): in place, because an invariant makes the place
//! invisible; by appending, because the size does not cover the bytes yet; by copying, up to the
//! lowest word that can commit all of the change. We add a fourth: parts of a block, and several
//! words, are recorded, and then stored in place. Everything else is derived at mount and volatile
//! (§3.3).
//!
//! Reading order, from the lowest layer up; no module calls a higher one:
//!
//! - [`layout`]: the bytes on the media;
//! - `redo`: changes that a record commits: overwrites of a part of a block, words that change
//!   together;
//! - `Trees`: `crawler`, `append`: how trees are followed and changed; `parents`: blocks that
//!   several trees share;
//! - `volatile`, `blocks`, `zeroed`: free space; the derived state that all engines share is in
//!   [`namespace`] and [`namespace::derived`];
//! - `order`: commits that the next operation makes durable;
//! - `Store`: `store`, `extent`, `attr`, `xattr`, `scan`: one inode, and what [`namespace`] needs
//!   from an engine;
//! - [`namespace::Core`]: the operations on names and attributes;
//! - [`Files`]: `fs`, `file`, `clone`, `space`, `pin`: the operations on contents; `snapshots`,
//!   `branches`: states of the whole pool, and other trees; `copy_tree`: copies of trees;
//!   `receive`: snapshots from a stream;
//! - `send`, `received`: streams, written and read;
//! - `lifecycle`: format and check; [`namespace::Pool`] mounts.
//!
//! What this crate leaves out: permission checks and descriptors (front ends), the paper's
//! ordering hardware (§4: epoch barriers in the caches; `memsim` models it).

#![forbid(unsafe_code)]

mod append;
mod attr;
mod backed;
mod blocks;
mod branches;
mod clone;
mod copy_tree;
mod crawler;
mod extent;
mod file;
mod fs;
pub mod layout;
mod leaves;
mod lifecycle;
mod order;
mod parents;
mod pin;
mod receive;
mod received;
mod redo;
mod scan;
mod send;
mod snapshots;
mod space;
mod store;
mod vacate;
mod volatile;
mod xattr;
mod zeroed;

pub use blocks::KEEP as KEPT_BLOCKS;
pub use fs::{Files, STATE_FORMAT};
pub use lifecycle::{
    branches, check, format, info, resize, roll_back, snapshots, superblock_of_copy,
};
pub use pool::{
    CheckOptions, CheckReport, DurabilityMode, Engine, Error, FormatOptions, MountOptions,
    MountReport, Place, PoolInfo, Problem,
};
pub use received::{receive, token};
pub use send::{NamedInode, changed, names_in_snapshot, root_of_snapshot, send};

/// The name of the layout.
pub const LAYOUT: &str = "bpfs";

/// A mounted pool.
pub type Bpfs<M> = namespace::Pool<Files<M>>;

/// A branch of a mounted pool.
pub type Branch<M> = namespace::Branch<Files<M>>;

/// Returns the name and access rights of the file with the state that processes share while they
/// use the pool in `region`. A copy of the pool's own file is another pool.
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] if the region lies in no file.
pub fn place(region: &pmem::Region) -> Result<Place, Error> {
    namespace::place::<Files<&pmem::Region>>(region)
}
