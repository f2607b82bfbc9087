//! Attributes: `stat`, permissions, owners, times, file systems.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};

use libc::{AT_EACCESS, AT_FDCWD, AT_SYMLINK_NOFOLLOW, gid_t, mode_t, timespec, timeval, uid_t};
use posix::{Errno, Process, Served};

use crate::serve::{on_fd, on_path, on_path_for, to_c};
use crate::stats::Class;
use crate::{direct, memory, real};

/// Stores what a call found. Probes the destination first; a bad one gives `EFAULT`.
fn store<T>(to: *mut T, found: Served<T>) -> Served<()> {
    match found {
        Served::Done(Ok(value)) => Served::Done(memory::store(to, value)),
        Served::Done(Err(err)) => Served::Done(Err(err)),
        Served::Kernel => Served::Kernel,
    }
}

fn stat_at(dirfd: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int) -> Option<c_int> {
    direct::times_seen();
    on_path(Class::Stat, dirfd, path, |process, path| {
        process.names().stat(dirfd, path, flags, || memory::place(buf))
    })
}

fn stat_of(fd: c_int, buf: *mut libc::stat) -> Option<c_int> {
    direct::times_seen();
    on_fd(Class::Stat, fd, |process| store(buf, process.names().fstat(fd)))
}

export! {
    fn stat | stat64 (path: *const c_char, buf: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, buf, 0).unwrap_or_else(|| real::stat(path, buf))
    }

    fn lstat | lstat64 (path: *const c_char, buf: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, buf, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::lstat(path, buf))
    }

    fn fstat | fstat64 | __fstat64 (fd: c_int, buf: *mut libc::stat) -> c_int {
        stat_of(fd, buf).unwrap_or_else(|| real::fstat(fd, buf))
    }

    fn fstatat | fstatat64 (
        dirfd: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int
    ) -> c_int {
        stat_at(dirfd, path, buf, flags).unwrap_or_else(|| real::fstatat(dirfd, path, buf, flags))
    }

    fn __xstat | __xstat64 (version: c_int, path: *const c_char, buf: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, buf, 0).unwrap_or_else(|| real::__xstat(version, path, buf))
    }

    fn __lxstat | __lxstat64 (
        version: c_int, path: *const c_char, buf: *mut libc::stat
    ) -> c_int {
        stat_at(AT_FDCWD, path, buf, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::__lxstat(version, path, buf))
    }

    fn __fxstat | __fxstat64 (version: c_int, fd: c_int, buf: *mut libc::stat) -> c_int {
        stat_of(fd, buf).unwrap_or_else(|| real::__fxstat(version, fd, buf))
    }

    fn __fxstatat | __fxstatat64 (
        version: c_int, dirfd: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int
    ) -> c_int {
        stat_at(dirfd, path, buf, flags)
            .unwrap_or_else(|| real::__fxstatat(version, dirfd, path, buf, flags))
    }

    fn statx (
        dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut libc::statx
    ) -> c_int {
        direct::times_seen();
        on_path(Class::Stat, dirfd, path, |process, path| {
            process.names().statx(dirfd, path, flags, mask, || memory::place(buf))
        })
        .unwrap_or_else(|| real::statx(dirfd, path, flags, mask, buf))
    }

    fn statfs | statfs64 | __statfs (path: *const c_char, buf: *mut libc::statfs) -> c_int {
        on_path(Class::Stat, AT_FDCWD, path, |process, path| {
            store(buf, process.names().statfs(path))
        })
            .unwrap_or_else(|| real::statfs(path, buf))
    }

    fn fstatfs | fstatfs64 (fd: c_int, buf: *mut libc::statfs) -> c_int {
        on_fd(Class::Stat, fd, |process| store(buf, process.names().fstatfs(fd)))
            .unwrap_or_else(|| real::fstatfs(fd, buf))
    }

    fn statvfs | statvfs64 (path: *const c_char, buf: *mut libc::statvfs) -> c_int {
        on_path(Class::Stat, AT_FDCWD, path, |process, path| {
            store(buf, process.names().statvfs(path))
        })
            .unwrap_or_else(|| real::statvfs(path, buf))
    }

    fn fstatvfs | fstatvfs64 (fd: c_int, buf: *mut libc::statvfs) -> c_int {
        on_fd(Class::Stat, fd, |process| store(buf, process.names().fstatvfs(fd)))
            .unwrap_or_else(|| real::fstatvfs(fd, buf))
    }

    fn access (path: *const c_char, mode: c_int) -> c_int {
        access_at(AT_FDCWD, path, mode, 0).unwrap_or_else(|| real::access(path, mode))
    }

    fn euidaccess | eaccess (path: *const c_char, mode: c_int) -> c_int {
        access_at(AT_FDCWD, path, mode, AT_EACCESS)
            .unwrap_or_else(|| real::euidaccess(path, mode))
    }

    fn faccessat (dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(dirfd, path, mode, flags)
            .unwrap_or_else(|| real::faccessat(dirfd, path, mode, flags))
    }

    fn chmod (path: *const c_char, mode: mode_t) -> c_int {
        chmod_at(AT_FDCWD, path, mode, 0).unwrap_or_else(|| real::chmod(path, mode))
    }

    fn lchmod (path: *const c_char, mode: mode_t) -> c_int {
        chmod_at(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::lchmod(path, mode))
    }

    fn fchmodat (dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        chmod_at(dirfd, path, mode, flags)
            .unwrap_or_else(|| real::fchmodat(dirfd, path, mode, flags))
    }

    fn fchmod (fd: c_int, mode: mode_t) -> c_int {
        direct::times_seen();
        on_fd(Class::Attributes, fd, |process| process.names().fchmod(fd, mode))
            .unwrap_or_else(|| real::fchmod(fd, mode))
    }

    fn chown (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        chown_at(AT_FDCWD, path, uid, gid, 0).unwrap_or_else(|| real::chown(path, uid, gid))
    }

    fn lchown (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        chown_at(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::lchown(path, uid, gid))
    }

    fn fchownat (
        dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int
    ) -> c_int {
        chown_at(dirfd, path, uid, gid, flags)
            .unwrap_or_else(|| real::fchownat(dirfd, path, uid, gid, flags))
    }

    fn fchown (fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        direct::times_seen();
        on_fd(Class::Attributes, fd, |process| process.names().fchown(fd, uid, gid))
            .unwrap_or_else(|| real::fchown(fd, uid, gid))
    }

    fn utime (path: *const c_char, times: *const libc::utimbuf) -> c_int {
        times_at(AT_FDCWD, path, 0, || from_utimbuf(times))
            .unwrap_or_else(|| real::utime(path, times))
    }

    fn utimes (path: *const c_char, times: *const timeval) -> c_int {
        times_at(AT_FDCWD, path, 0, || from_timeval(times))
            .unwrap_or_else(|| real::utimes(path, times))
    }

    fn lutimes (path: *const c_char, times: *const timeval) -> c_int {
        times_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || from_timeval(times))
            .unwrap_or_else(|| real::lutimes(path, times))
    }

    fn futimesat (dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        if path.is_null() {
            return futimes(dirfd, times);
        }
        times_at(dirfd, path, 0, || from_timeval(times))
            .unwrap_or_else(|| real::futimesat(dirfd, path, times))
    }

    fn futimes (fd: c_int, times: *const timeval) -> c_int {
        times_of(fd, || from_timeval(times)).unwrap_or_else(|| real::futimes(fd, times))
    }

    fn utimensat (
        dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int
    ) -> c_int {
        times_at(dirfd, path, flags, || from_timespec(times))
            .unwrap_or_else(|| real::utimensat(dirfd, path, times, flags))
    }

    fn futimens (fd: c_int, times: *const timespec) -> c_int {
        times_of(fd, || from_timespec(times)).unwrap_or_else(|| real::futimens(fd, times))
    }
}

fn access_at(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    on_path(Class::Stat, dirfd, path, |process, path| {
        process.names().access(dirfd, path, mode, flags)
    })
}

fn chmod_at(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> Option<c_int> {
    direct::times_seen();
    on_path(Class::Attributes, dirfd, path, |process, path| {
        process.names().chmod(dirfd, path, mode, flags)
    })
}

fn chown_at(
    dirfd: c_int,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
    flags: c_int,
) -> Option<c_int> {
    direct::times_seen();
    on_path(Class::Attributes, dirfd, path, |process, path| {
        process.names().chown(dirfd, path, uid, gid, flags)
    })
}

/// Access time and modification time; `None` sets both to now.
type Times = Option<[timespec; 2]>;

fn times_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    times: impl FnOnce() -> Result<Times, Errno>,
) -> Option<c_int> {
    direct::times_seen();
    on_path_for(Class::Attributes, dirfd, path, |process: &Process, path| match times() {
        Ok(times) => process.names().utimens(dirfd, path, times, flags),
        // As in the kernel, which reads the times before it looks at the path.
        Err(err) => Served::Done(Err(err)),
    })
    .map(to_c)
}

fn times_of(fd: c_int, times: impl FnOnce() -> Result<Times, Errno>) -> Option<c_int> {
    direct::times_seen();
    on_fd(Class::Attributes, fd, |process| match times() {
        Ok(times) => process.names().futimens(fd, times),
        Err(err) => Served::Done(Err(err)),
    })
}

fn from_timespec(times: *const timespec) -> Result<Times, Errno> {
    if times.is_null() {
        return Ok(None);
    }
    memory::load(times.cast::<[timespec; 2]>()).map(Some)
}

fn from_timeval(times: *const timeval) -> Result<Times, Errno> {
    if times.is_null() {
        return Ok(None);
    }
    let times = memory::load(times.cast::<[timeval; 2]>())?;
    if times.iter().any(|time| !(0..1_000_000).contains(&time.tv_usec)) {
        return Err(Errno::INVAL);
    }
    Ok(Some(times.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 })))
}

fn from_utimbuf(times: *const libc::utimbuf) -> Result<Times, Errno> {
    if times.is_null() {
        return Ok(None);
    }
    let times = memory::load(times)?;
    Ok(Some([times.actime, times.modtime].map(|tv_sec| timespec { tv_sec, tv_nsec: 0 })))
}
