//! Loop devices, as `loop(4)` describes them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

use anyhow::{Context as _, Result, bail, ensure};
use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LO_NAME_SIZE, LOOP_CLR_FD, LOOP_CONFIGURE,
    LOOP_CTL_GET_FREE, LOOP_GET_STATUS64, loop_config, loop_info64,
};

/// How often to try when others take the device that was free a moment ago.
const TRIES: usize = 16;

/// A loop device that this process has set up. It is not kept open, which would keep it from going.
pub struct Loop {
    path: String,
}

impl Loop {
    /// A device on `backing`, with direct I/O and blocks of `block` bytes,
    /// that shows `pool`.
    pub fn new(backing: BorrowedFd<'_>, block: u32, read_only: bool, pool: &str) -> Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
        let control = control.context("/dev/loop-control: no loop devices; `modprobe loop`?")?;
        let read_only = if read_only { LO_FLAGS_READ_ONLY as u32 } else { 0 };
        let config = loop_config {
            fd: backing.as_raw_fd() as u32,
            block_size: block,
            info: loop_info64 {
                lo_flags: LO_FLAGS_DIRECT_IO as u32 | read_only,
                lo_file_name: label(std::process::id(), pool),
                ..no_info()
            },
            __reserved: [0; 8],
        };
        for _ in 0..TRIES {
            // SAFETY: takes no argument.
            let number =
                check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE.into()) })
                    .context("no loop device is free")?;
            let path = format!("/dev/loop{number}");
            let file = open(&path)?;
            if !file.metadata()?.file_type().is_block_device() {
                bail!("{path}: is no device");
            }
            // SAFETY: the kernel reads a `loop_config`, which lives during the call.
            match check(unsafe {
                libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE.into(), &raw const config)
            }) {
                Ok(_) => return Ok(Self { path }),
                Err(err) if err.kind() == io::ErrorKind::ResourceBusy => {}
                Err(err) => return Err(err).with_context(|| format!("{path}: cannot be set up")),
            }
        }
        bail!("others keep taking the loop devices")
    }

    /// Its name.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Lets it go: now, or when the last who has it open closes it.
    pub fn release(&self) -> Result<()> {
        release(&self.path)
    }
}

fn release(path: &str) -> Result<()> {
    let file = open(path)?;
    // SAFETY: takes no argument.
    match check(unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD.into()) }) {
        // It has gone already.
        Err(err) if err.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        result => result.map(|_| ()).with_context(|| format!("{path}: is not let go")),
    }
}

/// A loop device of ours whose server was killed. Its requests fail.
pub struct Orphan {
    /// Such as /dev/loop0.
    pub device: String,
    /// The pool, as far as there was room for its path.
    pub pool: String,
}

impl Orphan {
    /// Lets it go.
    pub fn release(&self) -> Result<()> {
        ensure!(!is_in_use(&self.device), "{}: in use; unmount what is on it first", self.device);
        release(&self.device)
    }
}

/// Begins what the kernel keeps as the name of the file.
const LABEL: &str = "keepstone";

/// What the kernel keeps as the name of the file: whose device it is.
fn label(pid: u32, pool: &str) -> [u8; LO_NAME_SIZE as usize] {
    let mut label = [0; LO_NAME_SIZE as usize];
    let text = format!("{LABEL} {pid} {pool}");
    // The last byte stays zero.
    let shown = text.len().min(label.len() - 1);
    label[..shown].copy_from_slice(&text.as_bytes()[..shown]);
    label
}

/// The server and the pool that a label names.
fn labelled(label: &[u8]) -> Option<(u32, String)> {
    let text = String::from_utf8_lossy(label.split(|byte| *byte == 0).next()?).into_owned();
    let (pid, pool) = text.strip_prefix(LABEL)?.strip_prefix(' ')?.split_once(' ')?;
    Some((pid.parse().ok()?, pool.to_owned()))
}

/// The loop devices whose servers were killed, as far as this user may look.
pub fn orphans() -> Result<Vec<Orphan>> {
    let mut found = Vec::new();
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Ok(found) };
    for entry in devices {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") || !entry.path().join("loop/backing_file").exists() {
            continue;
        }
        let device = format!("/dev/{name}");
        let Ok(file) = File::open(&device) else { continue };
        let mut info = no_info();
        // SAFETY: the kernel fills a `loop_info64`, which lives during the call.
        let told = check(unsafe {
            libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64.into(), &raw mut info)
        });
        if told.is_ok()
            && let Some((pid, pool)) = labelled(&info.lo_file_name)
            && !is_server(pid)
        {
            found.push(Orphan { device, pool });
        }
    }
    found.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(found)
}

/// Whether a process of this number is there and is this program.
fn is_server(pid: u32) -> bool {
    let name = |of: &str| std::fs::read_to_string(format!("/proc/{of}/comm")).ok();
    name(&pid.to_string()).is_some_and(|other| Some(other) == name("self"))
}

/// Whether something is mounted on the device, or holds it for itself in another way.
pub fn is_in_use(path: &str) -> bool {
    let alone = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    alone.is_err_and(|err| err.kind() == io::ErrorKind::ResourceBusy)
}

fn open(path: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.with_context(|| format!("{path}: cannot be opened"))
}

fn no_info() -> loop_info64 {
    // SAFETY: it is plain data, for which all zeros mean nothing in particular.
    unsafe { std::mem::zeroed() }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_a_server_and_a_pool() {
        assert_eq!(labelled(&label(7, "/dev/shm/a disk")), Some((7, "/dev/shm/a disk".to_owned())));
        let (pid, pool) = labelled(&label(u32::MAX, &"/x".repeat(60))).unwrap();
        assert!(pid == u32::MAX && pool.starts_with("/x/x") && pool.len() < 60);
        for other in [&b"/home/image"[..], b"keepstone", b"keepstones 7 /x", b"keepstone x /x", b""]
        {
            assert_eq!(labelled(other), None);
        }
    }
}
