//! Signals that ask a server to end.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// The signals SIGTERM, SIGINT and SIGHUP, and others on request, blocked to be waited for.
#[derive(Debug)]
pub struct StopSignals(libc::sigset_t);

impl StopSignals {
    /// Blocks the signals in this thread and all that it starts from now on, so that only
    /// [`wait`](Self::wait) takes them. Call it before any thread exists.
    pub fn block() -> io::Result<Self> {
        Self::block_with(&[])
    }

    /// As [`block`](Self::block), for these signals, too.
    pub fn block_with(more: &[i32]) -> io::Result<Self> {
        // SAFETY: `sigset_t` is plain data; `sigemptyset` initialises it before any other use.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid, exclusively borrowed `sigset_t`; the signals are valid; the
        // old mask is not asked for.
        let err = unsafe {
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].iter().chain(more) {
                libc::sigaddset(&mut set, *signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
        };
        if err == 0 { Ok(Self(set)) } else { Err(io::Error::from_raw_os_error(err)) }
    }

    /// Returns a descriptor that is readable while a signal is pending, for a thread that waits for
    /// other things, too.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is valid; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has just been made, and is not shared.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits for the next one; returns its number and the process that sent it (0: the kernel).
    pub fn wait(&self) -> (i32, i32) {
        // SAFETY: `siginfo_t` is plain data.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: both pointers are to valid memory for the duration of the call.
            let signal = unsafe { libc::sigwaitinfo(&self.0, &mut info) };
            if signal > 0 {
                // SAFETY: the kernel has filled in `info` for a signal that `kill` or the terminal
                // raises; both have a sender (zero for the kernel).
                return (signal, unsafe { info.si_pid() });
            }
            // Only EINTR, after a signal that a handler took.
        }
    }
}
