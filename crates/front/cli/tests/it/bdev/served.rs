//! A server of one pool, and a client that sends one request at a time.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use nbd::wire::{CompactRequest, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, SimpleReply, command};
use serde_json::Value;
use zerocopy::IntoBytes as _;

/// Text of the error for a request that the server has refused.
const REFUSED: &str = "the server failed a request";

/// Bytes that a client writes or reads at once.
pub const BLOCK: usize = 4096;

/// A server, which ends when this is dropped. Its pool has the name of its directory.
pub struct Served {
    dir: tempfile::TempDir,
}

impl Served {
    /// Starts a server with a pool in `dir`.
    pub fn start(dir: &str, options: &[&str]) -> Self {
        let served = Self { dir: tempfile::tempdir_in(dir).unwrap() };
        let (pool, socket) = (served.path(&served.name()), served.path("socket"));
        let mut args =
            vec!["bdev", "serve", &pool, "--socket", &socket, "--create", "--size", "2M"];
        args.extend(options);
        ok(&args);
        served
    }

    /// Returns the name of the export.
    pub fn name(&self) -> String {
        self.dir.path().file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Returns the path of a file in the directory of the pool.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the status that the server reports.
    pub fn status(&self) -> Value {
        serde_json::from_str(&ok(&["--json", "bdev", "stats", &self.path("socket")])).unwrap()
    }

    pub fn client(&self) -> Client {
        Client::connect(Path::new(&self.path("socket"))).expect("the server takes clients")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = keepstone(&["bdev", "stop", &self.path("socket")]);
    }
}

pub fn keepstone(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keepstone")).args(args).output().unwrap()
}

pub fn ok(args: &[&str]) -> String {
    let output = keepstone(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail, and returns its standard error.
pub fn fails(args: &[&str]) -> String {
    let output = keepstone(args);
    assert!(!output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// A client that sends one request at a time.
pub struct Client(UnixStream);

impl Client {
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        // A server that hangs fails the test.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        nbd::client::begin(&mut stream)?;
        Ok(Self(stream))
    }

    fn ask(&mut self, kind: u16, block: u64, data: &[u8], answer: &mut [u8]) -> io::Result<()> {
        let request = CompactRequest {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            kind: kind.into(),
            cookie: 0.into(),
            off: (block * BLOCK as u64).into(),
            len: (data.len().max(answer.len()) as u32).into(),
        };
        self.0.write_all(&[request.as_bytes(), data].concat())?;
        let mut reply = [0; size_of::<SimpleReply>()];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        if reply[4..8] != [0; 4] {
            return Err(io::Error::other(REFUSED));
        }
        self.0.read_exact(answer)
    }

    /// Returns whether the server answers that a block cannot be read.
    pub fn fails_to_read(&mut self, block: u64) -> bool {
        self.read(block).is_err_and(|err| err.to_string() == REFUSED)
    }

    pub fn write(&mut self, block: u64, content: &[u8]) -> io::Result<()> {
        self.ask(command::WRITE, block, content, &mut [])
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.ask(command::FLUSH, 0, &[], &mut [])
    }

    pub fn read(&mut self, block: u64) -> io::Result<Vec<u8>> {
        let mut found = vec![0; BLOCK];
        self.ask(command::READ, block, &[], &mut found)?;
        Ok(found)
    }
}
