//! An NBD client that only keeps requests in flight. To the time of a server it adds two system
//! calls for as many requests as fit into a buffer.
//!
//! `libnbd` (and so fio's engine) takes longer for a request than the servers under test, so it
//! would measure itself.

use ::nbd::wire::{CompactRequest, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, SimpleReply, command};
use anyhow::{Context as _, Result, ensure};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use zerocopy::IntoBytes as _;

/// Bytes of a reply without content.
const REPLY_BYTES: usize = size_of::<SimpleReply>();

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `NBD_CMD_READ`
    Read = command::READ as isize,
    /// `NBD_CMD_WRITE`
    Write = command::WRITE as isize,
    /// `NBD_CMD_FLUSH`
    Flush = command::FLUSH as isize,
}

/// A connection to the default export of a server.
pub struct Client {
    stream: UnixStream,
    /// Bytes of the export.
    size: u64,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl Client {
    /// Connects; replies will be simple ones.
    pub fn connect(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)
            .with_context(|| format!("{}: cannot connect", socket.display()))?;
        let begun = ::nbd::client::begin(&mut stream);
        let size = begun.context("no session; has the server a default export?")?.size;
        ensure!(size > 0, "the export is empty");
        Ok(Self { stream, size, out: Vec::new(), input: vec![0; 1 << 20] })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Does `count` requests of `len` bytes at the offsets that `off` returns, `depth` of them in
    /// flight. Each answered request is followed by a new one.
    pub fn run(
        &mut self,
        kind: Kind,
        count: u64,
        depth: u64,
        len: usize,
        mut off: impl FnMut() -> u64,
    ) -> io::Result<()> {
        let reply_bytes = REPLY_BYTES + if kind == Kind::Read { len } else { 0 };
        let (mut sent, mut answered, mut have) = (0, 0, 0);
        while answered < count {
            let more = (count - sent).min(depth - (sent - answered));
            self.out.clear();
            for cookie in sent..sent + more {
                self.request(kind, cookie, off(), len);
            }
            self.stream.write_all(&self.out)?;
            sent += more;
            have += self.stream.read(&mut self.input[have..])?;
            let whole = have / reply_bytes;
            for reply in self.input[..whole * reply_bytes].chunks_exact(reply_bytes) {
                if reply[..4] != SIMPLE_REPLY_MAGIC.to_be_bytes() || reply[4..8] != [0; 4] {
                    return Err(io::Error::other("the server failed a request"));
                }
            }
            answered += whole as u64;
            self.input.copy_within(whole * reply_bytes..have, 0);
            have -= whole * reply_bytes;
        }
        Ok(())
    }

    /// Adds a request to the output; a write gets `len` bytes of content.
    fn request(&mut self, kind: Kind, cookie: u64, off: u64, len: usize) {
        let (off, len) = if kind == Kind::Flush { (0, 0) } else { (off, len) };
        let request = CompactRequest {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            kind: (kind as u16).into(),
            cookie: cookie.into(),
            off: off.into(),
            len: (len as u32).into(),
        };
        self.out.extend(request.as_bytes());
        if kind == Kind::Write {
            self.out.resize(self.out.len() + len, 0x5a);
        }
    }
}
