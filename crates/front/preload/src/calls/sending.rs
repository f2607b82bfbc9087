//! `sendfile` from a file of a pool to a stream socket or a pipe. The library reads the content
//! here and writes it there, so that no request goes to the mount.

#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::{off_t, size_t};
use posix::{Errno, Process, Served};

use crate::{guard, real};

/// Bytes that are read before they are sent.
const CHUNK_BYTES: usize = 64 << 10;

/// A target that takes bytes in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Socket,
    Pipe,
}

impl Target {
    /// Returns the kind of a target. `None`: another kind, or a socket for messages, whose borders
    /// only the kernel knows.
    fn of(fd: c_int) -> Option<Self> {
        // SAFETY: a structure of numbers.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a structure of the size that the call fills.
        if unsafe { real::fstat(fd, &mut stat) } != 0 {
            return None;
        }
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFIFO => Some(Self::Pipe),
            libc::S_IFSOCK => {
                let (mut kind, mut len) = (0, size_of::<c_int>() as u32);
                let to = (&raw mut kind).cast();
                // SAFETY: room for a number of that length.
                let done =
                    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, to, &mut len) };
                (done == 0 && kind == libc::SOCK_STREAM).then_some(Self::Socket)
            }
            _ => None,
        }
    }

    /// Writes as `sendfile` would: waits if the descriptor blocks, and lets signals in.
    fn send(self, fd: c_int, data: &[u8], more: bool) -> Result<usize, Errno> {
        let sent = guard::outside(|| {
            let (at, len) = (data.as_ptr().cast(), data.len());
            // SAFETY: the bytes of a slice.
            unsafe {
                match self {
                    Self::Socket if more => real::send(fd, at, len, libc::MSG_MORE),
                    Self::Socket => real::send(fd, at, len, 0),
                    Self::Pipe => real::write(fd, at, len),
                }
            }
        });
        // SAFETY: the thread's own place.
        usize::try_from(sent)
            .map_err(|_| Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
    }
}

/// Sends up to `count` bytes of `from`, beginning at `at` or at the descriptor's offset, and
/// advances that by the bytes sent.
///
/// `Kernel` if the file is not served or the target is of another kind.
pub(super) fn send(
    process: &Process,
    out: c_int,
    from: c_int,
    at: Option<&mut off_t>,
    count: size_t,
) -> Served<usize> {
    let Some(target) = Target::of(out).filter(|_| process.table().owns(from)) else {
        return Served::Kernel;
    };
    let start = match &at {
        Some(at) => **at,
        None => match process.contents().lseek(from, 0, libc::SEEK_CUR) {
            Served::Done(Ok(offset)) => offset,
            _ => return Served::Kernel,
        },
    };
    let mut buf = vec![0; count.min(CHUNK_BYTES)];
    let mut sent = 0;
    let mut failed = None;
    while sent < count && failed.is_none() {
        let room = buf.len().min(count - sent);
        let read = match process.contents().pread(from, &mut buf[..room], start + sent as off_t) {
            Served::Done(Ok(0)) => break,
            Served::Done(Ok(read)) => read,
            // The kernel reports the error.
            _ if sent == 0 => return Served::Kernel,
            _ => break,
        };
        match target.send(out, &buf[..read], read == room && sent + read < count) {
            Ok(n) => {
                sent += n;
                if n < read {
                    break;
                }
            }
            Err(errno) => failed = Some(errno),
        }
    }
    if let (0, Some(errno)) = (sent, failed) {
        return Served::Done(Err(errno));
    }
    match at {
        Some(at) => *at = start + sent as off_t,
        None => drop(process.contents().lseek(from, start + sent as off_t, libc::SEEK_SET)),
    }
    Served::Done(Ok(sent))
}
