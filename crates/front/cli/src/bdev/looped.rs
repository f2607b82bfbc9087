//! Loop devices, as `loop(4)` describes them.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_GET_FREE,
    loop_config, loop_info64,
};

use super::onefile;
use super::server::runtime_dir;
use crate::background::write_private;

/// Attempts, because another process may take the device that was free.
const TRIES: usize = 16;

/// A loop device that this process has set up. This process does not keep it open, so that it can
/// be released.
pub struct Loop {
    path: String,
}

impl Loop {
    /// Sets up a device on `backing`, with direct I/O and blocks of `block` bytes. Notes that it
    /// shows `pool`.
    pub fn new(backing: BorrowedFd<'_>, block: u32, read_only: bool, pool: &str) -> Result<Self> {
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
                Ok(_) => {
                    let looped = Self { path };
                    let noted = note(&looped.path).and_then(|note| {
                        write_private(&note, format!("{} {pool}", std::process::id()).as_bytes())
                    });
                    if let Err(err) = noted {
                        looped.release()?;
                        return Err(err.context("cannot note whose loop device it is"));
                    }
                    return Ok(looped);
                }
                Err(err) if err.kind() == io::ErrorKind::ResourceBusy => {}
                Err(err) => return Err(err).with_context(|| format!("{path}: cannot be set up")),
            }
        }
        bail!("others keep taking the loop devices")
    }

    /// Returns the path of the device.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Releases the device: now, or when the last process that has it open closes it.
    pub fn release(&self) -> Result<()> {
        release(&self.path)
    }
}

/// Returns the path of the note that records the server and the pool of a device. It shows later
/// whether the server was killed.
fn note(device: &str) -> Result<PathBuf> {
    let name = device.trim_start_matches("/dev/");
    Ok(runtime_dir()?.join(format!("{name}.{NOTE}")))
}

fn release(path: &str) -> Result<()> {
    let _ = fs::remove_file(note(path)?);
    let file = open(path)?;
    // SAFETY: takes no argument.
    match check(unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD.into()) }) {
        // The device is already released.
        Err(err) if err.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        result => result.map(|_| ()).with_context(|| format!("{path}: cannot be released")),
    }
}

/// A loop device of this program whose server was killed. Its requests fail.
pub struct Orphan {
    /// Such as /dev/loop0.
    pub device: String,
    /// The pool.
    pub pool: String,
}

impl Orphan {
    /// Releases the device.
    pub fn release(&self) -> Result<()> {
        ensure!(!is_in_use(&self.device), "{}: in use; unmount what is on it first", self.device);
        release(&self.device)
    }
}

/// Extension of notes.
const NOTE: &str = "pool";

/// Finds the loop devices whose servers were killed.
pub fn orphans() -> Result<Vec<Orphan>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(runtime_dir()?)? {
        let note = entry?.path();
        let name = note.file_stem().map(|name| name.to_string_lossy().into_owned());
        let Some(name) = name.filter(|_| note.extension().is_some_and(|end| end == NOTE)) else {
            continue;
        };
        // Another program may have released the device, and its name may have been reused. The note
        // is then obsolete.
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        if file.is_ok_and(|file| file.trim_end() == format!("/{}", onefile::NAME)) {
            let text = fs::read_to_string(note)?;
            if let Some((pid, pool)) = text.split_once(' ')
                && !is_server(pid)
            {
                found.push(Orphan { device: format!("/dev/{name}"), pool: pool.to_owned() });
            }
        } else {
            let _ = fs::remove_file(note);
        }
    }
    found.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(found)
}

/// Returns whether the process with this ID lives and runs this program.
fn is_server(pid: &str) -> bool {
    // `proc_pid_stat(5)`: number, name in parentheses, state.
    let stat = |of: &str| fs::read_to_string(format!("/proc/{of}/stat")).unwrap_or_default();
    let name = |stat: &str| Some(stat.split_once(" (")?.1.rsplit_once(") ")?.0.to_owned());
    let (own, other) = (stat("self"), stat(pid));
    let ended = [") Z ", ") X "].iter().any(|state| other.contains(state));
    !ended && name(&other).is_some_and(|other| Some(other) == name(&own))
}

/// Returns whether the device is mounted, or open exclusively in another way.
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
