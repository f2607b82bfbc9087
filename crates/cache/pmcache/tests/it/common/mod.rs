//! Caches over the model, in pools of BPFS.

use backing::Backing;
use backing::model::ModelBacking;
use bpfs::Bpfs;
use pmcache::{Cache, CacheOptions, Error};
use pmem::{Medium as _, Region};
use pool::{FormatOptions, MountOptions};
use std::ops::Deref;
use std::sync::Arc;
use vfs::{
    Caller, Delegations, Errno, FileSystem, Ino, Mappings, NewKind, NewNode, Openings, ROOT,
};

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
        read, write, append, drop_privileges, fallocate, seek, copy_range, fsync, sync, getxattr,
        setxattr, listxattr, removexattr, statfs);
}

impl Mappings for Below {}

impl Openings for Below {}

impl Delegations for Below {}

impl Backing for Below {
    backing::forward!(self => self.0);
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

/// Returns options under which a cache compares with the backing store at each use, and writes back
/// only on request.
pub fn options() -> CacheOptions {
    CacheOptions { coherence_ns: 0, max_age_ns: i64::MAX, ..CacheOptions::for_pool(POOL) }
}

pub fn attach(region: Region, below: &Below, options: CacheOptions) -> Result<Tested, Error> {
    Cache::attach(mount(region), below.clone(), "/below", options)
}

pub fn fresh(options: CacheOptions) -> (Tested, Below) {
    let below = Below(Arc::new(ModelBacking::new()));
    (attach(region(POOL), &below, options).unwrap(), below)
}

/// Copies the state of a pool that a power failure would leave now.
pub fn copy<B: Backing>(cache: &Cache<Bpfs<Region>, B>) -> Region {
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

/// Reads all bytes of a file.
pub fn content(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; fs.getattr(ino)?.size as usize];
    let len = fs.read(ino, 0, &mut bytes)?;
    assert_eq!(len, bytes.len());
    Ok(bytes)
}
