//! A pool: opened, made, and the operations on its names.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use engines::Layout;
use pmem::{Access, Lock};
use pool::{Engine, FormatOptions, MountOptions, Otherwise};
use vfs::{Caller, Entry, Errno, Ino, NewKind, NewNode, RenameFlags, SetAttr, SetTime, SetXattr};

use crate::metadata::from_system_time;
use crate::{Metadata, OpenOptions, PoolError, PoolSpace, ReadDir};

/// A pool that this process has open.
///
/// Any number of processes may have the same pool open, with and without mounts made with `-o
/// direct`. A `Pool` may be shared by threads, and copies of it are the same pool. A child of a
/// fork must not use it.
///
/// Paths begin at the root of the pool, with or without a leading `/`. Methods follow symbolic
/// links, except where their documentation excludes it. Permission bits are stored and not checked:
/// a process that may open the pool may do everything in it.
#[derive(Clone)]
pub struct Pool {
    fs: Arc<dyn Engine>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.fs.region().path()).finish()
    }
}

/// The user to whom new files belong.
pub(crate) fn caller() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// The attributes that a new pool has.
///
/// ```
/// # use keepstone_library as keepstone;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// let pool = keepstone::NewPool::new(64 << 20).layout("scmfs").label("models").create(&path)?;
/// assert_eq!(pool.layout(), Some("scmfs"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewPool {
    size: u64,
    layout: String,
    label: String,
}

impl NewPool {
    /// Describes a pool of `size` bytes, of the layout `bpfs` and without a label.
    pub fn new(size: u64) -> Self {
        Self { size, layout: Layout::Bpfs.name().to_owned(), label: String::new() }
    }

    /// Chooses the layout, by the name that `keepstone mkfs` takes: `bpfs` or `scmfs`.
    pub fn layout(mut self, name: &str) -> Self {
        name.clone_into(&mut self.layout);
        self
    }

    /// Gives the pool a name of at most 64 bytes.
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// Makes the pool in a new file, and opens it. The pool takes space of the file system when its
    /// files need it. `keepstone mkfs` can do more: existing files, devices, caches.
    ///
    /// # Errors
    /// `EEXIST` if the path exists, `EINVAL` if no pool can have this layout, size or label.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool, PoolError> {
        let path = path.as_ref();
        self.format(path)?;
        Pool::open(path)
    }

    /// As [`create`](Self::create), but leaves the pool closed.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn format(&self, path: impl AsRef<Path>) -> Result<(), PoolError> {
        let path = path.as_ref();
        let refuse = |why: String| PoolError::new(path, pool::Error::Unformattable(why));
        let layout = Layout::named(&self.layout).filter(|layout| layout.is_shared());
        let layout =
            layout.ok_or_else(|| refuse(format!("there is no layout `{}`", self.layout)))?;
        if !layout.limits().contains(&self.size) {
            let limits = layout.limits();
            let (least, most) = (limits.start(), limits.end());
            return Err(refuse(format!("a pool has at least {least} and at most {most} bytes")));
        }
        if self.label.len() > pool::LABEL_MAX {
            return Err(refuse(format!("a label has at most {} bytes", pool::LABEL_MAX)));
        }
        let options = pmem::OpenOptions { sparse: true, ..pmem::OpenOptions::default() };
        let length = pool::length_for(self.size).min(*layout.limits().end());
        let options = pmem::OpenOptions { reserve: length, ..options };
        let region =
            options.create_nameless(path, self.size).map_err(|err| PoolError::new(path, err))?;
        let made = (|| {
            let is_thin = layout.can_be_thin() && region.can_be_thin();
            if is_thin {
                // Not all file systems, and limits of processes, allow so long a file.
                let _ = region.grow_sparse(length);
            } else {
                region.allocate().map_err(|err| PoolError::new(path, err))?;
            }
            let Caller { uid, gid } = caller();
            let (label, owner) = (self.label.clone(), (uid, gid));
            let size = is_thin.then_some(self.size);
            let options = FormatOptions { label, owner, is_backed: false, is_thin, size };
            layout.format(&region, &options).map_err(|err| PoolError::new(path, err))?;
            region.name_file(path).map_err(|err| PoolError::new(path, err))
        })();
        if made.is_err() && region.has_name() {
            let _ = std::fs::remove_file(path);
        }
        made
    }
}

/// Opening, and what concerns the whole pool.
impl Pool {
    /// Opens a pool, by the path of its file or device. No mount is needed.
    ///
    /// The process gets a handler of SIGBUS, which passes on faults that do not concern pools: a
    /// pool that is truncated, or whose memory fails, then gives `EIO`. A program that sets its own
    /// handler should do so before.
    ///
    /// # Errors
    /// [`PoolError::errno`] lists them.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PoolError> {
        let path = path.as_ref();
        // library-L2.
        pool::handle_faults(Otherwise::PassOn).map_err(|err| PoolError::new(path, err))?;
        let options =
            pmem::OpenOptions { lock: Some(Lock::Shared), ..pmem::OpenOptions::default() };
        let region = options.open(path, Access::ReadWrite).map_err(|e| PoolError::new(path, e))?;
        let engine = engines::attach(region, &MountOptions::default());
        let engine = engine.map_err(|err| PoolError::new(path, err))?;
        let why =
            "is a cache: open its files by their paths, in the directory that it is attached to";
        Self::over(engine).map_err(|errno| {
            PoolError::new(path, io::Error::new(io::Error::from(errno).kind(), why))
        })
    }

    /// Takes a pool that is open. The caller handles faults.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a cache.
    #[doc(hidden)]
    pub fn over(fs: Arc<dyn Engine>) -> Result<Self, Errno> {
        if fs.backed().is_some() { Err(Errno::OPNOTSUPP) } else { Ok(Self { fs }) }
    }

    pub(crate) fn fs(&self) -> &dyn Engine {
        &*self.fs
    }

    /// Returns the name of the layout: `bpfs` or `scmfs`.
    pub fn layout(&self) -> Option<&'static str> {
        Layout::of(self.fs.region()).map(Layout::name)
    }

    /// Makes everything that has completed in the pool durable.
    ///
    /// # Errors
    /// `EIO` if it is not known to be durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(self.fs.sync()?)
    }

    /// Makes everything durable, and gives this handle up. Copies of it, and files, stay open.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn close(self) -> io::Result<()> {
        self.sync()
    }

    /// Returns the space of the pool.
    pub fn space(&self) -> PoolSpace {
        PoolSpace(self.fs.statfs())
    }

    /// Returns the length in bytes of the longest name.
    pub fn name_max(&self) -> usize {
        self.fs.limits().name
    }
}

/// Walks along paths.
impl Pool {
    /// Calls `f` with the directory and last name of a path.
    pub(crate) fn at<T>(
        &self,
        path: &Path,
        f: impl FnOnce(&dyn Engine, Ino, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let fs = self.fs();
        vfs::path::at(fs, path.as_os_str().as_bytes(), |dir, name| f(fs, dir, name))
    }

    /// Finds an inode, with a reference. A symbolic link at the end of the path is followed.
    pub(crate) fn find(&self, path: &Path) -> Result<Entry, Errno> {
        self.at(path, |fs, dir, name| vfs::path::follow(fs, dir, name))
    }

    /// Calls `f` with the inode of a path. A symbolic link at its end is followed or not.
    fn on<T>(
        &self,
        path: &Path,
        follows: bool,
        f: impl FnOnce(&dyn Engine, Ino) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let entry = match follows {
            true => self.find(path),
            false => self.at(path, |fs, dir, name| fs.lookup(dir, name)),
        }?;
        let result = f(self.fs(), entry.ino);
        self.fs.forget(entry.ino, 1);
        Ok(result?)
    }

    fn make(&self, path: &Path, kind: NewKind<'_>, mode: u32) -> io::Result<()> {
        Ok(self.at(path, |fs, dir, name| {
            if matches!(name, b"." | b"..") {
                return Err(Errno::EXIST);
            }
            let node = NewNode { kind, mode: mode & 0o7777, umask: 0 };
            let made = fs.create(&caller(), dir, name, &node)?;
            fs.forget(made.ino, 1);
            Ok(())
        })?)
    }

    fn set(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.on(path, true, |fs, ino| fs.setattr(&caller(), ino, set).map(drop))
    }
}

/// Files as a whole.
impl Pool {
    /// Reads all of a file.
    ///
    /// # Errors
    /// As [`OpenOptions::open`] and [`File::read_at`](crate::File::read_at).
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).open(self, path)?;
        let mut content = Vec::with_capacity(file.metadata()?.len() as usize);
        (&file).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Reads all of a file as text.
    ///
    /// # Errors
    /// As [`read`](Self::read); `InvalidData` if it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let content = self.read(path)?;
        String::from_utf8(content).map_err(|err| io::Error::new(io::ErrorKind::InvalidData, err))
    }

    /// Gives a file this content. Creates it if it does not exist.
    ///
    /// # Errors
    /// As [`OpenOptions::open`] and [`File::write_at`](crate::File::write_at).
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).open(self, path)?;
        file.write_all(content.as_ref())
    }
}

/// Names. Each call is atomic, and durable when it returns, in a pool of durable memory.
impl Pool {
    /// Returns whether a path leads to a file.
    ///
    /// # Errors
    /// All but `ENOENT`.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Creates a directory, with these permission bits.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `ENOSPC`.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        self.make(path.as_ref(), NewKind::Dir, mode)
    }

    /// Creates a directory and all directories above it that do not exist.
    ///
    /// # Errors
    /// As [`create_dir`](Self::create_dir); `ENOTDIR` if a file is in the way.
    pub fn create_dir_all(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let path = path.as_ref();
        match self.metadata(path) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => return Err(Errno::NOTDIR.into()),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.create_dir_all(parent, mode)?;
        }
        match self.create_dir(path, mode) {
            // Another program was faster.
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Lists a directory, without `.` and `..`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        ReadDir::open(self, path.as_ref())
    }

    /// Removes the name of a file that is no directory.
    ///
    /// # Errors
    /// `ENOENT`; `EISDIR` for a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |fs, dir, name| fs.unlink(dir, name))?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.at(path.as_ref(), |fs, dir, name| fs.rmdir(dir, name))?)
    }

    /// Renames a file or directory, in place of what the new name means.
    ///
    /// # Errors
    /// As of `rename(2)`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.at(from.as_ref(), |fs, from_dir, from_name| {
            self.at(to.as_ref(), |_, to_dir, to_name| {
                fs.rename((from_dir, from_name), (to_dir, to_name), RenameFlags::empty())
            })
        })?)
    }

    /// Gives a file another name. Does not follow a symbolic link at the end of `original`.
    ///
    /// # Errors
    /// As of `link(2)`.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        self.on(original.as_ref(), false, |fs, ino| {
            let entry = self.at(link.as_ref(), |fs, dir, name| fs.link(ino, dir, name))?;
            fs.forget(entry.ino, 1);
            Ok(())
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As of `symlink(2)`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.make(link.as_ref(), NewKind::Symlink(target), 0o777)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if the file is of another kind.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let target = self.on(path.as_ref(), false, |fs, ino| fs.readlink(ino))?;
        Ok(OsString::from_vec(target).into())
    }

    /// Clones a file, or a directory with all below it, to a new name, which appears as a whole.
    /// Files share their blocks until one of them changes; a pool whose layout cannot do that
    /// copies.
    ///
    /// # Errors
    /// `EEXIST` if the new name exists, `EINVAL` if it lies below the source, `ENOSPC`.
    pub fn clone_tree(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let unique = vfs::unique_number();
        self.on(from.as_ref(), false, |fs, source| {
            self.at(to.as_ref(), |_, to_dir, to_name| {
                pool::clone_tree(fs, source, (to_dir, to_name), unique, &mut |_| true).map(drop)
            })
        })
    }
}

/// Attributes.
impl Pool {
    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        let entry = self.find(path.as_ref())?;
        self.fs.forget(entry.ino, 1);
        Ok(Metadata(entry))
    }

    /// Returns the attributes of a file, of the link itself if it is a symbolic link.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.on(path.as_ref(), false, |fs, ino| fs.getattr(ino)).map(Metadata)
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let set = SetAttr { perm: Some(mode & 0o7777), ..SetAttr::default() };
        self.set(path.as_ref(), &set)
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        self.set(path.as_ref(), &SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// Sets the times of the last access and of the last change of content; `None` leaves one as it
    /// is.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> io::Result<()> {
        let at = |time: Option<SystemTime>| time.map(|time| SetTime::At(from_system_time(time)));
        self.set_times_to(path.as_ref(), at(accessed), at(modified))
    }

    /// As [`set_times`](Self::set_times), with the times of the contract.
    #[doc(hidden)]
    pub fn set_times_to(
        &self,
        path: &Path,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> io::Result<()> {
        self.set(path, &SetAttr { atime, mtime, ..SetAttr::default() })
    }
}

/// Extended attributes. Names have a prefix, as `user.`.
impl Pool {
    /// Returns the value of an extended attribute; `None` if the file has no such name.
    ///
    /// # Errors
    /// `ENOENT` if there is no such file.
    pub fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> io::Result<Option<Vec<u8>>> {
        let name = name.as_ref().as_bytes();
        self.on(path.as_ref(), true, |fs, ino| match fs.getxattr(ino, name) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno),
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As of `setxattr(2)`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        let mode = posix::check_set_xattr(name, value, 0)?;
        self.set_xattr_if(path.as_ref(), name, value, mode)
    }

    /// As [`set_xattr`](Self::set_xattr), under a condition. The caller has checked the name.
    #[doc(hidden)]
    pub fn set_xattr_if(
        &self,
        path: &Path,
        name: &[u8],
        value: &[u8],
        condition: SetXattr,
    ) -> io::Result<()> {
        self.on(path, true, |fs, ino| fs.setxattr(ino, name, value, condition))
    }

    /// Returns the names of the extended attributes.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let names = self.on(path.as_ref(), true, |fs, ino| fs.listxattr(ino))?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if the file has no such name.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        self.on(path.as_ref(), true, |fs, ino| fs.removexattr(ino, name))
    }
}
