//! A connection, from greeting to end.
//!
//! One thread serves it, one request after the other. To serve a request on memory takes less time
//! than to pass it to another thread. Only system calls can be saved: the thread serves all
//! requests that a `recv(2)` returns, and then sends the replies by one `sendmsg(2)`. A client that
//! wants more than one CPU opens more connections (`CAN_MULTI_CONN`).
//!
//! - **connection-N1** For each client, the server allocates at most [`OUTBOX_BYTES`] and the
//!   content of one request.
//! - **connection-N2** A payload is stored as it arrives, in whole blocks; it is not collected in
//!   memory.
//! - **connection-N3** The thread sends all prepared replies before it waits for the client.
//! - **connection-N4** Negotiation, including TLS, is limited in time and in bytes
//!   ([`NEGOTIATION_BYTES_MAX`]), whatever the client sends. After it, a client may be silent for
//!   any time.

use crate::export::{ExportCounts, Exports};
use crate::handshake::{self, Broken, Handshake, OPTION_BYTES_MAX, Session, Step, TlsPolicy};
use crate::outbox::{Outbox, To, shutting_down};
use crate::request::{Command, Limits, OutOfStep, Refusal, Request, Unverified};
use crate::status::{self, ReplyStatus};
use crate::stream::{Inbox, Stream};
use crate::wire;
use pmbd::{BlockDevice, Durability, TimedRequest};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes as _;

/// The bytes of prepared replies from which on they are sent.
pub(crate) const OUTBOX_BYTES: usize = 256 << 10;

/// The least bytes of a read for which parts that are zeros are not sent.
const SPARSE_BYTES_MIN: u64 = 32 << 10;

/// Bytes of a chunk of content, unless the client wants a single chunk.
const COPY_BYTES: u64 = 256 << 10;

/// The most extents in one reply.
const EXTENTS_MAX: usize = 4096;

/// A payload is stored in pieces that end at multiples of this, or of the device's atomic blocks if
/// these are larger.
const PIECE_BYTES: u64 = 4096;

/// The longest refused payload that is read and discarded; a longer one ends the session.
const REFUSED_BYTES_MAX: u64 = 256 << 20;

/// The most bytes that a client may send before a session is agreed on. Each option counts at least
/// a header.
const NEGOTIATION_BYTES_MAX: u64 = 4 << 20;

/// State that all connections of a server share.
pub(crate) struct Common {
    pub exports: Exports,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub tls_policy: TlsPolicy,
    pub handshake_time: Duration,
    /// Set when the server ends.
    pub stopping: AtomicBool,
}

/// The reason why a session ended without the client's request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error(transparent)]
    OutOfStep(#[from] OutOfStep),
    #[error("a refused payload of {0} bytes")]
    TooLong(u64),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Serves a client until it or the server wants to end; `agreed` is called when negotiation has led
/// to a session.
pub(crate) fn serve(common: &Common, mut stream: Stream, agreed: impl Fn()) -> Result<(), Ended> {
    let mut inbox = Inbox::new();
    stream.give_up_at(Some(Instant::now() + common.handshake_time));
    let Some(session) = negotiate(common, &mut stream, &mut inbox, agreed)? else {
        stream.say_goodbye();
        return Ok(());
    };
    stream.give_up_at(None); // connection-N4
    session.export.counters.take(&mut ExportCounts { sessions: 1, ..ExportCounts::default() });
    let mut transmission = Transmission {
        session: &session,
        device: &**session.export.device(),
        stopping: &common.stopping,
        limits: session.export.limits(session.mode, session.block_status),
        stream,
        inbox,
        outbox: Outbox::new(session.mode),
        counts: ExportCounts::default(),
        unanswered: Vec::new(),
    };
    let ended = transmission.run();
    transmission.stream.say_goodbye();
    transmission.counts.sessions_ended = 1;
    session.export.counters.take(&mut transmission.counts);
    ended
}

/// Negotiates until a session is agreed on. `None` if negotiation ends without one.
fn negotiate(
    common: &Common,
    stream: &mut Stream,
    inbox: &mut Inbox,
    agreed: impl Fn(),
) -> Result<Option<Session>, Ended> {
    let mut fill = |stream: &mut Stream, inbox: &mut Inbox| inbox.fill(stream);
    let mut left = NEGOTIATION_BYTES_MAX;
    stream.send_bytes(handshake::greeting().as_bytes())?;
    let flags = loop {
        if let Some(flags) = inbox.bytes().first_chunk() {
            break u32::from_be_bytes(*flags);
        }
        if !fill(stream, inbox)? {
            return Ok(None);
        }
    };
    inbox.consume(size_of_val(&flags));
    let mut handshake = Handshake::new(&common.exports, common.tls_policy, flags)?;
    let mut out = Vec::new();
    loop {
        let Some((code, len)) = handshake::option_head(inbox.bytes())? else {
            if !fill(stream, inbox)? {
                return Ok(None);
            }
            continue;
        };
        inbox.consume(size_of::<wire::OptionHeader>());
        let all = (size_of::<wire::OptionHeader>() + len) as u64;
        left = left.checked_sub(all).ok_or(Broken("too many options, or too long ones"))?;
        let step = if len > OPTION_BYTES_MAX {
            skip(stream, inbox, len as u64, &mut fill)?;
            handshake.too_big(code, &mut out);
            Step::Next
        } else {
            while inbox.bytes().len() < len {
                if !fill(stream, inbox)? {
                    return Ok(None);
                }
            }
            let step = handshake.option(code, &inbox.bytes()[..len], &mut out)?;
            inbox.consume(len);
            step
        };
        if matches!(step, Step::Transmit(_)) {
            agreed();
        }
        stream.send_bytes(&out)?;
        out.clear();
        match step {
            Step::Next => {}
            Step::End => return Ok(None),
            Step::Transmit(session) => return Ok(Some(session)),
            Step::StartTls => {
                // Options that came before TLS must not be taken for options under it.
                if !inbox.bytes().is_empty() {
                    return Err(
                        Broken("words between the request for TLS and its beginning").into()
                    );
                }
                let config = common.tls.clone().expect("the policy offers only what there is");
                stream.start_tls(rustls::ServerConnection::new(config)?);
                handshake.secured();
            }
        }
    }
}

/// Discards `len` bytes.
fn skip(
    stream: &mut Stream,
    inbox: &mut Inbox,
    mut len: u64,
    fill: &mut impl FnMut(&mut Stream, &mut Inbox) -> io::Result<bool>,
) -> Result<(), Ended> {
    if len > REFUSED_BYTES_MAX {
        return Err(Ended::TooLong(len));
    }
    loop {
        let here = len.min(inbox.bytes().len() as u64);
        inbox.consume(here as usize);
        len -= here;
        if len == 0 {
            return Ok(());
        }
        if !fill(stream, inbox)? {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// The phase of a session in which requests are served.
struct Transmission<'s> {
    session: &'s Session,
    device: &'s dyn BlockDevice,
    stopping: &'s AtomicBool,
    limits: Limits,
    stream: Stream,
    inbox: Inbox,
    outbox: Outbox<'s>,
    /// Counts that are not yet added to the export's counters.
    counts: ExportCounts,
    /// Requests whose replies are prepared and not sent, with the times when they began: at most
    /// those that the inbox had.
    unanswered: Vec<(TimedRequest, Instant)>,
}

/// The outcome of a request. Both cases get a reply; an [`Ended`] does not.
type Outcome = Result<(), Refusal>;

impl Transmission<'_> {
    /// Serves requests until the client disconnects or the stream ends, as it also does when the
    /// server stops.
    fn run(&mut self) -> Result<(), Ended> {
        loop {
            match Unverified::parse(self.inbox.bytes(), self.limits.mode)? {
                None => {
                    self.send()?;
                    if !self.fill()? {
                        return Ok(());
                    }
                    // The device may have grown.
                    let Session { export, mode, block_status } = self.session;
                    self.limits = export.limits(*mode, *block_status);
                }
                Some((request, len)) => {
                    let start = Instant::now();
                    self.inbox.consume(len);
                    let Some(kind) = self.serve(&request)? else { return self.send() };
                    self.unanswered.extend(kind.map(|kind| (kind, start)));
                    // connection-N1.
                    if self.outbox.len() >= OUTBOX_BYTES {
                        self.send()?;
                    }
                }
            }
        }
    }

    /// Sends prepared replies, and adds the counts to the export's counters.
    fn send(&mut self) -> Result<(), Ended> {
        if self.outbox.len() > 0 {
            self.stream.send(&mut self.outbox)?;
            self.counts.sends += 1;
            let (now, times) = (Instant::now(), &self.session.export.times);
            for (kind, start) in self.unanswered.drain(..) {
                times.record_at(kind, start, now);
            }
        }
        self.session.export.counters.take(&mut self.counts);
        Ok(())
    }

    fn fill(&mut self) -> io::Result<bool> {
        self.counts.receives += 1;
        self.inbox.fill(&mut self.stream)
    }

    /// Serves a request and prepares its reply. Returns its kind, if it succeeds and its time is to
    /// be recorded. Returns `None` if it was the last.
    fn serve(&mut self, request: &Unverified) -> Result<Option<Option<TimedRequest>>, Ended> {
        let to = To { cookie: request.cookie(), off: request.off(), is_read: request.is_read() };
        let payload = request.payload_len(self.limits.mode);
        let checked = match request.check(&self.limits) {
            // A disconnect never gets a reply.
            Ok(request @ Request { command: Command::Disconnect, .. }) => Ok(request),
            _ if self.stopping.load(Ordering::Relaxed) => Err(shutting_down()),
            checked => checked,
        };
        let kind = checked.as_ref().ok().and_then(|request| timed(request.command));
        let outcome = match checked {
            Ok(Request { command: Command::Disconnect, .. }) => return Ok(None),
            Ok(request @ Request { command: Command::Write(durability), .. }) => {
                self.write(&request, durability)?
            }
            Ok(request) => self.command(to, &request)?,
            Err(refusal) => {
                self.send()?; // connection-N3
                let Self { stream, inbox, .. } = self;
                skip(stream, inbox, payload, &mut |stream, inbox| inbox.fill(stream))?;
                Err(refusal)
            }
        };
        match outcome {
            Ok(ConnectionAnswer::Given) => {}
            Ok(ConnectionAnswer::Done) => self.outbox.done(to),
            Err(refusal) => {
                self.counts.errors += 1;
                tracing::debug!("{}: {}", self.session.export.name(), refusal.why);
                self.outbox.error(to, &refusal);
                return Ok(Some(None));
            }
        }
        Ok(Some(kind))
    }

    /// Executes a checked request other than a write or a disconnect. A refusal gets a reply; an
    /// [`Ended`] ends the session.
    fn command(
        &mut self,
        to: To,
        request: &Request,
    ) -> Result<Result<ConnectionAnswer, Refusal>, Ended> {
        let Request { off, len, command, .. } = *request;
        let mut durable = |durability| self.counts.fua += u64::from(durability == Durability::Now);
        let done = match command {
            Command::Read { fragment } => return self.read(to, off, len, fragment),
            Command::BlockStatus { one } => return Ok(self.block_status(to, off, len, one)),
            Command::Flush => {
                self.counts.flushes += 1;
                self.device.barrier()
            }
            Command::Trim(durability) => {
                durable(durability);
                self.counts.trims += 1;
                self.in_parts(off, len, |device, off, len| device.discard(off, len)).and_then(
                    |()| match durability {
                        Durability::Now => self.device.barrier(),
                        Durability::AtBarrier => Ok(()),
                    },
                )
            }
            Command::WriteZeroes(how, durability) => {
                durable(durability);
                self.counts.zeroes += 1;
                self.in_parts(off, len, |device, off, len| {
                    device.write_zeroes(off, len, how, durability)
                })
            }
            Command::Cache => {
                self.counts.caches += 1;
                self.in_parts(off, len, |device, off, len| device.prefetch(off, len))
            }
            Command::Write(_) | Command::Disconnect => unreachable!("served by the caller"),
        };
        Ok(done.map(|()| ConnectionAnswer::Done).map_err(Refusal::from))
    }

    /// Does a request that may be longer than the device's limit, in several parts.
    fn in_parts(
        &self,
        mut off: u64,
        mut len: u64,
        each: impl Fn(&dyn BlockDevice, u64, u64) -> Result<(), pmbd::Error>,
    ) -> Result<(), pmbd::Error> {
        let most = u64::from(self.device.block_sizes().maximum);
        while len > 0 {
            let part = len.min(most);
            each(self.device, off, part)?;
            off += part;
            len -= part;
        }
        Ok(())
    }

    /// Stores the payload as it arrives (connection-N2).
    fn write(
        &mut self,
        request: &Request,
        durability: Durability,
    ) -> Result<Result<ConnectionAnswer, Refusal>, Ended> {
        self.counts.writes += 1;
        self.counts.write_bytes += request.len;
        self.counts.fua += u64::from(durability == Durability::Now);
        let unit = PIECE_BYTES.max(self.device.block_sizes().atomic.into());
        let (mut off, mut left) = (request.off, request.len);
        let mut stored = Ok(());
        while left > 0 {
            let here = left.min(self.inbox.bytes().len() as u64);
            let piece = if here == left { here } else { here.saturating_sub((off + here) % unit) };
            if piece == 0 {
                self.send()?; // connection-N3
                if !self.fill()? {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                continue;
            }
            if stored.is_ok() {
                let data = &self.inbox.bytes()[..piece as usize];
                stored = self.device.write(off, data, durability);
            }
            self.inbox.consume(piece as usize);
            off += piece;
            left -= piece;
        }
        Ok(stored.map(|()| ConnectionAnswer::Done).map_err(Refusal::from))
    }

    /// Prepares the reply to a read. With `fragment`, sends ranges of zeros as holes and long
    /// content in pieces.
    fn read(
        &mut self,
        to: To,
        off: u64,
        len: u64,
        fragment: bool,
    ) -> Result<Result<ConnectionAnswer, Refusal>, Ended> {
        self.counts.reads += 1;
        self.counts.read_bytes += len;
        if len == 0 {
            return Ok(Ok(ConnectionAnswer::Done));
        }
        if !fragment || len < SPARSE_BYTES_MIN {
            return Ok(self.content(to, true, off, len).map(|()| ConnectionAnswer::Given));
        }
        let parts = match status::list(self.device, off, len, EXTENTS_MAX) {
            Ok(parts) => parts,
            Err(err) => return Ok(Err(err.into())),
        };
        let (mut off, end) = (off, off + len);
        let mut parts = parts.into_iter();
        while off < end {
            // The part that the list does not cover is sent as content.
            let rest = ReplyStatus { len: end - off, flags: 0 };
            let part = parts.next().unwrap_or(rest);
            if part.flags & wire::STATE_ZERO != 0 {
                // No read is longer than 32 bits can express.
                self.outbox.hole(to, off + part.len == end, off, part.len as u32);
            } else if let Err(refusal) = self.pieces(to, off, part.len, end)? {
                return Ok(Err(refusal));
            }
            off += part.len;
        }
        Ok(Ok(ConnectionAnswer::Given))
    }

    /// Prepares content, in several chunks if it is long.
    fn pieces(&mut self, to: To, mut off: u64, mut len: u64, end: u64) -> Result<Outcome, Ended> {
        while len > 0 {
            let piece = len.min(COPY_BYTES);
            if let Err(refusal) = self.content(to, off + piece == end, off, piece) {
                return Ok(Err(refusal));
            }
            // connection-N1: send the content that was read before reading more.
            if self.outbox.len() >= OUTBOX_BYTES {
                self.send()?;
            }
            off += piece;
            len -= piece;
        }
        Ok(Ok(()))
    }

    /// Prepares one chunk of content. If it cannot be read, no part of the chunk is sent.
    fn content(&mut self, to: To, last: bool, off: u64, len: u64) -> Outcome {
        let mark = self.outbox.mark();
        self.outbox.content(to, last, off, len as usize);
        let lying = if self.stream.is_tls() { None } else { self.device.bytes(off, len) };
        match lying {
            Some(bytes) => self.outbox.device(bytes),
            None => {
                if let Err(err) = self.device.read(off, self.outbox.room(len as usize)) {
                    self.outbox.back_to(&mark);
                    return Err(err.into());
                }
            }
        }
        Ok(())
    }

    /// Prepares the reply to a request for block status; with `one`, for a single extent.
    fn block_status(
        &mut self,
        to: To,
        off: u64,
        len: u64,
        one: bool,
    ) -> Result<ConnectionAnswer, Refusal> {
        self.counts.block_status += 1;
        let most = if one { 1 } else { EXTENTS_MAX };
        let list = status::list(self.device, off, len, most)?;
        self.outbox.block_status(to, &list);
        Ok(ConnectionAnswer::Given)
    }
}

/// Returns the kind of a request whose time is recorded.
fn timed(command: Command) -> Option<TimedRequest> {
    match command {
        Command::Read { .. } => Some(TimedRequest::Read),
        Command::Write(_) => Some(TimedRequest::Write),
        Command::Flush => Some(TimedRequest::Flush),
        Command::Trim(_) => Some(TimedRequest::Discard),
        Command::WriteZeroes(..) => Some(TimedRequest::Zero),
        Command::Cache | Command::BlockStatus { .. } | Command::Disconnect => None,
    }
}

/// The state of the reply to a request.
enum ConnectionAnswer {
    /// It is in the outbox.
    Given,
    /// It is not, and contains nothing but "done".
    Done,
}
