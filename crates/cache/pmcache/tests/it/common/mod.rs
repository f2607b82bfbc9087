//! A backing store to which tests keep a reference.

use backing::Backing;
use backing::model::ModelBacking;
use std::ops::Deref;
use std::sync::Arc;
use vfs::{FileSystem, Mappings, Openings};

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
