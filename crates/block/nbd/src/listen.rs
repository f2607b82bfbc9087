//! The sockets for clients: Unix sockets, TCP, and sockets that systemd has opened.

#![allow(unsafe_code)]

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, openat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The first descriptor that systemd passes (`sd_listen_fds(3)`).
const ACTIVATION_FD: RawFd = 3;

/// Clients that can wait to be accepted: as many as the kernel allows.
const BACKLOG: i32 = -1;

/// Attempts to lock the directory of a dead server's socket, a millisecond each.
const LOCK_ATTEMPTS: u32 = 1000;

/// A socket that accepts clients.
#[derive(Debug)]
pub struct Listener {
    /// The file of a Unix socket, if this process has made it. It is removed before the socket is
    /// closed. Otherwise another server could replace it in between, and lose its own file.
    _file: Option<SocketFile>,
    socket: OwnedFd,
    address: String,
    /// Whether other machines can reach it.
    foreign: bool,
}

/// The file of a Unix socket, removed when this is dropped.
#[derive(Debug)]
struct SocketFile {
    dir: OwnedFd,
    name: OsString,
}

impl SocketFile {
    /// Returns the file under another name in the same directory, which it has got.
    fn renamed(mut self, name: &OsStr) -> Self {
        name.clone_into(&mut self.name);
        self
    }
}

/// Makes a socket that listens, for its owner alone, under a name of its own in a directory.
fn listening_in(dir: &OwnedFd) -> io::Result<(OwnedFd, SocketFile)> {
    let name = own_name();
    let address = SocketAddrUnix::new(in_dir(dir, &name))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the file the mode of the socket, less the umask. So there is no moment in which
    // another user could connect. The check is for kernels that do otherwise: until the socket
    // listens, no client can connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    match rustix::net::bind(&socket, &address) {
        // A process of this number was killed here.
        Err(Errno::ADDRINUSE) => {
            unlinkat(dir, &name, AtFlags::empty())?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile { dir: dir.try_clone()?, name };
    let found = statat(dir, &file.name, AtFlags::SYMLINK_NOFOLLOW)?;
    if found.st_mode & 0o077 != 0 {
        return Err(io::Error::other("others could connect to the socket"));
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket, file))
}

/// Locks a directory against other servers that remove a dead one's socket there. Other users may
/// keep it locked, so a server goes on without the lock after a while.
fn lock(dir: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(dir, ".", flags, Mode::empty()).ok()?;
    let mut attempts = 0..LOCK_ATTEMPTS;
    while flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        attempts.next()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(dir)
}

/// Removes a socket whose server is dead. Call it with the directory locked, as another server may
/// have replaced the socket since the path was found taken.
fn remove_dead(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let found = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    let is_dead = || {
        UnixStream::connect(in_dir(dir, name))
            .is_err_and(|err| err.kind() == io::ErrorKind::ConnectionRefused)
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || !is_dead() {
        return Err(Errno::ADDRINUSE);
    }
    unlinkat(dir, name, AtFlags::empty())
}

/// Returns a short path of a name in a directory, by the descriptor of the directory.
fn in_dir(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

/// Returns a name in the directory of a socket that no other process uses.
fn own_name() -> OsString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(".keepstone-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)).into()
}

impl Listener {
    /// Makes a Unix socket at `path`, for its owner alone. Replaces a socket that a dead server has
    /// left.
    ///
    /// A socket that refuses clients counts as dead. So the socket gets its name only when it
    /// listens; otherwise another server could take it for a dead one in between.
    pub fn unix(path: &Path) -> io::Result<Self> {
        // Clients need the whole path as an address.
        SocketAddrUnix::new(path)?;
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        let (socket, file) = listening_in(&dir)?;
        let rename = || renameat_with(&dir, &file.name, &dir, name, RenameFlags::NOREPLACE);
        let renamed = rename().or_else(|err| match err {
            Errno::EXIST => {
                let _lock = lock(&dir);
                remove_dead(&dir, name)?;
                rename()
            }
            err => Err(err),
        });
        renamed.map_err(|err| if err == Errno::EXIST { Errno::ADDRINUSE } else { err })?;
        let file = file.renamed(name);
        let address = format!("nbd+unix:///?socket={}", path.display());
        Self::new(socket, address, Some(file))
    }

    /// Listens on TCP at `address`; port 0 means any free port.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        let address = format!("nbd://{}", socket.local_addr()?);
        Self::new(socket.into(), address, None)
    }

    /// Takes the sockets that systemd has passed to this process, if any.
    ///
    /// # Safety
    ///
    /// 1. The descriptors that `LISTEN_FDS` counts are not used by other code in this process: call
    ///    this once, before anything else is opened.
    pub unsafe fn activated() -> io::Result<Vec<Self>> {
        let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(Vec::new());
        }
        let count = number("LISTEN_FDS").unwrap_or(0).min(1024) as RawFd;
        let take = |fd| {
            // SAFETY: obligation 1.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
            if sockopt::socket_type(&socket)? != SocketType::STREAM {
                return Err(Errno::PROTOTYPE.into());
            }
            let unix = sockopt::socket_domain(&socket)? == AddressFamily::UNIX;
            let address = if unix { "nbd+unix: of systemd" } else { "nbd: of systemd" };
            Self::new(socket, address.to_owned(), None)
        };
        (ACTIVATION_FD..ACTIVATION_FD + count).map(take).collect()
    }

    /// Wraps a listening socket; `file` is the file of a Unix socket that this process has made.
    fn new(socket: OwnedFd, address: String, file: Option<SocketFile>) -> io::Result<Self> {
        // Several threads or processes may wait for one client, so `accept` must not block.
        rustix::io::ioctl_fionbio(&socket, true)?;
        let own = rustix::net::getsockname(&socket)?;
        let ip = SocketAddr::try_from(own).ok().map(|address| address.ip().to_canonical());
        let foreign = ip.is_some_and(|ip| !ip.is_loopback());
        Ok(Self { _file: file, socket, address, foreign })
    }

    /// Whether other machines can reach it.
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Returns the NBD URI for clients, as far as it is known.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Accepts a client; `None` if another thread or process got it.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let client = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(client) => client,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        if sockopt::socket_domain(&client)? == AddressFamily::UNIX {
            // A batch of replies should fit, so that the client wakes up no more often than needed.
            let _ = sockopt::set_socket_send_buffer_size(&client, 1 << 20);
        } else {
            sockopt::set_tcp_nodelay(&client, true)?;
            sockopt::set_socket_keepalive(&client, true)?;
        }
        Ok(Some(client))
    }
}

impl AsFd for Listener {
    /// Returns the socket, which becomes readable when a client connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    /// Even without a umask, no user but the owner can connect at any moment. Changes the umask of
    /// the process, which only makes files of other tests more open.
    #[test]
    fn a_unix_socket_is_private_from_the_start() {
        let dir = std::env::temp_dir().join(format!("keepstone-listen-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("socket");
        rustix::process::umask(Mode::empty());
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut seen = Vec::new();
                while !is_over.load(Relaxed) {
                    if let Ok(found) = fs::metadata(&path) {
                        seen.push(found.permissions().mode() & 0o777);
                    }
                }
                seen
            });
            for _ in 0..2000 {
                drop(Listener::unix(&path).unwrap());
            }
            is_over.store(true, Relaxed);
            watching.join().unwrap()
        });
        assert!(!seen.is_empty() && seen.iter().all(|mode| *mode == 0o600));
        assert!(!path.exists());
        // A file that lies there already is left alone.
        fs::write(&path, "content").unwrap();
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"content");
        fs::remove_dir_all(dir).unwrap();
    }

    /// Of servers that start together, over the socket of a dead one, one gets the path and can be
    /// reached by it.
    #[test]
    fn one_of_several_servers_gets_a_path() {
        let dir = std::env::temp_dir().join(format!("keepstone-together-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("socket");
        const SERVERS: usize = 4;
        let begin = Barrier::new(SERVERS);
        for _ in 0..500 {
            // As a killed server leaves it.
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let start = || {
                begin.wait();
                Listener::unix(&path)
            };
            let started: Vec<_> = std::thread::scope(|scope| {
                let starting = [(); SERVERS].map(|()| scope.spawn(start));
                starting.map(|server| server.join().unwrap()).into()
            });
            UnixStream::connect(&path).unwrap();
            let refused = started.iter().filter_map(|server| server.as_ref().err());
            assert!(refused.clone().all(|err| err.kind() == io::ErrorKind::AddrInUse));
            assert_eq!(refused.count(), SERVERS - 1);
        }
        // Nothing is left, not even files under other names.
        fs::remove_dir(dir).unwrap();
    }
}
