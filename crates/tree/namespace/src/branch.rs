//! A branch of a pool as a file system of its own ([`crate::branches`]).
//!
//! - branch-V1: the root of the branch has the inode number 1, as every root. The number 1 never
//!   means the root of the pool, and the root's `..` is itself. So no walk leads out of the branch.
//! - branch-V2: all other inodes have their numbers in the pool. So events, references and mappings
//!   are those of the pool.
//! - branch-V3: its root is held, and the process has locked the part of the pool's region that
//!   stands for the branch ([`pool::branch_part`]). So the branch stays.

use crate::files::Files;
use crate::mounted::Pool;
use crate::store::Storage;
use arena::Paused;
use mounts::{HasMountEvents, MountEvents};
use pmem::Region;
use pool::{DurabilityMode, Engine, FreeSpace, MountReport, Processes, ReadBuf, TreeSource};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use vfs::{
    Attr, Caller, Cloned, DirEntry, Entry, Errno, Extent, Fallocate, FileSystem, Ino, Mappings,
    NewNode, Openings, ROOT, RenameFlags, Result, Seek, SetAttr, SetXattr,
};

/// A branch of a mounted pool.
pub struct Branch<F> {
    pool: Pool<F>,
    root: Ino,
}

impl<F: Files> Branch<F> {
    /// Opens a branch of a pool.
    ///
    /// # Errors
    /// `ENOENT` if the pool has no such branch, `EOPNOTSUPP` if it can have none.
    pub fn open(pool: Pool<F>, name: &str) -> Result<Self> {
        let dir = pool.branches_dir(false)?.ok_or(Errno::NOENT)?;
        match pool::split_branch(name) {
            Some((_, true)) => {
                let root = pool.lookup(dir, name.as_bytes())?.ino;
                Ok(Self { pool, root })
            }
            _ => Err(Errno::NOENT),
        }
    }

    /// Gives the pool back.
    pub fn into_pool(self) -> Pool<F> {
        self.pool
    }

    /// Returns the number of an inode in the pool (branch-V1).
    #[inline]
    fn inner(&self, ino: Ino) -> Ino {
        if ino == ROOT { self.root } else { ino }
    }

    /// As [`inner`](Self::inner), for a name in a directory.
    #[inline]
    fn place<'n>(&self, (dir, name): (Ino, &'n [u8])) -> (Ino, &'n [u8]) {
        (self.inner(dir), name)
    }

    /// As [`place`](Self::place), for a name that is looked up.
    #[inline]
    fn found<'n>(&self, dir: Ino, name: &'n [u8]) -> (Ino, &'n [u8]) {
        if dir == ROOT && name == b".." { (self.root, b".") } else { (self.inner(dir), name) }
    }

    /// Gives attributes the number that the inode has in the branch.
    #[inline]
    fn outer(&self, attr: &mut Attr) {
        if attr.ino == self.root {
            attr.ino = ROOT;
        }
    }

    /// As [`outer`](Self::outer).
    fn shown(&self, mut attr: Attr) -> Attr {
        self.outer(&mut attr);
        attr
    }
}

/// Only the root has a number of its own, and no event concerns it (branch-V2).
impl<F: Files> HasMountEvents for Branch<F> {
    fn mount_events(&self) -> impl MountEvents {
        self.pool.mount_events()
    }
}

impl<F: Files> FileSystem for Branch<F> {
    vfs::forward!(self => self.pool; durability, kernel_cache, limits, sync, close, statfs);

    fn root(&self) -> Ino {
        ROOT
    }
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let (dir, name) = self.found(dir, name);
        Ok(self.shown(self.pool.lookup(dir, name)?))
    }
    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        let (dir, name) = self.found(dir, name);
        self.pool.lookup_into(dir, name, entry)?;
        self.outer(entry);
        Ok(())
    }
    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        let (dir, name) = self.found(dir, name);
        self.pool.peek_into(dir, name, attr)?;
        self.outer(attr);
        Ok(())
    }
    fn version(&self, ino: Ino) -> Option<u64> {
        self.pool.version(self.inner(ino))
    }
    fn forget(&self, ino: Ino, refs: u64) {
        // The root is held for good.
        if ino != ROOT {
            self.pool.forget(ino, refs);
        }
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.shown(self.pool.getattr(self.inner(ino))?))
    }
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        Ok(self.shown(self.pool.setattr(caller, self.inner(ino), set)?))
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.pool.create(caller, self.inner(dir), name, node)
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.pool.tmpfile(caller, self.inner(dir), mode, umask)
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.pool.readlink(self.inner(ino))
    }
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.pool.unlink(self.inner(dir), name)
    }
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.pool.rmdir(self.inner(dir), name)
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.pool.link(self.inner(ino), self.inner(dir), name)
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.pool.rename(self.place(from), self.place(to), flags)
    }
    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.pool.rename_whiteout(caller, self.place(from), self.place(to), flags)
    }
    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.pool.readdir(self.inner(dir), cookie, &mut |entry| {
            let is_root = entry.ino == self.root || dir == ROOT && entry.name == b"..";
            let ino = if is_root { ROOT } else { entry.ino };
            emit(&DirEntry { ino, ..*entry })
        })
    }
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pool.read(self.inner(ino), offset, buf)
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.pool.write(self.inner(ino), offset, data)
    }
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.pool.append(self.inner(ino), data)
    }
    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.pool.drop_privileges(self.inner(ino))
    }
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.pool.fallocate(self.inner(ino), mode, offset, len)
    }
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.pool.seek(self.inner(ino), offset, whence)
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.pool.copy_range((self.inner(from.0), from.1), (self.inner(to.0), to.1), len)
    }
    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        self.pool.clone_range((self.inner(from.0), from.1), (self.inner(to.0), to.1), len)
    }
    fn fsync(&self, ino: Ino) -> Result<()> {
        self.pool.fsync(self.inner(ino))
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.pool.getxattr(self.inner(ino), name)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.pool.setxattr(self.inner(ino), name, value, mode)
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.pool.listxattr(self.inner(ino))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.pool.removexattr(self.inner(ino), name)
    }
}

/// Only regular files are mapped.
impl<F: Files> Mappings for Branch<F> {
    vfs::forward!(self => self.pool; unmap_range, sync_range);

    fn map_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<Vec<Extent>> {
        self.pool.map_range(self.inner(ino), range, stores)
    }
    fn map_again(&self, ino: Ino, stores: bool) -> Result<()> {
        self.pool.map_again(self.inner(ino), stores)
    }
}

impl<F: Files> Openings for Branch<F> {}

impl<F: Files<Storage: Storage<Medium = Region>>> Processes for Branch<F> {
    fn reap_processes(&self) -> Result<usize> {
        Processes::reap_processes(&self.pool)
    }
    fn follow_owner(&self) -> io::Result<()> {
        self.pool.follow_owner()
    }
    fn pause(&self) -> Option<Paused<'_>> {
        self.pool.pause()
    }
    fn begin_fork(&self) {
        self.pool.begin_fork();
    }
    fn inherit(&self, ino: Ino) -> Result<()> {
        self.pool.inherit(self.inner(ino))
    }
    fn end_fork(&self) {
        self.pool.end_fork();
    }
}

/// Snapshots and branches are commands of the pool, not of a branch.
impl<F: Files<Storage: Storage<Medium = Region>>> Engine for Branch<F> {
    fn region(&self) -> &Region {
        self.pool.region()
    }
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.pool.descriptors()
    }
    fn mount_report(&self) -> &MountReport {
        self.pool.mount_report()
    }
    fn free_space(&self) -> FreeSpace {
        self.pool.free_space()
    }
    fn record_access(&self, files: bool, dirs: bool, strictly: bool) {
        self.pool.record_access(files, dirs, strictly);
    }
    fn set_durability(&self, mode: DurabilityMode) -> Result<()> {
        self.pool.set_durability(mode)
    }
    fn durability_mode(&self) -> DurabilityMode {
        self.pool.durability_mode()
    }
    fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<ReadBuf<'_>> {
        self.pool.get_read_buf(self.inner(ino), offset, count)
    }
    fn maintain(&self) -> Result<bool> {
        self.pool.maintain()
    }
    fn trim(&self) -> Result<()> {
        Engine::trim(&self.pool)
    }
    fn copy_tree(&self, from: &TreeSource<'_>, to: (Ino, &[u8])) -> Result<Cloned> {
        match from {
            TreeSource::Dir(from) => {
                self.pool.copy_tree(&TreeSource::Dir(self.inner(*from)), self.place(to))
            }
            TreeSource::Snapshot(_) => Err(Errno::OPNOTSUPP),
        }
    }
    fn put_read_buf(&self) {
        self.pool.put_read_buf();
    }
}
