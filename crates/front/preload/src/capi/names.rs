//! The functions of the C interface for names and attributes, for directories, and for the pool.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libc::{gid_t, mode_t, size_t, ssize_t, uid_t};
use posix::{Errno, check_set_xattr, times_to_set};
use vfs::{FileKind, Ino, NewKind, NewNode, SetAttr};

use super::{Pool, PoolHandle, Result, call, call_c, handle, to_stat};
use crate::memory;
use crate::serve::fail;

/// Entries that are read from a directory at once.
const BATCH: usize = 64;

/// An open directory: `ks_dir`.
pub struct OpenDir {
    pool: Arc<Pool>,
    ino: Ino,
    /// Where the next batch begins.
    cookie: u64,
    batch: VecDeque<libc::dirent>,
    /// The entry that the last call returned.
    last: Option<Box<libc::dirent>>,
}

impl Drop for OpenDir {
    fn drop(&mut self) {
        self.pool.fs.forget(self.ino, 1);
    }
}

impl OpenDir {
    fn open(pool: &Arc<Pool>, path: &[u8]) -> Result<Self> {
        let entry = pool.at(path, |fs, dir, name| vfs::path::follow(fs, dir, name))?;
        let (pool, ino, batch) = (pool.clone(), entry.ino, VecDeque::new());
        let dir = Self { pool, ino, cookie: 0, batch, last: None };
        if entry.kind == FileKind::Dir { Ok(dir) } else { Err(Errno::NOTDIR) }
    }

    /// Returns the next entry; `None` at the end.
    fn next(&mut self) -> Result<Option<&libc::dirent>> {
        if self.batch.is_empty() {
            let (batch, cookie) = (&mut self.batch, &mut self.cookie);
            self.pool.fs.readdir(self.ino, *cookie, &mut |entry| {
                *cookie = entry.cookie;
                batch.push_back(to_dirent(entry));
                batch.len() < BATCH
            })?;
        }
        self.last = self.batch.pop_front().map(Box::new);
        Ok(self.last.as_deref())
    }
}

fn to_dirent(entry: &vfs::DirEntry<'_>) -> libc::dirent {
    // SAFETY: plain numbers.
    let mut made: libc::dirent = unsafe { std::mem::zeroed() };
    made.d_ino = entry.ino.0;
    made.d_off = entry.cookie as i64;
    made.d_reclen = size_of::<libc::dirent>() as u16;
    made.d_type = (entry.kind.mode_bits() >> 12) as u8;
    // The last byte stays 0.
    for (to, byte) in made.d_name[..255].iter_mut().zip(entry.name) {
        *to = *byte as c_char;
    }
    made
}

impl Pool {
    /// Calls `f` with the inode of a path. A symbolic link at its end is followed or not.
    fn on<T>(
        &self,
        path: &[u8],
        follows: bool,
        f: impl FnOnce(&Self, Ino) -> Result<T>,
    ) -> Result<T> {
        let entry = self.at(path, |fs, dir, name| match follows {
            true => vfs::path::follow(fs, dir, name),
            false => fs.lookup(dir, name),
        })?;
        let result = f(self, entry.ino);
        self.fs.forget(entry.ino, 1);
        result
    }

    fn set(&self, path: &[u8], follows: bool, set: &SetAttr) -> Result<()> {
        self.on(path, follows, |pool, ino| pool.fs.setattr(&Self::caller(), ino, set).map(drop))
    }
}

/// Copies a value of which the caller asks the length with a size of 0. `ERANGE` if it does not
/// fit.
fn copy_out(value: &[u8], to: *mut c_void, size: size_t) -> Result<usize> {
    match size {
        0 => {}
        _ if size < value.len() => return Err(Errno::RANGE),
        _ => memory::writable(to, value.len())?
            .get_mut(..value.len())
            .ok_or(Errno::FAULT)?
            .copy_from_slice(value),
    }
    Ok(value.len())
}

export! {
    fn ks_sync (pool: PoolHandle) -> c_int {
        let pool = &*pool;
        call_c(|| pool.fs.sync())
    }

    fn ks_statvfs (pool: PoolHandle, buf: *mut libc::statvfs) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let space = pool.fs.statfs();
            let mut made: libc::statvfs = std::mem::zeroed();
            made.f_bsize = space.block_size.into();
            made.f_frsize = made.f_bsize;
            (made.f_blocks, made.f_bfree) = (space.blocks, space.blocks_free);
            made.f_bavail = space.blocks_available;
            (made.f_files, made.f_ffree) = (space.inodes, space.inodes_free);
            made.f_favail = made.f_ffree;
            made.f_namemax = pool.fs.limits().name as u64;
            memory::store(buf, made)
        })
    }

    fn ks_lstat (pool: PoolHandle, path: *const c_char, buf: *mut libc::stat) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let attr = pool.on(memory::string(path)?, false, |pool, ino| pool.fs.getattr(ino))?;
            memory::store(buf, to_stat(&attr))
        })
    }

    fn ks_link (pool: PoolHandle, from: *const c_char, to: *const c_char) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let (from, to) = (memory::string(from)?, memory::string(to)?);
            pool.on(from, false, |pool, ino| {
                let entry = pool.at(to, |fs, dir, name| fs.link(ino, dir, name))?;
                pool.fs.forget(entry.ino, 1);
                Ok(())
            })
        })
    }

    fn ks_symlink (pool: PoolHandle, target: *const c_char, path: *const c_char) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let (target, path) = (memory::string(target)?, memory::string(path)?);
            pool.at(path, |fs, dir, name| {
                let node = NewNode { kind: NewKind::Symlink(target), mode: 0o777, umask: 0 };
                let made = fs.create(&Pool::caller(), dir, name, &node)?;
                fs.forget(made.ino, 1);
                Ok(())
            })
        })
    }

    fn ks_readlink (
        pool: PoolHandle, path: *const c_char, buf: *mut c_char, size: size_t
    ) -> ssize_t {
        let pool = &*pool;
        call_c(|| {
            let target = pool.on(memory::string(path)?, false, |pool, ino| pool.fs.readlink(ino))?;
            let len = target.len().min(size);
            if len == 0 {
                return Err(Errno::INVAL);
            }
            copy_out(&target[..len], buf.cast(), len)
        })
    }

    fn ks_chmod (pool: PoolHandle, path: *const c_char, mode: mode_t) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let set = SetAttr { perm: Some(mode & 0o7777), ..SetAttr::default() };
            pool.set(memory::string(path)?, true, &set)
        })
    }

    fn ks_chown (pool: PoolHandle, path: *const c_char, owner: uid_t, group: gid_t) -> c_int {
        let pool = &*pool;
        call_c(|| {
            // -1 leaves an ID as it is.
            let id = |id: u32| Some(id).filter(|id| *id != u32::MAX);
            let set = SetAttr { uid: id(owner), gid: id(group), ..SetAttr::default() };
            pool.set(memory::string(path)?, true, &set)
        })
    }

    fn ks_utimens (
        pool: PoolHandle, path: *const c_char, times: *const [libc::timespec; 2]
    ) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let [atime, mtime] = times_to_set(memory::load_optional(times)?)?;
            let set = SetAttr { atime, mtime, ..SetAttr::default() };
            pool.set(memory::string(path)?, true, &set)
        })
    }

    fn ks_getxattr (
        pool: PoolHandle, path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t {
        let pool = &*pool;
        call_c(|| {
            let (path, name) = (memory::string(path)?, memory::string(name)?);
            let found = pool.on(path, true, |pool, ino| pool.fs.getxattr(ino, name))?;
            copy_out(&found, value, size)
        })
    }

    fn ks_setxattr (
        pool: PoolHandle, path: *const c_char, name: *const c_char, value: *const c_void,
        size: size_t, flags: c_int
    ) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let (path, name) = (memory::string(path)?, memory::string(name)?);
            let value = memory::readable_whole(value, size)?;
            let mode = check_set_xattr(name, value, flags)?;
            pool.on(path, true, |pool, ino| pool.fs.setxattr(ino, name, value, mode))
        })
    }

    fn ks_listxattr (
        pool: PoolHandle, path: *const c_char, list: *mut c_char, size: size_t
    ) -> ssize_t {
        let pool = &*pool;
        call_c(|| {
            let path = memory::string(path)?;
            let mut names = pool.on(path, true, |pool, ino| pool.fs.listxattr(ino))?;
            names.iter_mut().for_each(|name| name.push(0));
            copy_out(&names.concat(), list.cast(), size)
        })
    }

    fn ks_removexattr (pool: PoolHandle, path: *const c_char, name: *const c_char) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let (path, name) = (memory::string(path)?, memory::string(name)?);
            pool.on(path, true, |pool, ino| pool.fs.removexattr(ino, name))
        })
    }

    fn ks_opendir (pool: PoolHandle, path: *const c_char) -> *mut OpenDir {
        handle(call(|| OpenDir::open(&*pool, memory::string(path)?)))
    }

    fn ks_readdir (dir: *mut OpenDir) -> *const libc::dirent {
        let dir = &mut *dir;
        match call(|| dir.next()) {
            Ok(entry) => entry.map_or(std::ptr::null(), std::ptr::from_ref),
            Err(err) => {
                fail::<()>(err);
                std::ptr::null()
            }
        }
    }

    fn ks_closedir (dir: *mut OpenDir) -> c_int {
        call_c(|| {
            drop(Box::from_raw(dir));
            Ok(())
        })
    }

    fn ks_strerror (errnum: c_int) -> *const c_char {
        let text = match Errno::from_raw_os_error(errnum) {
            Errno::INVAL => c"no pool, or an invalid argument",
            Errno::UCLEAN => c"the pool is damaged; `keepstone check` names the faults",
            Errno::BUSY => c"a mount has the pool for itself, or a program without the library has the file open",
            Errno::OPNOTSUPP => c"the pool or its layout does not support this",
            Errno::IO => c"the memory of the pool has failed, or was cut off",
            _ => return libc::strerror(errnum),
        };
        text.as_ptr()
    }
}
