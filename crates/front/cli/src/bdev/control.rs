//! The control socket of a server: one request and one answer, each a line of JSON.
//!
//! Every server has a socket in the runtime directory, named after its process. A command that
//! looks for a server asks all of them, so there is no list that could be wrong. The first command
//! that gets no answer at the socket of a killed server removes that socket.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::server::runtime_dir;
use crate::background;

/// Longest time for a server to answer, and for a client to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Extension of control sockets.
const SUFFIX: &str = "control";

/// Extension of a socket that does not listen yet. The kernel's table keeps that name.
const FRESH: &str = "new";

/// Longest answer, in bytes. A limit is needed because the socket may belong to any user.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The kernel's table of sockets.
const TABLE: &str = "/proc/net/unix";

/// A request to a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlRequest {
    /// Report what is served, and the counters.
    Status,
    /// Grow an export.
    Grow { export: String, size: u64 },
    /// End. The server answers first and then sends itself SIGTERM.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done(Value),
    Failed(String),
}

/// A server's end of its control socket.
pub struct Control {
    socket: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Opens the control socket of this process.
    pub fn open() -> Result<Self> {
        let path = runtime_dir()?.join(format!("{}.{SUFFIX}", std::process::id()));
        let fresh = path.with_extension(FRESH);
        let no_socket = || format!("{}: cannot open the control socket", path.display());
        // An existing socket of that name is from an earlier process with the same number. The
        // socket gets its final name only when it listens: before, it refuses connections, and a
        // command that asks all servers would take it for a dead server's and remove it.
        let _ = fs::remove_file(&fresh);
        let socket = UnixListener::bind(&fresh).with_context(no_socket)?;
        fs::rename(&fresh, &path).with_context(no_socket)?;
        Ok(Self { socket, path })
    }

    /// Answers requests with `answer`, in a thread of its own, for as long as the process lives.
    pub fn serve(
        &self,
        answer: impl Fn(ControlRequest) -> Result<Value> + Send + 'static,
    ) -> Result<()> {
        let socket = self.socket.try_clone()?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            loop {
                answer_next(&socket, &answer);
            }
        })?;
        Ok(())
    }

    /// Waits for the next request and answers it with `answer`.
    pub fn answer_next(&self, answer: impl FnOnce(ControlRequest) -> Result<Value>) {
        answer_next(&self.socket, answer);
    }
}

impl AsFd for Control {
    /// Becomes readable when a client connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn answer_next(socket: &UnixListener, answer: impl FnOnce(ControlRequest) -> Result<Value>) {
    let client = socket.accept().map_err(Into::into);
    if let Err(err) = client.and_then(|(client, _)| reply(&client, answer)) {
        tracing::debug!("control: {err:#}");
    }
}

fn reply(client: &UnixStream, answer: impl FnOnce(ControlRequest) -> Result<Value>) -> Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line)?;
    let request = serde_json::from_str(&line).map_err(Into::into);
    let stops = matches!(request, Ok(ControlRequest::Stop));
    let answer = match request.and_then(answer) {
        Ok(value) => Answer::Done(value),
        Err(err) => Answer::Failed(format!("{err:#}")),
    };
    let told = write_line(client, &answer);
    if stops && matches!(answer, Answer::Done(_)) {
        // Same effect as the signal from outside. Sent after the answer, because the process may
        // end at once.
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::TERM)?;
    }
    told
}

/// Sends a line. Fails if the peer has closed the socket, rather than dying of SIGPIPE.
fn write_line(stream: &UnixStream, value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
    Ok(())
}

/// A server as its clients see it.
pub struct BdevServer {
    path: PathBuf,
    /// The server's answer to [`ControlRequest::Status`].
    pub status: Value,
}

impl BdevServer {
    /// Asks the server at a control socket for its status.
    pub fn at(path: &Path) -> Result<Self> {
        let status = ask(path, &ControlRequest::Status)?;
        Ok(Self { path: path.to_owned(), status })
    }

    /// Sends a further request.
    pub fn ask(&self, request: &ControlRequest) -> Result<Value> {
        ask(&self.path, request)
    }

    /// Returns the process ID.
    pub fn pid(&self) -> Option<u32> {
        self.status["pid"].as_u64()?.try_into().ok()
    }

    /// Returns the addresses at which it serves, and the kernel's name of its device.
    pub fn places(&self) -> String {
        let device = self.status["device"].as_str();
        self.addresses().chain(device).collect::<Vec<_>>().join(" ")
    }

    fn addresses(&self) -> impl Iterator<Item = &str> {
        self.status["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the exports.
    pub fn exports(&self) -> impl Iterator<Item = &Value> {
        self.status["exports"].as_array().into_iter().flatten()
    }

    /// Returns whether `name` means this server, or one of its exports.
    fn is_called(&self, name: &str) -> bool {
        self.is_named(name) || self.exports().any(|export| is_export(name, export))
    }

    /// Returns whether `name` means this server: its process ID, its device or an address for
    /// clients.
    pub fn is_named(&self, name: &str) -> bool {
        self.pid().is_some_and(|pid| name.parse() == Ok(pid))
            || self.status["device"].as_str().is_some_and(|device| is_device(name, device))
            || self.addresses().any(|address| {
                let socket = address.split_once("socket=").map(|(_, socket)| socket);
                address == name
                    || address.strip_prefix("nbd://") == Some(name)
                    || socket.is_some_and(|socket| is_path(name, socket))
            })
    }

    /// Returns the name of the export that `name` means: the export itself, its pool, or the server
    /// if that has only one export.
    pub fn export_called(&self, name: &str) -> Result<&str> {
        let mut meant: Vec<_> = self.exports().filter(|export| is_export(name, export)).collect();
        if meant.is_empty() {
            meant = self.exports().collect();
        }
        match meant[..] {
            [export] => export["name"].as_str().context("an export has a name"),
            _ => {
                let all: Vec<_> =
                    self.exports().filter_map(|export| export["name"].as_str()).collect();
                bail!("{name}: its server has several exports; name one of {}", all.join(", "))
            }
        }
    }
}

/// Returns whether `name` means an export: by its name, or by the path of its pool.
pub fn is_export(name: &str, export: &Value) -> bool {
    export["name"] == name || export["path"].as_str().is_some_and(|path| is_path(name, path))
}

/// Returns whether the path `name` is the absolute `path`. Neither need exist.
pub fn is_path(name: &str, path: &str) -> bool {
    let [name, path] = [Path::new(name), Path::new(path)];
    std::path::absolute(name).is_ok_and(|absolute| absolute == path)
        || name.canonicalize().is_ok_and(|canonical| canonical == path)
}

/// Returns whether `name` means `device`, such as /dev/loop0: by its path, or without its
/// directory.
pub fn is_device(name: &str, device: &str) -> bool {
    device.strip_prefix("/dev/") == Some(name) || is_path(name, device)
}

/// Returns the servers that answer.
pub fn servers() -> Result<Vec<BdevServer>> {
    let mut found = Vec::new();
    for path in sockets_in(&runtime_dir()?)? {
        match BdevServer::at(&path) {
            Ok(server) => found.push(server),
            Err(err) if is_gone(&err) => {
                let _ = fs::remove_file(&path);
            }
            Err(err) => tracing::warn!("{}: {err:#}", path.display()),
        }
    }
    found.sort_by_key(BdevServer::pid);
    Ok(found)
}

/// Returns the control sockets of all users: those in this user's runtime directory, and those in
/// the kernel's table, which lists the sockets of this network namespace.
pub fn sockets() -> BTreeSet<PathBuf> {
    let own = sockets_in(&background::runtime_dir().join("bdev")).unwrap_or_default();
    // Paths need not be UTF-8; the comparison needs only the last components.
    let table = fs::read(TABLE).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    own.into_iter().chain(table.lines().filter_map(listed)).collect()
}

/// Returns the control sockets in a directory.
fn sockets_in(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
    Ok(paths)
}

/// Returns the control socket that a line of the table lists: `0000000000000000: 00000002 00000000
/// 00010000 0001 01 4711 /run/keepstone/bdev/42.new`.
fn listed(line: &str) -> Option<PathBuf> {
    let mut rest = line;
    for _ in 0..7 {
        rest = rest.trim_start().split_once(' ')?.1;
    }
    let path = Path::new(rest);
    let name_of = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let is_server = path.file_stem()?.to_str()?.parse::<u32>().is_ok();
    let is_fresh = path.extension().is_some_and(|suffix| suffix == FRESH);
    let dir = path.parent()?;
    let is_ours = name_of(dir)? == "bdev" && name_of(dir.parent()?)?.starts_with("keepstone");
    let found = path.is_absolute() && is_server && is_fresh && is_ours;
    found.then(|| path.with_extension(SUFFIX))
}

/// Finds the server that `name` means.
pub fn find(name: &str) -> Result<BdevServer> {
    let none = || format!("{name}: no such server; `keepstone bdev list` shows those that run");
    try_find(name)?.with_context(none)
}

/// Finds the server that `name` means, if one runs. Fails if several servers match.
pub fn try_find(name: &str) -> Result<Option<BdevServer>> {
    let mut called: Vec<_> = servers()?.into_iter().filter(|s| s.is_called(name)).collect();
    match called.len() {
        0 | 1 => Ok(called.pop()),
        n => bail!("{name}: {n} servers are called that; name its socket or process number"),
    }
}

fn ask(path: &Path, request: &ControlRequest) -> Result<Value> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write_line(&stream, request)?;
    let mut line = String::new();
    BufReader::new((&stream).take(ANSWER_BYTES_MAX)).read_line(&mut line)?;
    match serde_json::from_str(&line).context("the server gave no answer")? {
        Answer::Done(value) => Ok(value),
        Answer::Failed(why) => Err(anyhow!(why)),
    }
}

/// Returns whether an error means that the server is gone.
pub fn is_gone(err: &anyhow::Error) -> bool {
    let kind = err.downcast_ref().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::ConnectionRefused | ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sockets_are_found_in_the_kernel_s_table() {
        let line = |path: &str| {
            format!("00000000f86b4ad4: 00000002 00000000 00010000 0001 01  4711 {path}")
        };
        for (path, found) in [
            ("/run/keepstone/bdev/42.new", "/run/keepstone/bdev/42.control"),
            ("/tmp/keepstone-1000/bdev/7.new", "/tmp/keepstone-1000/bdev/7.control"),
            ("/run/user/a b/keepstone/bdev/7.new", "/run/user/a b/keepstone/bdev/7.control"),
        ] {
            assert_eq!(listed(&line(path)), Some(found.into()), "{path}");
        }
        for path in
            ["", "@keepstone/bdev/1.new", "/run/keepstone/bdev/disk.sock", "/run/other/bdev/1.new"]
        {
            assert_eq!(listed(&line(path)), None, "{path}");
        }
        assert_eq!(listed("Num       RefCount Protocol Flags    Type St Inode Path"), None);
    }
}
