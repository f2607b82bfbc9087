//! The pool of a cache, which the server shares with programs.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::pool::{Engine, MountOptions};
use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use vfs::{
    Backed, DirtyCount, FileKind, FileSystem, Ino, LoadedObject, Mappings, Openings, Residence,
    WaitingCalls,
};

use crate::{busy, pool};

/// An engine as a file system.
#[derive(Clone)]
pub struct Inner(pub Arc<dyn Engine>);

impl Inner {
    /// Opens a pool that has a backing store, which the server shares with programs.
    ///
    /// # Errors
    /// If the pool has no backing store, another server has it open, or programs cannot share it.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(who) = busy::server(path) {
            bail!("{}: in use by {who}", path.display());
        }
        let opened = engines::attach(pool::open_shared(path)?, &MountOptions::default());
        let engine = opened.with_context(|| path.display().to_string())?;
        if engine.backed().is_none() {
            bail!("{}: {}", path.display(), not_for_caches(&*engine));
        }
        Ok(Self(engine))
    }

    fn backed(&self) -> vfs::Result<&dyn Backed> {
        self.0.backed().ok_or(Errno::OPNOTSUPP)
    }
}

/// Explains why a pool without a backing store is not attached.
fn not_for_caches(pool: &dyn FileSystem) -> String {
    match pmcache::older_cache_of(pool) {
        Some(dir) => super::older_cache(&dir),
        None => "this pool is for files of its own; format one for a cache with `keepstone mkfs --cache`".into(),
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

    fn set_through(&self, through: WaitingCalls) {
        if let Ok(pool) = self.backed() {
            pool.set_through(through);
        }
    }

    fn through(&self) -> WaitingCalls {
        self.backed().map_or(WaitingCalls::default(), Backed::through)
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

    fn begin_names_back(&self, dir: Ino, mark: u32) -> vfs::Result<()> {
        self.backed()?.begin_names_back(dir, mark)
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

    fn replace(&self, ino: Ino, object: &LoadedObject<'_>, was: u32) -> vfs::Result<bool> {
        self.backed()?.replace(ino, object, was)
    }

    fn make_dirty(&self, ino: Ino) -> vfs::Result<()> {
        self.backed()?.make_dirty(ino)
    }

    fn set_pinned(&self, ino: Ino, is_pinned: bool) -> vfs::Result<()> {
        self.backed()?.set_pinned(ino, is_pinned)
    }

    fn is_through(&self, ino: Ino) -> vfs::Result<bool> {
        self.backed()?.is_through(ino)
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

    fn drop_name(&self, dir: Ino, name: &[u8], ino: Ino) -> vfs::Result<bool> {
        self.backed()?.drop_name(dir, name, ino)
    }

    fn each_inode(&self, each: &mut dyn FnMut(Ino, &Residence)) -> vfs::Result<()> {
        self.backed()?.each_inode(each)
    }

    fn evict_content(&self, ino: Ino, range: Range<u64>) -> vfs::Result<u64> {
        self.backed()?.evict_content(ino, range)
    }

    fn evict_names(&self, dir: Ino) -> vfs::Result<bool> {
        self.backed()?.evict_names(dir)
    }

    fn dirty_count(&self) -> DirtyCount {
        self.backed().map_or(DirtyCount::default(), Backed::dirty_count)
    }

    fn gained(&self) -> u64 {
        self.backed().map_or(0, |pool| pool.gained())
    }

    fn gain(&self, bytes: u64) {
        let _ = self.backed().map(|pool| pool.gain(bytes));
    }

    fn settle(&self, bytes: u64) {
        let _ = self.backed().map(|pool| pool.settle(bytes));
    }

    fn limit_growth(&self, bytes: u64) {
        let _ = self.backed().map(|pool| pool.limit_growth(bytes));
    }
}

impl FileSystem for Inner {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, clone_range, fsync, sync,
        getxattr, setxattr, listxattr, removexattr, statfs, lookup_into, peek_into, close, version);
}

impl Mappings for Inner {}

impl Openings for Inner {}
