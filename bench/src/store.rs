//! One interface to the systems that are compared: the engine called directly, and any file system
//! of the kernel through system calls.

use bpfs::Bpfs;
use pmem::Region;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use rustix::path::Arg;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use vfs::{Caller, Errno, FileSystem as _, Ino, NewKind, NewNode, RenameFlags, Result, SetAttr};

/// A system that keeps files. Names are C strings, as system calls need them. Calls that a system
/// lacks return `ENOSYS`; its workloads do not make them.
pub trait Store: Sync {
    /// An open regular file.
    type File: Send + Sync;
    /// An open directory.
    type Dir: Send + Sync;

    /// The directory to work in.
    fn root(&self) -> Result<Self::Dir>;
    /// Makes and opens a directory.
    fn mkdir(&self, _dir: &Self::Dir, _name: &CStr) -> Result<Self::Dir> {
        Err(Errno::NOSYS)
    }
    /// Makes and opens a file.
    fn create(&self, _dir: &Self::Dir, _name: &CStr) -> Result<Self::File> {
        Err(Errno::NOSYS)
    }
    /// Opens a file.
    fn open(&self, _dir: &Self::Dir, _name: &CStr) -> Result<Self::File> {
        Err(Errno::NOSYS)
    }
    /// Closes a file.
    fn close(&self, _file: Self::File) {}
    /// Removes a file's name.
    fn unlink(&self, _dir: &Self::Dir, _name: &CStr) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// Renames.
    fn rename(&self, _from: (&Self::Dir, &CStr), _to: (&Self::Dir, &CStr)) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// Resolves a name and returns its size.
    fn stat(&self, _dir: &Self::Dir, _name: &CStr) -> Result<u64> {
        Err(Errno::NOSYS)
    }
    /// Lists a directory; returns the number of entries (with `.` and `..`, if these are listed).
    fn list(&self, _dir: &Self::Dir) -> Result<u64> {
        Err(Errno::NOSYS)
    }
    /// Reads all of `buf`.
    fn read(&self, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes all of `data`.
    fn write(&self, _file: &Self::File, _offset: u64, _data: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// Appends to a file that ends at `end`.
    fn append(&self, _file: &Self::File, _end: u64, _data: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// Sets the size.
    fn truncate(&self, _file: &Self::File, _len: u64) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// Makes the contents of a file durable.
    fn sync(&self, _file: &Self::File) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// Removes an empty directory.
    fn rmdir(&self, _dir: &Self::Dir, _name: &CStr) -> Result<()> {
        Err(Errno::NOSYS)
    }
}

/// The engine, called as a front end calls it.
pub struct Engine(pub Bpfs<Region>);

impl Store for Engine {
    type File = Ino;
    type Dir = Ino;

    fn root(&self) -> Result<Ino> {
        Ok(self.0.root())
    }
    fn mkdir(&self, dir: &Ino, name: &CStr) -> Result<Ino> {
        self.make(*dir, name, NewKind::Dir)
    }
    fn create(&self, dir: &Ino, name: &CStr) -> Result<Ino> {
        self.make(*dir, name, NewKind::File)
    }
    fn open(&self, dir: &Ino, name: &CStr) -> Result<Ino> {
        Ok(self.0.lookup(*dir, name.to_bytes())?.ino)
    }
    fn close(&self, file: Ino) {
        self.0.forget(file, 1);
    }
    fn unlink(&self, dir: &Ino, name: &CStr) -> Result<()> {
        self.0.unlink(*dir, name.to_bytes())
    }
    fn rename(&self, from: (&Ino, &CStr), to: (&Ino, &CStr)) -> Result<()> {
        self.0.rename((*from.0, from.1.to_bytes()), (*to.0, to.1.to_bytes()), RenameFlags::empty())
    }
    fn stat(&self, dir: &Ino, name: &CStr) -> Result<u64> {
        let entry = self.0.lookup(*dir, name.to_bytes())?;
        self.0.forget(entry.ino, 1);
        Ok(entry.size)
    }
    fn list(&self, dir: &Ino) -> Result<u64> {
        let mut entries = 0;
        self.0.readdir(*dir, 0, &mut |_| {
            entries += 1;
            true
        })?;
        Ok(entries)
    }
    fn read(&self, file: &Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        whole(self.0.read(*file, offset, buf)?, buf.len())
    }
    fn write(&self, file: &Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(*file, offset, data)
    }
    fn append(&self, file: &Ino, _end: u64, data: &[u8]) -> Result<()> {
        self.0.append(*file, data).map(|_| ())
    }
    fn truncate(&self, file: &Ino, len: u64) -> Result<()> {
        let size = SetAttr { size: Some(len), ..SetAttr::default() };
        self.0.setattr(&Caller::ROOT, *file, &size).map(|_| ())
    }
}

impl Engine {
    fn make(&self, dir: Ino, name: &CStr, kind: NewKind<'_>) -> Result<Ino> {
        let node = NewNode { kind, mode: 0o755, umask: 0 };
        let entry = self.0.create(&Caller::ROOT, dir, name.to_bytes(), &node)?;
        Ok(entry.ino)
    }
}

/// The moments at which a kernel file system has to make operations durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Never: a crash may lose any operation.
    Never,
    /// After each operation: `fdatasync` after data, `fsync` of directories after names.
    Each,
}

/// A file system of the kernel, seen through system calls relative to a directory.
pub struct Kernel {
    root: OwnedFd,
    durable: Durable,
}

impl Kernel {
    /// Works in the directory `root`.
    pub fn new(root: OwnedFd, durable: Durable) -> Self {
        Self { root, durable }
    }

    fn data_done(&self, file: &OwnedFd) -> Result<()> {
        match self.durable {
            Durable::Never => Ok(()),
            Durable::Each => rustix::fs::fdatasync(file),
        }
    }

    fn names_done(&self, dir: &OwnedFd) -> Result<()> {
        match self.durable {
            Durable::Never => Ok(()),
            Durable::Each => rustix::fs::fsync(dir),
        }
    }
}

/// Opens a directory.
pub fn open_dir(path: impl Arg) -> Result<OwnedFd> {
    dir_at(CWD, path)
}

fn dir_at(dir: impl rustix::fd::AsFd, path: impl Arg) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, path, flags, Mode::empty())
}

impl Store for Kernel {
    type File = OwnedFd;
    type Dir = OwnedFd;

    fn root(&self) -> Result<OwnedFd> {
        dir_at(&self.root, c".")
    }
    fn mkdir(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?;
        dir_at(dir, name)
    }
    fn create(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
        self.names_done(dir)?;
        Ok(file)
    }
    fn open(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(dir, name, flags, Mode::empty())
    }
    fn close(&self, file: OwnedFd) {
        drop(file);
    }
    fn unlink(&self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
        self.names_done(dir)
    }
    fn rename(&self, from: (&OwnedFd, &CStr), to: (&OwnedFd, &CStr)) -> Result<()> {
        rustix::fs::renameat(from.0, from.1, to.0, to.1)?;
        self.names_done(to.0)
    }
    fn stat(&self, dir: &OwnedFd, name: &CStr) -> Result<u64> {
        Ok(rustix::fs::statat(dir, name, AtFlags::empty())?.st_size as u64)
    }
    fn list(&self, dir: &OwnedFd) -> Result<u64> {
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
        let mut buf = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(dir, &mut buf);
        let mut n = 0;
        while let Some(entry) = entries.next() {
            entry?;
            n += 1;
        }
        Ok(n)
    }
    fn read(&self, file: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        whole(rustix::io::pread(file, buf, offset)?, len)
    }
    fn write(&self, file: &OwnedFd, offset: u64, data: &[u8]) -> Result<()> {
        whole(rustix::io::pwrite(file, data, offset)?, data.len())?;
        self.data_done(file)
    }
    fn append(&self, file: &OwnedFd, end: u64, data: &[u8]) -> Result<()> {
        self.write(file, end, data)
    }
    fn truncate(&self, file: &OwnedFd, len: u64) -> Result<()> {
        rustix::fs::ftruncate(file, len)
    }
}

/// Returns `EIO` if less than all was transferred.
pub fn whole(done: usize, len: usize) -> Result<()> {
    if done == len { Ok(()) } else { Err(Errno::IO) }
}
