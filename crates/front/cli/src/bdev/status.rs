//! The status that servers report.

use std::collections::BTreeMap;

use anyhow::Result;
use counters::LatencyReport;
use pmbd::{BlockDevice, RequestTimes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::devices::DeviceReport;
use crate::size;

/// The status of a server.
#[derive(Serialize)]
pub struct Status<'a> {
    /// The kind of server.
    pub kind: &'static str,
    pub pid: u32,
    pub version: &'static str,
    pub uptime_s: u64,
    /// Addresses for clients.
    pub addresses: &'a [String],
    /// The kernel's name of the device.
    pub device: Option<&'a str>,
    pub clients: Option<usize>,
    /// Worker processes, if the server has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    pub exports: Vec<ExportStatus<'a>>,
}

/// The status of a device that the server serves.
#[derive(Serialize)]
pub struct ExportStatus<'a> {
    #[serde(flatten)]
    pub report: &'a DeviceReport,
    pub size_bytes: u64,
    #[serde(flatten)]
    pub numbers: ExportNumbers,
}

/// The counters of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportNumbers {
    /// Requests of clients: [`nbd::ExportCounts`].
    pub requests: Option<Value>,
    /// The resulting accesses to the device: [`pmbd::Stats`].
    pub device: Value,
    /// Times of the requests, by kind.
    pub latency: BTreeMap<String, LatencyReport>,
}

impl ExportNumbers {
    /// Returns the counters of an export.
    pub fn of(export: &nbd::Export) -> Result<Self> {
        let requests = Some(serde_json::to_value(export.counters.snapshot())?);
        Ok(Self { requests, ..Self::of_device(&**export.device(), &export.times)? })
    }

    /// Returns the counters of a device that is not an export.
    pub fn of_device(device: &dyn BlockDevice, times: &RequestTimes) -> Result<Self> {
        let (device, latency) = (serde_json::to_value(device.stats())?, times.reports());
        Ok(Self { requests: None, device, latency })
    }

    /// Adds the counters of another process that has the same device.
    pub fn add(&mut self, other: &Self) {
        if let (Some(sum), Some(more)) = (&mut self.requests, &other.requests) {
            add(sum, more);
        }
        add(&mut self.device, &other.device);
        for (kind, times) in &other.latency {
            match self.latency.get_mut(kind) {
                Some(sum) => sum.add(times),
                None => _ = self.latency.insert(kind.clone(), times.clone()),
            }
        }
    }
}

/// Adds numbers; in objects, those of the same name.
fn add(sum: &mut Value, more: &Value) {
    match (sum, more) {
        (Value::Object(sum), Value::Object(more)) => {
            for (name, more) in more {
                add(sum.entry(name).or_insert(0.into()), more);
            }
        }
        (sum, more) => {
            if let (Some(one), Some(other)) = (sum.as_u64(), more.as_u64()) {
                *sum = one.wrapping_add(other).into();
            }
        }
    }
}

/// The worker processes of a supervisor.
#[derive(Serialize)]
pub struct WorkersStatus {
    pub processes: Vec<WorkerStatus>,
    /// How often all workers were restarted because one had died. A restart resets the counters.
    pub restarts: u32,
}

/// The status of a worker.
#[derive(Serialize)]
pub struct WorkerStatus {
    pub pid: i32,
    pub clients: usize,
}

/// Prints what is served.
pub fn announce_device(device: &DeviceReport, size_bytes: u64) {
    let read_only = if device.read_only { ", read-only" } else { "" };
    say!("{}: {}{read_only}, {}", device.name, size::show(size_bytes), device.path);
    say!("  domain {}", device.domain);
    say!("  protection {}, scheme {}", device.protection, device.scheme);
    if let Some(emulation) = &device.emulation {
        say!("  speed emulated: {emulation}");
    }
    if let Some(buffers) = &device.buffers {
        say!("  write buffers: {buffers}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmbd::TimedRequest;
    use serde_json::json;
    use std::time::{Duration, Instant};

    #[test]
    fn numbers_of_processes_add_up() {
        let of = |reads| ExportNumbers {
            requests: Some(json!({ "reads": reads })),
            device: json!({ "reads": reads, "cycles": { "load": 10 * reads } }),
            latency: BTreeMap::new(),
        };
        let (times, start) = (RequestTimes::default(), Instant::now());
        times.record_at(TimedRequest::Read, start, start + Duration::from_micros(7));
        let (mut sum, mut other) = (of(1), of(2));
        other.latency = times.reports();
        sum.add(&other);
        assert_eq!(sum.latency["read"].total_ns, 7000);
        other.device = json!({});
        other.requests = None;
        sum.add(&other);
        assert_eq!(sum.latency["read"].total_ns, 14_000);
        assert_eq!(sum.requests, Some(json!({ "reads": 3 })));
        assert_eq!(sum.device, json!({ "reads": 3, "cycles": { "load": 30 } }));
    }
}
