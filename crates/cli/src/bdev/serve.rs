//! `keepstone bdev serve`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fuse::StopSignals;
use nbd::{Export, Exports, Listener, Server, ServerOptions, TlsFiles};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::args::ServeArgs;
use super::control::{Control, Request, stop_this_process};
use super::devices::{self, DeviceReport};
use super::server::{self, runtime_dir, wait_for_signal};
use super::status::{ExportStatus, Status, announce_device};
use crate::{background, output};

/// How long clients may take to fetch their replies when the server is told to stop.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What the server says once clients can connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    pid: u32,
    addresses: Vec<String>,
    exports: Vec<ExportReady>,
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
        serve(args, activated, &|ready| announce(ready, json))?;
    } else {
        announce(&server::start("serve")?, json)?;
    }
    Ok(())
}

fn announce(ready: &Ready, json: bool) -> Result<()> {
    if json {
        return output::json(ready);
    }
    for export in &ready.exports {
        announce_device(&export.device, export.size_bytes);
    }
    for address in &ready.addresses {
        println!("serving on {address}");
    }
    Ok(())
}

/// Serves until it is told to stop.
fn serve(
    args: &ServeArgs,
    activated: Vec<Listener>,
    ready: &dyn Fn(&Ready) -> Result<()>,
) -> Result<()> {
    // Before any thread exists, so that all of them leave the signals alone.
    let stop = StopSignals::block()?;
    let (exports, reports) = open(args)?;
    let server = Server::new(exports, options(args)?)?;
    let listeners = listen(args, activated, &reports[0].name)?;
    let addresses: Vec<String> = listeners.iter().map(|l| l.address().to_owned()).collect();

    let control = Control::open()?;
    let started = Instant::now();
    let (asked, served_at) = (server.clone(), addresses.clone());
    let reported = reports.clone();
    control.serve(move |request| answer(&asked, &request, &served_at, &reported, started))?;

    let accepting = {
        let server = server.clone();
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || server.run(&listeners).map(|()| listeners))?
    };
    let exports = server.exports().iter().zip(reports);
    ready(&Ready {
        pid: std::process::id(),
        addresses,
        exports: exports
            .map(|(export, device)| ExportReady { device, size_bytes: export.device().size() })
            .collect(),
    })?;

    wait_for_signal(stop);
    server.stop(STOP_GRACE).context("cannot make everything durable")?;
    // Sockets and files lose their names here.
    drop(accepting.join().map_err(|_| anyhow::anyhow!("the thread that takes clients died"))??);
    drop(control);
    Ok(())
}

fn open(args: &ServeArgs) -> Result<(Exports, Vec<DeviceReport>)> {
    let by_file_name = |path: &PathBuf| {
        let name = path.file_name().context("a pool has a file name")?;
        Ok((name.to_string_lossy().into_owned(), path.clone()))
    };
    let mut pools = args.pools.iter().map(by_file_name).collect::<Result<Vec<_>>>()?;
    pools.extend(args.exports.iter().cloned());
    let (mut exports, mut reports) = (Vec::new(), Vec::new());
    for (name, path) in &pools {
        let described = args.descriptions.iter().find(|(of, _)| of == name);
        let description = described.map_or("", |(_, text)| text);
        let opened = devices::open(name, description, path, &args.device)?;
        let read_only = opened.report.read_only;
        exports.push(Export::new(name, description, opened.device, read_only)?);
        reports.push(opened.report);
    }
    Ok((Exports::new(exports)?, reports))
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

fn listen(args: &ServeArgs, activated: Vec<Listener>, first: &str) -> Result<Vec<Listener>> {
    let mut listeners = activated;
    let unix = |path: &Path| {
        Listener::unix(path).with_context(|| format!("{}: cannot listen there", path.display()))
    };
    if let Some(path) = &args.socket {
        listeners.push(unix(&std::path::absolute(path)?)?);
    }
    for address in &args.listen {
        let listener = Listener::tcp(*address);
        listeners.push(listener.with_context(|| format!("{address}: cannot listen there"))?);
    }
    if listeners.is_empty() {
        listeners.push(unix(&runtime_dir()?.join(format!("{first}.sock")))?);
    }
    Ok(listeners)
}

fn answer(
    server: &Arc<Server>,
    request: &Request,
    addresses: &[String],
    reports: &[DeviceReport],
    started: Instant,
) -> Result<Value> {
    match request {
        Request::Status => {
            let exports = server.exports().iter().zip(reports);
            Ok(serde_json::to_value(Status {
                kind: "nbd",
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION"),
                uptime_s: started.elapsed().as_secs(),
                addresses,
                device: None,
                clients: Some(server.clients()),
                exports: exports
                    .map(|(export, report)| ExportStatus {
                        report,
                        size_bytes: export.device().size(),
                        requests: Some(export.counters.snapshot()),
                        device: export.device().stats(),
                    })
                    .collect(),
            })?)
        }
        Request::Grow { export, size } => {
            let found = server.exports().iter().find(|e| e.name() == export);
            let found = found.with_context(|| format!("{export}: no such export"))?;
            let grown = found.device().grow(*size);
            grown.with_context(|| format!("{export}: cannot grow to {size} bytes"))?;
            Ok(found.device().size().into())
        }
        Request::Stop => stop_this_process(),
    }
}
