//! Kernel file systems to compare with: tmpfs, and ext4 on a RAM disk.

use crate::store::open_dir;
use anyhow::{Context as _, Result, bail};
use rustix::fd::OwnedFd;
use rustix::mount::UnmountFlags;
use std::path::Path;
use std::process::Command;

/// ext4 on a loop device on a file in `dir`, with direct I/O. Needs root.
///
/// File, device and mount have lost their names when this returns and live only through the
/// returned directory: whatever ends the process, nothing stays behind.
pub fn ext4(dir: &Path, bytes: u64) -> Result<OwnedFd> {
    let file = tempfile::Builder::new().prefix("keepstone-bench-ext4-").tempfile_in(dir)?;
    file.as_file().set_len(bytes)?;
    let device =
        run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file.path()))?;
    let mount = mount_ext4(device.trim());
    // In use by the mount, the device is only marked to go with it.
    let detached = run(Command::new("losetup").args(["--detach", device.trim()]));
    let root = mount?;
    detached?;
    Ok(root)
}

fn mount_ext4(device: &str) -> Result<OwnedFd> {
    run(Command::new("mkfs.ext4").args(["-q", "-F", device]))?;
    let point = tempfile::tempdir()?;
    run(Command::new("mount").args(["-t", "ext4", "-o", "noatime", device]).arg(point.path()))?;
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
