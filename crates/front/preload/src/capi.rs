//! The C interface: a pool without a mount, by handles (`include/keepstone.h`).
//!
//! It calls the engine directly, and shares only the pool with programs that use it otherwise. A
//! user that may open the pool may do everything in it: permission bits are stored and not checked.
//!
//! A bad pointer gives `EFAULT`, and a pool that was truncated `EIO`. Both need handlers of signals
//! ([`crate::signals`]), which the first pool of a program installs.

#![allow(unsafe_code)]

mod names;

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Mutex;

use libc::{mode_t, off_t, size_t, ssize_t};
use library::{File, Metadata, NewPool, OpenOptions, Pool};
use posix::{Errno, Unaligned};

use crate::direct::direct;
use crate::serve::{Returned, fail, to_c};
use crate::{engine, guard, memory, signals};

/// An open file: `ks_file`.
pub struct OpenFile {
    file: File,
    /// The maps that the program has, by address.
    maps: Mutex<Vec<MapHandle>>,
}

/// A map that [`ks_map`] has made.
struct MapHandle {
    addr: usize,
    len: usize,
    stores: bool,
}

/// Returns the options that flags of `open(2)` mean. Without permission to write, `O_TRUNC` does
/// nothing.
fn options(flags: c_int, mode: mode_t) -> OpenOptions {
    let (access, has) = (flags & libc::O_ACCMODE, |flag| flags & flag != 0);
    let writes = access != libc::O_RDONLY;
    let mut options = OpenOptions::new();
    options.read(access != libc::O_WRONLY).write(writes).append(writes && has(libc::O_APPEND));
    options.truncate(writes && has(libc::O_TRUNC)).create(has(libc::O_CREAT));
    options.create_new(has(libc::O_CREAT) && has(libc::O_EXCL)).mode(mode);
    options
}

/// Returns the path that a program has passed.
fn path<'a>(at: *const c_char) -> Result<&'a Path, Errno> {
    Ok(Path::new(OsStr::from_bytes(memory::string(at)?)))
}

/// Returns an offset or a length. `EINVAL` if it is negative.
fn number(n: off_t) -> Result<u64, Errno> {
    u64::try_from(n).map_err(|_| Errno::INVAL)
}

/// Runs the library's own code; a panic is `EIO`.
fn call<T>(f: impl FnOnce() -> io::Result<T>) -> Result<T, Errno> {
    let done = guard::run(f).unwrap_or(Err(Errno::IO.into()));
    done.map_err(|err| Errno::from_io_error(&err).unwrap_or(Errno::IO))
}

fn call_c<T: Returned>(f: impl FnOnce() -> io::Result<T>) -> T::C {
    to_c(call(f))
}

/// Returns a handle.
fn handle<T>(made: Result<T, Errno>) -> *mut T {
    match made {
        Ok(value) => Box::into_raw(Box::new(value)),
        Err(err) => {
            fail::<()>(err);
            std::ptr::null_mut()
        }
    }
}

fn to_stat(found: &Metadata) -> libc::stat {
    // SAFETY: plain numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = found.ino();
    stat.st_mode = found.mode();
    stat.st_nlink = found.nlink().into();
    (stat.st_uid, stat.st_gid) = (found.uid(), found.gid());
    stat.st_rdev = found.rdev().into();
    stat.st_size = found.len() as i64;
    stat.st_blksize = 4096;
    stat.st_blocks = found.blocks() as i64;
    let [atime, mtime, ctime] = found.times();
    (stat.st_atime, stat.st_atime_nsec) = (atime.0, atime.1.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (mtime.0, mtime.1.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (ctime.0, ctime.1.into());
    stat
}

type PoolHandle = *const Pool;
type FileHandle = *const OpenFile;

export_versioned! {
    fn ks_open_pool (at: *const c_char) -> *mut Pool {
        signals::start();
        handle(call(|| {
            let at = path(at)?;
            let fs = engine::open(at).map_err(|err| {
                crate::start::debug(format_args!("{}: {err}", at.display()));
                library::errno_of(err.as_ref())
            })?;
            Ok(Pool::over(fs).inspect_err(|_| {
                let why = "files of caches are opened by their paths";
                crate::start::debug(format_args!("{}: {why}", at.display()));
            })?)
        }))
    }

    fn ks_make_pool (at: *const c_char, size: off_t, layout: *const c_char) -> c_int {
        signals::start();
        call_c(|| {
            let mut new = NewPool::new(number(size)?);
            if !layout.is_null() {
                new = new.layout(str::from_utf8(memory::string(layout)?).map_err(|_| Errno::INVAL)?);
            }
            Ok(new.format(path(at)?).map_err(|err| {
                crate::start::debug(format_args!("{err}"));
                Errno::from_raw_os_error(err.errno())
            })?)
        })
    }

    fn ks_close_pool (pool: *mut Pool) -> c_int {
        call_c(|| Box::from_raw(pool).close())
    }

    fn ks_open (pool: PoolHandle, at: *const c_char, flags: c_int, mode: mode_t) -> *mut OpenFile {
        handle(call(|| {
            let file = options(flags, mode).open(&*pool, path(at)?)?;
            Ok(OpenFile { file, maps: Mutex::default() })
        }))
    }

    fn ks_close (file: *mut OpenFile) -> c_int {
        call_c(|| {
            drop(Box::from_raw(file));
            Ok(())
        })
    }

    fn ks_pread (file: FileHandle, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
        call_c(|| (*file).file.read_at(memory::writable(buf, count)?, number(offset)?))
    }

    fn ks_pwrite (
        file: FileHandle, data: *const c_void, count: size_t, offset: off_t
    ) -> ssize_t {
        call_c(|| {
            let data = memory::readable(data, count)?;
            (*file).file.write_at(data, number(offset)?)?;
            Ok(data.len())
        })
    }

    fn ks_get_read_buf (
        file: FileHandle, count: size_t, offset: off_t, buf: *mut *const c_void
    ) -> ssize_t {
        let file = &(*file).file;
        call_c(|| {
            let place = memory::place(buf)?;
            let map = file.map_some(number(offset)?, count)?;
            *place = Unaligned(map.as_ptr().cast());
            let len = map.len();
            std::mem::forget(map);
            Ok(len)
        })
    }

    fn ks_put_read_buf (file: FileHandle) -> c_int {
        call_c(|| (*file).file.end_map())
    }

    fn ks_get_write_buf (
        file: FileHandle, count: size_t, offset: off_t, buf: *mut *mut c_void
    ) -> ssize_t {
        let file = &(*file).file;
        call_c(|| {
            let place = memory::place(buf)?;
            let mut map = file.map_mut_some(number(offset)?, count)?;
            *place = Unaligned(map.as_mut_ptr().cast());
            let len = map.len();
            std::mem::forget(map);
            Ok(len)
        })
    }

    fn ks_put_write_buf (file: FileHandle, buf: *const c_void) -> c_int {
        call_c(|| (*file).file.end_map_mut(buf.addr(), None))
    }

    fn ks_map (file: FileHandle, len: size_t, prot: c_int, offset: off_t) -> *mut c_void {
        let file = &*file;
        let mapped = call(|| {
            let offset = number(offset)?;
            let stores = match prot {
                libc::PROT_READ => false,
                _ if prot == libc::PROT_READ | libc::PROT_WRITE => true,
                _ => return Err(Errno::INVAL.into()),
            };
            let mut maps = file.maps.lock().map_err(|_| Errno::IO)?;
            let addr = if stores {
                let mut map = file.file.map_mut(offset, len)?;
                let addr = map.as_mut_ptr();
                std::mem::forget(map);
                addr
            } else {
                let map = file.file.map(offset, len)?;
                let addr = map.as_ptr().cast_mut();
                std::mem::forget(map);
                addr
            };
            maps.push(MapHandle { addr: addr.addr(), len, stores });
            Ok(addr.cast())
        });
        mapped.unwrap_or_else(|err| {
            fail::<()>(err);
            std::ptr::null_mut()
        })
    }

    fn ks_unmap (file: FileHandle, addr: *const c_void) -> c_int {
        let file = &*file;
        call_c(|| {
            let mut maps = file.maps.lock().map_err(|_| Errno::IO)?;
            let found = maps.iter().position(|map| map.addr == addr.addr()).ok_or(Errno::INVAL)?;
            let MapHandle { addr, len, stores } = maps.swap_remove(found);
            if stores { file.file.end_map_mut(addr, Some(len)) } else { file.file.end_map() }
        })
    }

    fn ks_fd_get_read_buf (
        fd: c_int, count: size_t, offset: off_t, buf: *mut *const c_void
    ) -> ssize_t {
        call_c(|| {
            let direct = direct().ok_or(Errno::NOTSUP)?;
            let place = memory::place(buf)?;
            let (bytes, len) = direct.get_read_buf(fd, count, number(offset)?)?;
            *place = Unaligned(bytes.cast());
            Ok(len)
        })
    }

    fn ks_fd_put_read_buf (buf: *const c_void) -> c_int {
        call_c(|| Ok(direct().ok_or(Errno::INVAL)?.put_read_buf(buf.cast())?))
    }

    fn ks_read (file: FileHandle, buf: *mut c_void, count: size_t) -> ssize_t {
        call_c(|| (&(*file).file).read(memory::writable(buf, count)?))
    }

    fn ks_write (file: FileHandle, data: *const c_void, count: size_t) -> ssize_t {
        call_c(|| (&(*file).file).write(memory::readable(data, count)?))
    }

    fn ks_lseek (file: FileHandle, offset: off_t, whence: c_int) -> off_t {
        call_c(|| {
            let to = match whence {
                libc::SEEK_SET => SeekFrom::Start(number(offset)?),
                libc::SEEK_CUR => SeekFrom::Current(offset),
                libc::SEEK_END => SeekFrom::End(offset),
                _ => return Err(Errno::INVAL.into()),
            };
            Ok((&(*file).file).seek(to)? as off_t)
        })
    }

    fn ks_ftruncate (file: FileHandle, len: off_t) -> c_int {
        call_c(|| (*file).file.set_len(number(len)?))
    }

    fn ks_fallocate (file: FileHandle, mode: c_int, offset: off_t, len: off_t) -> c_int {
        call_c(|| {
            let (start, len) = (number(offset)?, number(len)?);
            let end = start.checked_add(len).ok_or(Errno::FBIG)?;
            (*file).file.fallocate(posix::fallocate_mode(mode)?, start..end)
        })
    }

    fn ks_fsync (file: FileHandle) -> c_int {
        call_c(|| (*file).file.sync_all())
    }

    fn ks_fstat (file: FileHandle, buf: *mut libc::stat) -> c_int {
        call_c(|| Ok(memory::store(buf, to_stat(&(*file).file.metadata()?))?))
    }
}
