//! Histograms of the times that calls take.
//!
//! - **latency-H1** Recording adds to two words at most: no lock, no memory, no system call.
//! - **latency-H2** A bucket is at most an eighth as wide as the times in it, so a percentile is at
//!   most an eighth too large. It is never too small.
//! - **latency-H3** Histograms of several servers can be added up, bucket by bucket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// The number of buckets into which a power of two is divided, as a power of two.
const PARTS_LOG2: u32 = 3;
const PARTS: u64 = 1 << PARTS_LOG2;
/// All times below 2 to the power of this, in ns, are in the first bucket.
const FIRST: u32 = 5;
/// All times from 2 to the power of this on, in ns, are in the last bucket: 34 s.
const LAST: u32 = 35;
/// The number of buckets.
const BUCKETS: usize = (LAST - FIRST) as usize * PARTS as usize + 2;

/// Returns the bucket of a time in ns.
#[inline]
const fn bucket(ns: u64) -> usize {
    if ns < 1 << FIRST {
        return 0;
    }
    if ns >= 1 << LAST {
        return BUCKETS - 1;
    }
    let power = ns.ilog2();
    let part = (ns >> (power - PARTS_LOG2)) & (PARTS - 1);
    1 + (power - FIRST) as usize * PARTS as usize + part as usize
}

/// Returns the least time, in ns, that is above the times of a bucket. For the last bucket it is
/// that of its least time, doubled.
const fn end(bucket: usize) -> u64 {
    match bucket {
        0 => 1 << FIRST,
        _ if bucket == BUCKETS - 1 => 1 << (LAST + 1),
        _ => {
            let at = bucket as u64 - 1;
            (PARTS + at % PARTS + 1) << (at / PARTS + (FIRST - PARTS_LOG2) as u64)
        }
    }
}

/// A histogram that threads record in.
#[derive(Debug)]
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], total_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Records a call (latency-H1).
    #[inline]
    pub fn record(&self, ns: u64) {
        self.record_in_bucket(ns);
        self.total_ns.fetch_add(ns, Relaxed);
    }

    /// As [`record`](Self::record), for callers that count the total elsewhere.
    #[inline]
    pub(crate) fn record_in_bucket(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
    }

    /// Returns the counts.
    pub fn counts(&self) -> Latencies {
        let buckets = self.buckets.each_ref().map(|calls| calls.load(Relaxed));
        Latencies { buckets, total_ns: self.total_ns.load(Relaxed) }
    }
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    buckets: [u64; BUCKETS],
    /// The sum of all times, in ns.
    pub total_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], total_ns: 0 }
    }
}

impl Latencies {
    /// Makes the counts of these [`buckets`](Self::buckets). Each goes to the bucket with that end.
    pub fn of(buckets: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut counts = Self::default();
        for (end, calls) in buckets {
            let of_bucket = &mut counts.buckets[bucket(end.saturating_sub(1))];
            *of_bucket = of_bucket.saturating_add(calls);
        }
        counts
    }

    /// Adds the counts of another histogram (latency-H3).
    pub fn add(&mut self, other: &Self) {
        for (sum, calls) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.saturating_add(*calls);
        }
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    /// Returns what was recorded since earlier counts of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.buckets.iter().zip(&earlier.buckets);
        let mut buckets = [0; BUCKETS];
        for (left, (now, before)) in buckets.iter_mut().zip(counts) {
            *left = now.saturating_sub(*before);
        }
        Self { buckets, total_ns: self.total_ns.saturating_sub(earlier.total_ns) }
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, calls| sum.saturating_add(*calls))
    }

    /// Returns the time, in ns, that a share of the calls did not exceed: 0.99 is the 99th
    /// percentile (latency-H2). `None` without calls.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let rank = (share * self.calls() as f64).ceil().max(1.0) as u64;
        let mut below = 0_u64;
        let found = self.buckets.iter().position(|calls| {
            below = below.saturating_add(*calls);
            below >= rank
        });
        found.map(|bucket| end(bucket) - 1)
    }

    /// Returns the buckets that have calls: the least time above them, in ns, and their calls.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counted = self.buckets.iter().enumerate().filter(|(_, calls)| **calls > 0);
        counted.map(|(bucket, calls)| (end(bucket), *calls))
    }
}

/// The times of requests of one kind in a server's statistics, in ns. A percentile is at most an
/// eighth too large.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Sum.
    pub total_ns: u64,
    /// The histogram: the least time above each bucket that has requests, and their number.
    pub buckets: Vec<(u64, u64)>,
}

impl LatencyReport {
    /// Makes a report of these counts. `None` without calls.
    pub fn new(times: &Latencies) -> Option<Self> {
        Some(Self {
            p50_ns: times.percentile(0.5)?,
            p99_ns: times.percentile(0.99)?,
            p999_ns: times.percentile(0.999)?,
            total_ns: times.total_ns,
            buckets: times.buckets().collect(),
        })
    }

    /// Adds the report of another process (latency-H3).
    pub fn add(&mut self, other: &Self) {
        let mut sum = self.counts();
        sum.add(&other.counts());
        if let Some(sum) = Self::new(&sum) {
            *self = sum;
        }
    }

    fn counts(&self) -> Latencies {
        let counts = Latencies::of(self.buckets.iter().copied());
        Latencies { total_ns: self.total_ns, ..counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        for bucket_at in 0..BUCKETS - 1 {
            let end_of = end(bucket_at);
            assert_eq!((bucket(end_of - 1), bucket(end_of)), (bucket_at, bucket_at + 1));
            if bucket_at > 0 {
                let begin = end(bucket_at - 1);
                assert!((end_of - begin) * PARTS <= begin, "{begin} to {end_of}");
            }
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_large() {
        let histogram = Histogram::default();
        assert_eq!(histogram.counts().percentile(0.5), None);
        (1..=1000).for_each(|call| histogram.record(call * 100));
        let counts = histogram.counts();
        assert_eq!((counts.calls(), counts.total_ns), (1000, 100 * 1000 * 1001 / 2));
        for (share, exact) in [(0.001, 100), (0.5, 50_000), (0.99, 99_000), (1.0, 100_000)] {
            let found = counts.percentile(share).unwrap();
            assert!((exact..=exact + exact / 8).contains(&found), "{share}: {found}");
        }
    }

    #[test]
    fn counts_are_added_and_subtracted() {
        let histogram = Histogram::default();
        [10, 1000, 1_000_000].into_iter().for_each(|ns| histogram.record(ns));
        let earlier = histogram.counts();
        [u64::MAX / 2, 1000].into_iter().for_each(|ns| histogram.record(ns));
        let later = histogram.counts();
        let mut sum = later.since(&earlier);
        assert_eq!(sum.calls(), 2);
        sum.add(&earlier);
        assert_eq!(sum, later);
        let again = Latencies::of(later.buckets());
        assert_eq!(again.buckets, later.buckets);
        let [mut first, second] =
            [&earlier, &later.since(&earlier)].map(|counts| LatencyReport::new(counts).unwrap());
        first.add(&second);
        assert_eq!(Some(first), LatencyReport::new(&later));
    }
}
