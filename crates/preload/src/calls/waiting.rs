//! Waiting for descriptors, and sending them to other processes: the kernel has to know them.

use std::ffi::{c_int, c_uint, c_void};

use libc::{cmsghdr, fd_set, msghdr, nfds_t, pollfd, sigset_t, size_t, ssize_t, timespec, timeval};
use posix::Errno;

use super::copying::by_kernel;
use crate::real;
use crate::serve::{give_to_kernel, set_errno};
use crate::start::process;

/// Makes what is polled the kernel's. Where that fails, `poll` says POLLNVAL.
unsafe fn give_polled(fds: *const pollfd, count: nfds_t) {
    let Some(process) = process() else { return };
    for index in 0..count as usize {
        // SAFETY: the program passes `count` of them; what it would fault on, it would in libc.
        let fd = unsafe { (*fds.add(index)).fd };
        if process.owns(fd) {
            let _ = give_to_kernel(&[fd]);
        }
    }
}

/// Makes what is in the sets the kernel's.
unsafe fn give_selected(count: c_int, sets: [*const fd_set; 3]) -> Result<(), Errno> {
    let Some(process) = process() else { return Ok(()) };
    for fd in (0..count).filter(|&fd| process.owns(fd)) {
        let (word, bit) = (fd as usize / 64, fd % 64);
        // SAFETY: sets have room for `count` descriptors.
        let has = |set: &*const fd_set| unsafe { *set.cast::<u64>().add(word) >> bit & 1 == 1 };
        if sets.iter().filter(|set| !set.is_null()).any(has) {
            give_to_kernel(&[fd])?;
        }
    }
    Ok(())
}

/// Makes what a message carries the kernel's.
unsafe fn give_sent(message: *const msghdr) -> Result<(), Errno> {
    if process().is_none() || message.is_null() {
        return Ok(());
    }
    // SAFETY: the macros of `cmsg(3)`, on the program's message.
    unsafe {
        let mut header: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let at = &*header;
            if at.cmsg_level == libc::SOL_SOCKET && at.cmsg_type == libc::SCM_RIGHTS {
                let bytes = at.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                for index in 0..bytes / size_of::<c_int>() {
                    give_to_kernel(&[fds.add(index).read_unaligned()])?;
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    Ok(())
}

fn or_fail<T>(given: Result<(), Errno>, failed: T, call: impl FnOnce() -> T) -> T {
    match given {
        Ok(()) => call(),
        Err(err) => {
            set_errno(err);
            failed
        }
    }
}

export! {
    fn poll | __poll (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        give_polled(fds, count);
        real::poll(fds, count, timeout)
    }

    fn __poll_chk (fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        give_polled(fds, count);
        real::__poll_chk(fds, count, timeout, room)
    }

    fn ppoll (
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        give_polled(fds, count);
        real::ppoll(fds, count, timeout, mask)
    }

    fn __ppoll_chk (
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        room: size_t
    ) -> c_int {
        give_polled(fds, count);
        real::__ppoll_chk(fds, count, timeout, mask, room)
    }

    fn select | __select (
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int {
        or_fail(give_selected(count, [read, write, except].map(|set| set.cast_const())), -1, || {
            real::select(count, read, write, except, timeout)
        })
    }

    fn pselect (
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        or_fail(give_selected(count, [read, write, except].map(|set| set.cast_const())), -1, || {
            real::pselect(count, read, write, except, timeout, mask)
        })
    }

    fn epoll_ctl (epoll: c_int, operation: c_int, fd: c_int, event: *mut c_void) -> c_int {
        by_kernel(&[fd], -1, || real::epoll_ctl(epoll, operation, fd, event))
    }

    fn sendmsg (socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        or_fail(give_sent(message), -1, || real::sendmsg(socket, message, flags))
    }

    fn sendmmsg | __sendmmsg (
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int
    ) -> c_int {
        let given = (0..count as usize)
            .try_for_each(|index| give_sent(&raw const (*messages.add(index)).msg_hdr));
        or_fail(given, -1, || real::sendmmsg(socket, messages, count, flags))
    }
}
