//! State that engines derive from PM when a pool is opened, and share among the processes that use
//! it: the part that all engines have in common, in an [`arena`].
//!
//! - [`State`]: the engine-independent state of each inode ([`InodeState`]), its references, its
//!   lock, and the free inode numbers;
//! - [`NameIndex`]: from directory and name to inode and entry;
//! - [`SharedPool`]: how operations begin and end, and what happens when a process dies. An engine
//!   adds the function that derives all of this: the scan of a mount.
//!
//! An engine puts its own tables beside these in the same arena ([`Plan`]).

mod admission;
mod counts;
mod growth;
mod inodes;
mod mount_events;
mod names;
mod openings;
mod sharing;
mod state;
mod unnamed;

pub use growth::Growth;
pub use inodes::{ENGINE_BITS, Inode, InodeState, LIVE, Mapper, MappingCount, REMOVED, UNNAMED};
pub use mount_events::PoolEvents;
pub use names::{NameIndex, POS_BITS};
pub use sharing::{Held, SharedPool, attach, end_mappings};
pub use state::{GlobalLock, Locks, Plan, SETTINGS, Sizes, State, UNIT, whole_units};
pub use unnamed::notify_all as notify_all_unnamed;

/// The unsafe part of this crate: promises to the arena.
#[allow(unsafe_code)]
mod shared {
    use arena::Shared;

    // SAFETY: atomics and arrays of atomics only; zero is "none".
    unsafe impl Shared for crate::derived::names::NameEntry {}
    // SAFETY: as above.
    unsafe impl Shared for crate::derived::unnamed::Unnamed {}
}
