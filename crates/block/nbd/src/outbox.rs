//! Prepared replies: heads in a buffer, and content in place.
//!
//! One system call sends the replies to several requests. If the device returns its content in
//! place ([`pmbd::BlockDevice::bytes`]), the kernel copies it once, from PM to the socket.

use crate::request::{Mode, Refusal};
use crate::status::ReplyStatus;
use crate::wire::{self, Code, chunk};
use std::ops::Range;
use std::sync::atomic::AtomicU8;
use zerocopy::IntoBytes as _;

/// The longest message of an error, in bytes.
const MESSAGE_BYTES_MAX: usize = 512;

/// A piece of the replies.
pub(crate) enum ReplyPart<'d> {
    /// A range of [`Outbox::own`].
    Own(Range<usize>),
    /// Content of the device, in place.
    Device(&'d [AtomicU8]),
}

/// Replies that wait to be sent.
pub(crate) struct Outbox<'d> {
    mode: Mode,
    own: Vec<u8>,
    parts: Vec<ReplyPart<'d>>,
    len: usize,
}

/// The request that a reply answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub cookie: u64,
    pub off: u64,
    pub is_read: bool,
}

/// A position in an outbox.
pub(crate) struct Mark {
    own: usize,
    parts: usize,
    len: usize,
}

impl<'d> Outbox<'d> {
    pub fn new(mode: Mode) -> Self {
        Self { mode, own: Vec::with_capacity(4096), parts: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn own(&self) -> &[u8] {
        &self.own
    }

    pub fn parts(&self) -> &[ReplyPart<'d>] {
        &self.parts
    }

    /// Empties the outbox, which has been sent. Frees memory for unusually long content.
    pub fn clear(&mut self) {
        self.own.clear();
        self.own.shrink_to(super::connection::OUTBOX_BYTES);
        self.parts.clear();
        self.len = 0;
    }

    /// Returns the current end, to return to it if content cannot be read.
    pub fn mark(&self) -> Mark {
        Mark { own: self.own.len(), parts: self.parts.len(), len: self.len }
    }

    /// Removes everything after `mark`.
    pub fn back_to(&mut self, mark: &Mark) {
        self.own.truncate(mark.own);
        self.parts.truncate(mark.parts);
        if let Some(ReplyPart::Own(range)) = self.parts.last_mut() {
            range.end = range.end.min(mark.own);
        }
        self.len = mark.len;
    }

    /// Adds a reply without content.
    pub fn done(&mut self, to: To) {
        if self.is_chunked(to) {
            self.chunk(to, chunk::DONE, chunk::NONE, 0);
        } else {
            self.simple(to, 0);
        }
    }

    /// Adds a reply with an error.
    pub fn error(&mut self, to: To, refusal: &Refusal) {
        if self.mode == Mode::Simple {
            return self.simple(to, refusal.code as u32);
        }
        let why = refusal.why.as_bytes();
        let why = &why[..refusal.why.floor_char_boundary(MESSAGE_BYTES_MAX)];
        self.chunk(to, chunk::DONE, chunk::ERROR, 6 + why.len());
        self.push(&(refusal.code as u32).to_be_bytes());
        self.push(&(why.len() as u16).to_be_bytes());
        self.push(why);
    }

    /// Adds the head of `len` bytes of content from `off`. The caller must add these next.
    pub fn content(&mut self, to: To, last: bool, off: u64, len: usize) {
        if self.mode == Mode::Simple {
            return self.simple(to, 0);
        }
        self.chunk(to, done(last), chunk::OFFSET_DATA, 8 + len);
        self.push(&off.to_be_bytes());
    }

    /// Adds content in place.
    pub fn device(&mut self, bytes: &'d [AtomicU8]) {
        self.parts.push(ReplyPart::Device(bytes));
        self.len += bytes.len();
    }

    /// Adds `len` bytes of content, and returns them for the caller to fill in.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.own.len();
        self.own.resize(start + len, 0);
        self.note_own(start);
        &mut self.own[start..]
    }

    /// Adds content that is all zeros.
    pub fn hole(&mut self, to: To, last: bool, off: u64, len: u32) {
        self.chunk(to, done(last), chunk::OFFSET_HOLE, 12);
        self.push(&off.to_be_bytes());
        self.push(&len.to_be_bytes());
    }

    /// Adds block status.
    pub fn block_status(&mut self, to: To, list: &[ReplyStatus]) {
        let id = wire::BASE_ALLOCATION_ID.to_be_bytes();
        if self.mode == Mode::Extended {
            self.chunk(to, chunk::DONE, chunk::BLOCK_STATUS_EXT, 8 + 16 * list.len());
            self.push(&id);
            self.push(&(list.len() as u32).to_be_bytes());
            for status in list {
                self.push(&status.len.to_be_bytes());
                self.push(&u64::from(status.flags).to_be_bytes());
            }
        } else {
            self.chunk(to, chunk::DONE, chunk::BLOCK_STATUS, 4 + 8 * list.len());
            self.push(&id);
            for status in list {
                // The length of a request in this mode has 32 bits, and so has that of its answer.
                self.push(&(status.len as u32).to_be_bytes());
                self.push(&status.flags.to_be_bytes());
            }
        }
    }

    /// Whether a reply without content has to be structured. Otherwise a simple reply is 4 bytes
    /// shorter.
    fn is_chunked(&self, to: To) -> bool {
        self.mode == Mode::Extended || self.mode == Mode::Structured && to.is_read
    }

    /// Adds the head of a simple reply, with error number `error` (0: none).
    fn simple(&mut self, to: To, error: u32) {
        let head = wire::SimpleReply {
            magic: wire::SIMPLE_REPLY_MAGIC.into(),
            error: error.into(),
            cookie: to.cookie.into(),
        };
        self.push(head.as_bytes());
    }

    /// Adds the head of a chunk of a structured or extended reply. The caller then adds its `len`
    /// bytes of payload.
    fn chunk(&mut self, to: To, flags: u16, kind: u16, len: usize) {
        if self.mode == Mode::Extended {
            let head = wire::ExtendedChunk {
                magic: wire::EXTENDED_REPLY_MAGIC.into(),
                flags: flags.into(),
                kind: kind.into(),
                cookie: to.cookie.into(),
                off: to.off.into(),
                len: (len as u64).into(),
            };
            self.push(head.as_bytes());
        } else {
            let head = wire::StructuredChunk {
                magic: wire::STRUCTURED_REPLY_MAGIC.into(),
                flags: flags.into(),
                kind: kind.into(),
                cookie: to.cookie.into(),
                len: (len as u32).into(),
            };
            self.push(head.as_bytes());
        }
    }

    /// Adds bytes of heads.
    fn push(&mut self, bytes: &[u8]) {
        let start = self.own.len();
        self.own.extend_from_slice(bytes);
        self.note_own(start);
    }

    /// Adds the bytes of `own` from `start` on as the next part.
    fn note_own(&mut self, start: usize) {
        let end = self.own.len();
        match self.parts.last_mut() {
            Some(ReplyPart::Own(range)) => range.end = end,
            _ => self.parts.push(ReplyPart::Own(start..end)),
        }
        self.len += end - start;
    }
}

fn done(last: bool) -> u16 {
    if last { chunk::DONE } else { 0 }
}

/// Returns the refusal of a server that ends.
pub(crate) fn shutting_down() -> Refusal {
    Refusal::new(Code::Shutdown, "the server is ending")
}
