//! The calls, by the names that libc gives them.
//!
//! `fd`s are what the program passed; `dirfd` may be `AT_FDCWD`. Paths come without their NUL and
//! may be relative. Flags are libc's, unchecked. Buffers have been checked by the caller.

use crate::{Errno, Process, Served};
use std::io::{IoSlice, IoSliceMut};

/// One entry of a directory, for `readdir`.
#[derive(Clone, Copy, Debug)]
pub struct DirItem<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where a listing continues after this entry (`d_off`).
    pub offset: i64,
    /// `DT_*`.
    pub kind: u8,
    /// Name, without NUL.
    pub name: &'a [u8],
}

#[allow(unused_variables, missing_docs)]
impl Process {
    // -- opening and descriptors --
    pub fn open(&self, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Served<i32> {
        Served::Kernel
    }
    pub fn close(&self, fd: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Served<()> {
        Served::Kernel
    }
    pub fn dup(&self, fd: i32) -> Served<i32> {
        Served::Kernel
    }
    /// `old` or `new` may be ours, or neither (then `Kernel`).
    pub fn dup2(&self, old: i32, new: i32) -> Served<i32> {
        Served::Kernel
    }
    pub fn dup3(&self, old: i32, new: i32, flags: i32) -> Served<i32> {
        Served::Kernel
    }
    /// Every `cmd` without a pointer argument: `F_DUPFD*`, `F_*FD`, `F_*FL`, `F_GETLEASE`…
    pub fn fcntl(&self, fd: i32, cmd: i32, arg: libc::c_long) -> Served<i32> {
        Served::Kernel
    }
    /// `F_GETLK`, `F_SETLK`, `F_SETLKW` and the `F_OFD_` forms.
    pub fn fcntl_lock(&self, fd: i32, cmd: i32, lock: &mut libc::flock) -> Served<()> {
        Served::Kernel
    }
    pub fn flock(&self, fd: i32, operation: i32) -> Served<()> {
        Served::Kernel
    }

    // -- content --
    #[inline]
    pub fn read(&self, fd: i32, buf: &mut [u8]) -> Served<usize> {
        Served::Kernel
    }
    #[inline]
    pub fn write(&self, fd: i32, data: &[u8]) -> Served<usize> {
        Served::Kernel
    }
    #[inline]
    pub fn pread(&self, fd: i32, buf: &mut [u8], offset: i64) -> Served<usize> {
        Served::Kernel
    }
    #[inline]
    pub fn pwrite(&self, fd: i32, data: &[u8], offset: i64) -> Served<usize> {
        Served::Kernel
    }
    pub fn readv(&self, fd: i32, bufs: &mut [IoSliceMut<'_>]) -> Served<usize> {
        Served::Kernel
    }
    pub fn writev(&self, fd: i32, data: &[IoSlice<'_>]) -> Served<usize> {
        Served::Kernel
    }
    /// `preadv` (flags 0) and `preadv2`; an offset of -1 is the description's.
    pub fn preadv2(
        &self,
        fd: i32,
        bufs: &mut [IoSliceMut<'_>],
        offset: i64,
        flags: i32,
    ) -> Served<usize> {
        Served::Kernel
    }
    pub fn pwritev2(
        &self,
        fd: i32,
        data: &[IoSlice<'_>],
        offset: i64,
        flags: i32,
    ) -> Served<usize> {
        Served::Kernel
    }
    pub fn lseek(&self, fd: i32, offset: i64, whence: i32) -> Served<i64> {
        Served::Kernel
    }
    pub fn ftruncate(&self, fd: i32, len: i64) -> Served<()> {
        Served::Kernel
    }
    pub fn truncate(&self, path: &[u8], len: i64) -> Served<()> {
        Served::Kernel
    }
    pub fn fallocate(&self, fd: i32, mode: i32, offset: i64, len: i64) -> Served<()> {
        Served::Kernel
    }
    /// The caller returns the error number instead of setting `errno`.
    pub fn posix_fallocate(&self, fd: i32, offset: i64, len: i64) -> Served<()> {
        Served::Kernel
    }
    pub fn posix_fadvise(&self, fd: i32, offset: i64, len: i64, advice: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn readahead(&self, fd: i32, offset: i64, count: usize) -> Served<()> {
        Served::Kernel
    }
    pub fn fsync(&self, fd: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn fdatasync(&self, fd: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn syncfs(&self, fd: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn sync_file_range(&self, fd: i32, offset: i64, len: i64, flags: u32) -> Served<()> {
        Served::Kernel
    }
    pub fn copy_file_range(
        &self,
        from: i32,
        from_offset: Option<&mut i64>,
        to: i32,
        to_offset: Option<&mut i64>,
        len: usize,
        flags: u32,
    ) -> Served<usize> {
        Served::Kernel
    }
    pub fn sendfile(
        &self,
        out: i32,
        from: i32,
        offset: Option<&mut i64>,
        count: usize,
    ) -> Served<usize> {
        Served::Kernel
    }
    /// An address that holds a private snapshot of the range, or `Kernel` once `fd` is the kernel's.
    pub fn mmap(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Served<usize> {
        Served::Kernel
    }

    // -- attributes --
    pub fn fstat(&self, fd: i32) -> Served<libc::stat> {
        Served::Kernel
    }
    /// `stat` (flags 0), `lstat` (`AT_SYMLINK_NOFOLLOW`), `fstatat`.
    pub fn stat(&self, dirfd: i32, path: &[u8], flags: i32) -> Served<libc::stat> {
        Served::Kernel
    }
    pub fn statx(&self, dirfd: i32, path: &[u8], flags: i32, mask: u32) -> Served<libc::statx> {
        Served::Kernel
    }
    pub fn statfs(&self, path: &[u8]) -> Served<libc::statfs> {
        Served::Kernel
    }
    pub fn fstatfs(&self, fd: i32) -> Served<libc::statfs> {
        Served::Kernel
    }
    pub fn statvfs(&self, path: &[u8]) -> Served<libc::statvfs> {
        Served::Kernel
    }
    pub fn fstatvfs(&self, fd: i32) -> Served<libc::statvfs> {
        Served::Kernel
    }
    /// `access` (flags 0: real IDs), `faccessat`, `faccessat2`, `eaccess` (`AT_EACCESS`).
    pub fn access(&self, dirfd: i32, path: &[u8], mode: i32, flags: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn chmod(&self, dirfd: i32, path: &[u8], mode: u32, flags: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn fchmod(&self, fd: i32, mode: u32) -> Served<()> {
        Served::Kernel
    }
    /// `u32::MAX` leaves an ID as it is.
    pub fn chown(&self, dirfd: i32, path: &[u8], uid: u32, gid: u32, flags: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn fchown(&self, fd: i32, uid: u32, gid: u32) -> Served<()> {
        Served::Kernel
    }
    /// `utimensat`; access time, then modification time; `None` for a null pointer (now).
    pub fn utimens(
        &self,
        dirfd: i32,
        path: &[u8],
        times: Option<[libc::timespec; 2]>,
        flags: i32,
    ) -> Served<()> {
        Served::Kernel
    }
    pub fn futimens(&self, fd: i32, times: Option<[libc::timespec; 2]>) -> Served<()> {
        Served::Kernel
    }

    // -- extended attributes; `flags` of the path forms: 0 or `AT_SYMLINK_NOFOLLOW` --
    /// Writes the value to `buf` (empty: asks for the length); returns its length.
    pub fn getxattr(&self, path: &[u8], name: &[u8], buf: &mut [u8], flags: i32) -> Served<usize> {
        Served::Kernel
    }
    pub fn fgetxattr(&self, fd: i32, name: &[u8], buf: &mut [u8]) -> Served<usize> {
        Served::Kernel
    }
    /// `how`: 0, `XATTR_CREATE` or `XATTR_REPLACE`.
    pub fn setxattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        how: i32,
        flags: i32,
    ) -> Served<()> {
        Served::Kernel
    }
    pub fn fsetxattr(&self, fd: i32, name: &[u8], value: &[u8], how: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn listxattr(&self, path: &[u8], buf: &mut [u8], flags: i32) -> Served<usize> {
        Served::Kernel
    }
    pub fn flistxattr(&self, fd: i32, buf: &mut [u8]) -> Served<usize> {
        Served::Kernel
    }
    pub fn removexattr(&self, path: &[u8], name: &[u8], flags: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn fremovexattr(&self, fd: i32, name: &[u8]) -> Served<()> {
        Served::Kernel
    }

    // -- names --
    /// `unlink`, `rmdir` (`AT_REMOVEDIR`), `unlinkat`.
    pub fn unlink(&self, dirfd: i32, path: &[u8], flags: i32) -> Served<()> {
        Served::Kernel
    }
    pub fn mkdir(&self, dirfd: i32, path: &[u8], mode: u32) -> Served<()> {
        Served::Kernel
    }
    pub fn mknod(&self, dirfd: i32, path: &[u8], mode: u32, dev: u64) -> Served<()> {
        Served::Kernel
    }
    pub fn symlink(&self, target: &[u8], dirfd: i32, path: &[u8]) -> Served<()> {
        Served::Kernel
    }
    pub fn link(
        &self,
        from_dirfd: i32,
        from: &[u8],
        to_dirfd: i32,
        to: &[u8],
        flags: i32,
    ) -> Served<()> {
        Served::Kernel
    }
    pub fn rename(
        &self,
        from_dirfd: i32,
        from: &[u8],
        to_dirfd: i32,
        to: &[u8],
        flags: u32,
    ) -> Served<()> {
        Served::Kernel
    }
    /// Writes the target, cut to the length of `buf`; returns how many bytes.
    pub fn readlink(&self, dirfd: i32, path: &[u8], buf: &mut [u8]) -> Served<usize> {
        Served::Kernel
    }

    // -- directories --
    /// Lists from the description's offset, which follows the entries taken, until `emit` returns
    /// `false` (that entry is listed again) or the end. Returns whether the end was reached. `emit`
    /// must not call the process layer.
    pub fn getdents(&self, fd: i32, emit: &mut dyn FnMut(&DirItem<'_>) -> bool) -> Served<bool> {
        Served::Kernel
    }
    pub fn chdir(&self, path: &[u8]) -> Served<()> {
        Served::Kernel
    }
    pub fn fchdir(&self, fd: i32) -> Served<()> {
        Served::Kernel
    }
    /// Writes the path of the working directory, without NUL; returns its length. `ERANGE`.
    pub fn getcwd(&self, buf: &mut [u8]) -> Served<usize> {
        Served::Kernel
    }
    /// To be called with what the kernel's `umask` was given (that call must be made, too).
    pub fn umask(&self, mask: u32) {}

    // -- handing descriptors to the kernel --
    /// Makes `fd` the kernel's from now on; nothing happens if it is already.
    pub fn materialise(&self, fd: i32) -> Result<(), Errno> {
        Ok(())
    }
    /// Before exec: materialises every descriptor that is not close-on-exec.
    pub fn before_exec(&self) -> Result<(), Errno> {
        Ok(())
    }
    /// Before fork (and vfork made as fork).
    pub fn before_fork(&self) {}
    /// After fork, in the parent; `child` is its process ID, or -1 where fork failed.
    pub fn after_fork_parent(&self, child: i32) {}
    /// After fork, in the child, before anything else of this crate or of an engine.
    pub fn after_fork_child(&self) {}
}
