//! Kernel file systems to compare with: ext4 and ext2 on a RAM disk, and ramfs.

use crate::store::open_dir;
use anyhow::{Context as _, Result, bail};
use rustix::fd::OwnedFd;
use rustix::mount::UnmountFlags;
use std::path::Path;
use std::process::Command;

/// ext4 on a loop device on a file in `dir`, with direct I/O. Needs root.
pub fn ext4(dir: &Path, bytes: u64) -> Result<OwnedFd> {
    disk("ext4", dir, bytes)
}

/// The same with ext2, the file system of the paper on SCMFS (§4.1).
pub fn ext2(dir: &Path, bytes: u64) -> Result<OwnedFd> {
    disk("ext2", dir, bytes)
}

/// ramfs, which never gives a page back. Needs root.
pub fn ramfs() -> Result<OwnedFd> {
    mount("ramfs", "keepstone-bench")
}

/// A file system on a loop device on a file in `dir`.
///
/// File, device and mount have lost their names when this returns and live only through the
/// returned directory: whatever ends the process, nothing stays behind.
fn disk(kind: &str, dir: &Path, bytes: u64) -> Result<OwnedFd> {
    let file = tempfile::Builder::new().prefix("keepstone-bench-disk-").tempfile_in(dir)?;
    file.as_file().set_len(bytes)?;
    let device =
        run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file.path()))?;
    let device = device.trim();
    let made = run(Command::new("mke2fs").args(["-q", "-F", "-t", kind, device]));
    let root = made.and_then(|_| mount(kind, device));
    // In use by the mount, the device is only marked to go with it.
    let detached = run(Command::new("losetup").args(["--detach", device]));
    let root = root?;
    detached?;
    Ok(root)
}

/// Mounts, and takes the name away from the mount.
fn mount(kind: &str, source: &str) -> Result<OwnedFd> {
    let point = tempfile::tempdir()?;
    run(Command::new("mount").args(["-t", kind, "-o", "noatime", source]).arg(point.path()))?;
    let root = open_dir(point.path());
    rustix::mount::unmount(point.path(), UnmountFlags::DETACH)?;
    Ok(root?)
}

/// Runs a command and returns what it printed.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} failed ({}): {}", output.status, why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
