//! The FUSE front end: serves any [`vfs::FileSystem`] to every program through a mount.
//!
//! It translates and nothing else: a request becomes one call of the contract, its result one
//! reply; the engine decides every errno. What it adds is what only the mount knows:
//!
//! - **References** (contract vfs-C4) are FUSE's `nlookup`: each entry in a reply carries one, `forget`
//!   gives them back. An open file holds its inode through the kernel's own inode, so file handles and
//!   `release` only tell of files that are executed.
//! - **Permission** is the kernel's business (`default_permissions`, with POSIX ACLs). Where a
//!   write by an unprivileged caller must clear set-user-ID, the kernel says so, or, where `fuser`
//!   does not pass its word on (truncate, fallocate, copy), the caller's user ID does.
//! - **Sharing** ([`Server::shared`]): where programs use the pool without the server, they find
//!   inodes in the mount by [`mounts::Ticket`], appends are placed by the engine, what only the
//!   kernel knows is announced on the pool's [`mounts::MountEvents`], and the kernel is told to forget inodes that
//!   lose their last name beside the mount.
//! - **Caching**: while this mount is the only writer, the kernel may keep names (absent ones too),
//!   attributes, listings, links and pages for as long as it likes ([`Caching`]): always, or where programs may use the pool
//!   without the server, as long as none does (`keeping.rs`).
//! - **Locks**: `fcntl` and `flock` locks are not requested from the kernel, which therefore keeps
//!   them itself, blocking ones included.
//! - **Requests that wait** (for a store, a directory below, a lock of a stopped process) keep no others waiting: their threads are
//!   replaced, and no user can have all of them (`workers.rs`).
//! - **Panics** of an engine end one request with `EIO`, not the mount.
//!
//! What the kernel's FUSE does not pass on: `FALLOC_FL_COLLAPSE_RANGE` and `INSERT_RANGE`
//! (`EOPNOTSUPP` from the kernel itself). What `fuser` 0.18 does not: the birth time of `statx(2)`, and `O_NOATIME` of a
//! directory. `FUSE_TMPFILE` it has by our addition (`vendor/fuser/KEEPSTONE.md`).

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
mod mount;
mod names;
mod options;
mod privileges;
mod probe;
mod requests;
mod rings;
mod server;
mod setgid;
mod stop;
mod table;
mod watch;
mod workers;

pub use apart::call_apart;
pub use counters::{Op, OpCounters, OpSnapshot};
pub use expire::is_known as kernel_keeps_until_told;
pub use invalidate::Invalidator;
pub use mount::{
    Access, MountFlags, MountKind, MountOptions, MountPoint, Mounted, is_of_dead_server, is_stale,
    mount, open_below, remount, unmount,
};
pub use options::{Caching, Rights, STATS_XATTR, ServerOptions, Stats, StatsReader};
pub use probe::{KernelFuse, probe_kernel};
pub use server::Server;
pub use stop::StopSignals;
pub use table::{MountEntry, TABLE, mount_at, mounts, mounts_in, mounts_within};
pub use watch::MountWatch;
