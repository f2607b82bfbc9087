//! Calls by which the kernel gives the program a descriptor or takes one back, and that do not
//! concern files in pools.
//!
//! Before each, the library closes the numbers that are parked for the next file (`unpark` of
//! [`posix::Process::fd_allocator`]), so that the kernel gives the program the lowest free
//! descriptor.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{mode_t, sigset_t};

use crate::real;
use crate::serve::before_fd;

macro_rules! giving {
    ($(fn $name:ident $(| $alias:ident)* ($($argument:ident : $type:ty),*) -> $result:ty;)*) => {
        export! {$(
            fn $name $(| $alias)* ($($argument: $type),*) -> $result {
                before_fd();
                real::$name($($argument),*)
            }
        )*}
    };
}

giving! {
    fn socket | __socket (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair (domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    fn pipe | __pipe (pair: *mut c_int) -> c_int;
    fn pipe2 (pair: *mut c_int, flags: c_int) -> c_int;
    fn epoll_create (size: c_int) -> c_int;
    fn epoll_create1 (flags: c_int) -> c_int;
    fn eventfd (initial: c_uint, flags: c_int) -> c_int;
    fn timerfd_create (clock: c_int, flags: c_int) -> c_int;
    fn signalfd (fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn memfd_create (name: *const c_char, flags: c_uint) -> c_int;
    fn inotify_init () -> c_int;
    fn inotify_init1 (flags: c_int) -> c_int;
    fn fanotify_init (flags: c_uint, event_flags: c_uint) -> c_int;
    fn pidfd_open (process: libc::pid_t, flags: c_uint) -> c_int;
    fn shm_open (name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn posix_openpt (flags: c_int) -> c_int;
    fn getpt () -> c_int;
    fn openpty (
        master: *mut c_int, slave: *mut c_int, name: *mut c_char, terminal: *const c_void,
        window: *const c_void
    ) -> c_int;
}
