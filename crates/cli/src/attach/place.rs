//! What a cache is over: a directory, or a prefix of an object store.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use backing::{Backing, DirFs};
use vfs::FileSystem;

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
        tree.lease = std::time::Duration::from_secs(seconds.into());
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
        fsync, sync, getxattr, setxattr, listxattr, removexattr, statfs, lookup_into, peek_into, close);
}

impl Backing for Below {
    backing::forward!(self => self.0);
}
