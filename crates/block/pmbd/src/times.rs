//! Histograms of the times that requests to a device take, by kind of request.

use counters::{Histogram, LatencyReport};
use std::collections::BTreeMap;
use std::time::Instant;

/// A kind of request whose times are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedRequest {
    /// Reads content.
    Read,
    /// Writes content.
    Write,
    /// Makes everything written durable.
    Flush,
    /// Discards a range.
    Discard,
    /// Writes zeros.
    Zero,
}

impl TimedRequest {
    const NAMES: [&str; 5] = ["read", "write", "flush", "discard", "zero"];
}

/// The times of all requests of a device's clients. Servers record in it, because a request ends
/// when its answer is given, and not when the device has the content.
#[derive(Debug, Default)]
pub struct RequestTimes([Histogram; TimedRequest::NAMES.len()]);

impl RequestTimes {
    /// Records a request that began at `start` and ends now.
    pub fn record(&self, kind: TimedRequest, start: Instant) {
        self.record_at(kind, start, Instant::now());
    }

    /// Records a request that ended at `end`.
    pub fn record_at(&self, kind: TimedRequest, start: Instant, end: Instant) {
        self.0[kind as usize].record(end.saturating_duration_since(start).as_nanos() as u64);
    }

    /// Returns the times by kind, without kinds of which no request came.
    pub fn reports(&self) -> BTreeMap<String, LatencyReport> {
        let named = TimedRequest::NAMES.into_iter().zip(&self.0);
        let came = named.filter_map(|(name, times)| {
            LatencyReport::new(&times.counts()).map(|report| (name.to_owned(), report))
        });
        came.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn requests_are_reported_by_kind() {
        let (times, start) = (RequestTimes::default(), Instant::now());
        for us in [10, 20, 1000] {
            times.record_at(TimedRequest::Write, start, start + Duration::from_micros(us));
        }
        // A clock that goes backwards does no harm.
        times.record_at(TimedRequest::Zero, start + Duration::from_secs(1), start);
        let reports = times.reports();
        assert_eq!(reports.keys().collect::<Vec<_>>(), ["write", "zero"]);
        let write = &reports["write"];
        assert_eq!(write.total_ns, 1_030_000);
        assert!((20_000..=22_500).contains(&write.p50_ns), "{write:?}");
        assert!((1_000_000..=1_125_000).contains(&write.p999_ns), "{write:?}");
    }
}
