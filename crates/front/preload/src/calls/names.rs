//! Names: creating, removing, renaming, links, the working directory.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};

use libc::{AT_FDCWD, AT_REMOVEDIR, dev_t, mode_t, size_t, ssize_t};
use posix::{Errno, Process, Served, Unaligned};

use super::content::served;
use crate::serve::{on_fd, on_path, on_paths, set_errno};
use crate::start::process;
use crate::stats::Class;
use crate::{cwd, direct, guard, memory, real};

fn unlink_at(dirfd: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    direct::names_change();
    on_path(Class::Names, dirfd, path, |process, path| process.names().unlink(dirfd, path, flags))
}

fn make_directory(dirfd: c_int, path: *const c_char, mode: mode_t) -> Option<c_int> {
    on_path(Class::Names, dirfd, path, |process, path| process.names().mkdir(dirfd, path, mode))
}

fn make_node(dirfd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> Option<c_int> {
    on_path(Class::Names, dirfd, path, |process, path| {
        process.names().mknod(dirfd, path, mode, dev)
    })
}

fn make_link(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_int,
) -> Option<c_int> {
    on_paths(Class::Names, from, to, |process, from_path, to_path| {
        process.names().link(from.0, from_path, to.0, to_path, flags)
    })
}

fn make_symlink(target: *const c_char, dirfd: c_int, path: *const c_char) -> Option<c_int> {
    on_path(Class::Names, dirfd, path, |process, path| {
        process.names().symlink(served!(memory::string(target)), dirfd, path)
    })
}

fn rename_at(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
) -> Option<c_int> {
    direct::names_change();
    on_paths(Class::Names, from, to, |process, from_path, to_path| {
        process.names().rename(from.0, from_path, to.0, to_path, flags)
    })
}

fn read_link(dirfd: c_int, path: *const c_char, buf: *mut c_char, size: size_t) -> Option<ssize_t> {
    on_path(Class::Names, dirfd, path, |process, path| {
        // The kernel's size is an `int`.
        if size == 0 || size > c_int::MAX as usize {
            return Served::Done(Err(Errno::INVAL));
        }
        let size = size.min(libc::PATH_MAX as usize);
        memory::fill(buf.cast(), size, |buf| process.names().readlink(dirfd, path, buf))
    })
}

/// Checks whether a path leads to the working directory, as the process layer knows it.
fn leads_here(process: &Process, path: &CStr) -> bool {
    let inode = |path: &[u8]| {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut st: Unaligned<libc::stat> = unsafe { std::mem::zeroed() };
        let found = guard::run(|| process.names().stat(AT_FDCWD, path, 0, || Ok(&mut st)));
        matches!(found, Some(Served::Done(Ok(())))).then(|| ({ st.0.st_dev }, { st.0.st_ino }))
    };
    inode(b".").is_some_and(|here| inode(path.to_bytes()) == Some(here))
}

export! {
    fn link (from: *const c_char, to: *const c_char) -> c_int {
        make_link((AT_FDCWD, from), (AT_FDCWD, to), 0).unwrap_or_else(|| real::link(from, to))
    }

    fn linkat (
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int
    ) -> c_int {
        make_link((from_dir, from), (to_dir, to), flags)
            .unwrap_or_else(|| real::linkat(from_dir, from, to_dir, to, flags))
    }

    fn symlink (target: *const c_char, path: *const c_char) -> c_int {
        make_symlink(target, AT_FDCWD, path).unwrap_or_else(|| real::symlink(target, path))
    }

    fn symlinkat (target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        make_symlink(target, dirfd, path)
            .unwrap_or_else(|| real::symlinkat(target, dirfd, path))
    }

    fn unlink (path: *const c_char) -> c_int {
        unlink_at(AT_FDCWD, path, 0).unwrap_or_else(|| real::unlink(path))
    }

    fn unlinkat (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        unlink_at(dirfd, path, flags).unwrap_or_else(|| real::unlinkat(dirfd, path, flags))
    }

    fn rmdir (path: *const c_char) -> c_int {
        unlink_at(AT_FDCWD, path, AT_REMOVEDIR).unwrap_or_else(|| real::rmdir(path))
    }

    fn remove (path: *const c_char) -> c_int {
        match unlink_at(AT_FDCWD, path, 0) {
            Some(-1) if *libc::__errno_location() == libc::EISDIR => rmdir(path),
            Some(result) => result,
            None => real::remove(path),
        }
    }

    fn rename (from: *const c_char, to: *const c_char) -> c_int {
        rename_at((AT_FDCWD, from), (AT_FDCWD, to), 0).unwrap_or_else(|| real::rename(from, to))
    }

    fn renameat (
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char
    ) -> c_int {
        rename_at((from_dir, from), (to_dir, to), 0)
            .unwrap_or_else(|| real::renameat(from_dir, from, to_dir, to))
    }

    fn renameat2 (
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint
    ) -> c_int {
        rename_at((from_dir, from), (to_dir, to), flags)
            .unwrap_or_else(|| real::renameat2(from_dir, from, to_dir, to, flags))
    }

    fn mkdir (path: *const c_char, mode: mode_t) -> c_int {
        make_directory(AT_FDCWD, path, mode).unwrap_or_else(|| real::mkdir(path, mode))
    }

    fn mkdirat (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        make_directory(dirfd, path, mode).unwrap_or_else(|| real::mkdirat(dirfd, path, mode))
    }

    fn mknod (path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
        make_node(AT_FDCWD, path, mode, dev).unwrap_or_else(|| real::mknod(path, mode, dev))
    }

    fn mknodat (dirfd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
        make_node(dirfd, path, mode, dev)
            .unwrap_or_else(|| real::mknodat(dirfd, path, mode, dev))
    }

    fn __xmknod (
        version: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t
    ) -> c_int {
        make_node(AT_FDCWD, path, mode, *dev)
            .unwrap_or_else(|| real::__xmknod(version, path, mode, dev))
    }

    fn __xmknodat (
        version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t
    ) -> c_int {
        make_node(dirfd, path, mode, *dev)
            .unwrap_or_else(|| real::__xmknodat(version, dirfd, path, mode, dev))
    }

    fn mkfifo (path: *const c_char, mode: mode_t) -> c_int {
        make_node(AT_FDCWD, path, mode & !libc::S_IFMT | libc::S_IFIFO, 0)
            .unwrap_or_else(|| real::mkfifo(path, mode))
    }

    fn mkfifoat (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        make_node(dirfd, path, mode & !libc::S_IFMT | libc::S_IFIFO, 0)
            .unwrap_or_else(|| real::mkfifoat(dirfd, path, mode))
    }

    fn readlink (path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t {
        read_link(AT_FDCWD, path, buf, size).unwrap_or_else(|| real::readlink(path, buf, size))
    }

    fn readlinkat (
        dirfd: c_int, path: *const c_char, buf: *mut c_char, size: size_t
    ) -> ssize_t {
        read_link(dirfd, path, buf, size)
            .unwrap_or_else(|| real::readlinkat(dirfd, path, buf, size))
    }

    fn __readlink_chk (
        path: *const c_char, buf: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t {
        if size > room {
            return real::__readlink_chk(path, buf, size, room);
        }
        readlink(path, buf, size)
    }

    fn __readlinkat_chk (
        dirfd: c_int, path: *const c_char, buf: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t {
        if size > room {
            return real::__readlinkat_chk(dirfd, path, buf, size, room);
        }
        readlinkat(dirfd, path, buf, size)
    }

    fn chdir (path: *const c_char) -> c_int {
        on_path(Class::Names, AT_FDCWD, path, |process, path| process.names().chdir(path))
            .unwrap_or_else(|| cwd::changed_by_kernel(process(), real::chdir(path)))
    }

    fn getcwd (buf: *mut c_char, size: size_t) -> *mut c_char {
        let known = real::getcwd(buf, size);
        let Some(process) = process().filter(|_| !guard::is_inside()) else { return known };
        // This process or another may have renamed or removed it by direct access, unknown to the
        // kernel.
        if !known.is_null() && leads_here(process, CStr::from_ptr(known)) {
            return known;
        }
        let mut path = [0; libc::PATH_MAX as usize];
        let len = match guard::run(|| process.names().getcwd(&mut path)) {
            None | Some(Served::Kernel) => return known,
            Some(Served::Done(found)) => found,
        };
        let path = len.map(|len| &path[..=len]);
        if buf.is_null() {
            libc::free(known.cast());
        }
        let (room, asked) = match path {
            Ok(path) if buf.is_null() && size == 0 => (libc::malloc(path.len()), path.len()),
            Ok(_) if buf.is_null() => (libc::malloc(size), size),
            _ => (buf.cast(), size),
        };
        let copied = path.and_then(|path| {
            if room.is_null() {
                return Err(Errno::NOMEM);
            }
            if asked < path.len() {
                return Err(if asked == 0 { Errno::INVAL } else { Errno::RANGE });
            }
            memory::writable(room, path.len())?
                .get_mut(..path.len())
                .map(|room| room.copy_from_slice(path))
                .ok_or(Errno::FAULT)
        });
        match copied {
            Ok(()) => room.cast(),
            Err(err) => {
                if buf.is_null() {
                    libc::free(room);
                }
                set_errno(err);
                std::ptr::null_mut()
            }
        }
    }

    fn __getcwd_chk (buf: *mut c_char, size: size_t, room: size_t) -> *mut c_char {
        // libc ends the program if the buffer is smaller than the size passed.
        if size > room { real::__getcwd_chk(buf, size, room) } else { getcwd(buf, size) }
    }

    fn getwd (buf: *mut c_char) -> *mut c_char {
        getcwd(buf, libc::PATH_MAX as usize)
    }

    fn fchdir (fd: c_int) -> c_int {
        on_fd(Class::Names, fd, |process| process.names().fchdir(fd))
            .unwrap_or_else(|| cwd::changed_by_kernel(process(), real::fchdir(fd)))
    }
}
