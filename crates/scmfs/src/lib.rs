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
//! - `journal`, `overlay`: words that are committed together;
//! - `space`, `volatile`: which blocks are free, and which are not durable yet; what else is derived other engines have
//!   alike in [`namespace`] and [`derived`];
//! - `Maps`: `map`: where contents lie;
//! - `Store`: `store`, `scan`: one inode, and what [`namespace`] wants of an engine;
//! - [`namespace::Core`]: the operations on names and attributes;
//! - `Files`: `fs`, `content`, `allocate`, `sync`, `pin`: those on contents;
//! - `lifecycle`, `share`: format, mount, check, and where processes meet.

mod allocate;
mod content;
mod engine;
mod fs;
mod journal;
pub mod layout;
mod lifecycle;
mod map;
mod overlay;
mod pin;
mod scan;
mod share;
mod space;
mod store;
mod sync;
mod volatile;

pub use lifecycle::{check, format, info};
pub use pool::{
    CheckOptions, CheckReport, Engine, Error, FormatOptions, MountOptions, MountReport, Place,
    PoolInfo, Problem,
};
pub use share::{STATE_FORMAT, place};
pub use space::KEEP as KEPT_BLOCKS;

use derived::{PoolEvents, SharedPool as _};
use fs::Files;
use mounts::{HasMountEvents, MountEvents};
use pmem::{Domain, Medium};
use vfs::{
    Attr, Caller, DirEntry, Durability, Entry, Fallocate, FileSystem, Ino, NewNode, ROOT,
    RenameFlags, Result, Seek, SetAttr, SetXattr, StatFs,
};

/// The name of the layout.
pub const LAYOUT: &str = "scmfs";

/// A mounted pool.
///
/// Any number of threads may call it. Operations on different inodes run in parallel; readers of
/// one inode run in parallel; nothing is global but the growth of the inode file and moves between
/// directories.
pub struct Scmfs<M> {
    core: Files<M>,
    report: MountReport,
}

impl<M: Medium> Scmfs<M> {
    /// Mounts the pool on `medium`: scans it in parallel and derives the volatile state (§3.3).
    ///
    /// # Errors
    /// [`Error::NotAPool`] or [`Error::Unusable`] where there is none, [`Error::Damaged`] where the scan finds a violated
    /// invariant, unless `read_only`: then damaged objects answer `EUCLEAN`.
    pub fn mount(medium: M, options: &MountOptions) -> std::result::Result<Self, Error> {
        let (core, report) = lifecycle::mount(medium, options)?;
        Ok(Self { core, report })
    }

    /// Mounts the pool on `medium` together with other processes: the derived state is the one at
    /// `place`, which the first of them makes by a scan. The medium must be open to all of them
    /// ([`pmem::Lock::Shared`]).
    ///
    /// # Errors
    /// As [`mount`](Self::mount), and [`Error::Shared`].
    pub fn attach(
        medium: M,
        place: &Place,
        options: &MountOptions,
    ) -> std::result::Result<Self, Error> {
        let (core, report) = lifecycle::attach(medium, place, options)?;
        Ok(Self { core, report })
    }

    /// As [`pool::Processes::reap_processes`].
    pub fn reap_processes(&self) -> Result<usize> {
        self.core.reap_processes(arena::Look::Thorough)
    }

    /// How often a process died inside an operation, so that the derived state was made anew.
    pub fn recoveries(&self) -> u32 {
        self.core.v.arena.recoveries()
    }

    /// Does what follows such a death, though nobody has died: for those who test what follows.
    pub fn rehearse_recovery(&self) -> vfs::Result<()> {
        self.core.rehearse_recovery()
    }

    /// What mounting found.
    pub fn mount_report(&self) -> &MountReport {
        &self.report
    }

    /// The medium.
    pub fn medium(&self) -> &M {
        &self.core.medium
    }

    /// Ends the mount and gives the medium back. What was not synced is in the CPU's caches, as before.
    pub fn into_medium(self) -> M {
        self.core.0.0.maps.medium
    }
}

impl<M: Medium> HasMountEvents for Scmfs<M> {
    fn mount_events(&self) -> impl MountEvents {
        PoolEvents(&*self.core)
    }
}

impl<M: Medium> FileSystem for Scmfs<M> {
    fn root(&self) -> Ino {
        ROOT
    }
    fn durability(&self) -> Durability {
        match self.core.medium.domain() {
            // Fences can fail, which `fsync` tells.
            Domain::PageCache => Durability::OnSync,
            _ => Durability::MetadataOnReturn,
        }
    }
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let mut entry = Entry::NONE;
        self.lookup_into(dir, name, &mut entry)?;
        Ok(entry)
    }
    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        self.core.op(|core| core.lookup(dir, name, entry))
    }
    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        loop {
            if let Some(seen) = self.core.op(|core| Ok(core.peek(dir, name, attr)))? {
                return seen;
            }
            self.lookup_into(dir, name, attr)?;
            self.forget(attr.ino, 1);
            // Without a link the name was removed between the two looks of `lookup`: look again.
            if attr.nlink > 0 || matches!(name, b"." | b"..") {
                return Ok(());
            }
        }
    }
    fn version(&self, ino: Ino) -> Option<u64> {
        self.core.v.version(ino)
    }
    fn forget(&self, ino: Ino, refs: u64) {
        self.core.forget(ino, refs);
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.core.op(|core| core.getattr(ino))
    }
    fn setattr(&self, _caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.core.op(|core| core.setattr(ino, set))
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.core.op(|core| core.create(caller, dir, name, node))
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.core.op(|core| core.tmpfile(caller, dir, mode, umask))
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.core.op(|core| core.readlink(ino))
    }
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.core.op(|core| core.unlink(dir, name))
    }
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.core.op(|core| core.rmdir(dir, name))
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.core.op(|core| core.link(ino, dir, name))
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.core.op(|core| core.rename(from, to, flags))
    }
    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.core.op(|core| core.readdir(dir, cookie, emit))
    }
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.core.op(|_| self.core.read(ino, offset, buf))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.core.op(|_| self.core.write(ino, offset, data))
    }
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.core.op(|_| self.core.append(ino, data))
    }
    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.core.op(|core| core.drop_privileges(ino))
    }
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.core.op(|_| self.core.fallocate(ino, mode, offset, len))
    }
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.core.op(|_| self.core.seek(ino, offset, whence))
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.core.op(|_| self.core.copy_range(from, to, len))
    }
    fn fsync(&self, ino: Ino) -> Result<()> {
        self.core.op(|_| self.core.fsync(ino))
    }
    fn sync(&self) -> Result<()> {
        self.core.op(|_| self.core.sync())
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.core.op(|core| core.getxattr(ino, name))
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.core.op(|core| core.setxattr(ino, name, value, mode))
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.core.op(|core| core.listxattr(ino))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.core.op(|core| core.removexattr(ino, name))
    }
    fn statfs(&self) -> StatFs {
        self.core.statfs()
    }
}
