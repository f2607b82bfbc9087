//! Commands that query servers: `keepstone bdev list`, `stats`, `grow` and `stop`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::args::{GrowArgs, StatsArgs};
use super::control::{self, BdevServer, ControlRequest};
use super::{devices, looped};
use crate::output::{self, text};
use crate::prometheus::Metrics;
use crate::{shown, size};

/// Longest time for a server to end, in seconds.
const END_SECONDS_MAX: i64 = 60;

/// Time between two lines of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// The counters of a device that `--watch` shows.
const RATES: [&str; 5] = ["reads", "bytes_read", "writes", "bytes_written", "barriers"];

pub fn list(json: bool) -> Result<()> {
    let servers = control::servers()?;
    let orphans = looped::orphans()?;
    if json {
        let orphans = orphans.iter().map(|orphan| {
            json!({ "kind": "loop", "pid": null, "device": orphan.device, "exports": [{ "path": orphan.pool }] })
        });
        let servers = servers.iter().map(|s| s.status.clone());
        return output::json(&servers.chain(orphans).collect::<Vec<_>>());
    }
    for server in servers {
        let status = &server.status;
        let (pid, kind, at) = (text(&status["pid"]), text(&status["kind"]), server.places());
        match &status["clients"] {
            Value::Null => say!("{pid} {kind} {at}"),
            clients => say!("{pid} {kind} {at}, {clients} clients"),
        }
        for export in items(&status["exports"]) {
            let bytes = size::show(export["size_bytes"].as_u64().unwrap_or(0));
            let [name, path] = ["name", "path"].map(|field| text(&export[field]));
            say!("  {} {bytes} {}", shown::name(&name), shown::path(&path));
        }
    }
    for orphan in orphans {
        say!("- loop {0}, whose server was killed; `keepstone bdev detach {0}`", orphan.device);
        say!("  {}", shown::path(&orphan.pool));
    }
    Ok(())
}

pub fn run(args: &StatsArgs, json: bool) -> Result<()> {
    let server = control::find(&args.server.name)?;
    if args.watch {
        watch(&server, json)
    } else if args.prometheus {
        let mut metrics = Metrics::default();
        metrics.add_devices(&server.status, |_| true);
        say!("{metrics}");
        Ok(())
    } else if json {
        output::json(&server.status)
    } else {
        show(&server);
        Ok(())
    }
}

pub fn grow(args: &GrowArgs, json: bool) -> Result<()> {
    let (name, size) = match control::try_find(&args.name)? {
        Some(server) => {
            let export = server.export_called(&args.name)?;
            let size =
                server.ask(&ControlRequest::Grow { export: export.to_owned(), size: args.size })?;
            (export.to_owned(), size.as_u64().unwrap_or(0))
        }
        None => (args.name.clone(), devices::grow(Path::new(&args.name), args.size)?),
    };
    if json {
        return output::json(&json!({ "export": name, "size_bytes": size }));
    }
    say!("{name}: {}", size::show(size));
    Ok(())
}

pub fn stop(name: &str, json: bool) -> Result<()> {
    let server = control::find(name)?;
    let pid = server.status["pid"].as_i64().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    server.ask(&ControlRequest::Stop)?;
    if let Some(process) = process {
        let timeout = Timespec { tv_sec: END_SECONDS_MAX, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout))? == 0 {
            bail!("{name}: its server does not end; see `keepstone bdev stats {name}`");
        }
    }
    stopped(name, json)
}

/// Reports that a server was stopped.
pub fn stopped(name: &str, json: bool) -> Result<()> {
    if json { output::json(&json!({ "stopped": name })) } else { Ok(()) }
}

fn show(server: &BdevServer) {
    let status = &server.status;
    output::table([
        ("server", format!("pid {}, {}", status["pid"], text(&status["kind"]))),
        ("serving on", server.places()),
        ("uptime", format!("{} s", status["uptime_s"])),
    ]);
    if !status["clients"].is_null() {
        output::table([("clients", text(&status["clients"]))]);
    }
    if let Some(restarts) = status["workers"]["restarts"].as_u64() {
        let each = items(&status["workers"]["processes"])
            .map(|worker| format!("pid {} with {} clients", worker["pid"], worker["clients"]));
        let each = each.collect::<Vec<_>>().join(", ");
        output::table([("workers", each), ("restarts", restarts.to_string())]);
    }
    for export in items(&status["exports"]) {
        say!();
        let bytes = |field: &str| size::show(export["device"][field].as_u64().unwrap_or(0));
        output::table([
            ("export", text(&export["name"])),
            ("pool", text(&export["path"])),
            ("size", size::show(export["size_bytes"].as_u64().unwrap_or(0))),
            ("domain", text(&export["domain"]["name"])),
            ("protection", text(&export["protection"])),
            ("scheme", text(&export["scheme"])),
            ("read", bytes("bytes_read")),
            ("written", bytes("bytes_written")),
        ]);
        for part in ["requests", "device"] {
            let rows = numbers(&export[part], "");
            if !rows.is_empty() {
                say!("\n{part}");
            }
            output::table(rows.into_iter().map(|(name, value)| (format!("  {name}"), value)));
        }
        show_latency(&export["latency"]);
    }
}

/// Prints percentiles of the times of requests, by kind.
fn show_latency(by_kind: &Value) {
    let rows: Vec<_> = by_kind
        .as_object()
        .into_iter()
        .flatten()
        .map(|(kind, report)| {
            let us = |field: &str| report[field].as_f64().unwrap_or(0.0) / 1e3;
            let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(us);
            (format!("  {kind}"), format!("{p50:.1}, {p99:.1}, {p999:.1}"))
        })
        .collect();
    if !rows.is_empty() {
        say!("\nlatency in us: p50, p99, p99.9");
        output::table(rows);
    }
}

/// Prints requests and bytes per second, one line for each export and second.
fn watch(server: &BdevServer, json: bool) -> Result<()> {
    let mut before = server.ask(&ControlRequest::Status)?;
    let mut then = Instant::now();
    if !json {
        let titles: Vec<_> = RATES.map(|field| format!("{:>17}", format!("{field}/s"))).into();
        say!("{:<16}{}", "export", titles.concat());
    }
    loop {
        std::thread::sleep(WATCH_EVERY);
        let now = server.ask(&ControlRequest::Status)?;
        let seconds = then.elapsed().as_secs_f64();
        then = Instant::now();
        for (new, old) in items(&now["exports"]).zip(items(&before["exports"])) {
            let rate = |field: &str| {
                let [new, old] = [new, old].map(|e| e["device"][field].as_u64().unwrap_or(0));
                (new.saturating_sub(old) as f64 / seconds) as u64
            };
            if json {
                let mut line = serde_json::Map::new();
                line.insert("export".into(), new["name"].clone());
                line.extend(RATES.map(|field| (format!("{field}_per_s"), rate(field).into())));
                say!("{}", Value::Object(line));
            } else {
                let shown = RATES.map(|field| match field.starts_with("bytes") {
                    true => format!("{:>17}", size::show(rate(field))),
                    false => format!("{:>17}", rate(field)),
                });
                say!("{:<16}{}", text(&new["name"]), shown.concat());
            }
        }
        before = now;
    }
}

/// Collects the numbers of an object. Numbers of nested objects get joined names.
fn numbers(object: &Value, prefix: &str) -> Vec<(String, u64)> {
    let fields = object.as_object().into_iter().flatten();
    fields
        .flat_map(|(name, value)| {
            let name = format!("{prefix}{name}");
            match value.as_u64() {
                Some(value) => vec![(name, value)],
                None => numbers(value, &format!("{name}_")),
            }
        })
        .collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
