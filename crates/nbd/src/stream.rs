//! A connection as a stream of bytes: a socket, with or without TLS, and the buffer of what came in.

#![allow(unsafe_code)]

use crate::outbox::{Outbox, Part};
use rustix::net::RecvFlags;
use rustix::net::sockopt::{self, Timeout};
use rustls::ServerConnection;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::time::Instant;

/// Bytes that can wait for being looked at. They stay in a CPU's cache on their way to PM.
const INBOX_BYTES: usize = 256 << 10;

/// Pieces of one `sendmsg(2)` (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// A connection.
pub(crate) struct Stream {
    socket: OwnedFd,
    tls: Option<Box<ServerConnection>>,
    /// Pieces for the kernel, empty between calls.
    pieces: Vec<libc::iovec>,
}

impl Stream {
    /// Without TLS.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, tls: None, pieces: Vec::new() }
    }

    /// Goes on under TLS. The handshake takes place with the next bytes.
    pub fn start_tls(&mut self, tls: ServerConnection) {
        self.tls = Some(Box::new(tls));
    }

    /// Whether bytes are encrypted on their way.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Bounds every call that waits from now on, or none.
    pub fn give_up_at(&self, deadline: Option<Instant>) -> io::Result<()> {
        let left = match deadline {
            None => None,
            Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                // Zero would mean for ever.
                None => return Err(io::ErrorKind::TimedOut.into()),
                Some(left) => Some(left.max(std::time::Duration::from_millis(1))),
            },
        };
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, left)?;
        Ok(sockopt::set_socket_timeout(&self.socket, Timeout::Send, left)?)
    }

    /// Bytes that came in, at least one; none at the end.
    pub fn receive(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return receive(&self.socket, buf);
        };
        let mut socket = Socket(self.socket.as_fd());
        loop {
            match tls.reader().read(buf) {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                // Cut off without a word is an end too: every reply that counts was confirmed.
                Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            tls.complete_io(&mut socket)?;
        }
    }

    /// Sends all of `outbox` and clears it.
    pub fn send(&mut self, outbox: &mut Outbox<'_>) -> io::Result<()> {
        if self.tls.is_some() {
            for part in outbox.parts() {
                let Part::Own(range) = part else {
                    unreachable!("content is copied before it is encrypted");
                };
                self.send_bytes(&outbox.own()[range.clone()])?;
            }
        } else {
            let result = self.send_pieces(outbox);
            self.pieces.clear();
            result?;
        }
        outbox.clear();
        Ok(())
    }

    /// Sends `bytes`.
    pub fn send_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut socket = Socket(self.socket.as_fd());
        let Some(tls) = &mut self.tls else {
            return socket.write_all(bytes);
        };
        while !bytes.is_empty() {
            let taken = tls.writer().write(bytes)?;
            bytes = &bytes[taken..];
            while tls.wants_write() {
                tls.write_tls(&mut socket)?;
            }
        }
        Ok(())
    }

    /// Says that nothing follows, where that can be said.
    pub fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut Socket(self.socket.as_fd()));
        }
    }

    fn send_pieces(&mut self, outbox: &Outbox<'_>) -> io::Result<()> {
        self.pieces.extend(outbox.parts().iter().map(|part| match part {
            Part::Own(range) => {
                let bytes = &outbox.own()[range.clone()];
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            Part::Device(bytes) => {
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
        }));
        let mut first = 0;
        while first < self.pieces.len() {
            let pieces = &mut self.pieces[first..];
            // SAFETY: `msghdr` is plain data.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = pieces.len().min(PIECES_MAX);
            // SAFETY: the pieces are parts of what `outbox` borrows or owns, for as long as this
            // call borrows it. The kernel only reads; content that other threads change meanwhile
            // is atomic bytes for us and mere memory for the kernel.
            let sent = unsafe {
                libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
            };
            let Ok(mut sent) = usize::try_from(sent) else {
                match io::Error::last_os_error() {
                    err if err.kind() == io::ErrorKind::Interrupted => continue,
                    err => return Err(err),
                }
            };
            while let Some(piece) = self.pieces.get_mut(first)
                && sent >= piece.iov_len
            {
                sent -= piece.iov_len;
                first += 1;
            }
            if let Some(piece) = self.pieces.get_mut(first) {
                // Stays within the piece, as `sent` is shorter.
                piece.iov_base = piece.iov_base.wrapping_byte_add(sent);
                piece.iov_len -= sent;
            }
        }
        Ok(())
    }
}

fn receive(socket: impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::net::recv(&socket, &mut *buf, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(0),
            // What a socket's timeout looks like.
            Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            done => return Ok(done?.1),
        }
    }
}

/// A socket for those who know only [`io::Read`] and [`io::Write`].
struct Socket<'a>(std::os::fd::BorrowedFd<'a>);

impl io::Read for Socket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        receive(self.0, buf)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.0, bytes, rustix::net::SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that came in and were not looked at.
pub(crate) struct Inbox {
    buf: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub fn new() -> Self {
        Self { buf: vec![0; INBOX_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    pub fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end);
    }

    /// Waits for more. False at the end of the stream. There must be room: whoever waits for more
    /// than [`INBOX_BYTES`] in one piece waits for ever, so nobody does.
    pub fn fill(&mut self, stream: &mut Stream) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buf.len() - self.end < self.buf.len() / 2 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.end < self.buf.len(), "nobody waits for more than fits");
        let len = stream.receive(&mut self.buf[self.end..])?;
        self.end += len;
        Ok(len > 0)
    }
}
