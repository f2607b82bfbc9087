//! Metrics in the text format of Prometheus, with the same names and labels in `stats`, `attach
//! status`, `bdev stats` and `top`.
//!
//! A family is called `keepstone_KIND_NAME`; counters since the server started end with `_total`.
//! Its samples have the label `mount`, or `export` and `pool`.

use std::fmt;

use serde::Deserialize as _;
use serde_json::Value;

use crate::output::text;

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    Gauge,
    Counter,
    Histogram,
}

/// Powers of two, in ns, up to which the requests of a histogram are counted: 1 µs to 17 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// Families, each with its samples.
#[derive(Debug, Default)]
pub struct Metrics(Vec<(String, MetricKind, Vec<String>)>);

impl Metrics {
    /// Adds a sample. Values that are no numbers are left out.
    fn add(&mut self, name: &str, kind: MetricKind, labels: &[(&str, &str)], value: &Value) {
        let Value::Number(value) = value else { return };
        let suffix = if kind == MetricKind::Counter { "_total" } else { "" };
        let name = format!("keepstone_{name}{suffix}");
        let sample = format!("{name}{{{}}} {value}", labels_of(labels));
        self.add_samples(name, kind, vec![sample]);
    }

    /// Adds a histogram of times, as the statistics of a server have it.
    fn add_histogram(&mut self, name: &str, labels: &[(&str, &str)], report: &Value) {
        let Ok(buckets) = Vec::<(u64, u64)>::deserialize(&report["buckets"]) else { return };
        let calls = |until: u64| -> u64 {
            let counted = buckets.iter().filter(|(end, _)| *end <= until);
            counted.map(|(_, calls)| calls).sum()
        };
        let name = format!("keepstone_{name}");
        let labels = labels_of(labels);
        let bucket =
            |bound: &str, calls| format!("{name}_bucket{{{labels},le=\"{bound}\"}} {calls}");
        let mut samples: Vec<_> = BOUNDS
            .step_by(2)
            .map(|power| 1_u64 << power)
            .map(|ns| bucket(&(ns as f64 / 1e9).to_string(), calls(ns)))
            .collect();
        samples.push(bucket("+Inf", calls(u64::MAX)));
        let total = report["total_ns"].as_f64().unwrap_or(0.0) / 1e9;
        samples.push(format!("{name}_sum{{{labels}}} {total}"));
        samples.push(format!("{name}_count{{{labels}}} {}", calls(u64::MAX)));
        self.add_samples(name, MetricKind::Histogram, samples);
    }

    fn add_samples(&mut self, name: String, kind: MetricKind, new: Vec<String>) {
        match self.0.iter_mut().find(|(family, ..)| *family == name) {
            Some((_, _, samples)) => samples.extend(new),
            None => self.0.push((name, kind, new)),
        }
    }

    /// Adds every number of an object, those of nested objects with joined names.
    fn add_all(&mut self, name: &str, kind: MetricKind, labels: &[(&str, &str)], object: &Value) {
        for (field, value) in object.as_object().into_iter().flatten() {
            let name = format!("{name}_{field}");
            match value {
                Value::Object(_) => self.add_all(&name, kind, labels, value),
                _ => self.add(&name, kind, labels, value),
            }
        }
    }

    /// Adds whether a server answers.
    pub fn add_up(&mut self, kind: &str, name: &str, is_up: bool) {
        let labels = [("kind", kind), ("name", name)];
        self.add("up", MetricKind::Gauge, &labels, &u8::from(is_up).into());
    }

    /// Adds the statistics of the server of a mount or a cache.
    pub fn add_mount(&mut self, stats: &Value) {
        use MetricKind::{Counter, Gauge};
        let cache = &stats["cache"];
        let mount = text(if cache.is_object() { &stats["mount"] } else { &stats["dir"] });
        let (pool, version) = (text(&stats["pool"]), text(&stats["version"]));
        let labels = [("mount", mount.as_str())];
        let of_info = [labels[0], ("pool", pool.as_str()), ("version", version.as_str())];
        self.add("mount_info", Gauge, &of_info, &1.into());
        self.add("mount_uptime_seconds", Gauge, &labels, &stats["uptime_s"]);
        for name in ["panics", "read_bytes", "written_bytes"] {
            self.add(&format!("mount_{name}"), Counter, &labels, &stats[name]);
        }
        for (request, count) in stats["requests"].as_object().into_iter().flatten() {
            self.add("mount_requests", Counter, &[labels[0], ("request", request)], count);
        }
        for (request, report) in stats["latency"].as_object().into_iter().flatten() {
            self.add_histogram("mount_request_seconds", &[labels[0], ("request", request)], report);
        }
        self.add_all("mount_medium", Counter, &labels, &stats["medium"]);
        self.add_all("mount_space", Gauge, &labels, &stats["space"]);
        self.add_all("mount_free", Gauge, &labels, &stats["free"]);
        if cache.is_object() {
            self.add_cache(cache, &labels);
        }
    }

    /// Adds the status of a cache.
    fn add_cache(&mut self, status: &Value, labels: &[(&str, &str)]) {
        use MetricKind::{Counter, Gauge};
        for name in [
            "size_bytes",
            "used_bytes",
            "pinned_bytes",
            "pinned_bytes_max",
            "dirty_bytes",
            "dirty_files",
            "oldest_dirty_ms",
            "troubled_files",
        ] {
            self.add(&format!("cache_{name}"), Gauge, labels, &status[name]);
        }
        let is_notified = status["watch"].as_str().is_some_and(|how| how != "off");
        let guards = status["watch"] == "permission";
        for (name, is_set) in [("told_of_changes", is_notified), ("guards_openings", guards)] {
            self.add(&format!("cache_{name}"), Gauge, labels, &u8::from(is_set).into());
        }
        self.add_all("cache", Counter, labels, &status["counters"]);
    }

    /// Adds the status of a server of block devices, with the exports that `is_meant` chooses.
    pub fn add_devices(&mut self, status: &Value, is_meant: impl Fn(&Value) -> bool) {
        use MetricKind::{Counter, Gauge};
        let exports: Vec<_> = status["exports"].as_array().into_iter().flatten().collect();
        let first = exports.first().map(|export| text(&export["path"])).unwrap_or_default();
        let of_server = [("server", first.as_str())];
        self.add("bdev_clients", Gauge, &of_server, &status["clients"]);
        self.add("bdev_restarts", Counter, &of_server, &status["workers"]["restarts"]);
        self.add("bdev_uptime_seconds", Gauge, &of_server, &status["uptime_s"]);
        for export in exports.into_iter().filter(|export| is_meant(export)) {
            let (name, pool) = (text(&export["name"]), text(&export["path"]));
            let labels = [("export", name.as_str()), ("pool", pool.as_str())];
            self.add("bdev_size_bytes", Gauge, &labels, &export["size_bytes"]);
            for part in ["requests", "device"] {
                self.add_all(&format!("bdev_{part}"), Counter, &labels, &export[part]);
            }
            for (request, report) in export["latency"].as_object().into_iter().flatten() {
                let labels = [labels[0], labels[1], ("request", request)];
                self.add_histogram("bdev_request_seconds", &labels, report);
            }
        }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, kind, samples)) in self.0.iter().enumerate() {
            let kind = match kind {
                MetricKind::Gauge => "gauge",
                MetricKind::Counter => "counter",
                MetricKind::Histogram => "histogram",
            };
            let line = if at == 0 { "" } else { "\n" };
            write!(f, "{line}# TYPE {name} {kind}\n{}", samples.join("\n"))?;
        }
        Ok(())
    }
}

fn labels_of(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    labels.iter().map(one).collect::<Vec<_>>().join(",")
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn devices_have_one_type_for_each_family() {
        let export = |name| json!({ "name": name, "path": "/p", "requests": { "reads": 3 }, "device": { "cycles": { "load": 7 } } });
        let status = json!({ "clients": 1, "exports": [export("a"), export("b\"c")] });
        let mut metrics = Metrics::default();
        metrics.add_devices(&status, |_| true);
        assert_eq!(
            metrics.to_string(),
            "# TYPE keepstone_bdev_clients gauge\n\
             keepstone_bdev_clients{server=\"/p\"} 1\n\
             # TYPE keepstone_bdev_requests_reads_total counter\n\
             keepstone_bdev_requests_reads_total{export=\"a\",pool=\"/p\"} 3\n\
             keepstone_bdev_requests_reads_total{export=\"b\\\"c\",pool=\"/p\"} 3\n\
             # TYPE keepstone_bdev_device_cycles_load_total counter\n\
             keepstone_bdev_device_cycles_load_total{export=\"a\",pool=\"/p\"} 7\n\
             keepstone_bdev_device_cycles_load_total{export=\"b\\\"c\",pool=\"/p\"} 7"
        );
    }

    #[test]
    fn times_of_devices_are_a_histogram() {
        let latency = json!({ "flush": { "total_ns": 9000, "buckets": [[9216, 3]] } });
        let status = json!({ "exports": [{ "name": "a", "path": "/p", "latency": latency }] });
        let mut metrics = Metrics::default();
        metrics.add_devices(&status, |_| true);
        let text = metrics.to_string();
        let labels = "export=\"a\",pool=\"/p\",request=\"flush\"";
        let last = format!("keepstone_bdev_request_seconds_count{{{labels}}} 3");
        assert!(text.starts_with("# TYPE keepstone_bdev_request_seconds histogram\n"), "{text}");
        assert!(text.ends_with(&last), "{text}");
    }

    #[test]
    fn mounts_have_requests_by_kind() {
        let stats = json!({ "dir": "/mnt", "pool": "/p", "version": "1", "requests": { "read": 3, "write": 4 } });
        let mut metrics = Metrics::default();
        metrics.add_mount(&stats);
        assert_eq!(
            metrics.to_string(),
            "# TYPE keepstone_mount_info gauge\n\
             keepstone_mount_info{mount=\"/mnt\",pool=\"/p\",version=\"1\"} 1\n\
             # TYPE keepstone_mount_requests_total counter\n\
             keepstone_mount_requests_total{mount=\"/mnt\",request=\"read\"} 3\n\
             keepstone_mount_requests_total{mount=\"/mnt\",request=\"write\"} 4"
        );
    }

    #[test]
    fn times_are_a_histogram() {
        let buckets = json!([[1024, 2], [1152, 1], [5_000_000, 4]]);
        let stats = json!({ "dir": "/mnt", "pool": "/p", "version": "1",
            "latency": { "read": { "total_ns": 2_000_000_000_u64, "buckets": buckets } } });
        let mut metrics = Metrics::default();
        metrics.add_mount(&stats);
        let text = metrics.to_string();
        assert!(text.contains("# TYPE keepstone_mount_request_seconds histogram\n"), "{text}");
        let labels = "mount=\"/mnt\",request=\"read\"";
        for (sample, value) in [
            (format!("_bucket{{{labels},le=\"0.000001024\"}}"), "2"),
            (format!("_bucket{{{labels},le=\"0.000004096\"}}"), "3"),
            (format!("_bucket{{{labels},le=\"+Inf\"}}"), "7"),
            (format!("_sum{{{labels}}}"), "2"),
            (format!("_count{{{labels}}}"), "7"),
        ] {
            let line = format!("\nkeepstone_mount_request_seconds{sample} {value}");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}
