//! A client that sends exactly the bytes that a test wants, valid or not.

use nbd::wire::{self, command, flag, handshake, info, option, reply};
use nbd::{Export, Exports, MemoryDevice, Server, ServerOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Size of the device that [`server`] serves.
pub const SIZE: u64 = 4 << 20;

/// The longest silence of a server that is not taken for a hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a server of `device` as "disk", and of another, read-only one as "rom".
pub fn server(device: Arc<MemoryDevice>, options: ServerOptions) -> Arc<Server> {
    let disk = Export::new("disk", "a disk", device, false).unwrap();
    let rom = Export::new("rom", "", MemoryDevice::new(SIZE), true).unwrap();
    Server::new(Exports::new([disk, rom]).unwrap(), options).unwrap()
}

/// A connection.
pub struct Client {
    pub stream: UnixStream,
    pub extended: bool,
    cookie: u64,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The error code, or 0.
    pub error: u32,
    /// Content, by offset.
    pub data: Vec<(u64, Vec<u8>)>,
    /// Holes: offset and length.
    pub holes: Vec<(u64, u32)>,
    /// Extents: length and flags.
    pub extents: Vec<(u64, u64)>,
    /// The message of an error.
    pub message: String,
}

impl Answer {
    /// Returns the content in one piece, with holes filled in.
    pub fn content(&self, off: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (at, data) in &self.data {
            out[(at - off) as usize..][..data.len()].copy_from_slice(data);
        }
        out
    }
}

impl Client {
    /// Connects to `server` and answers the greeting.
    pub fn connect(server: &Arc<Server>) -> Self {
        Self::greeted(Self::silent(server).stream)
    }

    /// Answers the greeting of the server at the other end of a stream.
    pub fn greeted(stream: UnixStream) -> Self {
        let mut client = Self { stream, extended: false, cookie: 0 };
        let greeting: [u8; 18] = client.get();
        let greeting = wire::Greeting::read_from_bytes(&greeting).unwrap();
        assert_eq!(greeting.init.get(), wire::INIT_MAGIC);
        assert_eq!(greeting.option.get(), wire::OPTION_MAGIC);
        let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        client.put(&flags.to_be_bytes());
        client
    }

    /// Connects without sending anything.
    pub fn silent(server: &Arc<Server>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours.set_write_timeout(Some(PATIENCE)).unwrap();
        server.welcome(Some(theirs.into())).unwrap();
        Self { stream: ours, extended: false, cookie: 0 }
    }

    /// Connects to the export "disk" with structured replies and block status.
    pub fn structured(server: &Arc<Server>) -> Self {
        let mut client = Self::connect(server);
        assert_eq!(client.option(option::STRUCTURED_REPLY, &[]), [(reply::ACK, vec![])]);
        client.use_disk();
        client
    }

    /// The same with extended headers.
    pub fn extended(server: &Arc<Server>) -> Self {
        let mut client = Self::connect(server);
        assert_eq!(client.option(option::EXTENDED_HEADERS, &[]), [(reply::ACK, vec![])]);
        client.extended = true;
        client.use_disk();
        client
    }

    pub fn use_disk(&mut self) {
        let chosen = self.option(option::SET_META_CONTEXT, &context("disk", &["base:allocation"]));
        assert_eq!(chosen[0].0, reply::META_CONTEXT);
        self.go("disk");
    }

    /// Ends the negotiation with this export.
    pub fn go(&mut self, name: &str) {
        let replies = self.option(option::GO, &go(name, &[info::BLOCK_SIZE]));
        assert_eq!(replies.last().unwrap().0, reply::ACK, "{replies:?}");
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn get<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server has closed the connection.
    pub fn is_over(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    /// Sends an option. Returns all its replies.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.put(&option_bytes(code, data));
        let mut replies = Vec::new();
        loop {
            let head: [u8; 20] = self.get();
            let head = wire::OptionReply::read_from_bytes(&head).unwrap();
            assert_eq!(head.magic.get(), wire::OPTION_REPLY_MAGIC);
            assert_eq!(head.code.get(), code);
            let data = self.bytes(head.len.get() as usize);
            replies.push((head.kind.get(), data));
            if head.kind.get() == reply::ACK || head.kind.get() >> 31 == 1 {
                return replies;
            }
        }
    }

    /// Sends a request without waiting; returns its cookie.
    pub fn send(&mut self, kind: u16, flags: u16, off: u64, len: u64, payload: &[u8]) -> u64 {
        self.cookie += 1;
        let bytes = request_bytes(self.extended, kind, flags, self.cookie, off, len);
        self.put(&bytes);
        self.put(payload);
        self.cookie
    }

    /// Sends a request. Returns its answer.
    pub fn ask(&mut self, kind: u16, flags: u16, off: u64, len: u64) -> Answer {
        let cookie = self.send(kind, flags, off, len, &[]);
        self.answer(cookie, if kind == command::READ { len as usize } else { 0 })
    }

    /// Sends a write. Returns its answer.
    pub fn write(&mut self, flags: u16, off: u64, data: &[u8]) -> Answer {
        let flags = flags | if self.extended { flag::PAYLOAD_LEN } else { 0 };
        let cookie = self.send(command::WRITE, flags, off, data.len() as u64, data);
        self.answer(cookie, 0)
    }

    /// Receives the answer to the request of `cookie`. `len`: bytes of content in a simple reply.
    pub fn answer(&mut self, cookie: u64, len: usize) -> Answer {
        let mut answer = Answer::default();
        loop {
            let magic = u32::from_be_bytes(self.get());
            if magic == wire::SIMPLE_REPLY_MAGIC {
                assert!(!self.extended);
                answer.error = u32::from_be_bytes(self.get());
                assert_eq!(u64::from_be_bytes(self.get()), cookie);
                if answer.error == 0 && len > 0 {
                    answer.data.push((0, self.bytes(len)));
                }
                return answer;
            }
            let [flags, kind] = [self.get(), self.get()].map(u16::from_be_bytes);
            assert_eq!(u64::from_be_bytes(self.get()), cookie);
            let len = if self.extended {
                assert_eq!(magic, wire::EXTENDED_REPLY_MAGIC);
                let _offset: [u8; 8] = self.get();
                u64::from_be_bytes(self.get()) as usize
            } else {
                assert_eq!(magic, wire::STRUCTURED_REPLY_MAGIC);
                u32::from_be_bytes(self.get()) as usize
            };
            let payload = self.bytes(len);
            chunk(&mut answer, kind, &payload);
            if flags & wire::chunk::DONE != 0 {
                return answer;
            }
        }
    }
}

fn chunk(answer: &mut Answer, kind: u16, payload: &[u8]) {
    let u32_at = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
    let u64_at = |at: usize| u64::from_be_bytes(*payload[at..].first_chunk().unwrap());
    match kind {
        wire::chunk::NONE => assert!(payload.is_empty()),
        wire::chunk::OFFSET_DATA => answer.data.push((u64_at(0), payload[8..].to_vec())),
        wire::chunk::OFFSET_HOLE => answer.holes.push((u64_at(0), u32_at(8))),
        wire::chunk::BLOCK_STATUS => {
            let (list, rest) = payload[4..].as_chunks::<8>();
            assert!(rest.is_empty());
            for (i, _) in list.iter().enumerate() {
                let at = 4 + 8 * i;
                answer.extents.push((u32_at(at).into(), u32_at(at + 4).into()));
            }
        }
        wire::chunk::BLOCK_STATUS_EXT => {
            assert_eq!(payload.len(), 8 + 16 * u32_at(4) as usize);
            for i in 0..u32_at(4) as usize {
                answer.extents.push((u64_at(8 + 16 * i), u64_at(16 + 16 * i)));
            }
        }
        wire::chunk::ERROR => {
            answer.error = u32_at(0);
            let len = u16::from_be_bytes(*payload[4..].first_chunk().unwrap());
            answer.message = String::from_utf8(payload[6..].to_vec()).unwrap();
            assert_eq!(answer.message.len(), usize::from(len));
        }
        other => panic!("chunk of kind {other}"),
    }
}

/// Returns an option as bytes.
pub fn option_bytes(code: u32, data: &[u8]) -> Vec<u8> {
    let head = wire::OptionHeader {
        magic: wire::OPTION_MAGIC.into(),
        code: code.into(),
        len: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

/// Returns a request as bytes.
pub fn request_bytes(
    extended: bool,
    kind: u16,
    flags: u16,
    cookie: u64,
    off: u64,
    len: u64,
) -> Vec<u8> {
    let (flags, kind, cookie, off) = (flags.into(), kind.into(), cookie.into(), off.into());
    if extended {
        let magic = wire::EXTENDED_REQUEST_MAGIC.into();
        let len = len.into();
        wire::ExtendedRequest { magic, flags, kind, cookie, off, len }.as_bytes().to_vec()
    } else {
        let magic = wire::REQUEST_MAGIC.into();
        let len = (len as u32).into();
        wire::CompactRequest { magic, flags, kind, cookie, off, len }.as_bytes().to_vec()
    }
}

/// Returns the data of `GO` and `INFO`.
pub fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

/// Returns the data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn context(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}
