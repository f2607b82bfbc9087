//! Requests of clients, and the checks before they are served.
//!
//! - **request-Q1** No input makes the parser panic, and it keeps no state.
//! - **request-Q2** The length of the payload is known before the request is checked, so that the
//!   payload of a refused request is not taken for the next request.
//! - **request-Q3** A [`Request`] lies within its export, consists of whole blocks and has only
//!   flags that are defined for its command.

use crate::wire::{self, Code, command, flag};
use pmbd::{Durability, Zeroing};
use zerocopy::FromBytes;

/// The negotiated form of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Simple replies.
    Simple,
    /// Structured replies to requests whose reply has content.
    Structured,
    /// Requests and replies with 64-bit lengths; every reply is structured.
    Extended,
}

/// The limits of a session's requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The negotiated mode.
    pub mode: Mode,
    /// Size of the export in bytes.
    pub size: u64,
    /// Bytes of a block; requests consist of whole blocks.
    pub block: u32,
    /// The longest read or payload, in bytes.
    pub len_max: u32,
    /// Whether requests that store are refused.
    pub read_only: bool,
    /// Whether `BLOCK_STATUS` was negotiated.
    pub block_status: bool,
}

/// The stream does not follow the protocol: it is unknown where the next request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:#x} is not the start of a request")]
pub struct OutOfStep(pub u32);

/// A request as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unverified {
    flags: u16,
    kind: u16,
    cookie: u64,
    off: u64,
    len: u64,
}

/// A request that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number that its replies repeat.
    pub cookie: u64,
    /// First byte.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// The command.
    pub command: Command,
}

/// The operation on the range of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send its content.
    Read {
        /// Whether the content may be sent in several chunks.
        fragment: bool,
    },
    /// Store the payload.
    Write(Durability),
    /// End the session.
    Disconnect,
    /// Make everything durable.
    Flush,
    /// Discard its content, which is not needed any more.
    Trim(Durability),
    /// Prefetch it.
    Cache,
    /// Store zeros.
    WriteZeroes(Zeroing, Durability),
    /// Report the extents with data.
    BlockStatus {
        /// Whether to report only the first extent.
        one: bool,
    },
}

/// The reason why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error code for the client.
    pub code: Code,
    /// The text for its user.
    pub why: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

impl From<pmbd::Error> for Refusal {
    fn from(err: pmbd::Error) -> Self {
        let code = match &err {
            pmbd::Error::OutOfRange { .. } | pmbd::Error::Misaligned { .. } => Code::Inval,
            pmbd::Error::ReadOnly => Code::Perm,
            pmbd::Error::NotSupported => Code::NotSup,
            pmbd::Error::Io(err) if err.kind() == std::io::ErrorKind::StorageFull => Code::NoSpc,
            _ => Code::Io,
        };
        Self::new(code, err.to_string())
    }
}

impl Unverified {
    /// Parses the request at the start of `bytes` (request-Q1). Returns it and its length without
    /// payload; `None` if it is incomplete.
    pub fn parse(bytes: &[u8], mode: Mode) -> Result<Option<(Self, usize)>, OutOfStep> {
        let expected = match mode {
            Mode::Extended => wire::EXTENDED_REQUEST_MAGIC,
            _ => wire::REQUEST_MAGIC,
        };
        // Check the first four bytes at once: a client of another protocol may never send the rest.
        if let Some(magic) = bytes.first_chunk() {
            let magic = u32::from_be_bytes(*magic);
            if magic != expected {
                return Err(OutOfStep(magic));
            }
        }
        Ok(match mode {
            Mode::Extended => wire::ExtendedRequest::ref_from_prefix(bytes).ok().map(|(r, _)| {
                let (flags, kind, cookie) = (r.flags.get(), r.kind.get(), r.cookie.get());
                (Self { flags, kind, cookie, off: r.off.get(), len: r.len.get() }, size_of_val(r))
            }),
            _ => wire::CompactRequest::ref_from_prefix(bytes).ok().map(|(r, _)| {
                let (flags, kind, cookie) = (r.flags.get(), r.kind.get(), r.cookie.get());
                let len = u64::from(r.len.get());
                (Self { flags, kind, cookie, off: r.off.get(), len }, size_of_val(r))
            }),
        })
    }

    /// The number that its replies repeat.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Returns the offset of the first byte, for replies with extended headers.
    pub fn off(&self) -> u64 {
        self.off
    }

    /// Whether the request is a read, whose reply in [`Mode::Structured`] is always structured.
    pub fn is_read(&self) -> bool {
        self.kind == command::READ
    }

    /// Returns the bytes of the payload that follows (request-Q2). A write has one even if the
    /// client forgot the flag.
    pub fn payload_len(&self, mode: Mode) -> u64 {
        let has = self.kind == command::WRITE
            || mode == Mode::Extended && self.flags & flag::PAYLOAD_LEN != 0;
        if has { self.len } else { 0 }
    }

    /// Returns the checked request, if `limits` allow it (request-Q3).
    pub fn check(&self, limits: &Limits) -> Result<Request, Refusal> {
        let command = self.command(limits)?;
        match command {
            Command::Disconnect | Command::Flush => {}
            _ => self.check_range(limits, &command)?,
        }
        Ok(Request { cookie: self.cookie, off: self.off, len: self.len, command })
    }

    /// Returns the command with its flags. Refuses unknown commands and flags, and stores to a
    /// read-only export.
    fn command(&self, limits: &Limits) -> Result<Command, Refusal> {
        let mut known = flag::FUA;
        let flagged = |flag| self.flags & flag != 0;
        let durability = if flagged(flag::FUA) { Durability::Now } else { Durability::AtBarrier };
        let zeroing =
            Zeroing { keep_space: flagged(flag::NO_HOLE), only_fast: flagged(flag::FAST_ZERO) };
        let command = match self.kind {
            command::READ => {
                known |= if limits.mode == Mode::Simple { 0 } else { flag::DF };
                Command::Read { fragment: limits.mode != Mode::Simple && !flagged(flag::DF) }
            }
            command::WRITE => {
                known |= if limits.mode == Mode::Extended { flag::PAYLOAD_LEN } else { 0 };
                Command::Write(durability)
            }
            command::DISC => Command::Disconnect,
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim(durability),
            command::CACHE => Command::Cache,
            command::WRITE_ZEROES => {
                known |= flag::NO_HOLE | flag::FAST_ZERO;
                Command::WriteZeroes(zeroing, durability)
            }
            command::BLOCK_STATUS if limits.block_status => {
                known |= flag::REQ_ONE;
                Command::BlockStatus { one: flagged(flag::REQ_ONE) }
            }
            command::BLOCK_STATUS => {
                return Err(Refusal::new(Code::Inval, "no metadata context was negotiated"));
            }
            other => return Err(Refusal::new(Code::Inval, format!("unknown command {other}"))),
        };
        match self.flags & !known {
            // A disconnect is accepted with any flags.
            _ if command == Command::Disconnect => {}
            0 => {}
            flags => {
                let why = format!("flags {flags:#x} mean nothing to command {}", self.kind);
                return Err(Refusal::new(Code::Inval, why));
            }
        }
        if limits.read_only && command.stores() {
            return Err(Refusal::new(Code::Perm, "the export is read-only"));
        }
        Ok(command)
    }

    /// Refuses a range that is too long, not of whole blocks, or beyond the end of the export.
    fn check_range(&self, limits: &Limits, command: &Command) -> Result<(), Refusal> {
        let Self { off, len, .. } = *self;
        if off.checked_add(len).is_none_or(|end| end > limits.size) {
            let code = match command {
                Command::Write(_) | Command::WriteZeroes(..) => Code::NoSpc,
                _ => Code::Inval,
            };
            let why = format!("{len} bytes at {off} reach beyond the end at {}", limits.size);
            return Err(Refusal::new(code, why));
        }
        let block = u64::from(limits.block);
        if !off.is_multiple_of(block) || !len.is_multiple_of(block) {
            let why = format!("{len} bytes at {off} are not whole blocks of {block} bytes");
            return Err(Refusal::new(Code::Inval, why));
        }
        if command.moves_content() && len > u64::from(limits.len_max) {
            let code = match command {
                Command::Read { fragment: false } if limits.mode != Mode::Simple => Code::Overflow,
                _ => Code::Inval,
            };
            let why = format!("{len} bytes are more than the {} of a request", limits.len_max);
            return Err(Refusal::new(code, why));
        }
        if len == 0 && matches!(command, Command::BlockStatus { .. }) {
            return Err(Refusal::new(Code::Inval, "no bytes have no status"));
        }
        Ok(())
    }
}

impl Command {
    /// Whether it changes the export.
    fn stores(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Trim(_) | Self::WriteZeroes(..))
    }

    fn moves_content(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Write(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    const LIMITS: Limits = Limits {
        mode: Mode::Structured,
        size: 1 << 20,
        block: 512,
        len_max: 1 << 16,
        read_only: false,
        block_status: true,
    };

    fn request(kind: u16, flags: u16, off: u64, len: u64) -> Unverified {
        Unverified { flags, kind, cookie: 7, off, len }
    }

    fn code(kind: u16, flags: u16, off: u64, len: u64, limits: &Limits) -> Option<Code> {
        request(kind, flags, off, len).check(limits).err().map(|refusal| refusal.code)
    }

    #[test]
    fn a_request_is_read_as_it_is_written() {
        let compact = wire::CompactRequest {
            magic: wire::REQUEST_MAGIC.into(),
            flags: flag::FUA.into(),
            kind: command::WRITE.into(),
            cookie: 7.into(),
            off: 512.into(),
            len: 1024.into(),
        };
        let bytes = compact.as_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(Unverified::parse(&bytes[..cut], Mode::Simple), Ok(None));
        }
        let (parsed, len) = Unverified::parse(bytes, Mode::Structured).unwrap().unwrap();
        assert_eq!(len, 28);
        assert_eq!(parsed, request(command::WRITE, flag::FUA, 512, 1024));
        assert_eq!(parsed.payload_len(Mode::Structured), 1024);
        assert_eq!(Unverified::parse(bytes, Mode::Extended), Err(OutOfStep(wire::REQUEST_MAGIC)));
    }

    #[test]
    fn what_is_wrong_has_the_code_that_the_specification_wants() {
        let end = LIMITS.size;
        for (kind, flags, off, len, expected) in [
            (command::READ, 0, 0, 512, None),
            (command::READ, flag::FUA | flag::DF, 0, 512, None),
            (command::READ, 0, end, 512, Some(Code::Inval)),
            (command::READ, 0, u64::MAX - 511, 512, Some(Code::Inval)),
            (command::READ, 0, 0, 1 << 17, Some(Code::Inval)),
            (command::READ, flag::DF, 0, 1 << 17, Some(Code::Overflow)),
            (command::READ, flag::NO_HOLE, 0, 512, Some(Code::Inval)),
            (command::READ, 0, 1, 512, Some(Code::Inval)),
            (command::WRITE, 0, end - 512, 1024, Some(Code::NoSpc)),
            (command::WRITE, flag::PAYLOAD_LEN, 0, 512, Some(Code::Inval)),
            (command::WRITE_ZEROES, flag::FAST_ZERO | flag::NO_HOLE, 0, end, None),
            (command::WRITE_ZEROES, 0, 512, end, Some(Code::NoSpc)),
            (command::TRIM, 0, 512, end, Some(Code::Inval)),
            (command::TRIM, flag::FUA, 0, end, None),
            (command::FLUSH, 0, u64::MAX, 3, None),
            (command::BLOCK_STATUS, flag::REQ_ONE, 0, end, None),
            (command::BLOCK_STATUS, 0, 0, 0, Some(Code::Inval)),
            (command::DISC, u16::MAX, 1, 1, None),
            (99, 0, 0, 0, Some(Code::Inval)),
        ] {
            assert_eq!(
                code(kind, flags, off, len, &LIMITS),
                expected,
                "{kind} {flags} {off} {len}"
            );
        }
        let read_only = Limits { read_only: true, ..LIMITS };
        for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(code(kind, 0, 0, 512, &read_only), Some(Code::Perm));
        }
        let simple = Limits { mode: Mode::Simple, block_status: false, ..LIMITS };
        assert_eq!(code(command::READ, flag::DF, 0, 512, &simple), Some(Code::Inval));
        assert_eq!(code(command::BLOCK_STATUS, 0, 0, 512, &simple), Some(Code::Inval));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64),
                                  extended: bool, magic: bool, read_only: bool) {
            let mode = if extended { Mode::Extended } else { Mode::Structured };
            let start = if extended { wire::EXTENDED_REQUEST_MAGIC } else { wire::REQUEST_MAGIC };
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&start.to_be_bytes());
            }
            let limits = Limits { mode, read_only, ..LIMITS };
            if let Ok(Some((request, len))) = Unverified::parse(&bytes, mode) {
                prop_assert!(len <= bytes.len());
                if let Ok(checked) = request.check(&limits) && checked.command.moves_content() {
                    prop_assert!(checked.off + checked.len <= limits.size);
                    prop_assert!(checked.len <= u64::from(limits.len_max));
                }
            }
        }
    }
}
