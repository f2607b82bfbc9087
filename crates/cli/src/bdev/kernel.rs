//! `keepstone bdev loop`: a device of the kernel's on a pool.
//!
//! The server is a [file system of one file](super::onefile) with a loop device on it. Nobody else
//! sees that file: its mount is taken out of sight at once and lives for as long as the loop device
//! uses it. So the server ends when the device goes, whoever lets it go (`losetup -d` too), and a
//! server that is killed leaves nothing but a device whose requests fail.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use fuse::StopSignals;
use fuser::{Config, Session, SessionACL};
use rustix::mount::{MountFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::args::{LoopArgs, Through};
use super::background;
use super::control::{Control, Request, stop_this_process};
use super::devices::{self, DeviceReport, Opened};
use super::looped::{self, Loop};
use super::onefile::{self, OneFile};
use super::status::{ExportStatus, Status, announce_device};
use crate::{output, pool};

/// What the server says once the device can be used.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    pid: u32,
    /// Such as /dev/loop0.
    device: String,
    export: DeviceReport,
    size_bytes: u64,
    /// Who copies content.
    through: Through,
}

pub fn run(args: &LoopArgs, json: bool) -> Result<()> {
    if args.process.daemon {
        background::serve(|ready| serve(args, ready));
    } else if args.process.foreground {
        serve(args, &|ready| announce(ready, json))?;
    } else {
        announce(&background::start("loop")?, json)?;
    }
    Ok(())
}

fn announce(ready: &Ready, json: bool) -> Result<()> {
    if json {
        return output::json(ready);
    }
    announce_device(&ready.export, ready.size_bytes);
    match ready.through {
        Through::Kernel => {
            println!("  content is copied by the kernel, past protection and scheme")
        }
        Through::Server => println!("  content is copied by the server"),
    }
    println!("{}", ready.device);
    Ok(())
}

/// Serves until the device is let go.
fn serve(args: &LoopArgs, ready: &dyn Fn(&Ready) -> Result<()>) -> Result<()> {
    // Before any thread exists, so that all of them leave the signals alone.
    let stop = StopSignals::block()?;
    let name = args.pool.file_name().context("a pool has a file name")?.to_string_lossy();
    let Opened { device, report } = devices::open(&name, "", &args.pool, &args.device)?;
    let read_only = report.read_only;
    let home = tempfile::Builder::new().prefix("loop-").tempdir_in(background::runtime_dir()?)?;
    let passed = Arc::new(AtomicBool::new(false));
    let pool = passable(args, &report)?;
    let file = OneFile::new(device.clone(), pool, passed.clone());
    let session = mount(file, home.path(), pool::threads(args.threads))?;
    let (ended, end) = channel();
    std::thread::Builder::new().name("fuse".into()).spawn(move || {
        let _ = ended.send(session.run());
    })?;
    let block = args.block_size.unwrap_or(device.block_sizes().minimum.max(512));
    let looped = put_loop(home.path(), block, read_only);
    rustix::mount::unmount(home.path(), UnmountFlags::DETACH)?;
    drop(home);
    let looped = looped?;

    let control = Control::open()?;
    let size_bytes = device.size();
    let (of, path, started) = (report.clone(), looped.path().to_owned(), Instant::now());
    let asked = device.clone();
    control.serve(move |request| match request {
        Request::Status => Ok(serde_json::to_value(Status {
            kind: "loop",
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: started.elapsed().as_secs(),
            addresses: &[],
            device: Some(&path),
            clients: None,
            exports: vec![ExportStatus {
                report: &of,
                size_bytes,
                requests: None,
                device: asked.stats(),
            }],
        })?),
        Request::Grow { .. } => bail!("a loop device keeps its size; detach it, grow the pool"),
        Request::Stop if looped::is_in_use(&path) => {
            bail!("{path}: in use; unmount what is on it first")
        }
        Request::Stop => stop_this_process(),
    })?;
    ready(&Ready {
        pid: std::process::id(),
        device: looped.path().to_owned(),
        export: report,
        size_bytes,
        through: if passed.load(Ordering::Relaxed) { Through::Kernel } else { Through::Server },
    })?;

    std::thread::spawn(move || {
        background::wait_for_signal(stop);
        if let Err(err) = looped.release() {
            tracing::error!("{err:#}");
        }
    });
    let served = end.recv().context("the thread that serves the file died")?;
    drop(control);
    // What nobody has asked to be durable is made so all the same.
    device.barrier()?;
    served.context("the session with the kernel broke")
}

/// The pool, for the kernel to use itself, where that comes to the same: its bytes are those of the
/// device, and nothing has to be done for each request.
fn passable(args: &LoopArgs, report: &DeviceReport) -> Result<Option<File>> {
    let plain = args.device.atomic.is_none() && args.device.emulate.is_none();
    let path = Path::new(&report.path);
    let possible = plain && path.metadata()?.is_file();
    match args.through {
        Some(Through::Server) => return Ok(None),
        Some(Through::Kernel) if !possible => bail!(
            "{}: the kernel cannot copy its content: that takes a file without --atomic and --emulate",
            report.path
        ),
        _ if !possible => return Ok(None),
        _ => {}
    }
    Ok(Some(OpenOptions::new().read(true).write(!report.read_only).open(path)?))
}

/// Mounts by itself, because a session that `fuser` has mounted wants to unmount it at the end too.
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

fn put_loop(dir: &Path, block: u32, read_only: bool) -> Result<Loop> {
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(libc::O_DIRECT)
        .open(dir.join(onefile::NAME))?;
    Loop::new(file.as_fd(), block, read_only)
}
