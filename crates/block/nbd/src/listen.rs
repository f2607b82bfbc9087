//! The sockets for clients: Unix sockets, TCP, and sockets that systemd has opened.

#![allow(unsafe_code)]

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The first descriptor that systemd passes (`sd_listen_fds(3)`).
const ACTIVATION_FD: RawFd = 3;

/// Clients that can wait to be accepted: as many as the kernel allows.
const BACKLOG: i32 = -1;

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
struct SocketFile(PathBuf);

impl Listener {
    /// Makes a Unix socket at `path`, for its owner alone. Replaces a socket that a dead server has
    /// left.
    pub fn unix(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            match UnixStream::connect(path) {
                Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?;
                }
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        let address = SocketAddrUnix::new(path)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Linux gives the file the mode of the socket, less the umask. So there is no moment in
        // which another user could connect. The check is for kernels that do otherwise: until the
        // socket listens, no client can connect.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &address)?;
        let file = SocketFile(path.to_owned());
        if fs::symlink_metadata(path)?.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("others could connect to the socket"));
        }
        rustix::net::listen(&socket, BACKLOG)?;
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
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
}
