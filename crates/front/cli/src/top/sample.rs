//! Samples of a server's counters, and rates between two samples.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use counters::Latencies;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

/// Counters by their names.
pub type Counters = BTreeMap<&'static str, u64>;

/// Rates by the same names, per second.
pub type Rates = BTreeMap<&'static str, f64>;

/// Requests.
pub const OPERATIONS: &str = "operations";
/// Bytes read by clients.
pub const READ_BYTES: &str = "read_bytes";
/// Bytes written by clients.
pub const WRITTEN_BYTES: &str = "written_bytes";
/// Errors.
pub const ERRORS: &str = "errors";
/// Requests to read.
pub const READS: &str = "reads";
/// Requests to write.
pub const WRITES: &str = "writes";

/// Least time between two answers for which a rate is computed.
const SPAN_MIN: Duration = Duration::from_millis(1);

/// The kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowKind {
    /// A pool as a file system.
    Mount,
    /// A pool as the cache of a directory.
    Cache,
    /// A pool as a block device.
    Device,
}

impl RowKind {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Cache => "cache",
            Self::Device => "device",
        }
    }
}

/// The current state of a service, by its kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Gauges {
    /// The state of a mount.
    Mount {
        size_bytes: u64,
        used_bytes: u64,
        /// Processes other than the server that use the pool; null if they may not.
        processes: Option<usize>,
    },
    /// The state of a cache.
    Cache {
        size_bytes: u64,
        used_bytes: u64,
        dirty_bytes: u64,
        dirty_files: u64,
        oldest_dirty_ms: u64,
        /// Files that need attention.
        troubles: usize,
    },
    /// The state of a device.
    Device {
        size_bytes: u64,
        /// Null if the kernel is the client.
        clients: Option<u64>,
    },
}

/// A sample of the counters of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The time of the sample.
    pub at: Instant,
    /// The kind of service.
    pub kind: RowKind,
    /// The mount point, the device, or the export.
    pub name: String,
    /// The pool.
    pub pool: String,
    /// The process ID of the server.
    pub pid: Option<u64>,
    /// Number of restarts of the processes that count.
    restarts: u64,
    /// Requests for attributes, which the kernel sends when it does not have them cached.
    getattrs: u64,
    /// Uptime of the server, in seconds.
    pub uptime_s: u64,
    /// Counts since the server started.
    pub counters: Counters,
    /// The times of all requests since then; none of a server that does not measure them.
    pub latencies: Latencies,
    /// The times of the requests since the previous sample; `None` in the first.
    pub recent: Option<Latencies>,
    /// The state at the time of the sample.
    pub gauges: Gauges,
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Sample {
    /// Makes a sample of a mount from the statistics of its server.
    pub fn of_mount(at: Instant, stats: &Value, processes: Option<usize>) -> Self {
        let requests = stats["requests"].as_object().into_iter().flatten();
        let operations = requests.map(|(_, count)| number(count)).sum();
        let cache = &stats["cache"];
        let mut errors = number(&stats["panics"]);
        let mut counters = Counters::from([
            (OPERATIONS, operations),
            (READ_BYTES, number(&stats["read_bytes"])),
            (WRITTEN_BYTES, number(&stats["written_bytes"])),
        ]);
        let (kind, name, gauges) = if cache.is_object() {
            errors += number(&cache["counters"]["failures"]);
            (RowKind::Cache, &stats["mount"], cache_gauges(cache))
        } else {
            let space = &stats["space"];
            let bytes = |blocks: u64| blocks.saturating_mul(number(&space["block_size"]));
            let [size, free] = ["blocks", "blocks_free"].map(|field| bytes(number(&space[field])));
            let used_bytes = size.saturating_sub(free);
            (
                RowKind::Mount,
                &stats["dir"],
                Gauges::Mount { size_bytes: size, used_bytes, processes },
            )
        };
        counters.insert(ERRORS, errors);
        Self {
            at,
            kind,
            name: text(name),
            pool: text(&stats["pool"]),
            pid: stats["pid"].as_u64(),
            restarts: 0,
            getattrs: number(&stats["requests"]["getattr"]),
            uptime_s: number(&stats["uptime_s"]),
            counters,
            latencies: latencies(&stats["latency"]),
            recent: None,
            gauges,
        }
    }

    /// Makes a sample of a device from the status of its server.
    pub fn of_device(at: Instant, status: &Value, export: &Value) -> Self {
        let device = |name: &str| number(&export["device"][name]);
        let all = ["reads", "writes", "barriers", "discards", "zeroes"];
        let counters = Counters::from([
            (OPERATIONS, all.into_iter().map(device).sum()),
            (READ_BYTES, device("bytes_read")),
            (WRITTEN_BYTES, device("bytes_written")),
            (READS, device("reads")),
            (WRITES, device("writes")),
            (ERRORS, device("damaged_blocks") + number(&export["requests"]["errors"])),
        ]);
        Self {
            at,
            kind: RowKind::Device,
            name: text(if status["device"].is_string() {
                &status["device"]
            } else {
                &export["name"]
            }),
            pool: text(&export["path"]),
            pid: status["pid"].as_u64(),
            restarts: number(&status["workers"]["restarts"]),
            getattrs: 0,
            uptime_s: number(&status["uptime_s"]),
            counters,
            latencies: latencies(&export["latency"]),
            recent: None,
            gauges: Gauges::Device {
                size_bytes: number(&export["size_bytes"]),
                clients: status["clients"].as_u64(),
            },
        }
    }

    /// Sets [`recent`](Self::recent) to the times since an earlier sample of the same service, or
    /// since the server started, if it has started again.
    pub fn follow(&mut self, earlier: &Self) {
        self.recent = Some(match self.began_anew(earlier) {
            true => self.latencies.clone(),
            false => self.latencies.since(&earlier.latencies),
        });
    }

    /// Returns whether the counters began at 0 since an earlier sample.
    fn began_anew(&self, earlier: &Self) -> bool {
        let of = |sample: &Self, name: &str| sample.counters.get(name).copied().unwrap_or(0);
        (self.pid, self.restarts) != (earlier.pid, earlier.restarts)
            || earlier.counters.keys().any(|name| of(self, name) < of(earlier, name))
    }

    /// Returns the rates per second since an earlier sample of the same service; `None` if less
    /// than `SPAN_MIN` has passed.
    pub fn since(&self, earlier: &Self) -> Option<Rates> {
        let span = self.at.checked_duration_since(earlier.at).filter(|span| *span >= SPAN_MIN)?;
        let of = |sample: &Self, name: &str| sample.counters.get(name).copied().unwrap_or(0);
        let began_anew = self.began_anew(earlier);
        // Reading the counters of a mount is a request, too. Before it, the kernel checks
        // permissions, and requests the attributes if it does not have them.
        let own = match self.kind {
            RowKind::Mount | RowKind::Cache => {
                1 + self.getattrs.saturating_sub(earlier.getattrs).min(1)
            }
            RowKind::Device => 0,
        };
        let rate = |name: &&'static str| {
            let before = if began_anew { 0 } else { of(earlier, name) };
            let own = if *name == OPERATIONS { own } else { 0 };
            let done = (of(self, name) - before).saturating_sub(own);
            (*name, done as f64 / span.as_secs_f64())
        };
        Some(self.counters.keys().map(rate).collect())
    }
}

/// Returns the times of requests of all kinds together.
fn latencies(by_kind: &Value) -> Latencies {
    let mut all = Latencies::default();
    for report in by_kind.as_object().into_iter().flatten().map(|(_, report)| report) {
        let buckets = Vec::<(u64, u64)>::deserialize(&report["buckets"]);
        all.add(&Latencies::of(buckets.into_iter().flatten()));
    }
    all
}

fn cache_gauges(cache: &Value) -> Gauges {
    Gauges::Cache {
        size_bytes: number(&cache["size_bytes"]),
        used_bytes: number(&cache["used_bytes"]),
        dirty_bytes: number(&cache["dirty_bytes"]),
        dirty_files: number(&cache["dirty_files"]),
        oldest_dirty_ms: number(&cache["oldest_dirty_ms"]),
        troubles: cache["troubles"].as_array().map_or(0, Vec::len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mount(at: Instant, pid: u64, reads: u64, bytes: u64) -> Sample {
        let stats = json!({
            "pool": "/pool", "dir": "/mnt", "pid": pid, "uptime_s": 9, "panics": 0,
            "latency": { "read": { "buckets": [[4096, reads]] }, "write": { "buckets": [[80, 1]] } },
            "requests": { "read": reads, "getxattr": 1 }, "read_bytes": bytes, "written_bytes": 0,
            "space": { "block_size": 4096, "blocks": 10, "blocks_free": 4 },
        });
        Sample::of_mount(at, &stats, None)
    }

    #[test]
    fn rates_are_what_was_done_by_the_time_it_took() {
        let start = Instant::now();
        let (first, second) =
            (mount(start, 1, 10, 100), mount(start + Duration::from_secs(2), 1, 31, 300));
        let rates = second.since(&first).unwrap();
        // One of the 21 requests is the query itself.
        assert_eq!(
            rates,
            Rates::from([
                (OPERATIONS, 10.0),
                (READ_BYTES, 100.0),
                (WRITTEN_BYTES, 0.0),
                (ERRORS, 0.0),
            ])
        );
        assert_eq!(
            second.gauges,
            Gauges::Mount { size_bytes: 40960, used_bytes: 24576, processes: None }
        );
    }

    #[test]
    fn times_are_of_the_last_interval() {
        let start = Instant::now();
        let (first, mut second) = (mount(start, 1, 10, 100), mount(start, 1, 31, 300));
        second.follow(&first);
        let recent = second.recent.as_ref().unwrap();
        assert_eq!((recent.calls(), recent.percentile(0.01)), (21, Some(4095)));
        assert_eq!((first.latencies.calls(), first.latencies.percentile(0.01)), (11, Some(79)));
        let mut anew = mount(start, 2, 31, 300);
        anew.follow(&first);
        assert_eq!(anew.recent.unwrap().calls(), 32);
    }

    #[test]
    fn an_idle_mount_does_nothing_though_it_is_asked() {
        let start = Instant::now();
        let mut later = mount(start + Duration::from_secs(1), 1, 10, 0);
        *later.counters.get_mut(OPERATIONS).unwrap() += 1;
        assert_eq!(later.since(&mount(start, 1, 10, 0)).unwrap()[OPERATIONS], 0.0);
        // The kernel requested attributes to check permissions.
        *later.counters.get_mut(OPERATIONS).unwrap() += 1;
        later.getattrs += 1;
        assert_eq!(later.since(&mount(start, 1, 10, 0)).unwrap()[OPERATIONS], 0.0);
    }

    #[test]
    fn counters_that_begin_anew_count_from_zero() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let before = mount(start, 1, 1_000_000, 5000);
        // Another process, and one that seems to be the same; one counter already exceeds its old
        // value.
        for pid in [1, 2] {
            let after = mount(start + second, pid, 4, 6000);
            let rates = after.since(&before).unwrap();
            assert_eq!((rates[OPERATIONS], rates[READ_BYTES]), (4.0, 6000.0), "{pid}");
        }
        let export = |reads: u64| {
            json!({ "name": "disk", "path": "/pool", "size_bytes": 4096,
            "device": { "reads": reads, "bytes_read": 0 } })
        };
        let status = |restarts: u64| json!({ "pid": 3, "workers": { "restarts": restarts } });
        let old = Sample::of_device(start, &status(0), &export(10));
        let new = Sample::of_device(start + second, &status(1), &export(12));
        assert_eq!(new.since(&old).unwrap()[READS], 12.0);
    }

    #[test]
    fn two_answers_at_once_are_no_rate() {
        let now = Instant::now();
        assert_eq!(mount(now, 1, 20, 0).since(&mount(now, 1, 10, 0)), None);
        let later = now + Duration::from_secs(1);
        assert_eq!(mount(now, 1, 20, 0).since(&mount(later, 1, 10, 0)), None);
    }

    #[test]
    fn caches_and_devices_say_what_they_are_about() {
        let stats = json!({
            "pool": "/pool", "dir": "/srv", "mount": "/over", "pid": 1, "panics": 1,
            "requests": { "read": 3 },
            "cache": {
                "size_bytes": 100, "used_bytes": 50, "dirty_bytes": 7, "dirty_files": 1, "oldest_dirty_ms": 1500,
                "troubles": [{}], "counters": { "failures": 2 },
            },
        });
        let cache = Sample::of_mount(Instant::now(), &stats, None);
        assert_eq!((cache.kind, &*cache.name), (RowKind::Cache, "/over"));
        assert_eq!(cache.counters[ERRORS], 3);
        let Gauges::Cache { dirty_bytes: 7, oldest_dirty_ms: 1500, troubles: 1, .. } = cache.gauges
        else {
            panic!("{:?}", cache.gauges)
        };
        let export = json!({ "name": "disk", "path": "/pool", "size_bytes": 4096, "requests": { "errors": 2 },
            "device": { "reads": 1, "writes": 2, "barriers": 3, "bytes_written": 8192 } });
        for (status, name) in
            [(json!({ "clients": 2 }), "disk"), (json!({ "device": "/dev/loop0" }), "/dev/loop0")]
        {
            let device = Sample::of_device(Instant::now(), &status, &export);
            assert_eq!((device.kind, &*device.name), (RowKind::Device, name));
            assert_eq!((device.counters[OPERATIONS], device.counters[WRITES]), (6, 2));
            assert_eq!((device.counters[WRITTEN_BYTES], device.counters[ERRORS]), (8192, 2));
        }
    }
}
