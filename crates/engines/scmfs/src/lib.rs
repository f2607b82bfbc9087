//! SCMFS: a file system on persistent memory whose files are contiguous in memory (Wu and Reddy, SC
//! 2011; section numbers refer to that paper).
//!
//! A file is a single run of blocks, so that a read is a copy from an offset in it. In the paper,
//! the kernel's memory management makes files contiguous. Here all of the pool is mapped once, and
//! a run is contiguous in the pool as well. A file that outgrows its run, or has big holes, is
//! mapped by tables like those of a CPU ([`layout`]).
//!
//! Names and attributes are durable when calls return: each operation on them commits by one word,
//! or by a record of the redo journal. Contents are stored in place and durable on `fsync`, as in
//! §3.6. The added part of a longer file never shows bytes of another file.
//!
//! Reading order, from the lowest layer up; no module calls a higher one:
//!
//! - [`layout`]: the bytes on the media;
//! - `journal`: words that are committed together;
//! - `space`, `prealloc`, `volatile`: blocks that are free, pre-allocated, or not durable yet; the
//!   derived state that all engines share is in [`namespace`] and [`namespace::derived`];
//! - `Maps`: `map`: the places of contents;
//! - `settings`, `usage`: options of the mount, and the pool's record of its last use;
//! - `Store`: `store`, `growth`, `claims`: one inode, and what [`namespace`] needs from an engine;
//! - `collect`: freeing pre-allocated blocks;
//! - [`namespace::Core`]: the operations on names and attributes;
//! - `ScmfsFiles`: `fs`, `content`, `allocate`, `sync`, `pin`, `mapping`: the operations on
//!   contents;
//! - `lifecycle`: format and check.

#![forbid(unsafe_code)]

mod allocate;
mod claims;
mod collect;
mod content;
mod fs;
mod growth;
mod journal;
pub mod layout;
mod lifecycle;
mod map;
mod mapping;
mod pin;
mod prealloc;
mod settings;
mod space;
mod store;
mod sync;
mod usage;
mod vacate;
mod volatile;

pub use fs::{STATE_FORMAT, ScmfsFiles};
pub use lifecycle::{check, format, info, resize, superblock_of_copy};
pub use pool::{
    CheckOptions, CheckReport, Engine, Error, FormatOptions, MountOptions, MountReport, Place,
    PoolInfo, Prealloc, Problem,
};
pub use prealloc::NULL_FILES_MAX;
pub use space::KEEP as KEPT_BLOCKS;

/// The name of the layout.
pub const LAYOUT: &str = "scmfs";

/// A mounted pool.
pub type Scmfs<M> = namespace::Pool<ScmfsFiles<M>>;

/// Returns the name and access rights of the file with the state that processes share while they
/// use the pool in `region`. A copy of the pool's own file is another pool.
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] if the region lies in no file.
pub fn place(region: &pmem::Region) -> Result<Place, Error> {
    namespace::place::<ScmfsFiles<&pmem::Region>>(region)
}
