//! Caches over the model, in pools of BPFS.

use backing::model::ModelBacking;
use backing::{Change, Opening, Reach, Watch};
use bpfs::Bpfs;
use pmcache::{Cache, Error, Options};
use pmem::{Medium as _, Region};
use pool::{FormatOptions, MountOptions};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use vfs::{Caller, Errno, FileSystem, Ino, NewKind, NewNode, ROOT};

/// A backing that a test keeps hold of.
#[derive(Clone)]
pub struct Below(pub Arc<ModelBacking>);

impl Deref for Below {
    type Target = ModelBacking;

    fn deref(&self) -> &ModelBacking {
        &self.0
    }
}

impl FileSystem for Below {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr, setattr,
        create, tmpfile, readlink, unlink, rmdir, link, rename, readdir, read, write, append, drop_privileges,
        fallocate, seek, copy_range, fsync, sync,
        getxattr, setxattr, listxattr, removexattr, statfs);
}

impl backing::Backing for Below {
    fn identity(&self, ino: Ino) -> vfs::Result<backing::Identity> {
        self.0.identity(ino)
    }

    fn find(&self, identity: &backing::Identity, hint: &[u8]) -> vfs::Result<vfs::Entry> {
        self.0.find(identity, hint)
    }

    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.0.path(ino)
    }

    fn sync_metadata(&self, ino: Ino) -> vfs::Result<()> {
        self.0.sync_metadata(ino)
    }

    fn is_placed(&self, ino: Ino) -> bool {
        self.0.is_placed(ino)
    }

    fn room(&self) -> vfs::Result<u64> {
        self.0.room()
    }

    fn watch(&self, how: Watch) -> vfs::Result<Reach> {
        self.0.watch(how)
    }

    fn wait_for_changes(&self, limit: Duration, tell: &mut dyn FnMut(Change)) -> vfs::Result<()> {
        self.0.wait_for_changes(limit, tell)
    }

    fn guard(&self, ino: Ino) -> vfs::Result<()> {
        self.0.guard(ino)
    }

    fn unguard(&self, ino: Ino) {
        self.0.unguard(ino);
    }

    fn wait_for_openings(&self, limit: Duration, tell: &mut dyn FnMut(Opening)) -> vfs::Result<()> {
        self.0.wait_for_openings(limit, tell)
    }
}

pub type Tested = Cache<Bpfs<Region>, Below>;

pub const POOL: u64 = 32 << 20;

pub fn region(bytes: u64) -> Region {
    let region = Region::anonymous(bytes).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    region
}

pub fn mount(region: Region) -> Bpfs<Region> {
    let options = MountOptions { seed: Some(1), threads: Some(1), ..MountOptions::default() };
    Bpfs::mount(region, &options).unwrap()
}

/// Compares with what is below each time, and writes back only when told to.
pub fn options() -> Options {
    Options { coherence_ns: 0, max_age_ns: i64::MAX, ..Options::for_pool(POOL) }
}

pub fn attach(region: Region, below: &Below, options: Options) -> Result<Tested, Error> {
    Cache::attach(mount(region), below.clone(), "/below", options)
}

pub fn fresh(options: Options) -> (Tested, Below) {
    let below = Below(Arc::new(ModelBacking::new()));
    (attach(region(POOL), &below, options).unwrap(), below)
}

/// What a power failure now would leave of a pool.
pub fn copy(cache: &Tested) -> Region {
    let medium = cache.pool().medium();
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(0, &mut bytes);
    let region = Region::anonymous(bytes.len() as u64).unwrap();
    region.write(0, &bytes);
    region
}

pub fn file(fs: &dyn FileSystem, name: &[u8]) -> Ino {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    fs.create(&Caller::ROOT, ROOT, name, &node).unwrap().ino
}

/// All of a file's bytes.
pub fn content(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; fs.getattr(ino)?.size as usize];
    let len = fs.read(ino, 0, &mut bytes)?;
    assert_eq!(len, bytes.len());
    Ok(bytes)
}
