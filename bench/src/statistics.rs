//! Medians with confidence intervals by the bootstrap (Efron, 1979): the values are drawn again,
//! with replacement, and the spread of the medians of such samples is the interval.

use hdrhistogram::Histogram;
use rng::Rng;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Samples that are drawn.
const SAMPLES: usize = 2000;
/// Seed of the draws, so that the same values give the same interval.
const SEED: u64 = 1979;

/// A median and the interval that holds it with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The median of the values.
    pub median: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Returns that of the values; `None` without a value.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mut rng = Rng::new(SEED);
        let mut sample = vec![0.0; count];
        let mut medians: Vec<f64> = (0..SAMPLES)
            .map(|_| {
                sample.fill_with(|| values[rng.below_fast(count as u64) as usize]);
                median(&mut sample)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let [low, high] = [0.025, 0.975].map(|share| medians[(share * SAMPLES as f64) as usize]);
        Some(Self { low, median: median(&mut values.to_vec()), high })
    }

    /// Returns whether it holds the value.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns whether the two have no value in common.
    pub fn is_apart_from(&self, other: &Self) -> bool {
        self.high < other.low || other.high < self.low
    }
}

/// Returns the median of at least one value: the mean of the middle two, if their number is even.
/// Changes the order of the values.
pub fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if below.len() < middle || values.len() % 2 == 1 {
        return upper;
    }
    let lower = values[..middle].iter().copied().fold(f64::MIN, f64::max);
    (lower + upper) / 2.0
}

/// Percentiles of the times of single operations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Operations that were timed.
    pub samples: u64,
    /// Half of them took at most this time.
    pub p50_ns: u64,
    /// 99 % of them.
    pub p99_ns: u64,
    /// 99.9 % of them.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// The times of single operations, from 1 ns to a minute, to three digits.
pub struct Latencies(Histogram<u32>);

impl Latencies {
    const MAX_NS: u64 = 60_000_000_000;

    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, Self::MAX_NS, 3).expect("the bounds are valid"))
    }

    /// Adds a time; a longer one than a minute counts as a minute.
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos().min(u128::from(Self::MAX_NS)) as u64);
    }

    /// Returns the percentiles; `None` without a time.
    pub fn percentiles(&self) -> Option<Latency> {
        let of = |share| self.0.value_at_quantile(share);
        (!self.0.is_empty()).then(|| Latency {
            samples: self.0.len(),
            p50_ns: of(0.5),
            p99_ns: of(0.99),
            p999_ns: of(0.999),
            max_ns: self.0.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn an_interval_holds_the_median_and_repeats() {
        let values: Vec<f64> = (0..31).map(|i| f64::from(i * 17 % 31)).collect();
        let interval = Interval::of(&values).unwrap();
        assert_eq!(interval.median, 15.0);
        assert!(interval.low < 15.0 && interval.high > 15.0, "{interval:?}");
        assert!(interval.low > 5.0 && interval.high < 25.0, "{interval:?}");
        assert_eq!(Interval::of(&values), Some(interval));
        assert_eq!(Interval::of(&[]), None);
    }

    #[test]
    fn intervals_cover_the_true_median_as_often_as_they_promise() {
        let mut rng = Rng::new(1);
        let mut covered = 0;
        for _ in 0..200 {
            let values: Vec<f64> = (0..31).map(|_| rng.below(1000) as f64).collect();
            covered += u32::from(Interval::of(&values).unwrap().holds(499.5));
        }
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn intervals_are_apart_or_overlap() {
        let of = |low, high| Interval { low, median: (low + high) / 2.0, high };
        assert!(of(1.0, 2.0).is_apart_from(&of(2.1, 3.0)));
        assert!(!of(1.0, 2.0).is_apart_from(&of(1.9, 3.0)));
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.percentiles(), None);
        (1..=1000).for_each(|ns| latencies.add(Duration::from_nanos(ns)));
        latencies.add(Duration::from_secs(3600));
        let found = latencies.percentiles().unwrap();
        assert_eq!((found.samples, found.p50_ns, found.p99_ns), (1001, 501, 991));
        assert_eq!(found.p999_ns, 1000);
        assert!(found.max_ns >= 60_000_000_000);
    }
}
