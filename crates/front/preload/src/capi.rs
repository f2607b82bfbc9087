//! The C interface: a pool without a mount, by handles (`include/keepstone.h`).
//!
//! It calls the engine directly, and shares only the pool with programs that use it otherwise. A
//! user that may open the pool may do everything in it: permission bits are stored and not checked.

#![allow(unsafe_code)]

mod names;

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex};

use ::pool::{Engine, Error};
use libc::{mode_t, off_t, size_t, ssize_t};
use posix::{Errno, Unaligned};
use vfs::{Attr, Caller, Entry, FileKind, Ino, NewKind, NewNode, RenameFlags, SetAttr};

use crate::direct::direct;
use crate::lent::Lent;
use crate::serve::{Returned, fail, to_c};
use crate::{engine, guard, memory};

/// A pool: `ks_pool`.
pub struct Pool {
    fs: Arc<dyn Engine>,
}

/// An open file: `ks_file`.
pub struct File {
    pool: Arc<Pool>,
    ino: Ino,
    flags: c_int,
    offset: Mutex<u64>,
    lent: Lent,
}

impl Drop for File {
    fn drop(&mut self) {
        self.lent.close(&*self.pool.fs, self.ino);
        self.pool.fs.forget(self.ino, 1);
    }
}

type Result<T> = std::result::Result<T, Errno>;

impl Pool {
    fn caller() -> Caller {
        Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Calls `f` with the directory and last name of a path.
    fn at<T>(
        &self,
        path: &[u8],
        f: impl FnOnce(&dyn Engine, Ino, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let fs = &*self.fs;
        vfs::path::at(fs, path, |dir, name| f(fs, dir, name))
    }

    fn attributes(&self, path: &[u8]) -> Result<Attr> {
        self.at(path, |fs, dir, name| {
            let entry = vfs::path::follow(fs, dir, name)?;
            fs.forget(entry.ino, 1);
            Ok(entry)
        })
    }

    /// Finds or creates a file, with a reference.
    fn find(&self, path: &[u8], flags: c_int, mode: mode_t) -> Result<Entry> {
        self.at(path, |fs, dir, name| match vfs::path::follow(fs, dir, name) {
            Ok(entry) if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL => {
                fs.forget(entry.ino, 1);
                Err(Errno::EXIST)
            }
            Err(Errno::NOENT) if flags & libc::O_CREAT != 0 => {
                let node = NewNode { kind: NewKind::File, mode: mode & 0o7777, umask: 0 };
                fs.create(&Self::caller(), dir, name, &node)
            }
            found => found,
        })
    }

    fn open(self: &Arc<Self>, path: &[u8], flags: c_int, mode: mode_t) -> Result<File> {
        let entry = self.find(path, flags, mode)?;
        let (pool, offset) = (self.clone(), Mutex::new(0));
        let file = File { pool, ino: entry.ino, flags, offset, lent: Lent::default() };
        match entry.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        if flags & libc::O_TRUNC != 0 && file.writes().is_ok() {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            self.fs.setattr(&Self::caller(), file.ino, &set)?;
        }
        Ok(file)
    }
}

impl File {
    fn reads(&self) -> Result<()> {
        if self.flags & libc::O_ACCMODE == libc::O_WRONLY { Err(Errno::BADF) } else { Ok(()) }
    }

    fn writes(&self) -> Result<()> {
        if self.flags & libc::O_ACCMODE == libc::O_RDONLY { Err(Errno::BADF) } else { Ok(()) }
    }

    fn read_at(&self, buf: &mut [u8], offset: off_t) -> Result<usize> {
        self.reads()?;
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        self.pool.fs.read(self.ino, offset, buf)
    }

    fn write_at(&self, data: &[u8], offset: off_t) -> Result<usize> {
        self.writes()?;
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        self.pool.fs.write(self.ino, offset, data)?;
        Ok(data.len())
    }

    /// Calls `f` with the offset, and advances that by the result.
    fn move_by(&self, f: impl FnOnce(&mut u64) -> Result<usize>) -> Result<usize> {
        let mut offset = self.offset.lock().map_err(|_| Errno::IO)?;
        let moved = f(&mut offset)?;
        *offset += moved as u64;
        Ok(moved)
    }
}

/// Returns the error number for a pool that cannot be opened.
fn why_not_open(err: &(dyn std::error::Error + 'static)) -> Errno {
    let of = |err: &std::io::Error| Errno::from_io_error(err).unwrap_or(Errno::IO);
    if let Some(err) = err.downcast_ref::<pmem::Error>() {
        return Errno::from_raw_os_error(err.errno());
    }
    if let Some(err) = err.downcast_ref::<std::io::Error>() {
        return of(err);
    }
    match err.downcast_ref::<Error>() {
        Some(Error::NotAPool(_)) => Errno::INVAL,
        Some(Error::Damaged(_)) => Errno::UCLEAN,
        Some(Error::Memory(err) | Error::Shared(err)) => of(err),
        Some(Error::Errno(errno)) => *errno,
        _ => Errno::IO,
    }
}

/// Runs the library's own code; a panic is `EIO`.
fn call<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    guard::run(f).unwrap_or(Err(Errno::IO))
}

fn call_c<T: Returned>(f: impl FnOnce() -> Result<T>) -> T::C {
    to_c(call(f))
}

/// Returns a handle.
fn handle<T>(made: Result<T>) -> *mut T {
    match made {
        Ok(value) => Box::into_raw(Box::new(value)),
        Err(err) => {
            fail::<()>(err);
            std::ptr::null_mut()
        }
    }
}

fn to_stat(attr: &Attr) -> libc::stat {
    // SAFETY: plain numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.kind.mode_bits() | attr.perm;
    stat.st_nlink = attr.nlink.into();
    (stat.st_uid, stat.st_gid) = (attr.uid, attr.gid);
    stat.st_rdev = attr.rdev.into();
    stat.st_size = attr.size as i64;
    stat.st_blksize = 4096;
    stat.st_blocks = attr.blocks as i64;
    let seconds = |time: vfs::Timestamp| (time.parts().0, i64::from(time.parts().1));
    (stat.st_atime, stat.st_atime_nsec) = seconds(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = seconds(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = seconds(attr.ctime);
    stat
}

type PoolHandle = *const Arc<Pool>;
type FileHandle = *const File;

export! {
    fn ks_open_pool (path: *const c_char) -> *mut Arc<Pool> {
        handle(call(|| {
            use std::os::unix::ffi::OsStrExt as _;
            let path = Path::new(std::ffi::OsStr::from_bytes(memory::string(path)?));
            let fs = engine::open(path).map_err(|err| {
                crate::start::debug(format_args!("{}: {err}", path.display()));
                why_not_open(err.as_ref())
            })?;
            if fs.backed().is_some() {
                crate::start::debug(format_args!("{}: files of caches are opened by their paths", path.display()));
                return Err(Errno::OPNOTSUPP);
            }
            Ok(Arc::new(Pool { fs }))
        }))
    }

    fn ks_close_pool (pool: *mut Arc<Pool>) -> c_int {
        call_c(|| {
            let pool = Box::from_raw(pool);
            let synced = pool.fs.sync();
            drop(pool);
            synced
        })
    }

    fn ks_open (pool: PoolHandle, path: *const c_char, flags: c_int, mode: mode_t) -> *mut File {
        handle(call(|| (*pool).open(memory::string(path)?, flags, mode)))
    }

    fn ks_close (file: *mut File) -> c_int {
        call_c(|| {
            drop(Box::from_raw(file));
            Ok(())
        })
    }

    fn ks_pread (file: FileHandle, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
        call_c(|| (*file).read_at(memory::writable(buf, count)?, offset))
    }

    fn ks_pwrite (
        file: FileHandle, data: *const c_void, count: size_t, offset: off_t
    ) -> ssize_t {
        call_c(|| (*file).write_at(memory::readable(data, count)?, offset))
    }

    fn ks_get_read_buf (
        file: FileHandle, count: size_t, offset: off_t, buf: *mut *const c_void
    ) -> ssize_t {
        let file = &*file;
        call_c(|| {
            file.reads()?;
            let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
            let place = memory::place(buf)?;
            let (at, len) = file.lent.read(&*file.pool.fs, file.ino, offset, count)?;
            *place = Unaligned(at as *const c_void);
            Ok(len)
        })
    }

    fn ks_put_read_buf (file: FileHandle) -> c_int {
        let file = &*file;
        call_c(|| file.lent.end_read(&*file.pool.fs, file.ino))
    }

    fn ks_get_write_buf (
        file: FileHandle, count: size_t, offset: off_t, buf: *mut *mut c_void
    ) -> ssize_t {
        let file = &*file;
        call_c(|| {
            file.writes()?;
            let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
            let place = memory::place(buf)?;
            let (at, len) = file.lent.write(&*file.pool.fs, file.ino, offset, count)?;
            *place = Unaligned(at as *mut c_void);
            Ok(len)
        })
    }

    fn ks_put_write_buf (file: FileHandle, buf: *const c_void) -> c_int {
        let file = &*file;
        call_c(|| file.lent.end_write(&*file.pool.fs, file.ino, buf.addr()))
    }

    fn ks_fd_get_read_buf (
        fd: c_int, count: size_t, offset: off_t, buf: *mut *const c_void
    ) -> ssize_t {
        call_c(|| {
            let direct = direct().ok_or(Errno::NOTSUP)?;
            let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
            let place = memory::place(buf)?;
            let (bytes, len) = direct.get_read_buf(fd, count, offset)?;
            *place = Unaligned(bytes.cast());
            Ok(len)
        })
    }

    fn ks_fd_put_read_buf (buf: *const c_void) -> c_int {
        call_c(|| direct().ok_or(Errno::INVAL)?.put_read_buf(buf.cast()))
    }

    fn ks_read (file: FileHandle, buf: *mut c_void, count: size_t) -> ssize_t {
        let file = &*file;
        call_c(|| {
            let buf = memory::writable(buf, count)?;
            file.move_by(|offset| file.read_at(buf, *offset as off_t))
        })
    }

    fn ks_write (file: FileHandle, data: *const c_void, count: size_t) -> ssize_t {
        let file = &*file;
        call_c(|| {
            let data = memory::readable(data, count)?;
            file.move_by(|offset| {
                if file.flags & libc::O_APPEND == 0 {
                    return file.write_at(data, *offset as off_t);
                }
                file.writes()?;
                *offset = file.pool.fs.append(file.ino, data)?;
                Ok(data.len())
            })
        })
    }

    fn ks_lseek (file: FileHandle, offset: off_t, whence: c_int) -> off_t {
        let file = &*file;
        call_c(|| {
            let mut place = file.offset.lock().map_err(|_| Errno::IO)?;
            let base = match whence {
                libc::SEEK_SET => 0,
                libc::SEEK_CUR => *place as off_t,
                libc::SEEK_END => file.pool.fs.getattr(file.ino)?.size as off_t,
                _ => return Err(Errno::INVAL),
            };
            let new = base.checked_add(offset).ok_or(Errno::OVERFLOW)?;
            *place = u64::try_from(new).map_err(|_| Errno::INVAL)?;
            Ok(new)
        })
    }

    fn ks_ftruncate (file: FileHandle, len: off_t) -> c_int {
        let file = &*file;
        call_c(|| {
            file.writes()?;
            let size = Some(u64::try_from(len).map_err(|_| Errno::INVAL)?);
            let set = SetAttr { size, ..SetAttr::default() };
            file.pool.fs.setattr(&Pool::caller(), file.ino, &set).map(drop)
        })
    }

    fn ks_fallocate (file: FileHandle, mode: c_int, offset: off_t, len: off_t) -> c_int {
        let file = &*file;
        call_c(|| {
            file.writes()?;
            let mode = posix::fallocate_mode(mode)?;
            let number = |n: off_t| u64::try_from(n).map_err(|_| Errno::INVAL);
            file.pool.fs.fallocate(file.ino, mode, number(offset)?, number(len)?)
        })
    }

    fn ks_fsync (file: FileHandle) -> c_int {
        let file = &*file;
        call_c(|| file.pool.fs.fsync(file.ino))
    }

    fn ks_fstat (file: FileHandle, buf: *mut libc::stat) -> c_int {
        let file = &*file;
        call_c(|| {
            memory::store(buf, to_stat(&file.pool.fs.getattr(file.ino)?))
        })
    }

    fn ks_stat (pool: PoolHandle, path: *const c_char, buf: *mut libc::stat) -> c_int {
        call_c(|| {
            memory::store(buf, to_stat(&(*pool).attributes(memory::string(path)?)?))
        })
    }

    fn ks_mkdir (pool: PoolHandle, path: *const c_char, mode: mode_t) -> c_int {
        call_c(|| {
            (*pool).at(memory::string(path)?, |fs, dir, name| {
                let node = NewNode { kind: NewKind::Dir, mode: mode & 0o7777, umask: 0 };
                let made = fs.create(&Pool::caller(), dir, name, &node)?;
                fs.forget(made.ino, 1);
                Ok(())
            })
        })
    }

    fn ks_unlink (pool: PoolHandle, path: *const c_char) -> c_int {
        call_c(|| (*pool).at(memory::string(path)?, |fs, dir, name| fs.unlink(dir, name)))
    }

    fn ks_rmdir (pool: PoolHandle, path: *const c_char) -> c_int {
        call_c(|| (*pool).at(memory::string(path)?, |fs, dir, name| fs.rmdir(dir, name)))
    }

    fn ks_rename (pool: PoolHandle, from: *const c_char, to: *const c_char) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let (from, to) = (memory::string(from)?, memory::string(to)?);
            pool.at(from, |fs, from_dir, from_name| {
                pool.at(to, |_, to_dir, to_name| {
                    fs.rename((from_dir, from_name), (to_dir, to_name), RenameFlags::empty())
                })
            })
        })
    }

    fn ks_clone (pool: PoolHandle, from: *const c_char, to: *const c_char) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let (from, to) = (memory::string(from)?, memory::string(to)?);
            let unique = vfs::unique_number();
            pool.at(from, |fs, from_dir, from_name| {
                let source = fs.lookup(from_dir, from_name)?;
                let made = pool.at(to, |fs, to_dir, to_name| {
                    vfs::clone_tree(fs, source.ino, (to_dir, to_name), unique, &mut |_| true)
                });
                fs.forget(source.ino, 1);
                made.map(drop)
            })
        })
    }
}
