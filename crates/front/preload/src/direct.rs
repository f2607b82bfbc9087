//! Files of kernel DAX and tmpfs file systems (Chell-Direct): the functions that the exported ones
//! call for descriptors of the kernel.
//!
//! Each function has the name of libc's. It does the call by a copy if [`::direct`] can; else it
//! reports to that crate what happens to descriptors, names, times and locks. `KEEPSTONE_DIRECT`
//! names the directories, separated by colons. Without them, each function costs one load more
//! than libc's.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use ::direct::{Answer, Config, Direct};
use libc::{iovec, mode_t, off_t, size_t, ssize_t};

use crate::serve::{Returned, to_c};
use crate::start::debug;
use crate::stats::{self, Class, Reason};
use crate::{environment, guard, inherited, real};

static DIRECT: AtomicPtr<Direct> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the state that serves such files, if any are to be served.
#[inline]
pub fn direct() -> Option<&'static Direct> {
    // SAFETY: null, or a box that is never dropped.
    unsafe { DIRECT.load(Ordering::Acquire).as_ref() }
}

/// Returns the state that serves such files, if one of the descriptors may be of such a file.
#[inline]
fn watching(fds: &[c_int]) -> Option<&'static Direct> {
    direct().filter(|direct| fds.iter().any(|&fd| direct.watches(fd)))
}

/// Checks whether a descriptor may be of such a file.
#[inline]
pub fn watches(fd: c_int) -> bool {
    watching(&[fd]).is_some()
}

/// Leaves such files to libc.
pub fn serve_no_more() {
    DIRECT.store(std::ptr::null_mut(), Ordering::Release);
}

unsafe extern "C" fn durable(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { pmem::copy_durably(to.cast(), from.cast(), len) };
    to
}

/// Reads a number from the environment, for tests.
fn number(name: &std::ffi::CStr) -> Option<u32> {
    environment::variable(name)?.to_str().ok()?.parse().ok()
}

/// Begins to serve files below the directories in the environment.
pub fn start() {
    let Some(dirs) = environment::variable(c"KEEPSTONE_DIRECT") else { return };
    let dirs = dirs.to_bytes().split(|&byte| byte == b':').filter(|dir| !dir.is_empty());
    let mut config = Config::new(dirs.map(<[u8]>::to_vec).collect(), durable);
    if config.dirs.is_empty() {
        return;
    }
    // Tests set these bounds lower: they do not test when a mapping pays.
    if let Some(calls) = number(c"KEEPSTONE_DIRECT_AFTER") {
        (config.look_after, config.map_after) = (calls, calls.max(1));
    }
    if let Some(chunks) = number(c"KEEPSTONE_DIRECT_CHUNKS") {
        config.chunks_max = chunks as usize;
    }
    let lags = environment::is_set(c"KEEPSTONE_DIRECT_LAZY");
    config.times_ns = if lags { 1_000_000_000 } else { 0 };
    match Direct::new(config) {
        Ok(direct) => DIRECT.store(Box::into_raw(Box::new(direct)), Ordering::Release),
        Err(err) => debug(format_args!("no direct files: {err}")),
    }
}

/// Stops looking at descriptors. The library's own calls do not count.
pub fn stop() {
    tell(Direct::stop);
}

/// Does a descriptor's call by a copy, or by `by_kernel` if a copy cannot do it.
#[inline]
fn serve<T: Returned>(
    class: Class,
    fd: c_int,
    f: impl FnOnce(&Direct) -> Answer<T>,
    by_kernel: impl FnOnce() -> T::C,
) -> T::C {
    let by_kernel = || {
        let result = by_kernel();
        if class.moves_bytes() {
            let moved = T::number(&result);
            inherited::moved(moved);
            stats::moved_by_kernel(class, &[fd], moved);
        }
        result
    };
    let Some(direct) = watching(&[fd]).filter(|_| !guard::is_inside()) else {
        return by_kernel();
    };
    let begun = stats::begin();
    match guard::run(|| f(direct)) {
        Some(Answer::Copied(value)) => {
            stats::served(class, begun, if class.moves_bytes() { value.moved() } else { 0 });
            value.to_c()
        }
        Some(Answer::Asked(result)) => {
            let moved = result.as_ref().map_or(0, Returned::moved);
            let bytes = if class.moves_bytes() { moved } else { 0 };
            stats::made_by_kernel(class, fd, Reason::Direct, bytes);
            to_c(result)
        }
        Some(Answer::Kernel) | None => by_kernel(),
    }
}

/// Reports an event, unless the library's own code caused it.
#[inline]
pub fn tell(f: impl FnOnce(&Direct)) {
    if let Some(direct) = direct().filter(|_| !guard::is_inside()) {
        guard::run(|| f(direct));
    }
}

/// Reports an event of a descriptor.
#[inline]
fn tell_of(fd: c_int, f: impl FnOnce(&Direct)) {
    if watching(&[fd]).is_some() {
        tell(f);
    }
}

/// Reports an event of a descriptor after a call on it has succeeded.
fn then(result: c_int, fd: c_int, f: impl FnOnce(&Direct)) -> c_int {
    if result >= 0 {
        tell_of(fd, f);
    }
    result
}

/// Reports that the program has read times or changed attributes.
#[inline]
pub fn times_seen() {
    if let Some(direct) = direct() {
        direct.times_seen();
    }
}

/// Reports that names are about to change.
pub fn names_change() {
    tell(Direct::names_change);
}

/// Leaves a descriptor to code that the library does not see.
pub fn forget(fd: c_int) {
    tell_of(fd, |direct| direct.forget(fd));
}

/// Makes a call that uses the kernel's offsets of descriptors.
///
/// Signals are held back meanwhile, as other threads may wait for these offsets.
pub fn with_offsets<T>(fds: [c_int; 2], call: impl FnOnce() -> T) -> T {
    let Some(direct) = watching(&fds) else { return call() };
    let _inside = guard::Inside::enter();
    let lent = direct.lend(fds);
    let result = call();
    drop(lent);
    result
}

/// SAFETY of what follows: the functions stand for libc's, whose manual pages list the obligations
/// of callers; buffers are the program's as `Direct` demands, and `signals` asks `recover`.
macro_rules! stands_for_libc {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As libc's.
            #[inline]
            #[allow(clippy::undocumented_unsafe_blocks)]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: see above.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
        )*
    };
}

stands_for_libc! {
    fn read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
        serve(Class::Read, fd, |direct| direct.read(fd, buf.cast(), count), || {
            real::read(fd, buf, count)
        })
    }

    fn pread(fd: c_int, buf: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
        serve(Class::Read, fd, |direct| direct.pread(fd, buf.cast(), count, offset), || {
            real::pread(fd, buf, count, offset)
        })
    }

    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        serve(Class::Read, fd, |direct| direct.readv(fd, list, count, None), || {
            real::readv(fd, list, count)
        })
    }

    fn preadv(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        serve(Class::Read, fd, |direct| direct.readv(fd, list, count, Some(offset)), || {
            real::preadv(fd, list, count, offset)
        })
    }

    fn preadv2(
        fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t {
        match (flags, offset) {
            (0, -1) => readv(fd, list, count),
            (0, _) => preadv(fd, list, count, offset),
            _ => with_offsets([fd, -1], || real::preadv2(fd, list, count, offset, flags)),
        }
    }

    fn write(fd: c_int, data: *const c_void, count: size_t) -> ssize_t {
        serve(Class::Write, fd, |direct| direct.write(fd, data.cast(), count), || {
            real::write(fd, data, count)
        })
    }

    fn pwrite(fd: c_int, data: *const c_void, count: size_t, offset: off_t) -> ssize_t {
        serve(Class::Write, fd, |direct| direct.pwrite(fd, data.cast(), count, offset), || {
            real::pwrite(fd, data, count, offset)
        })
    }

    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        serve(Class::Write, fd, |direct| direct.writev(fd, list, count, None), || {
            real::writev(fd, list, count)
        })
    }

    fn pwritev(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        serve(Class::Write, fd, |direct| direct.writev(fd, list, count, Some(offset)), || {
            real::pwritev(fd, list, count, offset)
        })
    }

    fn pwritev2(
        fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
    ) -> ssize_t {
        match (flags, offset) {
            (0, -1) => writev(fd, list, count),
            (0, _) => pwritev(fd, list, count, offset),
            _ => with_offsets([fd, -1], || real::pwritev2(fd, list, count, offset, flags)),
        }
    }

    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        serve(Class::Seek, fd, |direct| direct.lseek(fd, offset, whence), || {
            real::lseek(fd, offset, whence)
        })
    }

    fn fsync(fd: c_int) -> c_int {
        real::fsync(fd)
    }

    fn fdatasync(fd: c_int) -> c_int {
        real::fdatasync(fd)
    }

    fn truncate(path: *const c_char, len: off_t) -> c_int {
        let result = real::truncate(path, len);
        if result == 0 {
            tell(|direct| {
                if let Ok(stat) = rustix::fs::stat(std::ffi::CStr::from_ptr(path)) {
                    direct.truncated(&stat);
                }
            });
        }
        result
    }

    fn ftruncate(fd: c_int, len: off_t) -> c_int {
        then(real::ftruncate(fd, len), fd, |direct| direct.resized(fd, len as u64))
    }

    fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
        then(real::fallocate(fd, mode, offset, len), fd, |direct| direct.punched(fd))
    }

    fn copy_file_range(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t {
        with_offsets([from, to], || {
            let copied = real::copy_file_range(from, from_offset, to, to_offset, len, flags);
            stats::moved_by_kernel(Class::Copy, &[from, to], copied as i64);
            copied
        })
    }

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // The other side may be a socket, which the call waits for with signals let in: so the
        // offset is not lent.
        forget_unless_null(from, offset);
        forget(out);
        let sent = real::sendfile(out, from, offset, count);
        stats::moved_by_kernel(Class::Copy, &[from, out], sent as i64);
        sent
    }

    fn splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t {
        forget_unless_null(from, from_offset);
        forget_unless_null(to, to_offset);
        let moved = real::splice(from, from_offset, to, to_offset, len, flags);
        stats::moved_by_kernel(Class::Copy, &[from, to], moved as i64);
        moved
    }

    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        stats::opened_by_kernel(opened(real::open(path, flags, mode), flags))
    }

    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        stats::opened_by_kernel(opened(real::openat(dirfd, path, flags, mode), flags))
    }

    fn close(fd: c_int) -> c_int {
        tell_of(fd, |direct| direct.closing(fd));
        stats::unmark(fd, fd);
        real::close(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags as c_uint & libc::CLOSE_RANGE_UNSHARE != 0 {
            stop();
        } else if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 && first <= last {
            tell(|direct| direct.closing_range(first, last));
        }
        if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
            stats::unmark(first as c_int, last.min(c_int::MAX as c_uint) as c_int);
        }
        real::close_range(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        tell(|direct| direct.closing_range(first.max(0) as u32, u32::MAX));
        stats::unmark(first, c_int::MAX);
        real::closefrom(first);
    }

    fn dup(fd: c_int) -> c_int {
        let new = stats::duplicated(fd, real::dup(fd));
        then(new, fd, |direct| direct.duplicated(fd, new))
    }

    fn dup2(old: c_int, new: c_int) -> c_int {
        duplicated(old, stats::duplicated(old, real::dup2(old, new)))
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        duplicated(old, stats::duplicated(old, real::dup3(old, new, flags)))
    }

    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        if watching(&[fd]).is_none() {
            if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
                tell(Direct::record_locked);
            }
            let result = real::fcntl(fd, command, argument);
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                stats::duplicated(fd, result);
            }
            return result;
        }
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let new = real::fcntl(fd, command, argument);
                then(new, fd, |direct| direct.duplicated(fd, new))
            }
            libc::F_SETFL => {
                let result = real::fcntl(fd, command, argument);
                then(result, fd, |direct| direct.flags_changed(fd, argument as c_int))
            }
            libc::F_SETLK | libc::F_SETLKW => {
                tell(Direct::record_locked);
                relative_lock(fd, command, argument)
            }
            libc::F_GETLK => relative_lock(fd, command, argument),
            libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK | libc::F_SETLEASE => {
                tell_of(fd, |direct| direct.locked(fd));
                relative_lock(fd, command, argument)
            }
            _ => real::fcntl(fd, command, argument),
        }
    }

    fn flock(fd: c_int, operation: c_int) -> c_int {
        tell_of(fd, |direct| direct.locked(fd));
        real::flock(fd, operation)
    }

    fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
        tell(Direct::record_locked);
        offset_known(fd);
        real::lockf(fd, command, len)
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
        with_offsets([fd, -1], || real::ioctl(fd, request, argument))
    }
}

/// Makes a lock of records that counts from the offset, if it is of that kind. It may wait, so no
/// offset is lent.
unsafe fn relative_lock(fd: c_int, command: c_int, argument: c_long) -> c_int {
    offset_known(fd);
    // SAFETY: the caller's.
    unsafe { real::fcntl(fd, command, argument) }
}

/// Stores the offset of a descriptor in the kernel.
pub fn offset_known(fd: c_int) {
    with_offsets([fd, -1], || ());
}

/// Leaves a descriptor to the kernel if a call moves its offset.
fn forget_unless_null(fd: c_int, offset: *mut off_t) {
    if offset.is_null() {
        forget(fd);
    }
}

fn opened(fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 {
        tell(|direct| direct.opened(fd, flags));
    }
    fd
}

/// Notes that libc has opened a stream. Its descriptor is of interest if the stream's calls come to
/// the library.
pub fn stream_opened(fd: c_int, flags: c_int, is_seen: impl FnOnce() -> bool) {
    if direct().is_some() && is_seen() {
        tell(|direct| direct.opened(fd, flags));
    }
}

fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 {
        tell(|direct| direct.duplicated(old, new));
    }
    new
}
