//! Waiting for descriptors, and sending them to other processes: the kernel has to have them.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::iter;

use libc::{cmsghdr, fd_set, msghdr, nfds_t, pollfd, sigset_t, size_t, ssize_t, timespec, timeval};
use posix::Errno;

use super::copying::by_kernel;
use super::descriptors::refusal;
use crate::serve::{give_to_kernel, set_errno};
use crate::start::process;
use crate::{memory, real};

/// Messages of one list that the kernel takes at most (`UIO_MAXIOV`).
const MESSAGES_MAX: usize = 1024;

/// Returns the bytes of a list that a call only reads, or the accessible part. The kernel refuses
/// the rest.
fn listed<'a, T>(list: *const T, count: usize) -> &'a [u8] {
    memory::readable(list.cast(), count.saturating_mul(size_of::<T>())).unwrap_or(&[])
}

/// Returns the integers in a range of bytes, which need not be aligned.
fn integers<const BYTES: usize, T>(
    bytes: &[u8],
    from: fn([u8; BYTES]) -> T,
) -> impl Iterator<Item = T> {
    bytes.chunks_exact(BYTES).filter_map(move |chunk| Some(from(chunk.try_into().ok()?)))
}

/// Makes polled descriptors the kernel's. If that fails, `poll` returns POLLNVAL.
pub(super) fn give_polled(fds: *const pollfd, count: nfds_t) {
    let Some(process) = process() else { return };
    for polled in listed(fds, count as usize).chunks_exact(size_of::<pollfd>()) {
        for fd in integers(&polled[..size_of::<c_int>()], c_int::from_ne_bytes) {
            if process.table().owns(fd) {
                let _ = give_to_kernel(&[fd]);
            }
        }
    }
}

/// Makes the descriptors in the sets the kernel's.
pub(super) fn give_selected(count: c_int, sets: [*const fd_set; 3]) -> Result<(), Errno> {
    let Some(process) = process() else { return Ok(()) };
    let words = usize::try_from(count).unwrap_or(0).div_ceil(64);
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        for (at, word) in integers(listed(set.cast::<u64>(), words), u64::from_ne_bytes).enumerate()
        {
            for fd in (0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| (64 * at + bit) as c_int)
            {
                if fd < count && process.table().owns(fd) {
                    give_to_kernel(&[fd])?;
                }
            }
        }
    }
    Ok(())
}

/// Makes the descriptors that a message carries the kernel's.
fn give_sent(message: &msghdr) -> Result<(), Errno> {
    const HEADER_BYTES: usize = size_of::<cmsghdr>();
    let mut rest = listed(message.msg_control.cast::<u8>(), message.msg_controllen);
    while rest.len() >= HEADER_BYTES {
        let header: cmsghdr = memory::load(rest.as_ptr().cast())?;
        if header.cmsg_len < HEADER_BYTES {
            break;
        }
        let end = header.cmsg_len.min(rest.len());
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            for fd in integers(&rest[HEADER_BYTES..end], c_int::from_ne_bytes) {
                give_to_kernel(&[fd])?;
            }
        }
        rest = &rest[end.next_multiple_of(size_of::<usize>()).min(rest.len())..];
    }
    Ok(())
}

/// Makes the descriptors that messages carry the kernel's. `list` has the address of each message.
fn give_all_sent(list: impl Iterator<Item = *const msghdr>) -> Result<(), Errno> {
    if process().is_none() {
        return Ok(());
    }
    // If a message cannot be read, the kernel refuses it after it has sent those before.
    let mut messages = list.map_while(|message| memory::load(message).ok());
    messages.try_for_each(|message| give_sent(&message))
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
        // FUSE would allow waiting for a file. No other file system does.
        if let Some(err) = refusal(fd, Errno::PERM) {
            let reads_event = operation != libc::EPOLL_CTL_DEL;
            let is_open = || {
                refusal(epoll, Errno::INVAL).is_some() || real::fcntl(epoll, libc::F_GETFD, 0) >= 0
            };
            set_errno(if reads_event && listed(event.cast::<libc::epoll_event>(), 1).is_empty() {
                Errno::FAULT
            } else if is_open() {
                err
            } else {
                Errno::BADF
            });
            return -1;
        }
        by_kernel(&[epoll, fd], -1, || real::epoll_ctl(epoll, operation, fd, event))
    }

    fn sendmsg (socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if let Some(err) = refusal(socket, Errno::NOTSOCK) {
            return or_fail(Err(err), -1, || 0);
        }
        or_fail(give_all_sent(iter::once(message)), -1, || real::sendmsg(socket, message, flags))
    }

    fn sendmmsg | __sendmmsg (
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int
    ) -> c_int {
        if let Some(err) = refusal(socket, Errno::NOTSOCK) {
            return or_fail(Err(err), -1, || 0);
        }
        let list = (0..MESSAGES_MAX.min(count as usize))
            .map(|index| &raw const (*messages.wrapping_add(index)).msg_hdr);
        or_fail(give_all_sent(list), -1, || real::sendmmsg(socket, messages, count, flags))
    }
}
