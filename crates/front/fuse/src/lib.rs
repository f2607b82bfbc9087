//! The FUSE front end: serves any [`vfs::FileSystem`] to every program through a mount.
//!
//! It only translates: a request becomes one call of the contract, its result one reply; the engine
//! decides every errno. It adds the facts that only a mount knows:
//!
//! - **References** (contract vfs-C4) are FUSE's `nlookup`: each entry in a reply carries one,
//!   `forget` gives them back. An open file holds its inode through the kernel's own inode, so file
//!   handles and `release` only serve to notice executed files.
//! - **Permission**: the kernel checks it (`default_permissions`, with POSIX ACLs). The server
//!   checks again that only the owner changes what is the owner's (`ownership.rs`). If a write by
//!   an unprivileged caller must clear set-user-ID, the kernel's request has a flag for that. For
//!   requests whose flag `fuser` does not pass on (truncate, fallocate, copy), the server goes by
//!   the caller's user ID.
//! - **Sharing** ([`Server::shared`]): if programs use the pool without the server, they find
//!   inodes in the mount by [`mounts::Ticket`], and the engine places appends. The server announces
//!   on the pool's [`mounts::MountEvents`] the facts that only the kernel knows, and makes the
//!   kernel forget inodes that lose their last name by direct access.
//! - **Caching**: while this mount is the only writer, the kernel may keep names (absent ones too),
//!   attributes, listings, links and pages for as long as it likes ([`Caching`]). That holds always
//!   or, if programs may use the pool without the server, as long as none does (`keeping.rs`).
//! - **Locks**: the server does not request `fcntl` and `flock` locks from the kernel, which
//!   therefore keeps them itself, blocking ones included.
//! - **Requests that wait** (for a store, a directory in the backing store, a lock of a stopped
//!   process) do not delay others: their threads are replaced, and no user can occupy all threads
//!   (`workers.rs`).
//! - **Snapshots** of the pool can be read below `.snapshots` of the root ([`SnapshotDir`]). The
//!   number of an inode tells whether it belongs there; the kernel opens such files only to read.
//! - **Panics** of an engine end one request with `EIO`, not the mount.
//!
//! The kernel's FUSE does not pass on `FALLOC_FL_COLLAPSE_RANGE` and `INSERT_RANGE` (`EOPNOTSUPP`
//! from the kernel itself). `fuser` 0.18 does not pass on the birth time of `statx(2)`, and
//! `O_NOATIME` of a directory. `FUSE_TMPFILE` is our addition to it (`vendor/fuser/KEEPSTONE.md`).

mod alias;
mod apart;
mod capabilities;
mod convert;
mod counters;
mod create;
mod expire;
mod holes;
mod invalidate;
mod keeping;
mod listing;
mod loads;
mod mount;
mod names;
mod options;
mod ownership;
mod privileges;
mod probe;
mod requests;
mod rings;
mod server;
mod setgid;
mod snapshots;
mod stop;
mod table;
mod watch;
mod workers;

pub use crate::counters::{CountedOp, OpCounters, OpSnapshot};
pub use apart::call_apart;
pub use expire::is_known as kernel_keeps_until_told;
pub use invalidate::Invalidator;
pub use loads::Loads;
pub use mount::{
    MountAccess, MountFlags, MountOptions, MountPoint, Mounted, is_of_dead_server, is_stale, mount,
    open_below, remount, unmount,
};
pub use options::{
    BRIEF_STATS_XATTR, Caching, Rights, STATS_XATTR, ServerOptions, Stats, StatsReader,
};
pub use probe::{KernelFuse, probe_kernel};
pub use server::Server;
pub use snapshots::{ListedSnapshot, RELEASE_XATTR, SnapshotDir, SnapshotRoot, SnapshotSource};
pub use stop::StopSignals;
pub use table::{MountEntry, TABLE, mount_at, mounts, mounts_in, mounts_within};
pub use watch::MountWatch;
