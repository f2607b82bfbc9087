//! `keepstone bdev loop` and `attach`: a block device of the kernel on a pool.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use fuse::StopSignals;
use pmbd::RequestTimes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::args::{AttachArgs, KernelArgs, Through, Via};
use super::control::{self, Control, ControlRequest};
use super::devices::{self, DeviceReport};
use super::looped::Orphan;
use super::server;
use super::stats;
use super::status::{ExportNumbers, ExportStatus, Status, announce_device};
use super::{fileloop, kernel_nbd, looped, ublk};
use crate::{background, output, pool};

/// A device that the kernel has.
pub struct Attached {
    /// The kind of device.
    pub kind: &'static str,
    /// Such as /dev/loop0.
    pub path: String,
    /// The party that copies content, if there is a choice.
    pub through: Option<Through>,
    /// Whether the device was taken over from a killed server.
    pub taken_over: bool,
    /// Releases the device: at once, or when the last process that has it open closes it.
    pub release: Box<dyn FnOnce() -> Result<()> + Send>,
    /// Receives the result when the device is gone.
    pub end: Receiver<io::Result<()>>,
    /// The times of its requests.
    pub times: Arc<RequestTimes>,
}

/// The server's report when the device can be used.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    pid: u32,
    /// Such as /dev/loop0.
    device: String,
    via: Via,
    /// The reason for the driver, if the user did not choose it.
    why: Option<String>,
    export: DeviceReport,
    size_bytes: u64,
    /// The party that copies content, if there is a choice.
    through: Option<Through>,
    /// Whether the device was taken over from a killed server.
    taken_over: bool,
    /// Warnings for the user.
    warnings: Vec<String>,
}

/// The driver by which the kernel gets a device.
struct Driver {
    via: Via,
    /// The reason for the driver, if the user did not choose it.
    why: Option<String>,
    /// Requests in each queue of ublk.
    depth: u16,
}

/// Attaches a pool as a loop device.
pub fn run_loop(args: &KernelArgs, json: bool) -> Result<()> {
    run(args, Driver { via: Via::Loop, why: None, depth: ublk::DEPTH }, "loop", json)
}

/// Attaches a pool by the given driver, or by the fastest that the machine has.
pub fn run_attach(args: &AttachArgs, json: bool) -> Result<()> {
    let (via, why) = match args.via {
        Some(via) => (via, None),
        None => choose(),
    };
    run(&args.kernel, Driver { via, why, depth: args.queue_depth }, "attach", json)
}

/// Takes a device back from the kernel, even if its server was killed.
pub fn detach(name: &str, json: bool) -> Result<()> {
    if ublk::let_go(name)? {
        return stats::stopped(name, json);
    }
    if control::try_find(name)?.is_none() {
        let is_called = |orphan: &Orphan| {
            control::is_device(name, &orphan.device) || control::is_path(name, &orphan.pool)
        };
        if let Some(orphan) = looped::orphans()?.into_iter().find(is_called) {
            orphan.release()?;
            return stats::stopped(name, json);
        }
    }
    stats::stop(name, json)
}

/// Returns the fastest driver that the machine has, and the reason.
fn choose() -> (Via, Option<String>) {
    let (via, why) = match ublk::missing() {
        None => (Via::Ublk, "by ublk, which the kernel has".to_owned()),
        Some(no_ublk) if kernel_nbd::is_there() => {
            (Via::Nbd, format!("by the kernel's NBD client: {no_ublk}"))
        }
        Some(no_ublk) => {
            let no_nbd = "no /dev/nbd0 (`modprobe nbd`?)";
            (Via::Loop, format!("by a loop device: {no_ublk}, and {no_nbd}"))
        }
    };
    (via, Some(why))
}

/// Serves in this process, or starts a server in the background (`word` is this subcommand) and
/// returns when it is ready. Prints the device.
fn run(args: &KernelArgs, driver: Driver, word: &str, json: bool) -> Result<()> {
    if args.process.daemon {
        background::serve(|ready| serve(args, driver, ready));
    } else if args.process.foreground {
        serve(args, driver, &|ready| {
            background::notify_ready();
            announce(ready, json)
        })?;
    } else {
        announce(&server::start(word)?, json)?;
    }
    Ok(())
}

/// Prints warnings on standard error, and the device on the last line of standard output.
fn announce(ready: &Ready, json: bool) -> Result<()> {
    ready.warnings.iter().for_each(|warning| output::notice(format_args!("warning: {warning}")));
    if json {
        return output::json(ready);
    }
    announce_device(&ready.export, ready.size_bytes);
    if let Some(why) = &ready.why {
        say!("  {why}");
    }
    match ready.through {
        Some(Through::Kernel) => {
            say!("  the kernel copies content, bypassing protection and scheme");
        }
        Some(Through::Server) => say!("  the server copies content"),
        None => {}
    }
    if ready.taken_over {
        say!("  taken over from a server that was killed; programs that use the device continue");
    }
    say!("{}", ready.device);
    Ok(())
}

/// Attaches the pool to the kernel and calls `ready`. Serves until the device is released, then
/// makes all writes durable.
fn serve(args: &KernelArgs, driver: Driver, ready: &dyn Fn(&Ready) -> Result<()>) -> Result<()> {
    if driver.via == Via::Ublk
        && let Some(why) = ublk::missing()
    {
        bail!("{why}");
    }
    // Blocked before any thread exists, so that all threads inherit the mask.
    let stop = StopSignals::block()?;
    let name = args.pool.file_name().context("a pool has a file name")?.to_string_lossy();
    let mut opened = devices::open(&name, "", &args.pool, &args.device)?;
    let left = match driver.via {
        Via::Ublk => ublk::left_behind(Path::new(&opened.report.path))?,
        Via::Nbd | Via::Loop => None,
    };
    let created = opened.created.take();
    let block = args.block_size.unwrap_or(opened.device.block_sizes().minimum.max(512));
    let threads = pool::threads(args.threads);
    let attached = match driver.via {
        Via::Ublk => ublk::attach(&opened, block, threads, driver.depth, left)?,
        Via::Loop => fileloop::attach(args, &opened, block, threads)?,
        Via::Nbd => kernel_nbd::attach(&opened, block, threads)?,
    };

    let control = Control::open()?;
    let device = opened.device.clone();
    let size_bytes = device.size();
    let (of, path, started) = (opened.report.clone(), attached.path.clone(), Instant::now());
    let (kind, times) = (attached.kind, attached.times.clone());
    control.serve(move |request| match request {
        ControlRequest::Status => Ok(serde_json::to_value(Status {
            kind,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: started.elapsed().as_secs(),
            addresses: &[],
            device: Some(&path),
            clients: None,
            workers: None,
            exports: vec![ExportStatus {
                report: &of,
                size_bytes,
                numbers: ExportNumbers::of_device(&*device, &times)?,
            }],
        })?),
        ControlRequest::Grow { .. } => bail!(
            "{path} keeps its size; detach it, and `keepstone bdev grow {} --size …` then",
            of.path
        ),
        ControlRequest::Stop if looped::is_in_use(&path) => {
            bail!("{path}: in use; unmount what is on it first")
        }
        ControlRequest::Stop => Ok(Value::Null),
    })?;
    if let Some(created) = created {
        created.keep();
    }
    ready(&Ready {
        pid: std::process::id(),
        device: attached.path,
        via: driver.via,
        why: driver.why,
        export: opened.report,
        size_bytes,
        through: attached.through,
        taken_over: attached.taken_over,
        warnings: opened.warnings,
    })?;

    let release = attached.release;
    std::thread::spawn(move || {
        server::wait_for_signal(stop);
        if let Err(err) = release() {
            tracing::error!("{err:#}");
        }
    });
    let served = attached.end.recv().context("the thread that serves the kernel died")?;
    drop(control);
    // Makes even those writes durable that no barrier has covered.
    opened.device.barrier()?;
    if let Some(recording) = &opened.recording {
        recording.finish()?;
    }
    served.context("the session with the kernel broke")
}
