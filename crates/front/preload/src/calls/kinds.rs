//! Calls on sockets, terminals and other things that files in pools are not. The kernel would find
//! the placeholder, which is not even open, so the library returns the right error here.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, pid_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use posix::Errno;

use super::descriptors::refusal;
use crate::real;
use crate::serve::{before_fd, set_errno};

macro_rules! refusing {
    ($(
        $errno:ident {
            $(fn $name:ident $(| $alias:ident)* ($fd:ident: c_int $(, $argument:ident : $type:ty)*)
                -> $result:ty;)*
        }
    )*) => {
        export! {$($(
            fn $name $(| $alias)* ($fd: c_int $(, $argument: $type)*) -> $result {
                if let Some(err) = refusal($fd, Errno::$errno) {
                    set_errno(err);
                    return -1;
                }
                // Some of these calls return a new descriptor.
                before_fd();
                real::$name($fd $(, $argument)*)
            }
        )*)*}
    };
}

refusing! {
    NOTSOCK {
        fn accept (socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
        fn accept4 (
            socket: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int
        ) -> c_int;
        fn recvmsg (socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
        fn recvmmsg (
            socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
            timeout: *mut timespec
        ) -> c_int;
        fn bind (socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
        fn connect | __connect (socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
        fn getpeername (socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
        fn getsockname (socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
        fn getsockopt (
            socket: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
        ) -> c_int;
        fn setsockopt (
            socket: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t
        ) -> c_int;
        fn listen (socket: c_int, backlog: c_int) -> c_int;
        fn shutdown (socket: c_int, how: c_int) -> c_int;
        fn send | __send (socket: c_int, data: *const c_void, len: size_t, flags: c_int) -> ssize_t;
        fn sendto (
            socket: c_int, data: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
            address_len: socklen_t
        ) -> ssize_t;
        fn recv | __recv (socket: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
        fn recvfrom (
            socket: c_int, buf: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
            address_len: *mut socklen_t
        ) -> ssize_t;
    }

    NOTTY {
        fn tcgetattr (fd: c_int, to: *mut c_void) -> c_int;
        fn tcsetattr (fd: c_int, when: c_int, from: *const c_void) -> c_int;
        fn tcdrain (fd: c_int) -> c_int;
        fn tcflow (fd: c_int, action: c_int) -> c_int;
        fn tcflush (fd: c_int, queue: c_int) -> c_int;
        fn tcgetpgrp (fd: c_int) -> pid_t;
        fn tcgetsid (fd: c_int) -> pid_t;
        fn tcsendbreak (fd: c_int, duration: c_int) -> c_int;
        fn tcsetpgrp (fd: c_int, group: pid_t) -> c_int;
    }

    INVAL {
        fn epoll_wait (epoll: c_int, events: *mut c_void, count: c_int, timeout: c_int) -> c_int;
        fn epoll_pwait (
            epoll: c_int, events: *mut c_void, count: c_int, timeout: c_int, mask: *const c_void
        ) -> c_int;
        fn inotify_add_watch (inotify: c_int, path: *const c_char, mask: c_uint) -> c_int;
        fn inotify_rm_watch (inotify: c_int, watch: c_int) -> c_int;
        fn timerfd_gettime (timer: c_int, to: *mut c_void) -> c_int;
        fn timerfd_settime (
            timer: c_int, flags: c_int, new: *const c_void, old: *mut c_void
        ) -> c_int;
    }
}
