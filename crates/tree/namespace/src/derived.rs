//! State that engines derive from PM when a pool is opened, and share among the processes that use it: what all of them
//! have alike, in an [`arena`].
//!
//! - [`State`]: what every inode has whatever its engine stores of it ([`InodeState`]), who holds it, its
//!   lock, and which numbers are free;
//! - [`NameIndex`]: from directory and name to inode and entry;
//! - [`SharedPool`]: how operations come and go, and what happens when a process dies. What an engine adds is how all of
//!   it is derived: by the scan that mounts.
//!
//! An engine puts its own tables beside these in the same arena ([`Plan`]).

mod admission;
mod counts;
mod delegations;
mod inodes;
mod mount_events;
mod names;
mod openings;
mod sharing;
mod state;
mod unnamed;

pub use inodes::{ENGINE_BITS, Inode, InodeState, LIVE, Mapper, Mappings, REMOVED, UNNAMED};
pub use mount_events::PoolEvents;
pub use names::{NameIndex, POS_BITS};
pub use sharing::{Held, SharedPool, attach, end_mappings};
pub use state::{GlobalLock, Locks, Plan, SETTINGS, Sizes, State};

/// The unsafe part of this crate: promises to the arena.
#[allow(unsafe_code)]
mod shared {
    use arena::Shared;

    // SAFETY: atomics and arrays of atomics only; zero is "none".
    unsafe impl Shared for crate::derived::names::NameEntry {}
    // SAFETY: as above.
    unsafe impl Shared for crate::derived::unnamed::Unnamed {}
}
