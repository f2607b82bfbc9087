//! The time of a run on memory of less throughput, by the formula of §5.4:
//! time on PCM = time on DRAM + traffic / throughput.
//!
//! The formula is conservative: it adds all transfers to the time, although some would overlap with
//! computation, and does not subtract what the same transfers took in DRAM. Rates are in 10^6
//! bytes per second, as in the paper.

use serde::Serialize;

/// The lowest and the highest sustained throughput of the paper's memory controller, in MB/s.
pub const PAPER_RANGE: (f64, f64) = (34.0, 800.0);

/// The rates at which the time is computed by default, in MB/s. The paper simulated 480 for its
/// throughput benchmark.
pub const RATES: [f64; 9] = [34.0, 50.0, 100.0, 200.0, 300.0, 400.0, 480.0, 600.0, 800.0];

/// A run that was measured in DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Its time in DRAM, in seconds.
    pub dram_s: f64,
    /// Bytes that it read from memory.
    pub read_bytes: u64,
    /// Bytes that it wrote to memory.
    pub written_bytes: u64,
}

/// The time at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Projection {
    /// Throughput of the memory, in MB/s.
    pub mb_per_s: f64,
    /// The time of the run, in seconds.
    pub time_s: f64,
    /// That time as a multiple of the time in DRAM; `None` if that is 0.
    pub slowdown: Option<f64>,
}

impl Measured {
    /// Returns the bytes of traffic.
    pub fn traffic_bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// Computes the time with memory that moves `mb_per_s`, which must be above 0.
    pub fn at(&self, mb_per_s: f64) -> Projection {
        let time_s = self.dram_s + self.traffic_bytes() as f64 / (mb_per_s * 1e6);
        let slowdown = (self.dram_s > 0.0).then(|| time_s / self.dram_s);
        Projection { mb_per_s, time_s, slowdown }
    }

    /// Returns the throughput, in MB/s, from which this run takes less time than another system
    /// that takes `peer_s`. `None` if no memory is fast enough.
    pub fn faster_from(&self, peer_s: f64) -> Option<f64> {
        let left_s = peer_s - self.dram_s;
        (left_s > 0.0).then(|| self.traffic_bytes() as f64 / left_s / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_that_in_dram_and_of_the_traffic() {
        let run = Measured { dram_s: 2.0, read_bytes: 300_000_000, written_bytes: 100_000_000 };
        assert_eq!(run.at(100.0), Projection { mb_per_s: 100.0, time_s: 6.0, slowdown: Some(3.0) });
        assert_eq!(run.at(800.0).time_s, 2.5);
        assert_eq!(run.faster_from(6.0), Some(100.0));
        assert_eq!(run.faster_from(2.0), None);
        let nothing = Measured { dram_s: 0.0, ..run };
        assert_eq!(nothing.at(100.0).slowdown, None);
    }

    #[test]
    fn rates_are_those_of_the_paper() {
        assert!(RATES.is_sorted());
        assert_eq!((RATES[0], RATES[RATES.len() - 1]), PAPER_RANGE);
    }
}
