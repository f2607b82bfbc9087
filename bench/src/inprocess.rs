//! Pools used from this process through the process layer, as a program under `keepstone run` uses
//! them: paths, descriptors and permissions are served, and no kernel is in the path. The preloaded
//! library adds only one lookup of the descriptor for each call.

use crate::store::{Store, whole};
use crate::subjects::{Atime, Pages, Subject};
use anyhow::Result;
use pmem::{Access, Lock, Medium as _, OpenOptions, Region};
use pool::{Engine, FormatOptions};
use posix::{AttachedPool, MountSpec, MountState, PoolFile, Process, Served};
use std::ffi::CStr;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use vfs::{Errno, Ino};

/// A pool in a file, shared as other programs could, with a process layer of its own.
pub struct Pool {
    // Dropped before the directory that it lies in.
    process: Process,
    engine: Arc<dyn Engine>,
    home: TempDir,
}

impl Pool {
    /// Formats and opens a pool of `bytes` in `dir`.
    pub fn new(subject: &Subject, dir: &Path, bytes: u64) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
        let path = home.path().join("pool");
        let region = match subject.pages {
            Pages::Huge => Region::create(&path, bytes)?,
            Pages::Small => in_small_pages(&path, bytes)?,
        };
        subject.layout.format(&region, &FormatOptions::default())?;
        drop(region);
        let lock = Some(Lock::Shared);
        let region =
            OpenOptions { lock, ..OpenOptions::default() }.open(&path, Access::ReadWrite)?;
        let engine = engines::attach(region, &subject.options)?;
        match subject.atime {
            Atime::Relative => engine.record_access(true, true, false),
            Atime::Strict => engine.record_access(true, true, true),
            Atime::Off => engine.record_access(false, false, false),
        }
        let process = Process::start()?;
        process.add_mount(spec(home.path(), &engine)?)?;
        Ok(Self { process, engine, home })
    }

    /// Returns the engine.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// Returns the inode of an open file.
    pub fn ino(&self, file: i32) -> vfs::Result<Ino> {
        Ok(Ino(done(self.process.names().fstat(file))?.st_ino))
    }

    /// Maps the first `len` bytes of a file in place. Returns the address.
    pub fn map(&self, file: i32, len: usize) -> vfs::Result<usize> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        done(self.process.contents().mmap(0, len, prot, libc::MAP_SHARED, file, 0))
    }

    /// Removes such a mapping.
    pub fn unmap(&self, at: usize, len: usize) {
        let _ = done(self.process.promotions().munmap(at, len));
    }

    /// Allocates `len` bytes of a file from `offset` on, and makes it so long.
    pub fn allocate(&self, file: i32, offset: u64, len: u64) -> vfs::Result<()> {
        done(self.process.contents().fallocate(file, 0, offset as i64, len as i64))
    }
}

/// Makes a region in the pages that tmpfs gives a file by default, nearly everywhere of 4 KiB.
fn in_small_pages(path: &Path, bytes: u64) -> Result<Region> {
    let file = std::fs::File::create_new(path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    let options = OpenOptions { populate: true, ..OpenOptions::default() };
    Ok(options.open(path, Access::ReadWrite)?)
}

/// A mount that the kernel does not know: all calls are served here.
fn spec(dir: &Path, engine: &Arc<dyn Engine>) -> Result<MountSpec> {
    let engine = engine.clone();
    let attach = move || {
        Ok(AttachedPool {
            events: engine.clone(),
            file: lies_in(&*engine),
            fs: engine.clone(),
            on_fork: Box::new(|_| ()),
        })
    };
    Ok(MountSpec {
        mountpoint: dir.as_os_str().as_bytes().to_vec(),
        dev: std::fs::metadata(dir)?.dev(),
        look: Box::new(|| Some(MountState::default())),
        attach: Box::new(attach),
    })
}

/// Returns the file that mappings come from, as the preloaded library opens it.
fn lies_in(engine: &dyn Engine) -> Option<PoolFile> {
    let region = engine.region();
    let fd = region.descriptor()?.as_raw_fd();
    let is_persistent = region.domain().is_persistent();
    Some(PoolFile { fd, flags: region.map_flags(), is_persistent })
}

/// Returns the result of a served call, or `ENOSYS` for a call that the kernel would make.
fn done<T>(served: Served<T>) -> vfs::Result<T> {
    match served {
        Served::Done(result) => result,
        Served::Kernel => Err(Errno::NOSYS),
    }
}

const DIR: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

/// Descriptors are numbers of the process layer. Those of directories stay open as long as the
/// pool.
impl Store for Pool {
    type File = i32;
    type Dir = i32;

    fn root(&self) -> vfs::Result<i32> {
        let path = self.home.path().as_os_str().as_bytes();
        done(self.process.contents().open(libc::AT_FDCWD, path, DIR, 0))
    }
    fn mkdir(&self, dir: &i32, name: &CStr) -> vfs::Result<i32> {
        done(self.process.names().mkdir(*dir, name.to_bytes(), 0o755))?;
        done(self.process.contents().open(*dir, name.to_bytes(), DIR, 0))
    }
    fn create(&self, dir: &i32, name: &CStr) -> vfs::Result<i32> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        done(self.process.contents().open(*dir, name.to_bytes(), flags, 0o644))
    }
    fn open(&self, dir: &i32, name: &CStr) -> vfs::Result<i32> {
        done(self.process.contents().open(*dir, name.to_bytes(), libc::O_RDWR | libc::O_CLOEXEC, 0))
    }
    fn close(&self, file: i32) {
        let _ = done(self.process.descriptors().close(file));
    }
    fn unlink(&self, dir: &i32, name: &CStr) -> vfs::Result<()> {
        done(self.process.names().unlink(*dir, name.to_bytes(), 0))
    }
    fn rename(&self, from: (&i32, &CStr), to: (&i32, &CStr)) -> vfs::Result<()> {
        done(self.process.names().rename(*from.0, from.1.to_bytes(), *to.0, to.1.to_bytes(), 0))
    }
    fn stat(&self, dir: &i32, name: &CStr) -> vfs::Result<u64> {
        let file = self.open(dir, name)?;
        let stat = done(self.process.names().fstat(file));
        self.close(file);
        Ok(stat?.st_size as u64)
    }
    fn list(&self, dir: &i32) -> vfs::Result<u64> {
        done(self.process.contents().lseek(*dir, 0, libc::SEEK_SET))?;
        let mut entries = 0;
        done(self.process.names().getdents(*dir, &mut |_| {
            entries += 1;
            true
        }))?;
        Ok(entries)
    }
    fn read(&self, file: &i32, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        whole(done(self.process.contents().pread(*file, buf, offset as i64))?, buf.len())
    }
    fn write(&self, file: &i32, offset: u64, data: &[u8]) -> vfs::Result<()> {
        whole(done(self.process.contents().pwrite(*file, data, offset as i64))?, data.len())
    }
    fn append(&self, file: &i32, end: u64, data: &[u8]) -> vfs::Result<()> {
        self.write(file, end, data)
    }
    fn truncate(&self, file: &i32, len: u64) -> vfs::Result<()> {
        done(self.process.contents().ftruncate(*file, len as i64))
    }
}
