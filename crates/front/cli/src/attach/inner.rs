//! The pool of a cache, of any engine. The cache shares it with programs to which files are
//! delegated.

use std::path::Path;
use std::sync::Arc;

use ::pool::{Engine, MountOptions};
use anyhow::{Context as _, Result};
use pmem::{Access, Lock, OpenOptions};
use vfs::{Delegations, FileSystem, Mappings, Openings};

use crate::pool;

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
}

impl FileSystem for Inner {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, fsync, sync, getxattr,
        setxattr, listxattr, removexattr, statfs, lookup_into, peek_into, close);
}

impl Mappings for Inner {}

impl Openings for Inner {}

impl Delegations for Inner {
    vfs::forward!(self => self.0; delegate, recall, set_bits_delegated);
}
