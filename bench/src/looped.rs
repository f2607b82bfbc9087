//! Loop devices under comparison, and file systems on them.

use crate::ramdisk::run;
use anyhow::{Context as _, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Bytes of a block of its file systems.
pub const BLOCK: usize = 4 << 10;

/// A loop device, detached when it is dropped.
pub struct Loop {
    device: PathBuf,
    detach: Command,
}

impl Loop {
    /// Attaches a device of `bdev loop` with `options`, on a file of `bytes` in `dir`.
    pub fn keepstone(keepstone: &Path, dir: &Path, bytes: u64, options: &[&str]) -> Result<Self> {
        let file = written(dir, bytes)?;
        let mut attach = Command::new(keepstone);
        attach.args(["bdev", "loop"]).args(options).arg(&file);
        let ready = run(&mut attach)?;
        let device = PathBuf::from(ready.lines().last().context("it names no device")?);
        let mut detach = Command::new(keepstone);
        detach.args(["bdev", "detach"]).arg(&device);
        Ok(Self { device, detach })
    }

    /// Attaches one of the kernel's own, on a file of `bytes` in `dir`.
    pub fn bare(dir: &Path, bytes: u64) -> Result<Self> {
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show", "--direct-io=on"]).arg(written(dir, bytes)?);
        let device = PathBuf::from(run(&mut attach)?.trim());
        let mut detach = Command::new("losetup");
        detach.arg("--detach").arg(&device);
        Ok(Self { device, detach })
    }

    /// Opens the device for direct I/O.
    pub fn open(&self) -> Result<File> {
        let direct = OFlags::DIRECT.bits() as i32;
        Ok(File::options().read(true).write(true).custom_flags(direct).open(&self.device)?)
    }

    /// Makes a file of 4 MiB on an ext4 on it. The mount has no name and ends with the file.
    pub fn ext4_file(&self) -> Result<OwnedFd> {
        let point = self.ext4()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::open(point.path().join("file"), flags, mode)?;
        for off in (0..4 << 20).step_by(BLOCK) {
            rustix::io::pwrite(file.as_fd(), &[1; BLOCK], off)?;
        }
        rustix::fs::fsync(&file)?;
        Ok(file)
    }

    /// Makes and mounts an ext4 on it.
    pub fn ext4(&self) -> Result<Mount> {
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&self.device))?;
        let point = tempfile::tempdir()?;
        rustix::mount::mount(&self.device, point.path(), "ext4", MountFlags::NOATIME, None)?;
        Ok(Mount(point))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(err) = run(&mut self.detach) {
            tell!("{}: {err:#}", self.device.display());
        }
    }
}

/// A mounted file system. It is detached when this is dropped, and ends with its last user.
pub struct Mount(TempDir);

impl Mount {
    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
    }
}

/// Makes a file of which every byte was written.
fn written(dir: &Path, bytes: u64) -> Result<PathBuf> {
    let path =
        tempfile::Builder::new().prefix("disk-").tempfile_in(dir)?.into_temp_path().keep()?;
    let file = File::options().write(true).open(&path)?;
    for off in (0..bytes).step_by(1 << 20) {
        file.write_all_at(&[0x5a; 1 << 20], off)?;
    }
    Ok(path)
}
