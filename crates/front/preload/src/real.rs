//! The functions of libc and liburing that this library replaces under their names. The exported
//! functions call them for what the kernel does.
//!
//! [`start`] finds them by the dynamic linker's rules (`RTLD_NEXT`). A function that is not there
//! returns -1 with `ENOSYS`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    DIR, dev_t, fd_set, gid_t, iovec, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

use crate::next::{self, Next};
use crate::serve::set_errno;

/// Replaces a function that this libc does not have.
extern "C" fn missing() -> c_long {
    set_errno(posix::Errno::NOSYS);
    -1
}

/// Returns a function of liburing, if an object has loaded that library for itself, so that it is
/// not behind this one.
fn in_liburing(name: &CStr) -> *mut c_void {
    let libraries = [c"liburing.so.2", c"liburing.so.1"];
    // SAFETY: the names are strings; a loaded library is only referenced again.
    libraries
        .iter()
        .find_map(|library| unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
            if library.is_null() { None } else { Some(libc::dlsym(library, name.as_ptr())) }
        })
        .unwrap_or(std::ptr::null_mut())
}

/// Looks a function up, and remembers its address; [`missing`] if it is not there.
#[cold]
fn resolve(index: usize) -> *mut c_void {
    // SAFETY: the name is a string; `RTLD_NEXT` means the objects loaded after this library.
    let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[index].as_ptr()) };
    if found.is_null() && NAMES[index].to_bytes().starts_with(b"io_uring_") {
        found = in_liburing(NAMES[index]);
    }
    if found.is_null() {
        found = missing as *mut c_void;
    }
    ADDRESSES[index].store(found, Relaxed);
    found
}

#[inline]
fn address(index: usize) -> *mut c_void {
    let known = ADDRESSES[index].load(Relaxed);
    if known.is_null() { resolve(index) } else { known }
}

/// Looks all functions up, so that later calls do not: a call may come from a signal handler. Only
/// a function that is not found here is looked up when it is first called.
pub fn start() {
    let next = Next::list();
    for (index, (name, hash)) in NAMES.iter().zip(HASHES).enumerate() {
        match next.find(name, hash) {
            Some(found) => ADDRESSES[index].store(found, Relaxed),
            None if next.is_empty() => _ = resolve(index),
            None => {}
        }
    }
}

/// Hashes of the names, in the same order.
static HASHES: [u32; NAMES.len()] = {
    let mut hashes = [0; NAMES.len()];
    let mut index = 0;
    while index < NAMES.len() {
        hashes[index] = next::hash(NAMES[index]);
        index += 1;
    }
    hashes
};

/// Returns a name as C expects it.
pub const fn name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!(),
    }
}

macro_rules! originals {
    (
        $(jump $jump:ident;)*
        $(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*
    ) => {
        #[allow(non_camel_case_types)]
        enum Index { $($jump,)* $($name),* }

        const NAMES: [&CStr; [$(Index::$jump as usize,)* $(Index::$name as usize),*].len()] =
            [$(name(concat!(stringify!($jump), "\0")),)* $(name(concat!(stringify!($name), "\0"))),*];

        /// Addresses of functions that trampolines jump to.
        pub mod address_of {
            $(
                #[doc = concat!("The address of libc's `", stringify!($jump), "`.")]
                pub extern "C" fn $jump() -> *mut super::c_void {
                    super::address(super::Index::$jump as usize)
                }
            )*
        }

        static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

        $(
            #[doc = concat!("libc's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As on its manual page.
            #[inline]
            #[allow(clippy::too_many_arguments, non_snake_case)]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: the address is libc's function, or one that ignores its arguments; on
                // x86-64, variadic functions take theirs in the same registers.
                let f = unsafe {
                    std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C-unwind" fn($($type),*) -> $result,
                    >(address(Index::$name as usize))
                };
                // SAFETY: the caller's.
                unsafe { f($($argument),*) }
            }
        )*
    };
}

originals! {
    jump vfork;
    jump dprintf;
    jump vdprintf;
    jump __dprintf_chk;
    jump __vdprintf_chk;

    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn dup(fd: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int;
    fn isatty(fd: c_int) -> c_int;
    fn ttyname(fd: c_int) -> *mut c_char;
    fn ttyname_r(fd: c_int, buf: *mut c_char, len: size_t) -> c_int;
    fn tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t;
    fn name_to_handle_at(
        dirfd: c_int, path: *const c_char, handle: *mut c_void, id: *mut c_int, flags: c_int
    ) -> c_int;

    fn read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, count: size_t, room: size_t) -> ssize_t;
    fn pread(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    fn __pread_chk(
        fd: c_int, buf: *mut c_void, count: size_t, offset: off_t, room: size_t
    ) -> ssize_t;
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    fn preadv(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn preadv2(
        fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t;
    fn write(fd: c_int, data: *const c_void, count: size_t) -> ssize_t;
    fn pwrite(fd: c_int, data: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    fn pwritev(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn pwritev2(
        fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t;
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn truncate(path: *const c_char, len: off_t) -> c_int;
    fn ftruncate(fd: c_int, len: off_t) -> c_int;
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int;
    fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t;
    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn syncfs(fd: c_int) -> c_int;
    fn sync() -> ();
    fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int;

    fn stat(path: *const c_char, buf: *mut libc::stat) -> c_int;
    fn lstat(path: *const c_char, buf: *mut libc::stat) -> c_int;
    fn fstat(fd: c_int, buf: *mut libc::stat) -> c_int;
    fn fstatat(dirfd: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int) -> c_int;
    fn __xstat(version: c_int, path: *const c_char, buf: *mut libc::stat) -> c_int;
    fn __lxstat(version: c_int, path: *const c_char, buf: *mut libc::stat) -> c_int;
    fn __fxstat(version: c_int, fd: c_int, buf: *mut libc::stat) -> c_int;
    fn __fxstatat(
        version: c_int, dirfd: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int
    ) -> c_int;
    fn statx(
        dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut libc::statx
    ) -> c_int;
    fn statfs(path: *const c_char, buf: *mut libc::statfs) -> c_int;
    fn fstatfs(fd: c_int, buf: *mut libc::statfs) -> c_int;
    fn statvfs(path: *const c_char, buf: *mut libc::statvfs) -> c_int;
    fn fstatvfs(fd: c_int, buf: *mut libc::statvfs) -> c_int;
    fn fpathconf(fd: c_int, name: c_int) -> c_long;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int;
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;

    fn chmod(path: *const c_char, mode: mode_t) -> c_int;
    fn fchmod(fd: c_int, mode: mode_t) -> c_int;
    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int;
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int;
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int;
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int;
    fn fchownat(
        dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int
    ) -> c_int;
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int;
    fn utimes(path: *const c_char, times: *const timeval) -> c_int;
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int;
    fn futimes(fd: c_int, times: *const timeval) -> c_int;
    fn futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int;
    fn utimensat(
        dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int
    ) -> c_int;
    fn futimens(fd: c_int, times: *const timespec) -> c_int;
    fn nftw(
        path: *const c_char, visit: *const c_void, depth: c_int, flags: c_int
    ) -> c_int;
    fn fts_open(
        paths: *const *const c_char, options: c_int, compare: *const c_void
    ) -> *mut c_void;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn umask(mask: mode_t) -> mode_t;

    fn getxattr(
        path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t;
    fn lgetxattr(
        path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t;
    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    fn setxattr(
        path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, how: c_int
    ) -> c_int;
    fn lsetxattr(
        path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, how: c_int
    ) -> c_int;
    fn fsetxattr(
        fd: c_int, name: *const c_char, value: *const c_void, size: size_t, how: c_int
    ) -> c_int;
    fn listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t;
    fn llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t;
    fn flistxattr(fd: c_int, list: *mut c_char, size: size_t) -> ssize_t;
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int;
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int;
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int;

    fn link(from: *const c_char, to: *const c_char) -> c_int;
    fn linkat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int
    ) -> c_int;
    fn symlink(target: *const c_char, path: *const c_char) -> c_int;
    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn remove(path: *const c_char) -> c_int;
    fn rmdir(path: *const c_char) -> c_int;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn renameat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char
    ) -> c_int;
    fn renameat2(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint
    ) -> c_int;
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int;
    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int;
    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int;
    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int;
    fn __xmknodat(
        version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t
    ) -> c_int;
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int;
    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn readlink(path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t;
    fn readlinkat(
        dirfd: c_int, path: *const c_char, buf: *mut c_char, size: size_t
    ) -> ssize_t;
    fn __readlink_chk(
        path: *const c_char, buf: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t;
    fn __readlinkat_chk(
        dirfd: c_int, path: *const c_char, buf: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t;
    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char;
    fn __realpath_chk(
        path: *const c_char, to: *mut c_char, room: size_t
    ) -> *mut c_char;
    fn mkdtemp(template: *mut c_char) -> *mut c_char;
    fn chdir(path: *const c_char) -> c_int;
    fn fchdir(fd: c_int) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
    fn mount(
        source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong,
        data: *const c_void
    ) -> c_int;
    fn umount(target: *const c_char) -> c_int;
    fn umount2(target: *const c_char, flags: c_int) -> c_int;
    fn move_mount(
        from_dirfd: c_int, from: *const c_char, to_dirfd: c_int, to: *const c_char, flags: c_uint
    ) -> c_int;
    fn mount_setattr(
        dirfd: c_int, path: *const c_char, flags: c_uint, attributes: *mut c_void, size: size_t
    ) -> c_int;
    fn fsconfig(
        fd: c_int, command: c_uint, key: *const c_char, value: *const c_void, aux: c_int
    ) -> c_int;
    fn pivot_root(new: *const c_char, old: *const c_char) -> c_int;

    fn opendir(path: *const c_char) -> *mut DIR;
    fn fdopendir(fd: c_int) -> *mut DIR;
    fn closedir(dir: *mut DIR) -> c_int;
    fn readdir(dir: *mut DIR) -> *mut libc::dirent;
    fn readdir_r(
        dir: *mut DIR, entry: *mut libc::dirent, result: *mut *mut libc::dirent
    ) -> c_int;
    fn rewinddir(dir: *mut DIR) -> ();
    fn seekdir(dir: *mut DIR, position: c_long) -> ();
    fn telldir(dir: *mut DIR) -> c_long;
    fn dirfd(dir: *mut DIR) -> c_int;
    fn getdents64(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn getdirentries(
        fd: c_int, buf: *mut c_char, len: size_t, base: *mut off_t
    ) -> ssize_t;
    fn scandirat(
        dirfd: c_int, path: *const c_char, list: *mut c_void, select: *const c_void,
        compare: *const c_void
    ) -> c_int;

    fn glob(
        pattern: *const c_char, flags: c_int, failed: *const c_void, to: *mut c_void
    ) -> c_int;

    fn copy_file_range(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t;
    fn mmap(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, len: size_t) -> c_int;
    fn mremap(
        address: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void
    ) -> *mut c_void;
    fn msync(address: *mut c_void, len: size_t, flags: c_int) -> c_int;
    fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn remap_file_pages(
        address: *mut c_void, len: size_t, protection: c_int, page: size_t, flags: c_int
    ) -> c_int;
    fn mprotect(address: *mut c_void, len: size_t, protection: c_int) -> c_int;
    fn pkey_mprotect(
        address: *mut c_void, len: size_t, protection: c_int, key: c_int
    ) -> c_int;

    fn mlockall(flags: c_int) -> c_int;

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    fn ppoll(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        room: size_t
    ) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut c_void) -> c_int;
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int
    ) -> c_int;
    fn bind(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn connect(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn getpeername(socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockname(socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockopt(
        socket: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int;
    fn setsockopt(
        socket: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int;
    fn listen(socket: c_int, backlog: c_int) -> c_int;
    fn shutdown(socket: c_int, how: c_int) -> c_int;
    fn send(socket: c_int, data: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        socket: c_int, data: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t;
    fn recv(socket: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        socket: c_int, buf: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t;
    fn tcgetattr(fd: c_int, to: *mut c_void) -> c_int;
    fn tcsetattr(fd: c_int, when: c_int, from: *const c_void) -> c_int;
    fn tcdrain(fd: c_int) -> c_int;
    fn tcflow(fd: c_int, action: c_int) -> c_int;
    fn tcflush(fd: c_int, queue: c_int) -> c_int;
    fn tcgetpgrp(fd: c_int) -> pid_t;
    fn tcgetsid(fd: c_int) -> pid_t;
    fn tcsendbreak(fd: c_int, duration: c_int) -> c_int;
    fn tcsetpgrp(fd: c_int, group: pid_t) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut c_void, count: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(
        epoll: c_int, events: *mut c_void, count: c_int, timeout: c_int, mask: *const c_void
    ) -> c_int;
    fn inotify_add_watch(inotify: c_int, path: *const c_char, mask: c_uint) -> c_int;
    fn inotify_rm_watch(inotify: c_int, watch: c_int) -> c_int;
    fn timerfd_gettime(timer: c_int, to: *mut c_void) -> c_int;
    fn timerfd_settime(
        timer: c_int, flags: c_int, new: *const c_void, old: *mut c_void
    ) -> c_int;
    fn __getcwd_chk(buf: *mut c_char, size: size_t, room: size_t) -> *mut c_char;
    fn getcwd(buf: *mut c_char, size: size_t) -> *mut c_char;
    fn fanotify_mark(
        fanotify: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char
    ) -> c_int;
    fn aio_read(control: *mut libc::aiocb) -> c_int;
    fn aio_write(control: *mut libc::aiocb) -> c_int;
    fn aio_fsync(operation: c_int, control: *mut libc::aiocb) -> c_int;
    fn lio_listio(
        mode: c_int, list: *const *mut libc::aiocb, count: c_int, event: *mut c_void
    ) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fn syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long;

    fn io_uring_submit(ring: *mut c_void) -> c_int;
    fn io_uring_submit_and_wait(ring: *mut c_void, count: c_uint) -> c_int;
    fn io_uring_submit_and_wait_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn io_uring_submit_and_wait_min_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        least: c_uint, mask: *const sigset_t
    ) -> c_int;
    fn io_uring_submit_and_wait_reg(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, index: c_int
    ) -> c_int;
    fn io_uring_submit_and_get_events(ring: *mut c_void) -> c_int;
    fn io_uring_wait_cqes(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn io_uring_wait_cqes_min_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        least: c_uint, mask: *const sigset_t
    ) -> c_int;
    fn io_uring_wait_cqe_timeout(
        ring: *mut c_void, completion: *mut c_void, timeout: *const timespec
    ) -> c_int;
    fn io_uring_register_files(ring: *mut c_void, files: *const c_int, count: c_uint) -> c_int;
    fn io_uring_register_files_tags(
        ring: *mut c_void, files: *const c_int, tags: *const c_void, count: c_uint
    ) -> c_int;
    fn io_uring_register_files_update(
        ring: *mut c_void, first: c_uint, files: *const c_int, count: c_uint
    ) -> c_int;
    fn io_uring_register_files_update_tag(
        ring: *mut c_void, first: c_uint, files: *const c_int, tags: *const c_void, count: c_uint
    ) -> c_int;
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;

    fn _exit(status: c_int) -> !;
    fn fork() -> pid_t;
    fn _Fork() -> pid_t;
    fn forkpty(
        master: *mut c_int, name: *mut c_char, terminal: *const c_void, window: *const c_void
    ) -> pid_t;
    fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int;
    fn login_tty(fd: c_int) -> c_int;
    fn clone(
        function: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent_tid: *mut pid_t, tls: *mut c_void, child_tid: *mut pid_t
    ) -> c_int;
    fn execve(
        path: *const c_char, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn execvpe(
        file: *const c_char, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn execveat(
        dirfd: c_int, path: *const c_char, argv: *const *const c_char,
        envp: *const *const c_char, flags: c_int
    ) -> c_int;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn pidfd_spawn(
        pidfd: *mut c_int, path: *const c_char, actions: *const c_void,
        attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn pidfd_spawnp(
        pidfd: *mut c_int, file: *const c_char, actions: *const c_void,
        attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int;
    fn posix_spawn_file_actions_addfchdir_np(actions: *mut c_void, fd: c_int) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    fn accept(socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(
        socket: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int
    ) -> c_int;
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec
    ) -> c_int;
    fn pipe(pair: *mut c_int) -> c_int;
    fn pipe2(pair: *mut c_int, flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn eventfd(initial: c_uint, flags: c_int) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn fanotify_init(flags: c_uint, event_flags: c_uint) -> c_int;
    fn pidfd_open(process: pid_t, flags: c_uint) -> c_int;
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn getpt() -> c_int;
    fn openpty(
        master: *mut c_int, slave: *mut c_int, name: *mut c_char, terminal: *const c_void,
        window: *const c_void
    ) -> c_int;
    fn mkstemp(template: *mut c_char) -> c_int;
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int;
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int;
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    fn tmpfile() -> *mut libc::FILE;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fn freopen(
        path: *const c_char, mode: *const c_char, stream: *mut libc::FILE
    ) -> *mut libc::FILE;
    fn fclose(stream: *mut libc::FILE) -> c_int;
    fn pclose(stream: *mut libc::FILE) -> c_int;
    fn fcloseall() -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;

    fn sigaction(
        signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction
    ) -> c_int;
    fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn sigignore(signal: c_int) -> c_int;
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int;

    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn getrandom(buf: *mut c_void, len: size_t, flags: c_uint) -> ssize_t;

    fn setuid(uid: uid_t) -> c_int;
    fn seteuid(uid: uid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn setfsuid(uid: uid_t) -> c_int;
    fn setgid(gid: gid_t) -> c_int;
    fn setegid(gid: gid_t) -> c_int;
    fn setregid(real: gid_t, effective: gid_t) -> c_int;
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    fn setfsgid(gid: gid_t) -> c_int;
    fn setgroups(count: size_t, list: *const gid_t) -> c_int;
    fn initgroups(user: *const c_char, group: gid_t) -> c_int;
    fn capset(header: *mut c_void, data: *const c_void) -> c_int;
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int;
    fn prlimit(
        pid: pid_t, resource: c_uint, new: *const libc::rlimit, old: *mut libc::rlimit
    ) -> c_int;
}
