//! Loop devices, as `loop(4)` describes them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

use anyhow::{Context as _, Result, bail};
use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_GET_FREE,
    loop_config, loop_info64,
};

/// How often to try when others take the device that was free a moment ago.
const TRIES: usize = 16;

/// A loop device that this process has set up. It is not kept open, which would keep it from going.
pub struct Loop {
    path: String,
}

impl Loop {
    /// A device on `backing`, with direct I/O and blocks of `block` bytes.
    pub fn new(backing: BorrowedFd<'_>, block: u32, read_only: bool) -> Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
        let control = control.context("/dev/loop-control: no loop devices; `modprobe loop`?")?;
        let read_only = if read_only { LO_FLAGS_READ_ONLY as u32 } else { 0 };
        let config = loop_config {
            fd: backing.as_raw_fd() as u32,
            block_size: block,
            info: loop_info64 { lo_flags: LO_FLAGS_DIRECT_IO as u32 | read_only, ..no_info() },
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
        let file = open(&self.path)?;
        // SAFETY: takes no argument.
        match check(unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD.into()) }) {
            // It has gone already.
            Err(err) if err.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            result => result.map(|_| ()).with_context(|| format!("{}: is not let go", self.path)),
        }
    }
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
