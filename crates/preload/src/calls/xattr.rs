//! Extended attributes.

use std::ffi::{c_char, c_int, c_void};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, size_t, ssize_t};

use super::content::served;
use crate::memory::{readable, string, writable};
use crate::real;
use crate::serve::{on_fd, on_path};
use crate::stats::Class;

/// Room for a value. What the kernel could not fill either is not touched.
fn room<'a>(value: *mut c_void, size: size_t) -> Result<&'a mut [u8], posix::Errno> {
    writable(value, size.min(vfs::XATTR_SIZE_MAX))
}

fn get(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        process.getxattr(path, served!(string(name)), served!(room(value, size)), flags)
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
        process.setxattr(path, served!(string(name)), served!(readable(value, size)), how, flags)
    })
}

fn list(path: *const c_char, names: *mut c_char, size: size_t, flags: c_int) -> Option<ssize_t> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        process.listxattr(path, served!(room(names.cast(), size)), flags)
    })
}

fn remove(path: *const c_char, name: *const c_char, flags: c_int) -> Option<c_int> {
    on_path(Class::Xattr, AT_FDCWD, path, |process, path| {
        process.removexattr(path, served!(string(name)), flags)
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
            process.fgetxattr(fd, served!(string(name)), served!(room(value, size)))
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
            process.fsetxattr(fd, served!(string(name)), served!(readable(value, size)), how)
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
            process.flistxattr(fd, served!(room(names.cast(), size)))
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
        on_fd(Class::Xattr, fd, |process| process.fremovexattr(fd, served!(string(name))))
            .unwrap_or_else(|| real::fremovexattr(fd, name))
    }
}
