//! A connection as a stream of bytes: a socket, with or without TLS, and the buffer of received
//! bytes.

#![allow(unsafe_code)]

use crate::outbox::{Outbox, ReplyPart};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustls::ServerConnection;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Bytes of the buffer of received data. The data stays in a CPU's cache on its way to PM.
const INBOX_BYTES: usize = 256 << 10;

/// The most pieces of one `sendmsg(2)` (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// A connection.
pub(crate) struct Stream {
    socket: OwnedFd,
    tls: Option<Box<ServerConnection>>,
    /// Pieces for the kernel, empty between calls.
    pieces: Vec<libc::iovec>,
    /// The time at which any wait fails.
    deadline: Option<Instant>,
}

impl Stream {
    /// Makes a stream without TLS.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, tls: None, pieces: Vec::new(), deadline: None }
    }

    /// Switches to TLS. The TLS handshake takes place with the next bytes.
    pub fn start_tls(&mut self, tls: ServerConnection) {
        self.tls = Some(Box::new(tls));
    }

    /// Whether bytes are encrypted on their way.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Sets the time at which any wait fails from now on, also within a TLS handshake. `None`:
    /// waits do not fail.
    pub fn give_up_at(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Receives at least one byte; 0 bytes at the end of the stream. Returns their number.
    pub fn receive(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut socket = Socket { fd: self.socket.as_fd(), deadline: self.deadline };
        let Some(tls) = &mut self.tls else { return socket.read(buf) };
        loop {
            match tls.reader().read(buf) {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                // A connection cut without a closing message has ended, too: no data is lost, as
                // requests are confirmed by replies.
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
                let ReplyPart::Own(range) = part else {
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
        let mut socket = Socket { fd: self.socket.as_fd(), deadline: self.deadline };
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

    /// Sends a closing message, if TLS is in use.
    pub fn say_goodbye(&mut self) {
        let mut socket = Socket { fd: self.socket.as_fd(), deadline: self.deadline };
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut socket);
        }
    }

    /// Sends all parts of the outbox, by as few `sendmsg(2)` as possible. Without TLS only.
    fn send_pieces(&mut self, outbox: &Outbox<'_>) -> io::Result<()> {
        self.pieces.extend(outbox.parts().iter().map(|part| match part {
            ReplyPart::Own(range) => {
                let bytes = &outbox.own()[range.clone()];
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            ReplyPart::Device(bytes) => {
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
            // SAFETY: `outbox` borrows or owns the pieces, and this call borrows `outbox`. The
            // kernel only reads; content that other threads change meanwhile is atomic bytes for us
            // and mere memory for the kernel.
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

/// A socket as [`io::Read`] and [`io::Write`], for rustls.
struct Socket<'a> {
    fd: BorrowedFd<'a>,
    deadline: Option<Instant>,
}

impl Socket<'_> {
    /// Waits until the socket is ready for `what`, or the deadline. Without a deadline, returns at
    /// once: the following call waits itself.
    fn wait(&self, what: PollFlags) -> io::Result<()> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(&self.fd, what)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                ready => return Ok(ready.map(drop)?),
            }
        }
    }
}

impl io::Read for Socket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::IN)?;
            match rustix::net::recv(self.fd, &mut *buf, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(0),
                done => return Ok(done?.1),
            }
        }
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::OUT)?;
            // A socket that is ready may have room for only part of the bytes.
            let waits =
                if self.deadline.is_some() { SendFlags::DONTWAIT } else { SendFlags::empty() };
            match rustix::net::send(self.fd, bytes, SendFlags::NOSIGNAL | waits) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return Ok(done?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Received bytes that are not yet consumed.
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

    /// Waits for more bytes. False at the end of the stream. There must be room: callers never wait
    /// for a piece of more than [`INBOX_BYTES`].
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
