//! The registry of engines, the only place that names them. The first bytes of a pool determine its
//! layout; opening it here gives an [`Engine`], and callers need not know which one.
//!
//! Calls through this type are indirect. Inside an engine all types are known at compile time.
//! [`branching`] has the operations on branches that consist of several calls of an engine.

#![forbid(unsafe_code)]

pub mod branching;

use bpfs::Bpfs;
pub use bpfs::NamedInode;
use modelfs::ModelFs;
use pmem::{Lock, Medium as _, Region};
use pool::stream::{ReceiveError, SendError, SendRequest, StreamReader, StreamRecord, StreamToken};
use pool::{
    BranchInfo, CheckOptions, CheckReport, Engine, Error, FormatOptions, MountOptions, PoolInfo,
    Snapshot,
};
use scmfs::Scmfs;
use std::collections::HashSet;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::sync::Arc;
use vfs::{Attr, Errno, FileSystem as _, Ino};

/// The layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Every operation atomic and durable on return: [`bpfs`].
    Bpfs,
    /// Files contiguous in memory; names and attributes durable on return, contents on fsync:
    /// [`scmfs`].
    Scmfs,
    /// For tests: loses unsynced changes in a crash; [`modelfs`].
    Model,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Bpfs, Self::Scmfs, Self::Model];

    /// Returns the layout of the pool in `region`, even if it cannot be opened; `None` if there is
    /// no pool.
    pub fn of(region: &Region) -> Option<Self> {
        let begins = |magic: &[u8]| region.len() >= magic.len() as u64 && region.equals(0, magic);
        Self::ALL.into_iter().find(|layout| begins(layout.magic()))
    }

    /// Returns the first bytes of a pool with this layout.
    fn magic(self) -> &'static [u8] {
        match self {
            Self::Bpfs => &bpfs::layout::MAGIC,
            Self::Scmfs => &scmfs::layout::MAGIC,
            Self::Model => &modelfs::layout::MAGIC,
        }
    }

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpfs => bpfs::LAYOUT,
            Self::Scmfs => scmfs::LAYOUT,
            Self::Model => modelfs::LAYOUT,
        }
    }

    /// Returns the layout of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }

    /// Returns what the layout promises, in half a line of help text.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Bpfs => "every write whole and durable without fsync (default)",
            Self::Scmfs => {
                "large files, overwrites and mmap at memory speed; contents durable after fsync"
            }
            Self::Model => "for tests: kept in memory, saved whole by a sync",
        }
    }

    /// Returns whether several processes can [`attach`] a pool at once.
    pub fn is_shared(self) -> bool {
        match self {
            Self::Bpfs | Self::Scmfs => true,
            Self::Model => false,
        }
    }

    /// Returns whether pools can take space of the file below when they need it, and give it back.
    pub fn can_be_thin(self) -> bool {
        self.is_shared()
    }

    /// Returns the sizes of the smallest and the largest pool, in bytes.
    pub fn limits(self) -> RangeInclusive<u64> {
        match self {
            Self::Bpfs => bpfs::layout::POOL_MIN..=bpfs::layout::POOL_MAX,
            Self::Scmfs => scmfs::layout::POOL_MIN..=scmfs::layout::POOL_MAX,
            Self::Model => modelfs::layout::POOL_MIN..=modelfs::layout::POOL_MAX,
        }
    }

    /// Formats a region with an empty root directory. The region's previous content is lost.
    ///
    /// # Errors
    /// [`Error::Unformattable`].
    pub fn format(self, region: &Region, options: &FormatOptions) -> Result<PoolInfo, Error> {
        match self {
            Self::Bpfs => bpfs::format(region, options),
            Self::Scmfs => scmfs::format(region, options),
            Self::Model => modelfs::format(region, options),
        }
    }
}

/// Returns the layout of a region that must hold a pool.
fn layout(region: &Region) -> Result<Layout, Error> {
    let why = || match region.len() {
        0 => "it is empty".to_owned(),
        _ => "it starts as no pool does (nor do disks of `keepstone bdev`)".to_owned(),
    };
    Layout::of(region).ok_or_else(|| Error::NotAPool(why()))
}

/// As [`layout`]; [`Error::Unusable`] if the layout lacks an option that was chosen.
fn layout_for(region: &Region, options: &MountOptions) -> Result<Layout, Error> {
    match layout(region)? {
        layout if layout != Layout::Scmfs && options.chooses() => {
            let name = layout.name();
            let why = format!(
                "write_policy and consistency are options of the layout `scmfs`, not of `{name}`"
            );
            Err(Error::Unusable(why))
        }
        layout => Ok(layout),
    }
}

/// Describes the pool in `region` from its superblock.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn info(region: &Region) -> Result<PoolInfo, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::info(region),
        Layout::Scmfs => scmfs::info(region),
        Layout::Model => modelfs::info(region),
    }
}

/// Checks a pool that is not mounted. With `repair`, stores the one word that repairs each problem
/// that has such a word, and marks the problem as repaired in the report. Check again to see what
/// that uncovered.
///
/// `progress` receives the number of inodes found, and the number there is room for.
///
/// # Errors
/// As [`mount`], but damage that the report can describe is not an error.
pub fn check(
    region: &Region,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CheckReport, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::check(region, options, progress),
        Layout::Scmfs => scmfs::check(region, options, progress),
        Layout::Model => modelfs::check(region, options),
    }
}

/// Returns the first bytes for a copy of the pool in `region`: they give the copy a UUID of its
/// own, and a label if one is given. All other bytes of a copy are those of the pool.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`]; [`Error::Unformattable`] for a label that is too long,
/// and for the layout `model`.
pub fn start_of_copy(region: &Region, label: Option<&str>) -> Result<Vec<u8>, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::superblock_of_copy(region, label),
        Layout::Scmfs => scmfs::superblock_of_copy(region, label),
        Layout::Model => {
            let why = "a pool of the layout `model` keeps its UUID".to_owned();
            Err(Error::Unformattable(why))
        }
    }
}

/// Gives the pool in `region`, which no other process uses, another size in bytes, rounded down to
/// 64 KiB. A region that is too short has to grow before; the part behind the new end can be cut
/// off afterwards. Returns the size.
///
/// # Errors
/// [`Error::Unformattable`] if the pool cannot have this size.
pub fn resize(region: &Region, bytes: u64) -> Result<u64, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::resize(region, bytes),
        Layout::Scmfs => scmfs::resize(region, bytes),
        Layout::Model => {
            let why = "a pool of the layout `model` keeps its size".to_owned();
            Err(Error::Unformattable(why))
        }
    }
}

/// Makes the state of the pool in `region`, which no other process uses, the one of a snapshot.
///
/// # Errors
/// `EOPNOTSUPP` if the layout has no snapshots, `ENOENT` if the pool has no such snapshot, `ENOSPC`
/// if there is no space for a copy of its names and attributes; those of [`mount`].
pub fn roll_back(region: &Region, name: &str) -> Result<(), Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::roll_back(region, name),
        Layout::Scmfs | Layout::Model => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Returns the snapshots of the pool in `region`, which other processes may use, in the order of
/// their creation. Pools of layouts without snapshots have none.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn snapshots(region: &Region) -> Result<Vec<Snapshot>, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::snapshots(region),
        Layout::Scmfs | Layout::Model => Ok(Vec::new()),
    }
}

/// Returns the branches of the pool in `region`, which other processes may use, in the order of
/// their names. Pools of layouts without branches have none.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn branches(region: &Region) -> Result<Vec<BranchInfo>, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::branches(region),
        Layout::Scmfs | Layout::Model => Ok(Vec::new()),
    }
}

/// Opens a branch of the pool in `region` together with other processes, as [`attach`]. It stays
/// while it is open.
///
/// # Errors
/// As [`attach`]; `ENOENT` if there is no such branch, `EBUSY` if it is being removed,
/// `EOPNOTSUPP` if the layout has no branches.
pub fn attach_branch(
    region: Region,
    name: &str,
    options: &MountOptions,
) -> Result<Arc<dyn Engine>, Error> {
    if !branches(&region)?.iter().any(|branch| branch.name == name && branch.is_finished) {
        return Err(Errno::NOENT.into());
    }
    // branch-V3.
    if !region.lock_part(pool::branch_part(name), Lock::Shared)? {
        return Err(Errno::BUSY.into());
    }
    match layout_for(&region, options)? {
        Layout::Bpfs => {
            let place = bpfs::place(&region)?;
            let pool = Bpfs::attach(region, &place, options)?;
            Ok(Arc::new(bpfs::Branch::open(pool, name)?))
        }
        Layout::Scmfs | Layout::Model => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Opens a snapshot of the pool in `region` ([`MountOptions::snapshot`]), which other processes may
/// use. It is not deleted while it is open.
///
/// # Errors
/// As [`mount`]; `EBUSY` if it is being deleted.
pub fn mount_snapshot(
    region: Region,
    name: &str,
    options: &MountOptions,
) -> Result<Arc<dyn Engine>, Error> {
    if !region.lock_part(pool::snapshot_part(name), Lock::Shared)? {
        return Err(Errno::BUSY.into());
    }
    let snapshot = Some(name.to_owned());
    match layout_for(&region, options)? {
        Layout::Bpfs => {
            let options = MountOptions { read_only: true, snapshot, ..options.clone() };
            Ok(Arc::new(Bpfs::mount(region, &options)?))
        }
        Layout::Scmfs | Layout::Model => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Locks snapshots of the pool in `region` until it is dropped, so that none is deleted.
fn hold_snapshots<'n>(
    region: &Region,
    names: impl IntoIterator<Item = &'n str>,
) -> Result<(), Error> {
    for name in names {
        if !region.lock_part(pool::snapshot_part(name), Lock::Shared)? {
            return Err(Errno::BUSY.into());
        }
    }
    Ok(())
}

/// Sends a snapshot of the pool in `region`, which other processes may use: calls `sink` for each
/// record of the stream.
///
/// # Errors
/// `EOPNOTSUPP` if the layout has no snapshots, `EBUSY` if one is being deleted; those of
/// [`bpfs::send`].
pub fn send(
    region: &Region,
    request: &SendRequest,
    sink: &mut dyn FnMut(StreamRecord) -> Result<(), SendError>,
) -> Result<(), SendError> {
    let names = request.base.iter().chain([&request.snapshot]);
    hold_snapshots(region, names.map(String::as_str))?;
    match layout(region)? {
        Layout::Bpfs => bpfs::send(region, request, sink),
        Layout::Scmfs | Layout::Model => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Returns the inodes that two snapshots of the pool in `region` have, and that differ in
/// attributes, names or content. Follows no pointer that both have, and reads no content. Neither
/// snapshot is deleted before `region` is closed.
///
/// # Errors
/// Those of [`send`].
pub fn changed(region: &Region, from: &str, to: &str) -> Result<HashSet<Ino>, SendError> {
    hold_snapshots(region, [from, to])?;
    match layout(region)? {
        Layout::Bpfs => bpfs::changed(region, from, to),
        Layout::Scmfs | Layout::Model => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Returns the names in a directory of a snapshot, without a mount of it.
///
/// # Errors
/// Those of [`bpfs::names_in_snapshot`].
pub fn names_in_snapshot(
    region: &Region,
    name: &str,
    dir: Ino,
) -> Result<Vec<(Vec<u8>, NamedInode)>, SendError> {
    bpfs::names_in_snapshot(region, name, dir)
}

/// Returns the attributes of the root directory of a snapshot, without a mount of it, and whether
/// it has extended attributes. The snapshot is not deleted before `region` is closed.
///
/// # Errors
/// `EBUSY` if it is being deleted; those of [`bpfs::root_of_snapshot`].
pub fn root_of_snapshot(region: &Region, name: &str) -> Result<(Attr, bool), SendError> {
    hold_snapshots(region, [name])?;
    bpfs::root_of_snapshot(region, name)
}

/// Makes a snapshot of this name from a stream, in the pool in `region`, which other processes may
/// use, and which was opened to be shared. Calls `progress` with the number of bytes that were
/// read.
///
/// # Errors
/// `EOPNOTSUPP` if the layout has no snapshots, `EBUSY` if another process receives or deletes one
/// of this name; those of [`bpfs::receive`].
pub fn receive(
    region: Region,
    name: &str,
    reader: StreamReader<impl Read>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ReceiveError> {
    if layout(&region)? != Layout::Bpfs {
        return Err(Errno::OPNOTSUPP.into());
    }
    let place = bpfs::place(&region)?;
    let pool = Bpfs::attach(region, &place, &MountOptions::default())?;
    let part = pool::snapshot_part(name);
    let is_ours = pool.medium().lock_part(part.clone(), Lock::Exclusive);
    let received = match is_ours.map_err(Error::from)? {
        true => bpfs::receive(&pool, name, reader, progress),
        false => Err(Errno::BUSY.into()),
    };
    let _ = pool.medium().lock_part(part, Lock::None);
    pool.close()?;
    received
}

/// Returns the token of a snapshot that is being received; `None` if it is complete.
///
/// # Errors
/// `ENOENT` if there is no such snapshot; those of [`info`].
pub fn stream_token(region: &Region, name: &str) -> Result<Option<StreamToken>, Error> {
    match layout(region)? {
        Layout::Bpfs => bpfs::token(region, name),
        Layout::Scmfs | Layout::Model => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Opens the pool in `region` for this process alone. The caller has opened the region with a lock
/// that excludes other writers ([`pmem::Lock`]).
///
/// # Errors
/// [`Error::NotAPool`] or [`Error::Unusable`] if the region holds no usable pool, or its layout
/// lacks a chosen option.
/// [`Error::Damaged`] if damage is found, unless `read_only`: then damaged objects answer
/// `EUCLEAN`.
pub fn mount(region: Region, options: &MountOptions) -> Result<Arc<dyn Engine>, Error> {
    Ok(match layout_for(&region, options)? {
        Layout::Bpfs => Arc::new(Bpfs::mount(region, options)?),
        Layout::Scmfs => Arc::new(Scmfs::mount(region, options)?),
        Layout::Model => Arc::new(ModelFs::mount(region, options)?),
    })
}

/// Opens the pool in `region` together with other processes, all of which must have opened the
/// region to share it ([`pmem::Lock::Shared`]).
///
/// # Errors
/// As [`mount`], and [`Error::Shared`].
pub fn attach(region: Region, options: &MountOptions) -> Result<Arc<dyn Engine>, Error> {
    Ok(match layout_for(&region, options)? {
        Layout::Bpfs => {
            let place = bpfs::place(&region)?;
            Arc::new(Bpfs::attach(region, &place, options)?)
        }
        Layout::Scmfs => {
            let place = scmfs::place(&region)?;
            Arc::new(Scmfs::attach(region, &place, options)?)
        }
        Layout::Model => {
            let why = "the layout `model` serves one process at a time";
            return Err(Error::Shared(io::Error::other(why)));
        }
    })
}

/// Removes the shared states of pools whose users have all been killed. Returns the number of bytes
/// of memory that this freed.
///
/// # Errors
/// Those of the system.
pub fn remove_abandoned() -> io::Result<u64> {
    pool::remove_abandoned(&[bpfs::STATE_FORMAT, scmfs::STATE_FORMAT])
}
