//! A backing store to which tests keep a reference.

use backing::model::ModelBacking;
use backing::{Backing, Identity};
use std::ops::Deref;
use std::sync::Arc;
use vfs::{Entry, FileSystem, Ino, Mappings, Openings, Result};

/// A backing to which a test keeps a reference.
#[derive(Clone)]
pub struct Below(pub Arc<ModelBacking>);

impl Deref for Below {
    type Target = ModelBacking;

    fn deref(&self) -> &ModelBacking {
        &self.0
    }
}

impl FileSystem for Below {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, clone_range, fsync, sync,
        getxattr, setxattr, listxattr, removexattr, statfs);
}

impl Mappings for Below {}

impl Openings for Below {}

impl Backing for Below {
    backing::forward!(self => self.0);
}

/// A backing that can only be synced as a whole.
#[derive(Clone)]
pub struct Whole(pub Below);

impl FileSystem for Whole {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, clone_range, fsync, sync,
        getxattr, setxattr, listxattr, removexattr, statfs);
}

impl Mappings for Whole {}

impl Openings for Whole {}

impl Backing for Whole {
    fn identity(&self, ino: Ino) -> Result<Identity> {
        self.0.identity(ino)
    }
    fn find(&self, identity: &Identity) -> Result<Entry> {
        self.0.find(identity)
    }
    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        self.0.sync_metadata(ino)
    }
    fn syncs_as_whole(&self) -> bool {
        true
    }
}
