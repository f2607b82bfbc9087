//! Contents of files: reading, writing, sizes, durability.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{iovec, off_t, size_t, ssize_t};
use posix::{Errno, Served};

use super::{copying, sending};
use crate::memory::{self, TRANSFER_BYTES_MAX};
use crate::serve::{answer, answer_moving, on_fd, on_path, to_c};
use crate::start::process;
use crate::stats::Class;
use crate::{direct, guard, inherited, real};

/// Length in bytes from which a read is first compared with the file's size. Probing a buffer
/// touches its pages, including those that the read would not fill. Programs read small files by
/// 128 KiB (`cat`, `cp`).
const LARGE_BYTES: usize = 1 << 17;

/// Returns how much of a buffer a read can fill at most.
fn fillable(process: &posix::Process, fd: c_int, count: usize) -> usize {
    if count < LARGE_BYTES {
        return count;
    }
    match process.names().fstat(fd) {
        Served::Done(Ok(stat)) => count.min(stat.st_size.max(0) as usize),
        _ => count,
    }
}

/// Returns the result of a write with a bad buffer: the error it would give without any bytes, else
/// `err`.
#[cold]
fn refuse(without: Served<usize>, err: Errno) -> Served<usize> {
    match without {
        Served::Done(Ok(_)) => Served::Done(Err(err)),
        other => other,
    }
}

/// Returns the result of a read into a bad buffer. A directory gives its own error; at the end of a
/// file there is nothing to store, so the read succeeds.
#[cold]
fn refuse_read(
    process: &posix::Process,
    fd: c_int,
    buf: *mut c_void,
    offset: Option<off_t>,
    err: Errno,
) -> Served<usize> {
    let at = match offset {
        Some(at) => Served::Done(Ok(at)),
        None => process.contents().lseek(fd, 0, libc::SEEK_CUR),
    };
    let offset = match at {
        Served::Done(Ok(offset)) => offset,
        Served::Done(Err(err)) => return Served::Done(Err(err)),
        Served::Kernel => return Served::Kernel,
    };
    match process.contents().pread(fd, &mut [0], offset) {
        Served::Done(Ok(1..)) => Served::Done(Err(err)),
        Served::Done(Ok(_) | Err(Errno::ISDIR)) if !memory::may_be_mapped(buf) => {
            Served::Done(Err(err))
        }
        other => other,
    }
}

/// Unwraps a result, or returns its error from a closure that answers [`Served`].
macro_rules! served {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(err) => return posix::Served::Done(Err(err)),
        }
    };
}
pub(super) use served;

export! {
    fn read | __read (fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
        on_fd(Class::Read, fd, |process| {
            let count = fillable(process, fd, count);
            match memory::writable(buf, count) {
                Ok(buf) => process.contents().read(fd, buf),
                Err(err) => refuse_read(process, fd, buf, None, err),
            }
        })
        .unwrap_or_else(|| direct::read(fd, buf, count))
    }

    fn __read_chk (fd: c_int, buf: *mut c_void, count: size_t, room: size_t) -> ssize_t {
        if count > room {
            return real::__read_chk(fd, buf, count, room);
        }
        read(fd, buf, count)
    }

    fn pread | pread64 | __pread64 | __libc_pread (
        fd: c_int, buf: *mut c_void, count: size_t, offset: off_t
    ) -> ssize_t {
        on_fd(Class::Read, fd, |process| {
            let count = fillable(process, fd, count);
            match memory::writable(buf, count) {
                Ok(buf) => process.contents().pread(fd, buf, offset),
                Err(err) => refuse_read(process, fd, buf, Some(offset), err),
            }
        })
        .unwrap_or_else(|| direct::pread(fd, buf, count, offset))
    }

    fn __pread_chk | __pread64_chk (
        fd: c_int, buf: *mut c_void, count: size_t, offset: off_t, room: size_t
    ) -> ssize_t {
        if count > room {
            return real::__pread_chk(fd, buf, count, offset, room);
        }
        pread(fd, buf, count, offset)
    }

    fn readv (fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        on_fd(Class::Read, fd, |process| {
            process.contents().readv(fd, &mut served!(memory::targets(list, count)))
        })
        .unwrap_or_else(|| direct::readv(fd, list, count))
    }

    fn preadv | preadv64 (fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        on_fd(Class::Read, fd, |process| {
            if offset < 0 {
                return Served::Done(Err(Errno::INVAL));
            }
            process.contents().preadv2(fd, &mut served!(memory::targets(list, count)), offset, 0)
        })
        .unwrap_or_else(|| direct::preadv(fd, list, count, offset))
    }

    fn preadv2 | preadv64v2 (
        fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t {
        on_fd(Class::Read, fd, |process| {
            let bufs = &mut served!(memory::targets(list, count));
            process.contents().preadv2(fd, bufs, offset, flags)
        })
        .unwrap_or_else(|| direct::preadv2(fd, list, count, offset, flags))
    }

    fn write | __write (fd: c_int, data: *const c_void, count: size_t) -> ssize_t {
        on_fd(Class::Write, fd, |process| {
            match memory::readable(data, count) {
                Ok(data) => process.contents().write(fd, data),
                Err(err) => refuse(process.contents().write(fd, &[]), err),
            }
        })
        .unwrap_or_else(|| direct::write(fd, data, count))
    }

    fn pwrite | pwrite64 | __pwrite64 | __libc_pwrite (
        fd: c_int, data: *const c_void, count: size_t, offset: off_t
    ) -> ssize_t {
        on_fd(Class::Write, fd, |process| {
            match memory::readable(data, count) {
                Ok(data) => process.contents().pwrite(fd, data, offset),
                Err(err) => refuse(process.contents().pwrite(fd, &[], offset), err),
            }
        })
        .unwrap_or_else(|| direct::pwrite(fd, data, count, offset))
    }

    fn writev (fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        on_fd(Class::Write, fd, |process| {
            process.contents().writev(fd, &served!(memory::sources(list, count)))
        })
        .unwrap_or_else(|| direct::writev(fd, list, count))
    }

    fn pwritev | pwritev64 (
        fd: c_int, list: *const iovec, count: c_int, offset: off_t
    ) -> ssize_t {
        on_fd(Class::Write, fd, |process| {
            if offset < 0 {
                return Served::Done(Err(Errno::INVAL));
            }
            process.contents().pwritev2(fd, &served!(memory::sources(list, count)), offset, 0)
        })
        .unwrap_or_else(|| direct::pwritev(fd, list, count, offset))
    }

    fn pwritev2 | pwritev64v2 (
        fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t {
        on_fd(Class::Write, fd, |process| {
            process.contents().pwritev2(fd, &served!(memory::sources(list, count)), offset, flags)
        })
        .unwrap_or_else(|| direct::pwritev2(fd, list, count, offset, flags))
    }

    fn lseek | lseek64 | __lseek | llseek (fd: c_int, offset: off_t, whence: c_int) -> off_t {
        on_fd(Class::Seek, fd, |process| process.contents().lseek(fd, offset, whence))
            .unwrap_or_else(|| direct::lseek(fd, offset, whence))
    }

    fn truncate | truncate64 (path: *const c_char, len: off_t) -> c_int {
        on_path(Class::Size, libc::AT_FDCWD, path, |process, path| {
            process.contents().truncate(path, len)
        })
            .unwrap_or_else(|| direct::truncate(path, len))
    }

    fn ftruncate | ftruncate64 (fd: c_int, len: off_t) -> c_int {
        on_fd(Class::Size, fd, |process| process.contents().ftruncate(fd, len))
            .unwrap_or_else(|| direct::ftruncate(fd, len))
    }

    fn fallocate | fallocate64 (fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
        on_fd(Class::Size, fd, |process| process.contents().fallocate(fd, mode, offset, len))
            .unwrap_or_else(|| direct::fallocate(fd, mode, offset, len))
    }

    fn posix_fallocate | posix_fallocate64 (fd: c_int, offset: off_t, len: off_t) -> c_int {
        numbered(fd, Class::Size, |process| process.contents().posix_fallocate(fd, offset, len))
            .unwrap_or_else(|| real::posix_fallocate(fd, offset, len))
    }

    fn posix_fadvise | posix_fadvise64 (
        fd: c_int, offset: off_t, len: off_t, advice: c_int
    ) -> c_int {
        numbered(fd, Class::Other, |process| {
            process.contents().posix_fadvise(fd, offset, len, advice)
        })
            .unwrap_or_else(|| real::posix_fadvise(fd, offset, len, advice))
    }

    fn readahead (fd: c_int, offset: off_t, count: size_t) -> ssize_t {
        on_fd(Class::Other, fd, |process| process.contents().readahead(fd, offset, count))
            .map_or_else(|| real::readahead(fd, offset, count), |result| result as ssize_t)
    }

    fn fsync (fd: c_int) -> c_int {
        on_fd(Class::Sync, fd, |process| process.contents().fsync(fd))
            .unwrap_or_else(|| direct::fsync(fd))
    }

    fn fdatasync (fd: c_int) -> c_int {
        on_fd(Class::Sync, fd, |process| process.contents().fdatasync(fd))
            .unwrap_or_else(|| direct::fdatasync(fd))
    }

    fn syncfs (fd: c_int) -> c_int {
        on_fd(Class::Sync, fd, |process| process.contents().syncfs(fd))
            .unwrap_or_else(|| real::syncfs(fd))
    }

    fn sync () -> () {
        if let Some(process) = process() {
            guard::run(|| process.contents().sync());
        }
        real::sync();
    }

    fn sync_file_range (fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int {
        on_fd(Class::Sync, fd, |process| process.contents().sync_file_range(fd, offset, len, flags))
            .unwrap_or_else(|| real::sync_file_range(fd, offset, len, flags))
    }

    fn copy_file_range (
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t {
        let by_kernel =
            || direct::copy_file_range(from, from_offset, to, to_offset, len, flags);
        let Some(process) = process().filter(|process| any_is_served(process, &[from, to])) else {
            return by_kernel();
        };
        let moved = |copied: &usize| *copied as u64;
        let copied = answer_moving(process, Class::Copy, &[from, to], moved, |process| {
            let mut from_at = served!(memory::load_optional(from_offset));
            let mut to_at = served!(memory::load_optional(to_offset));
            let len = len.min(TRANSFER_BYTES_MAX);
            let contents = process.contents();
            let copied = contents
                .copy_file_range(from, from_at.as_mut(), to, to_at.as_mut(), len, flags);
            // As the kernel does: if the new offsets cannot be stored, the bytes have been copied
            // all the same.
            if matches!(copied, Served::Done(Ok(1..))) {
                served!(store_offset(from_offset, from_at));
                served!(store_offset(to_offset, to_at));
            }
            copied
        });
        let after_update = || {
            copying::update_kernel_size(from);
            by_kernel()
        };
        copied.map_or_else(after_update, to_c)
    }

    fn sendfile | sendfile64 (
        out: c_int, from: c_int, offset: *mut off_t, count: size_t
    ) -> ssize_t {
        let by_kernel = || direct::sendfile(out, from, offset, count);
        let Some(process) = process().filter(|process| any_is_served(process, &[out, from])) else {
            return by_kernel();
        };
        let moved = |sent: &usize| *sent as u64;
        let sent = answer_moving(process, Class::Copy, &[out, from], moved, |process| {
            let mut at = served!(memory::load_optional(offset));
            let count = count.min(TRANSFER_BYTES_MAX);
            let sent = if process.table().owns(out) {
                process.contents().sendfile(out, from, at.as_mut(), count)
            } else {
                sending::send(process, out, from, at.as_mut(), count)
            };
            if let Served::Done(Ok(_)) = sent {
                served!(store_offset(offset, at));
            }
            sent
        });
        let after_update = || {
            copying::update_kernel_size(from);
            by_kernel()
        };
        sent.map_or_else(after_update, to_c)
    }
}

/// Checks whether one of these descriptors is served, or is from now on.
fn any_is_served(process: &posix::Process, fds: &[c_int]) -> bool {
    let is_served =
        |fd| process.table().owns(fd) || inherited::is_served_now(process, Class::Copy, fd);
    // Asks for each descriptor, even after one that is served: the question is what starts serving
    // it.
    fds.iter().fold(false, |any, &fd| any | is_served(fd))
}

/// Stores where a copy that began at an offset of its own has ended.
fn store_offset(to: *mut off_t, at: Option<off_t>) -> Result<(), Errno> {
    at.map_or(Ok(()), |at| memory::store(to, at))
}

/// Answers a call for the functions that return the error number.
fn numbered(
    fd: c_int,
    class: Class,
    f: impl FnOnce(&posix::Process) -> Served<()>,
) -> Option<c_int> {
    let process = process().filter(|process| process.table().owns(fd) && !guard::is_inside())?;
    let result = answer(process, class, &[fd], f)?;
    Some(result.err().map_or(0, Errno::raw_os_error))
}
