//! The agreement between a pool's mount and the processes that use the pool directly. It defines
//! the mount's entry and flags in the kernel's table ([`PoolMount`]), and names that open a file by
//! its inode ([`Ticket`]). It also defines the events that only the mount's server learns of
//! ([`MountEvents`]), and the directory of snapshots ([`SNAPSHOTS_NAME`]).

mod alias;
mod ask;
mod events;
mod pools;
mod room;
mod snapshots;
mod table;

pub use alias::{Opening, Requester, Ticket};
pub use ask::{mount_state, newest_mount};
pub use events::{HasMountEvents, MountEvents, NoMountEvents};
pub use pools::{MountState, PoolMount, ST_NOSYMFOLLOW};
pub use room::{ADDRESS_SPACE_MIN, address_space_limit, scarce_address_space};
pub use snapshots::{
    SNAPSHOT_NUMBER_MAX, SNAPSHOTS_DIR, SNAPSHOTS_NAME, is_in_snapshots, snapshot_inode,
    split_snapshot_inode,
};
pub use table::{FS_TYPE, Line, unescape};
