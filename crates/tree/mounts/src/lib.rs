//! What a mount of a pool and those who use the pool beside it have to agree on: how the mount is
//! called in the kernel's table, and with what flags ([`PoolMount`]); how a file is named
//! by its inode ([`Ticket`]); and what only the mount's server gets to know ([`MountEvents`]).

mod alias;
mod ask;
mod events;
mod pools;
mod room;
mod table;

pub use alias::{Opening, Requester, Ticket};
pub use ask::{mount_state, newest_mount};
pub use events::{HasMountEvents, MountEvents, NoMountEvents};
pub use pools::{MountState, PoolMount, ST_NOSYMFOLLOW};
pub use room::{ADDRESS_SPACE_MIN, address_space_limit, scarce_address_space};
pub use table::{CACHE_TYPE, FS_TYPE, Line, unescape};
