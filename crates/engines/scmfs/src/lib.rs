//! SCMFS: a file system on persistent memory whose files are contiguous in memory (Wu and Reddy, SC 2011; section numbers
//! refer to that paper).
//!
//! A file is one run of blocks, so that a read is one copy from where the run starts. The paper has that from the memory
//! management of the kernel; here all of the pool is mapped once, and a run is contiguous in the pool as well. What outgrows its
//! run, or has big holes, is mapped by tables like those of a CPU ([`layout`]).
//!
//! Names and attributes are durable when calls return: each operation on them commits by one word, or by a record of the redo
//! journal. Contents are stored in place and durable on `fsync`, as §3.6 has it; but what a file grows by is never
//! somebody else's.
//!
//! Reading order, from below; nothing calls what is above it:
//!
//! - [`layout`]: what is on the media;
//! - `journal`: words that are committed together;
//! - `space`, `prealloc`, `volatile`: which blocks are free, pre-allocated, or not durable yet; what else is derived other
//!   engines have alike in [`namespace`] and [`namespace::derived`];
//! - `Maps`: `map`: where contents lie;
//! - `settings`, `usage`: what was chosen at the mount, and what the pool says of who used it last;
//! - `Store`: `store`, `growth`, `claims`: one inode, and what [`namespace`] wants of an engine;
//! - `collect`: what is pre-allocated, freed again;
//! - [`namespace::Core`]: the operations on names and attributes;
//! - `Files`: `fs`, `content`, `allocate`, `sync`, `pin`, `mapping`: those on contents;
//! - `lifecycle`: format, check.

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
mod volatile;

pub use fs::{Files, STATE_FORMAT};
pub use lifecycle::{check, format, info};
pub use pool::{
    CheckOptions, CheckReport, Engine, Error, FormatOptions, MountOptions, MountReport, Place,
    PoolInfo, Prealloc, Problem,
};
pub use prealloc::NULL_FILES_MAX;
pub use space::KEEP as KEPT_BLOCKS;

/// The name of the layout.
pub const LAYOUT: &str = "scmfs";

/// A mounted pool.
pub type Scmfs<M> = namespace::Pool<Files<M>>;

/// Where those meet who use the pool in `region`: a copy of its file is another pool.
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] where it lies in no file.
pub fn place(region: &pmem::Region) -> Result<Place, Error> {
    namespace::place::<Files<&pmem::Region>>(region)
}
