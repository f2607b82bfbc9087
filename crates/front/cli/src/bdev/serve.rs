//! `keepstone bdev serve`

#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fuse::StopSignals;
use nbd::{Listener, Server, ServerOptions, TlsFiles};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::args::ServeArgs;
use super::control::{Control, ControlRequest};
use super::devices::{self, Created, DeviceReport, Opened};
use super::listen;
use super::server::{self, runtime_dir, wait_for_signal};
use super::status::{ExportStatus, Status, WorkersStatus, announce_device};
use super::worker::Numbers;
use super::workers::Supervisor;
use crate::{background, output};

/// Longest time for clients to fetch their replies when the server stops.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// The server's report when clients can connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    pid: u32,
    addresses: Vec<String>,
    exports: Vec<ExportReady>,
    /// Warnings for the user.
    warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ExportReady {
    #[serde(flatten)]
    device: DeviceReport,
    size_bytes: u64,
}

pub fn run(args: &ServeArgs, json: bool) -> Result<()> {
    // SAFETY: nothing has been opened yet but the standard streams.
    let activated = unsafe { Listener::activated() }.context("the sockets of systemd")?;
    if args.process.daemon {
        background::serve(|ready| serve(args, activated, ready));
    } else if args.process.foreground || !activated.is_empty() {
        serve(args, activated, &|ready| {
            background::notify_ready();
            announce(ready, json)
        })?;
    } else {
        announce(&server::start("serve")?, json)?;
    }
    Ok(())
}

fn announce(ready: &Ready, json: bool) -> Result<()> {
    ready.warnings.iter().for_each(|warning| output::notice(format_args!("warning: {warning}")));
    if json {
        return output::json(ready);
    }
    for export in &ready.exports {
        announce_device(&export.device, export.size_bytes);
    }
    for address in &ready.addresses {
        say!("serving on {address}");
    }
    Ok(())
}

/// The served devices and the addresses.
pub struct Served {
    pub opened: Vec<Opened>,
    addresses: Vec<String>,
    warnings: Vec<String>,
    started: Instant,
}

impl Served {
    fn ready(&self) -> Ready {
        let exports = self.opened.iter().map(|Opened { device, report, .. }| ExportReady {
            device: report.clone(),
            size_bytes: device.size(),
        });
        Ready {
            pid: std::process::id(),
            addresses: self.addresses.clone(),
            exports: exports.collect(),
            warnings: self.warnings.clone(),
        }
    }

    /// Answers [`ControlRequest::Status`].
    pub fn status(&self, numbers: Numbers, workers: Option<WorkersStatus>) -> Result<Value> {
        let exports = self.opened.iter().zip(numbers.exports);
        Ok(serde_json::to_value(Status {
            kind: "nbd",
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.started.elapsed().as_secs(),
            addresses: &self.addresses,
            device: None,
            clients: Some(numbers.clients),
            workers,
            exports: exports
                .map(|(Opened { device, report, .. }, numbers)| ExportStatus {
                    report,
                    size_bytes: device.size(),
                    numbers,
                })
                .collect(),
        })?)
    }

    /// Answers [`ControlRequest::Grow`].
    pub fn grow(&self, export: &str, size: u64) -> Result<Value> {
        let found = self.opened.iter().find(|opened| opened.report.name == export);
        let device = &found.with_context(|| format!("{export}: no such export"))?.device;
        match device.grow(size) {
            Err(pmbd::Error::NotSupported) => bail!(
                "{export}: has atomic blocks, whose number is fixed: create a larger one, and copy the content"
            ),
            grown => grown.with_context(|| format!("{export}: cannot grow to {size} bytes"))?,
        }
        Ok(device.size().into())
    }
}

/// Serves until a signal or a request stops the server.
fn serve(
    args: &ServeArgs,
    activated: Vec<Listener>,
    ready: &dyn Fn(&Ready) -> Result<()>,
) -> Result<()> {
    // Blocked before any thread exists, so that all threads inherit the mask.
    let stop = StopSignals::block()?;
    let mut opened = open(args)?;
    let recording = opened.iter_mut().find_map(|opened| opened.recording.take());
    let created: Vec<_> = opened.iter_mut().filter_map(|opened| opened.created.take()).collect();
    let options = options(args)?;
    let listeners = open_listeners(args, activated, &opened[0].report.name)?;
    let addresses = listeners.iter().map(|l| l.address().to_owned()).collect();
    let mut warnings = listen::warnings(args, &listeners);
    warnings.extend(opened.iter_mut().flat_map(|opened| opened.warnings.drain(..)));
    let served = Served { opened, addresses, warnings, started: Instant::now() };
    let control = Control::open()?;
    let ready = &|told: &Ready| {
        created.iter().for_each(Created::keep);
        ready(told)
    };
    match args.workers {
        None => {
            serve_here(served, options, listeners, &control, stop, ready)?;
            recording.map_or(Ok(()), |recording| recording.finish())
        }
        Some(count) => {
            let told = served.ready();
            let mut supervisor = Supervisor::start(&args.device, count.into(), options, served)?;
            ready(&told)?;
            supervisor.run(&stop, &listeners, &control)?;
            wait_for_signal(stop);
            supervisor.stop()
        }
    }
}

/// Serves with threads of this process.
fn serve_here(
    served: Served,
    options: ServerOptions,
    listeners: Vec<Listener>,
    control: &Control,
    stop: StopSignals,
    ready: &dyn Fn(&Ready) -> Result<()>,
) -> Result<()> {
    let server = Server::new(devices::exports(&served.opened)?, options)?;
    let told = served.ready();
    let asked = server.clone();
    control.serve(move |request| match request {
        ControlRequest::Status => served.status(Numbers::of(&asked)?, None),
        ControlRequest::Grow { export, size } => served.grow(&export, size),
        ControlRequest::Stop => Ok(Value::Null),
    })?;
    let accepting = {
        let server = server.clone();
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || server.run(&listeners).map(|()| listeners))?
    };
    ready(&told)?;
    wait_for_signal(stop);
    server.stop(STOP_GRACE).context("cannot make everything durable")?;
    // This removes the sockets' files.
    drop(accepting.join().map_err(|_| anyhow::anyhow!("the thread that takes clients died"))??);
    Ok(())
}

fn open(args: &ServeArgs) -> Result<Vec<Opened>> {
    let by_file_name = |path: &PathBuf| {
        let name = path.file_name().context("a pool has a file name")?;
        Ok((name.to_string_lossy().into_owned(), path.clone()))
    };
    let mut pools = args.pools.iter().map(by_file_name).collect::<Result<Vec<_>>>()?;
    pools.extend(args.exports.iter().cloned());
    if args.device.record.is_some() && pools.len() > 1 {
        bail!("--record: a trace has the accesses to one pool");
    }
    let open = |(name, path): &(String, PathBuf)| {
        let described = args.descriptions.iter().find(|(of, _)| of == name);
        let description = described.map_or("", |(_, text)| text);
        devices::open(name, description, path, &args.device)
    };
    pools.iter().map(open).collect()
}

fn options(args: &ServeArgs) -> Result<ServerOptions> {
    let files = args.tls_certificates.as_deref();
    let files = files.map(|dir| TlsFiles::in_dir(dir, args.tls_verify_peer));
    Ok(ServerOptions {
        tls: files.map(|files| files.load()).transpose()?,
        tls_required: args.tls_required,
        clients_max: args.clients.into(),
        ..ServerOptions::default()
    })
}

fn open_listeners(
    args: &ServeArgs,
    activated: Vec<Listener>,
    first: &str,
) -> Result<Vec<Listener>> {
    let mut listeners = activated;
    let unix = |path: &Path| {
        Listener::unix(path).with_context(|| format!("{}: cannot listen there", path.display()))
    };
    if let Some(path) = &args.socket {
        listeners.push(unix(&std::path::absolute(path)?)?);
    }
    for address in &args.listen {
        let listener = address.listen();
        listeners.push(listener.with_context(|| format!("{address}: cannot listen there"))?);
    }
    if listeners.is_empty() {
        listeners.push(unix(&runtime_dir()?.join(format!("{first}.sock")))?);
    }
    Ok(listeners)
}
