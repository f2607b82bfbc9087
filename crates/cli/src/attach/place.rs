//! What a cache is over: a directory, or a prefix of an object store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use backing::{Backing, Change, DirFs, Identity, Opening, Reach, Watch};
use vfs::{Attr, Entry, FileSystem, Ino};

use super::args::StoreArgs;
use crate::mount::absolute_dir;

/// What a cache is over.
pub enum Place {
    /// A directory, absolute.
    Dir(PathBuf),
    /// A URL.
    Store(String),
}

impl Place {
    /// What a user means by DIR.
    pub fn parse(text: &Path) -> Result<Self> {
        match text.to_str().filter(|text| text.contains("://")) {
            Some(url) => Ok(Self::Store(url.to_owned())),
            None => Ok(Self::Dir(absolute_dir(text)?)),
        }
    }

    /// For messages and command lines.
    pub fn path(&self) -> &Path {
        match self {
            Self::Dir(dir) => dir,
            Self::Store(url) => Path::new(url),
        }
    }

    /// Where it is mounted if the user says nothing else.
    pub fn mount_point(&self) -> Result<PathBuf> {
        match self {
            Self::Dir(dir) => Ok(dir.clone()),
            Self::Store(url) => bail!(
                "{url} is no directory that could be mounted over: name a mount point behind it"
            ),
        }
    }

    /// Bytes that are read ahead if the user says nothing else: a request to a store takes as long as the transfer of these.
    pub fn read_ahead(&self) -> u64 {
        match self {
            Self::Dir(_) => 512 << 10,
            Self::Store(_) => 8 << 20,
        }
    }

    /// Opens it.
    pub fn open(&self, store: &StoreArgs) -> Result<Below> {
        let below = match self {
            Self::Dir(dir) => open_dir(dir).map(Below::new),
            Self::Store(url) => open_store(url, store),
        };
        below.with_context(|| format!("{}: cannot be cached", self.path().display()))
    }
}

/// The directory itself, where need be below the mount of a cache whose server has died.
fn open_dir(dir: &Path) -> Result<DirFs> {
    let options = backing::Options::default();
    if !fuse::is_stale(dir)? {
        return Ok(DirFs::open(dir, options)?);
    }
    let root = fuse::open_below(dir).with_context(|| {
        let how = format!("`keepstone umount {}`", dir.display());
        format!("a cache whose server has died is mounted over it; take that away with {how}")
    })?;
    Ok(DirFs::open_at(root, dir, options)?)
}

#[cfg(feature = "object-store")]
fn open_store(url: &str, args: &StoreArgs) -> Result<Below> {
    let mut tree = objects::Options::default();
    if let Some(bytes) = args.chunk_size {
        tree.chunk_bytes = u32::try_from(bytes)
            .ok()
            .filter(|bytes| bytes.is_power_of_two() && objects::format::CHUNK.contains(bytes))
            .context("a chunk has a power of two bytes, from 4K to 64M")?;
    }
    if let Some(seconds) = args.lease {
        tree.lease = Duration::from_secs(seconds.into());
    }
    let mut objects = objects::ObjectFs::open(objects::Location::parse(url, &args.options)?, tree)?;
    objects.start_upkeep()?;
    Ok(Below::new(objects))
}

#[cfg(not(feature = "object-store"))]
fn open_store(_url: &str, _args: &StoreArgs) -> Result<Below> {
    bail!("this keepstone was built without object stores (its feature `object-store`)")
}

/// What a cache has below it, whichever it is.
pub struct Below(Box<dyn Backing>);

impl Below {
    fn new(backing: impl Backing + 'static) -> Self {
        Self(Box::new(backing))
    }
}

impl FileSystem for Below {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr, setattr, create, tmpfile,
        readlink, unlink, rmdir, link, rename, readdir, read, write, append, drop_privileges, fallocate, seek, copy_range,
        fsync, sync, getxattr, setxattr, listxattr, removexattr, statfs);

    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> vfs::Result<()> {
        self.0.lookup_into(dir, name, entry)
    }

    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> vfs::Result<()> {
        self.0.peek_into(dir, name, attr)
    }

    fn close(&self) -> vfs::Result<()> {
        self.0.close()
    }
}

impl Backing for Below {
    fn identity(&self, ino: Ino) -> vfs::Result<Identity> {
        self.0.identity(ino)
    }

    fn find(&self, identity: &Identity, hint: &[u8]) -> vfs::Result<Entry> {
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
