//! A loop device on a [file system of one file](super::onefile).
//!
//! No other process sees that file: its mount is detached at once and lives for as long as the loop
//! device uses it. So the server ends when the device is released, by any program (`losetup -d`,
//! for example). A killed server leaves only a device whose requests fail.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use anyhow::{Context as _, Result, bail};
use fuser::{Config, Session, SessionACL};
use pmbd::RequestTimes;
use rustix::mount::{MountFlags, UnmountFlags};

use super::args::{DeviceArgs, KernelArgs, Through};
use super::devices::{DeviceReport, Opened};
use super::kernel::Attached;
use super::looped::Loop;
use super::onefile::{self, OneFile};
use super::server;

/// Gives the kernel `opened` as a loop device with logical blocks of `block` bytes.
pub fn attach(args: &KernelArgs, opened: &Opened, block: u32, threads: usize) -> Result<Attached> {
    let Opened { device, report, .. } = opened;
    let home = tempfile::Builder::new().prefix("loop-").tempdir_in(server::runtime_dir()?)?;
    let passed = Arc::new(AtomicBool::new(false));
    let pool = passable(args, report)?;
    let times = Arc::<RequestTimes>::default();
    let file = OneFile::new(device.clone(), pool, passed.clone(), times.clone());
    let session = mount(file, home.path(), threads)?;
    let (ended, end) = channel();
    std::thread::Builder::new().name("fuse".into()).spawn(move || {
        let _ = ended.send(session.run());
    })?;
    let looped = put_loop(home.path(), block, report);
    rustix::mount::unmount(home.path(), UnmountFlags::DETACH)?;
    let looped = looped?;
    let kernel = passed.load(Ordering::Relaxed);
    Ok(Attached {
        kind: "loop",
        path: looped.path().to_owned(),
        through: Some(if kernel { Through::Kernel } else { Through::Server }),
        taken_over: false,
        release: Box::new(move || looped.release()),
        end,
        times,
    })
}

/// Opens the pool for the kernel to use directly, if the result is the same: the bytes of the pool
/// are those of the device, and requests need no processing.
fn passable(args: &KernelArgs, report: &DeviceReport) -> Result<Option<File>> {
    let DeviceArgs { emulate, buffers, record, .. } = &args.device;
    let plain = report.atomic == 0 && emulate.is_none() && buffers.is_none() && record.is_none();
    let path = Path::new(&report.path);
    let possible = plain && path.metadata()?.is_file();
    match args.through {
        Some(Through::Server) => return Ok(None),
        Some(Through::Kernel) if !possible => bail!(
            "{}: the kernel cannot copy its content: that takes a file without atomic blocks, --emulate, --buffers and --record",
            report.path
        ),
        _ if !possible => return Ok(None),
        _ => {}
    }
    Ok(Some(OpenOptions::new().read(true).write(!report.read_only).open(path)?))
}

/// Mounts with `mount(2)`, because a session that `fuser` mounts also unmounts at its end.
fn mount(file: OneFile, dir: &Path, threads: usize) -> Result<Session<OneFile>> {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let fuse = fuse.context("/dev/fuse: cannot be opened; `keepstone doctor` may know why")?;
    let fd = fuse.as_raw_fd();
    let data = CString::new(format!("fd={fd},rootmode=40500,user_id=0,group_id=0"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("keepstone-bdev", dir, "fuse.keepstone-bdev", flags, &*data)
        .context("cannot mount a file for the loop device; only root may")?;
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let session = Session::from_fd(file, fuse.into(), SessionACL::Owner, config);
    Ok(session.inspect_err(|_| {
        let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
    })?)
}

fn put_loop(dir: &Path, block: u32, report: &DeviceReport) -> Result<Loop> {
    let read_only = report.read_only;
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(libc::O_DIRECT)
        .open(dir.join(onefile::NAME))?;
    Loop::new(file.as_fd(), block, read_only, &report.path)
}
