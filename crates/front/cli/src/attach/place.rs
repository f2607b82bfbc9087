//! The backing store of a cache: a directory, or a prefix of an object store.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
#[cfg(feature = "object-store")]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, Result, bail};
use backing::{Backing, DirFs};
use fuse::MountFlags;
use os::ending::after_ending;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use vfs::{FileSystem, Ino, Mappings, Openings, SetXattr};

use super::args::StoreArgs;
use crate::mount::absolute_dir;
#[cfg(feature = "object-store")]
use crate::output::wrong_usage;
use crate::{background, busy};

/// The name of a backing store.
pub enum Place {
    /// A directory, absolute.
    Dir(PathBuf),
    /// A URL.
    Store(String),
}

impl Place {
    /// Parses the argument DIR.
    pub fn parse(text: &Path) -> Result<Self> {
        match text.to_str().filter(|text| text.contains("://")) {
            Some(url) => Ok(Self::Store(url.to_owned())),
            None => Ok(Self::Dir(absolute_dir(text)?)),
        }
    }

    /// Returns the name for messages and command lines.
    pub fn path(&self) -> &Path {
        match self {
            Self::Dir(dir) => dir,
            Self::Store(url) => Path::new(url),
        }
    }

    /// Returns the default mount point.
    pub fn mount_point(&self) -> Result<PathBuf> {
        match self {
            Self::Dir(dir) => Ok(dir.clone()),
            Self::Store(url) => {
                bail!("{url} is not a directory to mount over: name a mount point after it")
            }
        }
    }

    /// Opens the backing store.
    pub fn open(&self, store: &StoreArgs) -> Result<Below> {
        let below = match self {
            Self::Dir(dir) => open_dir(dir),
            Self::Store(url) => open_store(url, store),
        };
        below.with_context(|| format!("{}: cannot be cached", self.path().display()))
    }
}

/// Opens a directory. If a cache whose server has died is mounted over it, opens the directory
/// below that mount.
fn open_dir(dir: &Path) -> Result<Below> {
    let options = backing::DirOptions::default();
    let opened = if fuse::is_stale(dir)? {
        let root = fuse::open_below(dir).with_context(|| {
            let how = format!("`keepstone umount {}`", dir.display());
            format!(
                "a cache whose server has died is mounted over it; remove that mount with {how}"
            )
        })?;
        DirFs::open_at(root, dir, options)?
    } else {
        DirFs::open(dir, options)?
    };
    let claim = Claim::take(&opened)?;
    Ok(Below::Dir { dir: Box::new(opened), claim })
}

/// A claim that excludes other caches of this user from a directory: a locked file in a place where
/// other users cannot lock it. A lock of the directory itself would not do, because every user who
/// may read the directory can take it.
pub struct Claim {
    path: PathBuf,
    locked: File,
}

impl Claim {
    fn take(dir: &DirFs) -> Result<Self> {
        let identity = dir.identity(dir.root())?;
        let name = hex(&identity.0);
        let place = background::runtime_dir();
        background::make_private(&place)?;
        let path = place.join(name).with_extension("dir");
        let is_taken = |err: &io::Error| err.kind() == io::ErrorKind::WouldBlock;
        let is_ending = || busy::is_about_to_be_free(&path);
        match after_ending(is_taken, is_ending, || lock(&path)) {
            Ok(locked) => Ok(Self { path, locked }),
            Err(err) if is_taken(&err) => {
                bail!("{} is in use below another cache", dir.dir().display())
            }
            Err(err) => Err(err).with_context(|| path.display().to_string()),
        }
    }

    /// Removes the file, unless the file at this path belongs to another server now. The lock lasts
    /// as long as `self`.
    fn remove(&self) {
        if is_same_file(&self.path, &self.locked) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a file, if it does not exist, and locks it. `WouldBlock` if another process has locked it.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let mut options = File::options();
        options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The previous holder may have removed the file before this lock.
        if is_same_file(path, &file) {
            return Ok(file);
        }
    }
}

/// Returns bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns whether a path leads to this open file.
fn is_same_file(path: &Path, file: &File) -> bool {
    path.metadata()
        .is_ok_and(|found| file.metadata().is_ok_and(|opened| found.ino() == opened.ino()))
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(feature = "object-store")]
fn open_store(url: &str, args: &StoreArgs) -> Result<Below> {
    let mut tree = objects::StoreOptions::default();
    if let Some(bytes) = args.chunk_size {
        tree.chunk_bytes = u32::try_from(bytes)
            .ok()
            .filter(|bytes| bytes.is_power_of_two() && objects::format::CHUNK.contains(bytes))
            .ok_or_else(|| wrong_usage("a chunk has a power of two bytes, from 4K to 64M"))?;
    }
    if let Some(seconds) = args.lease {
        tree.lease = std::time::Duration::from_secs(seconds.into());
    }
    let mut objects = objects::ObjectFs::open(objects::Location::parse(url, &args.options)?, tree)?;
    objects.start_upkeep()?;
    Ok(Below::Store(Box::new(objects), AtomicBool::new(false)))
}

#[cfg(not(feature = "object-store"))]
fn open_store(_url: &str, _args: &StoreArgs) -> Result<Below> {
    bail!(
        "this keepstone was built without object stores; packages have them, or build it with \
         `make build FEATURES=object-store`"
    )
}

/// An open backing store of either kind.
pub enum Below {
    /// A directory of a kernel file system, which this process has claimed.
    Dir {
        /// The directory.
        dir: Box<DirFs>,
        /// Keeps other caches of this user from the directory.
        claim: Claim,
    },
    /// A tree in an object store, and whether to trust the operator of the store with attributes
    /// and modes that give programs privileges.
    #[cfg(feature = "object-store")]
    Store(Box<objects::ObjectFs>, AtomicBool),
}

impl Below {
    /// Removes the claim. The process calls this before it exits while other threads still hold the
    /// cache.
    pub fn end_use(&self) {
        match self {
            Self::Dir { claim, .. } => claim.remove(),
            #[cfg(feature = "object-store")]
            Self::Store(..) => {}
        }
    }

    /// Returns the flags of the mount that the files lie on. A store counts as guarded (nosuid,
    /// nodev), because its operator can make set-user-ID and device files.
    pub fn mount_flags(&self) -> MountFlags {
        match self {
            Self::Dir { dir, .. } => dir.mount_flags(),
            #[cfg(feature = "object-store")]
            Self::Store(..) => crate::mount::flags::GUARDED,
        }
    }

    /// Receives the flags of the cache's mount, which tell whether the operator of a store is
    /// trusted.
    #[cfg_attr(not(feature = "object-store"), expect(unused_variables))]
    pub fn serve_with(&self, flags: MountFlags) {
        match self {
            Self::Dir { .. } => {}
            #[cfg(feature = "object-store")]
            Self::Store(_, is_trusted) => {
                is_trusted.store(!flags.contains(MountFlags::NOSUID), Relaxed)
            }
        }
    }

    /// Returns whether to hide an extended attribute. The operator of a store can create any
    /// attribute, so those that give privileges are hidden unless the operator is trusted.
    #[cfg_attr(not(feature = "object-store"), expect(unused_variables))]
    fn hides(&self, name: &[u8]) -> bool {
        match self {
            Self::Dir { .. } => false,
            #[cfg(feature = "object-store")]
            Self::Store(_, is_trusted) => {
                let has_powers = name.starts_with(b"security.") || name.starts_with(b"trusted.");
                has_powers && !is_trusted.load(Relaxed)
            }
        }
    }

    fn backing(&self) -> &dyn Backing {
        match self {
            Self::Dir { dir, .. } => &**dir,
            #[cfg(feature = "object-store")]
            Self::Store(store, _) => &**store,
        }
    }
}

/// Forwards all calls to the store; hides the extended attributes for which `hides` is true.
impl FileSystem for Below {
    vfs::forward!(self => self.backing(); root, durability, kernel_cache, limits, lookup, forget,
        getattr, setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout,
        readdir, read, write, append, drop_privileges, fallocate, seek, copy_range, clone_range, fsync,
        sync, removexattr, statfs, lookup_into, peek_into, close);

    fn getxattr(&self, ino: Ino, name: &[u8]) -> vfs::Result<Vec<u8>> {
        if self.hides(name) { Err(Errno::NODATA) } else { self.backing().getxattr(ino, name) }
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> vfs::Result<()> {
        if self.hides(name) {
            return Err(Errno::PERM);
        }
        self.backing().setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: Ino) -> vfs::Result<Vec<Vec<u8>>> {
        let mut names = self.backing().listxattr(ino)?;
        names.retain(|name| !self.hides(name));
        Ok(names)
    }
}

impl Mappings for Below {}

impl Openings for Below {}

impl Backing for Below {
    backing::forward!(self => self.backing());
}
