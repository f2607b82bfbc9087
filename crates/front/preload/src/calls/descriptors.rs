//! Descriptors: opening, closing, duplicates, flags, locks.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong};

use libc::{AT_FDCWD, mode_t, off_t, size_t};
use posix::{Errno, Process, Served};

use super::copying::by_kernel;
use crate::serve::{
    answer, before_fd, fail, fd_freed, give_to_kernel, on_fd, on_path, set_errno, to_c,
};
use crate::start::{forget_table, is_hidden_in_table, opens_in_user_space, process, table};
use crate::stats::Class;
use crate::{cancel, direct, guard, memory, real, streams};

/// Opens in user space, unless descriptors are to be the kernel's from the start.
pub(super) fn open_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> Option<c_int> {
    let opened = on_path(Class::Open, dirfd, path, |process, path| {
        if opens_in_user_space() {
            process.contents().open(dirfd, path, flags, mode)
        } else {
            Served::Kernel
        }
    });
    opened.map(standard_stream)
}

export! {
    fn open | open64 | __open | __open64 (
        path: *const c_char, flags: c_int, mode: mode_t
    ) -> c_int {
        open_at(AT_FDCWD, path, flags, mode).unwrap_or_else(|| {
            before_fd();
            direct::open(path, flags, mode)
        })
    }

    fn __open_2 | __open64_2 (path: *const c_char, flags: c_int) -> c_int {
        open(path, flags, 0)
    }

    fn openat | openat64 (
        dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t
    ) -> c_int {
        open_at(dirfd, path, flags, mode).unwrap_or_else(|| {
            before_fd();
            direct::openat(dirfd, path, flags, mode)
        })
    }

    fn __openat_2 | __openat64_2 (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        openat(dirfd, path, flags, 0)
    }

    fn creat | creat64 (path: *const c_char, mode: mode_t) -> c_int {
        open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }

    fn close | __close (fd: c_int) -> c_int {
        on_fd(Class::Close, fd, |process| process.descriptors().close(fd)).unwrap_or_else(|| {
            if is_hidden_in_table(fd) {
                return fail::<c_int>(Errno::BADF);
            }
            let closed = direct::close(fd);
            fd_freed(fd);
            closed
        })
    }

    fn close_range (first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let closed = process().and_then(|process| {
            answer(process, Class::Close, &[], |process| {
                process.descriptors().close_range(first, last, flags as u32)
            })
        });
        closed.or_else(|| close_range_in_table(first, last, flags)).map_or_else(
            || {
                let closed = direct::close_range(first, last, flags);
                fd_freed(first as c_int);
                closed
            },
            to_c,
        )
    }

    fn closefrom (first: c_int) -> () {
        let first_open = first.max(0) as u32;
        let closed = process().and_then(|process| {
            answer(process, Class::Close, &[], |process| {
                process.descriptors().close_range(first_open, u32::MAX, 0)
            })
        });
        let closed = closed.or_else(|| close_range_in_table(first_open, u32::MAX, 0));
        if closed.is_none() {
            direct::closefrom(first);
            fd_freed(first.max(0));
        }
    }

    fn dup (fd: c_int) -> c_int {
        let duplicate = on_fd(Class::Descriptor, fd, |process| process.descriptors().dup(fd));
        duplicate.map(standard_stream).unwrap_or_else(|| {
            before_fd();
            direct::dup(fd)
        })
    }

    fn dup2 | __dup2 (old: c_int, new: c_int) -> c_int {
        if is_hidden_in_table(new) {
            return fail::<c_int>(Errno::BUSY);
        }
        duplicate(old, new, |process| process.descriptors().dup2(old, new))
            .unwrap_or_else(|| direct::dup2(old, new))
    }

    fn dup3 (old: c_int, new: c_int, flags: c_int) -> c_int {
        if is_hidden_in_table(new) {
            return fail::<c_int>(Errno::BUSY);
        }
        duplicate(old, new, |process| process.descriptors().dup3(old, new, flags))
            .unwrap_or_else(|| direct::dup3(old, new, flags))
    }

    fn fcntl | fcntl64 | __fcntl | __libc_fcntl64 (
        fd: c_int, command: c_int, argument: c_long
    ) -> c_int {
        if matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW) {
            cancel::test();
        }
        // A lock to wait for, with its range as the kernel is to see it.
        let mut waits_for: Option<libc::flock> = None;
        let answered = match command {
            libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
                on_fd(Class::Lock, fd, |process| {
                    let given = argument as *mut libc::flock;
                    let mut lock = match memory::load(given) {
                        Ok(lock) => lock,
                        Err(err) => return refuse_lock(process, fd, err),
                    };
                    let answer = lock_record(process, fd, command, &mut lock);
                    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
                    waits_for = (waits && answer == Served::Kernel).then_some(lock);
                    match (command, answer) {
                        (libc::F_GETLK | libc::F_OFD_GETLK, Served::Done(Ok(()))) => {
                            Served::Done(memory::store(given, lock))
                        }
                        _ => answer,
                    }
                })
            }
            // A hint how long data will live. No layer below uses it.
            F_SET_RW_HINT | F_SET_FILE_RW_HINT => {
                on_fd(Class::Descriptor, fd, |_| Served::Done(Ok(())))
            }
            // A lease would miss files that other processes open by direct access.
            libc::F_SETLEASE => on_fd(Class::Descriptor, fd, |process| {
                Served::<c_int>::Done(Err(wrong_kind(process, fd, Errno::INVAL)))
            }),
            F_SETOWN_EX | F_GETOWN_EX | F_GETOWNER_UIDS | F_GET_RW_HINT | F_GET_FILE_RW_HINT => {
                on_fd(Class::Descriptor, fd, |_| Served::<()>::Kernel)
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                on_fd(Class::Descriptor, fd, |process| {
                    process.descriptors().fcntl(fd, command, argument)
                })
                    .map(standard_stream)
            }
            _ => on_fd(Class::Descriptor, fd, |process| {
                process.descriptors().fcntl(fd, command, argument)
            }),
        };
        answered.unwrap_or_else(|| {
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                before_fd();
            }
            let to_wait_for = waits_for.as_ref().map(|lock| std::ptr::from_ref(lock) as c_long);
            direct::fcntl(fd, command, to_wait_for.unwrap_or(argument))
        })
    }

    fn flock (fd: c_int, operation: c_int) -> c_int {
        on_fd(Class::Lock, fd, |process| {
            let at_once = process.contents().flock(fd, operation | libc::LOCK_NB);
            let waits = operation & libc::LOCK_NB == 0;
            if waits && at_once == Served::Done(Err(Errno::AGAIN)) {
                guard::outside(|| process.contents().flock(fd, operation))
            } else {
                at_once
            }
        })
        .unwrap_or_else(|| direct::flock(fd, operation))
    }

    fn lockf | lockf64 (fd: c_int, command: c_int, len: off_t) -> c_int {
        if command == libc::F_LOCK {
            cancel::test();
        }
        on_fd(Class::Lock, fd, |process| {
            let mut lock = libc::flock {
                l_type: libc::F_WRLCK as i16,
                l_whence: libc::SEEK_CUR as i16,
                l_start: 0,
                l_len: len,
                l_pid: 0,
            };
            match command {
                libc::F_LOCK => lock_record(process, fd, libc::F_SETLKW, &mut lock),
                libc::F_TLOCK => lock_record(process, fd, libc::F_SETLK, &mut lock),
                libc::F_ULOCK => {
                    lock.l_type = libc::F_UNLCK as i16;
                    lock_record(process, fd, libc::F_SETLK, &mut lock)
                }
                libc::F_TEST => match lock_record(process, fd, libc::F_GETLK, &mut lock) {
                    Served::Done(Ok(()))
                        if lock.l_type != libc::F_UNLCK as i16
                            && lock.l_pid != libc::getpid() =>
                    {
                        Served::Done(Err(Errno::ACCESS))
                    }
                    tested => tested,
                },
                _ => Served::Done(Err(Errno::INVAL)),
            }
        })
        .unwrap_or_else(|| direct::lockf(fd, command, len))
    }

    fn ioctl (fd: c_int, request: c_ulong, argument: c_long) -> c_int {
        // Most versions of `cp` ask for a clone first.
        on_fd(Class::Other, fd, |process| control(process, fd, request, argument))
            .unwrap_or_else(|| match give_argument(request, argument) {
                Ok(()) => direct::ioctl(fd, request, argument),
                Err(err) => fail::<c_int>(err),
            })
    }

    fn isatty (fd: c_int) -> c_int {
        if let Some(err) = no_terminal(fd) {
            set_errno(err);
            return 0;
        }
        real::isatty(fd)
    }

    fn ttyname (fd: c_int) -> *mut c_char {
        if let Some(err) = no_terminal(fd) {
            set_errno(err);
            return std::ptr::null_mut();
        }
        real::ttyname(fd)
    }

    fn ttyname_r (fd: c_int, buf: *mut c_char, len: size_t) -> c_int {
        if let Some(err) = no_terminal(fd) {
            return err.raw_os_error();
        }
        real::ttyname_r(fd, buf, len)
    }

    fn __ttyname_r_chk (fd: c_int, buf: *mut c_char, len: size_t, room: size_t) -> c_int {
        ttyname_r(fd, buf, len.min(room))
    }

    fn fpathconf (fd: c_int, name: c_int) -> c_long {
        by_kernel(&[fd], -1, || real::fpathconf(fd, name))
    }
}

// Commands of `fcntl` with a pointer that is not a lock (linux/fcntl.h).
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const F_GETOWNER_UIDS: c_int = 17;
const F_GET_RW_HINT: c_int = 1035;
const F_SET_RW_HINT: c_int = 1036;
const F_GET_FILE_RW_HINT: c_int = 1037;
const F_SET_FILE_RW_HINT: c_int = 1038;

/// Returns the error for a call that takes this file for another kind: `what`, unless the
/// descriptor is closed or stands for a path only.
fn wrong_kind(process: &Process, fd: c_int, what: Errno) -> Errno {
    match process.descriptors().fcntl(fd, libc::F_GETFL, 0) {
        Served::Done(Err(err)) => err,
        Served::Done(Ok(flags)) if flags & libc::O_PATH != 0 => Errno::BADF,
        _ => what,
    }
}

/// Returns the error for a call that takes a file of a pool for another kind; `None` if the file is
/// not a pool's.
pub(super) fn refusal(fd: c_int, what: Errno) -> Option<Errno> {
    let process = process().filter(|process| process.table().owns(fd) && !guard::is_inside())?;
    guard::run(|| wrong_kind(process, fd, what))
}

fn no_terminal(fd: c_int) -> Option<Errno> {
    refusal(fd, Errno::NOTTY)
}

fn duplicate(old: c_int, new: c_int, f: impl FnOnce(&Process) -> Served<c_int>) -> Option<c_int> {
    let process =
        process().filter(|process| process.table().owns(old) || process.table().owns(new))?;
    let answered = answer(process, Class::Descriptor, &[old, new], f)?;
    if answered.is_ok() {
        // The number may have belonged to a file that Chell-Direct serves.
        direct::tell(|direct| direct.opened(new, libc::O_PATH));
    }
    Some(standard_stream(to_c(answered)))
}

/// Serves the stream that libc has on a standard descriptor, now that the descriptor is served.
fn standard_stream(fd: c_int) -> c_int {
    if (0..=2).contains(&fd) {
        streams::are_served();
    }
    fd
}

/// Closes a range for a process that is not served, but shares the table of descriptors with a
/// served one. The library's own descriptors stay open. `None`: libc has to do it, also if the
/// process unshares the table first.
fn close_range_in_table(first: c_uint, last: c_uint, flags: c_int) -> Option<Result<(), Errno>> {
    let unshares = flags as c_uint & libc::CLOSE_RANGE_UNSHARE != 0;
    if unshares {
        forget_table();
    }
    let process = table().filter(|_| first <= last)?;
    Some(process.descriptors().close_range_in_kernel(first, last, flags as u32))
}

/// Returns the error for a lock that cannot be read: no descriptor of `O_PATH` can be locked
/// anyway.
#[cold]
fn refuse_lock(process: &Process, fd: c_int, err: Errno) -> Served<()> {
    match process.descriptors().fcntl(fd, libc::F_GETFL, 0) {
        Served::Done(Ok(flags)) if flags & libc::O_PATH != 0 => Served::Done(Err(Errno::BADF)),
        Served::Done(Ok(_)) => Served::Done(Err(err)),
        Served::Done(Err(err)) => Served::Done(Err(err)),
        Served::Kernel => Served::Kernel,
    }
}

/// Sets or tests a lock of records. If it has to wait, libc makes the call on the kernel's
/// description: that is a cancellation point, and signals interrupt it.
fn lock_record(process: &Process, fd: c_int, command: c_int, lock: &mut libc::flock) -> Served<()> {
    let at_once = match command {
        libc::F_SETLKW => libc::F_SETLK,
        libc::F_OFD_SETLKW => libc::F_OFD_SETLK,
        _ => return process.contents().fcntl_lock(fd, command, lock),
    };
    match process.contents().fcntl_lock(fd, at_once, lock) {
        Served::Done(Err(Errno::AGAIN | Errno::ACCESS)) => Served::Kernel,
        result => result,
    }
}

/// Gives the kernel the descriptors inside the argument of an `ioctl`: files to copy from or to
/// compare with, and the file for a loop device. If the argument cannot be read, the kernel refuses
/// the call.
fn give_argument(request: c_ulong, argument: c_long) -> Result<(), Errno> {
    // linux/loop.h
    const LOOP_SET_FD: c_ulong = 0x4c00;
    const LOOP_CHANGE_FD: c_ulong = 0x4c06;
    const LOOP_CONFIGURE: c_ulong = 0x4c0a;
    // linux/fs.h
    const FIDEDUPERANGE: c_ulong = 0xc018_9436;
    // `struct file_dedupe_range`: offset of the number of its items, offset of the items, length of
    // each.
    const COUNT_AT: usize = 16;
    const ITEMS_AT: usize = 24;
    const ITEM_BYTES: usize = 32;
    let give = |fd: Result<i64, Errno>| match fd.map(c_int::try_from) {
        Ok(Ok(fd)) => give_to_kernel(&[fd]),
        _ => Ok(()),
    };
    let at = argument as *const u8;
    match request {
        libc::FICLONE | LOOP_SET_FD | LOOP_CHANGE_FD => give(Ok(argument)),
        LOOP_CONFIGURE => give(memory::load(at.cast::<u32>()).map(i64::from)),
        libc::FICLONERANGE => give(memory::load(at.cast())),
        FIDEDUPERANGE => {
            let count = memory::load(at.wrapping_add(COUNT_AT).cast::<u16>()).unwrap_or(0);
            (0..usize::from(count)).try_for_each(|index| {
                give(memory::load(at.wrapping_add(ITEMS_AT + index * ITEM_BYTES).cast()))
            })
        }
        _ => Ok(()),
    }
}

/// Answers `FICLONERANGE` with the words of its argument: the source's descriptor and offset, the
/// length, and the offset in the destination.
fn clone_range(process: &Process, fd: c_int, range: [u64; 4]) -> Served<c_int> {
    let [source, source_at, len, at] = range;
    // The kernel takes the lower half of the word, too.
    let source = (source as c_int, source_at);
    match process.contents().clone_range(source, (fd, at), len) {
        Served::Done(done) => Served::Done(done.map(|()| 0)),
        Served::Kernel => Served::Kernel,
    }
}

/// Answers an `ioctl` on a file or directory without asking the file system.
fn control(process: &Process, fd: c_int, request: c_ulong, argument: c_long) -> Served<c_int> {
    /// The letter of requests to terminals.
    const TERMINAL: c_ulong = 0x54;
    match request {
        libc::FIOCLEX => process.descriptors().fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC.into()),
        libc::FIONCLEX => process.descriptors().fcntl(fd, libc::F_SETFD, 0),
        libc::FIONREAD => {
            let (Served::Done(Ok(stat)), Served::Done(Ok(offset))) =
                (process.names().fstat(fd), process.contents().lseek(fd, 0, libc::SEEK_CUR))
            else {
                return Served::Kernel;
            };
            if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
                return Served::Kernel;
            }
            let rest = (stat.st_size - offset) as c_int;
            Served::Done(memory::store(argument as *mut c_int, rest).map(|()| 0))
        }
        libc::FICLONE => clone_range(process, fd, [argument as u64, 0, 0, 0]),
        libc::FICLONERANGE => match memory::load(argument as *const [u64; 4]) {
            Ok(range) => clone_range(process, fd, range),
            Err(errno) => Served::Done(Err(errno)),
        },
        libc::FIONBIO | libc::FIOASYNC => Served::Kernel,
        _ if request >> 8 & 0xff == TERMINAL => {
            Served::Done(Err(wrong_kind(process, fd, Errno::NOTTY)))
        }
        _ => Served::Kernel,
    }
}
