//! An NBD client that does nothing but keep requests in flight: what it adds to the time of a server is
//! two system calls for as many requests as fit.
//!
//! `libnbd` (and so fio's engine) takes longer for a request than the servers under test; a comparison by
//! it would be one of itself.

use anyhow::{Context as _, Result, ensure};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const EXPORT_NAME: u32 = 1;
const FIXED_NO_ZEROES: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Bytes of a reply without content.
const REPLY_BYTES: usize = 16;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `NBD_CMD_READ`
    Read = 0,
    /// `NBD_CMD_WRITE`
    Write = 1,
    /// `NBD_CMD_FLUSH`
    Flush = 3,
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
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let mut hello = FIXED_NO_ZEROES.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(EXPORT_NAME.to_be_bytes());
        hello.extend(0u32.to_be_bytes());
        stream.write_all(&hello)?;
        let mut export = [0; 10];
        stream.read_exact(&mut export).context("the server has no default export")?;
        let size = u64::from_be_bytes(*export.first_chunk().context("ten bytes have eight")?);
        ensure!(size > 0, "the export is empty");
        Ok(Self { stream, size, out: Vec::new(), input: vec![0; 1 << 20] })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Does `count` requests of `len` bytes at what `off` says, `depth` of them in flight: as many are
    /// sent as were answered.
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
                if reply[..4] != REPLY_MAGIC.to_be_bytes() || reply[4..8] != [0; 4] {
                    return Err(io::Error::other("the server failed a request"));
                }
            }
            answered += whole as u64;
            self.input.copy_within(whole * reply_bytes..have, 0);
            have -= whole * reply_bytes;
        }
        Ok(())
    }

    fn request(&mut self, kind: Kind, cookie: u64, off: u64, len: usize) {
        let (off, len) = if kind == Kind::Flush { (0, 0) } else { (off, len) };
        self.out.extend(REQUEST_MAGIC.to_be_bytes());
        self.out.extend((kind as u32).to_be_bytes());
        self.out.extend(cookie.to_be_bytes());
        self.out.extend(off.to_be_bytes());
        self.out.extend((len as u32).to_be_bytes());
        if kind == Kind::Write {
            self.out.resize(self.out.len() + len, 0x5a);
        }
    }
}
