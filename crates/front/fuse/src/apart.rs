//! Calls on mounts whose servers may never answer.
//!
//! Once a server has read a thread's request, the thread waits for the answer whatever signals
//! come, so its process could not end. So a process with nothing but a pipe makes such a call, and
//! is left behind if it takes too long.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Bytes of the error number before an answer; the number 0 means success.
const STATUS_LEN: usize = 4;

/// Calls `call` with a buffer of `room` bytes. Returns the bytes that it stored, or its error;
/// `None` if it takes longer than `within`. `call` runs in a copy of this process with one thread:
/// it must only make system calls.
pub fn call_apart(
    within: Duration,
    room: usize,
    call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Option<rustix::io::Result<Vec<u8>>>> {
    let deadline = Instant::now() + within;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut answer = vec![0; STATUS_LEN + room];
    // SAFETY: plain numbers: a copy of the process, with this thread alone, which ends in
    // `answer_and_exit`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match pid {
        0 => answer_and_exit(&writer, &mut answer, call),
        1.. => {}
        _ => return Err(io::Error::last_os_error()),
    }
    drop(writer);
    let child = Pid::from_raw(pid as i32);
    let read = read_until(&reader, deadline)?;
    if read.is_none() {
        // It ends when the server answers or dies.
        let _ = child.map(|child| kill_process(child, Signal::KILL));
        let _ = waitpid(child, WaitOptions::NOHANG);
        return Ok(None);
    }
    let _ = waitpid(child, WaitOptions::empty());
    Ok(read.and_then(|read| {
        let (status, answer) = read.split_first_chunk::<STATUS_LEN>()?;
        match i32::from_ne_bytes(*status) {
            0 => Some(Ok(answer.to_vec())),
            errno => Some(Err(Errno::from_raw_os_error(errno))),
        }
    }))
}

/// Runs in the copy of the process: allocates nothing, takes no lock, and ends.
fn answer_and_exit(
    writer: &OwnedFd,
    answer: &mut [u8],
    call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> ! {
    // The copy dies with the thread that waits for it. It must not keep a reader of this program's
    // output waiting. SAFETY: plain numbers and a string. The descriptors are those of the copy,
    // whose owners are never dropped.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_dup3, writer.as_raw_fd(), 0, 0);
        libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
        // Nor may it keep the directory in use.
        libc::syscall(libc::SYS_chdir, c"/".as_ptr());
    }
    let (status, room) = answer.split_at_mut(STATUS_LEN);
    let (errno, len) = match call(room) {
        Ok(len) => (0, len),
        Err(errno) => (errno.raw_os_error(), 0),
    };
    status.copy_from_slice(&errno.to_ne_bytes());
    let mut rest = &answer[..STATUS_LEN + len];
    while !rest.is_empty() {
        // SAFETY: `rest` is that long; 0 is the pipe.
        let written = unsafe { libc::syscall(libc::SYS_write, 0, rest.as_ptr(), rest.len()) };
        match usize::try_from(written) {
            Ok(written) => rest = &rest[written..],
            Err(_) => break,
        }
    }
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

/// Reads all that comes from the pipe; `None` if the pipe does not end before the deadline.
fn read_until(reader: &OwnedFd, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let (mut read, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(reader, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        match rustix::io::read(reader, &mut part)? {
            0 => return Ok(Some(read)),
            len => read.extend_from_slice(&part[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_comes_back_whole() {
        let fill = |room: &mut [u8]| {
            room.fill(7);
            Ok(room.len())
        };
        assert_eq!(call_apart(LONG, 300_000, fill).unwrap(), Some(Ok(vec![7; 300_000])));
        assert_eq!(call_apart(LONG, 10, |_| Ok(0)).unwrap(), Some(Ok(vec![])));
        assert_eq!(call_apart(LONG, 10, |_| Err(Errno::NODATA)).unwrap(), Some(Err(Errno::NODATA)));
    }

    #[test]
    fn a_call_without_an_answer_is_left_behind() {
        let asked = call_apart(Duration::from_millis(50), 10, |_| {
            loop {
                std::thread::park();
            }
        });
        assert_eq!(asked.unwrap(), None);
    }
}
