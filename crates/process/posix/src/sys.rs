//! The kernel, behind a trait so that tests can put another in its place.
//!
//! [`Raw`] makes system calls by instruction, because our own front end may interpose the symbols
//! of libc, and because descriptors here are numbers of the host program, without an owner in Rust.
//! (If its types fit, the rest of this crate uses `rustix`, whose backend does the same.)

#![allow(unsafe_code)]

use os::syscalls::syscall;
use rustix::fd::BorrowedFd;
use std::ffi::{c_int, c_long};
use vfs::Errno;

/// The system calls that the process layer makes. Numbers that are not descriptors give `EBADF`.
pub trait Kernel: Send + Sync {
    /// `F_DUPFD` or `F_DUPFD_CLOEXEC`: the lowest free descriptor from `min` on.
    fn dup(&self, fd: i32, min: i32, cloexec: bool) -> Result<i32, Errno>;
    /// `dup3`.
    fn dup3(&self, old: i32, new: i32, cloexec: bool) -> Result<(), Errno>;
    /// `close`.
    fn close(&self, fd: i32) -> Result<(), Errno>;
    /// `close_range`.
    fn close_range(&self, first: u32, last: u32, flags: u32) -> Result<(), Errno>;
    /// Whether `fd` is close-on-exec.
    fn is_cloexec(&self, fd: i32) -> Result<bool, Errno>;
    /// Makes `fd` close-on-exec, or not.
    fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), Errno>;
    /// `open` of an absolute path.
    fn open(&self, path: &[u8], flags: i32) -> Result<i32, Errno>;
    /// `openat` of a name below a directory; with `O_CREAT`, of mode 0.
    fn open_at(&self, dir: i32, name: &[u8], flags: i32) -> Result<i32, Errno>;
    /// `lseek` with `SEEK_SET`.
    fn seek_to(&self, fd: i32, offset: u64) -> Result<(), Errno>;
    /// `lseek` with `SEEK_CUR`: the new offset.
    fn seek_by(&self, fd: i32, delta: i64) -> Result<u64, Errno>;
    /// `F_SETFL`.
    fn set_status(&self, fd: i32, flags: i32) -> Result<(), Errno>;
    /// Asks the kernel to drop cached pages of a file that no process maps.
    fn drop_cache(&self, fd: i32);
    /// Makes sure that the kernel has the size of a regular file: `size`, unless it is changing.
    fn update_kernel_size(&self, fd: i32, size: u64);
    /// `F_GETLK`, `F_SETLK`, `F_SETLKW`, `F_OFD_*`.
    fn lock(&self, fd: i32, cmd: i32, lock: &mut libc::flock) -> Result<(), Errno>;
    /// `flock`.
    fn flock(&self, fd: i32, operation: i32) -> Result<(), Errno>;
    /// `chdir`.
    fn chdir(&self, path: &[u8]) -> Result<(), Errno>;
    /// `getcwd`: writes the absolute path to `buf`, and returns it. `ENOENT` if the directory was
    /// removed, `EXDEV` if the root does not lead there.
    fn getcwd<'b>(&self, buf: &'b mut [u8]) -> Result<&'b [u8], Errno>;
    /// Returns device and inode number of the working directory, without asking a server.
    fn here(&self) -> Result<(u64, u64), Errno>;
    /// Returns `st_dev` and `st_ino` of the inode at a path, which may be relative, without asking
    /// a server.
    fn place(&self, path: &[u8]) -> Result<(u64, u64), Errno>;
    /// Reads a small file of `/proc`, or its start.
    fn slurp(&self, path: &[u8], buf: &mut [u8]) -> Result<usize, Errno>;
    /// Returns device, inode number and kind (`S_IF*`) of the inode of `fd`, without asking a
    /// server.
    fn identity(&self, fd: i32) -> Result<(u64, u64, u32), Errno>;
    /// `F_GETFL`.
    fn status(&self, fd: i32) -> Result<i32, Errno>;
    /// Whether two descriptors share a description. `false` if the kernel does not tell.
    fn is_same_description(&self, one: i32, other: i32) -> bool;
    /// Sends a signal to the calling thread.
    fn raise(&self, signal: i32);
}

/// Makes sure that the kernel has the size of a regular file, if it is on a device that
/// `is_served`. A mapping beyond the size that the kernel has would give `SIGBUS`. `mmap` does not
/// ask the server, `fstat` does; but the kernel drops an answer that a later one has overtaken,
/// which may carry the older size. (A second description could be asked as well, but closing it
/// would end the process's locks.)
pub fn update_kernel_size(fd: i32, is_served: impl Fn(u64) -> bool) {
    compare_sizes(fd, 100, is_served);
}

/// Asks for the size until the kernel has taken it, at most `times` times.
fn compare_sizes(fd: i32, times: usize, is_served: impl Fn(u64) -> bool) {
    for _ in 0..times {
        let stat = match rustix::fs::fstat(borrow(fd)) {
            Ok(stat) if is_served(stat.st_dev) => stat,
            _ => return,
        };
        match known_size(fd) {
            Ok(known) if known != stat.st_size as u32 => {}
            _ => return,
        }
    }
}

/// Returns the low 32 bits of the size that the kernel has of a regular file.
fn known_size(fd: i32) -> Result<u32, Errno> {
    let rest = rustix::io::ioctl_fionread(borrow(fd))?;
    Ok((rest as u32).wrapping_add(rustix::fs::tell(borrow(fd))? as u32))
}

/// A descriptor of the host program, for one call.
fn borrow<'f>(fd: i32) -> BorrowedFd<'f> {
    // SAFETY: the program keeps it open during its call, or the call fails.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The kernel itself.
pub struct Raw;

/// A path with its NUL, on the stack.
struct PathZ([u8; libc::PATH_MAX as usize]);

impl PathZ {
    /// Copies a path and adds the NUL. `ENAMETOOLONG` without room for that.
    fn new(path: &[u8]) -> Result<Self, Errno> {
        let mut buf = [0; libc::PATH_MAX as usize];
        if path.len() >= buf.len() {
            return Err(Errno::NAMETOOLONG);
        }
        buf[..path.len()].copy_from_slice(path);
        Ok(Self(buf))
    }

    fn addr(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

const AT_FDCWD: usize = libc::AT_FDCWD as isize as usize;

/// A call whose arguments are plain numbers, about descriptors of the host program.
fn plain(number: c_long, args: [usize; 4]) -> Result<usize, Errno> {
    // SAFETY: 1: only numbers (every caller below); 2: no value in Rust owns these descriptors.
    unsafe { syscall(number, [args[0], args[1], args[2], args[3], 0]) }
}

fn fcntl(fd: i32, cmd: c_int, arg: usize) -> Result<usize, Errno> {
    plain(libc::SYS_fcntl, [fd as usize, cmd as usize, arg, 0])
}

/// Returns device, inode number and kind of the inode at a path or descriptor, without asking a
/// server.
///
/// # Safety
/// 1. `path` is the address of a string.
unsafe fn known_by_kernel(fd: usize, path: usize, flags: c_int) -> Result<(u64, u64, u32), Errno> {
    let flags = (flags | libc::AT_STATX_DONT_SYNC) as usize;
    let mask = (libc::STATX_INO | libc::STATX_TYPE) as usize;
    let mut statx = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let args = [fd, path, flags, mask, statx.as_mut_ptr() as usize];
    // SAFETY: 1: the caller's string, and room for what the kernel writes.
    unsafe { syscall(libc::SYS_statx, args) }?;
    // SAFETY: plain numbers, written by the kernel.
    let statx = unsafe { statx.assume_init() };
    let device = rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor);
    Ok((device, statx.stx_ino, u32::from(statx.stx_mode) & libc::S_IFMT))
}

impl Kernel for Raw {
    fn dup(&self, fd: i32, min: i32, cloexec: bool) -> Result<i32, Errno> {
        let cmd = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        fcntl(fd, cmd, min as usize).map(|fd| fd as i32)
    }

    fn dup3(&self, old: i32, new: i32, cloexec: bool) -> Result<(), Errno> {
        let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
        plain(libc::SYS_dup3, [old as usize, new as usize, flags as usize, 0]).map(drop)
    }

    fn close(&self, fd: i32) -> Result<(), Errno> {
        plain(libc::SYS_close, [fd as usize, 0, 0, 0]).map(drop)
    }

    fn close_range(&self, first: u32, last: u32, flags: u32) -> Result<(), Errno> {
        let args = [first as usize, last as usize, flags as usize, 0];
        plain(libc::SYS_close_range, args).map(drop)
    }

    fn is_cloexec(&self, fd: i32) -> Result<bool, Errno> {
        Ok(fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC as usize != 0)
    }

    fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), Errno> {
        let flags = if cloexec { libc::FD_CLOEXEC } else { 0 };
        fcntl(fd, libc::F_SETFD, flags as usize).map(drop)
    }

    fn open(&self, path: &[u8], flags: i32) -> Result<i32, Errno> {
        self.open_at(libc::AT_FDCWD, path, flags)
    }

    fn open_at(&self, dir: i32, name: &[u8], flags: i32) -> Result<i32, Errno> {
        let name = PathZ::new(name)?;
        let args = [dir as isize as usize, name.addr(), flags as usize, 0, 0];
        // SAFETY: 1: a path with its NUL, and mode 0.
        unsafe { syscall(libc::SYS_openat, args) }.map(|fd| fd as i32)
    }

    fn seek_to(&self, fd: i32, offset: u64) -> Result<(), Errno> {
        plain(libc::SYS_lseek, [fd as usize, offset as usize, libc::SEEK_SET as usize, 0]).map(drop)
    }

    fn seek_by(&self, fd: i32, delta: i64) -> Result<u64, Errno> {
        let args = [fd as usize, delta as usize, libc::SEEK_CUR as usize, 0];
        plain(libc::SYS_lseek, args).map(|offset| offset as u64)
    }

    fn set_status(&self, fd: i32, flags: i32) -> Result<(), Errno> {
        fcntl(fd, libc::F_SETFL, flags as usize).map(drop)
    }

    fn drop_cache(&self, fd: i32) {
        let advice = libc::POSIX_FADV_DONTNEED as usize;
        let _ = plain(libc::SYS_fadvise64, [fd as usize, 0, 0, advice]);
    }

    fn update_kernel_size(&self, fd: i32, size: u64) {
        if known_size(fd) != Ok(size as u32) {
            // Only a few times: during a `truncate` the kernel takes no other size, and that may
            // wait for us.
            compare_sizes(fd, 3, |_| true);
        }
    }

    fn lock(&self, fd: i32, cmd: i32, lock: &mut libc::flock) -> Result<(), Errno> {
        fcntl(fd, cmd, std::ptr::from_mut(lock) as usize).map(drop)
    }

    fn flock(&self, fd: i32, operation: i32) -> Result<(), Errno> {
        plain(libc::SYS_flock, [fd as usize, operation as usize, 0, 0]).map(drop)
    }

    fn chdir(&self, path: &[u8]) -> Result<(), Errno> {
        let path = PathZ::new(path)?;
        // SAFETY: 1: a path with its NUL.
        unsafe { syscall(libc::SYS_chdir, [path.addr(), 0, 0, 0, 0]) }.map(drop)
    }

    fn getcwd<'b>(&self, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        let args = [buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0];
        // SAFETY: 1: room for `buf.len()` bytes.
        let len = unsafe { syscall(libc::SYS_getcwd, args) }?;
        // The path ends with a NUL. If the root does not lead there, it starts with
        // `(unreachable)`.
        let path = buf[..len].strip_suffix(b"\0").filter(|path| path.starts_with(b"/"));
        path.ok_or(Errno::XDEV)
    }

    fn here(&self) -> Result<(u64, u64), Errno> {
        self.identity(libc::AT_FDCWD).map(|(device, ino, _)| (device, ino))
    }

    fn identity(&self, fd: i32) -> Result<(u64, u64, u32), Errno> {
        // SAFETY: 1: a path with its NUL.
        unsafe { known_by_kernel(fd as isize as usize, c"".as_ptr() as usize, libc::AT_EMPTY_PATH) }
    }

    fn status(&self, fd: i32) -> Result<i32, Errno> {
        fcntl(fd, libc::F_GETFL, 0).map(|flags| flags as i32)
    }

    fn is_same_description(&self, one: i32, other: i32) -> bool {
        const KCMP_FILE: usize = 0;
        let me = rustix::process::getpid().as_raw_nonzero().get() as usize;
        let args = [me, me, KCMP_FILE, one as usize, other as usize];
        // SAFETY: 1: only numbers.
        let compared = unsafe { syscall(libc::SYS_kcmp, args) };
        compared == Ok(0)
    }

    fn place(&self, path: &[u8]) -> Result<(u64, u64), Errno> {
        let path = PathZ::new(path)?;
        // SAFETY: 1: a path with its NUL.
        let known = unsafe { known_by_kernel(AT_FDCWD, path.addr(), 0) };
        known.map(|(device, ino, _)| (device, ino))
    }

    fn slurp(&self, path: &[u8], buf: &mut [u8]) -> Result<usize, Errno> {
        let fd = self.open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
        let args = [fd as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0];
        // SAFETY: 1: room for `buf.len()` bytes.
        let read = unsafe { syscall(libc::SYS_read, args) };
        self.close(fd)?;
        read
    }

    fn raise(&self, signal: i32) {
        let _ = rustix::process::Signal::from_named_raw(signal).map(|signal| {
            let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
            plain(libc::SYS_tgkill, [pid, tid, signal.as_raw() as usize, 0])
        });
    }
}
