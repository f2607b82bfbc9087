//! The pool of a cache, of any engine. The cache shares it with programs to which files are
//! delegated.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::pool::{Engine, MountOptions};
use anyhow::{Context as _, Result, bail};
use pmem::{Access, Lock, OpenOptions};
use rustix::io::Errno;
use vfs::{
    Backed, Delegations, FileKind, FileSystem, Ino, LoadedObject, Mappings, Openings, Residence,
    Through,
};

use crate::{busy, pool};

/// An engine as a file system.
#[derive(Clone)]
pub struct Inner(pub Arc<dyn Engine>);

impl Inner {
    /// Opens the pool at `path`, shared with programs to which files of it are delegated if
    /// possible.
    pub fn open(path: &Path) -> Result<Self> {
        let open = |lock| {
            let options = OpenOptions { lock: Some(lock), ..OpenOptions::default() };
            pool::open(path, &options, Access::ReadWrite)
        };
        // The only processes that may have this pool open are programs of a cache whose server has
        // died.
        let alone = open(Lock::Exclusive).map(drop);
        let shared = open(Lock::Shared)?;
        let opened = match engines::attach(shared, &MountOptions::default()) {
            Err(::pool::Error::Shared(err)) if alone.is_ok() => {
                tracing::warn!("files will not be delegated to programs: {err}");
                engines::mount(open(Lock::Exclusive)?, &MountOptions::default())
            }
            opened => opened,
        };
        let engine = opened.with_context(|| path.display().to_string())?;
        if pmcache::directory_of(&*engine).is_none() {
            alone?;
        }
        Ok(Self(engine))
    }

    /// Returns the size of the pool in bytes.
    pub fn size(&self) -> u64 {
        let space = self.0.statfs();
        space.blocks * u64::from(space.block_size)
    }

    /// Opens a pool that has a backing store, which the server shares with programs.
    ///
    /// # Errors
    /// If another server has it open, or programs cannot share it.
    pub fn open_backed(path: &Path) -> Result<Self> {
        if let Some(who) = busy::server(path) {
            bail!("{}: in use by {who}", path.display());
        }
        let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
        let region = pool::open(path, &options, Access::ReadWrite)?;
        let opened = engines::attach(region, &MountOptions::default());
        Ok(Self(opened.with_context(|| path.display().to_string())?))
    }

    fn backed(&self) -> vfs::Result<&dyn Backed> {
        self.0.backed().ok_or(Errno::OPNOTSUPP)
    }
}

impl Backed for Inner {
    fn residence(&self, ino: Ino) -> vfs::Result<Residence> {
        self.backed()?.residence(ino)
    }

    fn load_name(&self, dir: Ino, name: &[u8], object: &LoadedObject<'_>) -> vfs::Result<Ino> {
        self.backed()?.load_name(dir, name, object)
    }

    fn load_link(&self, dir: Ino, name: &[u8], ino: Ino) -> vfs::Result<()> {
        self.backed()?.load_link(dir, name, ino)
    }

    fn finish_names(&self, dir: Ino) -> vfs::Result<()> {
        self.backed()?.finish_names(dir)
    }

    fn finish_links(&self, ino: Ino) -> vfs::Result<()> {
        self.backed()?.finish_links(ino)
    }

    fn absent_range(&self, ino: Ino, from: u64) -> vfs::Result<Option<Range<u64>>> {
        self.backed()?.absent_range(ino, from)
    }

    fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> vfs::Result<u64> {
        self.backed()?.load_content(ino, offset, data)
    }

    fn load_hole(&self, ino: Ino, range: Range<u64>) -> vfs::Result<()> {
        self.backed()?.load_hole(ino, range)
    }

    fn dirty_range(&self, ino: Ino, from: u64) -> vfs::Result<Option<Range<u64>>> {
        self.backed()?.dirty_range(ino, from)
    }

    fn clean_range(&self, ino: Ino, from: u64) -> vfs::Result<Option<Range<u64>>> {
        self.backed()?.clean_range(ino, from)
    }

    fn take_use(&self, ino: Ino) -> bool {
        self.backed().is_ok_and(|pool| pool.take_use(ino))
    }

    fn set_through(&self, through: Through) {
        if let Ok(pool) = self.backed() {
            pool.set_through(through);
        }
    }

    fn through(&self) -> Through {
        self.backed().map_or(Through::default(), Backed::through)
    }

    fn hole_range(&self, ino: Ino, from: u64) -> vfs::Result<Option<Range<u64>>> {
        self.backed()?.hole_range(ino, from)
    }

    fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> vfs::Result<Option<u64>> {
        self.backed()?.clean_content(ino, range, version)
    }

    fn set_identity(&self, ino: Ino, identity: &[u8]) -> vfs::Result<()> {
        self.backed()?.set_identity(ino, identity)
    }

    fn begin_write_back(&self, ino: Ino) -> vfs::Result<()> {
        self.backed()?.begin_write_back(ino)
    }

    fn clean_inode(&self, ino: Ino, version: u64, stamp: u32) -> vfs::Result<Option<u64>> {
        self.backed()?.clean_inode(ino, version, stamp)
    }

    fn reload(&self, ino: Ino, object: &LoadedObject<'_>, was: u32) -> vfs::Result<bool> {
        self.backed()?.reload(ino, object, was)
    }

    fn note_stamp(&self, ino: Ino, was: u32, stamp: u32) -> vfs::Result<bool> {
        self.backed()?.note_stamp(ino, was, stamp)
    }

    fn begin_names(&self, dir: Ino) -> vfs::Result<()> {
        self.backed()?.begin_names(dir)
    }

    fn each_name(&self, dir: Ino, each: &mut dyn FnMut(&[u8], Ino, FileKind)) -> vfs::Result<()> {
        self.backed()?.each_name(dir, each)
    }

    fn unload_name(&self, dir: Ino, name: &[u8], ino: Ino) -> vfs::Result<bool> {
        self.backed()?.unload_name(dir, name, ino)
    }

    fn each_inode(&self, each: &mut dyn FnMut(Ino, &[u8])) -> vfs::Result<()> {
        self.backed()?.each_inode(each)
    }

    fn evict_content(&self, ino: Ino, range: Range<u64>) -> vfs::Result<u64> {
        self.backed()?.evict_content(ino, range)
    }

    fn evict_names(&self, dir: Ino) -> vfs::Result<bool> {
        self.backed()?.evict_names(dir)
    }
}

impl FileSystem for Inner {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, fsync, sync, getxattr,
        setxattr, listxattr, removexattr, statfs, lookup_into, peek_into, close, version);
}

impl Mappings for Inner {}

impl Openings for Inner {}

impl Delegations for Inner {
    vfs::forward!(self => self.0; delegate, recall, set_bits_delegated);
}
