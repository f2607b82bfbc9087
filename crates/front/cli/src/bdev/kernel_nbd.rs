//! The kernel's own NBD client, `/dev/nbdN`, on a server in this process.
//!
//! This process creates both ends of each connection. It serves one, and passes the other to the
//! kernel after negotiation.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nbd::wire::export;
use nbd::{Export, Exports, Server, ServerOptions};

use super::devices::Opened;
use super::kernel::Attached;

/// `ioctl(2)` requests of `<linux/nbd.h>`, which `linux-raw-sys` does not have.
mod request {
    pub const SET_SOCK: u64 = 0xab00;
    pub const SET_BLKSIZE: u64 = 0xab01;
    pub const DO_IT: u64 = 0xab03;
    pub const CLEAR_SOCK: u64 = 0xab04;
    pub const SET_SIZE_BLOCKS: u64 = 0xab07;
    pub const DISCONNECT: u64 = 0xab08;
    pub const SET_FLAGS: u64 = 0xab0a;
}

/// Number of devices to try.
const DEVICES: usize = 64;

/// Longest time for the kernel to close its connections.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Returns whether the kernel has such devices.
pub fn is_there() -> bool {
    Path::new("/dev/nbd0").exists()
}

/// Gives the kernel `opened` over as many connections as there are threads.
pub fn attach(opened: &Opened, block: u32, connections: usize) -> Result<Attached> {
    let Opened { device, report, .. } = opened;
    let export = Export::new("", "", device.clone(), report.read_only)?;
    let times = export.times.clone();
    let server = Server::new(Exports::new([export])?, ServerOptions::default())?;
    let mut sockets = Vec::new();
    let mut flags = 0;
    for _ in 0..connections {
        let (ours, agreed) = connect(&server)?;
        sockets.push(ours);
        flags = agreed;
    }
    let (first, others) = sockets.split_first().context("there is no thread to serve it")?;
    let (file, path) = claim_device(first)?;
    let control = |request, value: u64| {
        ioctl(&file, request, value).with_context(|| format!("{path}: cannot be set up"))
    };
    control(request::SET_BLKSIZE, block.into())?;
    control(request::SET_SIZE_BLOCKS, device.size() / u64::from(block))?;
    control(request::SET_FLAGS, flags.into())?;
    for socket in others {
        control(request::SET_SOCK, socket.as_raw_fd() as u64)?;
    }
    let releasing = file.try_clone()?;
    let (ended, end) = channel();
    std::thread::Builder::new().name("nbd".into()).spawn(move || {
        let done = ioctl(&file, request::DO_IT, 0).or_else(|err| match err.raw_os_error() {
            // The kernel reports a closed connection with these errors.
            Some(libc::EPIPE | libc::ECONNRESET) => Ok(()),
            _ => Err(err),
        });
        let _ = ioctl(&file, request::CLEAR_SOCK, 0);
        drop(sockets);
        let stopped = server.stop(STOP_GRACE).map_err(io::Error::other);
        let _ = ended.send(done.and(stopped));
    })?;
    wait_until_ready(&path)?;
    let release = move || Ok(ioctl(&releasing, request::DISCONNECT, 0)?);
    Ok(Attached {
        kind: "nbd client",
        path,
        through: None,
        taken_over: false,
        release: Box::new(release),
        end,
        times,
    })
}

/// Opens a device that no client uses, and gives it its first connection. From then on it belongs
/// to this thread: the kernel refuses connections of any other with `EBUSY`.
fn claim_device(socket: &UnixStream) -> Result<(File, String)> {
    ensure!(
        is_there(),
        "this kernel has no NBD client (no /dev/nbd0): `modprobe nbd` may bring it; else attach by another way, which \
         leaving out --by finds"
    );
    let mut failure = None;
    for number in 0..DEVICES {
        let in_use = Path::new(&format!("/sys/block/nbd{number}/pid")).exists();
        let path = format!("/dev/nbd{number}");
        if in_use || !Path::new(&path).exists() {
            continue;
        }
        let claimed = OpenOptions::new().read(true).write(true).open(&path).and_then(|file| {
            ioctl(&file, request::SET_SOCK, socket.as_raw_fd() as u64)?;
            Ok(file)
        });
        match claimed {
            Ok(file) => return Ok((file, path)),
            // Another program has claimed it meanwhile.
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) => {}
            Err(err) => {
                failure.get_or_insert_with(|| {
                    anyhow!(err).context(format!("{path}: cannot be claimed"))
                });
            }
        }
    }
    Err(failure.unwrap_or_else(|| anyhow!("all /dev/nbdN are in use")))
}

/// Returns a connection for the kernel, after negotiation, and the flags of the export.
fn connect(server: &Arc<Server>) -> Result<(UnixStream, u16)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    server.welcome(Some(theirs.into()))?;
    let begun = nbd::client::begin(&mut ours)?;
    Ok((ours, begun.flags | export::CAN_MULTI_CONN))
}

/// Waits until the kernel has taken the connections: then the device has its size.
fn wait_until_ready(path: &str) -> Result<()> {
    let pid = format!("/sys/block/{}/pid", path.trim_start_matches("/dev/"));
    for _ in 0..500 {
        if fs::exists(&pid)? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{path}: the kernel does not take it")
}

fn ioctl(file: &File, request: u64, value: u64) -> io::Result<()> {
    // SAFETY: these requests take a number, or a descriptor that the caller keeps open; none a
    // pointer.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
