//! Negotiation, from the greeting to the first request, without the socket.
//!
//! - **handshake-H1** No input makes it panic; an option longer than [`OPTION_BYTES_MAX`] is not
//!   parsed.
//! - **handshake-H2** When TLS begins, all earlier options are forgotten: they may not have come
//!   from the client.
//! - **handshake-H3** If TLS is required, the server reveals nothing about exports without it.

use crate::export::{BLOCK_ASSUMED, Export, Exports};
use crate::request::Mode;
use crate::wire::{self, OLD_PADDING, STRING_BYTES_MAX, handshake, info, option, reply};
use std::sync::Arc;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// The longest option that is parsed, in bytes (handshake-H1).
pub const OPTION_BYTES_MAX: usize = 64 << 10;

/// Whether a server uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Never.
    Off,
    /// If the client asks for it.
    Offered,
    /// Always.
    Required,
}

/// The step that follows an option.
pub enum Step {
    /// The next option.
    Next,
    /// TLS, then the next option.
    StartTls,
    /// Requests.
    Transmit(Session),
    /// Nothing.
    End,
}

/// The result of a negotiation.
#[derive(Clone)]
pub struct Session {
    /// The export that the session uses.
    pub export: Arc<Export>,
    /// The form of replies.
    pub mode: Mode,
    /// Whether requests for block status are allowed.
    pub block_status: bool,
}

/// The server's side of negotiation.
pub struct Handshake<'a> {
    exports: &'a Exports,
    tls: TlsPolicy,
    /// Whether TLS has begun.
    secure: bool,
    /// Whether a negotiation that ends by `EXPORT_NAME` has no padding.
    no_zeroes: bool,
    /// Whether options can be answered by errors.
    fixed: bool,
    mode: Mode,
    /// The export for which a metadata context was set: a context belongs to one export.
    context_of: Option<Vec<u8>>,
}

/// The client has broken the protocol in a way that cannot be answered by an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client broke the protocol: {0}")]
pub struct Broken(pub &'static str);

/// Returns the server's greeting.
pub fn greeting() -> wire::Greeting {
    wire::Greeting {
        init: wire::INIT_MAGIC.into(),
        option: wire::OPTION_MAGIC.into(),
        flags: (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).into(),
    }
}

/// Returns code and length of the option at the start of `bytes`; `None` if its head is incomplete.
pub fn option_head(bytes: &[u8]) -> Result<Option<(u32, usize)>, Broken> {
    let Ok((head, _)) = wire::OptionHeader::ref_from_prefix(bytes) else {
        return Ok(None);
    };
    if head.magic.get() != wire::OPTION_MAGIC {
        return Err(Broken("an option without its magic number"));
    }
    Ok(Some((head.code.get(), head.len.get() as usize)))
}

impl<'a> Handshake<'a> {
    /// Begins with a new client, whose answer to the greeting was `flags`.
    pub fn new(exports: &'a Exports, tls: TlsPolicy, flags: u32) -> Result<Self, Broken> {
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return Err(Broken("flags that were not offered"));
        }
        Ok(Self {
            exports,
            tls,
            secure: false,
            no_zeroes: flags & u32::from(handshake::NO_ZEROES) != 0,
            fixed: flags & u32::from(handshake::FIXED_NEWSTYLE) != 0,
            mode: Mode::Simple,
            context_of: None,
        })
    }

    /// Forgets all earlier options, as TLS has begun (handshake-H2).
    pub fn secured(&mut self) {
        self.secure = true;
        self.mode = Mode::Simple;
        self.context_of = None;
    }

    /// Answers an option that is too long to be parsed.
    pub fn too_big(&self, code: u32, out: &mut Vec<u8>) {
        error(out, code, reply::ERR_TOO_BIG, "the option is too long");
    }

    /// Answers an option: appends the reply to `out`, and returns the step that follows. An option
    /// that is refused also gets a reply.
    ///
    /// # Errors
    /// [`Broken`]: the server must close the connection.
    pub fn option(&mut self, code: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Broken> {
        if code == option::EXPORT_NAME {
            return self.export_name(data, out).map(Step::Transmit);
        }
        if !self.fixed {
            return Err(Broken("an option after an answer that excludes them"));
        }
        if self.tls == TlsPolicy::Required
            && !self.secure
            && !matches!(code, option::STARTTLS | option::ABORT)
        {
            error(out, code, reply::ERR_TLS_REQD, "this server wants TLS first"); // handshake-H3
            return Ok(Step::Next);
        }
        match code {
            option::ABORT => {
                send(out, code, reply::ACK, &[]);
                return Ok(Step::End);
            }
            option::STARTTLS => return Ok(self.start_tls(data, out)),
            option::LIST => self.list(data, out),
            option::INFO | option::GO => return Ok(self.info(code, data, out)),
            option::STRUCTURED_REPLY => self.upgrade(code, data, Mode::Structured, out),
            option::EXTENDED_HEADERS => self.upgrade(code, data, Mode::Extended, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(code, data, out);
            }
            _ => error(out, code, reply::ERR_UNSUP, "not known here"),
        }
        Ok(Step::Next)
    }

    /// Answers `EXPORT_NAME`, the old option, which begins a session. It has no reply for errors.
    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Result<Session, Broken> {
        if self.tls == TlsPolicy::Required && !self.secure {
            return Err(Broken("no TLS although it is required"));
        }
        let export = self.exports.find(name).ok_or(Broken("an export that does not exist"))?;
        if export.block_sizes().minimum > BLOCK_ASSUMED {
            return Err(Broken("no question for the block size, which is not the usual one"));
        }
        out.extend(export.device().size().to_be_bytes());
        out.extend(export.flags(self.mode).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; OLD_PADDING]);
        }
        Ok(self.session(export))
    }

    /// Makes the session on `export` with the negotiated mode and metadata context.
    fn session(&self, export: &Arc<Export>) -> Session {
        let named = self.context_of.as_ref().and_then(|name| self.exports.find(name));
        Session {
            export: export.clone(),
            mode: self.mode,
            block_status: named.is_some_and(|named| Arc::ptr_eq(named, export)),
        }
    }

    /// Answers `STARTTLS`.
    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let code = option::STARTTLS;
        if !data.is_empty() || self.secure {
            error(out, code, reply::ERR_INVALID, "TLS begins once, and without further words");
        } else if self.tls == TlsPolicy::Off {
            error(out, code, reply::ERR_POLICY, "this server has no certificate");
        } else {
            send(out, code, reply::ACK, &[]);
            return Step::StartTls;
        }
        Step::Next
    }

    /// Answers `LIST` with names and descriptions of all exports.
    fn list(&self, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            return error(out, option::LIST, reply::ERR_INVALID, "a list needs no further words");
        }
        for export in self.exports.iter() {
            let mut item = Vec::new();
            item.extend((export.name().len() as u32).to_be_bytes());
            item.extend(export.name().as_bytes());
            item.extend(export.description().as_bytes());
            send(out, option::LIST, reply::SERVER, &item);
        }
        send(out, option::LIST, reply::ACK, &[]);
    }

    /// Answers `INFO` or `GO` (`code`) with size, flags and block sizes of an export. `GO` begins
    /// the session.
    fn info(&self, code: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = info_request(data) else {
            error(out, code, reply::ERR_INVALID, "not a question about an export");
            return Step::Next;
        };
        let Some(export) = self.exports.find(name) else {
            error(out, code, reply::ERR_UNKNOWN, "there is no export of that name");
            return Step::Next;
        };
        let sizes = export.block_sizes();
        if code == option::GO
            && sizes.minimum > BLOCK_ASSUMED
            && !wanted.contains(&info::BLOCK_SIZE)
        {
            error(out, code, reply::ERR_BLOCK_SIZE_REQD, "ask for the block size; it is unusual");
            return Step::Next;
        }
        let mut fact = |kind: u16, parts: &[&[u8]]| {
            send(
                out,
                code,
                reply::INFO,
                &[&kind.to_be_bytes(), parts.concat().as_slice()].concat(),
            );
        };
        let (size, flags) = (export.device().size(), export.flags(self.mode));
        fact(info::EXPORT, &[&size.to_be_bytes(), &flags.to_be_bytes()]);
        let units = [sizes.minimum, sizes.preferred, sizes.maximum].map(u32::to_be_bytes);
        fact(info::BLOCK_SIZE, &[&units[0], &units[1], &units[2]]);
        if wanted.contains(&info::NAME) {
            fact(info::NAME, &[export.name().as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description().is_empty() {
            fact(info::DESCRIPTION, &[export.description().as_bytes()]);
        }
        send(out, code, reply::ACK, &[]);
        if code == option::GO { Step::Transmit(self.session(export)) } else { Step::Next }
    }

    /// Answers an option that changes the form of replies to `mode`. A later option never changes
    /// it back.
    fn upgrade(&mut self, code: u32, data: &[u8], mode: Mode, out: &mut Vec<u8>) {
        if !data.is_empty() {
            return error(out, code, reply::ERR_INVALID, "this option needs no further words");
        }
        self.mode = self.mode.max(mode);
        send(out, code, reply::ACK, &[]);
    }

    /// Answers `LIST_META_CONTEXT` or `SET_META_CONTEXT` (`code`): the only context is
    /// `base:allocation`.
    fn meta_context(&mut self, code: u32, data: &[u8], out: &mut Vec<u8>) {
        let set = code == option::SET_META_CONTEXT;
        if set {
            // Even if this choice fails, it replaces the one before.
            self.context_of = None;
        }
        let Some((name, queries)) = context_request(data) else {
            return error(out, code, reply::ERR_INVALID, "not a question for metadata contexts");
        };
        if self.mode == Mode::Simple {
            let why = "metadata comes in structured replies; ask for them first";
            return error(out, code, reply::ERR_INVALID, why);
        }
        if self.exports.find(name).is_none() {
            return error(out, code, reply::ERR_UNKNOWN, "there is no export of that name");
        }
        let all = !set && queries.is_empty();
        let asked =
            |query: &[u8]| query == wire::BASE_ALLOCATION.as_bytes() || !set && query == b"base:";
        if all || queries.into_iter().any(asked) {
            // The number has no meaning in a list.
            let id = if set { wire::BASE_ALLOCATION_ID } else { 0 };
            let item = [&id.to_be_bytes(), wire::BASE_ALLOCATION.as_bytes()].concat();
            send(out, code, reply::META_CONTEXT, &item);
            if set {
                self.context_of = Some(name.to_owned());
            }
        }
        send(out, code, reply::ACK, &[]);
    }
}

/// Splits off a string with its length (32 bits, big-endian) in front. Returns it and the rest.
/// `None` if it is incomplete or longer than [`STRING_BYTES_MAX`].
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first_chunk()?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > STRING_BYTES_MAX {
        return None;
    }
    rest.split_at_checked(len)
}

/// Parses the name of an export and the requested facts.
fn info_request(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = string(data)?;
    let (count, rest) = rest.split_first_chunk()?;
    let (kinds, tail) = rest.as_chunks();
    let whole = tail.is_empty() && kinds.len() == usize::from(u16::from_be_bytes(*count));
    whole.then(|| (name, kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect()))
}

/// Parses the name of an export and the requested contexts.
fn context_request(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = string(data)?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (query, tail) = string(rest)?;
        queries.push(query);
        rest = tail;
    }
    rest.is_empty().then_some((name, queries))
}

/// Appends a reply of this `kind` to the option `code`.
fn send(out: &mut Vec<u8>, code: u32, kind: u32, data: &[u8]) {
    let head = wire::OptionReply {
        magic: wire::OPTION_REPLY_MAGIC.into(),
        code: code.into(),
        kind: kind.into(),
        len: (data.len() as u32).into(),
    };
    out.extend(head.as_bytes());
    out.extend(data);
}

fn error(out: &mut Vec<u8>, code: u32, kind: u32, why: &str) {
    send(out, code, kind, why.as_bytes());
}
