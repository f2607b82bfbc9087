//! File systems seen through libc, as programs see them. A preloaded library serves these calls,
//! too.

#![allow(unsafe_code)]

use crate::store::{Store, whole};
use rustix::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ffi::CStr;
use std::io;
use std::path::Path;
use vfs::{Errno, Result};

/// A directory reached through libc.
pub struct Libc {
    root: OwnedFd,
    sync: bool,
}

impl Libc {
    /// Works in the directory `path`; with `sync` every write is followed by `fsync`.
    pub fn new(path: &Path, sync: bool) -> Result<Self> {
        let path = rustix::path::Arg::into_c_str(path)?.into_owned();
        Ok(Self { root: open(libc::AT_FDCWD, &path, DIR, 0)?, sync })
    }

    /// Returns the same directory, with `fsync` after every write.
    pub fn synced(self) -> Self {
        Self { sync: true, ..self }
    }

    /// Opens a directory.
    pub fn open_dir(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        open(dir.as_raw_fd(), name, DIR, 0)
    }

    /// Works in an open directory, which a preloaded library need not know.
    pub fn of(root: OwnedFd, sync: bool) -> Self {
        Self { root, sync }
    }
}

const DIR: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

/// Returns the result of a call of libc, or `errno` if it is negative.
fn check(n: isize) -> Result<usize> {
    usize::try_from(n).map_err(|_| {
        let last = io::Error::last_os_error();
        Errno::from_io_error(&last).unwrap_or(Errno::IO)
    })
}

fn open(dir: i32, path: &CStr, flags: i32, mode: u32) -> Result<OwnedFd> {
    // SAFETY: `path` is a string; no other owner has the returned descriptor.
    unsafe {
        let fd = check(libc::openat(dir, path.as_ptr(), flags, mode) as isize)?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

impl Store for Libc {
    type File = OwnedFd;
    type Dir = OwnedFd;

    fn root(&self) -> Result<OwnedFd> {
        open(self.root.as_raw_fd(), c".", DIR, 0)
    }
    fn mkdir(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        // SAFETY: `name` is a string.
        check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) } as isize)?;
        open(dir.as_raw_fd(), name, DIR, 0)
    }
    fn create(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        open(dir.as_raw_fd(), name, flags, 0o644)
    }
    fn open(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        open(dir.as_raw_fd(), name, libc::O_RDWR | libc::O_CLOEXEC, 0)
    }
    fn close(&self, file: OwnedFd) {
        drop(file);
    }
    fn unlink(&self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        // SAFETY: `name` is a string.
        check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) } as isize).map(drop)
    }
    fn rename(&self, from: (&OwnedFd, &CStr), to: (&OwnedFd, &CStr)) -> Result<()> {
        let (old, new) = (from.0.as_raw_fd(), to.0.as_raw_fd());
        // SAFETY: the names are strings.
        check(unsafe { libc::renameat(old, from.1.as_ptr(), new, to.1.as_ptr()) } as isize)
            .map(drop)
    }
    fn stat(&self, dir: &OwnedFd, name: &CStr) -> Result<u64> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `name` is a string, and `stat` has room for the answer, which is there if the
        // call succeeded.
        unsafe {
            check(libc::fstatat(dir.as_raw_fd(), name.as_ptr(), stat.as_mut_ptr(), 0) as isize)?;
            Ok(stat.assume_init().st_size as u64)
        }
    }
    fn list(&self, dir: &OwnedFd) -> Result<u64> {
        let again = open(dir.as_raw_fd(), c".", DIR, 0)?;
        // SAFETY: the stream owns the descriptor from here on; entries are only counted.
        unsafe {
            let stream = libc::fdopendir(std::os::fd::IntoRawFd::into_raw_fd(again));
            if stream.is_null() {
                return Err(Errno::IO);
            }
            let mut n = 0;
            while !libc::readdir64(stream).is_null() {
                n += 1;
            }
            libc::closedir(stream);
            Ok(n)
        }
    }
    fn read(&self, file: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<()> {
        // SAFETY: `buf` has room for its length.
        let n = unsafe {
            libc::pread64(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), offset as i64)
        };
        whole(check(n)?, buf.len())
    }
    fn write(&self, file: &OwnedFd, offset: u64, data: &[u8]) -> Result<()> {
        // SAFETY: `data` is readable for its length.
        let n = unsafe {
            libc::pwrite64(file.as_raw_fd(), data.as_ptr().cast(), data.len(), offset as i64)
        };
        whole(check(n)?, data.len())?;
        if self.sync {
            // SAFETY: no memory is involved.
            check(unsafe { libc::fsync(file.as_raw_fd()) } as isize)?;
        }
        Ok(())
    }
    fn append(&self, file: &OwnedFd, end: u64, data: &[u8]) -> Result<()> {
        self.write(file, end, data)
    }
    fn truncate(&self, file: &OwnedFd, len: u64) -> Result<()> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::ftruncate64(file.as_raw_fd(), len as i64) } as isize).map(drop)
    }
    fn sync(&self, file: &OwnedFd) -> Result<()> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::fdatasync(file.as_raw_fd()) } as isize).map(drop)
    }
    fn rmdir(&self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        // SAFETY: `name` is a string.
        let removed = unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) };
        check(removed as isize).map(drop)
    }
}
