//! Extended attributes.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, size_t, ssize_t};
use posix::Errno;

use super::content::served;
use crate::memory::{fill, readable_whole, string};
use crate::real;
use crate::serve::{on_fd, on_path};
use crate::stats::Class;

/// Returns how much of a buffer a call fills at most.
fn fillable(size: size_t) -> usize {
    size.min(vfs::Limits::MAX.xattr)
}

/// Reads a name. One that is too long gives `ERANGE`.
fn name_at<'a>(name: *const c_char) -> Result<&'a [u8], Errno> {
    string(name).map_err(|err| if err == Errno::NAMETOOLONG { Errno::RANGE } else { err })
}

/// Reads a whole value to set.
fn value_at<'a>(value: *const c_void, size: size_t) -> Result<&'a [u8], Errno> {
    if size > vfs::Limits::MAX.xattr { Err(Errno::TOOBIG) } else { readable_whole(value, size) }
}

fn get(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        let name = served!(name_at(name));
        fill(value, fillable(size), |value| process.names().getxattr(path, name, value, flags))
    })
}

fn set(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    how: c_int,
    flags: c_int,
) -> Option<c_int> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        let (name, value) = (served!(name_at(name)), served!(value_at(value, size)));
        process.names().setxattr(path, name, value, how, flags)
    })
}

fn list(path: *const c_char, names: *mut c_char, size: size_t, flags: c_int) -> Option<ssize_t> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        fill(names.cast(), fillable(size), |names| process.names().listxattr(path, names, flags))
    })
}

fn remove(path: *const c_char, name: *const c_char, flags: c_int) -> Option<c_int> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        process.names().removexattr(path, served!(name_at(name)), flags)
    })
}

export! {
    fn getxattr (
        path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t {
        get(path, name, value, size, 0).unwrap_or_else(|| real::getxattr(path, name, value, size))
    }

    fn lgetxattr (
        path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t {
        get(path, name, value, size, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::lgetxattr(path, name, value, size))
    }

    fn fgetxattr (
        fd: c_int, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t {
        on_fd(Class::Xattr, fd, |process| {
            let name = served!(name_at(name));
            fill(value, fillable(size), |value| process.names().fgetxattr(fd, name, value))
        })
        .unwrap_or_else(|| real::fgetxattr(fd, name, value, size))
    }

    fn setxattr (
        path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, how: c_int
    ) -> c_int {
        set(path, name, value, size, how, 0)
            .unwrap_or_else(|| real::setxattr(path, name, value, size, how))
    }

    fn lsetxattr (
        path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, how: c_int
    ) -> c_int {
        set(path, name, value, size, how, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::lsetxattr(path, name, value, size, how))
    }

    fn fsetxattr (
        fd: c_int, name: *const c_char, value: *const c_void, size: size_t, how: c_int
    ) -> c_int {
        on_fd(Class::Xattr, fd, |process| {
            let (name, value) = (served!(name_at(name)), served!(value_at(value, size)));
            process.names().fsetxattr(fd, name, value, how)
        })
        .unwrap_or_else(|| real::fsetxattr(fd, name, value, size, how))
    }

    fn listxattr (path: *const c_char, names: *mut c_char, size: size_t) -> ssize_t {
        list(path, names, size, 0).unwrap_or_else(|| real::listxattr(path, names, size))
    }

    fn llistxattr (path: *const c_char, names: *mut c_char, size: size_t) -> ssize_t {
        list(path, names, size, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::llistxattr(path, names, size))
    }

    fn flistxattr (fd: c_int, names: *mut c_char, size: size_t) -> ssize_t {
        on_fd(Class::Xattr, fd, |process| {
            fill(names.cast(), fillable(size), |names| process.names().flistxattr(fd, names))
        })
        .unwrap_or_else(|| real::flistxattr(fd, names, size))
    }

    fn removexattr (path: *const c_char, name: *const c_char) -> c_int {
        remove(path, name, 0).unwrap_or_else(|| real::removexattr(path, name))
    }

    fn lremovexattr (path: *const c_char, name: *const c_char) -> c_int {
        remove(path, name, AT_SYMLINK_NOFOLLOW)
            .unwrap_or_else(|| real::lremovexattr(path, name))
    }

    fn fremovexattr (fd: c_int, name: *const c_char) -> c_int {
        on_fd(Class::Xattr, fd, |process| process.names().fremovexattr(fd, served!(name_at(name))))
            .unwrap_or_else(|| real::fremovexattr(fd, name))
    }
}
